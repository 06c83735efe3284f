// The arena: address space for device memory, in blocks that are far apart, and what is known of each block's bytes.
//
// The same memory shows at many places: the arena itself, and its aliases, each at a distance of its own. A launch gives each buffer
// in an alias of its own, so that a pointer tells by its value which buffer it was made from, however far it strays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace smr {

constexpr size_t kUnit = 64 * 1024;  // a block starts in a unit of its own and is followed by an empty one

// One allocated block. `fresh` bytes were never written; `written` (one bit a byte) exists once only part of them is fresh.
struct Block {
  uintptr_t begin = 0;     // first byte
  size_t size = 0;         // bytes asked for
  size_t live = 0;         // bytes in use of them, the first ones: a pool may hand out less than it took
  uintptr_t slot = 0;      // address range taken from the arena, guard room included
  size_t slot_size = 0;
  bool fresh = false;      // no byte written yet, and no bitmap
  bool shadowed = false;   // a checked kernel was bound to it: shadow pages may exist
  uint64_t* written = nullptr;
  size_t unwritten = 0;    // bytes of [track_begin, track_end) without their bit
  size_t track_begin = 0, track_end = 0;  // what kernels were bound to, as offsets
  char kernel[120] = "";   // the kernel last bound while bytes were unwritten
};

Block* block_of(uintptr_t p);            // nullptr outside every block; callers hold no lock: blocks of live tensors stay put
std::mutex& memory_lock();               // guards block bookkeeping and the bitmaps
uintptr_t arena_base();
size_t arena_size();
constexpr uint32_t kAliases = 64;
uintptr_t alias_offset(uint32_t n);      // what to add to an address of the arena for alias n; of alias 0, the arena itself, 0

// A kernel is bound to [begin, begin + size) of a block: poisons the bytes never written and returns true if there are any.
bool track(Block& block, uintptr_t begin, size_t size, const char* kernel);
bool all_written(const Block& block, size_t offset, size_t size);
size_t first_clear(const Block& block, size_t offset, size_t size);  // offset of the first byte without its bit, or offset + size
void set_written(Block& block, size_t offset, size_t size);
void start_bitmap(Block& block);         // all clear
void recount(Block& block);              // after bits were set directly

}  // namespace smr
