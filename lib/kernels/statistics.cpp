// Launches the kernels of LAMB and Adafactor: those for sums over whole tensors, and those for updates from these sums.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "device/traits.hpp"
#include "kernels/element_update.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/statistics.hpp"

namespace fsdp::kernels {

namespace {

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

FactoredNumbers numbers_of(const UpdateTarget& target, const AdafactorFactors& factors) {
  return {factors.row_var, factors.column_var, factors.mean, single(adafactor_eps * adafactor_eps), target.norm};
}

}  // namespace

void lamb_statistics(Stream& stream, const UpdateTarget& target, const LambStep& step, ExactSum& weights,
                     ExactSum& directions) {
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 2>(target);
    launch(stream, LambStatistics<State>{direction_of(step), memory, &weights, &directions}, rows_of(memory));
  });
  for (ExactSum* sum : {&weights, &directions}) launch(stream, NormalizeSums{sum}, 1);
}

void lamb(Stream& stream, const UpdateTarget& target, const LambStep& step, const ExactSum& weights,
          const ExactSum& directions) {
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 2>(target);
    launch(stream, LambUpdate<State>{direction_of(step), memory, &weights, &directions, step.learning_rate}, rows_of(memory));
  });
}

void factor_squares(Stream& stream, const float* gradient, std::size_t begin, std::size_t n, std::size_t rows,
                    std::size_t columns, const GradientNorm& norm, const FactorWords& words) {
  expect(std::max(rows, columns) < std::size_t{1} << 21,
         "a matrix must have fewer than 2^21 rows and columns, for exact sums of squares");
  const MatrixPart part{begin, n, columns};
  const auto clear = [&](std::int64_t* to, std::size_t count) {
    fill_zero(stream, reinterpret_cast<float*>(to), count * sizeof(std::int64_t) / sizeof(float));
  };
  const auto strips_of = [=](std::size_t strip) { return (columns + strip - 1) / strip; };
  const std::size_t first_row = part.first_row(), row_count = part.row_count();
  clear(words.row, 2 * rows);
  launch(stream, RowSquares{&norm, part, first_row, gradient, words.row}, row_count);
  if (const std::size_t least = grain_of(stream.kind()).rows; least > 1) {
    const std::size_t strips = strips_of(ColumnSquaresOfRows::strip);
    const std::size_t partitions =
        std::clamp<std::size_t>((least + strips - 1) / strips, 1, std::max<std::size_t>(row_count, 1));
    clear(words.column, 2 * columns);
    launch(stream, ColumnSquaresOfRows{&norm, part, first_row, row_count, partitions, gradient, words.column},
           strips * partitions);
  } else {
    launch(stream, ColumnSquares{&norm, part, first_row, row_count, gradient, words.column}, strips_of(ColumnSquares::strip));
  }
}

void update_factors(Stream& stream, float* row_var, float* column_var, std::size_t rows, std::size_t columns,
                    const GradientNorm& norm, double weight, const FactorWords& words, std::int64_t* mean) {
  const auto run = [&](float* factor, const std::int64_t* of, std::size_t n, std::size_t stride, std::size_t low,
                       std::size_t count) {
    launch(stream, FactorUpdate{factor, of, n, stride, low, &norm, static_cast<double>(count), single(weight)}, flat_blocks(n));
  };
  run(row_var, words.row, rows, 2, 1, columns);
  run(column_var, words.column, columns, 1, columns, rows);
  static_assert(factor_mean_words == InverseMean::word_count);
  launch(stream, InverseMean{row_var, rows, adafactor_eps, mean}, 1);
}

void adafactor_statistics(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors,
                          ExactSum& directions) {
  const MatrixPart part{begin, target.n, factors.columns};
  launch(stream, FactoredSquares{numbers_of(target, factors), part, part.first_row(), target.gradient, &directions},
         part.row_count());
  launch(stream, NormalizeSums{&directions}, 1);
}

void adafactor(Stream& stream, const UpdateTarget& target, std::size_t begin, const AdafactorFactors& factors, double decay,
               const AdafactorScale& scale) {
  const MatrixPart part{begin, target.n, factors.columns};
  launch(stream,
         FactoredUpdate{numbers_of(target, factors), part, part.first_row(), target.gradient, target.parameter, target.copy,
                        single(1 - decay), scale},
         part.row_count());
}

void adafactor_vector_statistics(Stream& stream, const UpdateTarget& target, double weight, ExactSum& directions) {
  with_state_type(target.state_type, [&]<class State>(State) {
    const auto memory = memory_of<State, 1>(target);
    launch(stream, VarianceStatistics<State>{{single(adafactor_eps * adafactor_eps)}, memory, single(weight), &directions},
           rows_of(memory));
  });
  launch(stream, NormalizeSums{&directions}, 1);
}

void adafactor_vector(Stream& stream, const UpdateTarget& target, double decay, const AdafactorScale& scale) {
  update_elements(stream, target, AdafactorVectorRule{{single(adafactor_eps * adafactor_eps)}, single(1 - decay), scale});
}

}  // namespace fsdp::kernels
