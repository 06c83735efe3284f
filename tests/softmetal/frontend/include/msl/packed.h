// packed_float3 and its kin: N elements without padding, aligned as one element. They convert to and from vec<T, N>.
#pragma once
namespace msl {
template <class T, int N> struct packed_members;
template <class T> struct packed_members<T, 2> { T x, y; };
template <class T> struct packed_members<T, 3> { T x, y, z; };
template <class T> struct packed_members<T, 4> { T x, y, z, w; };
}
namespace metal {
template <class T, int N> struct packed_vec;
}
