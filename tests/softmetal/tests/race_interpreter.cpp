// A kernel that runs a little program a thread: what test_checks_races.py compares the checks with its model on.
// Operations are pairs (op, place) of int32; the threads of a barrier column all have the same operation there.
#include "softmetal_abi.h"

static unsigned char shared_bytes[256] __attribute__((aligned(256)));

typedef unsigned vector4 __attribute__((ext_vector_type(4)));

template <class T>
static unsigned load(const unsigned char* p) {
  return static_cast<unsigned>(*reinterpret_cast<const T*>(p));
}
template <class T>
static void store(unsigned char* p, unsigned v) {
  *reinterpret_cast<T*>(p) = static_cast<T>(v);
}

extern "C" void interpret(void* const* buffers, const msl_thread* thread) {
  const int* program = static_cast<const int*>(buffers[0]);
  unsigned char* device = static_cast<unsigned char*>(buffers[1]);
  unsigned* result = static_cast<unsigned*>(buffers[2]);
  const int steps = *static_cast<const int*>(buffers[3]);
  msl_rt_threadgroup_variable(shared_bytes, 64, "shared");
  const unsigned index = thread->thread_index_in_threadgroup;
  if (index < 64) shared_bytes[index] = 0;
  msl_rt_threadgroup_barrier(2, 1);
  unsigned sum = 0;
  volatile unsigned long unknown = 5;
  const unsigned long five = unknown;
  for (int step = 0; step < steps; ++step) {
    const int* now = program + (thread->thread_position_in_grid[0] * steps + step) * 2;
    const int op = now[0];
    unsigned char* p = (op & 16 ? shared_bytes : device) + now[1];
    switch (op & 15) {
      case 1: sum += load<unsigned char>(p); break;
      case 2: store<unsigned char>(p, 1); break;
      case 3: sum += load<unsigned short>(p); break;
      case 4: store<unsigned short>(p, 1); break;
      case 5: sum += load<unsigned>(p); break;
      case 6: store<unsigned>(p, 1); break;
      case 7:
        msl_rt_atomic(p, 4, 3, 2);
        break;
      case 8: msl_rt_threadgroup_barrier(static_cast<uint32_t>(now[1]), 3); break;
      case 9: msl_rt_simdgroup_barrier(static_cast<uint32_t>(now[1]), 4); break;
      case 10: {
        const vector4 v = *reinterpret_cast<const vector4*>(p);
        sum += v.x + v.y + v.z + v.w;  // all of it, or the compiler loads less
        break;
      }
      case 11: *reinterpret_cast<vector4*>(p) = 1; break;
      case 12: {  // of a size that the compiler does not know: memcpy's and memset's own call-outs
        unsigned char local[8] = {0};
        __builtin_memcpy(local, p, five);
        sum += local[0];
        break;
      }
      case 13: __builtin_memset(p, 1, five); break;
      case 14:
        msl_rt_atomic(p, 4, 1, 5);
        break;
      default: break;
    }
  }
  result[thread->thread_position_in_grid[0]] = sum;
}
