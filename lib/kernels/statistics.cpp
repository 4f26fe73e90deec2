// LAMB and Adafactor: sums over whole tensors, and what follows from them.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/element_update.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/statistics.hpp"

namespace fsdp::kernels {

namespace {

constexpr std::size_t most_partitions = 64;  // enough for the threads of a rank; their sums lie on the stack

LambDirection direction_of(const LambStep& step) {
  return {.beta1 = single(step.beta1),
          .one_minus_beta1 = single(1 - step.beta1),
          .beta2 = single(step.beta2),
          .one_minus_beta2 = single(1 - step.beta2),
          .inverse_correction1 = single(1 / step.bias_correction1),
          .inverse_sqrt_correction2 = single(1 / std::sqrt(step.bias_correction2)),
          .eps = single(step.eps),
          .weight_decay = single(step.weight_decay)};
}

/// A power of two that brings squares of numbers of this norm below 1: halved once more, since the norm is rounded.
double scale_of(double norm) {
  if (!(norm > 0)) return 1;
  int exponent = 0;
  std::frexp(norm, &exponent);  // norm < 2^exponent
  return std::ldexp(1.0, -2 * exponent - 1);
}

FactoredDirection direction_of(Stream& stream, const AdafactorFactors& factors, double gradient_scale) {
  const double mean = sum(stream, factors.row_var, factors.rows) / static_cast<double>(factors.rows);
  return {factors.row_var, factors.column_var, single(1 / std::max(mean, adafactor_eps)), single(adafactor_eps * adafactor_eps),
          single(gradient_scale)};
}

}  // namespace

void lamb_statistics(Stream& stream, const UpdateTarget& target, const LambStep& step, ExactSum& weights,
                     ExactSum& directions) {
  std::array<ExactSum, 2 * most_partitions> partial;
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 2>(target);
    const std::size_t blocks = rows_of(memory), partitions = std::min(most_partitions, blocks);
    launch(stream, LambStatistics<State>{direction_of(step), memory, partial.data(), blocks, partitions}, partitions);
    for (std::size_t p = 0; p < partitions; ++p) weights += partial[2 * p], directions += partial[2 * p + 1];
  });
}

void lamb(Stream& stream, const UpdateTarget& target, const LambStep& step, double ratio) {
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 2>(target);
    launch(stream, LambUpdate<State>{direction_of(step), memory, single(step.learning_rate * ratio)}, rows_of(memory));
  });
}

void factor_squares(Stream& stream, const float* gradient, std::size_t begin, std::size_t n, std::size_t rows,
                    std::size_t columns, double norm, const FactorWords& words) {
  expect(std::max(rows, columns) < std::size_t{1} << 21, "sums of more squares would not be exact");
  const SquareDigits digits{scale_of(norm) * 0x1p52};
  const MatrixPart part{begin, n, columns};
  std::fill_n(words.row, 2 * rows, 0);
  launch(stream, RowSquares{digits, part, part.first_row(), gradient, words.row}, part.row_count());
  launch(stream, ColumnSquares{digits, part, part.first_row(), part.row_count(), gradient, words.column},
         (columns + ColumnSquares::strip - 1) / ColumnSquares::strip);
}

void update_factors(Stream& stream, float* row_var, float* column_var, std::size_t rows, std::size_t columns, double norm,
                    double gradient_scale, double weight, const FactorWords& words) {
  const double unit = 0x1p-52 / scale_of(norm) * gradient_scale * gradient_scale;
  const auto run = [&](float* factor, const std::int64_t* of, std::size_t n, std::size_t stride, std::size_t low,
                       std::size_t count) {
    launch(stream, FactorUpdate{factor, of, n, stride, low, unit / static_cast<double>(count), single(weight)},
           (n + flat_block - 1) / flat_block);
  };
  run(row_var, words.row, rows, 2, 1, columns);
  run(column_var, words.column, columns, 1, columns, rows);
}

void adafactor_statistics(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors,
                          ExactSum& directions) {
  std::array<ExactSum, most_partitions> partial;
  const MatrixPart part{begin, target.n, factors.columns};
  const std::size_t partitions = std::min(most_partitions, part.row_count());
  launch(stream,
         FactoredSquares{direction_of(stream, factors, target.gradient_scale), part, part.first_row(), part.row_count(),
                         target.gradient, partial.data(), partitions},
         partitions);
  for (std::size_t p = 0; p < partitions; ++p) directions += partial[p];
}

void adafactor(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors, double decay,
               double step_size) {
  const MatrixPart part{begin, target.n, factors.columns};
  launch(stream,
         FactoredUpdate{direction_of(stream, factors, target.gradient_scale), part, part.first_row(), target.gradient,
                        target.parameter, target.copy, single(1 - decay), single(step_size)},
         part.row_count());
}

void adafactor_vector_statistics(Stream& stream, const UpdateTarget& target, double weight, ExactSum& directions) {
  std::array<ExactSum, most_partitions> partial;
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 1>(target);
    const std::size_t blocks = rows_of(memory), partitions = std::min(most_partitions, blocks);
    launch(stream,
           VarianceStatistics<State>{
               {single(adafactor_eps * adafactor_eps)}, memory, single(weight), partial.data(), blocks, partitions},
           partitions);
    for (std::size_t p = 0; p < partitions; ++p) directions += partial[p];
  });
}

void adafactor_vector(Stream& stream, const UpdateTarget& target, double decay, double step_size) {
  update_elements(stream, target, VarianceRule{{single(adafactor_eps * adafactor_eps)}, single(1 - decay), single(step_size)});
}

}  // namespace fsdp::kernels
