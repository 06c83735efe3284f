#include "bindings.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace smr {
namespace {

constexpr size_t kSlot = 128 * 1024;  // an argument by value, or the address of an empty or unset buffer, with guard room

unsigned char* slot(uint32_t index) {
  static unsigned char* slots = [] {
    void* p = mmap(nullptr, kSlot * (kMaxBindings + 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    return static_cast<unsigned char*>(p);
  }();
  return slots + index * kSlot + kSlot / 2;
}

bool in_memory(const smr_binding& b) { return !(b.flags & (SMR_BY_VALUE | SMR_UNSET)) && b.size; }

}  // namespace

uintptr_t Bindings::address(uintptr_t p, size_t size) const {
  for (const Moved& m : moved_)
    if (p >= m.from && p + size <= m.from + m.size) return m.to + (p - m.from);
  return p;
}

bool Bindings::move(uintptr_t begin, size_t size, bool write_back, const char* kernel) {
  constexpr size_t kAlign = 4096;  // what alignment a kernel sees stays as it is
  void* made = smr_arena_alloc(size + kAlign);
  if (!made) return false;
  const auto at = reinterpret_cast<uintptr_t>(made);
  const uintptr_t to = at + (begin - at) % kAlign;
  Block* from = block_of(begin);
  Block* block = block_of(reinterpret_cast<uintptr_t>(made));
  const bool partly = from && track(*from, begin, size, kernel);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(begin), size);
  {
    std::lock_guard<std::mutex> hold(memory_lock());
    block->fresh = false;
    if (partly) {
      start_bitmap(*block);
      copy_written(*from, begin - from->begin, *block, to - block->begin, size);
    }
  }
  moved_.push_back({begin, to, size, made, write_back});
  return true;
}

// Views of one storage that do not overlap go to places of their own, the largest stays; so does what overlaps a view.
bool Bindings::separate(const smr_launch_info& info) {
  struct Piece {
    const Block* block;
    uintptr_t begin, end;
    bool write;
  };
  std::vector<Piece> pieces;
  for (uint32_t i = 0; i < info.binding_count; ++i) {
    const smr_binding& b = info.bindings[i];
    if (!in_memory(b)) continue;
    const auto begin = reinterpret_cast<uintptr_t>(b.data);
    pieces.push_back({block_of(begin), begin, begin + b.size, !(b.flags & SMR_READ_ONLY)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> merged;
  for (const Piece& p : pieces) {
    if (!merged.empty() && p.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, p.end);
      merged.back().write |= p.write;
    } else {
      merged.push_back(p);
    }
  }
  for (const Piece& p : merged) {
    bool stays = p.block != nullptr;
    for (const Piece& other : merged) {
      if (!stays || &other == &p || other.block != p.block) continue;
      const size_t mine = p.end - p.begin, its = other.end - other.begin;
      stays = mine > its || (mine == its && p.begin < other.begin);
    }
    if (!stays && !move(p.begin, p.end - p.begin, p.write, info.kernel)) return false;
  }
  return true;
}

bool Bindings::bind(const smr_launch_info& info) {
  for (uint32_t i = 0; i < kMaxBindings; ++i) g.buffers[i] = slot(kMaxBindings);
  g.ranges.clear();
  g.ranges.reserve(2048);
  if (g.checked && !separate(info)) {
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
    if (!in_memory(b)) {
      unsigned char* at = slot(b.index);
      if (b.flags & SMR_BY_VALUE) std::memcpy(at, b.data, b.size);
      range.begin = reinterpret_cast<uintptr_t>(at);
      range.read_only |= (b.flags & SMR_BY_VALUE) != 0;
    } else {
      range.begin = g.checked ? address(reinterpret_cast<uintptr_t>(b.data), b.size) : reinterpret_cast<uintptr_t>(b.data);
      if (Block* block = block_of(range.begin)) {
        const bool partly = track(*block, range.begin, range.size, info.kernel);
        range.block = block;
        if (g.checked) {
          block->shadowed = true;
          range.pages = shadow_pages();
          range.first_page = arena_base() / 4096;
          if (partly) {
            range.written = block->written;
            range.block_begin = block->begin;
          }
        } else if (partly && !range.read_only) {  // nobody watches: believe that it is written
          std::lock_guard<std::mutex> hold(memory_lock());
          set_written(*block, range.begin - block->begin, range.size);
        }
      }
    }
    g.buffers[b.index] = reinterpret_cast<void*>(range.begin);
    g.ranges.push_back(range);
  }
  library_ranges(reinterpret_cast<const void*>(info.entry), g.ranges);
  return true;
}

void Bindings::unbind() {
  std::unique_lock<std::mutex> hold(memory_lock());
  for (const Range& range : g.ranges)
    if (range.written) recount(*range.block);
  for (const Moved& m : moved_) {
    if (!m.write_back) continue;
    std::memcpy(reinterpret_cast<void*>(m.from), reinterpret_cast<void*>(m.to), m.size);
    Block *from = block_of(m.from), *block = block_of(m.to);
    if (!from || !from->written || !block->written) continue;
    copy_written(*block, m.to - block->begin, *from, m.from - from->begin, m.size);
    recount(*from);
  }
  hold.unlock();
  for (const Moved& m : moved_) smr_arena_free(m.block);
  moved_.clear();
}

}  // namespace smr
