// Ops that belong to a device and cannot be borrowed from the CPU: making tensors, viewing, copying between devices,
// set_, resize_, item; and those for which PyTorch has an MPS kernel but no CPU one.
#include "device.h"
#include "faults.h"

#include "softmetal_abi.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cstring>
#include <limits>

namespace softmetal {
namespace {

const c10::DispatchKeySet kMpsKeys(c10::DispatchKey::MPS);

// What Metal has no type for. The words are those of PyTorch's MPS backend.
std::atomic<bool> wide_types{false};

void check_dtype(at::ScalarType dtype) {
  if (C10_UNLIKELY(wide_types.load(std::memory_order_relaxed))) return;
  TORCH_CHECK_TYPE(dtype != at::kDouble,
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                   "Please use float32 instead.");
  TORCH_CHECK_TYPE(dtype != at::kComplexDouble,
                   "Trying to convert ComplexDouble to the MPS backend but it does not have support for that dtype.");
}

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device>, std::optional<bool> pin,
                               std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided, "the software mps device has no sparse tensors");
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const auto type = c10::dtype_or_default(dtype);
  check_dtype(type);
  return at::detail::empty_generic(size, allocator(), kMpsKeys, type, format);
}

at::Tensor empty_strided_op(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return empty_strided(size, stride, c10::dtype_or_default(dtype));
}

// A tensor of zeros without memory, which forward-mode AD takes for a tangent that is not there. The CPU's kernel would give
// one too, but of the CPU: what it says it holds cannot be copied from its null pointer.
class NoMemory final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t) override { return {nullptr, nullptr, &c10::detail::deleteNothing, mps_device()}; }
  void copy_data(void*, const void*, size_t) const override {}
};

at::Tensor efficientzerotensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                               std::optional<at::Device>, std::optional<bool>) {
  static CallCounter count("aten::_efficientzerotensor");
  count();
  static NoMemory no_memory;
  const auto type = c10::dtype_or_default(dtype);
  check_dtype(type);
  return at::detail::empty_generic(size, &no_memory, kMpsKeys.add(c10::DispatchKey::ZeroTensor), type, std::nullopt);
}

// ---- copies -------------------------------------------------------------------------------------------------------------

// Stock moves the bytes of a type it does not know, but only as they lie: no cast, no gather from a view.
void check_copy(const at::Tensor& self, const at::Tensor& src) {
  if (C10_LIKELY(!c10::isFloat8Type(self.scalar_type()) && !c10::isFloat8Type(src.scalar_type()))) return;
  const auto plain = [](const at::Tensor& t) { return t.is_contiguous() && (!is_mps(t) || t.storage_offset() == 0); };
  if (self.scalar_type() == src.scalar_type() && plain(self) && plain(src)) return;
  refuse_fp8(c10::isFloat8Type(src.scalar_type()) ? src.scalar_type() : self.scalar_type());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  static CallCounter count("aten::copy_");
  count();
  if (self.is_same(src)) return self;
  check_copy(self, src);
  if (is_mps(src)) {
    check_initialised(src, "aten::copy_");
    if (!is_mps(self)) count_host_copy();
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor to = host_view(self);
  to.copy_(host_view(src), non_blocking);
  if (is_mps(self)) mark_written(self);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor to = dst;
  return copy_(to, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor to = dst;
  to.resize_(self.sizes());
  return copy_(to, self, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  static CallCounter count("aten::_local_scalar_dense");
  count();
  refuse_fp8(self.scalar_type());
  check_initialised(self, "aten::_local_scalar_dense");
  count_host_copy();
  return at::_local_scalar_dense(host_view(self));
}

// ---- storage --------------------------------------------------------------------------------------------------------------

// Makes the storage of an mps tensor hold at least `bytes`, keeping what it held.
void grow(const at::Tensor& self, size_t bytes) {
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  c10::DataPtr data = allocator()->allocate(bytes);
  if (storage->nbytes()) {
    std::memcpy(data.mutable_get(), storage->data(), storage->nbytes());
    smr_mark_written(data.mutable_get(), storage->nbytes());
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

size_t bytes_needed(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  return at::detail::computeStorageNbytes(size, stride, self.itemsize(), static_cast<size_t>(offset));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  static CallCounter count("aten::resize_");
  count();
  if (self.sizes() != size || format) {
    auto* impl = self.unsafeGetTensorImpl();
    if (self.sizes() != size) {
      at::detail::check_size_nonnegative(size);
      impl->set_sizes_contiguous(size);
    }
    if (format) {
      TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
      impl->empty_tensor_restride(*format);
    }
    if (self.numel()) grow(self, bytes_needed(self, self.sizes(), self.strides(), self.storage_offset()));
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                               at::IntArrayRef stride) {
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(source.device().type() == kMPS, "Attempted to set the storage of a tensor on device \"mps:0\" to a storage on "
              "different device \"", source.device(), "\".  This is no longer allowed; the devices must match.");
  std::vector<int64_t> contiguous;
  if (stride.data() == nullptr || (stride.empty() && !size.empty())) {
    contiguous.assign(size.size(), 1);
    for (int64_t d = static_cast<int64_t>(size.size()) - 2; d >= 0; --d) {
      contiguous[d] = contiguous[d + 1] * std::max<int64_t>(size[d + 1], 1);
    }
    stride = contiguous;
  }
  TORCH_CHECK(stride.size() == size.size(), "mismatch in length of strides and shape");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, offset);
  if (self.numel()) grow(self, bytes_needed(self, size, stride, offset));
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t{}, 0, allocator(), /*resizable=*/true);
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  static CallCounter count("aten::as_strided");
  count();
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

// ---- kernels that only MPS has ----------------------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& input, const at::Tensor& grad,
                                                               const at::Tensor& weight, std::array<bool, 3> mask) {
  static CallCounter count("aten::linear_backward");
  count();
  for (const auto* t : {&input, &grad, &weight}) check_initialised(*t, "aten::linear_backward");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor x = host_view(input), g = host_view(grad), w = host_view(weight);
  const bool vector = w.dim() == 1;  // a weight of one output feature, whose dimension the output lacks
  const at::Tensor matrix = vector ? w.unsqueeze(0) : w;
  const int64_t row_count = c10::multiply_integers(x.sizes().begin(), x.sizes().end() - 1);  // of rows; there may be no columns
  const at::Tensor rows = (vector ? g.unsqueeze(-1) : g).reshape({row_count, matrix.size(0)});
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = to_mps(at::matmul(rows, matrix).view(x.sizes()));
  if (mask[1]) grad_weight = to_mps(at::matmul(rows.t(), x.reshape({row_count, x.size(-1)})).view(w.sizes()));
  if (mask[2]) grad_bias = to_mps(vector ? at::sum(rows) : at::sum(rows, 0));
  return {grad_input, grad_weight, grad_bias};
}

// PyTorch chooses among its attention kernels through a C++ stub that knows no software device: the choice is made here, as
// it falls on a Mac. The math version is made of differentiable ops.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& given_mask, double dropout, bool causal,
                                        std::optional<double> scale, bool grouped) {
  std::optional<at::Tensor> mask = given_mask;
  if (mask && mask->scalar_type() == at::kBool) {  // True takes part
    mask = at::zeros_like(*mask, query.options()).masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  const bool differentiable = at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() ||
                              value.requires_grad() || (mask && mask->requires_grad()));
  if (differentiable || dropout != 0.0 || grouped) {
    return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, {}, scale, grouped));
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_attention_math_for_mps", "");
  torch::jit::Stack stack{query, key, value, mask, dropout, causal, c10::IValue(), scale};
  if (op.schema().arguments().size() > stack.size()) stack.emplace_back(grouped);  // an argument since 2.13
  op.callBoxed(stack);
  return stack.front().toTensor();
}

}  // namespace

void allow_wide_types(bool allow) { wide_types = allow; }

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  check_dtype(dtype);
  return at::detail::empty_strided_generic(size, stride, allocator(), kMpsKeys, dtype);
}

void adopt_bytes(const at::Tensor& mps, const at::Tensor& host) {
  const size_t bytes = host.storage().nbytes();
  auto* storage = mps.storage().unsafeGetStorageImpl();
  c10::DataPtr data = allocator()->allocate(bytes);
  if (bytes) {
    std::memcpy(data.mutable_get(), host.storage().data(), bytes);
    smr_mark_written(data.mutable_get(), bytes);
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided_op);
  m.impl("_efficientzerotensor", &efficientzerotensor);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("as_strided", &as_strided);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("linear_backward", &linear_backward);
  m.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) { m.impl("scaled_dot_product_attention", &scaled_dot_product_attention); }

}  // namespace softmetal
