// Structures that move between address spaces: copies.py writes these calls where the source has plain copies.
#pragma once
namespace msl {
template <class T> struct plain_type { typedef typename metal::remove_cv<typename metal::remove_address_space<T>::type>::type type; };
template <class T> using plain = typename plain_type<T>::type;
template <class T> struct loaded { typedef T type; };
template <class T, int N> struct loaded<metal::packed_vec<T, N>> { typedef vector<T, N> type; };

// Which bytes of a T hold values, the others being padding: those whose value a constant expression may know.
template <ulong Size> struct raw_bytes { unsigned char byte[Size]; };
template <class T, uint I>
constexpr unsigned char byte_of_zero() { return __builtin_bit_cast(raw_bytes<sizeof(T)>, __builtin_bit_cast(T, raw_bytes<sizeof(T)>{})).byte[I]; }
template <class T, uint I, unsigned char = byte_of_zero<T, I>()> constexpr bool holds_value(int) { return true; }
template <class T, uint I> constexpr bool holds_value(...) { return false; }
template <class Number, Number... I> struct numbers {};
template <class T, class Bytes = __make_integer_seq<numbers, uint, sizeof(T)>> struct padding;
template <class T, uint... I> struct padding<T, numbers<uint, I...>> {
  static constexpr unsigned char value[] = {holds_value<T, I>(0)...};
  static constexpr bool known = (holds_value<T, I>(0) || ...);  // unions, pointers and bit-fields are beyond constant expressions
  static constexpr bool none = (holds_value<T, I>(0) && ...);
};
template <class T> inline constexpr bool knowable = __is_trivially_copyable(T) && !__is_array(T) && sizeof(T) <= 1024;
template <class T> constexpr bool has_padding() {
  if constexpr (!knowable<T>) return sizeof(T) > 1;
  else return !padding<T>::none;
}
template <class T> constexpr const unsigned char* value_bytes() {
  if constexpr (knowable<T>) return padding<T>::known ? padding<T>::value : nullptr;
  else return nullptr;
}

// The value of an object in any address space; of a packed vector, the vector.
template <class T> MSL_INLINE typename loaded<plain<metal::remove_reference_t<T>>>::type load(T&& object) {
  typedef plain<metal::remove_reference_t<T>> value;
  alignas(value) __attribute__((uninitialized)) unsigned char storage[sizeof(value)];
  if constexpr (has_padding<value>()) {
    target::load_padded(storage, (const void*)&object, sizeof(value), alignof(value), value_bytes<value>());
  } else {
    target::check_alignment<alignof(value)>((const void*)&object, sizeof(value), 1);
    __builtin_memcpy(storage, (const void*)&object, sizeof(value));
  }
  return *(value*)storage;
}
// destination = value, whichever address spaces the two are in.
template <class D, class S> MSL_INLINE void store(D& destination, S&& value) {
  const plain<D> copy = load(value);
  target::check_alignment<alignof(plain<D>)>((const void*)&destination, sizeof(copy), 2);
  __builtin_memcpy((void*)&destination, &copy, sizeof(copy));
}
// destination = f(destination, value): a compound assignment to a vector of bool (members.py).
#define MSL_OPERATOR(op) [](auto a, auto b) { return a op b; }
template <class B, class V, class F> MSL_INLINE void combine(B&& v, V value, F f) {
  static_assert(metal::is_same<element_t<plain<metal::remove_reference_t<B>>>, bool>::value, "a compound assignment to a class in this address space");
  store(v, f(load(v), load(value)));
}
}  // namespace msl
