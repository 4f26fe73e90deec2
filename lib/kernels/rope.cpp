// Launches the rotation of queries and keys (rotary positions).
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void rope(Stream& stream, E* x, std::size_t B, std::size_t T, std::size_t heads, std::size_t D, std::size_t rotated,
          std::size_t stride, const float* cos_sin, std::size_t table_stride, bool inverse, const std::int32_t* positions) {
  expect(rotated % 2 == 0 && rotated <= D && heads * D <= stride,
         "rope: the heads must fit into the rows, and an even number of elements is rotated");
  launch(stream, RopeBody<E>{x, cos_sin, table_stride, T, heads, D, rotated, stride, inverse ? -1.0f : 1.0f, positions}, B * T);
}

#define FSDP_INSTANTIATE(E)                                                                                                   \
  template void rope(Stream&, E*, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, const float*, \
                     std::size_t, bool, const std::int32_t*);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
