// Operations on tensors, for the passes of a user's layers. They support all devices and types, and their order of sums depends
// only on the sizes. They run in the order of the calls, either immediately or later on the stream of the pass. A wrong shape
// or type throws UserError, which names the operation and its operands.
#pragma once

#include "api/layer.hpp"

namespace fsdp::ops {

/// An operand is used as it is, or transposed.
enum class Transpose { no, yes };
/// An operation overwrites its output with the result, or adds the result to it.
enum class Out { overwrite, add };

/// Computes the product op(a) op(b), where op(a) is [m,k] and op(b) is [k,n], and overwrites out[m,n] with it or adds it
/// (`write`). op transposes the matrix or leaves it as it is, as `transpose_a` and `transpose_b` say. a and b have the same
/// type; `out` has that type or fp32. Products of 16-bit types are summed in fp32.
void matmul(const Pass& pass, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& out,
            Out write = Out::overwrite);
/// y[R,out] = x[R,in] weight[out,in]^T (+ bias[1,out], if given).
void linear(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
/// Computes the gradients of the three operands of linear() from dy. Overwrites dx or adds to dx (`write_dx`). Always adds to
/// d_weight and d_bias. Results whose tensor is none are skipped.
void linear_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                     const Tensor& d_weight, const Tensor& d_bias, Out write_dx = Out::overwrite);
/// to = from. Both tensors are dense and have the same size. copy() requires the same type. With convert() the types may
/// differ if one of them is fp32; 16-bit results are rounded to nearest.
void copy(const Pass& pass, const Tensor& to, const Tensor& from);
void convert(const Pass& pass, const Tensor& to, const Tensor& from);
/// Element by element: add() sets y = a + b; multiply() overwrites y with a * b or adds a * b to y (`write`). All are dense and
/// have the same type and size. y may be a or b.
void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b);
void multiply(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b, Out write = Out::overwrite);

/// Element by element: y = f(x) in forward, dx = dy * f'(x) in backward. All are dense. y may be x, and dx may be dy.
void relu(const Pass& pass, const Tensor& x, const Tensor& y);
void relu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void gelu(const Pass& pass, const Tensor& x, const Tensor& y);
void gelu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// y = 1 / (1 + exp(-x)), under the same rules as relu() and gelu().
void sigmoid(const Pass& pass, const Tensor& x, const Tensor& y);
void sigmoid_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// SwiGLU (Shazeer 2020), element by element: y = gate * sigmoid(gate) * up. d_gate or d_up may be dy.
void swiglu(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& y);
void swiglu_backward(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& d_gate,
                     const Tensor& d_up);

/// LayerNorm and RMSNorm. `stats` are fp32 numbers that forward computes for backward: [R,2] for LayerNorm, [R,1] for RMSNorm.
void layer_norm(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                const Tensor& stats);
void layer_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                         const Tensor& dx, const Tensor& d_weight, const Tensor& d_bias, Out write_dx = Out::overwrite);
void rms_norm(const Pass& pass, const Tensor& x, const Tensor& weight, float eps, const Tensor& y, const Tensor& stats);
void rms_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                       const Tensor& dx, const Tensor& d_weight, Out write_dx = Out::overwrite);

}  // namespace fsdp::ops
