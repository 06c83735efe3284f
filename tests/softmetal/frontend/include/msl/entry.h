// What the generated entries use: the types of a kernel's parameters, and how they are bound and described.
#pragma once
namespace msl {
template <int I, class... A> struct nth_type;
template <class H, class... R> struct nth_type<0, H, R...> { typedef H type; };
template <int I, class H, class... R> struct nth_type<I, H, R...> : nth_type<I - 1, R...> {};
template <class F, int I> struct argument_of;
template <class... A, int I> struct argument_of<void (*)(A...), I> : nth_type<I, A...> {};
template <class F, int I> using argument = typename argument_of<F, I>::type;

// -- positions
template <class T, bool Vector> struct position_type {
  typedef element_t<T> scalar;
  static constexpr bool value = (metal::is_same<scalar, uint>::value || metal::is_same<scalar, ushort>::value) &&
                                (element<T>::count == 1 || (Vector && element<T>::count <= 3));
};
template <class T, bool Vector> inline constexpr bool is_position = position_type<typename metal::remove_cv<T>::type, Vector>::value;
template <class T> MSL_INLINE T position(coordinates c) {
  typedef element_t<T> E;
  if constexpr (element<T>::count == 2) return T{(E)c.x, (E)c.y};
  else if constexpr (element<T>::count == 3) return T{(E)c.x, (E)c.y, (E)c.z};
  else return (T)c.x;
}

// -- buffers
template <class T> struct buffer;
template <class T> struct buffer<T*> { typedef T type; static constexpr bool reference = false; };
template <class T> struct buffer<T&> { typedef T type; static constexpr bool reference = true; };
template <class T> struct buffer<T* const> : buffer<T*> {};
// p: what MSL_BUFFER gives.
template <class T, class P> MSL_INLINE T bind(P p) {
  typedef typename buffer<T>::type object;
  if constexpr (buffer<T>::reference) return *target::bound<object>(p);
  else return target::bound<object>(p);
}
template <class T> struct space { static constexpr unsigned long number = 0; };
template <class T> struct space<device T> { static constexpr unsigned long number = 1; };
template <class T> struct space<const device T> { static constexpr unsigned long number = 1; };
template <class T> struct space<constant T> { static constexpr unsigned long number = 4; };
template <class T> struct size_of { static constexpr unsigned long size = sizeof(T), alignment = alignof(T); };
template <> struct size_of<void> { static constexpr unsigned long size = 1, alignment = 1; };
template <class T> struct describe {
  typedef typename buffer<T>::type target;
  typedef typename metal::remove_cv<typename metal::remove_address_space<target>::type>::type plain;
};
template <class T> constexpr const char* type_name() { return __PRETTY_FUNCTION__; }
}  // namespace msl
// address space, is a reference, is const, size and alignment of an element: read back by reflection.py
#define MSL_DESCRIBE(...) \
  msl::space<typename msl::buffer<__VA_ARGS__>::type>::number, (unsigned long)msl::buffer<__VA_ARGS__>::reference, \
  (unsigned long)metal::is_const<typename msl::buffer<__VA_ARGS__>::type>::value, \
  msl::size_of<typename msl::describe<__VA_ARGS__>::plain>::size, msl::size_of<typename msl::describe<__VA_ARGS__>::plain>::alignment
#define MSL_TABLE(type, kind, n) \
  extern "C" const type msl_##kind##_##n[]; __attribute__((used)) const type msl_##kind##_##n[]
