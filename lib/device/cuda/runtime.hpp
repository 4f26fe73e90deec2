// CUDA's runtime: no other file of the library includes its headers. HIP has the same functions, and names them hip... instead
// of cuda...: a port to AMD's GPUs needs a list of names here, and no change in the files that include this one
// (docs/extending-device.md).
#pragma once

#if defined(FSDP_GPU)
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif
