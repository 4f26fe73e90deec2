// For tests: #include <fsdp/check_gradients.hpp>, and link with fsdp::testing. Checks that the passes of a layer do what they
// should, and that its backward pass is the derivative of its forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/layer.hpp"

namespace fsdp {

struct GradientCheckOptions {
  std::size_t B = 2, T = 5;         // of the batch that it is tried on
  std::size_t most_elements = 64;   // that are tried of each tensor, evenly spread
  double step = 1e-2;               // by which an element is moved either way
  double tolerance = 2e-2;          // relative to the tensor's largest derivative: fp32 allows no less
  double tolerance_16_bits = 6e-2;  // the same between 16 bits and fp32: bf16 has 8 bits of precision
  std::uint32_t seed = 1;           // of the inputs, and of the parameters
};

struct GradientCheck {
  bool passed = true;
  double worst = 0;   // the largest difference, relative, of those that are too large if some are; 1 for what is no difference
  std::string where;  // "weight[2, 3]: backward says 0.25, differences say 0.5"
};

/// On the CPU:
/// 1. forward gives the same twice, in memory that held NaN, and leaves no NaN there; so does backward with dx; neither changes
///    x or parameters;
/// 2. backward, called twice, has added to the gradients of parameters twice; what it gives is proportional to dy, and what a
///    loss gives to its `scale`;
/// 3. in fp32 backward's results are central differences of forward: the derivatives of a random weighted sum of y by x and by
///    each parameter; of a loss those of its sum. Where the differences to the left and to the right are not the same, as
///    within `step` of a place without a derivative, what lies between the two is right;
/// 4. where the gradients of some parameters or of all are not asked for, what is left is the same;
/// 5. in each 16-bit type that works_in() names, y and backward's results are those of fp32 but for rounding.
/// What does not hold first is said. Not collective.
GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options = {});
GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options = {});

}  // namespace fsdp
