// What torch asks of an accelerator: hooks, device guard, events and the random generator. The device runs every op at
// once on the host, so streams and events only keep time.
#include "device.h"

#include "softmetal_abi.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace softmetal {
namespace {

std::atomic<bool> available{false};
std::atomic<unsigned> macos_major{15}, macos_minor{5};

// ---- events -----------------------------------------------------------------------------------------------------

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

class Events {
 public:
  uint32_t acquire(bool timing) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t id = next_++;
    events_[id] = Event{timing, false, 0.0};
    return id;
  }
  void release(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.erase(id);
  }
  void record(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    Event& event = find(id);
    event.recorded = true;
    event.at_ms = now_ms();
  }
  void check(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    find(id);
  }
  double elapsed_ms(uint32_t from, uint32_t to) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Event &a = find(from), &b = find(to);
    TORCH_CHECK(a.timing && b.timing, "Events were not created with argument 'enable_timing=True'");
    TORCH_CHECK(a.recorded && b.recorded, "Both events must be recorded before calculating elapsed time.");
    return b.at_ms - a.at_ms;
  }

 private:
  struct Event {
    bool timing;
    bool recorded;
    double at_ms;
  };
  Event& find(uint32_t id) {
    auto it = events_.find(id);
    TORCH_CHECK(it != events_.end(), "Invalid Event ID: ", id);
    return it->second;
  }
  std::mutex mutex_;
  uint32_t next_ = 1;
  std::unordered_map<uint32_t, Event> events_;
};

Events& events() {
  static Events* instance = new Events;
  return *instance;
}

// ---- random numbers -----------------------------------------------------------------------------------------------

// CPU kernels draw from a CPU generator, so an mps generator keeps one inside. It is never the process's CPU generator:
// random numbers on mps must not move the numbers that the CPU draws.
struct MpsGenerator final : c10::GeneratorImpl {
  explicit MpsGenerator(at::Generator cpu)
      : c10::GeneratorImpl(mps_device(), c10::DispatchKeySet(c10::DispatchKey::MPS)), host(std::move(cpu)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  MpsGenerator* clone_impl() const override { return new MpsGenerator(host.clone()); }

  at::Generator host;
};

at::Generator new_generator() {
  return at::Generator(c10::make_intrusive<MpsGenerator>(at::detail::createCPUGenerator()));
}

// ---- hooks ----------------------------------------------------------------------------------------------------------

struct Hooks final : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return available; }
  bool isBuilt() const override { return available; }
  bool isAvailable() const override { return available; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isOnMacOSorNewer(unsigned major, unsigned minor) const override {
    return major < macos_major || (major == macos_major && minor <= macos_minor);
  }
  c10::DeviceIndex deviceCount() const override { return available ? 1 : 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  c10::Device getDeviceFromPtr(void*) const override { return mps_device(); }
  bool isPinnedPtr(const void* p) const override { return smr_arena_contains(p); }

  c10::Allocator* getMPSDeviceAllocator() const override { return allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void emptyCache() const override { empty_cache(); }
  size_t getCurrentAllocatedMemory() const override { return static_cast<size_t>(memory_numbers().current); }
  size_t getDriverAllocatedMemory() const override { return static_cast<size_t>(memory_numbers().driver); }
  size_t getRecommendedMaxMemory() const override { return recommended_max_memory(); }
  // No `override`: torch 2.9 does not ask.
  size_t getMaxBufferLength() const { return max_buffer_length(); }
  void setMemoryFraction(double ratio) const override { set_memory_fraction(ratio); }

  void deviceSynchronize() const override { count_synchronization(); }
  void commitStream() const override {}
  void* getCommandBuffer() const override { return nullptr; }
  void* getDispatchQueue() const override { return nullptr; }
  void profilerStartTrace(const std::string&, bool) const override {}
  void profilerStopTrace() const override {}

  uint32_t acquireEvent(bool timing) const override { return events().acquire(timing); }
  void releaseEvent(uint32_t id) const override { events().release(id); }
  void recordEvent(uint32_t id) const override { events().record(id); }
  void waitForEvent(uint32_t id) const override { events().check(id); }
  void synchronizeEvent(uint32_t id) const override {
    events().check(id);
    count_synchronization();
  }
  bool queryEvent(uint32_t id) const override {
    events().check(id);
    return true;
  }
  double elapsedTimeOfEvents(uint32_t from, uint32_t to) const override { return events().elapsed_ms(from, to); }
};

// ---- guard ----------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kMPS; }
  c10::Device exchangeDevice(c10::Device) const override { return mps_device(); }
  c10::Device getDevice() const override { return mps_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { count_synchronization(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { count_synchronization(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (!*event) *event = as_pointer(events().acquire(flag == c10::EventFlag::BACKEND_DEFAULT));
    events().record(as_id(*event));
  }
  void block(void* event, const c10::Stream&) const override {
    if (event) events().check(as_id(event));
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { count_synchronization(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event) events().release(as_id(event));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return events().elapsed_ms(as_id(from), as_id(to));
  }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, mps_device()); }
  static void* as_pointer(uint32_t id) { return reinterpret_cast<void*>(static_cast<uintptr_t>(id)); }
  static uint32_t as_id(void* event) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event)); }
};

// ---- autograd -------------------------------------------------------------------------------------------------------

// The engine starts one thread for each device at the first backward of the process. A backward that ran on the CPU before
// the device existed left it without one for us: start it now. The members are protected, not private.
struct Engine : torch::autograd::Engine {
  static void give_threads() {
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.initialize_device_threads_pool();
    if ((engine.*(&Engine::device_ready_queues_)).empty()) (engine.*(&Engine::start_device_threads))();
  }
};

// ---- CUDA builds ----------------------------------------------------------------------------------------------------

// torch allows one accelerator a process, and a CUDA build counts as having CUDA even on a machine without a GPU. A Mac has
// none: while the device is available, the CUDA hooks say that there is no CUDA. They are an object that is not ours and has
// state, so single slots of its virtual table are redirected.
using Answer = bool (*)(const void* hooks);
Answer real_is_built = nullptr, real_has_cuda = nullptr;

bool cuda_is_built(const void* hooks) { return !available && real_is_built(hooks); }
bool has_cuda(const void* hooks) { return !available && real_has_cuda(hooks); }

// Redirects the virtual function `member` of the object at `hooks`; returns what was there. By the Itanium ABI a pointer to
// a virtual member function holds its slot's offset, plus 1 except on ARM.
template <typename Member>
Answer redirect(const void* hooks, Member member, Answer to) {
  uintptr_t offset = 0;
  std::memcpy(&offset, &member, sizeof offset);
#if !defined(__aarch64__)
  offset -= 1;
#endif
  char* table = nullptr;
  std::memcpy(&table, hooks, sizeof table);
  auto* slot = reinterpret_cast<Answer*>(table + offset);
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(page_size - 1));
  TORCH_CHECK(mprotect(page, page_size, PROT_READ | PROT_WRITE) == 0, "cannot hide CUDA from this build of torch");
  const Answer before = *slot;
  *slot = to;
  mprotect(page, page_size, PROT_READ);
  return before;
}

void hide_cuda() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (real_is_built || !hooks.isBuilt()) return;  // a CPU build
  real_is_built = redirect(&hooks, &at::AcceleratorHooksInterface::isBuilt, &cuda_is_built);
  real_has_cuda = redirect(&hooks, &at::CUDAHooksInterface::hasCUDA, &has_cuda);
}

}  // namespace

at::Generator host_generator(const at::Generator& mps) {
  return static_cast<MpsGenerator*>(mps.unsafeGetGeneratorImpl())->host;
}

const at::Generator& default_generator() {
  static const at::Generator* instance = new at::Generator(new_generator());
  return *instance;
}

void set_available(bool value) { available = value; }

void set_macos(unsigned major, unsigned minor) {
  macos_major = major;
  macos_minor = minor;
}

void install_hooks() {
  // torch keeps the hooks object that it made while it was imported, long before this library. Neither that object nor
  // ours holds data, so ours takes its place by lending it the virtual table.
  static const auto* ours = new Hooks;
  auto* theirs = const_cast<at::MPSHooksInterface*>(&at::detail::getMPSHooks());
  static_assert(sizeof(Hooks) == sizeof(at::MPSHooksInterface) && sizeof(Hooks) == sizeof(void*));
  std::memcpy(static_cast<void*>(theirs), static_cast<const void*>(ours), sizeof(void*));
  c10::SetAllocator(kMPS, allocator());
  hide_cuda();
  Engine::give_threads();
}

}  // namespace softmetal

namespace at::detail {
using softmetal::Guard;
C10_REGISTER_GUARD_IMPL(MPS, Guard)
}
