// What the runtime knows while a kernel runs. There is one such state: launches take turns.
#pragma once
#include <cstdint>
#include <vector>

#include "arena.h"
#include "fibre.h"
#include "shadow.h"
#include "softmetal_abi.h"

namespace smr {

constexpr uint32_t kSiteHash = 1024, kSiteProbes = 16;  // a site lies at most so far behind its hash; kSites - 1 is for those too many
constexpr uint32_t kLanes = 32, kMaxThreads = 1024, kMaxSimds = kMaxThreads / kLanes, kMaxBindings = 31;

// A piece of memory that the kernel may touch.
struct Range {
  uintptr_t begin = 0;
  size_t size = 0;
  uint32_t space = SMR_NOWHERE;
  bool read_only = false;
  const char* name = "";
  int32_t index = -1;            // of the buffer
  uint32_t element_size = 1;
  Page* pages = nullptr;         // shadow; nullptr: no races to look for (constants, stacks)
  uintptr_t first_page = 0;
  uint64_t* written = nullptr;   // the block's bitmap while bytes of this binding are unwritten
  uintptr_t block_begin = 0;
  Block* block = nullptr;
};

// A variable of a kernel's library that clang announced, or a threadgroup array that the kernel did.
struct Variable {
  uintptr_t begin;
  size_t size, size_with_redzone;
  const char* name;
};

struct Site {  // a place in the code that accesses memory, and what it touched last
  uint64_t pc;
  const Range* range;
};

// Where a lane waits for the others: at which collective or barrier, reached by which calls and in which iterations of its loops.
struct Stop {
  uint32_t op, flags;
  int line;
  uintptr_t frame;            // of the runtime's function that the kernel called
  uint64_t calls, iterations; // hashes
  bool operator==(const Stop& o) const { return op == o.op && line == o.line && calls == o.calls && iterations == o.iterations; }
};

struct Simd {
  uint32_t exist, ready, at_simd, at_simd_barrier, at_barrier, done;
  uint32_t parity;              // which of the two exchange buffers is in use: a lane may still read the other one
  msl_simd_values values[2];
};

struct State {
  // the launch
  const smr_launch_info* info = nullptr;
  smr_report* report = nullptr;
  smr_report pending{};               // a read of unwritten bytes: reported unless it turns out to be half of a race
  bool running = false, checked = false, failed = false;
  volatile bool expired = false;      // the watchdog rang
  void* buffers[kMaxBindings] = {};
  std::vector<Range> ranges;          // never grows while a kernel runs: sites point into it
  uintptr_t library_begin = 0, library_end = 0;
  uint32_t groups[3] = {};
  uint64_t group_total = 0, group_step = 0, group_shift = 0, group_number = 0;  // number-th group run is (number * step + shift) % total
  struct Start { uint64_t id, number; };
  std::vector<Start> starts;          // first id of a threadgroup, where it is not the previous one's plus 1
  uint64_t random = 0;

  // the threadgroup that runs
  uint32_t group[3] = {}, group_size[3] = {};
  uint32_t threads = 0, simds = 0;
  uint64_t serial = 0;
  Order device{}, threadgroup{};

  // the lane that runs
  Fibre* fibre = nullptr;             // nullptr: the scheduler runs
  uint32_t thread = 0;
  Tag device_tag = 0, threadgroup_tag = 0;
  Range stack;                        // its stack, with the position attributes
  Range values, arguments;            // what collectives return; the table of buffers. Read-only, of all lanes.
  void* scheduler = nullptr;          // its saved stack pointer

  Fibre* fibres[kMaxThreads] = {};
  Stop stop[kMaxThreads] = {};
  msl_loop* loop[kMaxThreads] = {};   // innermost loop that each thread is in
  Simd simd[kMaxSimds];
  Site sites[kSites];
};

extern State g;
extern uint64_t last_id;  // the newest id of shadow.h, of all launches

inline uint64_t next_random() {  // xorshift64*
  g.random ^= g.random >> 12;
  g.random ^= g.random << 25;
  g.random ^= g.random >> 27;
  return g.random * 0x2545F4914F6CDD1DULL;
}

inline void refresh_tags() {
  const uint32_t simd = g.thread / kLanes;
  const uint64_t thread = uint64_t{g.thread} << kSiteBits;
  g.device_tag = g.device.now[simd] << kIdShift | thread;
  g.threadgroup_tag = g.threadgroup.now[simd] << kIdShift | thread;
}

// reports.cpp
smr_lane current_lane(uint64_t pc, int line, uint32_t access);
smr_lane lane_of(Tag tag, uint32_t access);
[[noreturn]] void stop_lane();                            // from a fibre: drops it, the launch ends with g.report
smr_report& begin_report(uint32_t kind);                  // first one wins: returns a scratch report afterwards
void describe(smr_report& report, const Range& range, uintptr_t p);
void report_divergence(uint32_t kind, uint32_t first);   // of threads that wait where others never come

void note_unwritten(const Range& range, uintptr_t at, size_t n, uint32_t access, uint64_t pc);
void settle_pending(uint32_t space);                      // no more hope of a race in that memory (SMR_NOWHERE: in any)

// place.cpp
Stop stop_at(uint32_t op, uint32_t flags, int line, uintptr_t frame);  // of the lane that runs
void say_place(uint32_t thread, uint32_t first, char* text, size_t size);  // "are at simd_sum (line 3)", told apart from where `first` is
bool same_place(uint32_t a, uint32_t b);

// library.cpp
void library_ranges(const void* entry, std::vector<Range>& ranges);  // finds library_begin/end and adds its known variables
bool is_plain_library_data(uintptr_t p, size_t n);                    // data that clang did not announce (literal tables)

// access.cpp
const Range* find_range(uintptr_t p, size_t n, bool write);
void forget_sites();

// signals.cpp
void guard_signals();
void restore_signals();
void start_watchdog(double seconds);
void stop_watchdog();

}  // namespace smr
