// The switches by name, and FP8: what the backend has no type for.
#include "faults.h"

#include "device.h"

#include <map>

namespace softmetal {

bool set_fault(const std::string& name, bool on) {
  static const std::map<std::string, Fault> names = {
      {"pad-inner-extent", Fault::kPadInnerExtent},
      {"pad-long-vector", Fault::kPadLongVector},
      {"pad-empty-list", Fault::kPadEmptyList},
      {"pad-keeps-memory", Fault::kPadKeepsMemory},
      {"linear-batch-bias", Fault::kLinearBatchBias},
      {"linear-vector-bias", Fault::kLinearVectorBias},
      {"linear-strided-weight", Fault::kLinearStridedWeight},
      {"fp8-type-error", Fault::kFp8TypeError},
      {"fp8-undefined", Fault::kFp8Undefined},
      {"fp8-e4m3-only", Fault::kFp8E4m3Only},
  };
  const auto it = names.find(name);
  if (it == names.end()) return false;
  fault_switches()[static_cast<size_t>(it->second)] = on;
  return true;
}

void refuse_fp8(at::ScalarType dtype) {
  if (C10_LIKELY(!c10::isFloat8Type(dtype))) return;
  TORCH_CHECK_TYPE(!shows(Fault::kFp8TypeError), "Trying to convert ", c10::toString(dtype),
                   " to the MPS backend but it does not have support for that dtype.");
  TORCH_CHECK(!shows(Fault::kFp8Undefined) && !(shows(Fault::kFp8E4m3Only) && dtype != at::kFloat8_e4m3fn),
              "Undefined type ", c10::toString(dtype));
}

}  // namespace softmetal
