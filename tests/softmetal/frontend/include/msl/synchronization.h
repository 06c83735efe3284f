// Barriers. Each carries the line of its call, for the runtime's reports.
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
}  // namespace metal
