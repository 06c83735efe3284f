#include "shadow.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "arena.h"

namespace smr {
namespace {

constexpr size_t kPageSize = 4096;
constexpr int kMaxShift = 4;

// Tag arrays come in five sizes (256 to 4096 tags) from large chunks; freed ones are kept by size.
class Slab {
 public:
  Tag* take(int shift) {
    std::lock_guard<std::mutex> hold(lock_);
    const size_t bytes = (kPageSize >> shift) * sizeof(Tag);
    if (Free* have = free_[shift]) {
      free_[shift] = have->next;
      std::memset(static_cast<void*>(have), 0, bytes);
      return reinterpret_cast<Tag*>(have);
    }
    if (left_ < bytes) {
      void* p = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) std::abort();
      madvise(p, kChunk, MADV_HUGEPAGE);
      next_ = static_cast<char*>(p);
      left_ = kChunk;
    }
    Tag* made = reinterpret_cast<Tag*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return made;
  }

  void give_back(Tag* tags, int shift) {
    if (!tags) return;
    std::lock_guard<std::mutex> hold(lock_);
    Free* f = reinterpret_cast<Free*>(tags);
    f->next = free_[shift];
    free_[shift] = f;
  }

 private:
  struct Free {
    Free* next;
  };
  static constexpr size_t kChunk = size_t{64} << 20;
  std::mutex lock_;
  Free* free_[kMaxShift + 1] = {};
  char* next_ = nullptr;
  size_t left_ = 0;
};

Slab& slab() {
  static Slab* instance = new Slab;
  return *instance;
}

template <class F>
void each_array(Page& page, F f) {
  f(page.write);
  f(page.read[0]);
  f(page.read[1]);
  f(page.atomic[0]);
  f(page.atomic[1]);
  f(page.loaded[0]);
  f(page.loaded[1]);
}

// Makes the granules of a page smaller; each small one inherits what is known of the large one that it was part of.
__attribute__((noinline)) void split(Page& page, int shift) {
  each_array(page, [&](Tag*& tags) {
    if (!tags) return;
    Tag* finer = slab().take(shift);
    const size_t count = kPageSize >> shift;
    for (size_t i = 0; i < count; ++i) finer[i] = tags[i >> (page.shift - shift)];
    slab().give_back(tags, page.shift);
    tags = finer;
  });
  page.shift = static_cast<uint8_t>(shift);
}

__attribute__((noinline)) void fit(Page& page, uintptr_t p, size_t n) {
  int shift = __builtin_ctzll(p | n | (1 << kMaxShift));
  if (!page.used) {
    page.used = 1;
    page.shift = static_cast<uint8_t>(shift);
  } else if (shift < page.shift) {
    split(page, shift);
  }
}

__attribute__((noinline)) Tag* add(Tag*& tags, const Page& page) { return tags = slab().take(page.shift); }

// Would `t` conflict with an access by `me` now, if one of the two is a write?
inline bool unordered(Tag t, Tag me, const Order& order) {
  const uint64_t id = tag_id(t);
  if (id < order.horizon) return false;
  if (id < order.group_first) return true;
  if (id < order.first) return false;
  const uint32_t a = tag_thread(t), b = tag_thread(me);
  if (a == b) return false;
  return a / 32 != b / 32 || id >= order.now[b / 32];
}

// Keeps two of any number of accesses so that whatever access comes later conflicts with one of the two if it conflicts with any.
//  * An access of another threadgroup of this launch conflicts with everything to come: it alone is enough.
//  * Two lanes of different SIMD-groups are enough within a barrier interval: no thread is ordered after both before the next barrier.
//  * Two lanes of one SIMD-group, both since its last simdgroup barrier: enough for its own lanes, and for all others any one is.
inline void remember(Tag& first, Tag* second, Page& page, Tag*& second_array, size_t cell, Tag me, const Order& order) {
  const uint64_t id = tag_id(first);
  if (id < order.horizon || (id >= order.group_first && id < order.first)) {
    first = me;
    if (second) *second = 0;
    return;
  }
  if (id < order.group_first) return;
  const uint32_t thread = tag_thread(me), group = thread / 32;
  if (tag_thread(first) == thread) {
    first = me;
    return;
  }
  if (!second) second = &add(second_array, page)[cell];
  if (tag_id(*second) < order.first || tag_thread(*second) == thread) {
    *second = me;
    return;
  }
  const uint32_t one = tag_thread(first) / 32, other = tag_thread(*second) / 32;
  if (one != other) return;
  if (group != one) {
    *second = me;
  } else if (id < order.now[group]) {
    first = me;
  } else if (tag_id(*second) < order.now[group]) {
    *second = me;
  }
}

// The first of two recorded accesses, if any, that an access by `me` now would conflict with.
inline Tag conflicting(Tag* const (&recorded)[2], size_t cell, Tag me, const Order& order) {
  for (const Tag* tags : recorded)
    if (tags && unordered(tags[cell], me, order)) return tags[cell];
  return 0;
}

// `remember`, in arrays that are made when they are first needed.
inline void record(Tag* (&recorded)[2], Page& page, size_t cell, Tag me, const Order& order) {
  Tag* first = recorded[0] ? recorded[0] : add(recorded[0], page);
  remember(first[cell], recorded[1] ? &recorded[1][cell] : nullptr, page, recorded[1], cell, me, order);
}

Conflict in_page(Page& page, const Order& order, uintptr_t p, size_t n, Access access, Tag me) {
  if (__builtin_expect(!page.used || ((p | n) & ((uintptr_t{1} << page.shift) - 1)), 0)) fit(page, p, n);
  const int shift = page.shift;
  size_t cell = (p & (kPageSize - 1)) >> shift;
  const size_t end = cell + (n >> shift);
  const uintptr_t base = p & ~uintptr_t{kPageSize - 1};
  if (access == kRead) {
    Tag* r0 = page.read[0] ? page.read[0] : add(page.read[0], page);
    for (; cell < end; ++cell) {
      if (page.write && unordered(page.write[cell], me, order)) return {page.write[cell], kWrite, base + (cell << shift)};
      if (__builtin_expect(page.atomic[0] != nullptr, 0)) {
        if (const Tag other = conflicting(page.atomic, cell, me, order)) return {other, kAtomic, base + (cell << shift)};
      }
      if (__builtin_expect(tag_id(r0[cell]) < order.horizon && !page.read[1], 1)) {
        r0[cell] = me;
        continue;
      }
      remember(r0[cell], page.read[1] ? &page.read[1][cell] : nullptr, page, page.read[1], cell, me, order);
    }
    return {};
  }
  for (; cell < end; ++cell) {
    if (page.write && unordered(page.write[cell], me, order)) return {page.write[cell], kWrite, base + (cell << shift)};
    if (access == kAtomicLoad) {
      record(page.loaded, page, cell, me, order);
      continue;
    }
    if (const Tag other = conflicting(page.read, cell, me, order)) return {other, kRead, base + (cell << shift)};
    if (access == kAtomic) {
      record(page.atomic, page, cell, me, order);
    } else {
      if (const Tag other = conflicting(page.atomic, cell, me, order)) return {other, kAtomic, base + (cell << shift)};
      if (const Tag other = conflicting(page.loaded, cell, me, order)) return {other, kAtomicLoad, base + (cell << shift)};
      (page.write ? page.write : add(page.write, page))[cell] = me;
    }
  }
  return {};
}

}  // namespace

Conflict shadow_access(Page* pages, uintptr_t first_page, const Order& order, uintptr_t p, size_t n, Access access, Tag me) {
  for (;;) {
    const size_t room = kPageSize - (p & (kPageSize - 1));
    const size_t part = n < room ? n : room;
    const Conflict found = in_page(pages[p / kPageSize - first_page], order, p, part, access, me);
    if (__builtin_expect(found.tag != 0, 0) || part == n) return found;
    p += part;
    n -= part;
  }
}

uintptr_t shadow_unwritten(const Page* pages, uintptr_t first_page, uintptr_t p, size_t n, uint64_t since) {
  const uintptr_t end = p + n;
  while (p < end) {
    const Page& page = pages[p / kPageSize - first_page];
    const size_t cell = (p & (kPageSize - 1)) >> page.shift;
    const bool written = page.used && ((page.write && tag_id(page.write[cell]) >= since) ||
                                       (page.atomic[0] && tag_id(page.atomic[0][cell]) >= since));
    if (!written) return p;
    p = ((p >> page.shift) + 1) << page.shift;
  }
  return end;
}

Page* shadow_pages() {
  static Page* table = [] {
    void* p = mmap(nullptr, arena_size() / kPageSize * sizeof(Page), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    return static_cast<Page*>(p);
  }();
  return table;
}

void shadow_release(Page* pages, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!pages[i].used) continue;
    each_array(pages[i], [&](Tag*& tags) { slab().give_back(tags, pages[i].shift); });
    pages[i] = Page{};
  }
}

void shadow_release(uintptr_t begin, size_t size) {
  if (!size) return;
  const uintptr_t first = (begin - arena_base()) / kPageSize, last = (begin + size - 1 - arena_base()) / kPageSize;
  shadow_release(shadow_pages() + first, last - first + 1);
}

}  // namespace smr
