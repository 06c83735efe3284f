// The metal:: library of the software device: one set of headers. What depends on the target (how a barrier is reached, how
// lanes exchange values, which functions compute exp) stands in one small file for each target.
#pragma once
#include "msl/types.h"
#include "msl/traits.h"
#include "msl/bools.h"
#include "msl/limits.h"
#include "msl/convert.h"
#include "msl/packed.h"
#include "msl/array.h"
#include "msl/uniform.h"
#ifdef __NVPTX__
#include "msl/target_nvptx.h"
#else
#include "msl/target_cpu.h"
#endif
#include "msl/copies.h"
#include "msl/math.h"
#include "msl/matrix.h"
#include "msl/integer.h"
#include "msl/relational.h"
#include "msl/synchronization.h"
#include "msl/simdgroup.h"
#include "msl/simdgroup_matrix.h"
#include "msl/atomic.h"
#include "msl/builtins.h"
#include "msl/entry.h"
