#include "fibre.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__x86_64__)
asm(R"(
    .text
    .hidden smr_switch
    .globl smr_switch
    .type smr_switch, @function
smr_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size smr_switch, .-smr_switch

    .hidden smr_fibre_start
    .globl smr_fibre_start
    .type smr_fibre_start, @function
smr_fibre_start:
    movq %r12, %rdi
    xorl %ebp, %ebp
    callq *%r13
    ud2
    .size smr_fibre_start, .-smr_fibre_start
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .hidden smr_switch
    .globl smr_switch
    .type smr_switch, %function
smr_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size smr_switch, .-smr_switch

    .hidden smr_fibre_start
    .globl smr_fibre_start
    .type smr_fibre_start, %function
smr_fibre_start:
    mov x0, x19
    mov x29, xzr
    blr x20
    brk #0
    .size smr_fibre_start, .-smr_fibre_start
)");
#else
#error "softmetal: no fibre switch for this processor; add one to fibre.cpp (x86-64 and aarch64 have theirs)"
#endif

extern "C" void smr_fibre_start() __attribute__((visibility("hidden")));

namespace smr {
namespace {

constexpr size_t kStack = 256 * 1024;  // Metal's own limit for a thread's stack is far below
constexpr size_t kGuard = 4096;
constexpr size_t kTop = 256;           // for the position attributes
static_assert(sizeof(msl_thread) <= kTop);

std::vector<Fibre*>& idle() {
  static auto* fibres = new std::vector<Fibre*>;
  return *fibres;
}

Fibre* make() {
  void* p = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, kGuard, PROT_NONE)) {
    std::fprintf(stderr, "softmetal: no memory for the stack of another thread of a threadgroup\n");
    std::abort();
  }
  Fibre* fibre = new Fibre;
  fibre->stack_begin = reinterpret_cast<uintptr_t>(p) + kGuard;
  fibre->stack_size = kStack;
  fibre->thread = reinterpret_cast<msl_thread*>(fibre->stack_begin + kStack - kTop);
  return fibre;
}

// Lays out a frame from which smr_switch enters smr_fibre_start with the fibre and its body in two saved registers.
void prepare(Fibre* fibre, void (*body)(Fibre*)) {
  static uint32_t colour = 0;  // stacks start at different cache sets
  const uintptr_t top = (fibre->stack_begin + fibre->stack_size - kTop - 64 * (colour++ % 32)) & ~uintptr_t{63};
  auto* frame = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  // At smr_fibre_start rsp is 16-byte aligned, as the call in it wants.
  *--frame = nullptr;
  *--frame = nullptr;
  *--frame = reinterpret_cast<void*>(&smr_fibre_start);
  *--frame = nullptr;                          // rbp
  *--frame = nullptr;                          // rbx
  *--frame = fibre;                            // r12
  *--frame = reinterpret_cast<void*>(body);    // r13
  *--frame = nullptr;                          // r14
  *--frame = nullptr;                          // r15
#else
  frame -= 160 / sizeof(void*);
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[0] = fibre;                                     // x19
  frame[1] = reinterpret_cast<void*>(body);             // x20
  frame[11] = reinterpret_cast<void*>(&smr_fibre_start);  // x30
#endif
  fibre->stack_pointer = frame;
  fibre->prepared = true;
}

}  // namespace

Fibre* fibre_take(void (*body)(Fibre*)) {
  auto& fibres = idle();
  Fibre* fibre;
  if (fibres.empty()) {
    fibre = make();
  } else {
    fibre = fibres.back();
    fibres.pop_back();
  }
  if (!fibre->prepared) prepare(fibre, body);
  return fibre;
}

void fibre_give_back(Fibre* fibre) { idle().push_back(fibre); }

}  // namespace smr
