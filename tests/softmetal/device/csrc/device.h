// What the parts of the software mps device share. Each .cpp file beside this one has one duty:
//   allocator.cpp  bytes: pool, limits, statistics         hooks.cpp     what torch asks of an accelerator
//   fallback.cpp   any CPU kernel, run on mps tensors       native.cpp    factories, views, copies, set_, resize_
//   gathers.cpp    what indices choose to read
//   counters.cpp   calls, copies to the host, syncs         bindings.cpp  the Python face
// The ways in which Apple's kernels misbehave live in ../../faults/csrc.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace softmetal {

// ---- allocator.cpp --------------------------------------------------------------------------------------------

// The four numbers that users meet, in bytes, and the highest each has been since the last reset.
struct MemoryNumbers {
  int64_t current = 0;   // live tensors, rounded as the pool rounds them
  int64_t reserved = 0;  // heaps held by the pool
  int64_t driver = 0;    // all Metal memory of the process
  int64_t outside = 0;   // driver - reserved: what MPSGraph and the driver keep for themselves
};

c10::Allocator* allocator();
c10::Allocator* pinned_allocator();
MemoryNumbers memory_numbers();
MemoryNumbers memory_peaks();
void reset_memory_peaks();
void empty_cache();
void set_memory_fraction(double ratio);              // 0 lifts the limit
void set_recommended_max_memory(size_t bytes);
size_t recommended_max_memory();
size_t max_buffer_length();
void set_pool_name(const std::string& name);         // "private" or "shared", for the out-of-memory message
void keep_outside(size_t bytes);                     // the driver keeps this for the life of the process
void forget_outside();                               // a new profile: as a new process

// ---- counters.cpp ---------------------------------------------------------------------------------------------

class CallCounter {
 public:
  explicit CallCounter(const std::string& op);       // "aten::add", overloads together
  void operator()() { slot_->fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>* slot_;
};
std::map<std::string, int64_t> call_counts();
void reset_counters();

extern std::atomic<int64_t> host_copies;             // copies from the device to the host, .item() included
extern std::atomic<int64_t> synchronizations;        // waits of the host for the device
void count_host_copy();
void count_synchronization();

// ---- fallback.cpp ---------------------------------------------------------------------------------------------

constexpr c10::DeviceType kMPS = c10::DeviceType::MPS;
inline bool is_mps(const at::Tensor& t) { return t.defined() && t.device().type() == kMPS; }
inline c10::Device mps_device() { return {kMPS, 0}; }

at::Tensor host_view(const at::Tensor& t);           // a CPU tensor over the memory of an mps tensor
at::Tensor mps_over(const c10::Storage& storage, const at::Tensor& like);  // an mps tensor with like's geometry
at::Tensor to_mps(const at::Tensor& host);           // a CPU result, moved into fresh mps memory, strides kept
at::Generator host_generator(const at::Generator& mps);  // hooks.cpp: the CPU generator that drives an mps one

// Memory that a Metal kernel left unwritten: reading it is an error, writing it makes it good.
void check_initialised(const at::Tensor& mps, const char* op);
void mark_written(const at::Tensor& mps);

// Registers the fallback for every aten op that has a CPU kernel and no mps kernel yet; returns how many.
int64_t register_fallbacks(const std::vector<std::string>& composite_ops, const std::vector<std::string>& absent);
void set_op_absent(const std::string& op, bool absent);  // adds or removes the fallback of one op, "aten::name.overload"

// ---- gathers.cpp ----------------------------------------------------------------------------------------------

bool is_gather(const std::string& op);               // reads only those elements of its first argument that the others choose
// As check_initialised, for what a gather is about to read. stack, from `first` on: its arguments as the CPU kernel gets them.
void check_chosen(const at::Tensor& source, const std::string& op, const torch::jit::Stack& stack, size_t first);

// ---- native.cpp -----------------------------------------------------------------------------------------------

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype);
void allow_wide_types(bool allow);                   // float64 and complex128, which Metal lacks: for comparisons only
void adopt_bytes(const at::Tensor& mps, const at::Tensor& host);  // host outgrew the storage it viewed: take it over

// ---- hooks.cpp ------------------------------------------------------------------------------------------------

const at::Generator& default_generator();
void install_hooks();
void set_available(bool available);
void set_macos(unsigned major, unsigned minor);

}  // namespace softmetal
