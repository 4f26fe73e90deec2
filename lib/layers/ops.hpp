// Operations on tensors, for the passes of a user's layers. They support all devices and types, and their order of sums depends
// only on the sizes. They run in the order of the calls, either immediately or later on the stream of the pass. A wrong shape
// or type throws UserError, which names the operation and its operands.
#pragma once

#include "layers/layer.hpp"

namespace fsdp::ops {

/// An operand is used as it is, or transposed.
enum class Transpose { no, yes };
/// An operation overwrites its output with the result, or adds the result to it.
enum class Out { overwrite, add };
/// The formula of GELU (Hendrycks and Gimpel 2016): erf is x Phi(x), as torch.nn.GELU(); tanh approximates it, as
/// torch.nn.GELU(approximate="tanh").
enum class Gelu { tanh, erf };

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
/// to = from. Both tensors have the same size. copy() requires the same type; they need not be dense. With convert() they are
/// dense, and the types may differ if one of them is fp32; 16-bit results are rounded to nearest.
void copy(const Pass& pass, const Tensor& to, const Tensor& from);
void convert(const Pass& pass, const Tensor& to, const Tensor& from);
/// Sets all numbers of a dense tensor to 0.
void fill_zero(const Pass& pass, const Tensor& to);
/// Element by element: add() sets y = a + b; multiply() overwrites y with a * b or adds a * b to y (`write`). All are dense and
/// have the same type and size. y may be a or b.
void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b);
void multiply(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b, Out write = Out::overwrite);

/// Element by element: y = f(x) in forward, dx = dy * f'(x) in backward. All are dense. y may be x, and dx may be dy.
void relu(const Pass& pass, const Tensor& x, const Tensor& y);
void relu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void gelu(const Pass& pass, const Tensor& x, const Tensor& y, Gelu formula = Gelu::tanh);
void gelu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx, Gelu formula = Gelu::tanh);
/// sigmoid(x) = 1 / (1 + exp(-x)); silu(x) = x sigmoid(x).
void sigmoid(const Pass& pass, const Tensor& x, const Tensor& y);
void sigmoid_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void silu(const Pass& pass, const Tensor& x, const Tensor& y);
void silu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void tanh(const Pass& pass, const Tensor& x, const Tensor& y);
void tanh_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// The softmax of each row, and its logarithm. Backward computes the softmax again. y may be x, and dx may be dy.
void softmax(const Pass& pass, const Tensor& x, const Tensor& y);
void softmax_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
void log_softmax(const Pass& pass, const Tensor& x, const Tensor& y);
void log_softmax_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);
/// Dropout (Srivastava et al. 2014): y is x with elements set to 0 with probability p, and the others multiplied by 1 / (1 -
/// p). In an evaluation y = x. Backward is the same call with dy and dx. y may be x. The elements follow from the seed, the
/// update, the layer's full name, `number` and the element's index among all sequences of the update, so they are the same in
/// recomputation, with any number of ranks and with any division into micro-batches. p is rounded to a multiple of 2^-16. x
/// has a row for each row of the batch. A layer that calls dropout() for several tensors gives each its own `number`.
void dropout(const Pass& pass, double p, const Tensor& x, const Tensor& y, std::uint32_t number = 0);
/// y[r,:] = x[r,:] + weight[r mod T,:]. weight is [P, columns] with P at least pass.T. y may be x. Backward adds to
/// d_weight[t,:] the sum of dy over all rows of position t; the gradient of x is dy.
void add_positions(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& y);
void add_positions_backward(const Pass& pass, const Tensor& dy, const Tensor& d_weight);
/// Each row of x has a matrix [m, n], row-major; that row of y receives its transpose [n, m]. n is columns / m. y must not be
/// x.
void transpose(const Pass& pass, const Tensor& x, std::size_t m, const Tensor& y);
/// SwiGLU (Shazeer 2020), element by element: y = gate * sigmoid(gate) * up. d_gate or d_up may be dy. The tensors need not be
/// dense: they may be columns of wider ones.
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
