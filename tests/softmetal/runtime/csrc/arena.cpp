#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "shadow.h"
#include "softmetal_abi.h"

namespace smr {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kKeepPages = 128 * 1024;  // smaller freed blocks keep their pages: giving them back costs more than it saves
constexpr unsigned char kPoison = 0xFF;    // NaN in every float format in use, -1 in every integer

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct Arena {
  uintptr_t base = 0;
  size_t size = 0;
  size_t used = 0;                                 // bytes ever handed out from the start
  std::map<uintptr_t, size_t> free_by_address;
  std::set<std::pair<size_t, uintptr_t>> free_by_size;
  Block** unit_owner = nullptr;                    // one entry a unit
  uint32_t colour = 0;

  Arena() {
    for (size_t bytes = size_t{1} << 40; bytes >= size_t{1} << 33 && !base; bytes >>= 1) map(bytes);
    if (!base) {
      std::fprintf(stderr, "softmetal: no address space for the arena (520 GiB of it are needed; see ulimit -v), or no memfd_create\n");
      std::abort();
    }
    void* table = mmap(nullptr, size / kUnit * sizeof(Block*), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) std::abort();
    unit_owner = static_cast<Block**>(table);
  }

  // One file in memory of `bytes`, mapped once for the arena and once for each alias, side by side.
  void map(size_t bytes) {
    const int file = memfd_create("softmetal", MFD_CLOEXEC);
    if (file < 0) return;
    const size_t all = bytes * (kAliases + 1);
    void* place = ftruncate(file, static_cast<off_t>(bytes)) ? MAP_FAILED
                  : mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = place != MAP_FAILED;
    for (uint32_t n = 0; mapped && n <= kAliases; ++n) {
      void* at = static_cast<char*>(place) + n * bytes;
      mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == at;
      if (mapped) madvise(at, bytes, MADV_DONTDUMP);
    }
    close(file);
    if (mapped) {
      base = reinterpret_cast<uintptr_t>(place);
      size = bytes;
    } else if (place != MAP_FAILED) {
      munmap(place, all);
    }
  }

  uintptr_t take(size_t bytes) {
    auto it = free_by_size.lower_bound({bytes, 0});
    if (it != free_by_size.end()) {
      const auto [have, at] = *it;
      free_by_size.erase(it);
      free_by_address.erase(at);
      if (have > bytes) insert(at + bytes, have - bytes);
      return at;
    }
    if (size - used < bytes) return 0;
    const uintptr_t at = base + used;
    used += bytes;
    return at;
  }

  void insert(uintptr_t at, size_t bytes) {
    free_by_address[at] = bytes;
    free_by_size.insert({bytes, at});
  }

  void give_back(uintptr_t at, size_t bytes) {
    auto next = free_by_address.lower_bound(at);
    if (next != free_by_address.end() && at + bytes == next->first) {
      bytes += next->second;
      free_by_size.erase({next->second, next->first});
      next = free_by_address.erase(next);
    }
    if (next != free_by_address.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        at = before->first;
        bytes += before->second;
        free_by_size.erase({before->second, before->first});
        free_by_address.erase(before);
      }
    }
    insert(at, bytes);
  }
};

Arena& arena() {
  static Arena* instance = new Arena;  // never destroyed: tensors may outlive static destructors
  return *instance;
}

std::atomic<int64_t> tracked_blocks{0};

size_t bitmap_words(size_t bytes) { return bytes / 64 + 2; }  // one word to spare: two-word reads stay inside

void set_unwritten(Block& block, size_t value) {
  if (block.unwritten == 0 && value != 0) tracked_blocks.fetch_add(1, std::memory_order_relaxed);
  if (block.unwritten != 0 && value == 0) tracked_blocks.fetch_sub(1, std::memory_order_relaxed);
  block.unwritten = value;
}

void forget(Block& block) {
  set_unwritten(block, 0);
  std::free(block.written);
  block.written = nullptr;
  block.fresh = false;
  block.track_begin = block.track_end = 0;
}

// Calls f(word, mask) for the 64-bit words that hold the bits [offset, offset + size).
template <class F>
void each_word(uint64_t* bits, size_t offset, size_t size, F f) {
  while (size) {
    const size_t bit = offset % 64, n = size < 64 - bit ? size : 64 - bit;
    const uint64_t mask = (n == 64 ? ~uint64_t{0} : ((uint64_t{1} << n) - 1)) << bit;
    f(bits[offset / 64], mask);
    offset += n;
    size -= n;
  }
}

size_t count_clear(const Block& block, size_t offset, size_t size) {
  size_t clear = 0;
  each_word(block.written, offset, size, [&](uint64_t& word, uint64_t mask) { clear += __builtin_popcountll(~word & mask); });
  return clear;
}

}  // namespace

std::mutex& memory_lock() {
  static std::mutex* lock = new std::mutex;
  return *lock;
}

uintptr_t arena_base() { return arena().base; }
size_t arena_size() { return arena().size; }
uintptr_t alias_offset(uint32_t n) { return n * arena().size; }

Block* block_of(uintptr_t p) {
  Arena& a = arena();
  if (p - a.base >= a.size) return nullptr;
  Block* block = a.unit_owner[(p - a.base) / kUnit];
  return block && p - block->begin < (block->size ? block->size : 1) ? block : nullptr;
}

void set_written(Block& block, size_t offset, size_t size) {
  if (!block.written) return;
  each_word(block.written, offset, size, [&](uint64_t& word, uint64_t mask) { word |= mask; });
  if (block.unwritten) recount(block);
}

void start_bitmap(Block& block) {
  block.written = static_cast<uint64_t*>(std::calloc(bitmap_words(block.live), sizeof(uint64_t)));
  if (!block.written) std::abort();
  block.fresh = false;
}

void recount(Block& block) {
  set_unwritten(block, count_clear(block, block.track_begin, block.track_end - block.track_begin));
}

bool all_written(const Block& block, size_t offset, size_t size) { return first_clear(block, offset, size) == offset + size; }

size_t first_clear(const Block& block, size_t offset, size_t size) {
  const size_t end = offset + size;
  while (offset < end) {
    const size_t bit = offset % 64;
    const uint64_t clear = ~block.written[offset / 64] >> bit;
    if (clear) {
      const size_t at = offset + __builtin_ctzll(clear);
      return at < end ? at : end;
    }
    offset += 64 - bit;
  }
  return end;
}

bool track(Block& block, uintptr_t begin, size_t size, const char* kernel) {
  std::lock_guard<std::mutex> hold(memory_lock());
  if (block.fresh) start_bitmap(block);
  if (!block.written) return false;
  const size_t lo = begin - block.begin;
  if (lo + size > block.live) {  // more than the allocator said is in use: nothing is known about the rest
    if (lo >= block.live) return false;
    size = block.live - lo;
  }
  const size_t hi = lo + size;
  if (block.track_begin == block.track_end) {
    block.track_begin = lo;
    block.track_end = hi;
  } else {
    if (lo < block.track_begin) block.track_begin = lo;
    if (hi > block.track_end) block.track_end = hi;
  }
  auto* bytes = reinterpret_cast<unsigned char*>(block.begin);
  for (size_t at = first_clear(block, lo, size); at < hi;) {
    size_t end = at;
    while (end < hi && !(block.written[end / 64] >> (end % 64) & 1)) end += (end % 64 == 0 && hi - end >= 64 && !block.written[end / 64]) ? 64 : 1;
    std::memset(bytes + at, kPoison, end - at);
    at = first_clear(block, end, hi - end);
  }
  recount(block);
  if (first_clear(block, lo, size) == hi) return false;
  std::snprintf(block.kernel, sizeof block.kernel, "%s", kernel);
  return true;
}

}  // namespace smr

using namespace smr;

extern "C" {

void* smr_arena_alloc(size_t bytes) {
  std::lock_guard<std::mutex> hold(memory_lock());
  Arena& a = arena();
  const bool coloured = bytes < 16 * 1024;
  // Small blocks start at changing multiples of 256 in their first page, so that they do not all fight for one cache set.
  const size_t offset = coloured ? (a.colour++ * 256) % kPage : 0;
  const size_t slot_size = round_up(offset + (bytes ? bytes : 1), kUnit) + kUnit;
  if (slot_size < bytes) return nullptr;
  const uintptr_t slot = a.take(slot_size);
  if (!slot) return nullptr;
  Block* block = new Block;
  block->slot = slot;
  block->slot_size = slot_size;
  block->begin = slot + offset;
  block->size = block->live = bytes;
  block->fresh = bytes != 0;
  for (size_t unit = 0; unit < slot_size / kUnit - 1; ++unit) a.unit_owner[(slot - a.base) / kUnit + unit] = block;
  return reinterpret_cast<void*>(block->begin);
}

void smr_arena_free(void* p) {
  if (!p) return;
  std::lock_guard<std::mutex> hold(memory_lock());
  Block* block = block_of(reinterpret_cast<uintptr_t>(p));
  if (!block || block->begin != reinterpret_cast<uintptr_t>(p)) {
    std::fprintf(stderr, "softmetal: smr_arena_free of %p, which is not the start of a live block\n", p);
    std::abort();
  }
  Arena& a = arena();
  forget(*block);
  if (block->shadowed) shadow_release(block->begin, block->size);
  for (size_t unit = 0; unit < block->slot_size / kUnit - 1; ++unit) a.unit_owner[(block->slot - a.base) / kUnit + unit] = nullptr;
  if (block->size >= kKeepPages) madvise(reinterpret_cast<void*>(block->slot), block->slot_size - kUnit, MADV_REMOVE);
  a.give_back(block->slot, block->slot_size);
  delete block;
}

int smr_arena_contains(const void* p) { return reinterpret_cast<uintptr_t>(p) - arena().base < arena().size; }

void smr_mark_fresh(void* p, size_t bytes) {
  if (!p || !bytes) return;
  std::lock_guard<std::mutex> hold(memory_lock());
  Block* block = block_of(reinterpret_cast<uintptr_t>(p));
  if (!block) return;
  forget(*block);
  if (block->shadowed) {  // a recycled block: what was known in small granules need not stay so
    shadow_release(block->begin, block->size);
    block->shadowed = false;
  }
  const size_t offset = reinterpret_cast<uintptr_t>(p) - block->begin;
  if (bytes > block->size - offset) bytes = block->size - offset;
  if (offset == 0) {
    block->live = bytes;
    block->fresh = true;
    return;
  }
  block->live = block->size;
  start_bitmap(*block);  // only a part is fresh: the rest counts as written
  set_written(*block, 0, offset);
  set_written(*block, offset + bytes, block->live - offset - bytes);
}

void smr_mark_written(void* p, size_t bytes) {
  if (!p || !bytes) return;
  Block* block = block_of(reinterpret_cast<uintptr_t>(p));
  if (!block || !(block->fresh || block->written)) return;
  std::lock_guard<std::mutex> hold(memory_lock());
  const size_t offset = reinterpret_cast<uintptr_t>(p) - block->begin;
  if (offset >= block->live) return;
  if (bytes > block->live - offset) bytes = block->live - offset;
  if (bytes == block->live) return forget(*block);
  if (block->fresh) start_bitmap(*block);
  if (!block->written) return;
  set_written(*block, offset, bytes);
  if (first_clear(*block, 0, block->live) == block->live) forget(*block);
}

int64_t smr_tracked_blocks(void) { return tracked_blocks.load(std::memory_order_relaxed); }

int64_t smr_first_unwritten(const void* data, uint32_t itemsize, int32_t ndim, const int64_t* sizes, const int64_t* strides) {
  std::lock_guard<std::mutex> hold(memory_lock());
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  Block* block = block_of(at);
  if (!block || !block->unwritten) return -1;
  int64_t numel = 1;
  bool contiguous = true;
  for (int32_t d = ndim - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] != numel) contiguous = false;
    numel *= sizes[d];
  }
  if (numel == 0) return -1;
  const size_t base = at - block->begin;
  // Bytes outside what kernels were bound to are not ours to judge.
  auto missing = [&](size_t lo, size_t n) -> size_t {
    const size_t end = lo + n < block->track_end ? lo + n : block->track_end;
    if (lo < block->track_begin) lo = block->track_begin;
    if (lo >= end) return SIZE_MAX;
    const size_t first = first_clear(*block, lo, end - lo);
    return first < end ? first : SIZE_MAX;
  };
  if (contiguous) {
    const size_t first = missing(base, static_cast<size_t>(numel) * itemsize);
    return first == SIZE_MAX ? -1 : static_cast<int64_t>((first - base) / itemsize);
  }
  int64_t index[64] = {0}, offset = 0;
  if (ndim > 64) return -1;
  for (int64_t i = 0; i < numel; ++i) {
    if (missing(base + offset * itemsize, itemsize) != SIZE_MAX) return i;
    for (int32_t d = ndim - 1; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
  return -1;
}

const char* smr_unwritten_kernel(const void* data) {
  Block* block = block_of(reinterpret_cast<uintptr_t>(data));
  return block && block->unwritten ? block->kernel : "";
}

}  // extern "C"
