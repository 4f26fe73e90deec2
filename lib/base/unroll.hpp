// FSDP_UNROLL unrolls the loop that follows it, with nvcc or GCC.
#pragma once

#if defined(__CUDACC__)
#define FSDP_UNROLL _Pragma("unroll")
#else
#define FSDP_UNROLL _Pragma("GCC unroll 16")  // without it, GCC does not vectorize the loop around this one
#endif
