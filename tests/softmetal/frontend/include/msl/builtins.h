// What Apple's compiler itself offers below the metal:: library, under names of its own; MLX writes bfloat functions with them.
// `fast` asks for fast math, which changes nothing here.
#pragma once
#define MSL_X(name) MSL_INLINE float __metal_##name(float x, bool) { return metal::name(x); }
MSL_X(fabs) MSL_X(acos) MSL_X(acosh) MSL_X(asin) MSL_X(asinh) MSL_X(atan) MSL_X(atanh) MSL_X(ceil) MSL_X(cos) MSL_X(cosh) MSL_X(cospi)
MSL_X(exp) MSL_X(exp2) MSL_X(exp10) MSL_X(floor) MSL_X(fract) MSL_X(log) MSL_X(log2) MSL_X(log10) MSL_X(rint) MSL_X(round) MSL_X(rsqrt)
MSL_X(sin) MSL_X(sinh) MSL_X(sinpi) MSL_X(sqrt) MSL_X(tan) MSL_X(tanh) MSL_X(tanpi) MSL_X(trunc)
#undef MSL_X
#define MSL_X(name) MSL_INLINE float __metal_##name(float x, float y, bool) { return metal::name(x, y); }
MSL_X(atan2) MSL_X(divide) MSL_X(fmax) MSL_X(fmin) MSL_X(fmod) MSL_X(pow) MSL_X(powr)
#undef MSL_X
#define MSL_X(name, function) MSL_INLINE float __metal_##name(float x, float y, float z, bool) { return metal::function(x, y, z); }
MSL_X(fmax3, fmax3) MSL_X(fmin3, fmin3) MSL_X(fmedian3, median3)
#undef MSL_X
MSL_INLINE float __metal_fma(float x, float y, float z) { return metal::fma(x, y, z); }
MSL_INLINE float __metal_nextafter(float x, float y) { return metal::nextafter(x, y); }
MSL_INLINE float __metal_ldexp(float x, int e, bool) { return metal::ldexp(x, e); }
MSL_INLINE float __metal_frexp(float x, thread int* e) { return metal::frexp(x, *e); }

MSL_INLINE ushort __metal_get_simdgroup_size(ushort) { return 32; }
MSL_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return (ushort)msl::target::lane(); }
#define MSL_LANE_BUILTIN template <class T> __attribute__((convergent)) MSL_INLINE T
#define MSL_X(name) MSL_LANE_BUILTIN __metal_##name(T value, int line = __builtin_LINE()) { return metal::name(value, line); }
MSL_X(simd_max) MSL_X(simd_min) MSL_X(simd_sum) MSL_X(simd_product) MSL_X(simd_prefix_exclusive_product)
MSL_X(simd_prefix_exclusive_sum) MSL_X(simd_prefix_inclusive_product) MSL_X(simd_prefix_inclusive_sum)
#undef MSL_X
MSL_LANE_BUILTIN __metal_simd_xor(T value, int line = __builtin_LINE()) {
  if constexpr (metal::is_same<T, float>::value) return as_type<float>(metal::simd_xor(as_type<uint>(value), line));
  else return metal::simd_xor(value, line);
}
#define MSL_X(name) MSL_LANE_BUILTIN __metal_##name(T value, ushort other, int line = __builtin_LINE()) { return metal::name(value, other, line); }
MSL_X(simd_broadcast) MSL_X(simd_shuffle) MSL_X(simd_shuffle_down) MSL_X(simd_shuffle_rotate_down) MSL_X(simd_shuffle_rotate_up)
MSL_X(simd_shuffle_up) MSL_X(simd_shuffle_xor)
#undef MSL_X
#define MSL_X(name) \
  MSL_LANE_BUILTIN __metal_##name(T value, T filling, ushort delta, ushort modulo, int line = __builtin_LINE()) { return metal::name(value, filling, delta, modulo, line); }
MSL_X(simd_shuffle_and_fill_down) MSL_X(simd_shuffle_and_fill_up)
#undef MSL_X
#undef MSL_LANE_BUILTIN

// Whether the host gave a function constant a value. compile_shader gives none.
template <class T> MSL_INLINE bool is_function_constant_defined(constant T&) { return false; }
namespace metal {
using ::is_function_constant_defined;
}
