// The library's layers. All support fp32, bf16 and fp16 on CPUs and GPUs. Sizes count numbers per row; a size of 0, or a rate
// out of its range, throws UserError.
#pragma once

#include <concepts>
#include <cstddef>

#include "layers/layer.hpp"
#include "layers/ops.hpp"

namespace fsdp {

/// y = x W^T + b. W is the parameter weight[out, in], b is bias[out]. The initial W is normal with `standard_deviation`, or
/// with 1/sqrt(in) if `standard_deviation` is 0. The initial b is 0.
LayerPtr linear(std::size_t in, std::size_t out, bool bias = true, float standard_deviation = 0);
/// Element by element: max(x, 0); GELU with one of two formulas; x sigmoid(x); tanh(x).
LayerPtr relu(std::size_t width);
LayerPtr gelu(std::size_t width, ops::Gelu formula = ops::Gelu::tanh);
LayerPtr silu(std::size_t width);
LayerPtr tanh(std::size_t width);
template <std::integral Width>  // so that a program that is `using namespace fsdp` may also call ::tanh() of <cmath>
LayerPtr tanh(Width width) {
  return tanh(static_cast<std::size_t>(width));
}
/// Element by element: 1 / (1 + exp(-x)).
LayerPtr sigmoid(std::size_t width);
/// y = silu(gate) * up (Shazeer 2020). The first `width` of the 2 width inputs of a row are the gate, the others are up.
LayerPtr swiglu(std::size_t width);
/// The softmax of each row, and its logarithm.
LayerPtr softmax(std::size_t width);
LayerPtr log_softmax(std::size_t width);
/// Dropout (Srivastava et al. 2014) with probability p, in training only: see ops::dropout(). Layers with different names have
/// different masks.
LayerPtr dropout(std::size_t width, double p);
/// LayerNorm (Ba et al. 2016) with the parameters weight[width] and bias[width], and RMSNorm (Zhang and Sennrich 2019) with the
/// parameter weight[width].
LayerPtr layer_norm(std::size_t width, float eps = 1e-5f);
LayerPtr rms_norm(std::size_t width, float eps = 1e-6f);
/// BatchNorm (Ioffe and Szegedy 2015) with the parameters weight[width] and bias[width], and the states running_mean[width] and
/// running_var[width], in fp32. In training, mean and variance are those of all rows of a micro-batch on all ranks, as in
/// torch.nn.SyncBatchNorm, or, if it is not `synchronized`, of a rank's own rows, as in torch.nn.BatchNorm1d. An evaluation
/// uses the states, of which running_var moves to the unbiased variance; see LayerParameter for how they move. If it is
/// `synchronized`, each training pass gathers 2 width numbers of each rank. Throws UserError if eps is not above 0 or momentum
/// not in (0, 1]; so does a training pass over a single row.
LayerPtr batch_norm(std::size_t width, float eps = 1e-5f, float momentum = 0.1f, bool synchronized = true);
/// A lookup table weight[vocabulary, width]: each token selects a row. It can only be the first layer of a model or of a tower.
LayerPtr embedding(std::size_t vocabulary, std::size_t width, float standard_deviation = 0.02f);
/// y = x + weight[position], with the parameter weight[positions, width]. A model whose sequences are longer than `positions`
/// is refused.
LayerPtr position_embedding(std::size_t positions, std::size_t width, float standard_deviation = 0.02f);
/// Each row is a matrix [rows, columns], row-major; the result is its transpose [columns, rows]. The positions of a sequence
/// are rows of a batch, not of such a matrix.
LayerPtr transpose(std::size_t rows, std::size_t columns);
/// y = x.
LayerPtr identity(std::size_t width);

}  // namespace fsdp
