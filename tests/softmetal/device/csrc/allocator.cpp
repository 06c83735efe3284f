// The memory of the software mps device. The pool imitates the book-keeping of PyTorch's MPS heap allocator (buffers of up
// to 1 MiB share heaps of 8 MiB, those below 10 MiB heaps of 32 MiB, those below 512 MiB heaps of 1 GiB, larger ones get a
// heap of their own; freed buffers stay in the pool until empty_cache or until memory runs short). Only the numbers are
// pooled: each tensor's bytes are a fresh block of the runtime's arena with a guard zone behind it, so that a kernel that
// runs over the end, or uses memory after it was freed, is caught.
#include "device.h"

#include "softmetal_abi.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

namespace softmetal {
namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
constexpr size_t kMaxSmall = 1 * MiB, kMinOwnHeap = 10 * MiB, kMaxSharedHeap = 512 * MiB;
constexpr size_t kSmallHeap = 8 * MiB, kLargeHeap = 32 * MiB, kHugeHeap = 1 * GiB, kOwnHeapRound = 2 * MiB;
constexpr size_t kPage = 16 * KiB;            // Apple silicon
constexpr size_t kDriverBase = 384 * KiB;     // what Metal holds for a process before its first tensor
constexpr double kDefaultWatermark = 1.7;     // PYTORCH_MPS_HIGH_WATERMARK_RATIO's default

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A buffer's size within a heap.
size_t buffer_size(size_t requested) {
  return requested < kPage ? round_up(requested, 256) : round_up(requested, kPage);
}

std::string format_size(size_t bytes) {
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB"};
  if (bytes <= KiB) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value > 1024.0 && unit < 3) value /= 1024.0, ++unit;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", value, units[unit]);
  return text;
}

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

struct Heap {
  size_t available;
  size_t total;
  bool small;
  bool shared;  // may hold more than one buffer
  unsigned buffers = 0;
};

struct Buffer {
  size_t size;
  size_t requested;
  Heap* heap;
};

struct BySpace {
  bool operator()(const Heap* a, const Heap* b) const {
    return a->available != b->available ? a->available < b->available : a < b;
  }
};

class Pool {
 public:
  void* take(size_t requested) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(requested < max_buffer_length_, "Invalid buffer size: ", format_size(requested));
    const size_t size = buffer_size(requested);
    const bool small = size <= kMaxSmall;
    Buffer buffer{};
    bool found = reuse(size, small, &buffer) || create(size, small, &buffer);
    if (!found && free_bytes_ > 0) {
      ++stats_.num_alloc_retries;
      release_free_buffers();
      found = create(size, small, &buffer);
    }
    void* memory = found ? smr_arena_alloc(requested) : nullptr;
    if (!memory) {
      if (found) put_back(buffer);
      ++stats_.num_ooms;
      out_of_memory(size);
    }
    buffer.requested = requested;
    live_.emplace(memory, buffer);
    count(stats_.allocation, small, 1);
    count(stats_.active, small, 1);
    count(stats_.allocated_bytes, small, static_cast<int64_t>(buffer.size));
    count(stats_.active_bytes, small, static_cast<int64_t>(buffer.size));
    count(stats_.requested_bytes, small, static_cast<int64_t>(requested));
    note_peaks();
    return memory;
  }

  void give_back(void* memory) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = live_.find(memory);
      TORCH_INTERNAL_ASSERT(it != live_.end(), "freeing memory that is not an mps tensor's");
      const Buffer buffer = it->second;
      live_.erase(it);
      const bool small = buffer.heap->small;
      count(stats_.allocation, small, -1);
      count(stats_.active, small, -1);
      count(stats_.allocated_bytes, small, -static_cast<int64_t>(buffer.size));
      count(stats_.active_bytes, small, -static_cast<int64_t>(buffer.size));
      count(stats_.requested_bytes, small, -static_cast<int64_t>(buffer.requested));
      put_back(buffer);
    }
    smr_arena_free(memory);
  }

  void empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    release_free_buffers();
  }

  void keep_outside(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    outside_ += static_cast<int64_t>(bytes);
    note_peaks();
  }

  void forget_outside() {
    std::lock_guard<std::mutex> lock(mutex_);
    outside_ = kDriverBase;
  }

  MemoryNumbers numbers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return now();
  }

  MemoryNumbers peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    return peaks_;
  }

  void reset_peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    peaks_ = now();
    for_each_stat([](Stat& s) { s.reset_peak(); });
  }

  void reset_accumulated() {
    std::lock_guard<std::mutex> lock(mutex_);
    for_each_stat([](Stat& s) { s.reset_accumulated(); });
    stats_.num_alloc_retries = stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
  }

  DeviceStats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void set_fraction(double ratio) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(ratio >= 0.0 && ratio <= 2.0, "invalid high watermark ratio ", ratio);
    ratio_ = ratio;
  }

  void set_recommended(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    recommended_ = bytes;
    max_buffer_length_ = bytes / 4 * 3;
  }

  size_t recommended() const { return recommended_; }
  size_t max_buffer_length() const { return max_buffer_length_; }

  void set_name(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    name_ = name;
  }

 private:
  // A freed buffer is handed out again if it is not oversize, as in the original.
  bool reuse(size_t size, bool small, Buffer* out) {
    if (driver_after(size) > limit()) return false;
    auto& pool = free_[small];
    auto it = pool.lower_bound(size);
    if (it == pool.end() || it->first > size + kLargeHeap) return false;
    *out = it->second;
    pool.erase(it);
    free_bytes_ -= out->size;
    return true;
  }

  bool create(size_t size, bool small, Buffer* out) {
    if (driver_after(size) > limit()) return false;
    auto& heaps = heaps_[small];
    Heap key{size, 0, small, true};
    Heap* heap = nullptr;
    for (auto it = heaps.lower_bound(&key); it != heaps.end(); ++it) {
      if ((*it)->shared || (*it)->buffers == 0) {
        heap = *it;
        heaps.erase(it);
        break;
      }
    }
    if (!heap) {
      const bool shared = size < kMaxSharedHeap;
      const size_t total = small ? kSmallHeap
                           : size < kMinOwnHeap ? kLargeHeap
                           : shared ? kHugeHeap
                                    : round_up(size, kOwnHeapRound);
      heap = new Heap{total, total, small, shared};
      reserved_ += static_cast<int64_t>(total);
      ++stats_.num_device_alloc;
      count(stats_.segment, small, 1);
      count(stats_.reserved_bytes, small, static_cast<int64_t>(total));
    }
    heap->available -= size;
    ++heap->buffers;
    heaps.insert(heap);
    *out = Buffer{size, size, heap};
    return true;
  }

  void put_back(const Buffer& buffer) {
    free_[buffer.heap->small].emplace(buffer.size, buffer);
    free_bytes_ += buffer.size;
  }

  void release_free_buffers() {
    for (bool small : {false, true}) {
      for (auto& entry : free_[small]) {
        Heap* heap = entry.second.heap;
        heaps_[small].erase(heap);
        heap->available += entry.second.size;
        if (--heap->buffers == 0) {
          reserved_ -= static_cast<int64_t>(heap->total);
          ++stats_.num_device_free;
          count(stats_.segment, small, -1);
          count(stats_.reserved_bytes, small, -static_cast<int64_t>(heap->total));
          delete heap;
        } else {
          heaps_[small].insert(heap);
        }
      }
      free_[small].clear();
    }
    free_bytes_ = 0;
  }

  [[noreturn]] void out_of_memory(size_t size) {
    const size_t outside = static_cast<size_t>(outside_);
    if (ratio_ > 0.0) {
      TORCH_CHECK(false, "MPS backend out of memory (MPS allocated: ", format_size(static_cast<size_t>(reserved_)),
                  ", other allocations: ", format_size(outside), ", max allowed: ", format_size(limit()),
                  "). Tried to allocate ", format_size(size), " on ", name_,
                  " pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations "
                  "(may cause system failure).");
    }
    TORCH_CHECK(false, "MPS backend out of memory (MPS allocated: ", format_size(static_cast<size_t>(reserved_)),
                ", other allocations: ", format_size(outside), "). Tried to allocate ", format_size(size), " on ", name_,
                " pool.");
  }

  size_t limit() const {
    if (ratio_ == 0.0) return std::numeric_limits<size_t>::max();
    return static_cast<size_t>(ratio_ * static_cast<double>(recommended_));
  }
  size_t driver_after(size_t size) const { return static_cast<size_t>(reserved_ + outside_) + size; }

  MemoryNumbers now() const {
    MemoryNumbers n;
    n.current = stats_.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].current;
    n.reserved = reserved_;
    n.outside = outside_;
    n.driver = reserved_ + outside_;
    return n;
  }

  void note_peaks() {
    const MemoryNumbers n = now();
    peaks_.current = std::max(peaks_.current, n.current);
    peaks_.reserved = std::max(peaks_.reserved, n.reserved);
    peaks_.driver = std::max(peaks_.driver, n.driver);
    peaks_.outside = std::max(peaks_.outside, n.outside);
  }

  template <typename Stats>
  static void count(Stats& stats, bool small, int64_t amount) {
    const auto kind = static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
    for (size_t i : {static_cast<size_t>(StatType::AGGREGATE), kind}) {
      if (amount >= 0) stats[i].increase(static_cast<size_t>(amount));
      else stats[i].decrease(static_cast<size_t>(-amount));
    }
  }

  template <typename F>
  void for_each_stat(F f) {
    for (auto* stats : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split,
                        &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes,
                        &stats_.inactive_split_bytes, &stats_.requested_bytes}) {
      for (Stat& s : *stats) f(s);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, Buffer> live_;
  std::multimap<size_t, Buffer> free_[2];   // [small], by size
  std::set<Heap*, BySpace> heaps_[2];
  size_t free_bytes_ = 0;
  int64_t reserved_ = 0;
  int64_t outside_ = kDriverBase;
  MemoryNumbers peaks_{};
  DeviceStats stats_{};
  double ratio_ = kDefaultWatermark;
  size_t recommended_ = 24 * GiB;
  size_t max_buffer_length_ = 18 * GiB;
  std::string name_ = "private";
};

// Never destroyed: tensors may outlive static destructors.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

void free_memory(void* memory) {
  if (memory) pool().give_back(memory);
}

class MpsAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_memory, mps_device()};
    void* memory = pool().take(bytes);
    smr_mark_fresh(memory, bytes);
    return {memory, memory, &free_memory, mps_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
    smr_mark_written(to, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { pool().empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex) override { return pool().stats(); }
  void resetAccumulatedStats(c10::DeviceIndex) override { pool().reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex) override { pool().reset_peaks(); }
};

// Pinned memory of a unified-memory machine: the GPU's own buffers, seen by the CPU.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_memory, cpu};
    void* memory = pool().take(bytes);
    smr_mark_written(memory, bytes);  // the CPU's writes are not followed
    return {memory, memory, &free_memory, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static PinnedAllocator* instance = new PinnedAllocator;
  return instance;
}

c10::Allocator* allocator() {
  static MpsAllocator* instance = new MpsAllocator;
  return instance;
}

MemoryNumbers memory_numbers() { return pool().numbers(); }
MemoryNumbers memory_peaks() { return pool().peaks(); }
void reset_memory_peaks() { pool().reset_peaks(); }
void empty_cache() { pool().empty_cache(); }
void set_memory_fraction(double ratio) { pool().set_fraction(ratio); }
void set_recommended_max_memory(size_t bytes) { pool().set_recommended(bytes); }
size_t recommended_max_memory() { return pool().recommended(); }
size_t max_buffer_length() { return pool().max_buffer_length(); }
void set_pool_name(const std::string& name) { pool().set_name(name); }
void keep_outside(size_t bytes) { pool().keep_outside(bytes); }
void forget_outside() { pool().forget_outside(); }

}  // namespace softmetal
