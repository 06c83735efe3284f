// What is written down when a lane is stopped.
#include <cstdio>
#include <cstring>

#include "state.h"

namespace smr {

namespace {

void clear(smr_report& report, uint32_t kind) {
  std::memset(&report, 0, sizeof report);
  report.kind = kind;
  report.buffer = -1;
  report.lane_count = 1;
  report.library_base = g.library_begin;
}

}  // namespace

smr_report& begin_report(uint32_t kind) {
  static smr_report spare;
  bool first = !g.failed && !g.report->kind;
  if (first && g.pending.kind && kind != SMR_RACE) {  // what follows from reading garbage is not the news
    *g.report = g.pending;
    first = false;
  }
  smr_report& report = first ? *g.report : spare;
  clear(report, kind);
  return report;
}

// A read of bytes that nobody wrote yet may be the early half of a race, depending on the schedule. So that the verdict does not
// depend on it, the kernel runs on for the moment: if a thread that is not ordered after the read writes them, that is reported.
void note_unwritten(const Range& range, uintptr_t at, size_t n, uint32_t access, uint64_t pc) {
  if (g.pending.kind) return;
  clear(g.pending, SMR_UNINITIALISED_READ);
  g.pending.lanes[0] = current_lane(pc, 0, access);
  g.pending.access_size = n;
  describe(g.pending, range, at);
}

void settle_pending(uint32_t space) {
  if (g.failed || !g.pending.kind || (space && g.pending.space != space)) return;
  *g.report = g.pending;
  g.failed = true;
}

smr_lane current_lane(uint64_t pc, int line, uint32_t access) {
  smr_lane lane{};
  std::memcpy(lane.group, g.group, sizeof lane.group);
  lane.thread = g.thread;
  lane.pc = pc;
  lane.line = line;
  lane.access = access;
  return lane;
}

smr_lane lane_of(Tag tag, uint32_t access) {
  smr_lane lane{};
  lane.thread = tag_thread(tag);
  lane.access = access;
  lane.pc = g.sites[tag_site(tag)].pc;
  uint64_t number = g.group_number;
  if (tag_id(tag) < g.device.group_first) {
    size_t i = g.starts.size();
    while (i && g.starts[i - 1].id > tag_id(tag)) --i;
    number = g.starts[i - 1].number + (tag_id(tag) - g.starts[i - 1].id);
    // Groups that drew more ids than one have a start of their own after them, so stay below that.
    if (i < g.starts.size() && number >= g.starts[i].number) number = g.starts[i].number - 1;
  }
  const auto linear = static_cast<uint64_t>((static_cast<unsigned __int128>(number) * g.group_step + g.group_shift) % g.group_total);
  lane.group[0] = static_cast<uint32_t>(linear % g.groups[0]);
  lane.group[1] = static_cast<uint32_t>(linear / g.groups[0] % g.groups[1]);
  lane.group[2] = static_cast<uint32_t>(linear / g.groups[0] / g.groups[1]);
  return lane;
}

void describe(smr_report& report, const Range& range, uintptr_t p) {
  report.space = range.space;
  report.buffer = range.index;
  report.element_size = range.element_size;
  report.offset = static_cast<int64_t>(p - range.begin);
  report.bound_size = range.size;
  report.address = p;
  std::snprintf(report.name, sizeof report.name, "%s", range.name ? range.name : "");
}

void stop_lane() {
  g.failed = true;
  void* abandoned;
  smr_switch(&abandoned, g.scheduler);
  __builtin_unreachable();
}

namespace {

constexpr const char* kOps[] = {"a SIMD collective", "simd_sum", "simd_product", "simd_min", "simd_max", "simd_and", "simd_or", "simd_xor",
                                "simd_shuffle", "simd_shuffle_up", "simd_shuffle_down", "simd_shuffle_xor", "simd_broadcast",
                                "a SIMD prefix operation", "simd_ballot", "a simdgroup_matrix operation", "a quad operation"};

// Where a stopped thread is: comparable, so that neighbours in the same place are told together.
struct Place {
  int what;  // 0 finished, 1 barrier, 2 simdgroup barrier, 3 collective, 4 elsewhere
  uint32_t op;
  int line;
  bool operator==(const Place& o) const { return what == o.what && op == o.op && line == o.line; }
};

Place place_of(uint32_t thread) {
  const Simd& simd = g.simd[thread / kLanes];
  const uint32_t lane = thread % kLanes;
  if (simd.done >> lane & 1) return {0, 0, 0};
  if (simd.at_barrier >> lane & 1) return {1, 0, g.line[thread]};
  if (simd.at_simd_barrier >> lane & 1) return {2, 0, g.line[thread]};
  if (simd.at_simd >> lane & 1) return {3, g.op[thread], g.line[thread]};
  return {4, 0, 0};
}

}  // namespace

// `first`: a thread that waits for the others. Tells where all threads of its threadgroup (or SIMD-group) are.
void report_divergence(uint32_t kind, uint32_t first) {
  smr_report& report = begin_report(kind);
  g.thread = first;
  report.lanes[0] = current_lane(0, g.line[first], 0);
  report.op = kind == SMR_SIMD_DIVERGENCE && place_of(first).what == 3 ? g.op[first] : 0;
  const bool whole_group = kind == SMR_BARRIER_DIVERGENCE;
  const uint32_t begin = whole_group ? 0 : first / kLanes * kLanes;
  uint32_t end = whole_group ? g.threads : begin + kLanes;
  if (end > g.threads) end = g.threads;
  size_t used = 0;
  for (uint32_t t = begin; t < end && used + 120 < sizeof report.text;) {
    const Place place = place_of(t);
    uint32_t last = t;
    while (last + 1 < end && place_of(last + 1) == place) ++last;
    char who[48], where[64];
    const char* noun = whole_group ? "thread" : "lane";
    const uint32_t from = t - begin, to = last - begin;
    if (from == to) std::snprintf(who, sizeof who, "%s %u", noun, from);
    else std::snprintf(who, sizeof who, "%ss %u-%u", noun, from, to);
    const bool one = from == to;
    switch (place.what) {
      case 0: std::snprintf(where, sizeof where, "%s finished", one ? "has" : "have"); break;
      case 1: std::snprintf(where, sizeof where, "%s at threadgroup_barrier (line %d)", one ? "is" : "are", place.line); break;
      case 2: std::snprintf(where, sizeof where, "%s at simdgroup_barrier (line %d)", one ? "is" : "are", place.line); break;
      case 3: std::snprintf(where, sizeof where, "%s at %s (line %d)", one ? "is" : "are", kOps[place.op < 17 ? place.op : 0], place.line); break;
      default: std::snprintf(where, sizeof where, "%s elsewhere", one ? "is" : "are");
    }
    used += static_cast<size_t>(std::snprintf(report.text + used, sizeof report.text - used, "%s%s %s", used ? "; " : "", who, where));
    t = last + 1;
  }
  g.failed = true;
}

}  // namespace smr
