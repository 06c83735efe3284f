// The types are in msl/types.h; this stands in for the C library that compiled kernels do not have.
#pragma once
