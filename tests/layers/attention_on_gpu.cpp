// Layers of attention, trained on the double of CUDA (cuda_double/): results as on the CPU.
#include "mpi_main.hpp"

#include <cmath>

#include <fsdp/fsdp.hpp>

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t classes = 13, width = 16, length = 7;

Sequential of_tokens() {
  Sequential model;
  model.add("embedding", embedding(classes, width, 0.3f))
      .add("gpt2", transformer_block(width, {.heads = 2, .inner = 24}))
      .add("llama",
           transformer_block(
               width, {.style = BlockStyle::llama, .heads = 4, .kv_heads = 2, .head_size = 8, .inner = 24, .rope_theta = 100}))
      .add("all", residual(multi_head_attention(width, {.heads = 2, .rope_theta = 100})))
      .add("odd", multi_head_attention(width, {.heads = 3, .kv_heads = 1, .head_size = 5, .causal = true}))
      .add("head", linear(width, classes, false));
  return model.loss(cross_entropy(classes));
}

Sequential with_padding() {
  Sequential model;
  model.add("attention", multi_head_attention(width, {.heads = 2, .causal = true, .mask = true}));
  return model.add("head", linear(width, classes)).loss(cross_entropy(classes));
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> outputs;
};

/// `row(batch, r)` writes the inputs of row r.
template <class Row>
Outcome train(const std::string& device, const Sequential& model, FsdpOptions options, Row row) {
  Job job({.device = device});
  FullyShardedDataParallel sharded(job, model, options);
  const auto fill = [&](const Batch& batch) {
    for (std::size_t r = 0; r < batch.labels().size(); ++r) {
      const std::size_t token = (r * r + 3 * sharded.updates() + 5 * static_cast<std::size_t>(job.rank())) % classes;
      row(batch, r, token);
      batch.labels()[r] = r % 5 == 4 ? -1 : static_cast<int>((2 * token + 1) % classes);
    }
  };
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    const StepResult result = sharded.step(5e-3, fill);
    outcome.losses.push_back(result.loss), outcome.norms.push_back(result.gradient_norm);
  }
  outcome.outputs = sharded.predict(fill);
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

template <class Row>
void compare(const char* name, const Sequential& model, const FsdpOptions& shape, Row row) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    FsdpOptions options = shape;
    options.param_dtype = type;
    const Outcome cpu = train("cpu", model, options, row), gpu = train("cuda", model, options, row);
    const bool precise = options.param_dtype == "fp32";
    BOOST_TEST_CONTEXT(name << " in " << type) {
      for (std::size_t u = 0; u < cpu.losses.size(); ++u) {
        BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < (precise ? 2e-6 : 5e-3));
        BOOST_TEST(std::abs(gpu.norms[u] / cpu.norms[u] - 1) < (precise ? 1e-5 : 2e-2));
      }
      BOOST_TEST_REQUIRE(cpu.outputs.size() == gpu.outputs.size());
      double largest = 0, apart = 0;
      for (std::size_t i = 0; i < cpu.outputs.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(cpu.outputs[i])));
        apart = std::max(apart, std::abs(static_cast<double>(cpu.outputs[i]) - gpu.outputs[i]));
      }
      BOOST_TEST(largest > 0);
      BOOST_TEST(apart < (precise ? 1e-4 : 6e-2) * largest, apart / largest);  // after updates by AdamW
    }
  }
}

float number(std::size_t i) { return std::sin(static_cast<float>(i * i % 1009)); }

}  // namespace

BOOST_AUTO_TEST_CASE(transformers_of_layers_are_trained_as_on_the_cpu) {
  compare("tokens", of_tokens(), {.batch_size = 3, .sequence_length = length},
          [](const Batch& batch, std::size_t r, std::size_t token) { batch.tokens()[r] = static_cast<int>(token); });
  compare("padding", with_padding(), {.batch_size = 3, .sequence_length = length},
          [](const Batch& batch, std::size_t r, std::size_t token) {
            float* const x = &batch.inputs()[r * (width + 1)];
            for (std::size_t i = 0; i < width; ++i) x[i] = number(31 * token + 7 * r + i);
            x[width] = r % length < length - r / length;  // the sequences have 7, 6 and 5 positions
          });
}
