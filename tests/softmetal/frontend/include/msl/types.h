// Address spaces, scalars and vectors. Vectors are clang's: loads, stores, swizzles and arithmetic are the compiler's own. (Those of
// bool are in bools.h.)
#pragma once
#define device __attribute__((address_space(1)))
#define threadgroup __attribute__((address_space(3)))
#define constant const __attribute__((address_space(4)))
#define thread
#define METAL_FUNC inline __attribute__((__always_inline__))
#define MSL_INLINE inline __attribute__((__always_inline__))

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

namespace metal {
using ::bfloat;
using ::half;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::ptrdiff_t;
using ::size_t;
using ::uchar;
using ::uint;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::ulong;
using ::ushort;
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}  // namespace metal

#define MSL_FOR_EACH_SCALAR(X) X(bool) MSL_FOR_EACH_NUMBER(X)
#define MSL_FOR_EACH_NUMBER(X) \
  X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(bfloat) X(float)
#define MSL_FOR_EACH_INTEGER(X) X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong)

#define MSL_VECTORS(T) typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4; \
  namespace metal { using ::T##2; using ::T##3; using ::T##4; }
MSL_FOR_EACH_NUMBER(MSL_VECTORS)
#undef MSL_VECTORS
