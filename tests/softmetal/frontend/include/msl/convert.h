// Conversions that Metal writes as T(a, b, ...): the front end's text pass turns them into msl::make<T>(a, b, ...).
#pragma once
namespace msl {
// Metal converts between half and bfloat when asked; clang does not.
template <class T, class U> MSL_INLINE constexpr T scalar_cast(U value) {
  using metal::is_same;
  if constexpr ((is_same<T, half>::value && is_same<U, bfloat>::value) || (is_same<T, bfloat>::value && is_same<U, half>::value))
    return static_cast<T>(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T> MSL_INLINE constexpr T nth(int) { return T(); }
// Element `index` of the elements of all arguments in a row.
template <class T, class A, class... R> MSL_INLINE constexpr T nth(int index, A first, R... rest) {
  if constexpr (is_vector<A>) {
    if (index < element<A>::count) return scalar_cast<T, element_t<A>>(first[index]);
  } else {
    if (index == 0) return scalar_cast<T, A>(first);
  }
  if constexpr (sizeof...(R) > 0) return nth<T>(index - element<A>::count, rest...);
  return T();
}

template <class T, size_t... I, class... A> MSL_INLINE constexpr T gather(metal::index_sequence<I...>, A... values) {
  return T{nth<element_t<T>>((int)I, values...)...};
}
template <class T, size_t... I, class A> MSL_INLINE constexpr T splat(metal::index_sequence<I...>, A value) {
  const element_t<T> e = scalar_cast<element_t<T>, A>(value);
  return T{((void)I, e)...};
}

template <class T> MSL_INLINE constexpr T make() { return T(); }

template <class T, class A, class... R> MSL_INLINE constexpr T make(A first, R... rest) {
  if constexpr (is_vector<T>) {
    constexpr int count = element<T>::count;
    typedef metal::make_index_sequence<count> sequence;
    if constexpr (sizeof...(R) == 0 && !is_vector<A> && !is_scalar<A>) {
      return make<T>(static_cast<T>(first));  // a packed vector, or a class with a conversion
    } else if constexpr (sizeof...(R) == 0 && !is_vector<A>) {
      return splat<T>(sequence(), first);
    } else {
      static_assert((element<A>::count + ... + element<R>::count) == count, "a vector is made of as many elements as it has");
      return gather<T>(sequence(), first, rest...);
    }
  } else if constexpr (sizeof...(R) == 0 && is_scalar<T> && is_scalar<A>) {
    return scalar_cast<T, A>(first);
  } else if constexpr (sizeof...(R) == 0) {
    return static_cast<T>(first);
  } else {
    return T(first, rest...);
  }
}
}  // namespace msl

template <class T, class U> MSL_INLINE constexpr T as_type(U value) {
  static_assert(sizeof(T) == sizeof(U), "as_type: both types must have the same size");
  return __builtin_bit_cast(T, value);
}
namespace metal {
using ::as_type;
}
