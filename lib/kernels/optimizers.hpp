// The arithmetic of optimizers on a rank's part of one parameter: plain pointers, fp32 gradients and parameters, states in fp32
// or bf16. This header has what optimizers need that look at more than one element; element_update.hpp has the others. What
// belongs to one update is in a small struct of numbers in double, since 1 - beta2 in single precision would be off by 1e-5 of
// itself. All of them count denormal numbers as 0. Like kernels.hpp otherwise.
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

/// What numbers are rounded with when they are stored in bf16: a function of (site, seed, update, parameter, and which time it
/// is in the update) and, through first_element, of where an element is in its whole parameter. So the result depends neither
/// on the ranks nor on threads.
struct RoundingNoise {
  std::uint32_t key[2] = {};
  std::size_t first_element = 0;  // of this part
};
RoundingNoise rounding_noise(RandomSite site, std::uint32_t seed, std::uint64_t update, std::size_t parameter,
                             std::size_t first_element, std::uint32_t time = 0);

/// kept[n] = wide[n], or the sum of both, up or down so that the expected value stays; then wide = kept. Numbers that bf16
/// holds stay what they are. They lie from noise.first_element on in their parameter.
void round_at_random(Stream& stream, bf16* kept, float* wide, std::size_t n, const RoundingNoise& noise, Write write);

/// A rank's part of a parameter. States are in the order of the optimizer's description below, all of one type. `copy` gets the
/// new parameters in 16 bits, rounded to the nearest even; null for none.
struct UpdateTarget {
  float* parameter = nullptr;
  std::array<std::byte*, most_states> state = {};
  const float* gradient = nullptr;
  std::size_t n = 0;
  const GradientNorm* norm = nullptr;  // of the update; null: the gradient is finite, and as it should be
  bool scales = true;                  // whether the gradient is still to be multiplied by norm->scale
  DType state_type = DType::f32;
  RoundingNoise noise = {};  // of bf16 states
  Halves copy = {};
};

// --- with sums over whole tensors ---------------------------------------------------------------------------------------
// Each in parts: sums over this rank's part of a parameter, which the caller adds up over the ranks as integers; then what
// follows from the sums of the whole.

/// States m, v. (You et al. 2020, Algorithm 2, phi the identity.)
struct LambStep {
  double learning_rate, beta1, beta2, eps, weight_decay;
  double bias_correction1, bias_correction2;
};
/// Moves m and v on; adds the squares of the weights and of the directions m/bc1 / (sqrt(v/bc2) + eps) + wd p.
void lamb_statistics(Stream& stream, const UpdateTarget& target, const LambStep& step, ExactSum& weights, ExactSum& directions);
/// p -= lr |weights| / |directions| direction, with the sums over the whole tensor.
void lamb(Stream& stream, const UpdateTarget& target, const LambStep& step, const ExactSum& weights,
          const ExactSum& directions);

/// For each row and each column of a matrix [rows, columns] two words with the sums of its gradient's squares, which `norm`,
/// that of the whole gradient, bounds. factor_squares() counts those of a part; words of rows and columns that have nothing in
/// it are zeroed.
struct FactorWords {
  std::int64_t *row = nullptr, *column = nullptr;  // 2 rows, 2 columns of them
  static std::size_t count(std::size_t rows, std::size_t columns) { return 2 * (rows + columns); }
};
void factor_squares(Stream& stream, const float* gradient, std::size_t begin, std::size_t n, std::size_t rows,
                    std::size_t columns, const GradientNorm& norm, const FactorWords& words);
/// row_var[rows], column_var[columns] of the whole matrix += weight (mean square of norm.scale g - it), and `mean` for those
/// who then need directions.
void update_factors(Stream& stream, float* row_var, float* column_var, std::size_t rows, std::size_t columns,
                    const GradientNorm& norm, double weight, const FactorWords& words, std::int64_t* mean);
/// Words of `mean`; a sum of them over ranks with the same factors says the same.
inline constexpr std::size_t factor_mean_words = 2;

/// As torch.optim.Adafactor: direction u = g / sqrt(max(v, eps1^2)), v the second moment, of matrices row_var column_var /
/// max(mean(row_var), eps1); p = p (1 - decay) - step_size u. (Shazeer and Stern 2018, Algorithms 4 and 5.)
struct AdafactorFactors {
  const float *row_var, *column_var;
  const std::int64_t* mean;  // update_factors()'s
  std::size_t columns;
};
/// What the step size depends on: the squares of the weights and of the directions of the whole tensor of `numel`, of which
/// kernels alone know the values; the rate relative to the weights' root mean square, which counts as `least_scale` where it is
/// less; and the most that the directions' may be.
struct AdafactorScale {
  const ExactSum *weights, *directions;
  double numel, relative, least_scale, clipping_threshold;
};
/// eps1 of PyTorch: the distance from 1 to the next fp32 number.
inline constexpr double adafactor_eps = 0x1p-23;
/// Adds the squares of the directions of a matrix's elements [begin, begin + target.n).
void adafactor_statistics(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors,
                          ExactSum& directions);
void adafactor(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors, double decay,
               const AdafactorScale& scale);
/// The same for a vector; its state is v, which moves on: v += weight (g^2 - v).
void adafactor_vector_statistics(Stream& stream, const UpdateTarget& target, double weight, ExactSum& directions);
void adafactor_vector(Stream& stream, const UpdateTarget& target, double decay, const AdafactorScale& scale);

// --- with whole matrices ------------------------------------------------------------------------------------------------
/// x[rows, columns] becomes about the nearest matrix whose singular values are all 1 (between 0.5 and 1.5): five steps of a
/// Newton-Schulz iteration of fifth degree, in fp32. `scratch`: newton_schulz_scratch() floats.
void newton_schulz(Stream& stream, float* x, std::size_t rows, std::size_t columns, float* scratch);
std::size_t newton_schulz_scratch(std::size_t rows, std::size_t columns);
double newton_schulz_flops(std::size_t rows, std::size_t columns);

}  // namespace fsdp::kernels
