// What the four parts of the software Metal device say to each other, in C: compiled kernels (front end), the
// runtime that runs and checks them, and the torch device that owns the memory. Nothing here knows torch.
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// ---- compiled kernels: one entry per host_name, called once per thread on that thread's fibre -------------------

// The position attributes of MSL, all three-dimensional ones as x, y, z.
typedef struct msl_thread {
  uint32_t thread_position_in_grid[3];
  uint32_t thread_position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t threads_per_grid[3];
  uint32_t threads_per_threadgroup[3];           // of this group: smaller in a partial last group
  uint32_t dispatch_threads_per_threadgroup[3];  // as dispatched
  uint32_t thread_index_in_threadgroup;
  uint32_t thread_index_in_simdgroup;
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup;
  uint32_t dispatch_simdgroups_per_threadgroup;
  uint32_t threads_per_simdgroup;                // 32
} msl_thread;

// buffers[i] is what is bound to [[buffer(i)]]: a pointer into device memory, or to the bytes of a constant argument.
typedef void (*msl_entry)(void* const* buffers, const msl_thread* thread);

// ---- services the runtime gives to compiled kernels --------------------------------------------------------------

// flags: 1 mem_device, 2 mem_threadgroup (as metal::mem_flags). line: of the call in the .metal source, 0 if unknown.
void msl_rt_threadgroup_barrier(uint32_t flags, int line);
void msl_rt_simdgroup_barrier(uint32_t flags, int line);

// The one collective: every lane of the SIMD-group hands in `size` (<= 64) bytes, and gets all lanes' values back.
// The caller computes sum, max, shuffle and so on from them. `op` names the collective in reports (enum below).
// The result is valid until the lane's next call.
//
// Lanes that come to a collective or a barrier have met if they came by the same calls (the chain of frame pointers tells: kernels
// are compiled with them) and, in loops that are announced, in the same iterations. All others are diverged, and reported.
typedef struct msl_simd_values {
  uint32_t active;                // a bit for each lane that takes part (the tail group of a partial threadgroup has fewer)
  uint32_t stride;                // bytes from one lane's value to the next
  unsigned char data[32 * 64] __attribute__((aligned(64)));
} msl_simd_values;
const msl_simd_values* msl_rt_simd_exchange(uint32_t op, const void* value, uint32_t size, int line);
enum msl_simd_op {
  MSL_SIMD_SUM = 1, MSL_SIMD_PRODUCT, MSL_SIMD_MIN, MSL_SIMD_MAX, MSL_SIMD_AND, MSL_SIMD_OR, MSL_SIMD_XOR,
  MSL_SIMD_SHUFFLE, MSL_SIMD_SHUFFLE_UP, MSL_SIMD_SHUFFLE_DOWN, MSL_SIMD_SHUFFLE_XOR, MSL_SIMD_BROADCAST,
  MSL_SIMD_PREFIX, MSL_SIMD_BALLOT, MSL_SIMD_MATRIX, MSL_QUAD
};

// A loop whose body holds a collective or a barrier, in the lane's own memory while the loop runs. The kernel counts `iteration` up at
// the start of each.
typedef struct msl_loop {
  struct msl_loop* outer;
  uint32_t line, iteration;
} msl_loop;
void msl_rt_loop_enter(msl_loop* loop);
void msl_rt_loop_leave(msl_loop* loop);

// thread_index_in_simdgroup of the calling thread: shuffles by an offset start from it.
uint32_t msl_rt_lane(void);

// A shuffle or broadcast would read `lane`, which this SIMD-group does not have (a partial group's tail): reported, does not return.
void msl_rt_missing_lane(uint32_t op, uint32_t lane, int line);

// A `threadgroup T name[N]` variable of a kernel body, announced by each thread that reaches it. p has 256 bytes of guard on each side.
void msl_rt_threadgroup_variable(void* p, uint64_t size, const char* name);

// An atomic access: it conflicts with plain accesses of the same bytes (a load with plain writes only), not with other atomics.
// kind: 1 load, 2 store, 3 both.
void msl_rt_atomic(const volatile void* p, uint32_t size, uint32_t kind, int line);

// Before a plain access to `size` bytes of a type whose alignment the call-outs below do not tell: 16 and more, and structures.
// access: 1 read, 2 write.
void msl_rt_alignment(const void* p, uint64_t size, uint64_t alignment, uint32_t access);

// Copies a structure that has padding into the lane's own memory, as a read of its bytes but for the padding. value[i] is 0 where byte i
// is padding; value is NULL where the compiler cannot tell: then gaps narrower than the alignment pass for padding.
void msl_rt_load(void* to, const void* from, uint64_t size, uint64_t alignment, const unsigned char* value);

// Plain memory accesses reach the runtime through clang's -fsanitize=kernel-address call-outs (__asan_load1_noabort ... __asan_storeN_noabort,
// __asan_memcpy, __asan_memset, __asan_memmove, __asan_register_globals), which the runtime defines.

// ---- device memory: an arena of address space, every block with unmapped or unused guard room after it ---------

void* smr_arena_alloc(size_t bytes);             // 256-byte aligned (page aligned from 16 KiB on), >= 64 KiB of guard room to the next block
void smr_arena_free(void* block);                // the address range may be used again
int smr_arena_contains(const void* p);

// Initialised bytes. A block is born fresh. Storage is tracked byte by byte only from the moment a kernel binds it while fresh;
// a write by an ATen op (smr_mark_written) ends tracking of those bytes.
void smr_mark_fresh(void* p, size_t bytes);      // a block handed out by the allocator: nothing in its `bytes` in use was written yet
void smr_mark_written(void* p, size_t bytes);
// Index of the first element that a kernel bound as output and left unwritten, or -1. Strided: elements of a tensor (strides in elements).
int64_t smr_first_unwritten(const void* data, uint32_t itemsize, int32_t ndim, const int64_t* sizes, const int64_t* strides);
// The kernel that was last bound to that fresh memory, "" if none: for the message.
const char* smr_unwritten_kernel(const void* data);
// How many blocks hold bytes that a kernel was given and has not written. Zero nearly always: then smr_first_unwritten need not be called.
int64_t smr_tracked_blocks(void);


// ---- launching, for compile_shader ------------------------------------------------------------------------------

// SMR_LISTED: memory whose address stands in the array of pointers that buffer `index` has by value (bound before), at `position`.
enum smr_binding_flags { SMR_READ_ONLY = 1, SMR_BY_VALUE = 2, SMR_UNSET = 4, SMR_LISTED = 8 };

typedef struct smr_binding {
  void* data;             // device memory, or the bytes of an argument by value (copied)
  uint64_t size;          // bytes that the kernel may touch, from data on; 0 for unset and for empty tensors
  const char* name;       // the kernel's parameter
  uint32_t index;         // n of [[buffer(n)]], unique but for SMR_LISTED
  uint32_t element_size;  // of the parameter's pointee, for messages
  uint32_t flags;
  uint32_t position;      // of SMR_LISTED: which pointer
} smr_binding;

enum smr_launch_flags { SMR_CHECKED = 1 };

typedef struct smr_launch_info {
  msl_entry entry;
  const char* kernel;
  const smr_binding* bindings;
  uint32_t binding_count;   // each index < 31
  uint32_t threads[3];      // the grid, in threads; none 0
  uint32_t group_size[3];   // product <= 1024; none 0
  uint32_t flags;
  uint64_t seed;            // of the schedule: same seed, same order
  double watchdog_seconds;  // processor time after which the launch is stopped
} smr_launch_info;

enum smr_kind {
  SMR_OK = 0, SMR_RACE, SMR_OUT_OF_BOUNDS, SMR_UNINITIALISED_READ, SMR_READ_ONLY_WRITE, SMR_BARRIER_DIVERGENCE,
  SMR_SIMD_DIVERGENCE, SMR_MISSING_LANE, SMR_WATCHDOG, SMR_CRASH, SMR_STACK_OVERFLOW, SMR_ARITHMETIC, SMR_OUT_OF_MEMORY,
  SMR_MISALIGNED
};
enum smr_space { SMR_NOWHERE = 0, SMR_DEVICE, SMR_CONSTANT, SMR_THREADGROUP, SMR_PROGRAM, SMR_STACK };

typedef struct smr_lane {
  uint32_t group[3];     // threadgroup_position_in_grid
  uint32_t thread;       // thread_index_in_threadgroup; lane = thread % 32, SIMD-group = thread / 32
  uint32_t access;       // 1 read, 2 write, 4 atomic, 5 atomic load
  int32_t line;          // of the .metal source, 0 if unknown
  uint64_t pc;           // inside the kernel's library, 0 if unknown
} smr_lane;

typedef struct smr_report {
  uint32_t kind, space;
  uint32_t lane_count;
  smr_lane lanes[2];       // the lane that was stopped, then (for races) the one that it conflicts with
  int32_t buffer;          // n of [[buffer(n)]], -1 for other memory
  uint32_t element_size;
  int64_t offset;          // bytes from the start of that memory
  uint64_t access_size, bound_size;
  uint64_t address;
  uint64_t library_base;   // where the kernel's library is loaded: pc - library_base is what a debugger wants
  uint32_t op;             // enum msl_simd_op
  char name[128];          // of the memory
  char text[768];          // which lanes are where, for divergence
} smr_report;

// Runs a kernel to its end or to its first fault. Returns report->kind. One launch at a time; other threads wait.
uint32_t smr_launch(const smr_launch_info* info, smr_report* report);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
