// Runs a kernel's threads: threadgroups one after another, SIMD-groups and lanes interleaved, all in an order drawn from the seed.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "bindings.h"
#include "state.h"

namespace smr {

State g;
uint64_t last_id = 0;

namespace {

void thread_body(Fibre* fibre) {
  for (;;) {
    g.info->entry(g.buffers, fibre->thread);
    Simd& simd = g.simd[g.thread / kLanes];
    const uint32_t bit = 1u << g.thread % kLanes;
    simd.ready &= ~bit;
    simd.done |= bit;
    smr_switch(&fibre->stack_pointer, g.scheduler);
  }
}

// A permutation of 0 .. n-1 that costs nothing to hold: i -> (i * step + shift) % n with step and n coprime.
struct Shuffle {
  uint32_t n, step, shift;
  explicit Shuffle(uint32_t count) : n(count), step(1), shift(0) {
    if (n < 2) return;
    const uint64_t r = next_random();
    shift = static_cast<uint32_t>(r >> 32) % n;
    step = static_cast<uint32_t>(r) % n;
    while (std::gcd(step, n) != 1) step = (step + 1) % n;
  }
  uint32_t operator()(uint32_t i) const { return static_cast<uint32_t>((uint64_t{i} * step + shift) % n); }
};

void fill(uint32_t (&to)[3], const uint32_t (&from)[3]) { std::memcpy(to, from, sizeof to); }

void describe_thread(Fibre& fibre, uint32_t index) {
  msl_thread& t = *fibre.thread;
  if (fibre.group_serial != g.serial) {
    fibre.group_serial = g.serial;
    fill(t.threadgroup_position_in_grid, g.group);
    fill(t.threadgroups_per_grid, g.groups);
    fill(t.threads_per_grid, g.info->threads);
    fill(t.threads_per_threadgroup, g.group_size);
    fill(t.dispatch_threads_per_threadgroup, g.info->group_size);
    t.simdgroups_per_threadgroup = g.simds;
    t.dispatch_simdgroups_per_threadgroup =
        (g.info->group_size[0] * g.info->group_size[1] * g.info->group_size[2] + kLanes - 1) / kLanes;
    t.threads_per_simdgroup = kLanes;
  }
  uint32_t x = index, y = 0, z = 0;
  if (g.group_size[0] != g.threads) {
    x = index % g.group_size[0];
    y = index / g.group_size[0];
    z = y / g.group_size[1];
    y %= g.group_size[1];
  }
  const uint32_t at[3] = {x, y, z};
  for (int d = 0; d < 3; ++d) {
    t.thread_position_in_threadgroup[d] = at[d];
    t.thread_position_in_grid[d] = g.group[d] * g.info->group_size[d] + at[d];
  }
  t.thread_index_in_threadgroup = index;
  t.thread_index_in_simdgroup = index % kLanes;
  t.simdgroup_index_in_threadgroup = index / kLanes;
}

void run_lane(uint32_t index) {
  Fibre*& fibre = g.fibres[index];
  if (!fibre) {
    fibre = fibre_take(thread_body);
    describe_thread(*fibre, index);
    g.loop[index] = nullptr;
  }
  g.thread = index;
  refresh_tags();
  g.fibre = fibre;
  g.stack.begin = fibre->stack_begin;
  g.stack.size = fibre->stack_size;
  smr_switch(&g.scheduler, fibre->stack_pointer);
  g.fibre = nullptr;
  if (g.simd[index / kLanes].done >> index % kLanes & 1) {
    fibre_give_back(fibre);
    fibre = nullptr;
  }
  if (__builtin_expect(g.expired, 0) && !g.failed) {
    begin_report(SMR_WATCHDOG).lanes[0] = current_lane(0, 0, 0);
    g.failed = true;
  }
}

// All lanes of a SIMD-group have stopped somewhere. Lets those that met in a collective go on; false if some are missing.
bool meet(uint32_t index) {
  Simd& simd = g.simd[index];
  const uint32_t waiting = simd.at_simd | simd.at_simd_barrier;
  if (!waiting) return true;
  const uint32_t first = index * kLanes + __builtin_ctz(waiting);
  bool together = waiting == simd.exist && (!simd.at_simd || !simd.at_simd_barrier);
  for (uint32_t rest = waiting; rest && together; rest &= rest - 1) {
    const uint32_t lane = index * kLanes + __builtin_ctz(rest);
    together = g.stop[lane] == g.stop[first];
  }
  if (!together) {
    report_divergence(SMR_SIMD_DIVERGENCE, first);
    return false;
  }
  if (simd.at_simd) {
    simd.parity ^= 1;
  } else if (const uint32_t flags = g.stop[first].flags; flags & 3) {
    const uint64_t id = ++last_id;
    if (flags & 1) g.device.now[index] = id;
    if (flags & 2) g.threadgroup.now[index] = id;
  }
  simd.at_simd = simd.at_simd_barrier = 0;
  simd.ready = simd.exist;
  return true;
}

// Runs a SIMD-group until none of its lanes can go on, or until it is another's turn.
void run_simd(uint32_t index) {
  Simd& simd = g.simd[index];
  while (simd.ready && !g.failed) {
    const uint64_t r = next_random();
    const uint32_t step = static_cast<uint32_t>(r >> 40) | 1, shift = static_cast<uint32_t>(r >> 32);
    for (uint32_t i = 0; i < kLanes && !g.failed; ++i) {
      const uint32_t lane = (i * step + shift) % kLanes;
      if (simd.ready >> lane & 1) run_lane(index * kLanes + lane);
    }
    if (g.failed || !meet(index)) return;
    if (r % 4 == 0) return;
  }
}

// All threads have stopped: at a barrier, or for good. Opens the barrier; false when the threadgroup is done or diverged.
bool open_barrier() {
  uint32_t waiting = 0, first = 0;
  bool together = true;
  for (uint32_t s = g.simds; s-- > 0;) {
    const Simd& simd = g.simd[s];
    if (simd.at_barrier) first = s * kLanes + __builtin_ctz(simd.at_barrier);
    waiting += __builtin_popcount(simd.at_barrier);
  }
  if (!waiting) return false;
  for (uint32_t t = 0; t < g.threads && together; ++t)
    together = (g.simd[t / kLanes].at_barrier >> t % kLanes & 1) && g.stop[t] == g.stop[first];
  if (!together) {
    report_divergence(SMR_BARRIER_DIVERGENCE, first);
    return false;
  }
  const uint32_t flags = g.stop[first].flags;
  if (flags & 2) settle_pending(SMR_THREADGROUP);
  if (g.failed) return false;
  const uint64_t id = ++last_id;
  for (Order* order : {&g.device, &g.threadgroup}) {
    if (!(flags & (order == &g.device ? 1u : 2u))) continue;
    order->first = id;
    std::fill(order->now, order->now + g.simds, id);
  }
  for (uint32_t s = 0; s < g.simds; ++s) {
    g.simd[s].at_barrier = 0;
    g.simd[s].ready = g.simd[s].exist;
  }
  return true;
}

void start_group(uint64_t linear) {
  g.group[0] = static_cast<uint32_t>(linear % g.groups[0]);
  g.group[1] = static_cast<uint32_t>(linear / g.groups[0] % g.groups[1]);
  g.group[2] = static_cast<uint32_t>(linear / g.groups[0] / g.groups[1]);
  g.threads = 1;
  for (int d = 0; d < 3; ++d) {
    g.group_size[d] = std::min(g.info->group_size[d], g.info->threads[d] - g.group[d] * g.info->group_size[d]);
    g.threads *= g.group_size[d];
  }
  g.simds = (g.threads + kLanes - 1) / kLanes;
  ++g.serial;
  const uint64_t id = ++last_id;
  if (g.starts.empty() || g.starts.back().id + (g.group_number - g.starts.back().number) != id) g.starts.push_back({id, g.group_number});
  for (Order* order : {&g.device, &g.threadgroup}) {
    order->group_first = order->first = id;
    std::fill(order->now, order->now + g.simds, id);
  }
  g.threadgroup.horizon = id;
  for (uint32_t s = 0; s < g.simds; ++s) {
    Simd& simd = g.simd[s];
    const uint32_t lanes = std::min(kLanes, g.threads - s * kLanes);
    simd.exist = simd.ready = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    simd.at_simd = simd.at_simd_barrier = simd.at_barrier = simd.done = simd.parity = 0;
    simd.values[0].active = simd.values[1].active = simd.exist;
  }
}

void run_group(uint64_t linear) {
  start_group(linear);
  do {
    for (bool any = true; any && !g.failed;) {
      any = false;
      const Shuffle order(g.simds);
      for (uint32_t i = 0; i < g.simds && !g.failed; ++i) {
        const uint32_t s = order(i);
        if (!g.simd[s].ready) continue;
        run_simd(s);
        any |= g.simd[s].ready != 0;
      }
    }
  } while (!g.failed && open_barrier());
  settle_pending(SMR_THREADGROUP);
}

void drop_fibres() {
  for (uint32_t t = 0; t < kMaxThreads; ++t) {
    if (!g.fibres[t]) continue;
    g.fibres[t]->prepared = false;  // its frames are abandoned: kernels own nothing that needs a destructor
    fibre_give_back(g.fibres[t]);
    g.fibres[t] = nullptr;
  }
}

// Waits until every lane of the SIMD-group (of the threadgroup) is here.
void park(uint32_t Simd::*where, const Stop& stop) {
  Simd& simd = g.simd[g.thread / kLanes];
  const uint32_t bit = 1u << g.thread % kLanes;
  g.stop[g.thread] = stop;
  simd.ready &= ~bit;
  simd.*where |= bit;
  smr_switch(&g.fibre->stack_pointer, g.scheduler);
}

std::mutex& launch_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}

}  // namespace
}  // namespace smr

using namespace smr;

#define SMR_FRAME reinterpret_cast<uintptr_t>(__builtin_frame_address(0))

extern "C" {

void msl_rt_threadgroup_barrier(uint32_t flags, int line) {
  if (g.fibre) park(&Simd::at_barrier, stop_at(0, flags, line, SMR_FRAME));
}

void msl_rt_simdgroup_barrier(uint32_t flags, int line) {
  if (g.fibre) park(&Simd::at_simd_barrier, stop_at(0, flags, line, SMR_FRAME));
}

void msl_rt_loop_enter(msl_loop* loop) {
  loop->outer = g.loop[g.thread];
  g.loop[g.thread] = loop;
}

void msl_rt_loop_leave(msl_loop* loop) { g.loop[g.thread] = loop->outer; }

const msl_simd_values* msl_rt_simd_exchange(uint32_t op, const void* value, uint32_t size, int line) {
  Simd& simd = g.simd[g.thread / kLanes];
  msl_simd_values& values = simd.values[simd.parity];  // the lanes turn the parity when all are here, so it is still theirs after
  values.stride = 64;
  std::memcpy(values.data + g.thread % kLanes * 64, value, size < 64 ? size : 64);
  park(&Simd::at_simd, stop_at(op, 0, line, SMR_FRAME));
  return &values;
}

uint32_t msl_rt_lane(void) { return g.thread % kLanes; }

void msl_rt_missing_lane(uint32_t op, uint32_t lane, int line) {
  if (!g.fibre) return;
  smr_report& report = begin_report(SMR_MISSING_LANE);
  report.lanes[0] = current_lane(reinterpret_cast<uint64_t>(__builtin_return_address(0)), line, 0);
  report.op = op;
  report.offset = lane;
  report.bound_size = static_cast<uint64_t>(__builtin_popcount(g.simd[g.thread / kLanes].exist));
  stop_lane();
}

uint32_t smr_launch(const smr_launch_info* info, smr_report* report) {
  std::lock_guard<std::mutex> turn(launch_lock());
  std::memset(report, 0, sizeof *report);
  g.info = info;
  g.report = report;
  g.checked = info->flags & SMR_CHECKED;
  g.failed = g.expired = false;
  g.pending.kind = SMR_OK;
  g.random = info->seed * 0x9E3779B97F4A7C15ULL + 0xD1B54A32D192ED03ULL;
  if (!g.random) g.random = 1;
  g.group_total = 1;
  for (int d = 0; d < 3; ++d) {
    g.groups[d] = static_cast<uint32_t>((uint64_t{info->threads[d]} + info->group_size[d] - 1) / info->group_size[d]);
    g.group_total *= g.groups[d];
  }
  g.group_shift = next_random() % g.group_total;
  for (g.group_step = next_random() % g.group_total; std::gcd(g.group_step, g.group_total) != 1;) g.group_step = (g.group_step + 1) % g.group_total;
  g.starts.clear();
  g.device.horizon = last_id + 1;
  forget_sites();
  Bindings bindings;
  if (!bindings.bind(*info)) {
    g.checked = false;
    report->kind = SMR_OUT_OF_MEMORY;
    return report->kind;
  }
  guard_signals();
  start_watchdog(info->watchdog_seconds);
  g.running = true;
  for (g.group_number = 0; g.group_number < g.group_total && !g.failed; ++g.group_number) {
    const auto number = static_cast<unsigned __int128>(g.group_number);
    run_group(static_cast<uint64_t>((number * g.group_step + g.group_shift) % g.group_total));
  }
  settle_pending(SMR_NOWHERE);
  g.running = false;
  stop_watchdog();
  restore_signals();
  if (g.failed) drop_fibres();
  g.checked = false;  // call-outs outside a launch (a library's constructors) are nobody's
  bindings.unbind();
  g.info = nullptr;
  g.report = nullptr;
  return report->kind;
}

}  // extern "C"
