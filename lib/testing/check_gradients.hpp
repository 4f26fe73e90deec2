// For tests of a user's layer or loss: #include <fsdp/check_gradients.hpp>, and link with fsdp::testing. Checks that forward
// and backward follow the rules of layer.hpp, and that backward computes the derivatives of forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layers/layer.hpp"

namespace fsdp {

/// The sizes, steps and tolerances of check_gradients().
struct GradientCheckOptions {
  std::size_t B = 2, T = 5;        // the size of the batch
  std::size_t most_elements = 64;  // at most this many elements of each tensor are checked, evenly spread
  double step = 1e-2;              // central differences add this to an element and subtract it
  /// Relative to the tensor's largest derivative; fp32 is not precise enough for less. If all of them are below 1e-4 of the
  /// largest derivative of all tensors, they count as 0 with errors relative to 0.01 of that.
  double tolerance = 2e-2;
  /// For 16-bit types compared with fp32, relative to the tensor's largest number; likewise, with 0.3 instead of 0.01.
  double tolerance_16_bits = 6e-2;
  std::uint32_t seed = 1;  // of the random inputs and parameters
};

/// What check_gradients() has found.
struct GradientCheck {
  bool passed = true;  // all checks passed
  double worst = 0;    // the largest relative difference of check 3, or of check 5 if that fails; 1 if another check fails
  std::string where;   // "weight[2, 3]: backward gives 0.25, central differences give 0.5"
};

/// Runs these checks on the CPU, in training (Pass::update is 1), so that dropout drops, with the same mask in all passes:
/// 1. forward, called twice, gives the same result. forward writes all of y, and backward all of dx and of next() of each
/// state: all are filled with NaN before, and no NaN may remain. Neither changes x or parameters.
/// 2. backward, called twice, adds to the gradients of parameters twice. The results of backward are proportional to dy, and
/// those of a loss to its `scale`.
/// 3. in fp32, backward gives the same derivatives, with respect to x and each parameter, as central differences of forward.
/// The differentiated function is a random weighted sum of y; for a loss, it is the sum of the losses of all rows in training.
/// If the left and right differences disagree, because a point without a derivative is within `step`, any value between the two
/// is accepted.
/// 4. if some or all parameters are not trained, so that their gradients are none, all other results are the same.
/// 5. in each 16-bit type that works_in() supports, forward and backward give the same results as in fp32 up to rounding.
/// State and constants have no derivatives, so checks 2 and 3 leave them out. A layer that gathers runs as one rank.
/// Returns the first check that fails. Not collective.
GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options = {});
GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options = {});

}  // namespace fsdp
