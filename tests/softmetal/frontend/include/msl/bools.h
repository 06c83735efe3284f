// bool2, bool3, bool4: a byte an element, as Metal lays them out. (clang's own vectors of bool are bits, and it compiles an assignment
// to an element of one into nonsense.) A comparison of vectors, which gives one of clang's masks, converts to them by itself.
#pragma once
namespace msl {
template <int N> struct bool_elements;
template <> struct alignas(2) bool_elements<2> { bool x, y; };
template <> struct alignas(4) bool_elements<3> { bool x, y, z; };
template <> struct alignas(4) bool_elements<4> { bool x, y, z, w; };

template <int N> struct bools : bool_elements<N> {
  bools() = default;
  MSL_INLINE constexpr bools(bool value) : bools(metal::make_index_sequence<N>(), value) {}
  // Of a comparison: conversions.py refuses other integers, which Metal converts only when asked.
  template <class I> MSL_INLINE constexpr bools(metal::vec<I, N> mask) : bools(metal::make_index_sequence<N>(), mask) {}
  template <class... B, metal::enable_if_t<sizeof...(B) == N, int> = 0>
  MSL_INLINE constexpr bools(B... values) : bool_elements<N>{bool(values)...} {}

  MSL_INLINE constexpr bool operator[](int i) const {
    if (!__builtin_is_constant_evaluated()) return (*(const bool(*)[N])this)[i];
    if constexpr (N == 2) return i == 0 ? this->x : this->y;
    else if constexpr (N == 3) return i == 0 ? this->x : i == 1 ? this->y : this->z;
    else return i == 0 ? this->x : i == 1 ? this->y : i == 2 ? this->z : this->w;
  }
  MSL_INLINE bool& operator[](int i) {
    bool(&all)[N] = *(bool(*)[N])this;
    (void)(bool)all[i];  // read, so that its bounds are checked: a reference may go one past the end
    return all[i];
  }

#define MSL_X(op) \
  friend MSL_INLINE constexpr bools operator op(bools a, bools b) { return a.combine(b, [](bool p, bool q) { return bool(p op q); }); }
  MSL_X(&&) MSL_X(||) MSL_X(==) MSL_X(!=) MSL_X(&) MSL_X(|) MSL_X(^)
#undef MSL_X
  friend MSL_INLINE constexpr bools operator!(bools a) { return a == bools(false); }
#define MSL_X(op) \
  MSL_INLINE bools& operator op##=(bools other) { return *this = *this op other; }
  MSL_X(&) MSL_X(|) MSL_X(^)
#undef MSL_X

 private:
  template <size_t... I, class V> MSL_INLINE constexpr bools(metal::index_sequence<I...>, V value) : bool_elements<N>{nth_of(value, I)...} {}
  static MSL_INLINE constexpr bool nth_of(bool value, size_t) { return value; }
  template <class I> static MSL_INLINE constexpr bool nth_of(metal::vec<I, N> mask, size_t i) { return mask[i] != 0; }
  template <class F> MSL_INLINE constexpr bools combine(bools other, F f) const {
    if constexpr (N == 2) return bools(f(this->x, other.x), f(this->y, other.y));
    else if constexpr (N == 3) return bools(f(this->x, other.x), f(this->y, other.y), f(this->z, other.z));
    else return bools(f(this->x, other.x), f(this->y, other.y), f(this->z, other.z), f(this->w, other.w));
  }
};
template <int N> struct element<bools<N>> { typedef bool type; static constexpr int count = N; };

// The vector of N elements of T, also of bool.
template <class T, int N> struct vector_of { typedef metal::vec<T, N> type; };
template <int N> struct vector_of<bool, N> { typedef bools<N> type; };
template <class T, int N> using vector = typename vector_of<T, N>::type;

// What members.py writes: an element of one that lies in another address space, and components of which clang knows nothing.
#define MSL_X(space) \
  template <int N> MSL_INLINE space bool (&elements(space bools<N>& v))[N] { return *(space bool(*)[N])&v.x; } \
  template <int N> MSL_INLINE const space bool (&elements(const space bools<N>& v))[N] { return *(const space bool(*)[N])&v.x; }
MSL_X(device) MSL_X(threadgroup) MSL_X(thread)
#undef MSL_X
template <int N> MSL_INLINE constant bool (&elements(constant bools<N>& v))[N] { return *(constant bool(*)[N])&v.x; }
template <int... I, class B> MSL_INLINE bools<(int)sizeof...(I)> swizzle(B&& v) { return bools<(int)sizeof...(I)>(elements(v)[I]...); }
template <int... I, class B> MSL_INLINE void set_swizzle(B&& v, bools<(int)sizeof...(I)> values) {
  int next = 0;
  ((elements(v)[I] = values[next++]), ...);
}
}  // namespace msl
typedef msl::bools<2> bool2;
typedef msl::bools<3> bool3;
typedef msl::bools<4> bool4;
namespace metal {
using ::bool2;
using ::bool3;
using ::bool4;
// What the text pass makes of vec<bool, N>, and of vec<T, N> in a body, a member or an alias.
template <class, int N> using msl_bool_vec = msl::bools<N>;
template <class T, int N> using msl_vector = msl::vector<T, N>;
}  // namespace metal
