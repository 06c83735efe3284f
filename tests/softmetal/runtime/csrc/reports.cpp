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

// `first`: a thread that waits for the others. Tells where all threads of its threadgroup (or SIMD-group) are.
void report_divergence(uint32_t kind, uint32_t first) {
  smr_report& report = begin_report(kind);
  g.thread = first;
  report.lanes[0] = current_lane(0, g.stop[first].line, 0);
  report.op = kind == SMR_SIMD_DIVERGENCE ? g.stop[first].op : 0;
  const bool whole_group = kind == SMR_BARRIER_DIVERGENCE;
  const uint32_t begin = whole_group ? 0 : first / kLanes * kLanes;
  uint32_t end = whole_group ? g.threads : begin + kLanes;
  if (end > g.threads) end = g.threads;
  size_t used = 0;
  for (uint32_t t = begin; t < end;) {
    uint32_t last = t;
    while (last + 1 < end && same_place(last + 1, t)) ++last;
    char where[400], what[480];
    const char* noun = whole_group ? "thread" : "lane";
    say_place(t, first, where, sizeof where);
    const bool finished = std::strcmp(where, "finished") == 0;
    if (t == last) std::snprintf(what, sizeof what, "%s%s %u %s %s", used ? "; " : "", noun, t - begin, finished ? "has" : "is", where);
    else std::snprintf(what, sizeof what, "%s%ss %u-%u %s %s", used ? "; " : "", noun, t - begin, last - begin, finished ? "have" : "are", where);
    const size_t length = std::strlen(what);
    if (used + length + sizeof "; ..." > sizeof report.text) {
      std::strcpy(report.text + used, "; ...");
      break;
    }
    std::memcpy(report.text + used, what, length + 1);
    used += length;
    t = last + 1;
  }
  g.failed = true;
}

}  // namespace smr
