// Structures that move between address spaces: copies.py writes these calls where the source has plain copies.
#pragma once
namespace msl {
template <class T> struct plain_type { typedef typename metal::remove_cv<typename metal::remove_address_space<T>::type>::type type; };
template <class T> using plain = typename plain_type<T>::type;
template <class T> struct loaded { typedef T type; };
template <class T, int N> struct loaded<metal::packed_vec<T, N>> { typedef metal::vec<T, N> type; };

// The value of an object in any address space; of a packed vector, the vector.
template <class T> MSL_INLINE typename loaded<plain<metal::remove_reference_t<T>>>::type load(T&& object) {
  typedef plain<metal::remove_reference_t<T>> value;
  alignas(value) unsigned char storage[sizeof(value)];
  target::check_alignment<alignof(value)>((const void*)&object, sizeof(value), 1);
  __builtin_memcpy(storage, (const void*)&object, sizeof(value));
  return *(value*)storage;
}
// destination = value, whichever address spaces the two are in.
template <class D, class S> MSL_INLINE void store(D& destination, S&& value) {
  const plain<D> copy = load(value);
  target::check_alignment<alignof(plain<D>)>((const void*)&destination, sizeof(copy), 2);
  __builtin_memcpy((void*)&destination, &copy, sizeof(copy));
}
}  // namespace msl
