// The functions of bindings.h that are not a part's own: the device's parts in standard types.
#include "bindings.h"

#include "device.h"

namespace softmetal {
namespace {

std::map<std::string, int64_t> as_map(const MemoryNumbers& n) {
  return {{"current", n.current}, {"reserved", n.reserved}, {"driver", n.driver}, {"outside", n.outside}};
}

}  // namespace

int64_t install(const std::vector<std::string>& composite_ops, const std::vector<std::string>& absent_ops) {
  install_hooks();
  return register_fallbacks(composite_ops, absent_ops);
}

std::map<std::string, int64_t> memory_numbers_map() { return as_map(memory_numbers()); }
std::map<std::string, int64_t> memory_peaks_map() { return as_map(memory_peaks()); }
int64_t host_copy_count() { return host_copies; }
int64_t synchronization_count() { return synchronizations; }

int64_t calls(const std::string& op) {
  const auto counts = call_counts();
  const auto it = counts.find(op);
  return it == counts.end() ? 0 : it->second;
}

}  // namespace softmetal
