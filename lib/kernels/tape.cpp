// Launches the steps of recorded layers and losses.
#include "kernels/tape.hpp"

#include "device/cpu/processor.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/rows/tape.hpp"
#include "kernels/tape_launch.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
void launch_tape(Stream& stream, const Body& body, std::size_t rows) {
  if (const DeviceKernels* device = stream.kernels()) return device->rows(stream, typeid(Body), &body, rows);
  at_cpu_level([&]<int level>() { run_tape_rows<level>(body, rows); });
}

}  // namespace

void run_tape(Stream& stream, const TapeRun& run) {
  if (const DeviceKernels* device = stream.kernels()) {
    TapeTiles body{run};
    stream.copy(run.steps_on_gpu, run.steps, run.count * sizeof(TapeStep));
    body.run.steps = run.steps_on_gpu;
    return device->rows(stream, typeid(TapeTiles), &body, run.parts);
  }
  at_cpu_level([&]<int level>() { run_tape_tiles<level>(run); });
}

template <class E>
void finish_sums(Stream& stream, E* out, const float* sums, std::size_t parts, std::size_t stride, std::size_t n, Write write) {
  using Body = FinishSums<E>;
  launch_tape(stream, Body{out, sums, parts, stride, n, write == Write::add}, (n + Body::block - 1) / Body::block);
}
template <class E>
void transpose_matrix(Stream& stream, E* out, const E* in, std::size_t R, std::size_t C, Write write) {
  using Body = TransposeMatrix<E>;
  launch_tape(stream, Body{out, in, R, C, write == Write::add}, (C + Body::block - 1) / Body::block);
}
template <class E>
void gather_rows(Stream& stream, E* out, const E* table, const TapeRows& rows) {
  launch_tape(stream, GatherRows<E>{out, table, rows}, rows.R);
}
template <class D, class E>
void scatter_rows(Stream& stream, D* d_table, const E* d, const TapeRows& rows) {
  using Body = ScatterRows<D, E>;
  launch_tape(stream, Body{d_table, d, rows}, (rows.C + Body::block - 1) / Body::block);
}

#define FSDP_INSTANTIATE(E)                                                                           \
  template void finish_sums(Stream&, E*, const float*, std::size_t, std::size_t, std::size_t, Write); \
  template void transpose_matrix(Stream&, E*, const E*, std::size_t, std::size_t, Write);             \
  template void gather_rows(Stream&, E*, const E*, const TapeRows&);                                  \
  template void scatter_rows(Stream&, float*, const E*, const TapeRows&);
FSDP_INSTANTIATE(float)
FSDP_INSTANTIATE(bf16)
FSDP_INSTANTIATE(f16)
template void scatter_rows(Stream&, bf16*, const bf16*, const TapeRows&);
template void scatter_rows(Stream&, f16*, const f16*, const TapeRows&);

}  // namespace fsdp::kernels
