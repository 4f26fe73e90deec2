// Whether a layer's backward pass is the derivative of its forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/layer.hpp"

namespace fsdp {

struct GradientCheckOptions {
  std::size_t B = 2, T = 5;        // of the batch that it is tried on
  std::size_t most_elements = 64;  // that are tried of each tensor, evenly spread
  double step = 1e-2;              // by which an element is moved either way
  double tolerance = 2e-2;         // relative to the tensor's largest derivative: fp32 allows no less
  std::uint64_t seed = 1;          // of the inputs, and of the parameters
};

struct GradientCheck {
  bool passed = true;
  double worst = 0;   // the largest difference, relative
  std::string where;  // "weight[2, 3]: backward says 0.25, differences say 0.5"
};

/// Compares backward with central differences of forward, on the CPU in fp32: the derivatives of a random weighted sum of y by
/// x and by each parameter; of a loss those of its sum. Values should not lie within `step` of a place where the layer has no
/// derivative. Not collective.
GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options = {});
GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options = {});

}  // namespace fsdp
