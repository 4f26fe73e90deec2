// Collectives of GPUs by NCCL, with one GPU per rank. This interface needs no header of NCCL. The implementation
// (nccl_groups.cpp) is in libfsdp_cuda if that was built with NCCL; libfsdp finds it there.
#pragma once

#include "comm/backend.hpp"

namespace fsdp {

extern const DeviceBackend nccl_device_backend;
extern const Backend nccl_backend;

/// The type and the name of the function of libfsdp_cuda that returns its DeviceLibrary.
using NcclLibraryEntry = const DeviceLibrary* (*)();
inline constexpr const char* nccl_library_entry = "fsdp_nccl_library";

}  // namespace fsdp
