// Attention and transformer blocks: values and gradients of PyTorch and transformers, central differences, and the bits of a
// TransformerDescription.
#include "mpi_main.hpp"

#include <filesystem>
#include <fstream>
#include <functional>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

#include "run_layer.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const Tensors& golden() {
  static const Tensors tensors = layer_tensors("attention.safetensors");
  return tensors;
}

void require_right(const char* name, const LayerPtr& layer, const GradientCheckOptions& options = {}) {
  const GradientCheck check = check_gradients(*layer, options);
  BOOST_TEST(check.passed, name << ": " << check.where);
  BOOST_TEST(check.worst > 0, name);
}

}  // namespace

BOOST_AUTO_TEST_CASE(attention_is_that_of_pytorch) {
  const auto compare = [](const char* name, std::size_t width, const AttentionOptions& options, std::size_t B, std::size_t T) {
    compare_with_pytorch(golden(), name, *multi_head_attention(width, options), B, T);
  };
  compare("all", 12, {.heads = 3}, 2, 5);
  compare("all_long", 8, {.heads = 2}, 1, 70);  // the scores of 64 and of 6 queries
  compare("causal", 12, {.heads = 3, .causal = true}, 2, 5);
  compare("causal_long", 8, {.heads = 1, .causal = true}, 1, 70);
  compare("mask", 12, {.heads = 2, .mask = true}, 3, 6);
  compare("causal_mask", 12, {.heads = 2, .causal = true, .mask = true}, 2, 6);
  compare("llama_attention", 16, {.heads = 4, .kv_heads = 2, .head_size = 6, .causal = true, .bias = false, .rope_theta = 500},
          2, 9);
}

BOOST_AUTO_TEST_CASE(blocks_are_those_of_transformers) {
  compare_with_pytorch(golden(), "gpt2_block", *transformer_block(12, {.heads = 3, .inner = 20}), 2, 7);
  compare_with_pytorch(
      golden(), "llama_block",
      *transformer_block(
          16, {.style = BlockStyle::llama, .heads = 4, .kv_heads = 2, .head_size = 6, .inner = 20, .rope_theta = 500}),
      2, 9);
}

BOOST_AUTO_TEST_CASE(gradients_of_attention) {
  // The gradient of k_proj.bias is 0 without rotary positions, and cannot be compared with differences.
  require_right("all", multi_head_attention(6, {.heads = 2, .bias = false}));
  require_right("causal", multi_head_attention(6, {.heads = 2, .causal = true, .bias = false}));
  require_right("all, rotary", multi_head_attention(8, {.heads = 2, .rope_theta = 100}));
  require_right("grouped", multi_head_attention(8, {.heads = 4, .kv_heads = 2, .head_size = 3, .bias = false}));
  require_right("grouped, causal, rotary",
                multi_head_attention(8, {.heads = 4, .kv_heads = 1, .head_size = 4, .causal = true, .rope_theta = 100}));
  require_right("fused", multi_head_attention(6, {.heads = 3, .causal = true, .fused_qkv = true}));
  require_right("mask", multi_head_attention(6, {.heads = 2, .bias = false, .mask = true}));
  require_right("gpt2", transformer_block(6, {.heads = 2, .inner = 10}));
  require_right("not causal", transformer_block(6, {.heads = 2, .causal = false}));
  require_right("llama", transformer_block(6, {.style = BlockStyle::llama, .heads = 1, .inner = 10, .rope_theta = 100}));
}

// Queries see all keys of their own sequence, and no others; padding is seen by none.
BOOST_AUTO_TEST_CASE(a_query_sees_what_it_must) {
  const auto layer = multi_head_attention(4, {.heads = 2, .mask = true});
  Tensors given;
  const auto numbers = [](std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(7 * i + n));
    return x;
  };
  for (const LayerParameter& parameter : layer->parameters())
    given["param/" + parameter.name] = numbers(numel(parameter.shape));
  given["dy"] = numbers(2 * 3 * 4), given["x"] = numbers(2 * 3 * 5);
  for (std::size_t r = 0; r < 6; ++r) given["x"][5 * r + 4] = r != 1;
  const Tensors before = run_layer(*layer, given, 2, 3, DType::f32);
  const auto changed_rows = [&](std::size_t row) {
    Tensors other = given;
    other["x"][5 * row] += 1;
    const std::vector<float> y = run_layer(*layer, other, 2, 3, DType::f32).at("y");
    std::string rows;
    for (std::size_t r = 0; r < 6; ++r)
      if (!std::equal(&y[4 * r], &y[4 * r] + 4, &before.at("y")[4 * r])) rows += std::to_string(r);
    return rows;
  };
  BOOST_TEST(changed_rows(0) == "012");
  BOOST_TEST(changed_rows(1) == "1");  // padding: only its own query
  BOOST_TEST(changed_rows(4) == "345");
  for (std::size_t r = 0; r < 3; ++r) given["x"][5 * r + 4] = 0;
  const Tensors all_padding = run_layer(*layer, given, 2, 3, DType::f32);
  for (std::size_t i = 0; i < 12; ++i) BOOST_TEST(all_padding.at("y")[i] == given.at("param/o_proj.bias")[i % 4]);
}

BOOST_AUTO_TEST_CASE(sizes_that_do_not_fit_are_refused) {
  const auto refused = [](const std::function<LayerPtr()>& make, const std::string& message) {
    BOOST_CHECK_EXCEPTION(make(), UserError, [&](const UserError& error) {
      BOOST_TEST_MESSAGE(error.what());
      return std::string(error.what()).find(message) != std::string::npos;
    });
  };
  refused([] { return multi_head_attention(0); }, "attention of width 0 with 1 heads is empty");
  refused([] { return multi_head_attention(10, {.heads = 3}); }, "attention of width 10 with 3 heads does not divide evenly");
  refused([] { return multi_head_attention(12, {.heads = 6, .kv_heads = 4}); }, "and 4 heads of keys is not possible");
  refused([] { return multi_head_attention(6, {.heads = 2, .rope_theta = 1e4}); }, "has heads of 3 numbers");
  refused([] { return multi_head_attention(6, {.heads = 1, .rope_theta = -1}); }, "has a wrong rope_theta");
  refused([] { return transformer_block(10, {.heads = 3}); }, "does not divide evenly");
}

namespace {

constexpr std::size_t tokens_known = 61, width = 32, length = 24, layers = 3;

/// Tables of tokens and positions, as in GPT-2.
class TokensAndPositions final : public Layer {
 public:
  std::vector<LayerParameter> parameters() const override {
    return {{"wte.weight", {tokens_known, width}, normal(0.02f)}, {"wpe.weight", {length, width}, normal(0.02f)}};
  }
  std::size_t inputs() const override { return 1; }
  std::size_t outputs() const override { return width; }
  bool takes_tokens() const override { return true; }
  void forward(const ForwardPass& pass) const override {
    kernels::embedding_forward(*pass.stream, pass.y.floats(), pass.tokens, pass.parameter(0).floats(),
                               pass.parameter(1).floats(), pass.B, pass.T, width);
  }
  void backward(const BackwardPass& pass) const override {
    kernels::embedding_backward(*pass.stream, pass.gradient(0).floats(), pass.dy.floats(), pass.tokens, pass.rows(), width,
                                tokens_known, kernels::Write::add);
    kernels::position_backward(*pass.stream, pass.gradient(1).floats(), pass.dy.floats(), pass.B, pass.T, width, length,
                               kernels::Write::add);
  }
};

using Parameters = std::map<std::string, std::vector<float>>;
struct Outcome {
  std::vector<double> losses, norms;
  Parameters parameters;
  bool operator==(const Outcome&) const = default;
};

Outcome train(const ModelDescription& model) {
  Job job;
  FullyShardedDataParallel sharded(job, model, {.batch_size = 3, .sequence_length = length, .weight_decay = 0.1});
  Outcome outcome;
  for (std::size_t step = 0; step < 6; ++step) {
    const StepResult result = sharded.step(1e-2, [&](const Batch& batch) {
      for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
        const std::size_t token = (r * r + 3 * step + 5 * static_cast<std::size_t>(job.rank())) % tokens_known;
        batch.tokens()[r] = static_cast<int>(token);
        batch.labels()[r] = static_cast<int>((2 * token + 1) % tokens_known);
      }
    });
    outcome.losses.push_back(result.loss), outcome.norms.push_back(result.gradient_norm);
  }
  sharded.for_each_parameter([&](const std::string& name, const Shape&, std::span<const float> values) {
    outcome.parameters[name] = {values.begin(), values.end()};
  });
  return outcome;
}

/// A folder with a config.json.
std::filesystem::path configuration(const std::string& name, const json& config) {
  const std::filesystem::path folder = std::filesystem::path("api-attention") / (name + std::to_string(world().size()));
  if (world().rank() == 0) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
  }
  world().barrier();
  return folder;
}

}  // namespace

// Names, initial values and all steps of a model of blocks are those of the library's transformer, if all labels count: its
// head computes no logits for others.
BOOST_AUTO_TEST_CASE(blocks_have_the_bits_of_a_transformer) {
  const auto gpt2 = TransformerDescription::from_config(configuration("gpt2", {{"model_type", "gpt2"},
                                                                               {"vocab_size", tokens_known},
                                                                               {"n_positions", length},
                                                                               {"n_embd", width},
                                                                               {"n_layer", layers},
                                                                               {"n_head", 4},
                                                                               {"tie_word_embeddings", false}}));
  const float deviation = 0.02f, of_out = 0.02f * (1 / std::sqrt(2 * static_cast<float>(layers)));
  Sequential of_layers;
  of_layers.add("transformer", std::make_shared<TokensAndPositions>());
  for (std::size_t i = 0; i < layers; ++i)
    of_layers.add("transformer.h." + std::to_string(i),
                  transformer_block(width, {.heads = 4, .standard_deviation = deviation, .out_standard_deviation = of_out}));
  of_layers.add("transformer.ln_f", layer_norm(width)).add("lm_head", linear(width, tokens_known, false, deviation));
  of_layers.loss(cross_entropy(tokens_known));
  const Outcome whole = train(gpt2), in_layers = train(of_layers);
  BOOST_TEST(whole.losses.back() < whole.losses.front());
  BOOST_TEST((whole.losses == in_layers.losses));
  BOOST_TEST((whole.norms == in_layers.norms));
  BOOST_TEST((whole.parameters == in_layers.parameters));

  const auto llama = TransformerDescription::from_config(configuration("llama", {{"model_type", "llama"},
                                                                                 {"vocab_size", tokens_known},
                                                                                 {"max_position_embeddings", length},
                                                                                 {"hidden_size", width},
                                                                                 {"intermediate_size", 40},
                                                                                 {"num_hidden_layers", layers},
                                                                                 {"num_attention_heads", 4},
                                                                                 {"num_key_value_heads", 2},
                                                                                 {"rms_norm_eps", 1e-6},
                                                                                 {"rope_theta", 500.0},
                                                                                 {"tie_word_embeddings", false}}));
  Sequential llama_layers;
  llama_layers.add("model.embed_tokens", embedding(tokens_known, width, deviation));
  for (std::size_t i = 0; i < layers; ++i)
    llama_layers.add("model.layers." + std::to_string(i), transformer_block(width, {.style = BlockStyle::llama,
                                                                                    .heads = 4,
                                                                                    .kv_heads = 2,
                                                                                    .inner = 40,
                                                                                    .rope_theta = 500,
                                                                                    .standard_deviation = deviation}));
  llama_layers.add("model.norm", rms_norm(width)).add("lm_head", linear(width, tokens_known, false, deviation));
  llama_layers.loss(cross_entropy(tokens_known));
  const Outcome of_llama = train(llama), of_llama_layers = train(llama_layers);
  BOOST_TEST((of_llama == of_llama_layers));
}
