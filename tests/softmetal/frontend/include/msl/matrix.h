// <metal_matrix>: float2x2 to half4x4, C columns of R elements. As for array<>, the front end reads m[i] as m.msl_columns[i] wherever the
// matrix lies.
#pragma once
namespace metal {
template <class T, int C, int R> struct matrix {
  static_assert(msl::is_float_scalar<T>::value && !is_same<T, bfloat>::value, "the elements of a matrix are float or half");
  static_assert(C >= 2 && C <= 4 && R >= 2 && R <= 4, "a matrix has 2 to 4 columns and rows");
  vec<T, R> msl_columns[C];

  matrix() = default;
  // The value on the diagonal, 0 elsewhere.
  MSL_INLINE explicit matrix(T value) : msl_columns{} {
    for (int c = 0; c < (C < R ? C : R); ++c) msl_columns[c][c] = value;
  }
  // All columns, or all elements column by column.
  template <class A, class B, class... Rest> MSL_INLINE matrix(A first, B second, Rest... rest) {
    if constexpr (msl::is_vector<A>) {
      static_assert(2 + sizeof...(Rest) == C, "a matrix is made of as many columns as it has");
      const vec<T, R> all[] = {first, second, rest...};
      for (int c = 0; c < C; ++c) msl_columns[c] = all[c];
    } else {
      static_assert(2 + sizeof...(Rest) == C * R, "a matrix is made of as many elements as it has");
      const T all[] = {(T)first, (T)second, (T)rest...};
      for (int i = 0; i < C * R; ++i) msl_columns[i / R][i % R] = all[i];
    }
  }
  template <class U> MSL_INLINE explicit matrix(matrix<U, C, R> other) {
    for (int c = 0; c < C; ++c) msl_columns[c] = __builtin_convertvector(other.msl_columns[c], vec<T, R>);
  }
};

#define MSL_BY_COLUMN(op) \
  template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator op(matrix<T, C, R> a, matrix<T, C, R> b) { \
    for (int c = 0; c < C; ++c) a.msl_columns[c] = a.msl_columns[c] op b.msl_columns[c]; \
    return a; \
  } \
  template <class T, int C, int R> MSL_INLINE thread matrix<T, C, R>& operator op##=(thread matrix<T, C, R>& a, matrix<T, C, R> b) { return a = a op b; }
MSL_BY_COLUMN(+) MSL_BY_COLUMN(-)
#undef MSL_BY_COLUMN
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator-(matrix<T, C, R> a) { return matrix<T, C, R>(T(0)) - a; }
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(matrix<T, C, R> a, msl::same<T> s) {
  for (int c = 0; c < C; ++c) a.msl_columns[c] = a.msl_columns[c] * s;
  return a;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(msl::same<T> s, matrix<T, C, R> a) { return a * s; }
template <class T, int C, int R> MSL_INLINE vec<T, R> operator*(matrix<T, C, R> a, msl::same<vec<T, C>> v) {
  vec<T, R> sum = a.msl_columns[0] * v[0];
  for (int c = 1; c < C; ++c) sum = sum + a.msl_columns[c] * v[c];
  return sum;
}
template <class T, int C, int R> MSL_INLINE vec<T, C> operator*(msl::same<vec<T, R>> v, matrix<T, C, R> a) {
  vec<T, C> r;
  for (int c = 0; c < C; ++c) r[c] = dot(v, a.msl_columns[c]);
  return r;
}
template <class T, int C, int R, int K> MSL_INLINE matrix<T, C, R> operator*(matrix<T, K, R> a, matrix<T, C, K> b) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; ++c) r.msl_columns[c] = a * b.msl_columns[c];
  return r;
}
template <class T, int C, int R> MSL_INLINE thread matrix<T, C, R>& operator*=(thread matrix<T, C, R>& a, msl::same<T> s) { return a = a * s; }
template <class T, int N> MSL_INLINE thread matrix<T, N, N>& operator*=(thread matrix<T, N, N>& a, matrix<T, N, N> b) { return a = a * b; }
template <class T, int C, int R> MSL_INLINE bool operator==(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r)
      if (a.msl_columns[c][r] != b.msl_columns[c][r]) return false;
  return true;
}
template <class T, int C, int R> MSL_INLINE bool operator!=(matrix<T, C, R> a, matrix<T, C, R> b) { return !(a == b); }

template <class T, int C, int R> MSL_INLINE matrix<T, R, C> transpose(matrix<T, C, R> a) {
  matrix<T, R, C> r;
  for (int c = 0; c < C; ++c)
    for (int i = 0; i < R; ++i) r.msl_columns[i][c] = a.msl_columns[c][i];
  return r;
}
template <class T> MSL_INLINE T determinant(matrix<T, 2, 2> m) {
  return m.msl_columns[0][0] * m.msl_columns[1][1] - m.msl_columns[1][0] * m.msl_columns[0][1];
}
template <class T> MSL_INLINE T determinant(matrix<T, 3, 3> m) { return dot(m.msl_columns[0], cross(m.msl_columns[1], m.msl_columns[2])); }
template <class T> MSL_INLINE T determinant(matrix<T, 4, 4> m) {
  T sum = 0;
  for (int c = 0; c < 4; ++c) {  // along the first row
    matrix<T, 3, 3> rest;
    for (int k = 0, at = 0; k < 4; ++k)
      if (k != c) rest.msl_columns[at++] = m.msl_columns[k].yzw;
    sum = sum + (c % 2 ? -m.msl_columns[c][0] : m.msl_columns[c][0]) * determinant(rest);
  }
  return sum;
}
#define MSL_MATRICES(T, C) typedef matrix<T, C, 2> T##C##x2; typedef matrix<T, C, 3> T##C##x3; typedef matrix<T, C, 4> T##C##x4;
MSL_MATRICES(float, 2) MSL_MATRICES(float, 3) MSL_MATRICES(float, 4) MSL_MATRICES(half, 2) MSL_MATRICES(half, 3) MSL_MATRICES(half, 4)
#undef MSL_MATRICES
}  // namespace metal
