// <metal_simdgroup> and <metal_quadgroup>: collectives of the lanes that are active together. Scalars and vectors of integers (up to 32
// bits) and of float and half, as in Metal; no bool, no 64-bit integers, no bfloat.
#pragma once
namespace msl {
template <class T> struct lane_type {
  typedef element_t<T> E;
  static constexpr bool value = (is_integer_scalar<E>::value && !metal::is_same<E, bool>::value && sizeof(E) <= 4) ||
                                metal::is_same<E, float>::value || metal::is_same<E, half>::value;
};
template <class T> using if_lane_type = metal::enable_if_t<lane_type<T>::value>;
template <class T> using if_lane_integer = metal::enable_if_t<lane_type<T>::value && is_integer_scalar<element_t<T>>::value>;
struct sum { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a + b); } };
struct product { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a * b); } };
struct least { template <class T> static MSL_INLINE T apply(T a, T b) { return metal::min(a, b); } };
struct greatest { template <class T> static MSL_INLINE T apply(T a, T b) { return metal::max(a, b); } };
struct bit_and { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a & b); } };
struct bit_or { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a | b); } };
struct bit_xor { template <class T> static MSL_INLINE T apply(T a, T b) { return (T)(a ^ b); } };
}  // namespace msl
namespace metal {
#define MSL_LINE int line = __builtin_LINE()
#define MSL_COLLECTIVE __attribute__((convergent)) MSL_INLINE
#define MSL_REDUCE(name, operation, code, condition) \
  template <class T, class = msl::condition<T>> MSL_COLLECTIVE T simd_##name(T value, MSL_LINE) { return msl::target::reduce<msl::operation>(code, value, 0, 32, line); } \
  template <class T, class = msl::condition<T>> MSL_COLLECTIVE T quad_##name(T value, MSL_LINE) { return msl::target::reduce<msl::operation>(MSL_QUAD, value, msl::target::lane() & ~3u, 4, line); }
MSL_REDUCE(sum, sum, MSL_SIMD_SUM, if_lane_type) MSL_REDUCE(product, product, MSL_SIMD_PRODUCT, if_lane_type)
MSL_REDUCE(min, least, MSL_SIMD_MIN, if_lane_type) MSL_REDUCE(max, greatest, MSL_SIMD_MAX, if_lane_type)
MSL_REDUCE(and, bit_and, MSL_SIMD_AND, if_lane_integer) MSL_REDUCE(or, bit_or, MSL_SIMD_OR, if_lane_integer)
MSL_REDUCE(xor, bit_xor, MSL_SIMD_XOR, if_lane_integer)
#undef MSL_REDUCE

#define MSL_LANE_FUNCTION template <class T, class = msl::if_lane_type<T>> MSL_COLLECTIVE T
MSL_LANE_FUNCTION simd_shuffle(T value, ushort lane, MSL_LINE) { return msl::target::read_lane(MSL_SIMD_SHUFFLE, value, lane, line); }
MSL_LANE_FUNCTION simd_broadcast(T value, ushort lane, MSL_LINE) { return msl::target::read_lane(MSL_SIMD_BROADCAST, value, lane, line); }
MSL_LANE_FUNCTION simd_broadcast_first(T value, MSL_LINE) { return msl::target::read_first(MSL_SIMD_BROADCAST, value, line); }
MSL_LANE_FUNCTION simd_shuffle_xor(T value, ushort mask, MSL_LINE) { return msl::target::read_lane(MSL_SIMD_SHUFFLE_XOR, value, msl::target::lane() ^ mask, line); }
// Lanes that would read past an end of the SIMD-group keep their own value (undefined in Metal).
MSL_LANE_FUNCTION simd_shuffle_up(T value, ushort delta, MSL_LINE) { return msl::target::read_lane_or(MSL_SIMD_SHUFFLE_UP, value, (int)msl::target::lane() - delta, 0, 32, value, line); }
MSL_LANE_FUNCTION simd_shuffle_down(T value, ushort delta, MSL_LINE) { return msl::target::read_lane_or(MSL_SIMD_SHUFFLE_DOWN, value, (int)msl::target::lane() + delta, 0, 32, value, line); }
MSL_LANE_FUNCTION simd_shuffle_rotate_up(T value, ushort delta, MSL_LINE) { return msl::target::read_lane(MSL_SIMD_SHUFFLE_UP, value, (msl::target::lane() - delta) & 31, line); }
MSL_LANE_FUNCTION simd_shuffle_rotate_down(T value, ushort delta, MSL_LINE) { return msl::target::read_lane(MSL_SIMD_SHUFFLE_DOWN, value, (msl::target::lane() + delta) & 31, line); }
// Lanes past an end of their `modulo` neighbours (2 to 32, a power of two) take the filling's, from its other end.
MSL_LANE_FUNCTION simd_shuffle_and_fill_up(T value, T filling, ushort delta, ushort modulo = 32, MSL_LINE) {
  const int lane = (int)msl::target::lane(), first = lane & ~(modulo - 1), source = lane - delta;
  const T filled = msl::target::read_lane(MSL_SIMD_SHUFFLE_UP, filling, (uint)(first | (source & (modulo - 1))), line);
  return msl::target::read_lane_or(MSL_SIMD_SHUFFLE_UP, value, source, first, first + modulo, filled, line);
}
MSL_LANE_FUNCTION simd_shuffle_and_fill_down(T value, T filling, ushort delta, ushort modulo = 32, MSL_LINE) {
  const int lane = (int)msl::target::lane(), first = lane & ~(modulo - 1), source = lane + delta;
  const T filled = msl::target::read_lane(MSL_SIMD_SHUFFLE_DOWN, filling, (uint)(first | (source & (modulo - 1))), line);
  return msl::target::read_lane_or(MSL_SIMD_SHUFFLE_DOWN, value, source, first, first + modulo, filled, line);
}
MSL_LANE_FUNCTION simd_prefix_inclusive_sum(T value, MSL_LINE) { return msl::target::prefix<msl::sum>(value, (T)0, msl::target::lane(), true, line); }
MSL_LANE_FUNCTION simd_prefix_exclusive_sum(T value, MSL_LINE) { return msl::target::prefix<msl::sum>(value, (T)0, msl::target::lane(), false, line); }
MSL_LANE_FUNCTION simd_prefix_inclusive_product(T value, MSL_LINE) { return msl::target::prefix<msl::product>(value, (T)1, msl::target::lane(), true, line); }
MSL_LANE_FUNCTION simd_prefix_exclusive_product(T value, MSL_LINE) { return msl::target::prefix<msl::product>(value, (T)1, msl::target::lane(), false, line); }

// A quad is four neighbouring lanes; its lanes are numbered 0 to 3.
MSL_LANE_FUNCTION quad_broadcast(T value, ushort lane, MSL_LINE) { return msl::target::read_lane(MSL_QUAD, value, (msl::target::lane() & ~3u) + lane, line); }
MSL_LANE_FUNCTION quad_shuffle(T value, ushort lane, MSL_LINE) { return quad_broadcast(value, lane, line); }
MSL_LANE_FUNCTION quad_shuffle_xor(T value, ushort mask, MSL_LINE) { return msl::target::read_lane(MSL_QUAD, value, msl::target::lane() ^ (mask & 3u), line); }
MSL_LANE_FUNCTION quad_shuffle_up(T value, ushort delta, MSL_LINE) {
  const int lane = (int)msl::target::lane(), first = lane & ~3;
  return msl::target::read_lane_or(MSL_QUAD, value, lane - delta, first, first + 4, value, line);
}
MSL_LANE_FUNCTION quad_shuffle_down(T value, ushort delta, MSL_LINE) {
  const int lane = (int)msl::target::lane(), first = lane & ~3;
  return msl::target::read_lane_or(MSL_QUAD, value, lane + delta, first, first + 4, value, line);
}
#undef MSL_LANE_FUNCTION

// The result of a vote: a bit for each lane.
class simd_vote {
 public:
  typedef ulong vote_t;
  MSL_INLINE explicit constexpr simd_vote(vote_t votes = 0) : votes_(votes) {}
  MSL_INLINE explicit constexpr operator vote_t() const { return votes_; }
  MSL_INLINE bool all() const { return (uint)votes_ == 0xffffffffu; }
  MSL_INLINE bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};
MSL_COLLECTIVE simd_vote simd_active_threads_mask(MSL_LINE) { return simd_vote(msl::target::active(line)); }
MSL_COLLECTIVE simd_vote simd_ballot(bool vote, MSL_LINE) { return simd_vote(msl::target::ballot(vote, line)); }
MSL_COLLECTIVE bool simd_any(bool vote, MSL_LINE) { return msl::target::ballot(vote, line) != 0; }
MSL_COLLECTIVE bool simd_all(bool vote, MSL_LINE) { return msl::target::ballot(!vote, line) == 0; }
MSL_COLLECTIVE bool simd_is_first(MSL_LINE) { return (uint)__builtin_ctz(msl::target::active(line)) == msl::target::lane(); }
}  // namespace metal
