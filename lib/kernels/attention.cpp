// Causal attention on the CPU: per sequence and head, in blocks of query rows. A block's scores against all keys up to its own last
// one are one small GEMM; keys after that are never touched. The backward pass makes the probabilities anew from the row
// sums that the forward pass kept (Dao, "FlashAttention-2", 2023, section 3.1), with D_i = sum(dO_i * O_i).
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "base/timer.hpp"
#include "kernels/gemm.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

constexpr std::size_t block = 64;  // query rows at a time

/// One thread's part of the scratch: two blocks of scores and a value per row.
std::size_t scratch_per_thread(const AttentionShape& shape) { return 2 * block * shape.T + block; }

void check(const AttentionShape& shape) { expect(shape.K > 0 && shape.H % shape.K == 0, "query heads must be a multiple of key heads"); }

}  // namespace

std::size_t attention_scratch(const AttentionShape& shape) {
  return static_cast<std::size_t>(omp_get_max_threads()) * scratch_per_thread(shape);
}

void attention_forward(Stream& stream, float* out, float* lse, const float* q, const float* k, const float* v, const AttentionShape& shape,
                       float* scratch) {
  const AddTime timed(stream.times.attention);
  check(shape);
  const auto [B, T, H, K, D, q_stride, kv_stride] = shape;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
#pragma omp parallel for schedule(static) collapse(2)
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t h = 0; h < H; ++h) {
      float* scores = scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_per_thread(shape);
      const float* queries = q + b * T * q_stride + h * D;
      const std::size_t kv_offset = b * T * kv_stride + h / (H / K) * D;
      for (std::size_t first = 0; first < T; first += block) {
        const std::size_t rows = std::min(block, T - first), keys = first + rows;
        untimed_gemm(Trans::no, Trans::yes, rows, keys, D, queries + first * q_stride, q_stride, k + kv_offset, kv_stride, scores, keys,
             Write::overwrite);
        launch(stream, SoftmaxForward{scores, lse + (b * H + h) * T + first, first, keys, keys, scale}, rows);
        untimed_gemm(Trans::no, Trans::no, rows, D, keys, scores, keys, v + kv_offset, kv_stride, out + ((b * T + first) * H + h) * D,
             H * D, Write::overwrite);
      }
    }
}

void attention_backward(Stream& stream, float* dq, float* dk, float* dv, const float* d_out, const float* out, const float* lse,
                        const float* q, const float* k, const float* v, const AttentionShape& shape, float* scratch) {
  const AddTime timed(stream.times.attention);
  check(shape);
  const auto [B, T, H, K, D, q_stride, kv_stride] = shape;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  // One thread does all query heads of a key head, in order: dk and dv have one writer and one order of sums.
#pragma omp parallel for schedule(static) collapse(2)
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t kv = 0; kv < K; ++kv) {
      float* probabilities = scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_per_thread(shape);
      float* d_scores = probabilities + block * T;
      float* delta = d_scores + block * T;
      const std::size_t kv_offset = b * T * kv_stride + kv * D;
      Write write = Write::overwrite;
      for (std::size_t h = kv * (H / K); h < (kv + 1) * (H / K); ++h)
        // From the last block, whose keys are all T, so that the first contribution writes every row of dk and dv.
        for (std::size_t end = T; end > 0;) {
          const std::size_t first = (end - 1) / block * block, rows = end - first, keys = end;
          const std::size_t q_offset = (b * T + first) * q_stride + h * D, out_offset = ((b * T + first) * H + h) * D;
          launch(stream, RowDot{delta, d_out + out_offset, out + out_offset, D, H * D}, rows);
          untimed_gemm(Trans::no, Trans::yes, rows, keys, D, q + q_offset, q_stride, k + kv_offset, kv_stride, probabilities, keys,
               Write::overwrite);
          launch(stream, SoftmaxRecompute{probabilities, lse + (b * H + h) * T + first, first, keys, keys, scale}, rows);
          untimed_gemm(Trans::yes, Trans::no, keys, D, rows, probabilities, keys, d_out + out_offset, H * D, dv + kv_offset, kv_stride,
               write);
          untimed_gemm(Trans::no, Trans::yes, rows, keys, D, d_out + out_offset, H * D, v + kv_offset, kv_stride, d_scores, keys,
               Write::overwrite);
          launch(stream, SoftmaxBackward{d_scores, probabilities, delta, first, keys, keys, scale}, rows);
          untimed_gemm(Trans::no, Trans::no, rows, D, keys, d_scores, keys, k + kv_offset, kv_stride, dq + q_offset, q_stride,
               Write::overwrite);
          untimed_gemm(Trans::yes, Trans::no, keys, D, rows, d_scores, keys, q + q_offset, q_stride, dk + kv_offset, kv_stride, write);
          write = Write::add;
          end = first;
        }
    }
}

}  // namespace fsdp::kernels
