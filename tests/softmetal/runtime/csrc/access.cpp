// The call-outs of clang's -fsanitize=kernel-address: one before every memory access of a kernel.
#include <cstring>
#include <tuple>

#include "state.h"

namespace smr {
namespace {

inline uint32_t hash_of(uint64_t pc) { return static_cast<uint32_t>(pc ^ pc >> 9) % kSiteHash; }

__attribute__((noinline)) Site* new_site(uint64_t pc) {
  // Open addressing. Sites that find no place share the last one: their reports just lack the source line.
  for (uint32_t at = hash_of(pc), end = at + kSiteProbes; at < end; ++at) {
    Site& site = g.sites[at];
    if (site.pc == pc) return &site;
    if (site.pc == 0) {
      site.pc = pc;
      return &site;
    }
  }
  return &g.sites[kSites - 1];
}

inline Site* site_of(uint64_t pc) {
  Site* site = &g.sites[hash_of(pc)];
  return __builtin_expect(site->pc == pc, 1) ? site : new_site(pc);
}

[[noreturn]] __attribute__((noinline)) void out_of_bounds(uintptr_t p, size_t n, Access access, uint64_t pc) {
  constexpr size_t kReach = size_t{1} << 37;  // farther from any buffer, nobody's: 32 bits count elements of 16 bytes
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
  if (nearest && distance < kReach) describe(report, *nearest, p);
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

inline bool holds(const Range& range, uintptr_t p, size_t n) {
  return p - range.begin < range.size && n <= range.size - (p - range.begin);
}

// The range of an access that is not in the one this site touched last. nullptr: constants that clang made, nothing to check.
__attribute__((noinline)) const Range* new_range(Site* site, uintptr_t p, size_t n, Access access, uint64_t pc) {
  if (holds(g.stack, p, n)) return site->range = &g.stack;
  if (const Range* range = find_range(p, n, access != kRead && access != kAtomicLoad)) return site->range = range;
  if (access == kRead) {
    if (holds(g.values, p, n)) return site->range = &g.values;
    if (holds(g.arguments, p, n)) return site->range = &g.arguments;
    if (is_plain_library_data(p, n)) return nullptr;
  }
  out_of_bounds(p, n, access, pc);
}

// The copy that msl_rt_load is making: which of its bytes are padding, and may be unwritten.
struct Copy {
  const unsigned char* value = nullptr;
  size_t alignment = 0;  // 0: there is none
} copy;

// The first byte of [first, p + n) that was to be written: `first` itself unless it is padding. unwritten(q): the first unwritten byte
// from q on.
template <class F>
uintptr_t behind_padding(uintptr_t first, uintptr_t p, size_t n, F unwritten) {
  const uintptr_t end = p + n;
  while (copy.alignment && first < end) {
    uintptr_t gap_end = first;
    while (gap_end < end && unwritten(gap_end) == gap_end && (!copy.value || !copy.value[gap_end - p])) ++gap_end;
    if (copy.value ? gap_end == first : gap_end - first >= copy.alignment) break;
    first = gap_end < end ? unwritten(gap_end) : end;
  }
  return first;
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
  const auto unwritten = [&](uintptr_t q) { return range.block_begin + first_clear(*range.block, q - range.block_begin, p + n - q); };
  const uintptr_t first = behind_padding(unwritten(p), p, n, unwritten);
  if (first < p + n) note_unwritten(range, first, n, kRead, pc);
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

// All there is to check; `check` below has dealt with the cheapest case.
template <Access access, size_t alignment, bool reads, bool writes>
__attribute__((noinline)) void check_all(uintptr_t p, size_t n, uint64_t pc) {
  if (n == 0) return;
  Site* site = site_of(pc);
  const Range* range = site->range;
  if (__builtin_expect(!range || !holds(*range, p, n), 0)) {
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
      const auto unwritten = [&](uintptr_t q) {
        return shadow_unwritten(range->pages, range->first_page, q, p + n - q, g.threadgroup.group_first);
      };
      uintptr_t first = unwritten(p);
      if (__builtin_expect(first < p + n, 0) && (first = behind_padding(first, p, n, unwritten)) < p + n)
        note_unwritten(*range, first, n, access, pc);
    }
  }
  const Tag me = (device ? g.device_tag : g.threadgroup_tag) | static_cast<uint32_t>(site - g.sites);
  const Order& order = device ? g.device : g.threadgroup;
  if (access >= kAtomic || !shadow_quick<access == kWrite>(range->pages, range->first_page, order, p, n, me)) {
    const Conflict found = shadow_access(range->pages, range->first_page, order, p, n, access, me);
    if (__builtin_expect(found.tag != 0, 0)) race(*range, found, n, access, pc);
  }
  if (writes && device && range->written) note_written(*range, p, n);
}

template <Access access, size_t alignment = 1, bool reads = access == kRead, bool writes = access == kWrite>
inline void check(uintptr_t p, size_t n, uint64_t pc) {
  if (!g.checked) return;
  // Arguments by value, tables, the stack: no shadow, and where this site was the last time.
  const Site& site = g.sites[hash_of(pc)];
  const Range* range = site.range;
  if (site.pc == pc && range && !range->pages && (reads || !range->read_only) && p % alignment == 0 && holds(*range, p, n)) return;
  check_all<access, alignment, reads, writes>(p, n, pc);
}

// An access of `n` bytes, which `check` sees next, that its type wants aligned to `alignment`.
inline void check_alignment(uintptr_t p, size_t n, size_t alignment, Access access, uint64_t pc) {
  if (__builtin_expect(p % alignment == 0, 1) || !g.checked || n == 0) return;
  if (const Range* range = new_range(site_of(pc), p, n, access, pc)) bad_access(SMR_MISALIGNED, *range, p, n, access, pc);
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

void forget_sites() {
  copy = {};  // a lane may have been stopped in the middle of one
  std::memset(static_cast<void*>(g.sites), 0, (kSiteHash + kSiteProbes) * sizeof(Site));
  g.sites[kSites - 1] = {};
  for (auto [range, begin, size] : {std::tuple{&g.values, reinterpret_cast<uintptr_t>(g.simd), sizeof g.simd},
                                    std::tuple{&g.arguments, reinterpret_cast<uintptr_t>(g.buffers), sizeof g.buffers}}) {
    range->begin = begin;
    range->size = size;
    range->space = SMR_STACK;
    range->read_only = true;
  }
}

}  // namespace smr

using namespace smr;

#define SMR_EXPORT extern "C" __attribute__((visibility("default")))
#define SMR_PC reinterpret_cast<uint64_t>(__builtin_return_address(0))
// clang takes the sized call-outs only for accesses that it believes aligned, to 8 bytes at most; the others come as N. What is
// to be aligned to more says so to msl_rt_alignment first.
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

SMR_EXPORT void msl_rt_load(void* to, const void* from, uint64_t size, uint64_t alignment, const unsigned char* value) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  check_alignment(at, size, alignment, kRead, SMR_PC);
  copy = {value, alignment};
  check<kRead>(at, size, SMR_PC);
  copy = {};
  std::memcpy(to, from, size);
}

SMR_EXPORT void msl_rt_atomic(const volatile void* p, uint32_t size, uint32_t kind, int line) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  (void)line;  // the site tells it
  if (kind == 1) {
    check_alignment(at, size, size, kAtomicLoad, SMR_PC);
    return check<kAtomicLoad, 1, true, false>(at, size, SMR_PC);
  }
  check_alignment(at, size, size, kAtomic, SMR_PC);
  if (kind == 2) return check<kAtomic, 1, false, true>(at, size, SMR_PC);
  check<kAtomic, 1, true, true>(at, size, SMR_PC);
}

SMR_EXPORT void msl_rt_alignment(const void* p, uint64_t size, uint64_t alignment, uint32_t access) {
  check_alignment(reinterpret_cast<uintptr_t>(p), size, alignment, static_cast<Access>(access), SMR_PC);
}
