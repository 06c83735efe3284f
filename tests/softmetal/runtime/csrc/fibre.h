// Fibres: a stack a thread of a threadgroup, and the switch between them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "softmetal_abi.h"

namespace smr {

struct Fibre {
  void* stack_pointer = nullptr;
  uintptr_t stack_begin = 0;    // lowest usable byte; the guard page lies below
  size_t stack_size = 0;
  uint64_t group_serial = 0;    // the threadgroup that the group-wide fields of `thread` describe
  bool prepared = false;        // has a frame to start or continue from
  msl_thread* thread = nullptr; // at the top of the stack, so that kernels read it as memory of their own
};

// Stacks are made on demand and reused for ever. `take` gives one that is ready to run `body` from its start.
Fibre* fibre_take(void (*body)(Fibre*));
void fibre_give_back(Fibre* fibre);

// Saves the caller's registers on its stack, leaves the stack pointer in *save, and goes on where `load` was saved.
extern "C" void smr_switch(void** save, void* load) __attribute__((visibility("hidden")));

}  // namespace smr
