// Stock's aten::constant_pad_nd: MPSGraph's padTensor, with its faults switchable.
#include "device.h"
#include "faults.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include <limits>
#include <mutex>
#include <set>
#include <utility>

namespace softmetal {
namespace {

constexpr int64_t kInnerExtent = 65536;      // pytorch #194922, measured by its reporters: 65472 is clean, 65536 is not
constexpr int64_t kLongVector = 1 << 17;     // pytorch #121961

// MPSGraph compiles a graph for each distinct pad and keeps it, and what it needs to run, for the life of the process.
using GraphKey = std::pair<std::vector<int64_t>, at::ScalarType>;
std::mutex graphs_mutex;
std::set<GraphKey>& graphs() {
  static auto* instance = new std::set<GraphKey>;
  return *instance;
}

void keep_graph(const at::Tensor& self, at::IntArrayRef pad, const at::Tensor& out) {
  GraphKey key{self.sizes().vec(), self.scalar_type()};
  key.first.push_back(-1);
  key.first.insert(key.first.end(), pad.begin(), pad.end());
  {
    std::lock_guard<std::mutex> lock(graphs_mutex);
    if (!graphs().insert(std::move(key)).second) return;
  }
  // Reported: 262 GiB beyond the pool after 8,764 pads of a Wan 2.2 decode (pytorch #194922), some 30 MiB a pad, which is
  // about what the padded tensors themselves take.
  keep_outside(self.nbytes() + out.nbytes());
}

// Does padTensor lose the data? True once the last dimension of the output, or the extent behind the outermost padded
// dimension, reaches 65536.
bool loses_data(at::IntArrayRef out, at::IntArrayRef pad) {
  const auto rank = static_cast<int64_t>(out.size());
  if (rank < 5) return false;
  int64_t outermost = -1;
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    if (pad[i] != 0 || pad[i + 1] != 0) outermost = rank - 1 - static_cast<int64_t>(i / 2);
  }
  if (outermost < 0) return false;
  int64_t inner = 1;
  for (int64_t d = outermost + 1; d < rank; ++d) inner *= out[d];
  return std::max(out[rank - 1], inner) >= kInnerExtent;
}

// The part of `out` that holds the input's data.
at::Tensor data_region(at::Tensor out, at::IntArrayRef pad) {
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const int64_t dim = out.dim() - 1 - static_cast<int64_t>(i / 2);
    const int64_t before = std::max<int64_t>(pad[i], 0), after = std::max<int64_t>(pad[i + 1], 0);
    out = out.narrow(dim, before, out.size(dim) - before - after);
  }
  return out;
}

at::Tensor constant_pad_nd(const at::Tensor& self, at::IntArrayRef pad, const at::Scalar& value) {
  static CallCounter count("aten::constant_pad_nd");
  count();
  refuse_fp8(self.scalar_type());
  TORCH_CHECK(!(shows(Fault::kPadEmptyList) && pad.empty()), "invalid padding argument of size 0");
  check_initialised(self, "aten::constant_pad_nd");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor out = at::constant_pad_nd(host_view(self), pad, value);
  if (shows(Fault::kPadLongVector) && self.dim() == 1 && self.numel() >= kLongVector && out.numel() > 0) {
    out.zero_();  // as reported: the fill value in front, then zeros
    out[0].fill_(value);
  }
  if (shows(Fault::kPadInnerExtent) && loses_data(out.sizes(), pad)) {
    // Reported for bfloat16 is NaN, not the fill value.
    const bool nan = out.scalar_type() == at::kBFloat16;
    data_region(out, pad).fill_(nan ? at::Scalar(std::numeric_limits<double>::quiet_NaN()) : value);
  }
  if (shows(Fault::kPadKeepsMemory) && out.numel()) keep_graph(self, pad, out);
  return to_mps(out);
}

}  // namespace

void forget_graphs() {
  std::lock_guard<std::mutex> lock(graphs_mutex);
  graphs().clear();
}

TORCH_LIBRARY_IMPL(aten, MPS, m) { m.impl("constant_pad_nd", &constant_pad_nd); }

}  // namespace softmetal
