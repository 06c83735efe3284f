// From a launch's arguments to ranges of memory that its kernel may touch.
#pragma once
#include <vector>

#include "state.h"

namespace smr {

class Bindings {
 public:
  // Fills g.buffers and g.ranges. False: the arena has no room.
  bool bind(const smr_launch_info& info);
  // Copies moved memory back and settles which bytes were written.
  void unbind();

 private:
  // Bytes from outside the arena, which live in it during the launch.
  struct Moved {
    uintptr_t from, to;
    size_t size;
    void* block;
    bool write_back;
  };

  bool move(uintptr_t begin, size_t size, bool write_back);
  bool move_foreign(const smr_launch_info& info);
  uintptr_t address(uintptr_t p, size_t size) const;
  void bind_memory(const smr_binding& binding, uint32_t alias, const char* kernel, Range& range) const;

  std::vector<Moved> moved_;
};

}  // namespace smr
