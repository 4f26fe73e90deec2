// Operations over tensors for passes of a user's layers: on whichever device, in whichever type, in an order of sums that
// depends on the sizes alone. Each is done, or queued on the pass's stream, behind those before it. Shapes and types are
// checked; a wrong one is a UserError that names the operation and says what it was given.
#pragma once

#include "api/layer.hpp"

namespace fsdp::ops {

enum class Transpose { no, yes };
/// Whether the result replaces `out` or is added to it.
enum class Out { overwrite, add };

/// out[m,n] (=, +=) op(a)[m,k] op(b)[k,n]. a and b are of one type, `out` is of it or fp32. 16-bit products are summed in fp32.
void matmul(const Pass& pass, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& out,
            Out write = Out::overwrite);
/// y[R,out] = x[R,in] weight[out,in]^T (+ bias[1,out], if there is one).
void linear(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
/// From dy: dx (written, or added to), and what is added to the gradients of weight and bias. What is none is left out.
void linear_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                     const Tensor& d_weight, const Tensor& d_bias, Out write_dx = Out::overwrite);
/// to = from, dense and of one size. copy() is for tensors of one type; of convert()'s, one may be in fp32, and 16-bit numbers
/// are rounded to nearest.
void copy(const Pass& pass, const Tensor& to, const Tensor& from);
void convert(const Pass& pass, const Tensor& to, const Tensor& from);
/// y = a + b, and y (=, +=) a b, element by element, all dense and of one type; y may be either.
void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b);
void multiply(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b, Out write = Out::overwrite);

/// y = f(x), and dx = dy f'(x); dense, y and dx may be x and dy.
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
