// Faults of the processor inside a kernel become reports, and a kernel that never ends is stopped.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace smr {
namespace {

constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t kAlternateStack = 64 * 1024;

struct sigaction previous[4];
stack_t previous_stack;
pid_t launching_thread = 0;

int watchdog_signal() { return SIGRTMIN + 7; }

struct Registers {
  uintptr_t pc;
  void set(ucontext_t& context, uintptr_t new_pc, uintptr_t stack) const {
#if defined(__x86_64__)
    context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(new_pc);
    context.uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(stack - 8);  // as after a call
#else
    context.uc_mcontext.pc = new_pc;
    context.uc_mcontext.sp = stack;
#endif
  }
  explicit Registers(const ucontext_t& context) {
#if defined(__x86_64__)
    pc = static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
#else
    pc = context.uc_mcontext.pc;
#endif
  }
};

// Leaves the kernel: the handler returns into stop_lane, on the top of the fibre's stack, which nobody needs any more.
void leave(ucontext_t& context, const Registers& registers) {
  const uintptr_t top = (g.fibre->stack_begin + g.fibre->stack_size - 4096) & ~uintptr_t{63};
  registers.set(context, reinterpret_cast<uintptr_t>(&stop_lane), top);
}

// The instruction that clang makes of a failed bounds check of a private array or vector (bounds.py): ud1 with the check's number.
bool is_bounds_trap(uintptr_t pc) {
#if defined(__x86_64__)
  static constexpr unsigned char kTrap[] = {0x67, 0x0F, 0xB9, 0x40, 18};
  return pc >= g.library_begin && pc + sizeof kTrap <= g.library_end && !std::memcmp(reinterpret_cast<const void*>(pc), kTrap, sizeof kTrap);
#else
  return (void)pc, false;
#endif
}

bool ours() { return g.running && g.fibre && static_cast<pid_t>(syscall(SYS_gettid)) == launching_thread; }

void on_fault(int number, siginfo_t* info, void* data) {
  auto& context = *static_cast<ucontext_t*>(data);
  if (!ours()) {  // not a kernel's: what would have happened without us
    for (int i = 0; i < 4; ++i)
      if (kFaults[i] == number) sigaction(number, &previous[i], nullptr);
    return;
  }
  const Registers registers(context);
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool memory = number == SIGSEGV || number == SIGBUS;
  const bool overflow = memory && address - (g.fibre->stack_begin - 4096) < 4096;
  const bool index = number == SIGILL && is_bounds_trap(registers.pc);
  smr_report& report = begin_report(overflow           ? SMR_STACK_OVERFLOW
                                    : number == SIGFPE ? SMR_ARITHMETIC
                                    : index            ? SMR_OUT_OF_BOUNDS
                                                       : SMR_CRASH);
  if (index) report.space = SMR_STACK;
  // A call-out returns to the instruction after it; here the instruction itself is known: one further, so that both read alike.
  report.lanes[0] = current_lane(registers.pc + 1, 0, 0);
  report.address = memory ? address : 0;
  report.offset = number;
  leave(context, registers);
}

struct Timer {
  timer_t id{};
  bool made = false;
  bool make() {
    if (made) return true;
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = watchdog_signal();
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    return made = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &id) == 0;
  }
  void set(double seconds) {
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(seconds);
    when.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(when.it_value.tv_sec)) * 1e9);
    timer_settime(id, 0, &when, nullptr);
  }
  ~Timer() {
    if (made) timer_delete(id);
  }
};
thread_local Timer timer;

struct AlternateStack {
  void* memory = nullptr;
  ~AlternateStack() {
    if (memory) munmap(memory, kAlternateStack);
  }
};
thread_local AlternateStack alternate;

void on_watchdog(int, siginfo_t*, void* data) {
  if (!g.running) return;
  g.expired = true;
  if (!ours()) return;  // the scheduler looks at `expired` itself
  auto& context = *static_cast<ucontext_t*>(data);
  const Registers registers(context);
  if (registers.pc - g.library_begin >= g.library_end - g.library_begin) {
    timer.set(1e-3);  // inside a check: its tables must stay whole, try again soon
    return;
  }
  begin_report(SMR_WATCHDOG).lanes[0] = current_lane(registers.pc + 1, 0, 0);
  leave(context, registers);
}

}  // namespace

void guard_signals() {
  launching_thread = static_cast<pid_t>(syscall(SYS_gettid));
  if (!alternate.memory) {
    void* p = mmap(nullptr, kAlternateStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    alternate.memory = p;
  }
  stack_t stack{};
  stack.ss_sp = alternate.memory;
  stack.ss_size = kAlternateStack;
  sigaltstack(&stack, &previous_stack);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 4; ++i) sigaction(kFaults[i], &action, &previous[i]);
}

void restore_signals() {
  for (int i = 0; i < 4; ++i) sigaction(kFaults[i], &previous[i], nullptr);
  sigaltstack(&previous_stack, nullptr);
}

void start_watchdog(double seconds) {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_watchdog;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    return sigaction(watchdog_signal(), &action, nullptr) == 0;
  }();
  if (installed && seconds > 0 && timer.make()) timer.set(seconds);
}

void stop_watchdog() {
  if (timer.made) timer.set(0);
}

}  // namespace smr
