// The call-outs of clang's -fsanitize=kernel-address: one before every memory access of a kernel.
#include <cstring>

#include "state.h"

namespace smr {
namespace {

__attribute__((noinline)) Site* new_site(uint64_t pc) {
  // Open addressing. A kernel with more sites than the table shares the last one: its reports just lack that source line.
  for (uint32_t i = 0, at = (pc ^ pc >> 9) % (kSites - 1); i < 16; ++i, at = (at + 1) % (kSites - 1)) {
    Site& site = g.sites[at];
    if (site.pc == pc) return &site;
    if (site.pc == 0) {
      site.pc = pc;
      return &site;
    }
  }
  g.sites[kSites - 1].pc = 0;
  return &g.sites[kSites - 1];
}

inline Site* site_of(uint64_t pc) {
  Site* site = &g.sites[(pc ^ pc >> 9) % (kSites - 1)];
  return __builtin_expect(site->pc == pc, 1) ? site : new_site(pc);
}

[[noreturn]] __attribute__((noinline)) void out_of_bounds(uintptr_t p, size_t n, Access access, uint64_t pc) {
  const Range* nearest = nullptr;
  size_t distance = SIZE_MAX;
  for (const Range& range : g.ranges) {
    const size_t away = p < range.begin ? range.begin - p : p >= range.begin + range.size ? p - (range.begin + range.size) : 0;
    if (away < distance) {
      distance = away;
      nearest = &range;
    }
  }
  smr_report& report = begin_report(SMR_OUT_OF_BOUNDS);
  report.lanes[0] = current_lane(pc, 0, access);
  report.access_size = n;
  report.address = p;
  if (nearest && distance < size_t{1} << 30) describe(report, *nearest, p);
  stop_lane();
}

[[noreturn]] __attribute__((noinline)) void bad_access(uint32_t kind, const Range& range, uintptr_t at, size_t n, Access access, uint64_t pc) {
  smr_report& report = begin_report(kind);
  report.lanes[0] = current_lane(pc, 0, access);
  report.access_size = n;
  describe(report, range, at);
  stop_lane();
}

[[noreturn]] __attribute__((noinline)) void race(const Range& range, const Conflict& found, size_t n, Access access, uint64_t pc) {
  smr_report& report = begin_report(SMR_RACE);
  report.lanes[0] = current_lane(pc, 0, access);
  report.lanes[1] = lane_of(found.tag, found.access);
  report.lane_count = 2;
  report.access_size = n;
  describe(report, range, found.at < range.begin ? range.begin : found.at);
  stop_lane();
}

// The range of an access that is not in the one this site touched last. nullptr: the thread's own memory, nothing to check.
__attribute__((noinline)) const Range* new_range(Site* site, uintptr_t p, size_t n, Access access, uint64_t pc) {
  const auto within = [&](const void* begin, size_t size) {
    const uintptr_t at = p - reinterpret_cast<uintptr_t>(begin);
    return at < size && n <= size - at;
  };
  const Fibre* fibre = g.fibre;
  if (within(reinterpret_cast<const void*>(fibre->stack_begin), fibre->stack_size)) return nullptr;
  if (within(&fibre->thread, sizeof fibre->thread)) return nullptr;  // the position attributes
  if (const Range* range = find_range(p, n, access != kRead)) return site->range = range;
  if (access == kRead) {
    if (within(g.simd[g.thread / kLanes].values, sizeof g.simd[0].values) || within(g.buffers, sizeof g.buffers)) return nullptr;
    if (is_plain_library_data(p, n)) return nullptr;
  }
  out_of_bounds(p, n, access, pc);
}

// The bits of `n` <= 64 bytes from bit `bit` on.
inline uint64_t mask_of(size_t bit, size_t n) { return (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << bit; }

inline void check_written(const Range& range, uintptr_t p, size_t n, uint64_t pc) {
  size_t at = p - range.block_begin;
  const size_t bit = at % 64;
  if (__builtin_expect(n <= 64 - bit, 1)) {
    const uint64_t mask = mask_of(bit, n);
    if (__builtin_expect((range.written[at / 64] & mask) == mask, 1)) return;
  }
  const size_t first = first_clear(*range.block, at, n);
  if (first < at + n) note_unwritten(range, range.block_begin + first, n, kRead, pc);
}

inline void note_written(const Range& range, uintptr_t p, size_t n) {
  size_t at = p - range.block_begin;
  while (n) {
    const size_t bit = at % 64, part = n < 64 - bit ? n : 64 - bit;
    range.written[at / 64] |= mask_of(bit, part);
    at += part;
    n -= part;
  }
}

template <Access access, size_t alignment = 1, bool reads = access == kRead, bool writes = access == kWrite>
inline void check(uintptr_t p, size_t n, uint64_t pc) {
  if (__builtin_expect(!g.fibre || !g.checked || n == 0, 0)) return;
  Site* site = site_of(pc);
  const Range* range = site->range;
  if (__builtin_expect(!range || p - range->begin >= range->size || n > range->size - (p - range->begin), 0)) {
    range = new_range(site, p, n, access, pc);
    if (!range) return;
  }
  if (__builtin_expect(p % alignment != 0, 0)) bad_access(SMR_MISALIGNED, *range, p, n, access, pc);
  if (writes && __builtin_expect(range->read_only, 0)) bad_access(SMR_READ_ONLY_WRITE, *range, p, n, access, pc);
  if (!range->pages) return;
  const bool device = range->space == SMR_DEVICE;
  if (reads) {
    if (device) {
      if (__builtin_expect(range->written != nullptr, 0)) check_written(*range, p, n, pc);
    } else {
      const uintptr_t first = shadow_unwritten(range->pages, range->first_page, p, n, g.threadgroup.group_first);
      if (__builtin_expect(first < p + n, 0)) note_unwritten(*range, first, n, access, pc);
    }
  }
  const Tag me = (device ? g.device_tag : g.threadgroup_tag) | static_cast<uint32_t>(site - g.sites);
  const Conflict found = shadow_access(range->pages, range->first_page, device ? g.device : g.threadgroup, p, n, access, me);
  if (__builtin_expect(found.tag != 0, 0)) race(*range, found, n, access, pc);
  if (writes && device && range->written) note_written(*range, p, n);
}

}  // namespace

// Where bindings overlap, a write belongs to the one that may be written.
const Range* find_range(uintptr_t p, size_t n, bool write) {
  const Range* found = nullptr;
  for (const Range& range : g.ranges) {
    if (p - range.begin >= range.size || n > range.size - (p - range.begin)) continue;
    if (!write || !range.read_only) return &range;
    found = &range;
  }
  return found;
}

void forget_sites() { std::memset(static_cast<void*>(g.sites), 0, sizeof g.sites); }

}  // namespace smr

using namespace smr;

#define SMR_EXPORT extern "C" __attribute__((visibility("default")))
#define SMR_PC reinterpret_cast<uint64_t>(__builtin_return_address(0))
// clang takes the sized call-outs only for accesses that it believes aligned, to 8 bytes at most; the others come as N.
#define SMR_ALIGN(n) (n < 8 ? n : 8)
#define SMR_SIZED(n)                                                                                  \
  SMR_EXPORT void __asan_load##n##_noabort(uintptr_t p) { check<kRead, SMR_ALIGN(n)>(p, n, SMR_PC); } \
  SMR_EXPORT void __asan_store##n##_noabort(uintptr_t p) { check<kWrite, SMR_ALIGN(n)>(p, n, SMR_PC); }

SMR_SIZED(1)
SMR_SIZED(2)
SMR_SIZED(4)
SMR_SIZED(8)
SMR_SIZED(16)

SMR_EXPORT void __asan_loadN_noabort(uintptr_t p, size_t n) { check<kRead>(p, n, SMR_PC); }
SMR_EXPORT void __asan_storeN_noabort(uintptr_t p, size_t n) { check<kWrite>(p, n, SMR_PC); }

SMR_EXPORT void* __asan_memcpy(void* to, const void* from, size_t n) {
  check<kRead>(reinterpret_cast<uintptr_t>(from), n, SMR_PC);
  check<kWrite>(reinterpret_cast<uintptr_t>(to), n, SMR_PC + 1);  // the read's and the write's site differ
  return std::memcpy(to, from, n);
}
SMR_EXPORT void* __asan_memmove(void* to, const void* from, size_t n) {
  check<kRead>(reinterpret_cast<uintptr_t>(from), n, SMR_PC);
  check<kWrite>(reinterpret_cast<uintptr_t>(to), n, SMR_PC + 1);
  return std::memmove(to, from, n);
}
SMR_EXPORT void* __asan_memset(void* to, int value, size_t n) {
  check<kWrite>(reinterpret_cast<uintptr_t>(to), n, SMR_PC);
  return std::memset(to, value, n);
}

SMR_EXPORT void msl_rt_atomic(const volatile void* p, uint32_t size, uint32_t kind, int line) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  (void)line;  // the site tells it
  if (kind == 1) return check<kAtomic, 1, true, false>(at, size, SMR_PC);
  if (kind == 2) return check<kAtomic, 1, false, true>(at, size, SMR_PC);
  check<kAtomic, 1, true, true>(at, size, SMR_PC);
}
