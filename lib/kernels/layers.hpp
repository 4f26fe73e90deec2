// Operations of users' layers and losses (layers/layers.hpp, layers/losses.hpp) that transformers do not have. Conventions are
// those of kernels.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Element by element: y = f(x) for R rows of C elements, and dx = dy * f'(x) for n elements. silu(x) = x / (1 + e^-x). y may
/// be x, and dx may be dy.
template <class E>
void silu_forward(Stream& stream, E* y, E* x, std::size_t R, std::size_t C);
template <class E>
void silu_backward(Stream& stream, E* dx, const E* dy, const E* x, std::size_t n);
template <class E>
void tanh_forward(Stream& stream, E* y, E* x, std::size_t R, std::size_t C);
template <class E>
void tanh_backward(Stream& stream, E* dx, const E* dy, const E* x, std::size_t n);

/// BatchNorm (Ioffe and Szegedy 2015), in steps, so that ranks can join their statistics in between.
/// moments[2,C] receives the sum of each column of x[R,C], and the sum of the squared differences from its mean. `scratch` has
/// column_sum_scratch(C, device) floats, as in batch_norm_sums().
template <class E>
void column_moments(Stream& stream, float* moments, const E* x, std::size_t R, std::size_t C, float* scratch);
/// Joins moments[ranks,2,C] of R rows each, in the order of the ranks. stats[2,C] receives mean and 1 / sqrt(variance + eps).
/// mean[C] and variance[C], if not null, receive the mean and the unbiased variance; ranks * R is then at least 2.
void join_moments(Stream& stream, float* stats, float* mean, float* variance, const float* moments, std::size_t ranks,
                  std::size_t R, std::size_t C, float eps);
/// y = (x - mean) * rstd * gain + bias.
template <class E>
void batch_norm_forward(Stream& stream, E* y, const E* x, const float* stats, const E* gain, const E* bias, std::size_t R,
                        std::size_t C);
/// sums[2,C] receives the sums over the rows of dy and of dy * (x - mean) * rstd: the gradients of bias and gain.
template <class E>
void batch_norm_sums(Stream& stream, float* sums, const E* dy, const E* x, const float* stats, std::size_t R, std::size_t C,
                     float* scratch);
/// out[2,C] receives the sum of sums[ranks,2,C], in the order of the ranks on CPUs.
void join_sums(Stream& stream, float* out, const float* sums, std::size_t ranks, std::size_t C);
/// dx from the sums[2,C] of all rows, of which there are `count`; 0: the statistics do not depend on x, and sums are not read.
template <class E>
void batch_norm_backward(Stream& stream, E* dx, const E* dy, const E* x, const float* stats, const E* gain, const float* sums,
                         std::size_t count, std::size_t R, std::size_t C);

enum class SoftmaxForm { probabilities, logarithms };
/// Each row of y[R,C] is the softmax of that row of x, or its logarithm. Backward computes the softmax again from x. y may be
/// x, and dx may be dy.
template <class E>
void softmax_forward(Stream& stream, SoftmaxForm form, E* y, const E* x, std::size_t R, std::size_t C);
template <class E>
void softmax_backward(Stream& stream, SoftmaxForm form, E* dx, const E* dy, const E* x, std::size_t R, std::size_t C);

/// A matrix whose rows are `stride` elements apart.
template <class E>
struct StridedRows {
  E* data;
  std::size_t stride;
};
/// swiglu_forward() and swiglu_backward() of kernels.hpp for R rows of C elements. d_gate or d_up may be d_out.
template <class E>
void swiglu_rows_forward(Stream& stream, StridedRows<E> out, StridedRows<const E> gate, StridedRows<const E> up, std::size_t R,
                         std::size_t C);
template <class E>
void swiglu_rows_backward(Stream& stream, StridedRows<E> d_gate, StridedRows<E> d_up, StridedRows<const E> d_out,
                          StridedRows<const E> gate, StridedRows<const E> up, std::size_t R, std::size_t C);

/// y[r,:] = x[r,:] + table[r mod T,:]. y may be x. The gradient of the table is position_backward() of kernels.hpp.
template <class E>
void add_positions(Stream& stream, E* y, const E* x, const E* table, std::size_t R, std::size_t T, std::size_t C);
/// Each row of x[R,M*N] is a matrix [M,N]; that row of y is its transpose [N,M]. y must not be x.
template <class E>
void transpose_rows(Stream& stream, E* y, const E* x, std::size_t R, std::size_t M, std::size_t N);

/// The operands of a loss of numbers: x[R,C] and fp32 targets[R,C]. loss[r] receives the mean over the columns, and dx, unless
/// it is null, the gradient of gradient_scale * loss[r].
template <class E>
struct LossRows {
  float* loss;
  E* dx;
  const E* x;
  const float* targets;
  std::size_t R, C;
  float gradient_scale;
};
/// With d = x - target: d^2.
template <class E>
void squared_error(Stream& stream, const LossRows<E>& rows);
/// |d|.
template <class E>
void absolute_error(Stream& stream, const LossRows<E>& rows);
/// factor * (d^2 / 2 if |d| <= delta, else delta * (|d| - delta / 2)) (Huber 1964).
template <class E>
void huber_error(Stream& stream, const LossRows<E>& rows, float delta, float factor);
/// -(w target log(s) + (1 - target) log(1 - s)) with s = sigmoid(x). w is pos_weight[C], or 1 if pos_weight is null.
template <class E>
void binary_cross_entropy(Stream& stream, const LossRows<E>& rows, const float* pos_weight);

/// Call this after cross_entropy() of all classes in one piece, for a loss with a weight for each class. `weights` has V
/// numbers. Without `backward`, multiplies loss[r] by the weight of the target. With it, loss[r] becomes
///   (1 - s) w_t (logZ - logit of the target) + s / V * sum over classes c of w_c (logZ - logit of c) + z_loss w_t logZ^2
/// with the target t and s = label_smoothing; the first two terms are those of torch.nn.CrossEntropyLoss. Overwrites the logits
/// with the gradient of gradient_scale * loss[r]. Rows whose target is negative become zeros.
template <class E>
void weigh_classes(Stream& stream, float* loss, const Logits<E>& logits, const float* weights, const LossTerms& terms,
                   bool backward, float gradient_scale);

}  // namespace fsdp::kernels
