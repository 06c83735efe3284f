// Counts that tests and measurements read: calls of stock kernels, copies to the host, waits for the device.
#include "bindings.h"
#include "device.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

namespace softmetal {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<std::atomic<int64_t>>> slots;  // a slot's address never changes
};

using Clock = std::chrono::steady_clock;
std::atomic<Clock::rep> busy_until{0};

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

void keep_busy(double seconds) {
  const auto time = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  busy_until = (Clock::now() + time).time_since_epoch().count();
}

void count_synchronization() {
  synchronizations.fetch_add(1, std::memory_order_relaxed);
  if (const auto until = busy_until.load()) std::this_thread::sleep_until(Clock::time_point(Clock::duration(until)));
}

void count_host_copy() {
  host_copies.fetch_add(1, std::memory_order_relaxed);
  count_synchronization();
}

}  // namespace softmetal
