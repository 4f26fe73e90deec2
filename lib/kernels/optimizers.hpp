// The arithmetic of optimizers on a rank's part of one parameter: plain pointers, fp32 gradients and parameters, states in fp32
// or bf16. What belongs to one update is in a small struct of numbers in double, since 1 - beta2 in single precision would be
// off by 1e-5 of itself. All of them count denormal numbers as 0. Like kernels.hpp otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "device/device.hpp"

namespace fsdp::kernels {

inline constexpr std::size_t most_states = 3;

/// What states are rounded with when they are stored in 16 bits: a function of (seed, update, parameter) and, through
/// first_element, of where an element is in its whole parameter. So the result depends neither on the ranks nor on threads.
struct StateNoise {
  std::uint32_t key[2] = {};
  std::size_t first_element = 0;  // of this part
};
StateNoise state_noise(std::uint32_t seed, std::uint64_t update, std::size_t parameter, std::size_t first_element);

/// A rank's part of a parameter. States are in the order of the optimizer's description below, all of one type. `copy` gets the
/// new parameters in 16 bits, rounded to the nearest even; null for none.
struct UpdateTarget {
  float* parameter = nullptr;
  std::array<std::byte*, most_states> state = {};
  const float* gradient = nullptr;
  std::size_t n = 0;
  double gradient_scale = 1;  // clipping
  DType state_type = DType::f32;
  StateNoise noise = {};  // of bf16 states
  std::uint16_t* copy = nullptr;
  DType copy_type = DType::bf16;
};

/// Decay of weights: decoupled (p -= lr wd p), or L2 (g += wd p).
struct Decays {
  double decoupled = 0, l2 = 0;
};

/// States m, v and, with amsgrad, the largest v. As torch.optim.Adam and AdamW: p -= lr wd p; p -= lr/bc1 m /
/// (sqrt(v)/sqrt(bc2)
/// + eps), bc = 1 - beta^t. (Kingma and Ba 2015; Loshchilov and Hutter 2019, Algorithm 2.)
struct AdamStep {
  double learning_rate, beta1, beta2, eps;
  Decays decay;
  double bias_correction1, bias_correction2;
  bool amsgrad = false;
};
void adam(Stream& stream, const UpdateTarget& target, const AdamStep& step);

/// Without momentum no state, else the momentum buffer. As torch.optim.SGD without dampening; decoupled decay without momentum
/// alone.
struct SgdStep {
  double learning_rate, momentum = 0;
  bool nesterov = false;
  Decays decay = {};
};
void sgd(Stream& stream, const UpdateTarget& target, const SgdStep& step);

/// State: the sum of squares. As torch.optim.Adagrad.
struct AdagradStep {
  double learning_rate, eps, l2 = 0;
};
void adagrad(Stream& stream, const UpdateTarget& target, const AdagradStep& step);

/// State m; decoupled decay. (Chen et al. 2023, Algorithm 2.)
struct LionStep {
  double learning_rate, beta1, beta2, weight_decay = 0;
};
void lion(Stream& stream, const UpdateTarget& target, const LionStep& step);

}  // namespace fsdp::kernels
