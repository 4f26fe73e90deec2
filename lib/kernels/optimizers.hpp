// The arithmetic of optimizers on a rank's part of one parameter, on plain pointers: gradients and parameters are fp32, states
// fp32 or bf16. This header is for optimizers that need more than one element at a time; element_update.hpp is for all others.
// Hyperparameters are passed as doubles, because 1 - beta2 in single precision would have a relative error of 1e-5. All updates
// flush denormal numbers to 0. Otherwise the conventions of kernels.hpp hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/element.hpp"
#include "base/philox.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/update_sums.hpp"

namespace fsdp::kernels {

inline constexpr std::size_t most_states = 3;

/// The random bits for stochastic rounding to bf16. They depend only on site, seed, update, parameter, `time` (the number of
/// the rounding within the update) and the element's index in the whole parameter. So the result depends neither on the number
/// of ranks nor on threads.
struct RoundingNoise {
  std::uint32_t key[2] = {};
  std::size_t first_element = 0;  // the index of this part's first element in the whole parameter
};
RoundingNoise rounding_noise(RandomSite site, std::uint32_t seed, std::uint64_t update, std::size_t parameter,
                             std::size_t first_element, std::uint32_t time = 0);

/// Stochastic rounding: kept[n] (=, +=) wide[n]. The result is rounded up or down such that its expected value is exact. Then
/// wide = kept. Values that bf16 can represent are unchanged. Element i of these arrays has the index noise.first_element + i
/// in its parameter. If `squares` is not null, the squares of the rounded values are added to it, in the same pass over memory
/// on a GPU, and `wide` is undefined afterwards.
void round_at_random(Stream& stream, bf16* kept, float* wide, std::size_t n, const RoundingNoise& noise, Write write,
                     ExactSum* squares = nullptr);

/// average[n] = decay * average + (1 - decay) * values, unless the update is skipped (norm.finite is 0). With decay 0 it is a
/// copy.
void move_average(Stream& stream, float* average, const float* values, std::size_t n, double decay, const GradientNorm& norm);

/// A rank's part of a parameter. All states have the type `state_type`. Their order is given with each optimizer below. `copy`
/// receives the new parameters in 16 bits, rounded to nearest even; if null, there is no copy.
struct UpdateTarget {
  float* parameter = nullptr;
  std::array<std::byte*, most_states> state = {};
  const float* gradient = nullptr;
  std::size_t n = 0;
  const GradientNorm* norm = nullptr;  // if null, the gradient is finite and needs no scaling
  bool scales = true;                  // true if the gradient must still be multiplied by norm->scale
  DType state_type = DType::f32;
  RoundingNoise noise = {};  // for the rounding of bf16 states
  Halves copy = {};
  // If not null, these replace `parameter` and `gradient`; the states are then bf16, and there is no copy. The new parameters
  // are rounded with parameter_noise as by round_at_random().
  bf16* kept_parameter = nullptr;
  const bf16* kept_gradient = nullptr;
  RoundingNoise parameter_noise = {};
};

// --- with sums over whole tensors ---------------------------------------------------------------------------------------
// Each optimizer has two parts. The first computes sums over this rank's part of a parameter, which the caller adds over the
// ranks as integers. The second updates the parameter with the sums of the whole tensor.

/// LAMB (You et al. 2020, Algorithm 2, with the identity as phi). States: m, v.
struct LambStep {
  double learning_rate, beta1, beta2, eps, weight_decay;
  double bias_correction1, bias_correction2;
};
/// Updates m and v. Adds the squares of the weights p to `weights`, and the squares of the update directions to `directions`.
/// The direction is (m / bc1) / (sqrt(v / bc2) + eps) + weight_decay * p, where bc1 and bc2 are the bias corrections.
void lamb_statistics(Stream& stream, const UpdateTarget& target, const LambStep& step, ExactSum& weights, ExactSum& directions);
/// p -= learning_rate * (|weights| / |directions|) * direction. `weights` and `directions` are the sums over the whole tensor.
void lamb(Stream& stream, const UpdateTarget& target, const LambStep& step, const ExactSum& weights,
          const ExactSum& directions);

/// The sums of the squared gradient over each row and over each column of a matrix [rows, columns]. Each sum is two integer
/// words, so that ranks can add them exactly. factor_squares() computes the sums over a part of the matrix, and sets the words
/// of other rows and columns to zero. `norm` is the norm of the update's whole gradient. It bounds the sums, and so defines the
/// units of the words.
struct FactorWords {
  std::int64_t *row = nullptr, *column = nullptr;  // 2 * rows and 2 * columns words
  static std::size_t count(std::size_t rows, std::size_t columns) { return 2 * (rows + columns); }
};
void factor_squares(Stream& stream, const float* gradient, std::size_t begin, std::size_t n, std::size_t rows,
                    std::size_t columns, const GradientNorm& norm, const FactorWords& words);
/// Updates row_var[rows] and column_var[columns] of the whole matrix: factor += weight * (s - factor), where s is the mean of
/// (norm.scale * g)^2 over the factor's row or column. Also writes `mean`, the mean of row_var, for the functions below.
void update_factors(Stream& stream, float* row_var, float* column_var, std::size_t rows, std::size_t columns,
                    const GradientNorm& norm, double weight, const FactorWords& words, std::int64_t* mean);
/// The number of words of `mean`. If ranks with the same factors add their words, the result represents the same mean.
inline constexpr std::size_t factor_mean_words = 2;

/// As torch.optim.Adafactor: the direction is u = g / sqrt(max(v, eps1^2)), and p = p * (1 - decay) - step_size * u. v is the
/// second moment; for matrices it is row_var * column_var / max(mean(row_var), eps1). (Shazeer and Stern 2018, Algorithms 4 and
/// 5.)
struct AdafactorFactors {
  const float *row_var, *column_var;
  const std::int64_t* mean;  // from update_factors()
  std::size_t columns;
};
/// The inputs of the step size. `weights` and `directions` are the sums of squares over the whole tensor of `numel` elements,
/// in device memory. `relative` is the learning rate as a multiple of the weights' root mean square, which counts as at least
/// `least_scale`. `clipping_threshold` is the limit of the directions' root mean square.
struct AdafactorScale {
  const ExactSum *weights, *directions;
  double numel, relative, least_scale, clipping_threshold;
};
/// eps1 of PyTorch: the distance from 1 to the next fp32 number.
inline constexpr double adafactor_eps = 0x1p-23;
/// Adds to `directions` the squares of the directions of a matrix's elements [begin, begin + target.n).
void adafactor_statistics(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors,
                          ExactSum& directions);
void adafactor(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors, double decay,
               const AdafactorScale& scale);
/// As adafactor_statistics() and adafactor(), for a vector. The first function updates the state: v += weight * (g^2 - v).
void adafactor_vector_statistics(Stream& stream, const UpdateTarget& target, double weight, ExactSum& directions);
void adafactor_vector(Stream& stream, const UpdateTarget& target, double decay, const AdafactorScale& scale);

// --- with whole matrices ------------------------------------------------------------------------------------------------
/// Replaces x[rows, columns] by an approximation of the nearest matrix whose singular values are all 1. Those of the result are
/// between 0.5 and 1.5. Computed by five steps of a Newton-Schulz iteration of degree five, in fp32. `scratch` has
/// newton_schulz_scratch() floats.
void newton_schulz(Stream& stream, float* x, std::size_t rows, std::size_t columns, float* scratch);
std::size_t newton_schulz_scratch(std::size_t rows, std::size_t columns);
double newton_schulz_flops(std::size_t rows, std::size_t columns);

}  // namespace fsdp::kernels
