// GPT-2: LayerNorm, learned positions, GELU, biases, q, k and v in one projection, weights stored as Conv1D (Radford et al.
// 2019). Keys and defaults are from transformers' GPT2Config.
//
// The sizes are from the config.json of openai-community/gpt2, gpt2-medium, gpt2-large and gpt2-xl.
#include <nlohmann/json.hpp>

#include "nn/families.hpp"
#include "nn/families/config_keys.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config;
  config.family = "gpt2";
  config.vocab_size = 50257;
  config.max_positions = 1024;
  config.width = 768;
  config.layers = config.heads = 12;
  return config;
}

TransformerConfig read(const json& object, TransformerConfig config) {
  keys::require_off(object, "scale_attn_weights", true);
  keys::require_off(object, "scale_attn_by_inverse_layer_idx", false);
  keys::require_off(object, "reorder_and_upcast_attn", false);
  config.max_positions = keys::read_count(object, {"n_positions", "max_position_embeddings"}, config.max_positions);
  config.width = keys::read_count(object, {"n_embd", "hidden_size"}, config.width);
  config.layers = keys::read_count(object, {"n_layer", "num_hidden_layers"}, config.layers);
  config.heads = config.kv_heads = keys::read_count(object, {"n_head", "num_attention_heads"}, config.heads);
  config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.ffn_width = keys::read_count(object, {"n_inner"}, 4 * config.width);
  config.activation =
      keys::read_activation(object, "activation_function", "gelu_new", {Activation::gelu_tanh, Activation::gelu_erf});
  config.norm_eps = keys::read_float(object, "layer_norm_epsilon", 1e-5);
  config.initializer_range = keys::read_float(object, "initializer_range", 0.02);
  return config;
}

json write(const TransformerConfig& config) {
  return {{"activation_function", keys::name_of(config.activation)},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"initializer_range", keys::shortest(config.initializer_range)},
          {"resid_pdrop", 0.0},
          {"layer_norm_epsilon", keys::shortest(config.norm_eps)},
          {"n_embd", config.width},
          {"n_head", config.heads},
          {"n_inner", config.ffn_width == 4 * config.width ? json() : json(config.ffn_width)},
          {"n_layer", config.layers},
          {"n_positions", config.max_positions},
          {"reorder_and_upcast_attn", false},
          {"scale_attn_by_inverse_layer_idx", false},
          {"scale_attn_weights", true}};
}

std::vector<Arch> archs() {
  return archs_of(
      defaults(),
      {{"gpt2", 768, 12, 12}, {"gpt2-medium", 1024, 24, 16}, {"gpt2-large", 1280, 36, 20}, {"gpt2-xl", 1600, 48, 25}});
}

}  // namespace

const Family& gpt2_family() {
  static const Family family = {.model_type = "gpt2",
                                .architecture = "GPT2LMHeadModel",
                                .names = {.base = "transformer.",
                                          .token_table = "transformer.wte.weight",
                                          .position_table = "transformer.wpe.weight",
                                          .block = "transformer.h.{}.",
                                          .norm1 = "ln_1",
                                          .qkv = {"attn.c_attn"},
                                          .attention_out = "attn.c_proj",
                                          .norm2 = "ln_2",
                                          .ffn_in = {"mlp.c_fc"},
                                          .ffn_out = "mlp.c_proj",
                                          .final_norm = "transformer.ln_f",
                                          .head = "lm_head.weight"},
                                .weights = WeightLayout::in_out,
                                .initial = InitialWeights::residual_scaled,
                                .grouped_queries = false,
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs()};
  return family;
}

}  // namespace fsdp
