// <metal_atomic>: int, uint and float, and min and max of ulong, in device or threadgroup memory, with relaxed order: what Metal 3.1 has.
#pragma once
namespace metal {
template <class T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;
}  // namespace metal

namespace msl {
struct keep_new { template <class T> static MSL_INLINE T apply(T, T b) { return b; } };
struct minus { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a - b); } };
template <class T> using if_arithmetic_atomic = metal::enable_if_t<metal::is_same<T, int>::value || metal::is_same<T, uint>::value || metal::is_same<T, float>::value>;
template <class T> using if_integer_atomic = metal::enable_if_t<metal::is_same<T, int>::value || metal::is_same<T, uint>::value>;
template <class T> using if_ulong_atomic = metal::enable_if_t<metal::is_same<T, ulong>::value>;
template <class T> using if_any_atomic = metal::enable_if_t<!metal::is_same<T, ulong>::value>;
}  // namespace msl

namespace metal {
#define MSL_RELAXED(order) __attribute__((diagnose_if(order != memory_order_relaxed, "the memory order of an atomic operation can only be memory_order_relaxed", "error")))
#define MSL_ATOMIC_UPDATE(space, name, operation, condition) \
  template <class T, class = msl::condition<T>> \
  MSL_INLINE T atomic_##name##_explicit(volatile space atomic<T>* object, msl::same<T> operand, memory_order order, int line = __builtin_LINE()) MSL_RELAXED(order) { \
    return msl::target::atomic_update<msl::operation>((volatile T*)&object->value, operand, line); \
  }
#define MSL_ATOMICS(space) \
  template <class T, class = msl::if_any_atomic<T>> \
  MSL_INLINE T atomic_load_explicit(const volatile space atomic<T>* object, memory_order order, int line = __builtin_LINE()) MSL_RELAXED(order) { \
    return msl::target::atomic_load((const volatile T*)&object->value, line); \
  } \
  template <class T, class = msl::if_any_atomic<T>> \
  MSL_INLINE void atomic_store_explicit(volatile space atomic<T>* object, msl::same<T> desired, memory_order order, int line = __builtin_LINE()) MSL_RELAXED(order) { \
    msl::target::atomic_store((volatile T*)&object->value, desired, line); \
  } \
  template <class T, class = msl::if_any_atomic<T>> \
  MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>* object, thread T* expected, msl::same<T> desired, memory_order order, memory_order failure, int line = __builtin_LINE()) MSL_RELAXED(order) MSL_RELAXED(failure) { \
    return msl::target::atomic_compare_exchange((volatile T*)&object->value, expected, desired, line); \
  } \
  MSL_ATOMIC_UPDATE(space, exchange, keep_new, if_any_atomic) \
  MSL_ATOMIC_UPDATE(space, fetch_add, sum, if_arithmetic_atomic) MSL_ATOMIC_UPDATE(space, fetch_sub, minus, if_arithmetic_atomic) \
  MSL_ATOMIC_UPDATE(space, fetch_min, least, if_integer_atomic) MSL_ATOMIC_UPDATE(space, fetch_max, greatest, if_integer_atomic) \
  MSL_ATOMIC_UPDATE(space, fetch_and, bit_and, if_integer_atomic) MSL_ATOMIC_UPDATE(space, fetch_or, bit_or, if_integer_atomic) \
  MSL_ATOMIC_UPDATE(space, fetch_xor, bit_xor, if_integer_atomic) \
  template <class T, class = msl::if_ulong_atomic<T>> MSL_INLINE void atomic_min_explicit(volatile space atomic<T>* object, msl::same<T> operand, memory_order order, int line = __builtin_LINE()) MSL_RELAXED(order) { \
    msl::target::atomic_update<msl::least>((volatile T*)&object->value, operand, line); \
  } \
  template <class T, class = msl::if_ulong_atomic<T>> MSL_INLINE void atomic_max_explicit(volatile space atomic<T>* object, msl::same<T> operand, memory_order order, int line = __builtin_LINE()) MSL_RELAXED(order) { \
    msl::target::atomic_update<msl::greatest>((volatile T*)&object->value, operand, line); \
  }
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
#undef MSL_ATOMICS
#undef MSL_RELAXED
#undef MSL_ATOMIC_UPDATE
}  // namespace metal
