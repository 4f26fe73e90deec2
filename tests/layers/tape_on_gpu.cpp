// Recorded layers and losses on a GPU: results are those of PyTorch and of the CPU, for a layer by itself and in training. The
// GPU is real, or the double of CUDA (cuda_double/).
#include "mpi_main.hpp"

#include <cmath>

#include "layers/recordings.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

Device& gpu() {
  static const std::unique_ptr<Device> device = make_device(Threads::of_gpu, 0);
  return *device;
}

/// Bounds are relative to the largest number of a result.
void compare(const std::string& name, const LayerPtr& layer, std::size_t B, std::size_t T, double bound,
             DType type = DType::f32, unsigned seed = 1) {
  const Tensors given = numbers_for(*layer, B * T, seed), here = run_layer(*layer, given, B, T, type);
  const double apart = difference(run_layer(*layer, given, B, T, type, &gpu()), here);
  BOOST_TEST_MESSAGE(name << " in " << name_of(type) << ": " << apart);
  BOOST_TEST(apart < bound, name << " in " << name_of(type) << ": " << apart);
}

/// What is not collective runs on one rank.
bool is_first() { return world().rank() == 0; }

}  // namespace

BOOST_AUTO_TEST_CASE(values_and_gradients_are_those_of_pytorch) {
  if (is_first()) compare_recordings_with_pytorch(&gpu());
}

BOOST_AUTO_TEST_CASE(random_recordings_are_those_of_the_cpu) {
  if (!is_first()) return;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const int count = 3 + static_cast<int>(seed * 7 % 38);
    const LayerPtr layer = recorded(6, random_recording(seed, count));
    const std::string name = "seed " + std::to_string(seed);
    compare(name, layer, 1 + seed % 4, 1 + seed * 5 % 23, 1e-5, DType::f32, seed);
    if (count < 9) compare(name, layer, 1 + seed % 4, 1 + seed * 5 % 23, 5e-2, DType::f16, seed);
  }
}

// Rows that are aligned to 16 bytes and rows that are not, with more numbers than a block has threads, and more tiles than
// parts.
BOOST_AUTO_TEST_CASE(wide_rows_and_many_rows) {
  if (!is_first()) return;
  const Recorded all_kinds = [](Tape& tape, Value x) {
    const std::size_t n = x.columns();
    const Value gain = tape.parameter("gain", {n}, normal(1)), scale = tape.parameter("scale", {1}, normal(1));
    const Value y = softmax(x * gain) * log_sum_exp(x) + log_softmax(x) * scale + x * pick(x, tape.position(5)) + row_max(x);
    const Value same = where(is_equal(x, row_max(x)), y, x), left = columns(y, 0, n - 3), right = columns(y, 3, n - 3);
    const Value apart = left * columns(y, 1, n - 3) + right / (square(columns(x, 2, n - 3)) + 1.0f);
    return join(apart, columns(same, 1, 3)) * (y - row_mean(same)) + cross_entropy(x, tape.position(7)) + column_sum(y) * 0.1f;
  };
  for (const std::size_t n : {8, 13, 616, 613})
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      compare(std::to_string(n) + " columns", recorded(n, all_kinds), 3, 7, type == DType::f32 ? 2e-5 : 5e-2, type);
  const Recorded small = [](Tape& tape, Value x) {
    const Value table = tape.parameter("table", {7, 2}, normal(1));
    return tanh(x + column_sum(square(x)) * 1e-3f) * rows_of(table, tape.position(7)) * row_sum(x);
  };
  compare("4,500 rows", recorded(2, small), 9, 500, 2e-5);
}

// Rows that are added to the same row of a table, by other lanes each time, are added in the CPU's order.
BOOST_AUTO_TEST_CASE(sums_of_rows_of_a_table_have_the_cpus_bits) {
  if (!is_first()) return;
  const LayerPtr layer = recorded(6, [](Tape& tape, Value x) {
    return x + rows_of(tape.parameter("table", {5, 6}, normal(1)), tape.position(5));
  });
  const Tensors given = numbers_for(*layer, 77, 1);
  const auto sums = [&](Device* device) { return run_layer(*layer, given, 7, 11, DType::f32, device).at("grad/table"); };
  BOOST_TEST((sums(&gpu()) == sums(nullptr)));
}

// Memory that a composition has divided between two numbers of 32 bits.
BOOST_AUTO_TEST_CASE(inside_other_layers) {
  if (!is_first()) return;
  const auto inner = recorded(3, [](Tape& tape, Value x) {
    return softmax(matmul(x, tape.parameter("w", {3, 3}, normal(1)))) * row_sum(square(x));
  });
  for (const DType type : {DType::f32, DType::f16})
    for (const std::size_t rows : {1, 3})
      compare("positions", positions(3, residual(sequential({{"a", inner}, {"b", linear(3, 3)}}))), rows, 3,
              type == DType::f32 ? 1e-5 : 2e-2, type);
}

namespace {

constexpr std::size_t width = 12, classes = 5;

Sequential model_of(const LossPtr& loss, std::size_t outputs) {
  Sequential model;
  model.add("gated", recorded(width, [](Tape& tape, Value x) {
              const Value up = tape.parameter("up", {20, width}, normal(0.3f)),
                          down = tape.parameter("down", {20, width}, normal(0.3f));
              const Value bias = tape.parameter("bias", {20}, constant(0.1f));
              const Value h = matmul(x / fsdp::sqrt(row_mean(square(x)) + 1e-5f), up, yes) + bias;
              return x + dropout(matmul(silu(h), down), 0.1);
            }));
  model.add("head", linear(width, outputs));
  return std::move(model.loss(loss));
}

struct Outcome {
  std::vector<double> losses, norms;
};

Outcome train(const std::string& device, const Sequential& model, const FsdpOptions& options, const Loss& loss) {
  Job job({.device = device});
  FullyShardedDataParallel sharded(job, model, options);
  const auto fill = [&](const Batch& batch) {
    const std::size_t first = 1000 * static_cast<std::size_t>(job.rank()) + 37 * sharded.updates();
    for (std::size_t i = 0; i < batch.inputs().size(); ++i)
      batch.inputs()[i] = std::sin(static_cast<float>((first + i) * i % 1009));
    for (std::size_t r = 0; loss.takes_labels() && r < batch.labels().size(); ++r)
      batch.labels()[r] = r % 5 == 4 ? -1 : static_cast<int>(r % classes);
    for (std::size_t i = 0; !loss.takes_labels() && loss.targets() > 0 && i < batch.targets().size(); ++i)
      batch.targets()[i] = std::cos(static_cast<float>(first + i));
  };
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    const StepResult result = sharded.step(1e-2, fill);
    outcome.losses.push_back(result.loss), outcome.norms.push_back(result.gradient_norm);
  }
  outcome.losses.push_back(sharded.evaluate(fill));
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

void compare_training(const std::string& name, const LossPtr& loss, std::size_t outputs) {
  const Sequential model = model_of(loss, outputs);
  for (const char* const type : {"fp32", "bf16"})
    for (const bool recomputed : {false, true}) {
      if (recomputed && type[0] == 'b') continue;
      FsdpOptions options = {.batch_size = 21, .gradient_accumulation_steps = 2, .activation_checkpointing = recomputed};
      options.param_dtype = type;
      const Outcome cpu = train("cpu", model, options, *loss), gpu = train("cuda", model, options, *loss);
      const bool precise = options.param_dtype == "fp32";
      BOOST_TEST_CONTEXT(name << " in " << type << (recomputed ? ", recomputed" : "")) {
        for (std::size_t u = 0; u < cpu.losses.size(); ++u)
          BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < (precise ? 2e-6 : 1e-2), gpu.losses[u] << " " << cpu.losses[u]);
        for (std::size_t u = 0; u < cpu.norms.size(); ++u)
          BOOST_TEST(std::abs(gpu.norms[u] / cpu.norms[u] - 1) < (precise ? 1e-5 : 2e-2), gpu.norms[u] << " " << cpu.norms[u]);
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(models_are_trained_as_on_the_cpu) {
  compare_training("labels",
                   recorded_loss(classes, [](Tape& tape, Value x) { return cross_entropy(x, tape.labels()); },
                                 {.labels = 1, .classes = classes}),
                   classes);
  compare_training(
      "targets", recorded_loss(4, [](Tape& tape, Value x) { return row_mean(square(x - tape.targets())); }, {.targets = 4}), 4);
  compare_training("the rows of all ranks",
                   recorded_loss(8,
                                 [](Tape& tape, Value x) {
                                   const Value scale = exp(tape.parameter("log_scale", {1}, constant(0))), all = tape.all(),
                                               own = tape.own_row();
                                   const auto side = [&](std::size_t mine, std::size_t other) {
                                     return cross_entropy(matmul(scale * columns(x, mine, 4), columns(all, other, 4), yes),
                                                          own);
                                   };
                                   return 0.5f * (side(0, 4) + side(4, 0));
                                 }),
                   8);
}
