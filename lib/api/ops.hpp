// Operations over tensors for the passes of a user's layers: on any device, in any type, with an order of sums that depends
// only on the sizes. Each runs after the operations before it, immediately or queued on the pass's stream. Shapes and types are
// checked; a wrong one throws UserError, which names the operation and its operands.
#pragma once

#include "api/layer.hpp"

namespace fsdp::ops {

enum class Transpose { no, yes };
/// Overwrites `out` with the result, or adds the result to it.
enum class Out { overwrite, add };

/// out[m,n] (=, +=) op(a)[m,k] op(b)[k,n]. a and b have the same type; `out` has that type or fp32. Products of 16-bit types
/// are accumulated in fp32.
void matmul(const Pass& pass, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& out,
            Out write = Out::overwrite);
/// y[R,out] = x[R,in] weight[out,in]^T (+ bias[1,out], if given).
void linear(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
/// From dy, computes dx (overwritten or added to), and adds to the gradients of weight and bias. Results that are none are
/// skipped.
void linear_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                     const Tensor& d_weight, const Tensor& d_bias, Out write_dx = Out::overwrite);
/// to = from; both are dense and have the same size. copy() requires the same type. With convert() the types may differ if one
/// is fp32; 16-bit results are rounded to nearest.
void copy(const Pass& pass, const Tensor& to, const Tensor& from);
void convert(const Pass& pass, const Tensor& to, const Tensor& from);
/// y = a + b, and y (=, +=) a b, element by element; all are dense and have the same type; y may be a or b.
void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b);
void multiply(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b, Out write = Out::overwrite);

/// y = f(x), and dx = dy f'(x); all are dense; y may be x, and dx may be dy.
void relu(const Pass& pass, const Tensor& x, const Tensor& y);
void relu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void gelu(const Pass& pass, const Tensor& x, const Tensor& y);
void gelu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// sigmoid(x) = 1 / (1 + e^-x)
void sigmoid(const Pass& pass, const Tensor& x, const Tensor& y);
void sigmoid_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// SwiGLU (Shazeer 2020): y = gate sigmoid(gate) up. d_gate or d_up may be dy.
void swiglu(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& y);
void swiglu_backward(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& d_gate,
                     const Tensor& d_up);

/// stats: [R,2] in fp32 for LayerNorm, [R,1] for RMSNorm.
void layer_norm(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                const Tensor& stats);
void layer_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                         const Tensor& dx, const Tensor& d_weight, const Tensor& d_bias, Out write_dx = Out::overwrite);
void rms_norm(const Pass& pass, const Tensor& x, const Tensor& weight, float eps, const Tensor& y, const Tensor& stats);
void rms_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                       const Tensor& dx, const Tensor& d_weight, Out write_dx = Out::overwrite);

}  // namespace fsdp::ops
