// The ways in which stock MPS misbehaves, as switches that the stock kernels of this device look at.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <string>

namespace softmetal {

enum class Fault {
  kPadInnerExtent,        // padTensor of rank 5 and more writes the fill value over the data
  kPadLongVector,         // 1-D pads of 2^17 and more elements
  kPadEmptyList,          // an empty pad list raises
  kPadKeepsMemory,        // a graph for every distinct pad, kept for ever
  kLinearBatchBias,       // bias lost past 65536 batches
  kLinearVectorBias,      // bias lost when the penultimate dimension is 1, on macOS 26
  kLinearStridedWeight,   // a weight that is not contiguous is read as if it were
  kFp8TypeError,          // no FP8 at all, in the words of 2.9
  kFp8Undefined,          // no FP8 at all, in the words of 2.10 to 2.14
  kFp8E4m3Only,           // FP8 other than e4m3fn is undefined
  kCount
};

inline std::array<std::atomic<bool>, static_cast<size_t>(Fault::kCount)>& fault_switches() {
  static std::array<std::atomic<bool>, static_cast<size_t>(Fault::kCount)> switches{};
  return switches;
}

inline bool shows(Fault fault) { return fault_switches()[static_cast<size_t>(fault)].load(std::memory_order_relaxed); }

bool set_fault(const std::string& name, bool on);  // false if there is no fault of that name
void forget_graphs();                              // pad.cpp: a new process has no graphs

// Raises what stock raises when a kernel or a cast meets an FP8 tensor.
void refuse_fp8(at::ScalarType dtype);

}  // namespace softmetal
