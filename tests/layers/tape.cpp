// Recorded layers and losses (layers/tape.hpp).
#include <boost/test/unit_test.hpp>

#include <cmath>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

using namespace fsdp;

namespace {

using Recorded = std::function<Value(Tape&, Value)>;

void require_right(const std::string& name, const Recorded& function, std::size_t inputs = 7,
                   const GradientCheckOptions& options = {}) {
  const GradientCheck check = check_gradients(*recorded(inputs, function), options);
  BOOST_TEST(check.passed, name << ": " << check.where);
}

void require_right_loss(const std::string& name, const Recorded& function, std::size_t inputs = 6,
                        const RecordedLossOptions& of = {}, const GradientCheckOptions& options = {}) {
  const GradientCheck check = check_gradients(*recorded_loss(inputs, function, of), options);
  BOOST_TEST(check.passed, name << ": " << check.where);
}

/// Both have 21 rows, so that a tile is not full.
constexpr GradientCheckOptions rows_21 = {.B = 3, .T = 7};

}  // namespace

BOOST_AUTO_TEST_CASE(of_one_operand) {
  require_right("-", [](Tape&, Value x) { return -x; });
  require_right("exp", [](Tape&, Value x) { return exp(x); });
  require_right("log", [](Tape&, Value x) { return log(square(x) + 0.5f); });
  require_right("sqrt", [](Tape&, Value x) { return fsdp::sqrt(square(x) + 0.5f); });
  require_right("square", [](Tape&, Value x) { return square(x); });
  require_right("abs", [](Tape&, Value x) { return fsdp::abs(x); });
  require_right("tanh", [](Tape&, Value x) { return tanh(x); });
  require_right("sigmoid", [](Tape&, Value x) { return sigmoid(x); });
  require_right("relu", [](Tape&, Value x) { return relu(x); });
  require_right("silu", [](Tape&, Value x) { return silu(x); });
  require_right("gelu", [](Tape&, Value x) { return gelu(x); });
  require_right("gelu of erf", [](Tape&, Value x) { return gelu(x, ops::Gelu::erf); });
  require_right("clamp", [](Tape&, Value x) { return clamp(x, -0.7f, 0.4f); });
  require_right("min and max of numbers", [](Tape&, Value x) { return min(x, 0.5f) + max(x, -0.3f); });
  require_right("numbers", [](Tape&, Value x) { return (2.0f - x) * 3.0f / 1.5f + 1.0f / (x * x + 1.0f) - 0.25f; });
}

BOOST_AUTO_TEST_CASE(of_two_operands) {
  for (const GradientCheckOptions& options : {GradientCheckOptions{}, rows_21}) {
    const auto with = [&](const char* name, std::size_t parameter_rows, std::size_t parameter_columns,
                          const std::function<Value(Value, Value)>& f) {
      require_right(
          name,
          [=](Tape& tape, Value x) {
            const Value p = tape.parameter("p", {parameter_rows, parameter_columns}, normal(1));
            return f(x, p) + 0.5f * f(p, x) + f(x, row_sum(x)) + 2.0f * f(row_mean(x), x);
          },
          4, options);
    };
    for (const std::size_t n : {1, 4}) {
      with("+", 1, n, [](Value a, Value b) { return a + b; });
      with("-", 1, n, [](Value a, Value b) { return a - b; });
      with("*", 1, n, [](Value a, Value b) { return a * b; });
      with("/", 1, n, [](Value a, Value b) { return a / (square(b) + 1.0f); });
      with("min", 1, n, [](Value a, Value b) { return min(a, b); });
      with("max", 1, n, [](Value a, Value b) { return max(a, b); });
      with("where", 1, n,
           [](Value a, Value b) { return where(is_less(a, b), square(a), b) + where(is_less(a, 0.3f), b, 0.5f); });
    }
  }
}

BOOST_AUTO_TEST_CASE(of_rows_and_columns) {
  for (const GradientCheckOptions& options : {GradientCheckOptions{}, rows_21}) {
    require_right(
        "row_sum", [](Tape&, Value x) { return row_sum(square(x)); }, 7, options);
    require_right(
        "row_mean", [](Tape&, Value x) { return x * row_mean(x); }, 7, options);
    require_right(
        "row_max", [](Tape&, Value x) { return x * row_max(x); }, 7, options);
    require_right(
        "log_sum_exp", [](Tape&, Value x) { return log_sum_exp(x * 2.0f); }, 7, options);
    require_right(
        "softmax", [](Tape&, Value x) { return softmax(x); }, 7, options);
    require_right(
        "log_softmax", [](Tape&, Value x) { return log_softmax(x); }, 7, options);
    require_right(
        "column_sum", [](Tape&, Value x) { return x * column_sum(square(x)) * 0.1f; }, 7, options);
    require_right(
        "columns", [](Tape&, Value x) { return columns(x, 2, 3) * columns(x, 3, 3) + columns(x, 0, 1); }, 7, options);
    require_right(
        "join", [](Tape&, Value x) { return join(square(x), join(columns(x, 0, 2), row_sum(x))); }, 7, options);
    require_right(
        "transpose", [](Tape&, Value x) { return matmul(x, matmul(transpose(x), square(x))) * 0.1f; }, 4, options);
    require_right(
        "pick", [](Tape& tape, Value x) { return x * pick(square(x), tape.position(5)); }, 7, options);
    require_right(
        "rows_of",
        [](Tape& tape, Value x) {
          const Value table = tape.parameter("table", {5, 7}, normal(1));
          return x * rows_of(table, tape.position(5)) + rows_of(square(table), tape.position(3));
        },
        7, options);
    require_right(
        "x", [](Tape&, Value x) { return x; }, 7, options);
    require_right(
        "stop_gradient of a mask", [](Tape&, Value x) { return x * stop_gradient(is_less(x, 0.0f)); }, 7, options);
    require_right(
        "unit vectors", [](Tape&, Value x) { return x / fsdp::sqrt(row_sum(square(x)) + 1e-6f); }, 7, options);
    require_right(
        "dropout", [](Tape&, Value x) { return dropout(square(x), 0.3) + x + dropout(x, 0.5); }, 7, options);
  }
}

BOOST_AUTO_TEST_CASE(of_products) {
  using enum ops::Transpose;
  for (const GradientCheckOptions& options : {GradientCheckOptions{}, rows_21}) {
    const std::size_t block = options.T;
    require_right(
        "linear",
        [](Tape& tape, Value x) {
          return matmul(x, tape.parameter("w", {5, 7}, normal(0.5f)), yes);
        },
        7, options);
    require_right(
        "not transposed",
        [](Tape& tape, Value x) {
          return matmul(x, tape.parameter("w", {7, 5}, normal(0.5f)));
        },
        7, options);
    require_right(
        "of x and x", [](Tape&, Value x) { return matmul(matmul(x, x, yes), x) * 0.1f; }, 4, options);
    require_right(
        "in blocks",
        [=](Tape&, Value x) {
          const Value scores = softmax(matmul(columns(x, 0, 3), columns(x, 2, 3), yes, block));
          return matmul(scores, square(x), no, block) + x;
        },
        6, options);
    require_right(
        "gated",
        [](Tape& tape, Value x) {
          const Value w1 = tape.parameter("w1", {10, 6}, normal(0.5f)), w3 = tape.parameter("w3", {10, 6}, normal(0.5f));
          const Value bias = tape.parameter("bias", {10}, normal(0.5f)), w2 = tape.parameter("w2", {6, 10}, normal(0.5f));
          return matmul(silu(matmul(x, w1, yes) + bias) * matmul(x, w3, yes), w2, yes);
        },
        6, options);
    require_right(
        "a computed matrix",
        [](Tape& tape, Value x) {
          const Value w = tape.parameter("w", {6, 4}, normal(0.5f)), scale = exp(tape.parameter("scale", {1}, constant(0.5f)));
          return matmul(x, square(w) * scale + 0.1f) * scale;
        },
        6, options);
  }
}

BOOST_AUTO_TEST_CASE(of_losses) {
  using enum ops::Transpose;
  for (const GradientCheckOptions& options : {GradientCheckOptions{}, rows_21}) {
    require_right_loss(
        "of nothing", [](Tape&, Value x) { return row_sum(square(x)); }, 6, {}, options);
    require_right_loss(
        "of targets", [](Tape& tape, Value x) { return row_mean(square(x - tape.targets())); }, 6, {.targets = 6}, options);
    require_right_loss(
        "of labels", [](Tape& tape, Value x) { return cross_entropy(x * 2.0f, tape.labels()); }, 6, {.labels = 1, .classes = 6},
        options);
    require_right_loss(
        "of two labels", [](Tape& tape, Value x) { return pick(square(x), tape.labels()) + pick(exp(x), tape.labels(1)); }, 6,
        {.labels = 2, .classes = 6}, options);
    require_right_loss(
        "contrastive",
        [](Tape& tape, Value x) {
          const Value scale = exp(tape.parameter("log_scale", {1}, constant(0.5f)));
          const auto side = [&](std::size_t mine, std::size_t other) {
            return cross_entropy(matmul(columns(x, mine, 3) * scale, columns(x, other, 3), yes), tape.position(tape.rows));
          };
          return 0.5f * (side(0, 3) + side(3, 0));
        },
        6, {}, options);
  }
}
