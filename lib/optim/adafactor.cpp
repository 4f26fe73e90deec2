// torch.optim.Adafactor over shards. Round 0 of statistics sums the squares of the weights, and for matrices the squares of the
// gradient by row and by column. From the sums over all ranks, every rank updates the same factors. Round 1 sums the squares of
// the update directions, for clipping. For matrices it also computes the mean of the factors, which is the same on every rank.
#include <algorithm>
#include <cmath>

#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

constexpr double second_moment_decay = -0.8;  // beta2 of update t is 1 - t^-0.8: Shazeer and Stern 2018, section 7.2
constexpr double least_scale = 1e-3;          // eps2 in the paper: the smallest scale of a tensor's weights
constexpr double clipping_threshold = 1;      // d in the paper

double weight_of(const OptimizerStep& step, const UnitTensor& tensor) {
  return std::pow(step.number_of(tensor), second_moment_decay);
}

kernels::FactorWords factor_words(const UnitMemory& memory, const UnitTensor& tensor) {
  std::int64_t* const words = memory.statistics[0] + tensor.words[0] + kernels::ExactSum::words;
  return {words, words + 2 * tensor.rows};
}

float* factor(const UnitMemory& memory, std::size_t state, std::size_t offset) {
  return reinterpret_cast<float*>(memory.states[state]) + offset;
}

std::int64_t* mean_words(const UnitMemory& memory, const UnitTensor& tensor) {
  return memory.statistics[1] + tensor.words[1] + kernels::ExactSum::words;
}

kernels::AdafactorFactors factors_of(const UnitMemory& memory, const UnitTensor& tensor) {
  return {factor(memory, 0, tensor.first_row), factor(memory, 1, tensor.first_column), mean_words(memory, tensor),
          tensor.columns};
}

std::size_t words(const Shape& shape, int round) {
  if (shape.size() == 1) return kernels::ExactSum::words;
  const std::size_t of_matrix =
      round == 0 ? kernels::FactorWords::count(numel(shape) / shape.back(), shape.back()) : kernels::factor_mean_words;
  return kernels::ExactSum::words + of_matrix;
}

void count(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step, int round) {
  if (round == 1)  // also for matrices without a slice on this rank: at another world size the rank may have one
    for (const UnitTensor& tensor : memory.tensors)
      if (tensor.is_matrix)
        kernels::update_factors(stream, factor(memory, 0, tensor.first_row), factor(memory, 1, tensor.first_column),
                                tensor.rows, tensor.columns, *step.norm, weight_of(step, tensor), factor_words(memory, tensor),
                                mean_words(memory, tensor));
  for (const OptimizerSlice& slice : memory.slices) {
    const UnitTensor& tensor = memory.tensors[slice.tensor];
    const kernels::UpdateTarget target = target_of(memory, slice, options, step);
    kernels::ExactSum& sum = sum_of(memory, slice, round, 0);
    if (round == 0) {
      kernels::add_squares(stream, sum, target.parameter, target.n);
      if (tensor.is_matrix)
        kernels::factor_squares(stream, target.gradient, slice.range.begin, target.n, tensor.rows, tensor.columns, *step.norm,
                                factor_words(memory, tensor));
    } else if (tensor.is_matrix) {
      kernels::adafactor_statistics(stream, target, slice.range.begin, factors_of(memory, tensor), sum);
    } else {
      kernels::adafactor_vector_statistics(stream, target, weight_of(step, tensor), sum);
    }
  }
}

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    const UnitTensor& tensor = memory.tensors[slice.tensor];
    const double lr = step.learning_rate * slice.learning_rate_scale;
    const double relative = std::min(lr, 1 / std::sqrt(step.number_of(tensor)));
    const kernels::AdafactorScale scale{.weights = &sum_of(memory, slice, 0, 0),
                                        .directions = &sum_of(memory, slice, 1, 0),
                                        .numel = static_cast<double>(tensor.numel),
                                        .relative = relative,
                                        .least_scale = least_scale,
                                        .clipping_threshold = clipping_threshold};
    const kernels::UpdateTarget target = target_of(memory, slice, options, step);
    const double decay = lr * slice.weight_decay;
    if (tensor.is_matrix)
      kernels::adafactor(stream, target, slice.range.begin, factors_of(memory, tensor), decay, scale);
    else
      kernels::adafactor_vector(stream, target, decay, scale);
  }
}

const Rule& of_matrices() {
  static const Rule rule = {.name = "adafactor_matrix",
                            .states = {{"row_var", Extent::row}, {"col_var", Extent::column}},
                            .update = update,
                            .passes = {7, 0},
                            .statistics = {2, words, count}};
  return rule;
}

const Rule& of_vectors() {
  static const Rule rule = {.name = "adafactor_vector",
                            .states = {{"variance"}},
                            .update = update,
                            .passes = {5, 4},
                            .statistics = {2, words, count}};
  return rule;
}

}  // namespace

const Optimizer& adafactor_optimizer() {
  static const Optimizer adafactor = {.name = "adafactor",
                                      .rules = {&of_matrices(), &of_vectors()},
                                      .rule_of = [](const OptimizerOptions&, const Parameter& parameter) -> const Rule& {
                                        return parameter.shape.size() > 1 ? of_matrices() : of_vectors();
                                      }};
  return adafactor;
}

}  // namespace fsdp
