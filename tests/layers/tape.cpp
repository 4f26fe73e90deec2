// Recorded layers and losses (layers/tape.hpp).
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <optional>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

#include "layers/recordings.hpp"
#include "layers/tape_plan.hpp"

using namespace fsdp;

namespace {

using enum ops::Transpose;
using test::random_recording, test::numbers_for, test::difference, test::Recorded;

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

BOOST_AUTO_TEST_CASE(random_recordings_are_those_without_shared_memory) {
  double worst = 0, worst_16 = 0;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    const Recorded function = random_recording(seed, 3 + static_cast<int>(seed * 7 % 38));
    const std::size_t B = 1 + seed % 4, T = 1 + seed * 5 % 23;
    const LayerPtr layer = recorded(6, function), plain = recorded(6, function, false);
    const test::Tensors given = numbers_for(*layer, B * T, seed);
    kernels::set_threads(1);
    const test::Tensors alone = test::run_layer(*layer, given, B, T, DType::f32);
    const double apart = difference(alone, test::run_layer(*plain, given, B, T, DType::f32));
    BOOST_TEST(apart < 1e-5, "seed " << seed << ": " << apart);
    worst = std::max(worst, apart);
    for (int threads = 2; threads <= 4; ++threads) {
      kernels::set_threads(threads);
      const test::Tensors together = test::run_layer(*layer, given, B, T, DType::f32);
      BOOST_TEST((together == alone), "seed " << seed << " with " << threads << " threads: " << difference(together, alone));
    }
    kernels::set_threads(1);
    if (seed % 3 == 0 && seed * 7 % 38 < 6)  // few operations, which do not multiply the rounding
      worst_16 = std::max(worst_16, difference(test::run_layer(*layer, given, B, T, DType::f16), alone));
  }
  BOOST_TEST_MESSAGE("worst " << worst << ", in 16 bits " << worst_16);
  BOOST_TEST(worst_16 > 0);
  BOOST_TEST(worst_16 < 5e-2);
}

BOOST_AUTO_TEST_CASE(random_recordings_have_right_gradients) {
  for (unsigned seed = 1; seed <= 30; ++seed)
    require_right("seed " + std::to_string(seed), random_recording(seed, 3 + static_cast<int>(seed), true), 6,
                  {.B = 2, .T = 3, .most_elements = 12, .step = 3e-3, .tolerance_16_bits = 1e6});
}

BOOST_AUTO_TEST_CASE(values_and_gradients_are_those_of_pytorch) { test::compare_recordings_with_pytorch(nullptr); }

// What forward computes from a value is what backward finds when the value was rounded to 16 bits between them.
BOOST_AUTO_TEST_CASE(values_that_are_kept_in_16_bits) {
  require_right("row_max", [](Tape& tape, Value x) {
    const Value h = square(x) * 0.7f;
    return matmul(h, tape.parameter("w", {7, 7}, normal(0.5f))) + row_max(h);
  });
  require_right("relu", [](Tape& tape, Value x) {
    const Value h = square(x) * 0.7f;
    return matmul(h, tape.parameter("w", {7, 7}, normal(0.5f))) + fsdp::relu(row_max(h) - h);
  });
}

BOOST_AUTO_TEST_CASE(losses_of_all_rows) {
  require_right_loss("CLIP", [](Tape& tape, Value x) {
    return cross_entropy(matmul(columns(x, 0, 3), columns(tape.all(), 3, 3), ops::Transpose::yes), tape.own_row());
  });
  require_right_loss("transposed",
                     [](Tape& tape, Value x) { return row_sum(x) + row_sum(column_sum(square(transpose(tape.all())))); });
}

BOOST_AUTO_TEST_CASE(mistakes_are_named) {
  const auto refused = [](const Recorded& function, const std::string& wanted, std::size_t inputs = 6) {
    try {
      recorded(inputs, function)->sizes({.B = 2, .T = 16});
      BOOST_TEST(false, wanted << " is not refused");
    } catch (const UserError& error) {
      BOOST_TEST(std::string(error.what()).find(wanted) != std::string::npos, error.what());
    }
  };
  refused([](Tape&, Value x) { return x + columns(x, 0, 3); },
          "a + b of [R, 6] and [R, 3] (sizes are equal, or one side is a row, a");
  refused([](Tape& tape, Value x) { return row_sum(x) * tape.parameter("row", {6}, normal(1)); }, "a * b of [R, 1] and [1, 6]");
  refused(
      [](Tape& tape, Value x) {
        return matmul(x, tape.parameter("w", {5, 4}, normal(1)));
      },
      "matmul (a b) of [R, 6] and [5, 4]");
  refused([](Tape&, Value x) { return matmul(x, x, yes, 5); },
          "matmul (a b^T) of [32, 6] and [32, 6] (both have a multiple of the block");
  refused([](Tape&, Value x) { return columns(x, 4, 3); }, "columns(4, 3) of [R, 6] (these columns do not exist)");
  refused([](Tape&, Value x) { return column_sum(x); }, "the result is [1, 6] (a layer's has R rows)");
  refused([](Tape& tape, Value x) { return pick(x, tape.position(7)); },
          "pick of [32, 6] by position(7) (an index must be below 6)");
  refused([](Tape&, Value x) { return pick(x, x); }, "the index of pick is `x` (it must be labels(), position() or own_row())");
  refused([](Tape& tape, Value x) { return x + tape.labels(); },
          "labels() of a recording for a layer (only losses have labels)");
  refused([](Tape& tape, Value) { return tape.targets(); }, "targets() of a recording without targets");
  refused(
      [](Tape& tape, Value x) { return tape.rows > 0 ? exp(x) : tanh(x); },
      "the recording for 2 sequences of 16 positions differs from that for no rows (operation 1 is `exp` 0, but operation 1 is "
      "`tanh` 0 there)");
  refused([](Tape& tape, Value x) { return columns(join(x, x), 0, tape.rows > 0 ? 5 : 6); },
          "differs from that for no rows (the result has 5 columns, but 6 there)");
  refused([](Tape& tape, Value x) { return tape.rows > 0 ? x + 1.0f + 1.0f : x + 1.0f; }, "there is no more operation there");
  std::optional<Value> kept;
  refused(
      [&](Tape&, Value x) {
        if (!kept) return *(kept = x);
        return x + *kept;
      },
      "a Value of a recording that has ended is used");
  refused(
      [](Tape&, Value x) {
        std::optional<Value> inner;
        recorded(6, [&](Tape&, Value y) { return *(inner = y + x); });
        return x;
      },
      "a + b of values of two recordings");
  refused({}, "the function of recorded() is null");
  refused([](Tape&, Value x) { return x; }, "recorded() has inputs 0", 0);
  BOOST_CHECK_THROW(recorded_loss(6, [](Tape&, Value x) { return x; }), UserError);
  BOOST_CHECK_THROW(recorded_loss(6, [](Tape&, Value x) { return row_sum(x); }, {.labels = 1, .targets = 1}), UserError);
  BOOST_CHECK_THROW(recorded_loss(6, [](Tape& tape, Value x) { return cross_entropy(x, tape.labels()); }, {.labels = 1})
                        ->sizes({.B = 1, .T = 1}),
                    UserError);
}

BOOST_AUTO_TEST_CASE(inside_other_layers) {
  const auto square_scores = [](Tape&, Value x) { return matmul(softmax(matmul(x, x, yes)), x); };  // saves [R, R]
  const GradientCheckOptions options = {.B = 3, .T = 4};
  const auto check = [&](const char* name, const LayerPtr& layer) {
    const GradientCheck found = check_gradients(*layer, options);
    BOOST_TEST(found.passed, name << ": " << found.where);
  };
  const auto layers = [&] {
    return NamedLayers{{"in", linear(5, 6)}, {"scores", recorded(6, square_scores)}, {"out", linear(6, 5)}};
  };
  check("sequential", sequential(layers()));
  check("residual", residual(sequential(layers())));
  check("parallel", parallel({{"a", sequential(layers())}, {"b", recorded(5, square_scores)}}, Join::concatenate));
  check("keep_columns", keep_columns(2, sequential(layers())));
  check("positions", positions(3, sequential(layers())));

  class OwnMemory : public Composition {
   public:
    explicit OwnMemory(LayerPtr layer) : Composition("OwnMemory", {{"inner", std::move(layer)}}) {}
    std::size_t scratch() const override { return Composition::scratch() + 6; }
    void forward(const ForwardPass& pass) const override { run_forward(pass, 0, pass.x, pass.y); }
    void backward(const BackwardPass& pass) const override { run_backward(pass, 0, pass.x, pass.dy, pass.dx); }
  };
  BOOST_TEST(OwnMemory(linear(6, 6)).sizes({.B = 2, .T = 3}).scratch == 6u);
  BOOST_CHECK_THROW(OwnMemory(recorded(6, square_scores)).sizes({.B = 2, .T = 3}), UserError);
}
