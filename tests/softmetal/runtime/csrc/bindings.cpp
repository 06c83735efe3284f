#include "bindings.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace smr {
namespace {

constexpr size_t kSlot = size_t{1} << 37;  // an argument by value, or the address of an empty or unset buffer, with guard room
constexpr size_t kSlotBytes = 64 * 1024;   // of them there is memory for so many; setBytes takes 4096
constexpr uint32_t kNobody = kMaxBindings;  // the slot of buffers that no binding names

unsigned char* slot(uint32_t index) {
  static unsigned char* slots = [] {
    void* p = mmap(nullptr, kSlot * (kMaxBindings + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    for (uint32_t i = 0; i <= kMaxBindings; ++i) {
      if (mprotect(static_cast<char*>(p) + i * kSlot + kSlot / 2, kSlotBytes, PROT_READ | PROT_WRITE)) std::abort();
    }
    return static_cast<unsigned char*>(p);
  }();
  return slots + index * kSlot + kSlot / 2;
}

bool in_memory(const smr_binding& b) { return !(b.flags & (SMR_BY_VALUE | SMR_UNSET)) && b.size; }

// The alias that binding i is seen in. Two that are the same memory share one: their addresses are equal on a GPU too.
uint32_t alias_of(const smr_launch_info& info, uint32_t i) {
  const smr_binding& b = info.bindings[i];
  for (uint32_t k = 0; k < i; ++k)
    if (in_memory(info.bindings[k]) && info.bindings[k].data == b.data && info.bindings[k].size == b.size) return alias_of(info, k);
  return 1 + i % kAliases;
}

}  // namespace

uintptr_t Bindings::address(uintptr_t p, size_t size) const {
  for (const Moved& m : moved_)
    if (p >= m.from && p + size <= m.from + m.size) return m.to + (p - m.from);
  return p;
}

bool Bindings::move(uintptr_t begin, size_t size, bool write_back) {
  constexpr size_t kAlign = 4096;  // what alignment a kernel sees stays as it is
  void* made = smr_arena_alloc(size + kAlign);
  if (!made) return false;
  const auto at = reinterpret_cast<uintptr_t>(made);
  const uintptr_t to = at + (begin - at) % kAlign;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(begin), size);
  {
    std::lock_guard<std::mutex> hold(memory_lock());
    block_of(at)->fresh = false;
  }
  moved_.push_back({begin, to, size, made, write_back});
  return true;
}

// What overlaps moves as one.
bool Bindings::move_foreign(const smr_launch_info& info) {
  struct Piece {
    uintptr_t begin, end;
    bool write;
  };
  std::vector<Piece> pieces;
  for (uint32_t i = 0; i < info.binding_count; ++i) {
    const smr_binding& b = info.bindings[i];
    const auto begin = reinterpret_cast<uintptr_t>(b.data);
    if (in_memory(b) && !block_of(begin)) pieces.push_back({begin, begin + b.size, !(b.flags & SMR_READ_ONLY)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < pieces.size();) {
    Piece all = pieces[i++];
    for (; i < pieces.size() && pieces[i].begin < all.end; ++i) {
      all.end = std::max(all.end, pieces[i].end);
      all.write |= pieces[i].write;
    }
    if (!move(all.begin, all.end - all.begin, all.write)) return false;
  }
  return true;
}

void Bindings::bind_memory(const smr_binding& binding, uint32_t alias, const char* kernel, Range& range) const {
  const auto given = reinterpret_cast<uintptr_t>(binding.data);
  const uintptr_t at = g.checked ? address(given, binding.size) : given;
  range.begin = at;
  Block* block = block_of(at);
  if (!block) return;
  const bool partly = track(*block, at, binding.size, kernel);
  range.block = block;
  if (g.checked) {
    const uintptr_t away = alias_offset(alias);
    block->shadowed = true;
    range.begin = at + away;
    range.pages = shadow_pages();
    range.first_page = (arena_base() + away) / 4096;
    if (partly) {
      range.written = block->written;
      range.block_begin = block->begin + away;
    }
  } else if (partly && !range.read_only) {  // nobody watches: believe that it is written
    std::lock_guard<std::mutex> hold(memory_lock());
    set_written(*block, at - block->begin, binding.size);
  }
}

bool Bindings::bind(const smr_launch_info& info) {
  for (uint32_t i = 0; i < kMaxBindings; ++i) g.buffers[i] = slot(kNobody);
  g.ranges.clear();
  g.ranges.reserve(2048 + info.binding_count);
  if (g.checked && !move_foreign(info)) {
    unbind();
    return false;
  }
  for (uint32_t i = 0; i < info.binding_count; ++i) {
    const smr_binding& b = info.bindings[i];
    Range range;
    range.size = b.size;
    range.name = b.name;
    range.index = static_cast<int32_t>(b.index);
    range.element_size = b.element_size ? b.element_size : 1;
    range.read_only = b.flags & SMR_READ_ONLY;
    range.space = b.flags & SMR_BY_VALUE ? SMR_CONSTANT : SMR_DEVICE;
    if (in_memory(b)) {
      bind_memory(b, alias_of(info, i), info.kernel, range);
    } else if (!(b.flags & SMR_LISTED)) {
      unsigned char* at = slot(b.index);
      if (b.flags & SMR_BY_VALUE) std::memcpy(at, b.data, b.size);
      range.begin = reinterpret_cast<uintptr_t>(at);
      range.read_only |= (b.flags & SMR_BY_VALUE) != 0;
    }
    if (b.flags & SMR_LISTED) {
      std::memcpy(slot(b.index) + b.position * sizeof(void*), &range.begin, sizeof(void*));
    } else {
      g.buffers[b.index] = reinterpret_cast<void*>(range.begin);
    }
    g.ranges.push_back(range);
  }
  library_ranges(reinterpret_cast<const void*>(info.entry), g.ranges);
  return true;
}

void Bindings::unbind() {
  {
    std::lock_guard<std::mutex> hold(memory_lock());
    for (const Range& range : g.ranges)
      if (range.written) recount(*range.block);
  }
  for (const Moved& m : moved_) {
    if (m.write_back) std::memcpy(reinterpret_cast<void*>(m.from), reinterpret_cast<void*>(m.to), m.size);
  }
  for (const Moved& m : moved_) smr_arena_free(m.block);
  moved_.clear();
}

}  // namespace smr
