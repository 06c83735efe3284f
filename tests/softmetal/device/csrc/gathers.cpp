// Ops that read those elements of a tensor that indices choose: only these must have been written.
#include "device.h"

#include "softmetal_abi.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>

#include <map>

namespace softmetal {
namespace {

// Name to the overload that returns its result; the first argument is what is read.
const std::map<std::string, const char*>& gathers() {
  static const std::map<std::string, const char*> ops = {
      {"aten::take", ""}, {"aten::gather", ""}, {"aten::index_select", ""}, {"aten::masked_select", ""},
      {"aten::embedding", ""}, {"aten::index", "Tensor"}, {"aten::_unsafe_index", "Tensor"}};
  return ops;
}

int64_t first_unwritten(const at::Tensor& t, const char* data, int32_t dims) {
  return smr_first_unwritten(data, static_cast<uint32_t>(t.itemsize()), dims, t.sizes().data(), t.strides().data());
}

// A CPU tensor of t's shape: the number of each element that was not written, -1 for those that were.
at::Tensor unwritten_numbers(const at::Tensor& t) {
  at::Tensor numbers = at::full(t.sizes(), -1, at::TensorOptions(at::kLong));
  auto* out = numbers.mutable_data_ptr<int64_t>();
  const auto* data = static_cast<const char*>(t.const_data_ptr());
  std::vector<int64_t> index(t.dim(), 0);
  for (int64_t i = 0; i < t.numel(); ++i) {
    int64_t offset = 0;
    for (int64_t d = 0; d < t.dim(); ++d) offset += index[d] * t.stride(d);
    if (first_unwritten(t, data + offset * static_cast<int64_t>(t.itemsize()), 0) >= 0) out[i] = i;
    for (int64_t d = t.dim() - 1; d >= 0 && ++index[d] == t.size(d); --d) index[d] = 0;
  }
  return numbers;
}

}  // namespace

bool is_gather(const std::string& op) { return gathers().count(op) != 0; }

void check_chosen(const at::Tensor& source, const std::string& op, const torch::jit::Stack& stack, size_t first) {
  if (C10_LIKELY(smr_tracked_blocks() == 0) || !is_mps(source) || !source.numel()) return;
  const auto* data = static_cast<const char*>(source.const_data_ptr());
  if (first_unwritten(source, data, static_cast<int32_t>(source.dim())) < 0) return;
  const auto kernel = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), gathers().at(op));
  const size_t arguments = kernel.schema().arguments().size();  // without the out= that the called overload may have
  torch::jit::Stack chosen(stack.begin() + static_cast<int64_t>(first), stack.begin() + static_cast<int64_t>(first + arguments));
  chosen[0] = unwritten_numbers(source);
  kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &chosen);
  const at::Tensor read = chosen.at(0).toTensor();
  const int64_t element = read.numel() ? at::max(read).item<int64_t>() : -1;
  TORCH_CHECK(element < 0, op, " reads element ", element, " of a tensor of shape ", source.sizes(), ", which kernel '",
              smr_unwritten_kernel(data), "' left unwritten");
}

}  // namespace softmetal
