// Compares stages with finite differences, and with equivalent computations in other forms.
#include <array>
#include <cmath>
#include <thread>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "kernels/quantized.hpp"
#include "nn/model_run.hpp"
#include "nn/stages.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using kernels::Write;

namespace {

struct Case {
  const char* name;
  TransformerConfig config;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

TransformerConfig tiny_gpt2() {
  TransformerConfig c;
  c.vocab_size = 23, c.max_positions = 11, c.width = 15, c.layers = 2, c.heads = c.kv_heads = 3, c.head_size = 5,
  c.ffn_width = 37;
  return c;
}
TransformerConfig tiny_llama() {
  TransformerConfig c = find_family("llama").defaults;
  c.norm_eps = 1e-5f;
  c.vocab_size = 19, c.max_positions = 64, c.width = 12, c.layers = 2, c.heads = 6, c.kv_heads = 2, c.head_size = 2,
  c.ffn_width = 21;
  return c;
}
TransformerConfig tiny_opt() {
  TransformerConfig c = tiny_gpt2();
  c.family = "opt", c.position_offset = 2;  // with GELU, because finite differences are wrong at the kink of ReLU
  return c;
}
TransformerConfig tiny_xglm() {
  TransformerConfig c = tiny_gpt2();
  c.family = "xglm", c.positions = Positions::sinusoidal, c.position_offset = 2, c.scaled_embedding = true;
  c.activation = Activation::gelu_erf;
  return c;
}
template <class Change>
TransformerConfig changed(TransformerConfig config, Change change) {
  change(config);
  return config;
}

const Case kCases[] = {
    {"gpt2", tiny_gpt2()},
    {"gpt2, erf, untied",
     changed(tiny_gpt2(), [](auto& c) { c.activation = Activation::gelu_erf, c.tied_embeddings = false; })},
    {"gpt2, one head", changed(tiny_gpt2(), [](auto& c) { c.heads = c.kv_heads = 1, c.head_size = 15; })},
    {"llama", tiny_llama()},
    {"llama, tied, one key/value head", changed(tiny_llama(), [](auto& c) { c.tied_embeddings = true, c.kv_heads = 1; })},
    {"llama, all biases, no grouping",
     changed(tiny_llama(), [](auto& c) { c.qkv_bias = c.attention_out_bias = c.mlp_bias = true, c.kv_heads = 6; })},
    {"llama, heads wider than the model",
     changed(tiny_llama(), [](auto& c) { c.head_size = 8, c.qkv_bias = c.attention_out_bias = true; })},
    {"llama, heads narrower, llama3",
     changed(tiny_llama(),
             [](auto& c) {
               c.width = 18, c.rope = {.kind = RopeKind::llama3, .theta = 100, .factor = 8, .original_positions = 16};
             })},
    {"mistral, heads that do not divide the width", changed(tiny_llama(), [](auto& c) { c.family = "mistral", c.width = 13; })},
    {"qwen2", changed(tiny_llama(), [](auto& c) { c.family = "qwen2", c.qkv_bias = true; })},
    {"qwen3, heads wider than the model",
     changed(tiny_llama(), [](auto& c) { c.family = "qwen3", c.qk_norm = true, c.width = 7, c.head_size = 16; })},
    {"qwen3, biases, tied", changed(tiny_llama(),
                                    [](auto& c) {
                                      c.family = "qwen3", c.qk_norm = c.tied_embeddings = true, c.head_size = 4;
                                      c.qkv_bias = c.attention_out_bias = true;
                                    })},
    {"gpt2, adapters of all projections", changed(tiny_gpt2(),
                                                  [](auto& c) {
                                                    c.lora = {3, 2, 0, false, {"all-linear"}};
                                                  })},
    {"llama, adapters", changed(tiny_llama(),
                                [](auto& c) {
                                  c.head_size = 8, c.lora = {2, 0.5, 0.2, true, {"v_proj", "*down_proj", "o_proj"}};
                                })},
    {"qwen3, adapters of all projections", changed(tiny_llama(),
                                                   [](auto& c) {
                                                     c.family = "qwen3", c.qk_norm = true, c.head_size = 8;
                                                     c.lora = {5, 1, 0.2, false, {"all-linear"}};
                                                   })},
    {"gpt2, adapters of embedding and head", changed(tiny_gpt2(),
                                                     [](auto& c) {
                                                       c.tied_embeddings = false;
                                                       c.lora = {3, 2, 0.2, false, {"wte", "lm_head", "c_attn"}};
                                                       c.lora.ranks = {{"lm_head", 5}};
                                                     })},
    {"gpt2, adapters of tied embedding and head", changed(tiny_gpt2(),
                                                          [](auto& c) {
                                                            c.lora = {3, 4, 0, true, {"wte", "lm_head"}};
                                                          })},
    {"xglm, adapters of scaled embedding and tied head", changed(tiny_xglm(),
                                                                 [](auto& c) {
                                                                   c.lora = {2, 1, 0.2, false, {"embed_tokens", "lm_head"}};
                                                                 })},
    {"mistral, a window", changed(tiny_llama(), [](auto& c) { c.family = "mistral", c.head_size = 4, c.sliding_window = 3; })},
    {"qwen2, windows from the second layer on",
     changed(tiny_llama(), [](auto& c) { c.family = "qwen2", c.qkv_bias = true, c.sliding_window = 4, c.window_from = 1; })},
    {"opt", tiny_opt()},
    {"xglm", tiny_xglm()},
    {"xglm, untied", changed(tiny_xglm(), [](auto& c) { c.tied_embeddings = false; })},
    {"biogpt", changed(tiny_xglm(), [](auto& c) { c.family = "biogpt", c.positions = Positions::learned; })},
    {"opt, no biases, untied",
     changed(tiny_opt(), [](auto& c) { c.qkv_bias = c.attention_out_bias = c.mlp_bias = c.tied_embeddings = false; })},
};

struct Batch {
  Batch(BatchShape batch_shape, std::size_t V, std::uint32_t seed) : shape(batch_shape) {
    std::mt19937 generator(seed);
    for (std::size_t r = 0; r < shape.rows(); ++r) {
      tokens.push_back(static_cast<std::int32_t>(generator() % V));
      targets.push_back(r % 5 == 3 ? -1 : static_cast<std::int32_t>(generator() % V));
    }
  }
  BatchShape shape;
  std::vector<std::int32_t> tokens, targets;
};

}  // namespace

enum class Documents { one, several };
std::ostream& operator<<(std::ostream& out, Documents d) { return out << (d == Documents::one ? "one" : "several"); }

// Derivatives along a direction within one parameter: a random half of the gradient itself, because its slope is large.
// Fourth-order differences of a loss summed from fp32 terms: the remaining error is rounding, about 1e-6 / (step * length).
BOOST_DATA_TEST_CASE(gradients_are_finite_differences,
                     boost::unit_test::data::make(kCases) * boost::unit_test::data::make({0.0f, 0.3f}) *
                         boost::unit_test::data::make({Documents::one, Documents::several}),
                     test_case, rate, documents) {
  test::ModelRun run(test_case.config);
  run.randomize(5, 0.3f);
  if (documents == Documents::several) run.positions = {0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 0, 0, 1, 0, 1, 2, 3, 4};
  run.dropout = {.residual = rate,
                 .attention = rate,
                 .adapters = static_cast<float>(test_case.config.lora.dropout),
                 .neftune_alpha = 20 * rate,
                 .seed = 1,
                 .update = 2,
                 .first_sequence = 3};
  const Batch batch({3, 7}, test_case.config.vocab_size, 6);
  const float scale = 0.5f;
  run.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, scale, Write::overwrite);
  const std::vector<std::vector<float>> gradients = run.gradients;
  std::mt19937 generator(7);
  double worst = 0;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const std::string& name = run.model.parameters()[p].name;
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> direction(gradients[p].size());
      double square = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) {
        direction[i] = generator() % 2 == 0 ? gradients[p][i] : 0.0f;
        square += double{direction[i]} * direction[i];
      }
      const double length = std::sqrt(square);
      if (length < 1e-4) continue;  // e.g. the key bias of attention, on which softmax does not depend
      const std::vector<float> start = run.weights[p];
      const auto loss_at = [&](double step) {
        for (std::size_t i = 0; i < start.size(); ++i)
          run.weights[p][i] = static_cast<float>(start[i] + step * direction[i] / length);
        const double loss = run.loss(batch.tokens.data(), batch.targets.data(), batch.shape);
        run.weights[p] = start;
        return scale * loss;
      };
      const double h = documents == Documents::several ? 0.001 : rate > 0 ? 0.005 : 0.01;  // norms of small rows are steep
      const double slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
      double expected = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) expected += double{gradients[p][i]} * direction[i] / length;
      const double allowed = documents == Documents::several ? 2e-3 + 1e-3 * expected : 2e-4 + 4e-4 * expected;
      worst = std::max(worst, std::abs(slope - expected) / allowed);
      BOOST_TEST(std::abs(slope - expected) <= allowed, name << ": " << slope << " instead of " << expected);
    }
  }
  BOOST_TEST_MESSAGE(test_case.name << ": worst " << worst << " of the tolerance");
}

// A document's result does not depend on other documents in the sequence or on its place: learned positions begin again. Sums
// over rows, for the loss and for gradients, are in another order.
BOOST_DATA_TEST_CASE(a_document_among_others_is_computed_as_if_it_were_alone, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun packed(test_case.config), alone(test_case.config);
  packed.randomize(5, 0.3f);
  alone.weights = packed.weights;
  const Batch batch({2, 11}, test_case.config.vocab_size, 6);
  packed.positions = {0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 0};
  const double loss = packed.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 0.5f, Write::overwrite);
  double sum = 0, worst = 0;
  for (std::size_t begin = 0, end = 0; begin < batch.tokens.size(); begin = end) {
    for (end = begin + 1; end < batch.tokens.size() && packed.positions[end] != 0;) ++end;
    sum += alone.loss_and_gradients(&batch.tokens[begin], &batch.targets[begin], {1, end - begin}, 0.5f,
                                    begin == 0 ? Write::overwrite : Write::add);
  }
  BOOST_TEST(std::abs(loss - sum) < 1e-6 * sum);
  for (std::size_t p = 0; p < packed.gradients.size(); ++p) {
    float largest = 0;
    for (const float g : alone.gradients[p]) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < packed.gradients[p].size(); ++i)
      worst = std::max(worst, static_cast<double>(std::abs(packed.gradients[p][i] - alone.gradients[p][i]) /
                                                  (largest + 0.1f)));  // some are 0 except for rounding
  }
  BOOST_TEST(worst < 1e-5);

  const auto gradients = packed.gradients;
  for (const auto keep : {test::Keep::inputs, test::Keep::selected}) {
    packed.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 0.5f, Write::overwrite, keep);
    BOOST_TEST((packed.gradients == gradients));
  }
}

// A module with an adapter is one with the weight W + scale * B A. In the base model's gradient dW of that weight, the
// adapter's gradients are scale * B^T dW and scale * dW A^T. Few targets count, so that logits are computed for some rows.
BOOST_DATA_TEST_CASE(adapters_are_changes_of_weights,
                     boost::unit_test::data::make({Case{"gpt2", tiny_gpt2()}, Case{"llama", tiny_llama()},
                                                   Case{"opt", tiny_opt()}}) *
                         boost::unit_test::data::make({false, true}),
                     test_case, stabilized) {
  const TransformerConfig& base = test_case.config;
  TransformerConfig config = base;
  config.lora = {3, 4.5, 0.1, stabilized, {"all-linear"}};
  if (!base.tied_embeddings) config.lora.targets.insert(config.lora.targets.end(), {"embed_tokens", "lm_head"});
  test::ModelRun adapted(config), merged(base);
  adapted.randomize(5, 0.2f);
  const auto& parameters = adapted.model.parameters();
  const std::size_t count = merged.weights.size(), r = config.lora.rank;
  BOOST_TEST_REQUIRE(parameters.size() == count + 2 * (base.family == "llama" ? 16u : base.family == "opt" ? 12u : 8u));
  const auto scale = static_cast<float>(stabilized ? 4.5 / std::sqrt(3.0) : 1.5);
  struct Place {
    std::size_t weight, a, in, out;
    bool in_out;
  };
  std::vector<Place> places;
  std::vector<std::size_t> whole;  // the places of the base model's parameters
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (!parameters[p].is_adapter) merged.weights[whole.size()] = adapted.weights[p], whole.push_back(p);
  for (std::size_t a = 0; a < parameters.size(); ++a) {
    if (!parameters[a].is_adapter) continue;
    const std::string module = parameters[a].name.substr(0, parameters[a].name.find(".lora_"));
    std::size_t w = 0;
    while (parameters[whole[w]].name != module + ".weight") ++w;
    BOOST_TEST(parameters[whole[w]].block == parameters[a].block);
    const bool is_embedding = parameters[a].name == module + embedding_a_suffix;
    places.push_back({w, a, parameters[a].shape[1], parameters[a + 1].shape[0], base.family == "gpt2" || is_embedding});
    const auto& [weight, first, in, out, in_out] = places.back();
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t i = 0; i < in; ++i)
        for (std::size_t k = 0; k < r; ++k)
          merged.weights[w][in_out ? i * out + o : o * in + i] +=
              scale * adapted.weights[a + 1][o * r + k] * adapted.weights[a][k * in + i];
    ++a;
  }
  Batch batch({2, 9}, base.vocab_size, 6);
  for (const std::size_t uncounted : {0, 1, 2, 5, 6, 7, 9, 10, 14, 15, 17}) batch.targets[uncounted] = -1;
  const double loss = adapted.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite),
               expected =
                   merged.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite);
  BOOST_TEST(std::abs(loss - expected) < 2e-6 * expected);
  double worst = 0;
  const auto compare = [&](const std::vector<float>& found, const std::vector<float>& wanted) {
    double largest = 0.1;  // some are 0 except for rounding
    for (const float value : wanted) largest = std::max(largest, std::abs(double{value}));
    for (std::size_t i = 0; i < found.size(); ++i) worst = std::max(worst, std::abs(double{found[i]} - wanted[i]) / largest);
  };
  for (std::size_t p = 0; p < count; ++p) compare(adapted.gradients[whole[p]], merged.gradients[p]);
  for (const auto& [w, a, in, out, in_out] : places) {
    std::vector<float> d_a(r * in), d_b(out * r);
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t i = 0; i < in; ++i) {
        const float d_w = scale * merged.gradients[w][in_out ? i * out + o : o * in + i];
        for (std::size_t k = 0; k < r; ++k) {
          d_a[k * in + i] += adapted.weights[a + 1][o * r + k] * d_w;
          d_b[o * r + k] += d_w * adapted.weights[a][k * in + i];
        }
      }
    compare(adapted.gradients[a], d_a);
    compare(adapted.gradients[a + 1], d_b);
  }
  BOOST_TEST(worst < 2e-5);
}

// A model with quantized matrices computes what a model with the expanded ones does, besides the gradients of these matrices.
BOOST_DATA_TEST_CASE(quantized_matrices_are_their_expansions,
                     boost::unit_test::data::make(
                         {Case{"gpt2", tiny_gpt2()}, Case{"llama", tiny_llama()},
                          Case{"opt", tiny_opt()},  // matrices that are expanded in parts
                          Case{"wide llama",
                               changed(tiny_llama(), [](auto& c) { c.width = 504, c.head_size = 84, c.ffn_width = 1700; })}}) *
                         boost::unit_test::data::make({false, true}),
                     test_case, four_bits) {
  const kernels::Quantization kind = four_bits ? kernels::Quantization::nf4 : kernels::Quantization::int8;
  TransformerConfig config = test_case.config;
  config.lora = {3, 4.5, 0, false, {"all-linear"}};
  test::ModelRun expanded(config);
  config.base_type = kind;
  test::ModelRun quantized(config);
  expanded.randomize(5, 0.2f);
  std::size_t matrices = 0;
  for (std::size_t p = 0; p < expanded.weights.size(); ++p) {
    const Parameter& parameter = quantized.model.parameters()[p];
    std::vector<float>& weight = expanded.weights[p];
    quantized.trainable.push_back(!parameter.quantized);
    if (!parameter.quantized) {
      quantized.weights[p] = weight;
      continue;
    }
    ++matrices;
    quantized.weights[p].assign(parameter.kept_numel(), 0);
    const auto read = [&](Range range, float* to) {
      std::copy_n(weight.begin() + static_cast<std::ptrdiff_t>(range.begin), range.size(), to);
    };
    kernels::quantize(kind, parameter.matrix_shape(), read, std::as_writable_bytes(std::span(quantized.weights[p])));
    kernels::dequantize(*quantized.stream, kind, parameter.matrix_shape(), quantized.weights[p].data(), {0, weight.size()},
                        weight.data());
  }
  BOOST_TEST(matrices == 2 * (config.family == "llama" ? 7u : config.family == "opt" ? 6u : 4u));
  const Batch batch({2, 9}, config.vocab_size, 6);
  const auto run = [&](test::ModelRun& model) {
    return model.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite);
  };
  const double loss = run(quantized), expected = run(expanded);
  BOOST_TEST(std::abs(loss - expected) < 1e-6 * expected);
  double worst = 0;
  for (std::size_t p = 0; p < expanded.weights.size(); ++p)
    for (std::size_t i = 0; quantized.trainable[p] && i < expanded.gradients[p].size(); ++i)
      worst = std::max(worst, std::abs(double{quantized.gradients[p][i]} - expanded.gradients[p][i]));
  BOOST_TEST(worst < 1e-5);
}

BOOST_AUTO_TEST_CASE(adapters_have_the_targets_of_peft) {
  const auto adapted = [](TransformerConfig config, std::vector<std::string> targets) {
    config.lora = {4, 8, 0, false, std::move(targets)};
    std::string modules;
    for (const Parameter& parameter : list_parameters(config).parameters)
      if (const std::size_t at = parameter.name.find(".1.");
          parameter.name.ends_with("lora_A.weight") && at != std::string::npos)
        modules += parameter.name.substr(at + 3, parameter.name.find(".lora") - at - 3) + " ";
    return modules;
  };
  BOOST_TEST(adapted(tiny_llama(), {}) == "self_attn.q_proj self_attn.v_proj ");
  BOOST_TEST(adapted(tiny_gpt2(), {}) == "attn.c_attn ");
  BOOST_TEST(adapted(tiny_gpt2(), {"c_proj"}) == "attn.c_proj mlp.c_proj ");
  BOOST_TEST(adapted(tiny_gpt2(), {"h.*.mlp.*"}) == "mlp.c_fc mlp.c_proj ");
  BOOST_TEST(adapted(tiny_gpt2(), {"transformer.h.0.mlp.c_fc"}) == "");
  BOOST_TEST(adapted(tiny_llama(), {"all-linear"}) ==
             "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj ");
  TransformerConfig config = tiny_llama();
  config.lora = {4, 8, 0, false, {"q_proj", "head"}};
  CHECK_CONTAINS(test::message_of([&] { Transformer model(config); }),
                 "'head' matches no module (those that can have adapters are q_proj, k_proj, v_proj, o_proj,");
  // Only names mean the embedding and the head.
  const auto ranks = [](TransformerConfig of, std::vector<std::string> targets) {
    of.lora = {4, 8, 0, false, std::move(targets)};
    return std::pair(table_rank(of, find_family(of.family).names.token_table),
                     table_rank(of, find_family(of.family).names.head));
  };
  BOOST_TEST((ranks(tiny_llama(), {"all-linear", "*"}) == std::pair<std::size_t, std::size_t>(0, 0)));
  BOOST_TEST((ranks(tiny_llama(), {"embed_tokens"}) == std::pair<std::size_t, std::size_t>(4, 0)));
  BOOST_TEST((ranks(tiny_gpt2(), {"transformer.wte", "lm_head"}) == std::pair<std::size_t, std::size_t>(4, 4)));
  for (const bool is_head : {false, true})
    for (const bool rows : {false, true}) {
      config.lora = {4, 8, 0, false, {is_head ? "lm_head" : "embed_tokens"}};
      if (rows)
        (is_head ? config.lora.head_tokens : config.lora.tokens) = {3};
      else
        config.lora.modules_to_save = config.lora.targets;
      CHECK_CONTAINS(test::message_of([&] { list_parameters(config); }),
                     std::string(is_head ? "lm_head" : "model.embed_tokens") + " is in `targets of adapters`, and " +
                         (rows ? "rows of it are trained, too" : "in `modules to save`"));
    }
  // Only possible targets are named, and each only once.
  const auto refusal = [](TransformerConfig of, const char* target) {
    of.lora = {4, 8, 0, false, {target}};
    return test::message_of([&] { list_parameters(of); });
  };
  CHECK_CONTAINS(refusal(tiny_gpt2(), "foo"),
                 "(those that can have adapters are c_attn, c_proj, c_fc, wte, lm_head); correct it");
  const TransformerConfig phi = find_family("phi3").defaults;
  CHECK_CONTAINS(refusal(phi, "foo"),
                 "(those that can have adapters are qkv_proj, o_proj, down_proj, embed_tokens, lm_head); correct it");
  CHECK_CONTAINS(refusal(phi, "all-linear"),
                 "adapters of model.layers.0.mlp.gate_up_proj are not supported (it has the gate and the up projection in one "
                 "matrix); use adapters of other projections: qkv_proj, o_proj, down_proj");
}

// Masks depend on each dropout rate, on the seed, the update and the place in the update.
BOOST_DATA_TEST_CASE(dropout_depends_on_what_it_should, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun run(test_case.config);
  run.randomize(5, 0.3f);
  const Batch batch({3, 7}, test_case.config.vocab_size, 6);
  const Dropout cases[] = {{},
                           {.neftune_alpha = 5},
                           {.neftune_alpha = 5, .update = 1},
                           {.residual = 0.2f},
                           {.attention = 0.2f},
                           {.residual = 0.2f, .attention = 0.2f},
                           {.residual = 0.2f, .attention = 0.2f, .seed = 1},
                           {.residual = 0.2f, .attention = 0.2f, .update = 1},
                           {.residual = 0.2f, .attention = 0.2f, .update = std::uint64_t{1} << 32},
                           {.residual = 0.2f, .attention = 0.2f, .first_sequence = 1}};
  std::vector<double> losses;
  for (const Dropout& dropout : cases) {
    run.dropout = dropout;
    losses.push_back(run.loss(batch.tokens.data(), batch.targets.data(), batch.shape));
    BOOST_TEST(losses.back() == run.loss(batch.tokens.data(), batch.targets.data(), batch.shape));
  }
  for (std::size_t i = 0; i < losses.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) BOOST_TEST(losses[i] != losses[j], i << " and " << j);
}

// The embedding is the first site: kept values are scaled, and no two sites have the same mask.
BOOST_AUTO_TEST_CASE(sites_have_masks_of_their_own) {
  test::ModelRun run(tiny_gpt2());
  run.randomize(5, 0.3f);
  const Batch batch({3, 7}, run.model.config().vocab_size, 6);
  const StageContext without = run.context(batch.shape, false);
  std::vector<float> x(batch.shape.rows() * run.model.config().width), dropped(x.size());
  run.model.first->forward(without, batch.tokens.data(), x.data());
  run.dropout.residual = 0.25f;
  const StageContext with = run.context(batch.shape, false);
  run.model.first->forward(with, batch.tokens.data(), dropped.data());
  const stages::StageKernels<float> stage(run.model, with);
  std::vector<std::vector<float>> masks;
  for (const auto site : {stages::DropoutSite::embedding, stages::DropoutSite::attention_out, stages::DropoutSite::ffn_out})
    for (const std::size_t block : {0, 1}) {
      masks.emplace_back(x.size(), 1.0f);
      kernels::dropout(*run.stream, masks.back().data(), masks.back().data(), batch.shape.rows(), run.model.config().width,
                       stage.dropout_mask(site, block));
    }
  for (std::size_t i = 0; i < x.size(); ++i) BOOST_REQUIRE_EQUAL(dropped[i], x[i] * masks[0][i]);
  for (std::size_t i = 0; i < masks.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) BOOST_TEST((masks[i] != masks[j]));
}

BOOST_DATA_TEST_CASE(gradients_that_nobody_wants_change_nothing, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun all(test_case.config), some(test_case.config);
  all.randomize(8, 0.2f);
  some.weights = all.weights;
  const Batch batch({2, 9}, test_case.config.vocab_size, 9);
  for (std::size_t p = 0; p < some.weights.size(); ++p) some.trainable.push_back(p % 3 == 1);
  all.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite);
  some.loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite);
  BOOST_TEST((all.dx == some.dx));
  for (std::size_t p = 0; p < some.weights.size(); ++p) {
    if (some.trainable[p]) {
      BOOST_TEST((all.gradients[p] == some.gradients[p]), some.model.parameters()[p].name);
    } else {
      BOOST_TEST((some.gradients[p] == std::vector<float>(some.gradients[p].size())), some.model.parameters()[p].name);
    }
  }
}

BOOST_DATA_TEST_CASE(threads_share_a_model, boost::unit_test::data::make(kCases), test_case) {
  const Batch batch({2, 9}, test_case.config.vocab_size, 9);
  std::vector<std::unique_ptr<test::ModelRun>> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(std::make_unique<test::ModelRun>(test_case.config));
    runs[static_cast<std::size_t>(i)]->randomize(8, 0.2f);
  }
  const auto work = [&](std::size_t i) {
    runs[i]->loss_and_gradients(batch.tokens.data(), batch.targets.data(), batch.shape, 1, Write::overwrite);
  };
  work(0);
  std::thread first(work, 1), second(work, 2);
  first.join();
  second.join();
  BOOST_TEST((runs[1]->gradients == runs[0]->gradients));
  BOOST_TEST((runs[2]->gradients == runs[0]->gradients));
}

// Llama 3.1's frequencies (head size 128, theta 500000, factor 8, 8192 positions): high ones are unchanged, low ones are
// divided by 8, and those with wavelengths from 2048 to 8192 are interpolated.
BOOST_AUTO_TEST_CASE(rotary_tables_have_llama3_frequencies) {
  const Transformer model(arch_config("llama-3.1-8b"));
  const std::size_t T = 3, D = 128;
  std::vector<float> tables(model.table_numel(T));
  model.fill_tables(tables, T, T, DType::f32);
  for (std::size_t i = 0; i < D / 2; ++i) {
    const double frequency = std::pow(500000.0, -2.0 * static_cast<double>(i) / D), turns = 8192 * frequency / (2 * M_PI);
    const double smooth = std::clamp((turns - 1) / 3, 0.0, 1.0), angle = 2 * frequency * (smooth + (1 - smooth) / 8);
    BOOST_TEST(tables[2 * D + i] == std::cos(angle), boost::test_tools::tolerance(1e-6));
    BOOST_TEST(tables[2 * D + D / 2 + i] == std::sin(angle), boost::test_tools::tolerance(1e-6));
  }
  BOOST_TEST(tables[D] == std::cos(1.0f));
}

// Up to 64 rows the logits are one chunk; 130 rows of this vocabulary are three.
BOOST_AUTO_TEST_CASE(a_head_in_chunks_is_the_head) {
  TransformerConfig config = tiny_gpt2();
  config.vocab_size = 1050001, config.width = 9, config.heads = config.kv_heads = 3, config.head_size = 3,
  config.max_positions = 130;
  const std::size_t R = 130, C = config.width;
  BOOST_TEST(stages::head_chunk_rows(R, config.vocab_size, cpu_traits(1)) == 48u);
  BOOST_TEST(stages::head_chunk_rows(64, config.vocab_size, cpu_traits(1)) == 64u);
  test::ModelRun chunked(config), whole(config);
  chunked.randomize(11, 0.5f);
  whole.weights = chunked.weights;
  const Batch batch({1, R}, config.vocab_size, 12);
  std::vector<float> x(R * C), dx(R * C), dx_whole(R * C);
  std::mt19937 generator(13);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(generator);

  kernels::LossSum loss, forward_loss, loss_whole;
  chunked.model.loss->forward_backward(chunked.context({1, R}, true), x.data(), batch.targets.data(), 0.25f, loss, dx.data(),
                                       Write::overwrite);
  chunked.model.loss->forward(chunked.context({1, R}, false), x.data(), batch.targets.data(), forward_loss);
  BOOST_TEST(forward_loss.value() == loss.value());
  for (std::size_t row = 0; row < R; row += 64) {
    const BatchShape shape{1, std::min<std::size_t>(64, R - row)};
    whole.model.loss->forward_backward(whole.context(shape, true), &x[row * C], &batch.targets[row], 0.25f, loss_whole,
                                       &dx_whole[row * C], row == 0 ? Write::overwrite : Write::add);
  }
  BOOST_TEST(loss.value() == loss_whole.value(), boost::test_tools::tolerance(1e-7));
  double worst = 0;
  for (std::size_t i = 0; i < dx.size(); ++i) worst = std::max(worst, std::abs(double{dx[i]} - dx_whole[i]));
  for (std::size_t p = 0; p < chunked.gradients.size(); ++p)
    for (std::size_t i = 0; i < chunked.gradients[p].size(); ++i)
      worst = std::max(worst, std::abs(double{chunked.gradients[p][i]} - whole.gradients[p][i]));
  BOOST_TEST_MESSAGE("largest difference " << worst);
  // Chunks have only rows with a target, so their products add up other rows together.
  BOOST_TEST(worst < 1e-5);
}

BOOST_DATA_TEST_CASE(logits_of_a_row_give_its_loss, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun run(test_case.config);
  run.randomize(14, 0.3f);
  const std::size_t V = test_case.config.vocab_size;
  const std::int32_t row = 5;
  Batch batch({1, 8}, V, 15);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  batch.targets[static_cast<std::size_t>(row)] = 4;
  const double loss = run.loss(batch.tokens.data(), batch.targets.data(), batch.shape);
  std::vector<float> logits(V);
  run.model.head_logits(run.context(batch.shape, false), run.x.back().data(), std::array{row}, logits.data());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  BOOST_TEST(std::log(sum) - logits[4] == loss, boost::test_tools::tolerance(1e-5));
}

// Three sequences are decoded together, some tokens per step. Their logits are those of the whole sequences, except for the
// order of sums: attention uses a cache, and products have other numbers of rows.
BOOST_DATA_TEST_CASE(tokens_step_by_step_have_the_logits_of_whole_sequences, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun run(test_case.config);
  run.randomize(18, 0.3f);
  const std::size_t V = test_case.config.vocab_size, C = test_case.config.width, T = 10, S = 3, most = S * T;
  Batch batch({S, T}, V, 19);
  run.forward(run.context(batch.shape, false), batch.tokens.data());
  const std::vector<float> whole = run.x.back();

  const kernels::CacheShape shape = {S, T + 1};
  const ModelSizes sizes = run.model.sizes({1, most}, DType::f32, shape);
  std::vector<std::vector<float>> caches;
  for (std::size_t b = 0; b < run.model.blocks.size(); ++b) caches.emplace_back(sizes.cache[b] / sizeof(float), std::nanf(""));
  std::vector<float> x(most * C), x_out(most * C), saved(sizes.saved.front() / sizeof(float)), expected(V);
  std::mt19937 generator(20);
  std::size_t known[S] = {}, wanted_in_all = 0;
  while (known[0] + known[1] + known[2] < most) {
    std::vector<std::int32_t> tokens, sequences, positions, wanted;
    for (std::size_t s = 0; s < S; ++s) {
      const std::size_t count = std::min<std::size_t>(T - known[s], generator() % 5);
      for (std::size_t i = 0; i < count; ++i, ++known[s]) {
        tokens.push_back(batch.tokens[s * T + known[s]]);
        sequences.push_back(static_cast<std::int32_t>(s));
        positions.push_back(static_cast<std::int32_t>(known[s]));
      }
      if (count > 0 && generator() % 4 > 0) wanted.push_back(static_cast<std::int32_t>(tokens.size() - 1));
    }
    const std::size_t R = tokens.size();
    if (R == 0) continue;
    StageContext context = run.context({1, R}, false);
    run.scratch.assign(sizes.scratch / sizeof(float), std::nanf(""));
    context.scratch = run.scratch.data();
    DecodedRows rows = {sequences, positions, sequences.data(), positions.data()};
    run.model.embedding_decode(context, tokens.data(), rows, x.data());
    for (std::size_t b = 0; b < run.model.blocks.size(); ++b) {
      if (b + 1 == run.model.blocks.size()) {
        rows.wanted = wanted;
        std::fill(x_out.begin(), x_out.end(), std::nanf(""));  // only the requested rows are computed
      }
      run.model.block_decode(context, b, rows, x.data(), x_out.data(), saved.data(), shape, caches[b].data());
      std::swap(x, x_out);
    }
    std::vector<float> logits(wanted.size() * V);
    run.model.head_logits(context, x.data(), wanted, logits.data());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto row = static_cast<std::size_t>(wanted[i]);
      const std::array at = {static_cast<std::int32_t>(static_cast<std::size_t>(sequences[row]) * T) + positions[row]};
      run.model.head_logits(context, whole.data(), at, expected.data());
      float worst = 0, largest = 0;
      for (std::size_t v = 0; v < V; ++v) {
        worst = std::max(worst, std::abs(logits[i * V + v] - expected[v]));
        largest = std::max(largest, std::abs(expected[v]));
      }
      BOOST_TEST(worst < 1e-5f * largest);
      ++wanted_in_all;
    }
  }
  BOOST_TEST(wanted_in_all > 6u);
}

// A loss does not depend on later tokens or on other sequences of the batch.
BOOST_DATA_TEST_CASE(tokens_see_the_past_alone, boost::unit_test::data::make(kCases), test_case) {
  test::ModelRun run(test_case.config);
  run.randomize(16, 0.3f);
  const std::size_t V = test_case.config.vocab_size, C = test_case.config.width, T = 9;
  Batch batch({2, T}, V, 17);
  run.loss(batch.tokens.data(), batch.targets.data(), batch.shape);
  const std::vector<float> before = run.x.back();
  batch.tokens[4] = (batch.tokens[4] + 1) % static_cast<std::int32_t>(V);
  run.loss(batch.tokens.data(), batch.targets.data(), batch.shape);
  const std::vector<float>& after = run.x.back();
  BOOST_TEST(std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(4 * C), after.begin()));
  BOOST_TEST(std::equal(before.begin() + static_cast<std::ptrdiff_t>(T * C), before.end(),
                        after.begin() + static_cast<std::ptrdiff_t>(T * C)));
  for (std::size_t t = 4; t < T; ++t)
    BOOST_TEST(!std::equal(before.begin() + static_cast<std::ptrdiff_t>(t * C),
                           before.begin() + static_cast<std::ptrdiff_t>((t + 1) * C),
                           after.begin() + static_cast<std::ptrdiff_t>(t * C)));
}

BOOST_AUTO_TEST_CASE(a_stage_without_its_parameters_fails) {
  test::ModelRun run(tiny_llama());
  const Batch batch({1, 4}, 19, 18);
  const StageContext context = run.context(batch.shape, true);
  run.weight_pointers[1] = nullptr;  // block 0's first norm
  BOOST_CHECK_THROW(run.forward(context, batch.tokens.data()), InternalError);
  StageContext without_tables = run.context(batch.shape, true);
  run.forward(without_tables, batch.tokens.data());
  without_tables.tables = nullptr;
  BOOST_CHECK_THROW(run.forward(without_tables, batch.tokens.data()), InternalError);
}

// A GPU makes more logits at a time, and all columns of a row at once; its attention needs no scratch for each thread.
BOOST_AUTO_TEST_CASE(scratch_is_what_the_device_needs) {
  const std::size_t V = 128256;                                         // Llama 3's
  BOOST_TEST(stages::head_chunk_rows(8192, V, cpu_traits(1)) == 512u);  // at most 523 rows of 4 V bytes are below 256 MiB
  BOOST_TEST(stages::head_chunk_rows(8192, V, cuda_traits()) == 4096u);
  BOOST_TEST(stages::head_piece(V, cpu_traits(1)) == 4032u);
  BOOST_TEST(stages::head_piece(V, cuda_traits()) == V);
  BOOST_TEST(stages::head_piece(50264, cuda_traits()) == 50264u);
  BOOST_TEST(stages::head_piece(50257, cuda_traits()) == 50240u);  // so that cuBLASLt has fast products for the first piece
  BOOST_TEST(stages::head_piece(63, cuda_traits()) == 63u);
  const kernels::AttentionShape shape = {3, 17, 4, 2, 8, 64, 64};
  BOOST_TEST(kernels::attention_scratch(shape, cuda_traits()) == 3u * 4 * 17);
  BOOST_TEST(kernels::attention_scratch(shape, cpu_traits(5)) == 5 * kernels::attention_scratch(shape, cpu_traits(1)));
  // Scratch for five threads' attention is more than the head of this small model needs, so it shows in the whole.
  const Transformer one(tiny_gpt2(), cpu_traits(1)), five(tiny_gpt2(), cpu_traits(5)), gpu(tiny_gpt2(), cuda_traits());
  BOOST_TEST(five.sizes({2, 8}).scratch > one.sizes({2, 8}).scratch);
  // Sums over rows: in more partitions, which do not depend on threads.
  BOOST_TEST(kernels::column_sum_scratch(37, cpu_traits(5)) == 2u * 32 * 37);
  BOOST_TEST(kernels::column_sum_scratch(37, cuda_traits()) == 2u * 512 * 37);
  BOOST_TEST(gpu.sizes({2, 8}).saved == one.sizes({2, 8}).saved);
}

// A model that has been sized for one device does not run on another one, nor with more threads than have scratch.
BOOST_AUTO_TEST_CASE(a_model_runs_where_it_was_sized_for) {
  test::ModelRun run(tiny_gpt2());
  const Batch batch({1, 4}, run.model.config().vocab_size, 6);
  std::vector<float> x(batch.shape.rows() * run.model.config().width);
  const StageContext context = run.context(batch.shape, false);
  const Transformer for_gpu(run.model.config(), cuda_traits());
  BOOST_CHECK_THROW(for_gpu.first->forward(context, batch.tokens.data(), x.data()), InternalError);
  const int threads = kernels::threads();
  kernels::set_threads(threads + 1);
  BOOST_CHECK_THROW(run.model.first->forward(context, batch.tokens.data(), x.data()), InternalError);
  kernels::set_threads(threads);
  BOOST_CHECK_NO_THROW(run.model.first->forward(context, batch.tokens.data(), x.data()));
}
