// Shadow memory: who touched which bytes last, kept so that every race shows whatever the schedule.
//
// Threads of a launch run one at a time, so "at the same time" is a matter of bookkeeping. Every access leaves a tag
//     id (43 bits) | thread in its threadgroup (10) | access site (11).
// ids only grow: one is drawn when a threadgroup starts, at each threadgroup barrier and at each simdgroup barrier. An id alone
// tells an access of an earlier launch (dead), of another threadgroup of this launch, of an earlier barrier interval (ordered before
// us) or of ours, so nothing is ever cleared.
//
// Memory is watched in granules, all of one size within a 4 KiB page: 16 bytes at first, split when a smaller or unaligned access
// comes, so a cell always stands for bytes that were accessed together. Per granule there are up to seven tags, each kind in an
// array that exists only in pages that need it: the last plain write, two plain readers, two lanes that updated atomically, two
// that loaded atomically. Two of the latter are enough, see `remember`.
#pragma once
#include <cstddef>
#include <cstdint>

namespace smr {

using Tag = uint64_t;
constexpr int kSiteBits = 11, kThreadBits = 10, kIdShift = kSiteBits + kThreadBits;
constexpr uint32_t kSites = 1u << kSiteBits;

inline uint64_t tag_id(Tag t) { return t >> kIdShift; }
inline uint32_t tag_thread(Tag t) { return static_cast<uint32_t>(t >> kSiteBits) & 1023; }
inline uint32_t tag_site(Tag t) { return static_cast<uint32_t>(t) & (kSites - 1); }

struct Page {
  Tag* write;
  Tag* read[2];
  Tag* atomic[2];
  Tag* loaded[2];  // by atomic loads
  uint8_t shift;  // log2 of the granule's size
  uint8_t used;
};

// What orders the accesses to one kind of memory (device, threadgroup) right now.
struct Order {
  uint64_t horizon;      // older ids are dead: the launch's first id for device memory, the threadgroup's for threadgroup memory
  uint64_t group_first;  // older ids (not dead) are of other threadgroups of this launch
  uint64_t first;        // older ids of this threadgroup are ordered before us by a threadgroup barrier
  uint64_t now[32];      // current id of each SIMD-group; older ids of the same SIMD-group are ordered by a simdgroup barrier
};

// A plain write conflicts with everything, a plain read with writes and with kAtomic (an atomic store or update), an atomic load
// with plain writes only.
enum Access : uint32_t { kRead = 1, kWrite = 2, kAtomic = 4, kAtomicLoad = 5 };

struct Conflict {
  Tag tag = 0;          // 0: none
  uint32_t access = 0;  // what the other one did
  uintptr_t at = 0;     // first byte of the granule
};

// Checks an access of [p, p + n) by the thread in `me` (a tag of the present moment) against the shadow, and records it. The
// pages array covers the address pages from first_page on. Returns the first conflict; nothing is recorded from there on.
Conflict shadow_access(Page* pages, uintptr_t first_page, const Order& order, uintptr_t p, size_t n, Access access, Tag me);

// The usual case of shadow_access, inline: one whole granule in a page that is only read, or only written, first touched in this
// launch or touched again in a way that nothing can conflict with. False: ask shadow_access.
template <bool write>
inline bool shadow_quick(Page* pages, uintptr_t first_page, const Order& order, uintptr_t p, size_t n, Tag me) {
  Page& page = pages[p / 4096 - first_page];
  Tag* tags = write ? page.write : page.read[0];
  if (!tags || (write ? page.read[0] : page.write) || page.atomic[0] || page.loaded[0]) return false;
  if (n != size_t{1} << page.shift || p % n) return false;
  Tag& last = tags[p % 4096 >> page.shift];
  const uint64_t id = tag_id(last);
  if (id >= order.horizon) {
    if (write) return false;
    if (id < order.group_first) return true;  // another threadgroup's read says all that this one's would
    if (tag_thread(last) != tag_thread(me)) return false;
  } else if (!write && page.read[1]) {
    return false;  // the second reader has to be forgotten as well
  }
  last = me;
  return true;
}

// First byte of [p, p + n) not written since id `since`, or p + n. For threadgroup memory.
uintptr_t shadow_unwritten(const Page* pages, uintptr_t first_page, uintptr_t p, size_t n, uint64_t since);

Page* shadow_pages();                                // the arena's, page 0 at the arena's base
void shadow_release(uintptr_t begin, size_t size);  // forgets an arena block that is being freed
void shadow_release(Page* pages, size_t count);

}  // namespace smr
