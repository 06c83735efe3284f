// Kernels' libraries: the variables in them, as clang and the kernels announce them.
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "state.h"

namespace smr {
namespace {

struct Shadowed {       // a threadgroup variable and its shadow
  Page* pages;
  uintptr_t first_page;
  size_t page_count, size;
  std::string name;
};

struct Library {
  uintptr_t begin = 0, end = 0;
  uintptr_t data_begin = 0;  // of the segment that holds the program-scope constants (erase.py makes them look variable)
  std::map<uintptr_t, Shadowed> threadgroup;  // by address; lives as long as the library
};

std::mutex& lock() {
  static auto* instance = new std::mutex;
  return *instance;
}
std::map<uintptr_t, Variable>& variables() {  // announced by clang, by address
  static auto* instance = new std::map<uintptr_t, Variable>;
  return *instance;
}
std::map<uintptr_t, Library>& libraries() {  // by load address
  static auto* instance = new std::map<uintptr_t, Library>;
  return *instance;
}

Library* current = nullptr;

int measure(dl_phdr_info* info, size_t, void* data) {
  auto& library = *static_cast<Library*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
    if (library.begin - begin >= segment.p_memsz) continue;
    // The segment with the entry: the library is all of this object.
    uintptr_t low = begin, high = end;
    for (int k = 0; k < info->dlpi_phnum; ++k) {
      const auto& other = info->dlpi_phdr[k];
      if (other.p_type != PT_LOAD) continue;
      const uintptr_t b = info->dlpi_addr + other.p_vaddr;
      if (b < low) low = b;
      if ((other.p_flags & PF_W) && b > library.data_begin) library.data_begin = b;
      if (b + other.p_memsz > high) high = b + other.p_memsz;
    }
    library.begin = low;
    library.end = high;
    return 1;
  }
  return 0;
}

Shadowed& shadow_variable(Library& library, uintptr_t begin, size_t size, const char* name) {
  auto found = library.threadgroup.find(begin);
  if (found != library.threadgroup.end() && found->second.size == size) return found->second;
  Shadowed& made = library.threadgroup[begin];
  if (made.pages) shadow_release(made.pages, made.page_count);
  delete[] made.pages;
  made.first_page = begin / 4096;
  made.page_count = (begin + size - 1) / 4096 - made.first_page + 1;
  made.pages = new Page[made.page_count]();
  made.size = size;
  made.name = name;
  std::memset(reinterpret_cast<void*>(begin), 0xFF, size);  // nobody wrote it yet: what a careless read sees is NaN
  return made;
}

Range threadgroup_range(uintptr_t begin, const Shadowed& variable) {
  Range range;
  range.begin = begin;
  range.size = variable.size;
  range.space = SMR_THREADGROUP;
  range.name = variable.name.c_str();
  range.pages = variable.pages;
  range.first_page = variable.first_page;
  return range;
}

}  // namespace

void library_ranges(const void* entry, std::vector<Range>& ranges) {
  std::lock_guard<std::mutex> hold(lock());
  const auto at = reinterpret_cast<uintptr_t>(entry);
  auto& known = libraries();
  auto it = known.upper_bound(at);
  if (it != known.begin() && at < std::prev(it)->second.end) {
    it = std::prev(it);
  } else {
    Library library;
    library.begin = at;
    library.end = at + 1;
    dl_iterate_phdr(measure, &library);
    it = known.emplace(library.begin, library).first;
  }
  current = &it->second;
  g.library_begin = current->begin;
  g.library_end = current->end;
  if (!g.checked) return;
  for (const auto& [begin, variable] : current->threadgroup) ranges.push_back(threadgroup_range(begin, variable));
  for (auto v = variables().lower_bound(current->begin); v != variables().end() && v->first < current->end; ++v) {
    if (current->threadgroup.count(v->first) || ranges.size() + 64 > ranges.capacity()) continue;
    Range range;
    range.begin = v->first;
    range.size = v->second.size;
    range.space = SMR_PROGRAM;
    range.name = v->second.name;
    range.read_only = true;
    ranges.push_back(range);
  }
}

bool is_plain_library_data(uintptr_t p, size_t n) {
  constexpr size_t kGap = 256;  // on both sides of every variable; behind it clang leaves as much
  if (p < g.library_begin || p + n > g.library_end) return false;
  const auto after = variables().lower_bound(p);
  if (after != variables().end() && after->first >= current->data_begin && p + n + kGap > after->first) return false;
  auto next = variables().upper_bound(p + n - 1);
  if (next != variables().begin()) {
    const Variable& before = std::prev(next)->second;
    if (p < before.begin + before.size_with_redzone) return false;
  }
  for (const auto& [begin, variable] : current->threadgroup)
    if (p + n > begin - kGap && p < begin + variable.size + kGap) return false;
  return true;
}

}  // namespace smr

using namespace smr;

#define SMR_EXPORT extern "C" __attribute__((visibility("default")))

void msl_rt_threadgroup_variable(void* p, uint64_t size, const char* name) {
  if (!g.fibre || !g.checked || !size) return;
  const auto begin = reinterpret_cast<uintptr_t>(p);
  for (Range& range : g.ranges) {
    if (range.begin != begin) continue;
    if (range.space == SMR_THREADGROUP && range.size == size) return;
    range = threadgroup_range(begin, shadow_variable(*current, begin, size, name));
    return;
  }
  if (g.ranges.size() < g.ranges.capacity()) g.ranges.push_back(threadgroup_range(begin, shadow_variable(*current, begin, size, name)));
}

namespace {
struct AsanGlobal {  // clang's record of a global variable, version 8 of its interface
  uintptr_t begin, size, size_with_redzone;
  const char *name, *module_name;
  uintptr_t has_dynamic_init, location, odr_indicator;
};
}  // namespace

SMR_EXPORT void __asan_register_globals(AsanGlobal* globals, uintptr_t n) {
  std::lock_guard<std::mutex> hold(lock());
  for (uintptr_t i = 0; i < n; ++i)
    variables()[globals[i].begin] = {globals[i].begin, globals[i].size, globals[i].size_with_redzone, globals[i].name};
}

SMR_EXPORT void __asan_unregister_globals(AsanGlobal* globals, uintptr_t n) {
  if (!n) return;
  std::lock_guard<std::mutex> hold(lock());
  uintptr_t low = globals[0].begin;
  for (uintptr_t i = 0; i < n; ++i) {
    variables().erase(globals[i].begin);
    if (globals[i].begin < low) low = globals[i].begin;
  }
  auto library = libraries().upper_bound(low);  // it is being unloaded
  if (library != libraries().begin() && low < std::prev(library)->second.end) {
    for (auto& entry : std::prev(library)->second.threadgroup) {
      shadow_release(entry.second.pages, entry.second.page_count);
      delete[] entry.second.pages;
    }
    libraries().erase(std::prev(library));
  }
}

SMR_EXPORT void __asan_init() {}
SMR_EXPORT void __asan_version_mismatch_check_v8() {}
SMR_EXPORT void __asan_handle_no_return() {}
SMR_EXPORT void __asan_before_dynamic_init(const char*) {}
SMR_EXPORT void __asan_after_dynamic_init() {}
