// <metal_simdgroup_matrix>: 8x8 matrices whose 64 elements lie two to a lane. The target says where.
#pragma once
namespace metal {
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix is 8x8");
  static_assert(msl::is_float_scalar<T>::value, "the elements of a simdgroup_matrix are float, half or bfloat");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  // The diagonal matrix of a value.
  MSL_INLINE explicit simdgroup_matrix(T value) {
    const uint row = msl::target::matrix_row(msl::target::lane()), column = msl::target::matrix_column(msl::target::lane());
    elements[0] = row == column ? value : (T)0.0f;
    elements[1] = row == column + 1 ? value : (T)0.0f;
  }
  MSL_INLINE vec<T, 2>& thread_elements() { return elements; }
  MSL_INLINE const vec<T, 2>& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns, int Rows = Columns> MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.elements = vec<T, 2>{value, value};
  return m;
}

#define MSL_MATRIX_OFFSETS \
  const uint row = msl::target::matrix_row(msl::target::lane()), column = msl::target::matrix_column(msl::target::lane()); \
  const ulong first = transposed ? (origin.y + column) * elements_per_row + origin.x + row : (origin.y + row) * elements_per_row + origin.x + column; \
  const ulong second = first + (transposed ? elements_per_row : 1)
#define MSL_MATRIX_LOAD(space) \
  template <class T> MSL_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& d, const space T* source, ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, bool transposed = false) { \
    MSL_MATRIX_OFFSETS; \
    d.elements = vec<T, 2>{source[first], source[second]}; \
  }
#define MSL_MATRIX_STORE(space) \
  template <class T> MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> a, space T* destination, ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, bool transposed = false) { \
    MSL_MATRIX_OFFSETS; \
    destination[first] = a.elements[0]; \
    destination[second] = a.elements[1]; \
  }
MSL_MATRIX_LOAD(device) MSL_MATRIX_LOAD(threadgroup) MSL_MATRIX_STORE(device) MSL_MATRIX_STORE(threadgroup)
#undef MSL_MATRIX_LOAD
#undef MSL_MATRIX_STORE
#undef MSL_MATRIX_OFFSETS

// d = a * b + c, with products and sums in float.
template <class D, class A, class B, class C>
MSL_COLLECTIVE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_LINE) {
  const vec<float, 2> product = msl::target::matrix_product(a.elements, b.elements, vec<float, 2>{(float)c.elements[0], (float)c.elements[1]}, line);
  d.elements = vec<D, 2>{(D)product[0], (D)product[1]};
}
template <class D, class A, class B> MSL_COLLECTIVE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, MSL_LINE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), line);
}
template <class T> MSL_COLLECTIVE simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b, 0);
  return d;
}
}  // namespace metal
