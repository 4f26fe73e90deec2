#include "kernels/cuda/row_functions.hpp"

#include "kernels/rows/bodies.hpp"
#include "kernels/rows/cuda.hpp"
#include "kernels/rows/tape.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
cudaError_t run(cudaStream_t stream, const void* body, std::size_t rows) {
  return run_rows_cuda(stream, *static_cast<const Body*>(body), rows);
}

}  // namespace

std::unordered_map<std::type_index, CudaRowFunction> cuda_row_functions() {
  std::unordered_map<std::type_index, CudaRowFunction> functions;
#define FSDP_ADD(...) functions.emplace(typeid(__VA_ARGS__), run<__VA_ARGS__>);
  FSDP_ROW_BODIES(FSDP_ADD)
  FSDP_ELEMENT_UPDATES(FSDP_ADD)
  FSDP_TAPE_BODIES(FSDP_ADD)
  FSDP_ADD(TapeTiles)
  return functions;
}

}  // namespace fsdp::kernels
