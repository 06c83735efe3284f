// <metal_type_traits>: as in C++17, and, as in Metal, is_floating_point and is_integral hold for vectors too.
#pragma once
namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return V; }
  constexpr T operator()() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};

template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv : remove_volatile<typename remove_const<T>::type> {};
template <class T> struct remove_cvref : remove_cv<typename remove_reference<T>::type> {};
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> struct remove_pointer<T* const> { typedef T type; };
template <class T> struct remove_address_space { typedef T type; };
template <class T> struct remove_address_space<device T> { typedef T type; };
template <class T> struct remove_address_space<const device T> { typedef const T type; };
template <class T> struct remove_address_space<threadgroup T> { typedef T type; };
template <class T> struct remove_address_space<const threadgroup T> { typedef const T type; };
template <class T> struct remove_address_space<constant T> { typedef const T type; };
template <class T> struct add_const { typedef const T type; };
template <class T> struct add_pointer { typedef typename remove_reference<T>::type* type; };
template <class T> struct add_lvalue_reference { typedef T& type; };
template <class T> struct remove_extent { typedef T type; };
template <class T> struct remove_extent<T[]> { typedef T type; };
template <class T, size_t N> struct remove_extent<T[N]> { typedef T type; };
template <class T> struct decay : remove_cvref<T> {};
template <class T, size_t N> struct decay<T[N]> { typedef T* type; };
template <class T> struct underlying_type { typedef __underlying_type(T) type; };

template <class T> struct is_void : is_same<void, typename remove_cv<T>::type> {};
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> struct is_pointer<T* const> : true_type {};
template <class T> struct is_reference : bool_constant<__is_reference(T)> {};
template <class T> struct is_array : bool_constant<__is_array(T)> {};
template <class T> struct is_class : bool_constant<__is_class(T)> {};
template <class T> struct is_union : bool_constant<__is_union(T)> {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> struct is_trivial : bool_constant<__is_trivial(T)> {};
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <class B, class D> struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <class A, class B> struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};
template <class T, class... A> struct is_constructible : bool_constant<__is_constructible(T, A...)> {};
}  // namespace metal

namespace msl {
template <class T> struct element { typedef T type; static constexpr int count = 1; };
template <class T, int N> struct element<metal::vec<T, N>> { typedef T type; static constexpr int count = N; };
template <class T> using element_t = typename element<typename metal::remove_cv<T>::type>::type;

template <class T> struct is_float_scalar : metal::false_type {};
template <> struct is_float_scalar<float> : metal::true_type {};
template <> struct is_float_scalar<half> : metal::true_type {};
template <> struct is_float_scalar<bfloat> : metal::true_type {};
template <class T> struct is_integer_scalar : metal::false_type {};
template <> struct is_integer_scalar<bool> : metal::true_type {};
template <> struct is_integer_scalar<signed char> : metal::true_type {};
#define MSL_X(T) template <> struct is_integer_scalar<T> : metal::true_type {};
MSL_FOR_EACH_INTEGER(MSL_X)
#undef MSL_X
template <class T> inline constexpr bool is_scalar = is_float_scalar<T>::value || is_integer_scalar<T>::value;
template <class T> inline constexpr bool is_vector = (element<T>::count > 1);
template <class T> struct identity { typedef T type; };
template <class T> using same = typename identity<T>::type;  // a parameter that takes no part in deduction
}  // namespace msl

namespace metal {
template <class T> struct is_vector : bool_constant<msl::is_vector<typename remove_cv<T>::type>> {};
template <class T> struct is_floating_point : bool_constant<msl::is_float_scalar<msl::element_t<T>>::value> {};
template <class T> struct is_integral : bool_constant<msl::is_integer_scalar<msl::element_t<T>>::value> {};
template <class T> struct is_arithmetic : bool_constant<is_floating_point<T>::value || is_integral<T>::value> {};
template <class T> struct is_fundamental : bool_constant<msl::is_scalar<typename remove_cv<T>::type> || is_void<T>::value> {};
template <class T> struct is_scalar
    : bool_constant<msl::is_scalar<typename remove_cv<T>::type> || is_pointer<T>::value || __is_enum(T)> {};
template <class T> struct is_signed : bool_constant<is_floating_point<T>::value || (is_integral<T>::value && msl::element_t<T>(-1) < msl::element_t<T>(0))> {};
template <class T> struct is_unsigned : bool_constant<is_integral<T>::value && !is_signed<T>::value> {};

template <class T> struct make_unsigned;
template <class T> struct make_signed;
#define MSL_X(S, U) \
  template <> struct make_unsigned<S> { typedef U type; }; \
  template <> struct make_unsigned<U> { typedef U type; }; \
  template <> struct make_signed<S> { typedef S type; }; \
  template <> struct make_signed<U> { typedef S type; };
MSL_X(char, uchar) MSL_X(short, ushort) MSL_X(int, uint) MSL_X(long, ulong)
#undef MSL_X
template <class T, int N> struct make_unsigned<vec<T, N>> { typedef vec<typename make_unsigned<T>::type, N> type; };
template <class T, int N> struct make_signed<vec<T, N>> { typedef vec<typename make_signed<T>::type, N> type; };

template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
#define MSL_X(n) template <class T> using n##_t = typename n<T>::type;
template <class T> struct remove_addrspace : remove_address_space<T> {};
MSL_X(remove_addrspace) MSL_X(remove_reference) MSL_X(remove_const) MSL_X(remove_volatile) MSL_X(remove_cv) MSL_X(remove_cvref) MSL_X(remove_pointer)
MSL_X(remove_address_space) MSL_X(add_const) MSL_X(add_pointer) MSL_X(add_lvalue_reference) MSL_X(remove_extent) MSL_X(decay)
MSL_X(underlying_type) MSL_X(make_unsigned) MSL_X(make_signed)
#undef MSL_X
#define MSL_X(n) template <class T> inline constexpr bool n##_v = n<T>::value;
MSL_X(is_void) MSL_X(is_const) MSL_X(is_pointer) MSL_X(is_reference) MSL_X(is_array) MSL_X(is_class) MSL_X(is_union) MSL_X(is_enum)
MSL_X(is_trivial) MSL_X(is_trivially_copyable) MSL_X(is_vector) MSL_X(is_floating_point) MSL_X(is_integral) MSL_X(is_arithmetic)
MSL_X(is_fundamental) MSL_X(is_scalar) MSL_X(is_signed) MSL_X(is_unsigned)
#undef MSL_X
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class A, class B> inline constexpr bool is_convertible_v = is_convertible<A, B>::value;
template <class A, class B> inline constexpr bool is_base_of_v = is_base_of<A, B>::value;
template <class T, class... A> inline constexpr bool is_constructible_v = is_constructible<T, A...>::value;

template <class... B> struct conjunction : true_type {};
template <class B, class... R> struct conjunction<B, R...> : conditional_t<bool(B::value), conjunction<R...>, false_type> {};
template <class... B> struct disjunction : false_type {};
template <class B, class... R> struct disjunction<B, R...> : conditional_t<bool(B::value), true_type, disjunction<R...>> {};
template <class B> struct negation : bool_constant<!B::value> {};
template <class... B> inline constexpr bool conjunction_v = conjunction<B...>::value;
template <class... B> inline constexpr bool disjunction_v = disjunction<B...>::value;
template <class B> inline constexpr bool negation_v = negation<B>::value;
// Apple's own names of the three, which `#pragma METAL internals : enable` shows.
template <class... B> using _conjunction = conjunction<B...>;
template <class... B> using _disjunction = disjunction<B...>;
template <class B> using _negation = negation<B>;

template <class T, T... I> struct integer_sequence { static constexpr size_t size() { return sizeof...(I); } };
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>;
template <class T, T N> using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;
template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;
template <class T> T&& declval() noexcept;
template <class T> MSL_INLINE constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }
}  // namespace metal
