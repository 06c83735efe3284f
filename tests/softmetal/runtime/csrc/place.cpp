// Where lanes wait for each other: what makes two of them be in the same place, and how reports tell places apart.
//
// A line of the source does not say it: two calls may stand on one line, a function that holds a barrier may be called from both
// branches of an if, and a lane may come by in another iteration than its neighbours. On a GPU none of these meet.
#include <cstdio>
#include <cstring>

#include "state.h"

namespace smr {
namespace {

constexpr int kDepth = 64;  // calls and loops that are looked at, from the innermost out
constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
constexpr const char* kOps[] = {"a SIMD collective", "simd_sum", "simd_product", "simd_min", "simd_max", "simd_and", "simd_or", "simd_xor",
                                "simd_shuffle", "simd_shuffle_up", "simd_shuffle_down", "simd_shuffle_xor", "simd_broadcast",
                                "a SIMD prefix operation", "simd_ballot", "a simdgroup_matrix operation", "a quad operation"};

// Calls f(return address) for the calls that led to a frame, the innermost first, as long as they are the kernel's own.
template <class F>
void each_call(uintptr_t frame, uintptr_t stack_begin, uintptr_t stack_end, F f) {
  for (int depth = 0; depth < kDepth; ++depth) {
    if (frame % sizeof(void*) || frame < stack_begin || frame + 2 * sizeof(void*) > stack_end) return;
    const auto* saved = reinterpret_cast<const uintptr_t*>(frame);  // the caller's frame, the return address
    if (saved[1] - g.library_begin >= g.library_end - g.library_begin) return;
    f(saved[1]);
    if (saved[0] <= frame) return;
    frame = saved[0];
  }
}

enum What { kFinished, kBarrier, kSimdBarrier, kCollective, kElsewhere };

What what_of(uint32_t thread) {
  const Simd& simd = g.simd[thread / kLanes];
  const uint32_t lane = thread % kLanes;
  if (simd.done >> lane & 1) return kFinished;
  if (simd.at_barrier >> lane & 1) return kBarrier;
  if (simd.at_simd_barrier >> lane & 1) return kSimdBarrier;
  if (simd.at_simd >> lane & 1) return kCollective;
  return kElsewhere;
}

bool waits(What what) { return what != kFinished && what != kElsewhere; }

bool reads_alike(uint32_t a, uint32_t b) {
  const Stop &x = g.stop[a], &y = g.stop[b];
  return what_of(a) == what_of(b) && x.op == y.op && x.line == y.line;
}

// Of two threads in the same loops, the outermost loop whose iterations differ: so many loops out from the innermost. -1: none, or
// they are in different loops.
int differing_loop(uint32_t a, uint32_t b) {
  int found = -1, depth = 0;
  const msl_loop *x = g.loop[a], *y = g.loop[b];
  for (; x && y && x->line == y->line; x = x->outer, y = y->outer, ++depth)
    if (x->iteration != y->iteration) found = depth;
  return x || y ? -1 : found;
}

}  // namespace

Stop stop_at(uint32_t op, uint32_t flags, int line, uintptr_t frame) {
  Stop stop{op, flags, line, frame, 0, 0};
  each_call(frame, g.stack.begin, g.stack.begin + g.stack.size, [&](uintptr_t pc) { stop.calls = (stop.calls ^ pc) * kFactor; });
  for (const msl_loop* loop = g.loop[g.thread]; loop; loop = loop->outer)
    stop.iterations = (stop.iterations + loop->iteration + 1) * kFactor;
  return stop;
}

bool same_place(uint32_t a, uint32_t b) {
  return what_of(a) == what_of(b) && (!waits(what_of(a)) || g.stop[a] == g.stop[b]);
}

void say_place(uint32_t thread, uint32_t first, char* text, size_t size) {
  const What what = what_of(thread);
  const Stop& stop = g.stop[thread];
  if (!waits(what)) {
    std::snprintf(text, size, what == kFinished ? "finished" : "elsewhere");
    return;
  }
  // What the words leave open: threads at the same line that are in another iteration, or came by other calls. (In an unrolled loop
  // the calls differ with the iteration.)
  bool other_calls = false;
  int loop = -1;
  for (uint32_t t = 0; t < g.threads; ++t) {
    if (!reads_alike(t, thread) || g.stop[t] == stop) continue;
    const int differing = differing_loop(t, thread);
    if (differing < 0) other_calls = true;
    else if (loop < 0) loop = differing;
  }
  size_t used = 0;
  const auto say = [&](const char* format, auto... values) {
    const int length = std::snprintf(text + used, size - used, format, values...);
    used = length > 0 && used + static_cast<size_t>(length) < size ? used + static_cast<size_t>(length) : size - 1;
  };
  const char* another = other_calls && thread != first && reads_alike(thread, first) && stop.calls != g.stop[first].calls && differing_loop(thread, first) < 0 ? "another " : "";
  const char* name = what == kBarrier ? "threadgroup_barrier" : what == kSimdBarrier ? "simdgroup_barrier" : kOps[stop.op < 17 ? stop.op : 0];
  if (*another && !std::strncmp(name, "a ", 2)) name += 2;
  say("at %s%s (line %d", another, name, stop.line);
  if (other_calls) {  // the return addresses, for launch.py to turn into lines
    const Fibre& fibre = *g.fibres[thread];
    say("<");
    int calls = 0;
    each_call(stop.frame, fibre.stack_begin, fibre.stack_begin + fibre.stack_size, [&](uintptr_t pc) {
      if (calls++ < 8) say(" %llx", static_cast<unsigned long long>(pc - g.library_begin));
    });
    say(">");
  }
  if (loop >= 0) {
    const msl_loop* at = g.loop[thread];
    while (loop-- > 0) at = at->outer;
    say(", in iteration %u of the loop at line %u", at->iteration, at->line);
  }
  say(")");
}

}  // namespace smr
