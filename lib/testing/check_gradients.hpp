// For tests: #include <fsdp/check_gradients.hpp>, and link with fsdp::testing. Checks that the passes of a layer follow the
// rules of layer.hpp, and that its backward pass is the derivative of its forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/layer.hpp"

namespace fsdp {

struct GradientCheckOptions {
  std::size_t B = 2, T = 5;         // the size of the batch
  std::size_t most_elements = 64;   // the number of elements checked in each tensor, evenly spread
  double step = 1e-2;               // the change of an element in each direction
  double tolerance = 2e-2;          // relative to the tensor's largest derivative; the precision of fp32 needs this much
  double tolerance_16_bits = 6e-2;  // the same for 16 bits against fp32: bf16 has 8 bits of precision
  std::uint32_t seed = 1;           // of the inputs and parameters
};

struct GradientCheck {
  bool passed = true;
  double worst = 0;  // the largest relative difference, among the differences above the tolerance if there are any; 1 for other
                     // problems
  std::string where;  // "weight[2, 3]: backward says 0.25, differences say 0.5"
};

/// Runs these checks on the CPU:
/// 1. forward gives the same result twice, in memory filled with NaN, and leaves no NaN there; backward also leaves no NaN in
/// dx; neither changes x or parameters.
/// 2. backward, called twice, adds to the gradients of parameters twice; its results are proportional to dy, and those of a
/// loss to its `scale`.
/// 3. in fp32, the results of backward match central differences of forward: the derivatives of a random weighted sum of y with
/// respect to x and each parameter; for a loss, the derivatives of the sum of its rows. If the left and right differences
/// disagree, because a point without a derivative is within `step`, any value between the two is accepted.
/// 4. if the gradients of some or all parameters are not requested, the other results are the same.
/// 5. in each 16-bit type that works_in() supports, y and the results of backward match those of fp32 up to rounding.
/// Returns the first check that fails. Not collective.
GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options = {});
GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options = {});

}  // namespace fsdp
