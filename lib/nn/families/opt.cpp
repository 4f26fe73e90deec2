// OPT: GPT-2's arithmetic with ReLU, and with separate projections for q, k and v (Zhang et al. 2022). The first token's
// position is in row 2 of the position table, which has two more rows than there are positions. Keys and defaults are from
// transformers' OPTConfig. The sizes are from the config.json of facebook/opt-*. opt-350m is refused, because its norms come
// after attention and MLP.
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/families.hpp"
#include "nn/families/config_keys.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config;
  config.family = "opt";
  config.vocab_size = 50272;
  config.max_positions = 2048;
  config.width = 768;
  config.layers = config.heads = 12;
  config.ffn_width = 3072;
  config.position_offset = 2;
  config.activation = Activation::relu;
  return config;
}

TransformerConfig read(const json& object, TransformerConfig config) {
  keys::require_off(object, "do_layer_norm_before", true);
  keys::require_off(object, "_remove_final_layer_norm", false);
  keys::require_off(object, "layer_norm_elementwise_affine", true);
  config.max_positions = keys::read_count(object, {"max_position_embeddings"}, config.max_positions);
  config.width = keys::read_count(object, {"hidden_size"}, config.width);
  if (const std::size_t width = keys::read_count(object, {"word_embed_proj_dim"}, config.width); width != config.width)
    throw UserError(
        format("config.json: \"word_embed_proj_dim\": {} with \"hidden_size\": {} is not supported (embeddings here have the "
               "width of the model); use a model in which the two are equal",
               width, config.width));
  config.layers = keys::read_count(object, {"num_hidden_layers"}, config.layers);
  config.heads = config.kv_heads = keys::read_count(object, {"num_attention_heads"}, config.heads);
  config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.ffn_width = keys::read_count(object, {"ffn_dim"}, config.ffn_width);
  config.activation = keys::read_activation(object, "activation_function", "relu",
                                            {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf});
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = keys::read_bool(object, "enable_bias", true);
  config.padding_token = keys::read_padding(object, config.vocab_size, 1);
  config.initializer_range = keys::read_float(object, "init_std", double{config.initializer_range});
  return config;
}

json write(const TransformerConfig& config) {
  return {{"activation_function", keys::name_of(config.activation)},
          {"attention_dropout", 0.0},
          {"do_layer_norm_before", true},
          {"dropout", 0.0},
          {"enable_bias", config.qkv_bias},
          {"ffn_dim", config.ffn_width},
          {"hidden_size", config.width},
          {"init_std", keys::shortest(config.initializer_range)},
          {"layerdrop", 0.0},
          {"max_position_embeddings", config.max_positions},
          {"num_attention_heads", config.heads},
          {"num_hidden_layers", config.layers},
          {"pad_token_id", keys::written(config.padding_token)},
          {"word_embed_proj_dim", config.width}};
}

}  // namespace

const Family& opt_family() {
  static const Family family = {.model_type = "opt",
                                .architecture = "OPTForCausalLM",
                                .names = {.base = "model.",
                                          .token_table = "model.decoder.embed_tokens.weight",
                                          .position_table = "model.decoder.embed_positions.weight",
                                          .block = "model.decoder.layers.{}.",
                                          .norm1 = "self_attn_layer_norm",
                                          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                          .attention_out = "self_attn.out_proj",
                                          .norm2 = "final_layer_norm",
                                          .ffn_in = {"fc1"},
                                          .ffn_out = "fc2",
                                          .final_norm = "model.decoder.final_layer_norm",
                                          .head = "lm_head.weight"},
                                .grouped_queries = false,
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs_of(defaults(), {{"opt-125m", 768, 12, 12},
                                                               {"opt-1.3b", 2048, 24, 32},
                                                               {"opt-2.7b", 2560, 32, 32},
                                                               {"opt-6.7b", 4096, 32, 32},
                                                               {"opt-13b", 5120, 40, 40},
                                                               {"opt-30b", 7168, 48, 56},
                                                               {"opt-66b", 9216, 64, 72}})};
  return family;
}

}  // namespace fsdp
