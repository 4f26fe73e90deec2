// libfsdp_cudnn contains the code that needs cuDNN. libfsdp_cuda loads it when cuDNN is asked for, so that the
// same libfsdp_cuda runs on machines without cuDNN.
#pragma once

#include <memory>
#include <string>

#include "device/cuda/runtime.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// Causal attention by cuDNN on the current device.
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  /// The version of cuDNN that is loaded, such as "9.26.0".
  virtual std::string version() const = 0;
  /// Builds the plan of a pass. `shape` may have only a part of the heads: then `heads` is the number of query heads of the
  /// tensors. Rows of out are heads * D elements apart, and sequences of lse are heads * T apart. Throws UserError if cuDNN
  /// does not take the shape, or needs more workspace than is planned.
  virtual void prepare(DType type, const AttentionShape& shape, std::size_t heads, bool backward) = 0;
  /// Computes all heads. call.scratch has cudnn_forward_workspace bytes.
  virtual void forward(cudaStream_t stream, const AttentionForwardCall& call) = 0;
  /// Computes call.shape.H of `heads` query heads. The pointers are those of the first head to compute. call.scratch has
  /// cudnn_workspace(call.shape) bytes.
  virtual void backward(cudaStream_t stream, const AttentionBackwardCall& call, std::size_t heads) = 0;
};

/// The functions of libfsdp_cudnn.
struct CudnnLibrary {
  const char* version;  // of fsdp: libfsdp_cuda must have the same version, because the two share types
  std::unique_ptr<CudnnAttention> (*make)();
};

/// Loads libfsdp_cudnn from the file that the environment variable FSDP_CUDNN_LIBRARY names, or else from the folder of
/// libfsdp_cuda. The library stays loaded. Throws UserError.
std::unique_ptr<CudnnAttention> load_cudnn_library();

/// The type and the name of the entry function.
using CudnnLibraryEntry = const CudnnLibrary* (*)();
inline constexpr const char* cudnn_library_entry = "fsdp_cudnn_library";

}  // namespace fsdp::kernels
