// The list of operations of a recorded layer or loss (tape.hpp). Internal.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tape.hpp"
#include "layers/tape.hpp"

namespace fsdp {

enum class TapeKind : std::uint8_t {
  // These have no memory of their own.
  x,
  parameter,
  number,
  labels,
  targets,
  all,  // x of all ranks
  position,
  columns,  // a view of an operand
  stop,     // likewise
  // These are computed row by row, a number of rows at a time.
  row,  // `op` of the operands
  row_sum,
  join,
  column_sum,  // complete after all rows
  // These need whole operands.
  matmul,
  transpose,
  rows_of,
  dropout,
};

struct TapeNode {
  TapeKind kind = TapeKind::row;
  kernels::TapeOp op = kernels::TapeOp::copy;
  int a = -1, b = -1, c = -1;  // operands
  std::size_t rows = 0, columns = 0;
  float k = 0, m = 0;  // the numbers of `op`; k: a number, or the rate of dropout
  std::size_t n = 0,
              begin = 0;     // n: index of a parameter, column of labels, number of positions, block, or number of a dropout
  bool transposed = false;   // b of matmul
  bool own = false;          // a position that is counted from this rank's first row in `all`
  std::uint64_t leaves = 0;  // bits of what its gradient serves: 1 for x, 2 << i for parameter i

  bool is_source() const { return kind <= TapeKind::position; }
  bool is_view() const { return kind == TapeKind::columns || kind == TapeKind::stop; }
  bool is_barrier() const { return kind >= TapeKind::matmul; }
};

struct TapeList {
  std::vector<TapeNode> nodes;
  std::vector<LayerParameter> parameters;
  int result = -1;

  const TapeNode& operator[](int i) const { return nodes[static_cast<std::size_t>(i)]; }
  /// The node whose memory the view i shows, and the first column of the view in it.
  std::pair<int, std::size_t> base(int i) const;
  /// A line for each operation. `numbers`: with sizes and numbers, else only what must be the same for all batches.
  std::string text(bool numbers) const;
};

/// A recording under way.
struct Recording {
  BatchSizes batch;
  bool is_loss = false;
  RecordedLossOptions options;
  TapeList list = {};
  bool has_ended = false;
  std::size_t dropouts = 0;
};

/// Calls `function` for a batch. Throws UserError unless the result has a row for each row, and one column for a loss.
TapeList record(const std::function<Value(Tape&, Value x)>& function, std::size_t inputs, const BatchSizes& batch, bool is_loss,
                const RecordedLossOptions& options);

}  // namespace fsdp
