// The library's layers and losses. All support fp32, bf16 and fp16, on CPUs and GPUs; mean_squared_error() supports only fp32
// on CPUs.
#pragma once

#include <cstddef>

#include "api/layer.hpp"

namespace fsdp {

/// y = x W^T + b, with parameters weight[out, in] and bias[out]. W is initialized with normal(standard_deviation), or
/// normal(1/sqrt(in)) if that is 0; b with 0.
LayerPtr linear(std::size_t in, std::size_t out, bool bias = true, float standard_deviation = 0);
/// max(x, 0), and GELU with the tanh formula (Hendrycks and Gimpel 2016), element by element.
LayerPtr relu(std::size_t width);
LayerPtr gelu(std::size_t width);
/// LayerNorm (Ba et al. 2016): parameters weight[width], bias[width]; RMSNorm (Zhang and Sennrich 2019): weight[width].
LayerPtr layer_norm(std::size_t width, float eps = 1e-5f);
LayerPtr rms_norm(std::size_t width, float eps = 1e-6f);
/// A lookup table weight[vocabulary, width]: each token selects a row. The first layer of a model of tokens.
LayerPtr embedding(std::size_t vocabulary, std::size_t width, float standard_deviation = 0.02f);

/// -log softmax(x)[label] of each row of logits; rows with a negative label do not count.
LossPtr cross_entropy(std::size_t classes);
/// The mean over the columns of (x - target)^2.
LossPtr mean_squared_error(std::size_t width);

}  // namespace fsdp
