// Stock's aten::linear: MPSNDArray's matrix multiplication, with its faults switchable.
#include "device.h"
#include "faults.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

namespace softmetal {
namespace {

constexpr int64_t kBatches = 65536;  // pytorch #189495: the batch index is kept in 16 bits

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  static CallCounter count("aten::linear");
  count();
  for (const auto* t : {&input, &weight}) {
    TORCH_CHECK(is_mps(*t), "Expected all tensors to be on the same device, but found at least two devices, mps:0 and ",
                t->device(), "! (when checking arguments of aten::linear)");
    refuse_fp8(t->scalar_type());
    check_initialised(*t, "aten::linear");
  }
  const bool biased = bias && bias->defined();
  if (biased) {
    TORCH_CHECK(is_mps(*bias), "Expected all tensors to be on the same device, but found at least two devices, mps:0 and ",
                bias->device(), "! (when checking arguments of aten::linear)");
    check_initialised(*bias, "aten::linear");
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor x = host_view(input);
  at::Tensor w = host_view(weight);
  std::optional<at::Tensor> b;
  if (biased) b = host_view(*bias);

  if (shows(Fault::kLinearStridedWeight) && w.dim() == 2 && !w.is_contiguous() && w.is_non_overlapping_and_dense()) {
    w = w.as_strided(w.sizes(), {w.size(1), 1});  // pytorch #162730: strides are not looked at
  }
  if (shows(Fault::kLinearVectorBias) && x.dim() >= 3 && x.size(-2) == 1) b = std::nullopt;  // pytorch #188438
  at::Tensor out = at::linear(x, w, b);
  if (shows(Fault::kLinearBatchBias) && b && x.dim() >= 3 && x.size(-3) > kBatches && x.is_contiguous()) {
    const int64_t lost = x.size(-3) - kBatches;
    out.narrow(-3, kBatches, lost).copy_(at::linear(x.narrow(-3, kBatches, lost), w, {}));
  }
  return to_mps(out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, MPS, m) { m.impl("linear", &linear); }

}  // namespace softmetal
