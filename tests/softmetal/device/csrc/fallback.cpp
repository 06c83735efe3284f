// Any CPU kernel, run on mps tensors: the arguments become CPU tensors over the same memory, the CPU kernel runs, and what
// it returns becomes mps again: the same tensor, a view of one, or fresh memory.
#include "device.h"
#include "faults.h"

#include "softmetal_abi.h"

#include <ATen/EmptyTensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>

#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

namespace softmetal {
namespace {

void release_storage(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

// An argument and its host view.
struct Pair {
  at::Tensor mps;
  at::Tensor host;
  bool written;
};

enum class Kind : uint8_t { kOther, kTensor, kTensorList, kOptionalTensorList, kDevice, kGenerator };

Kind kind_of(const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return Kind::kTensor;
    case c10::TypeKind::DeviceObjType: return Kind::kDevice;
    case c10::TypeKind::GeneratorType: return Kind::kGenerator;
    case c10::TypeKind::ListType: {
      auto element = type->expectRef<c10::ListType>().getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return Kind::kTensorList;
      if (element->kind() == c10::TypeKind::OptionalType) return Kind::kOptionalTensorList;
      return Kind::kOther;
    }
    default: return Kind::kOther;
  }
}

// Ops that take CPU tensors beside mps ones on a Mac too.
bool takes_cpu_tensors(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::_pack_padded_sequence", "aten::tensor_split", "aten::_copy_from", "aten::_copy_from_and_resize",
      "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_pad_packed_sequence",
      "aten::_has_compatible_shallow_copy_type"};
  return names.count(name) != 0;
}

// Ops whose list of indices may be on the CPU; the tensor that is indexed and the values may not.
bool takes_cpu_indices(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_index_put_impl",
      "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

// What the fallback needs to know of an op, worked out once when it is registered.
struct Plan {
  explicit Plan(const c10::OperatorHandle& op) : name(op.schema().name()), count(name) {
    const auto& schema = op.schema();
    for (const auto& argument : schema.arguments()) {
      const bool written = argument.alias_info() && argument.alias_info()->isWrite();
      const Kind kind = kind_of(argument.type());
      kinds.push_back(kind);
      writes.push_back(written);
      outs.push_back(argument.is_out());
      if (kind == Kind::kGenerator) has_generator = true;
    }
    returns = schema.returns().size();
    draws_unseeded = op.hasTag(at::Tag::nondeterministic_seeded) && !has_generator;
    reads_in_place = op.hasTag(at::Tag::pointwise);
    mixes_devices = takes_cpu_tensors(name);
    indexes = takes_cpu_indices(name);
    gathers = is_gather(name);
  }

  std::string name;
  CallCounter count;
  c10::SmallVector<Kind, 8> kinds;
  c10::SmallVector<bool, 8> writes;
  c10::SmallVector<bool, 8> outs;
  size_t returns = 0;
  bool has_generator = false;
  bool draws_unseeded = false;  // draws from the default generator, and cannot be given another
  bool reads_in_place = false;
  bool mixes_devices = false;
  bool indexes = false;
  bool gathers = false;
};

// Lends the state of the mps generator to the CPU's default generator, for kernels that know no other.
class BorrowedCpuGenerator {
 public:
  BorrowedCpuGenerator()
      : lock_(mutex()), cpu_(at::detail::getDefaultCPUGenerator()), mps_(host_generator(default_generator())) {
    saved_ = cpu_.get_state();
    cpu_.set_state(mps_.get_state());
  }
  ~BorrowedCpuGenerator() {
    mps_.set_state(cpu_.get_state());
    cpu_.set_state(saved_);
  }

 private:
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  std::lock_guard<std::mutex> lock_;
  at::Generator cpu_, mps_;
  at::Tensor saved_;
};

class Fallback final : public c10::OperatorKernel {
 public:
  // `kernel` is the op whose CPU kernel runs: `op` itself, or one with the same arguments if `op` exists for MPS only.
  Fallback(const c10::OperatorHandle& op, const c10::OperatorHandle& kernel) : plan_(op), kernel_(kernel), wanted_(kernel.schema().arguments().size()) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    plan_.count();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::SmallVector<Pair, 6> pairs;
    const size_t arguments = plan_.kinds.size();
    const size_t first = stack->size() - arguments;
    for (size_t i = 0; i < arguments; ++i) to_host(i, (*stack)[first + i], pairs);
    if (C10_UNLIKELY(plan_.gathers) && !pairs.empty() && pairs.front().host.is_same((*stack)[first].toTensor()))
      check_chosen(pairs.front().mps, plan_.name, *stack, first);
    for (size_t i = arguments; i < wanted_; ++i) stack->push_back(*kernel_.schema().arguments()[i].default_value());

    if (C10_UNLIKELY(plan_.draws_unseeded)) {
      BorrowedCpuGenerator borrowed;
      kernel_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } else {
      kernel_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }

    for (Pair& pair : pairs) {
      if (pair.written) take_back(pair);
    }
    const size_t results = stack->size() - plan_.returns;
    for (size_t i = 0; i < plan_.returns; ++i) from_host((*stack)[results + i], pairs);
  }

 private:
  at::Tensor to_host(const at::Tensor& tensor, size_t i, c10::SmallVector<Pair, 6>& pairs) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kMPS) {
      const bool is_index = plan_.indexes && plan_.kinds[i] == Kind::kOptionalTensorList;
      TORCH_CHECK_INDEX(!plan_.indexes || i != 0,
                        "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
      TORCH_CHECK(plan_.mixes_devices || is_index || tensor.dim() == 0 || tensor.device().type() != c10::DeviceType::CPU,
                  "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu! (when "
                  "checking arguments of ", plan_.name, ")");
      return tensor;
    }
    refuse_fp8(tensor.scalar_type());
    const bool written = plan_.writes[i];
    const bool chosen = plan_.gathers && i == 0;  // check_chosen looks, when the indices are there
    if (!chosen && (!written || (plan_.reads_in_place && !plan_.outs[i]))) check_initialised(tensor, plan_.name.c_str());
    pairs.push_back(Pair{tensor, host_view(tensor), written});
    return pairs.back().host;
  }

  void to_host(size_t i, c10::IValue& value, c10::SmallVector<Pair, 6>& pairs) {
    switch (plan_.kinds[i]) {
      case Kind::kOther: return;
      case Kind::kTensor:
        if (value.isTensor()) value = to_host(value.toTensor(), i, pairs);
        return;
      case Kind::kTensorList: {
        if (!value.isTensorList()) return;
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : value.toTensorVector()) list.push_back(to_host(t, i, pairs));
        value = std::move(list);
        return;
      }
      case Kind::kOptionalTensorList: {
        if (value.isNone()) return;
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& t : value.to<c10::List<std::optional<at::Tensor>>>().vec()) {
          list.push_back(t ? std::optional<at::Tensor>(to_host(*t, i, pairs)) : std::nullopt);
        }
        value = std::move(list);
        return;
      }
      case Kind::kDevice:
        if (value.isDevice() && value.toDevice().type() == kMPS) value = c10::Device(c10::DeviceType::CPU);
        return;
      case Kind::kGenerator: {
        const at::Generator given = value.isGenerator() ? value.toGenerator() : default_generator();
        TORCH_CHECK(given.device().type() == kMPS, "Expected a 'mps' device type for generator but found '",
                    given.device().type(), "'");
        value = host_generator(given);
        return;
      }
    }
  }

  // An argument that the kernel wrote: note it, and follow a resize.
  static void take_back(Pair& pair) {
    const auto& host = pair.host;
    if (host.storage().data() != pair.mps.storage().data() || host.storage().nbytes() != pair.mps.storage().nbytes()) {
      adopt_bytes(pair.mps, host);
    }
    auto* impl = pair.mps.unsafeGetTensorImpl();
    if (host.sizes() != pair.mps.sizes() || host.strides() != pair.mps.strides() ||
        host.storage_offset() != pair.mps.storage_offset()) {
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
    mark_written(pair.mps);
  }

  static at::Tensor from_host(const at::Tensor& result, c10::SmallVector<Pair, 6>& pairs) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (Pair& pair : pairs) {
      if (result.is_same(pair.host)) return pair.mps;
    }
    if (result.has_storage() && result.storage().nbytes()) {
      for (Pair& pair : pairs) {
        if (pair.host.storage().data() == result.storage().data()) return mps_over(pair.mps.storage(), result);
      }
    }
    return to_mps(result);
  }

  static void from_host(c10::IValue& value, c10::SmallVector<Pair, 6>& pairs) {
    if (value.isTensor()) {
      value = from_host(value.toTensor(), pairs);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(from_host(t, pairs));
      value = std::move(list);
    }
  }

  Plan plan_;
  c10::OperatorHandle kernel_;
  size_t wanted_;  // arguments of kernel_; it may have some more, at their defaults
};

at::Tensor make_tensor(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (C10_UNLIKELY(like.is_conj())) tensor._set_conj(true);
  if (C10_UNLIKELY(like.is_neg())) tensor._set_neg(true);
  return tensor;
}

// Calls f(offset, length), in elements, for each stretch of memory that t covers without a gap.
template <typename F>
void for_each_run(const at::Tensor& t, F f) {
  if (t.numel() == 0) return;
  if (t.is_non_overlapping_and_dense()) return f(int64_t{0}, t.numel());
  c10::SmallVector<int64_t, 6> index(t.dim(), 0);
  const int64_t last = t.dim() - 1;
  const bool row = t.stride(last) == 1;
  while (true) {
    int64_t offset = 0;
    for (int64_t d = 0; d <= last; ++d) offset += index[d] * t.stride(d);
    f(offset, row ? t.size(last) : 1);
    int64_t d = row ? last - 1 : last;
    while (d >= 0 && ++index[d] == t.size(d)) index[d--] = 0;
    if (d < 0) return;
  }
}

}  // namespace

at::Tensor host_view(const at::Tensor& t) {
  if (!is_mps(t)) return t;
  TORCH_CHECK_NOT_IMPLEMENTED(t.has_storage(), "the software mps device has no sparse tensors");
  if (C10_UNLIKELY(t._is_zerotensor())) return at::zeros(t.sizes(), t.options().device(c10::DeviceType::CPU));  // no memory
  auto* storage = t.storage().unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(storage);  // the view keeps the memory alive
  c10::DataPtr data(storage->mutable_data(), storage, &release_storage, c10::Device(c10::DeviceType::CPU));
  c10::Storage view(c10::Storage::use_byte_size_t{}, storage->nbytes(), std::move(data),
                    c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
  return make_tensor(std::move(view), c10::DispatchKey::CPU, t);
}

at::Tensor mps_over(const c10::Storage& storage, const at::Tensor& like) {
  return make_tensor(storage, c10::DispatchKey::MPS, like);
}

at::Tensor to_mps(const at::Tensor& host) {
  TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == c10::kStrided, "the software mps device has no ", host.layout(), " tensors");
  at::Tensor result = empty_strided(host.sizes(), host.strides(), host.scalar_type());
  if (host.numel() == 0) return result;
  const bool plain = !host.is_conj() && !host.is_neg();
  if (plain && host.is_non_overlapping_and_dense()) {
    std::memcpy(result.mutable_data_ptr(), host.const_data_ptr(), host.nbytes());
  } else {
    at::Tensor view = host_view(result);
    at::native::copy_(view, plain ? host : host.resolve_conj().resolve_neg(), false);
  }
  mark_written(result);
  return result;
}

void check_initialised(const at::Tensor& t, const char* op) {
  if (C10_LIKELY(smr_tracked_blocks() == 0)) return;
  if (t.numel() == 0 || !t.has_storage() || t._is_zerotensor()) return;
  const void* data = t.const_data_ptr();
  const int64_t element = smr_first_unwritten(data, static_cast<uint32_t>(t.itemsize()), static_cast<int32_t>(t.dim()),
                                              t.sizes().data(), t.strides().data());
  TORCH_CHECK(element < 0, op, " reads element ", element, " of a tensor of shape ", t.sizes(), ", which kernel '",
              smr_unwritten_kernel(data), "' left unwritten");
}

void mark_written(const at::Tensor& t) {
  if (t.numel() == 0 || !t.has_storage()) return;
  auto* data = static_cast<char*>(t.data_ptr());
  const size_t itemsize = t.itemsize();
  for_each_run(t, [&](int64_t offset, int64_t length) {
    smr_mark_written(data + offset * static_cast<int64_t>(itemsize), static_cast<size_t>(length) * itemsize);
  });
}

// ---- registration -----------------------------------------------------------------------------------------------------

namespace {

using Registrations = std::map<std::string, c10::RegistrationHandleRAII>;

Registrations& registrations() {
  static auto* instance = new Registrations;
  return *instance;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Ops that only MPS has, with the op that does the same on the CPU.
const std::map<std::string, std::string>& mps_only() {
  static const std::map<std::string, std::string> ops = {
      {"aten::_scaled_dot_product_attention_math_for_mps", "aten::_scaled_dot_product_attention_math"}};
  return ops;
}

void add(const c10::OperatorHandle& op) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto substitute = mps_only().find(full_name(op.operator_name()));
  const auto source = substitute == mps_only().end() ? op : dispatcher.findSchemaOrThrow(substitute->second.c_str(), "");
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Fallback>(op, source));
  registrations().emplace(full_name(op.operator_name()),
                          dispatcher.registerImpl(op.operator_name(), c10::DispatchKey::MPS, std::move(kernel),
                                                  std::nullopt, nullptr, "software mps device"));
}

}  // namespace

int64_t register_fallbacks(const std::vector<std::string>& composite_ops, const std::vector<std::string>& absent) {
  const std::set<std::string> composite(composite_ops.begin(), composite_ops.end());
  const std::set<std::string> without(absent.begin(), absent.end());
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t registered = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const std::string full = full_name(name);
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::MPS)) continue;
    if (without.count(full) || without.count(name.name)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !mps_only().count(full) && !composite.count(full) && !composite.count(name.name)) continue;
    add(*op);
    ++registered;
  }
  return registered;
}

void set_op_absent(const std::string& full, bool absent) {
  const auto dot = full.find('.');
  const c10::OperatorName name(full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1));
  if (absent) {
    registrations().erase(full);
  } else if (!registrations().count(full)) {
    if (auto op = c10::Dispatcher::singleton().findOp(name)) add(*op);
  }
}

}  // namespace softmetal
