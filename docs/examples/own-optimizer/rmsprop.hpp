// An optimizer of one's own: RMSprop (Tieleman and Hinton 2012, lecture 6e), as torch.optim.RMSprop.
#pragma once

#include <cmath>
#include <fsdp/fsdp.hpp>

class Rmsprop final : public fsdp::ElementwiseOptimizer {
 public:
  explicit Rmsprop(double alpha = 0.99, double eps = 1e-8) : alpha_(alpha), eps_(eps) {}
  std::string name() const override { return "my_rmsprop"; }
  std::vector<std::string> states() const override { return {"square_avg"}; }

  void update(const fsdp::ElementwiseUpdate& elements) const override {
    const auto rate = static_cast<float>(elements.learning_rate), decay = static_cast<float>(elements.weight_decay);
    const auto alpha = static_cast<float>(alpha_), rest = static_cast<float>(1 - alpha_), eps = static_cast<float>(eps_);
    float* const square_avg = elements.states[0];
    for (std::size_t i = 0; i < elements.parameters.size(); ++i) {
      const float g = elements.gradients[i] + decay * elements.parameters[i];
      square_avg[i] = alpha * square_avg[i] + rest * g * g;
      elements.parameters[i] -= rate * g / (std::sqrt(square_avg[i]) + eps);
    }
  }

 private:
  double alpha_, eps_;
};
