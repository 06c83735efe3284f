// Counts that tests and measurements read: calls of stock kernels, copies to the host, waits for the device.
#include "device.h"

#include <memory>
#include <mutex>

namespace softmetal {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<std::atomic<int64_t>>> slots;  // a slot's address never changes
};

Table& table() {
  static Table* instance = new Table;
  return *instance;
}

}  // namespace

CallCounter::CallCounter(const std::string& op) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto& slot = table().slots[op];
  if (!slot) slot = std::make_unique<std::atomic<int64_t>>(0);
  slot_ = slot.get();
}

std::map<std::string, int64_t> call_counts() {
  std::lock_guard<std::mutex> lock(table().mutex);
  std::map<std::string, int64_t> counts;
  for (const auto& entry : table().slots) {
    if (const int64_t n = entry.second->load()) counts[entry.first] = n;
  }
  return counts;
}

void reset_counters() {
  std::lock_guard<std::mutex> lock(table().mutex);
  for (auto& entry : table().slots) entry.second->store(0);
  host_copies = 0;
  synchronizations = 0;
}

std::atomic<int64_t> host_copies{0};
std::atomic<int64_t> synchronizations{0};

void count_synchronization() { synchronizations.fetch_add(1, std::memory_order_relaxed); }

void count_host_copy() {
  host_copies.fetch_add(1, std::memory_order_relaxed);
  count_synchronization();
}

}  // namespace softmetal
