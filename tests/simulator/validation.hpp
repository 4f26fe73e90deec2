// Predictions of the measured updates, the fit of the constants, and the sums of errors.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "simulator/peers.hpp"

namespace fsdp::simulator {

/// A change of a row's rates, to see what a term of the method is worth.
using Change = std::function<void(const Row&, Rates&, const Constants&)>;

using KernelChange = std::function<void(Kernels&)>;

/// One measured update, planned. Updates of fsdp itself take the path of the product: rates_of() and the plan's own costs.
/// Those of other programs have the program's kernels and constants.
class MeasuredUpdate {
 public:
  explicit MeasuredUpdate(const Row& row, const std::optional<Kernels>& kernels = {});
  MeasuredUpdate(const MeasuredUpdate&) = delete;

  /// Tokens per second and GPU.
  double predicted(const Constants& constants, const Change& change = nullptr) const;
  StepPrediction step(const Constants& constants, const Change& change = nullptr) const;

 private:
  const Row& row_;
  std::optional<Kernels> kernels_;
  std::unique_ptr<const Transformer> model_;
  UpdateSimulation simulation_;
};

/// Fits the constants with these indices on measured updates, from `start`, by least squares of the logarithms of
/// predicted / measured. Deterministic.
Constants fit(std::span<const Row* const> rows, Constants start, const std::vector<Constant>& indices,
              const Change& change = nullptr, const KernelChange& other_kernels = nullptr);

/// The rows of the fit, and the constants that it begins with. The result does not depend on them.
std::vector<const Row*> rows_to_fit(const std::vector<Row>& rows);
inline constexpr Constants start_of_fit = {0.75, 0.75, 0.75, 1, 2, 0.3, 0.02, 1e-5};
std::vector<Constant> all_constants();

struct Prediction {
  const Row* row;
  double predicted;                                               // tokens per second and GPU
  double error() const { return predicted / row->measured - 1; }  // positive: predicted too fast
};
struct Errors {
  std::size_t count = 0, above_20 = 0;
  double mean = 0, bias = 0, worst = 0;  // of the absolute errors, of the errors, the largest error; in %
};
Errors errors_of(std::span<const Prediction> predictions, const std::function<bool(const Row&)>& belongs);

/// The sets of rows that the goals are about.
struct RowSet {
  std::string_view name;
  bool (*has)(const Row&);
};
enum RowSetIndex { of_llm_foundry, of_others, of_vtrain, of_holdout };
extern const std::array<RowSet, 4> row_sets;

/// Predicts all rows that are not excluded.
std::vector<Prediction> predict_all(const std::vector<Row>& rows, const Constants& constants = fitted,
                                    const Change& change = nullptr, const KernelChange& other_kernels = nullptr);

}  // namespace fsdp::simulator
