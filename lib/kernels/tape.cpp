// Launches the steps of recorded layers and losses.
#include "kernels/tape.hpp"

#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void run_tape(Stream& stream, const TapeRun& run) {
  expect(stream.kernels() == nullptr, "recorded layers run on CPUs");
  at_cpu_level(
      [&]<int level>() { run_attention<level>(TapeTiles{run}, TapeRun::parts_of(run.rows), run.tiles, run.tile_floats); });
}

template <class E>
void finish_sums(Stream& stream, E* out, const float* sums, std::size_t parts, std::size_t stride, std::size_t n, Write write) {
  using Body = FinishSums<E>;
  launch(stream, Body{out, sums, parts, stride, n, write == Write::add}, (n + Body::block - 1) / Body::block);
}
template <class E>
void transpose_matrix(Stream& stream, E* out, const E* in, std::size_t R, std::size_t C, Write write) {
  using Body = TransposeMatrix<E>;
  launch(stream, Body{out, in, R, C, write == Write::add}, (C + Body::block - 1) / Body::block);
}
template <class E>
void gather_rows(Stream& stream, E* out, const E* table, const TapeRows& rows) {
  launch(stream, GatherRows<E>{out, table, rows}, rows.R);
}
template <class D, class E>
void scatter_rows(Stream& stream, D* d_table, const E* d, const TapeRows& rows) {
  using Body = ScatterRows<D, E>;
  launch(stream, Body{d_table, d, rows}, (rows.C + Body::block - 1) / Body::block);
}

#define FSDP_INSTANTIATE(E)                                                                           \
  template void finish_sums(Stream&, E*, const float*, std::size_t, std::size_t, std::size_t, Write); \
  template void transpose_matrix(Stream&, E*, const E*, std::size_t, std::size_t, Write);             \
  template void gather_rows(Stream&, E*, const E*, const TapeRows&);                                  \
  template void scatter_rows(Stream&, float*, const E*, const TapeRows&);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)
template void scatter_rows(Stream&, bf16*, const bf16*, const TapeRows&);
template void scatter_rows(Stream&, f16*, const f16*, const TapeRows&);

}  // namespace fsdp::kernels
