#include "optim/adamw.hpp"

#include <cmath>

#include "kernels/kernels.hpp"

namespace fsdp {

void adamw_update(Stream& stream, std::span<const OptimizerSegment> segments, float* parameters, float* exp_avg,
                  float* exp_avg_sq, const float* gradients, const AdamWOptions& options, std::uint64_t update,
                  double learning_rate, double gradient_scale) {
  const double t = static_cast<double>(update);
  kernels::AdamWStep step{learning_rate,
                          options.beta1,
                          options.beta2,
                          options.eps,
                          0,
                          1 - std::pow(options.beta1, t),
                          1 - std::pow(options.beta2, t),
                          gradient_scale};
  for (const OptimizerSegment& segment : segments) {
    step.weight_decay = segment.decayed ? options.weight_decay : 0;
    kernels::adamw(stream, parameters + segment.begin, exp_avg + segment.begin, exp_avg_sq + segment.begin,
                   gradients + segment.begin, segment.count, step);
  }
}

}  // namespace fsdp
