// Barriers and fences. Each barrier carries the line of its call, for the runtime's reports.
#pragma once
namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
MSL_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
MSL_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((uint)a & (uint)b); }

__attribute__((convergent)) MSL_INLINE void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  msl::target::threadgroup_barrier((uint)flags, line);
}
__attribute__((convergent)) MSL_INLINE void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  msl::target::simdgroup_barrier((uint)flags, line);
}

// atomic_thread_fence is Metal 3.2's. Operations on atomics themselves are relaxed always (atomic.h).
enum memory_order { memory_order_relaxed = 0, memory_order_acquire = 2, memory_order_release = 3, memory_order_acq_rel = 4, memory_order_seq_cst = 5 };
enum thread_scope { thread_scope_thread = 0, thread_scope_simdgroup = 4, thread_scope_threadgroup = 1, thread_scope_device = 2 };

// The strongest there is, whatever is asked for. It orders the accesses; the runtime's search for races knows barriers only.
MSL_INLINE void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __c11_atomic_thread_fence(__ATOMIC_SEQ_CST);
}
}  // namespace metal
