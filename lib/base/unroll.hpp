// Unrolls the loop behind it, by whichever compiler.
#pragma once

#if defined(__CUDACC__)
#define FSDP_UNROLL _Pragma("unroll")
#else
#define FSDP_UNROLL _Pragma("GCC unroll 16")  // else a loop around this one does not become vector code
#endif
