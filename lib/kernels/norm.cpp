// Launches layer norm and RMS norm, and the sums over rows that the gradients of norms and biases need.
#include <algorithm>
#include <bit>

#include "device/traits.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/layers.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

/// The number of partitions into which sums over R rows are divided.
std::size_t partitions_of(Stream& stream, std::size_t R) {
  const Grain grain = grain_of(stream.kind());
  return std::clamp<std::size_t>(R / grain.partition_rows, 1, grain.partitions);
}

void finish(Stream& stream, float* out, const float* scratch, std::size_t C, std::size_t stride, std::size_t partitions,
            Write write) {
  const Grain grain = grain_of(stream.kind());
  const std::size_t block = std::clamp(std::bit_floor(C / grain.rows), grain.least_columns, grain.most_columns);
  launch(stream, ColumnFinish{out, scratch, C, block, stride, partitions, write == Write::add}, (C + block - 1) / block);
}

}  // namespace

std::size_t column_sum_scratch(std::size_t C, const DeviceTraits& device) { return 2 * grain_of(device.kind).partitions * C; }

template <class E>
void layer_norm_forward(Stream& stream, E* y, float* stats, const E* x, const E* gain, const E* bias, std::size_t R,
                        std::size_t C, float eps) {
  launch(stream, LayerNormForward<E>{y, stats, x, gain, bias, C, eps}, R);
}

template <class E>
void layer_norm_backward(Stream& stream, E* dx, Write write_dx, float* d_gain, float* d_bias, Write write_parameters,
                         const E* dy, const E* x, const float* stats, const E* gain, std::size_t R, std::size_t C,
                         float* scratch) {
  const std::size_t partitions = partitions_of(stream, R);
  launch(stream, LayerNormBackward<E>{dx, scratch, dy, x, stats, gain, R, C, partitions, write_dx == Write::add}, partitions);
  finish(stream, d_gain, scratch, C, 2 * C, partitions, write_parameters);
  finish(stream, d_bias, scratch + C, C, 2 * C, partitions, write_parameters);
}

template <class E>
void rms_norm_forward(Stream& stream, E* y, float* stats, const E* x, const E* gain, std::size_t R, std::size_t C, float eps,
                      float offset) {
  launch(stream, RmsNormForward<E>{y, stats, x, gain, C, eps, offset}, R);
}

template <class E>
void rms_norm_backward(Stream& stream, E* dx, Write write_dx, float* d_gain, Write write_parameters, const E* dy, const E* x,
                       const float* stats, const E* gain, std::size_t R, std::size_t C, float* scratch, float offset) {
  const std::size_t partitions = partitions_of(stream, R);
  launch(stream, RmsNormBackward<E>{dx, scratch, dy, x, stats, gain, R, C, partitions, write_dx == Write::add, offset},
         partitions);
  finish(stream, d_gain, scratch, C, C, partitions, write_parameters);
}

template <class E>
void head_norm_forward(Stream& stream, E* x, E* before, float* stats, const E* gain, std::size_t R, std::size_t heads,
                       std::size_t D, std::size_t stride, float eps, float offset) {
  launch(stream, HeadNormForward<E>{x, before, stats, gain, heads, D, stride, eps, offset}, R * heads);
}

template <class E>
void head_norm_backward(Stream& stream, E* dx, float* d_gain, Write write_gain, const E* before, const float* stats,
                        const E* gain, std::size_t R, std::size_t heads, std::size_t D, std::size_t stride, float* scratch,
                        float offset) {
  const std::size_t partitions = partitions_of(stream, R * heads);
  launch(stream, HeadNormBackward<E>{dx, scratch, before, stats, gain, R, heads, D, stride, partitions, offset}, partitions);
  finish(stream, d_gain, scratch, D, D, partitions, write_gain);
}

template <class E>
void bias_backward(Stream& stream, float* d_bias, const E* dy, std::size_t R, std::size_t C, std::size_t stride, Write write,
                   float* scratch) {
  const std::size_t partitions = partitions_of(stream, R);
  launch(stream, ColumnSum<E>{scratch, dy, R, C, stride, partitions}, partitions);
  finish(stream, d_bias, scratch, C, C, partitions, write);
}

template <class E>
void column_moments(Stream& stream, float* moments, const E* x, std::size_t R, std::size_t C, float* scratch) {
  const std::size_t partitions = partitions_of(stream, R);
  bias_backward(stream, moments, x, R, C, C, Write::overwrite, scratch);
  launch(stream, CenteredSquares<E>{scratch, x, moments, R, C, partitions}, partitions);
  finish(stream, moments + C, scratch, C, C, partitions, Write::overwrite);
}

void join_moments(Stream& stream, float* stats, float* mean, float* variance, const float* moments, std::size_t ranks,
                  std::size_t R, std::size_t C, float eps) {
  constexpr std::size_t block = 256;
  launch(stream, JoinMoments{stats, mean, variance, moments, ranks, R, C, block, eps}, (C + block - 1) / block);
}

template <class E>
void batch_norm_forward(Stream& stream, E* y, const E* x, const float* stats, const E* gain, const E* bias, std::size_t R,
                        std::size_t C) {
  launch(stream, BatchNormForward<E>{y, x, stats, gain, bias, C}, R);
}

template <class E>
void batch_norm_sums(Stream& stream, float* sums, const E* dy, const E* x, const float* stats, std::size_t R, std::size_t C,
                     float* scratch) {
  const std::size_t partitions = partitions_of(stream, R);
  launch(stream, BatchNormSums<E>{scratch, dy, x, stats, R, C, partitions}, partitions);
  finish(stream, sums, scratch, C, 2 * C, partitions, Write::overwrite);
  finish(stream, sums + C, scratch + C, C, 2 * C, partitions, Write::overwrite);
}

void join_sums(Stream& stream, float* out, const float* sums, std::size_t ranks, std::size_t C) {
  finish(stream, out, sums, 2 * C, 2 * C, ranks, Write::overwrite);
}

template <class E>
void batch_norm_backward(Stream& stream, E* dx, const E* dy, const E* x, const float* stats, const E* gain, const float* sums,
                         std::size_t count, std::size_t R, std::size_t C) {
  const float share = count > 0 ? 1 / static_cast<float>(count) : 0;
  launch(stream, BatchNormBackward<E>{dx, dy, x, stats, count > 0 ? sums : stats, gain, C, share}, R);
}

#define FSDP_INSTANTIATE(E)                                                                                                   \
  template void layer_norm_forward(Stream&, E*, float*, const E*, const E*, const E*, std::size_t, std::size_t, float);       \
  template void layer_norm_backward(Stream&, E*, Write, float*, float*, Write, const E*, const E*, const float*, const E*,    \
                                    std::size_t, std::size_t, float*);                                                        \
  template void rms_norm_forward(Stream&, E*, float*, const E*, const E*, std::size_t, std::size_t, float, float);            \
  template void rms_norm_backward(Stream&, E*, Write, float*, Write, const E*, const E*, const float*, const E*, std::size_t, \
                                  std::size_t, float*, float);                                                                \
  template void head_norm_forward(Stream&, E*, E*, float*, const E*, std::size_t, std::size_t, std::size_t, std::size_t,      \
                                  float, float);                                                                              \
  template void head_norm_backward(Stream&, E*, float*, Write, const E*, const float*, const E*, std::size_t, std::size_t,    \
                                   std::size_t, std::size_t, float*, float);                                                  \
  template void bias_backward(Stream&, float*, const E*, std::size_t, std::size_t, std::size_t, Write, float*);               \
  template void column_moments(Stream&, float*, const E*, std::size_t, std::size_t, float*);                                  \
  template void batch_norm_forward(Stream&, E*, const E*, const float*, const E*, const E*, std::size_t, std::size_t);        \
  template void batch_norm_sums(Stream&, float*, const E*, const E*, const float*, std::size_t, std::size_t, float*);         \
  template void batch_norm_backward(Stream&, E*, const E*, const E*, const float*, const E*, const float*, std::size_t,       \
                                    std::size_t, std::size_t);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
