// The library's layers and losses. All support fp32, bf16 and fp16 on CPUs and GPUs, except mean_squared_error(), which
// supports only fp32 on CPUs.
#pragma once

#include <cstddef>

#include "api/layer.hpp"

namespace fsdp {

/// y = x W^T + b. W is the parameter weight[out, in], b is bias[out]. The initial W is normal with `standard_deviation`, or
/// with 1/sqrt(in) if `standard_deviation` is 0. The initial b is 0.
LayerPtr linear(std::size_t in, std::size_t out, bool bias = true, float standard_deviation = 0);
/// Element by element: relu is max(x, 0), gelu is GELU with the tanh formula (Hendrycks and Gimpel 2016).
LayerPtr relu(std::size_t width);
LayerPtr gelu(std::size_t width);
/// LayerNorm (Ba et al. 2016) with the parameters weight[width] and bias[width], and RMSNorm (Zhang and Sennrich 2019) with the
/// parameter weight[width].
LayerPtr layer_norm(std::size_t width, float eps = 1e-5f);
LayerPtr rms_norm(std::size_t width, float eps = 1e-6f);
/// A lookup table weight[vocabulary, width]: each token selects a row. It can only be the first layer of a model.
LayerPtr embedding(std::size_t vocabulary, std::size_t width, float standard_deviation = 0.02f);

/// -log softmax(x)[label] of each row of logits; rows with a negative label do not count. In training it has the terms of
/// kernels::LossTerms: label smoothing as in torch.nn.CrossEntropyLoss, and z_loss x log(sum(exp(x)))^2.
LossPtr cross_entropy(std::size_t classes, double label_smoothing = 0, double z_loss = 0);
/// The mean over the columns of (x - target)^2.
LossPtr mean_squared_error(std::size_t width);

}  // namespace fsdp
