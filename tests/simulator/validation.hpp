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

/// A change of the method, to see what a term is worth. It receives the rates of a row.
using Change = std::function<void(Rates&, const Constants&)>;

/// One measured update, planned. Updates of fsdp itself take the path of the product: rates_of() and the plan's own costs. Those
/// of other programs have the program's kernels and constants.
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
Constants fit(std::span<const Row* const> rows, Constants start, const std::vector<Constant>& indices, const Change& change = nullptr,
              const std::function<void(Kernels&)>& other_kernels = nullptr);

struct Prediction {
  const Row* row;
  double predicted;  // tokens per second and GPU
  double error() const { return predicted / row->measured - 1; }  // positive: predicted too fast
};
struct Errors {
  std::size_t count = 0, above_20 = 0;
  double mean = 0, bias = 0, worst = 0;  // of the absolute errors, of the errors, the largest error; in %
};
Errors errors_of(std::span<const Prediction> predictions, const std::function<bool(const Row&)>& belongs);

/// The four sets of rows that the goals are about.
struct RowSet {
  std::string name;
  bool (*has)(const Row&);
};
std::span<const RowSet> row_sets();
std::string describe_sets(std::span<const Prediction> predictions);

/// Predicts all rows that are not excluded, with the fitted constants.
std::vector<Prediction> predict_all(const std::vector<Row>& rows);

}  // namespace fsdp::simulator
