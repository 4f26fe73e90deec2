#include "layers/tape.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.hpp"
#include "base/format.hpp"
#include "layers/place.hpp"
#include "layers/tape_list.hpp"

namespace fsdp {

using kernels::TapeOp;

namespace {

/// The names of operations in messages: of TapeKind, and of TapeOp for rows.
constexpr const char* kind_names[] = {"x",          "parameter", "number",        "labels",  "targets", "all",
                                      "position",   "columns",   "stop_gradient", "",        "row_sum", "join",
                                      "column_sum", "matmul",    "transpose",     "rows_of", "dropout"};
constexpr const char* op_names[] = {"fill",    "labels",      "position", "load",        "store",         "copy",     "affine",
                                    "exp",     "log",         "sqrt",     "square",      "abs",           "tanh",     "sigmoid",
                                    "relu",    "silu",        "gelu",     "gelu of erf", "clamp",         "+",        "-",
                                    "*",       "/",           "min",      "max",         "is_less",       "is_equal", "where",
                                    "row_max", "log_sum_exp", "softmax",  "log_softmax", "cross_entropy", "pick",     "loss"};

std::string operation_name(const TapeNode& node) {
  return node.kind == TapeKind::row ? op_names[static_cast<std::size_t>(node.op)]
                                    : kind_names[static_cast<std::size_t>(node.kind)];
}

/// The first recording, which is for no rows, has R for their number.
std::string size_text(const TapeNode& node) {
  return node.rows == 0 ? format("[R, {}]", node.columns) : format("[{}, {}]", node.rows, node.columns);
}

Recording& open(const Value& value) {
  if (!value.recording() || value.recording()->has_ended)
    throw UserError("a Value of a recording that has ended is used (it exists only in the call of the function); use it there");
  return *value.recording();
}

const TapeNode& node_of(const Value& value) { return open(value).list[value.index()]; }

/// Adds an operation to the recording of `first`.
Value push(const Value& first, TapeNode node) {
  Recording& recording = open(first);
  const bool has_gradient = node.kind != TapeKind::stop && node.op != TapeOp::is_less && node.op != TapeOp::is_equal;
  for (const int operand : {node.a, node.b, node.c})
    if (operand >= 0 && has_gradient) node.leaves |= recording.list[operand].leaves;
  recording.list.nodes.push_back(node);
  return {first.recording(), static_cast<int>(recording.list.nodes.size()) - 1};
}

void require_one_recording(const char* name, const Value& a, const Value& b) {
  if (&open(a) != &open(b))
    throw UserError(format("{} of values of two recordings (each call of a function has its own); use values of one", name));
}

[[noreturn]] void refuse_sizes(const char* operation, const Value& a, const Value& b, const char* wanted) {
  throw UserError(format("{} of {} and {} ({}); correct the recorded function", operation, size_text(node_of(a)),
                         size_text(node_of(b)), wanted));
}

/// The size of a dimension of which both operands may be a part: equal, or one of them 1. Returns false if they do not fit.
bool joins(std::size_t a, std::size_t b, std::size_t& both) {
  both = a == 1 ? b : a;
  return a == b || a == 1 || b == 1;
}

Value one(TapeOp op, const Value& a, float k = 0, float m = 0) {
  const TapeNode& x = node_of(a);
  return push(a, {.op = op, .a = a.index(), .rows = x.rows, .columns = x.columns, .k = k, .m = m});
}

/// An operation whose result has one number for each row.
Value reduce(TapeOp op, const Value& a) { return push(a, {.op = op, .a = a.index(), .rows = node_of(a).rows, .columns = 1}); }

Value two(TapeOp op, const char* operation, const Value& a, const Value& b) {
  require_one_recording(operation, a, b);
  const TapeNode x = node_of(a), y = node_of(b);
  TapeNode node{.op = op, .a = a.index(), .b = b.index()};
  const bool fit = joins(x.rows, y.rows, node.rows) && joins(x.columns, y.columns, node.columns);
  const auto whole = [&](const TapeNode& side) { return side.rows == node.rows && side.columns == node.columns; };
  if (!fit || !(whole(x) || whole(y)))
    refuse_sizes(operation, a, b, "sizes are equal, or one side is a row, a column or a number");
  return push(a, node);
}

Value number(const Value& like, float value) {
  return push(like, {.kind = TapeKind::number, .rows = 1, .columns = 1, .k = value});
}

/// What a whole operation can read directly.
enum class Operand { any, no_view, computed };

/// `a`, or a copy of it if `a` has no memory in the type of the pass, or is not an operand that the operation can read.
Value whole(const Value& a, Operand wanted) {
  const TapeList& list = open(a).list;
  const TapeNode& base = list[list.base(a.index()).first];
  const bool is_parameter = base.kind == TapeKind::parameter && wanted != Operand::computed;
  const bool is_all = base.kind == TapeKind::all && wanted == Operand::any;  // its gradient is fp32
  const bool has_memory = !base.is_source() || base.kind == TapeKind::x || is_all || is_parameter;
  return has_memory && (wanted == Operand::any || !list[a.index()].is_view()) ? a : one(TapeOp::copy, a);
}

/// Throws UserError unless `index` is labels(), position() or own_row() with numbers below `limit`.
void require_index(const char* operation, const Value& a, const Value& index, std::size_t limit) {
  require_one_recording(operation, a, index);
  const Recording& recording = open(a);
  const TapeNode& node = node_of(index);
  const bool is_position = node.kind == TapeKind::position;
  if (!is_position && node.kind != TapeKind::labels)
    throw UserError(
        format("the index of {} is `{}` (it must be labels(), position() or own_row()); correct the recorded function",
               operation, operation_name(node)));
  const std::size_t most = is_position ? node.n : recording.options.classes;
  if ((most == 0 || most > limit) && recording.batch.rows() > 0)
    throw UserError(format("{} of {} by {} (an index must be below {}); {}", operation, size_text(node_of(a)),
                           node.own      ? std::string("own_row()")
                           : is_position ? format("position({})", most)
                           : most == 0   ? std::string("labels of any size")
                                         : format("labels below {}", most),
                           limit, is_position ? "correct the recorded function" : "set RecordedLossOptions::classes"));
}

}  // namespace

std::pair<int, std::size_t> TapeList::base(int i) const {
  std::size_t begin = 0;
  for (; (*this)[i].is_view(); i = (*this)[i].a) begin += (*this)[i].begin;
  return {i, begin};
}

std::string TapeList::text(bool numbers) const {
  std::string all;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TapeNode& node = nodes[i];
    all += format("operation {} is `{}{}`", i, node.own ? "own_row" : operation_name(node),
                  node.transposed ? " of the transpose" : "");
    for (const int operand : {node.a, node.b, node.c})
      if (operand >= 0) all += format(" {}", operand);
    if (numbers) all += format(", {} {} {} {} {}", node.columns, node.k, node.m, node.n, node.begin);
    all += '\n';
  }
  for (const LayerParameter& parameter : parameters)
    all += format("parameter {} {}\n", parameter.name, to_string(parameter.shape));
  return all;
}

std::size_t Value::rows() const { return node_of(*this).rows; }
std::size_t Value::columns() const { return node_of(*this).columns; }

Tape::Tape(std::shared_ptr<Recording> recording)
    : B(recording->batch.B),
      T(recording->batch.T),
      rows(recording->batch.rows()),
      ranks(recording->batch.ranks),
      recording_(std::move(recording)) {}

Value Tape::parameter(std::string name, Shape shape, Init init) {
  TapeList& list = recording_->list;
  const std::size_t i = list.parameters.size(), first = shape.size() > 1 ? shape.front() : 1;
  if (i == kernels::most_tape_parameters)
    throw UserError(
        format("a recording has more than {} parameters; make several layers of it", kernels::most_tape_parameters));
  if (numel(shape) == 0 || shape.empty())
    throw UserError(
        format("parameter '{}' has the shape {} (it is empty, or depends on the batch, which parameters must not); correct the "
               "recorded function",
               name, to_string(shape)));
  list.parameters.push_back({std::move(name), shape, init});
  return push(
      {recording_, 0},
      {.kind = TapeKind::parameter, .rows = first, .columns = numel(shape) / first, .n = i, .leaves = std::uint64_t{2} << i});
}

Value Tape::labels(std::size_t column) {
  if (!recording_->is_loss) throw UserError("labels() of a recording for a layer (only losses have labels); use a loss");
  if (column >= recording_->options.labels)
    throw UserError(
        format("labels({}) of a recording with {} labels for each row (the first one is 0); set "
               "RecordedLossOptions::labels",
               column, recording_->options.labels));
  return push({recording_, 0}, {.kind = TapeKind::labels, .rows = rows, .columns = 1, .n = column});
}

Value Tape::targets() {
  if (recording_->options.targets == 0)
    throw UserError("targets() of a recording without targets (only losses have them); set RecordedLossOptions::targets");
  return push({recording_, 0}, {.kind = TapeKind::targets, .rows = rows, .columns = recording_->options.targets});
}

Value Tape::all() {
  if (!recording_->is_loss)
    throw UserError("all() of a recording for a layer (only losses see the rows of other ranks); leave it out");
  const std::size_t inputs = recording_->list[0].columns;
  return push({recording_, 0}, {.kind = TapeKind::all, .rows = ranks * rows, .columns = inputs, .leaves = 1});
}

Value Tape::own_row() {
  if (!recording_->is_loss) throw UserError("own_row() of a recording for a layer (only losses have all()); leave it out");
  return push({recording_, 0}, {.kind = TapeKind::position, .rows = rows, .columns = 1, .n = ranks * rows, .own = true});
}

Value Tape::position(std::size_t n) {
  if (n == 0 && rows > 0)
    throw UserError("position(0): there is no position (n must be at least 1); correct the recorded function");
  return push({recording_, 0}, {.kind = TapeKind::position, .rows = rows, .columns = 1, .n = n});
}

TapeList record(const std::function<Value(Tape&, Value x)>& function, std::size_t inputs, const BatchSizes& batch, bool is_loss,
                const RecordedLossOptions& options) {
  const auto recording = std::make_shared<Recording>(Recording{batch, is_loss, options});
  struct End {
    Recording& recording;
    ~End() { recording.has_ended = true; }
  } const end{*recording};
  recording->list.nodes.push_back({.kind = TapeKind::x, .rows = batch.rows(), .columns = inputs, .leaves = 1});
  Tape tape(recording);
  const Value given = function(tape, Value(recording, 0));
  if (&open(given) != recording.get())
    throw UserError("the result is a Value of another recording (each call of the function has its own); use values of one");
  const TapeNode& node = node_of(given);
  if (node.rows != batch.rows() || (is_loss && node.columns != 1))
    throw UserError(format("the result is {} ({}); correct the recorded function", size_text(node),
                           is_loss ? "a loss is [R, 1]" : "a layer's has R rows"));
  if (is_loss) one(TapeOp::count_loss, given);
  const bool is_last = is_loss || node.is_source() || node.is_view();
  if (!is_loss && is_last) one(TapeOp::copy, given);
  recording->list.result = is_last ? static_cast<int>(recording->list.nodes.size()) - 1 : given.index();
  return recording->list;
}

Value operator+(const Value& a, const Value& b) { return two(TapeOp::add, "a + b", a, b); }
Value operator-(const Value& a, const Value& b) { return two(TapeOp::subtract, "a - b", a, b); }
Value operator*(const Value& a, const Value& b) { return two(TapeOp::multiply, "a * b", a, b); }
Value operator/(const Value& a, const Value& b) { return two(TapeOp::divide, "a / b", a, b); }
Value operator+(const Value& a, float b) { return one(TapeOp::affine, a, 1, b); }
Value operator-(const Value& a, float b) { return one(TapeOp::affine, a, 1, -b); }
Value operator*(const Value& a, float b) { return one(TapeOp::affine, a, b, 0); }
Value operator/(const Value& a, float b) { return a / number(a, b); }
Value operator+(float a, const Value& b) { return b + a; }
Value operator-(float a, const Value& b) { return one(TapeOp::affine, b, -1, a); }
Value operator*(float a, const Value& b) { return b * a; }
Value operator/(float a, const Value& b) { return number(b, a) / b; }
Value min(const Value& a, const Value& b) { return two(TapeOp::min, "min", a, b); }
Value max(const Value& a, const Value& b) { return two(TapeOp::max, "max", a, b); }
Value min(const Value& a, float b) { return one(TapeOp::clamp, a, -std::numeric_limits<float>::infinity(), b); }
Value max(const Value& a, float b) { return one(TapeOp::clamp, a, b, std::numeric_limits<float>::infinity()); }
Value is_less(const Value& a, const Value& b) { return two(TapeOp::is_less, "is_less", a, b); }
Value is_less(const Value& a, float b) { return is_less(a, number(a, b)); }
Value is_equal(const Value& a, const Value& b) { return two(TapeOp::is_equal, "is_equal", a, b); }
Value is_equal(const Value& a, float b) { return is_equal(a, number(a, b)); }
Value where(const Value& mask, const Value& a, float b) { return where(mask, a, number(a, b)); }
Value where(const Value& mask, const Value& a, const Value& b) {
  require_one_recording("where", mask, a), require_one_recording("where", mask, b);
  const TapeNode m = node_of(mask), x = node_of(a), y = node_of(b);
  TapeNode node{.op = TapeOp::where, .a = stop_gradient(mask).index(), .b = a.index(), .c = b.index()};
  constexpr const char* wanted = "sizes are equal, or some are a row, a column or a number";
  if (!joins(x.rows, y.rows, node.rows) || !joins(x.columns, y.columns, node.columns)) refuse_sizes("where", a, b, wanted);
  if (!joins(m.rows, node.rows, node.rows) || !joins(m.columns, node.columns, node.columns))
    refuse_sizes("where", mask, a, wanted);
  const auto has_size = [&](const TapeNode& one) { return one.rows == node.rows && one.columns == node.columns; };
  if (!has_size(m) && !has_size(x) && !has_size(y)) refuse_sizes("where", a, b, wanted);
  return push(mask, node);
}

Value operator-(const Value& a) { return one(TapeOp::affine, a, -1, 0); }
Value exp(const Value& a) { return one(TapeOp::exp, a); }
Value log(const Value& a) { return one(TapeOp::log, a); }
Value sqrt(const Value& a) { return one(TapeOp::sqrt, a); }
Value square(const Value& a) { return one(TapeOp::square, a); }
Value abs(const Value& a) { return one(TapeOp::abs, a); }
Value tanh(const Value& a) { return one(TapeOp::tanh, a); }
Value sigmoid(const Value& a) { return one(TapeOp::sigmoid, a); }
Value relu(const Value& a) { return one(TapeOp::relu, a); }
Value silu(const Value& a) { return one(TapeOp::silu, a); }
Value gelu(const Value& a, ops::Gelu formula) {
  return one(formula == ops::Gelu::tanh ? TapeOp::gelu_tanh : TapeOp::gelu_erf, a);
}
Value clamp(const Value& a, float low, float high) {
  if (!(low <= high))
    throw UserError(format("clamp has the limits {} and {} (the first must not be larger); correct them", low, high));
  return one(TapeOp::clamp, a, low, high);
}

Value row_sum(const Value& a) {
  return push(a, {.kind = TapeKind::row_sum, .a = a.index(), .rows = node_of(a).rows, .columns = 1});
}
Value row_mean(const Value& a) { return row_sum(a) * (1.0f / static_cast<float>(std::max<std::size_t>(a.columns(), 1))); }
Value row_max(const Value& a) { return reduce(TapeOp::row_max, a); }
Value log_sum_exp(const Value& a) { return reduce(TapeOp::log_sum_exp, a); }
Value softmax(const Value& a) { return one(TapeOp::softmax, a); }
Value log_softmax(const Value& a) { return one(TapeOp::log_softmax, a); }
Value column_sum(const Value& a) {
  return push(a, {.kind = TapeKind::column_sum, .a = a.index(), .rows = 1, .columns = node_of(a).columns});
}

Value columns(const Value& a, std::size_t begin, std::size_t n) {
  const TapeNode x = node_of(a);
  const bool is_unknown = open(a).batch.rows() == 0 && (x.columns == 0 || n == 0);  // columns that depend on the batch
  if (!is_unknown && (n == 0 || begin > x.columns || n > x.columns - begin))
    throw UserError(format("columns({}, {}) of {} (these columns do not exist); correct the recorded function", as_given(begin),
                           as_given(n), size_text(x)));
  return push(a, {.kind = TapeKind::columns, .a = a.index(), .rows = x.rows, .columns = n, .begin = begin});
}
Value join(const Value& a, const Value& b) {
  require_one_recording("join", a, b);
  const TapeNode x = node_of(a), y = node_of(b);
  if (x.rows != y.rows) refuse_sizes("join", a, b, "both have the same number of rows");
  return push(a, {.kind = TapeKind::join, .a = a.index(), .b = b.index(), .rows = x.rows, .columns = x.columns + y.columns});
}
Value transpose(const Value& a) {
  const Value from = whole(a, Operand::computed);
  const TapeNode x = node_of(from);
  return push(a, {.kind = TapeKind::transpose, .a = from.index(), .rows = x.columns, .columns = x.rows});
}
Value pick(const Value& a, const Value& index) {
  require_index("pick", a, index, node_of(a).columns);
  if (node_of(a).rows != node_of(index).rows) refuse_sizes("pick", a, index, "both have the same number of rows");
  return push(a, {.op = TapeOp::pick, .a = a.index(), .b = index.index(), .rows = node_of(a).rows, .columns = 1});
}
Value rows_of(const Value& table, const Value& index) {
  require_index("rows_of", table, index, node_of(table).rows);
  const Value from = whole(table, Operand::no_view);
  return push(table, {.kind = TapeKind::rows_of,
                      .a = from.index(),
                      .b = index.index(),
                      .rows = node_of(index).rows,
                      .columns = node_of(from).columns});
}
Value matmul(const Value& a, const Value& b, ops::Transpose of_b, std::size_t block) {
  require_one_recording("matmul", a, b);
  const Value left = whole(a, Operand::any), right = whole(b, Operand::any);
  const TapeNode x = node_of(left), y = node_of(right);
  const bool transposed = of_b == ops::Transpose::yes;
  const std::size_t rows_of_b = block > 0 ? block : y.rows;
  const bool in_blocks = block == 0 || (x.rows == y.rows && x.rows % block == 0);
  const bool is_unknown = open(a).batch.rows() == 0 && (x.columns == 0 || rows_of_b == 0 || y.columns == 0);
  if (!in_blocks || (!is_unknown && (transposed ? y.columns : rows_of_b) != x.columns))
    refuse_sizes(transposed ? "matmul (a b^T)" : "matmul (a b)", a, b,
                 block > 0    ? "both have a multiple of the block's rows, and the blocks' sizes fit"
                 : transposed ? "both have the same number of columns"
                              : "a has a column for each row of b");
  return push(a, {.kind = TapeKind::matmul,
                  .a = left.index(),
                  .b = right.index(),
                  .rows = x.rows,
                  .columns = transposed ? rows_of_b : y.columns,
                  .n = block,
                  .transposed = transposed});
}
Value cross_entropy(const Value& logits, const Value& index) {
  require_index("cross_entropy", logits, index, node_of(logits).columns);
  if (node_of(logits).rows != node_of(index).rows)
    refuse_sizes("cross_entropy", logits, index, "both have the same number of rows");
  return push(
      logits,
      {.op = TapeOp::cross_entropy, .a = logits.index(), .b = index.index(), .rows = node_of(logits).rows, .columns = 1});
}
Value dropout(const Value& a, double p) {
  Recording& recording = open(a);
  if (!(p >= 0 && p < 1)) throw UserError(format("dropout has p = {} (it is from 0 to below 1); correct it", p));
  if (node_of(a).rows != recording.batch.rows())
    throw UserError(format("dropout of {} (it has a row for each of the batch's {} rows); correct the recorded function",
                           size_text(node_of(a)), recording.batch.rows()));
  const Value from = whole(a, Operand::computed);
  const TapeNode x = node_of(from);
  return push(from, {.kind = TapeKind::dropout,
                     .a = from.index(),
                     .rows = x.rows,
                     .columns = x.columns,
                     .k = static_cast<float>(p),
                     .n = recording.dropouts++});
}
Value stop_gradient(const Value& a) {
  const TapeNode x = node_of(a);
  return push(a, {.kind = TapeKind::stop, .a = a.index(), .rows = x.rows, .columns = x.columns});
}

}  // namespace fsdp
