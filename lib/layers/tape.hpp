// Layers and losses whose arithmetic is recorded, so that its backward pass follows. A function records operations on the rows
// of a batch:
//
//   recorded(64, [](Tape&, Value x) { return x / sqrt(row_sum(square(x)) + 1e-12f); })  // unit vectors
//
// A Value is a matrix that does not exist yet. The function is called when a model is made, once for each size of batch; no
// pass calls it. All recorded layers and losses support fp32, bf16 and fp16 on CPUs and GPUs. docs/api.md says what they cannot
// do.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "layers/layer.hpp"
#include "layers/ops.hpp"

namespace fsdp {

struct Recording;

/// A matrix of a recording: x, a parameter, or the result of an operation. Operations throw UserError, with both sizes, if
/// sizes do not fit, if their values belong to two recordings, or if the recording has ended.
class Value {
 public:
  /// The size of the matrix for the batch that is recorded.
  std::size_t rows() const;
  std::size_t columns() const;

  /// For the library.
  Value(std::shared_ptr<Recording> recording, int index) : recording_(std::move(recording)), index_(index) {}
  const std::shared_ptr<Recording>& recording() const { return recording_; }
  int index() const { return index_; }

 private:
  std::shared_ptr<Recording> recording_;
  int index_;
};

/// The batch that is recorded, and what values begin with besides x.
class Tape {
 public:
  explicit Tape(std::shared_ptr<Recording> recording);  // for the library

  std::size_t B, T, rows;  // of a batch: rows is B * T. All are 0 in a first recording, which finds parameters and columns
  std::size_t ranks;       // of the job; 1 in the first recording
  /// A parameter of the layer or loss, [shape[0], product of the other sizes], or [1, n] for a vector. At most 62.
  Value parameter(std::string name, Shape shape, Init init);
  /// Only in a loss: column `column` of the labels, as numbers [R, 1], and the targets [R, RecordedLossOptions::targets].
  Value labels(std::size_t column = 0);
  Value targets();
  /// Only in a loss: the x of all ranks in their order, [ranks R, inputs], and the row of each of this rank's rows in it, as an
  /// index [R, 1]. A loss that calls all() sees all ranks: see Loss::sees_all_ranks().
  Value all();
  Value own_row();
  /// The row's number modulo n, [R, 1]: with n = T the position in its sequence.
  Value position(std::size_t n);

 private:
  std::shared_ptr<Recording> recording_;
};

/// A layer that maps [R, inputs] to [R, columns of the result]. `function` must record the same operations for each size of
/// batch; only sizes and numbers may differ. Throws UserError, as `function` does.
LayerPtr recorded(std::size_t inputs, std::function<Value(Tape&, Value x)> function);

/// What a recorded loss takes from a batch: at most one of `labels` and `targets`, per row. With neither, its batches have
/// neither.
struct RecordedLossOptions {
  std::size_t labels = 0, targets = 0;
  std::size_t classes = 0;  // a batch is refused if one of its labels is not below this number; 0: no limit
};
/// A loss. The result of `function` is [R, 1], the loss of each row. If there are labels, rows whose first label is negative
/// have loss and gradient 0. Otherwise all rows count.
LossPtr recorded_loss(std::size_t inputs, std::function<Value(Tape&, Value x)> function, RecordedLossOptions options = {});

/// Element by element. One side may be a row [1, n], a column [R, 1] or a number, which is used for all rows or columns.
Value operator+(const Value& a, const Value& b);
Value operator-(const Value& a, const Value& b);
Value operator*(const Value& a, const Value& b);
Value operator/(const Value& a, const Value& b);
Value operator+(const Value& a, float b);
Value operator-(const Value& a, float b);
Value operator*(const Value& a, float b);
Value operator/(const Value& a, float b);
Value operator+(float a, const Value& b);
Value operator-(float a, const Value& b);
Value operator*(float a, const Value& b);
Value operator/(float a, const Value& b);
/// -a.
Value operator-(const Value& a);
/// The smaller, and the larger one. If two values are equal, each has half of the gradient; a value that is equal to a number
/// has none.
Value min(const Value& a, const Value& b);
Value max(const Value& a, const Value& b);
Value min(const Value& a, float b);
Value max(const Value& a, float b);
/// 1 where the condition is true, else 0. These have no gradient.
Value is_less(const Value& a, const Value& b);
Value is_less(const Value& a, float b);
Value is_equal(const Value& a, const Value& b);
Value is_equal(const Value& a, float b);
/// a where `mask` is not 0, else b. `mask` has no gradient.
Value where(const Value& mask, const Value& a, const Value& b);
Value where(const Value& mask, const Value& a, float b);

/// Element by element. clamp() limits numbers to [low, high]; its gradient is 0 at and outside of the limits.
Value exp(const Value& a);
Value log(const Value& a);
Value sqrt(const Value& a);
Value square(const Value& a);
Value abs(const Value& a);
Value tanh(const Value& a);
Value sigmoid(const Value& a);
Value relu(const Value& a);
Value silu(const Value& a);
Value gelu(const Value& a, ops::Gelu formula = ops::Gelu::tanh);
Value clamp(const Value& a, float low, float high);

/// Over the columns of each row, [R, 1]. If several columns are the largest one, they share the gradient of row_max().
Value row_sum(const Value& a);
Value row_mean(const Value& a);
Value row_max(const Value& a);
Value log_sum_exp(const Value& a);
/// The softmax of each row, and its logarithm.
Value softmax(const Value& a);
Value log_softmax(const Value& a);
/// Over the rows, [1, n], in an order that depends only on their number.
Value column_sum(const Value& a);

/// Columns [begin, begin + n), and the columns of a followed by those of b.
Value columns(const Value& a, std::size_t begin, std::size_t n);
Value join(const Value& a, const Value& b);
/// The transpose.
Value transpose(const Value& a);
/// The number of each row of a in the column that `index` names, [R, 1]. `index` is labels(), position() or own_row(). It is 0
/// for negative labels.
Value pick(const Value& a, const Value& index);
/// Row index[r] of the table for each row r; 0 for negative labels.
Value rows_of(const Value& table, const Value& index);
/// a b, or a b^T. With a `block`, a and b are divided into blocks of so many rows, and each block of a is multiplied by the
/// block of b with the same number.
Value matmul(const Value& a, const Value& b, ops::Transpose of_b = ops::Transpose::no, std::size_t block = 0);
/// log_sum_exp(logits) - pick(logits, index), [R, 1]; 0 for negative labels.
Value cross_entropy(const Value& logits, const Value& index);
/// ops::dropout() of a, which has a row for each row of the batch. Each call in a recording has its own mask.
Value dropout(const Value& a, double p);
/// a, whose gradient is 0.
Value stop_gradient(const Value& a);

// For the library:

/// The list of operations of a recorded layer or loss, one a line; "" for others. It is the same on all ranks.
std::string recorded_text(const Layer& layer);
std::string recorded_text(const Loss& loss);

}  // namespace fsdp
