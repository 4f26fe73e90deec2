// StarCoder 2: Llama's attention between GPT-2's norms and activation (Lozhkov et al. 2024). Keys and defaults are
// those of transformers' Starcoder2Config.
#include <nlohmann/json.hpp>

#include "nn/families.hpp"
#include "nn/families/config_keys.hpp"

namespace {

using namespace fsdp;
using nlohmann::json;

constexpr auto kActivations = {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu};

/// What transformers takes for keys that are missing, and the arithmetic that all models of the family share.
TransformerConfig defaults() {
  TransformerConfig config;
  config.vocab_size = 49152;
  config.max_positions = 4096;
  config.width = 3072;
  config.layers = 30;
  config.heads = 24;
  config.kv_heads = 2;
  config.ffn_width = 12288;
  config.norm = NormKind::layer;
  config.positions = Positions::rotary;
  config.initializer_range = 0.018042f;
  return config;
}

/// `config` comes with the defaults, and with the keys that all families have: vocab_size and tie_word_embeddings.
TransformerConfig read(const json& object, TransformerConfig config) {
  config.max_positions = keys::read_count(object, {"max_position_embeddings"}, config.max_positions);
  config.width = keys::read_count(object, {"hidden_size"}, config.width);
  config.layers = keys::read_count(object, {"num_hidden_layers"}, config.layers);
  config.heads = keys::read_count(object, {"num_attention_heads"}, config.heads);
  config.kv_heads = keys::read_count(object, {"num_key_value_heads"}, config.kv_heads);
  config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.ffn_width = keys::read_count(object, {"intermediate_size"}, config.ffn_width);
  config.activation = keys::read_activation(object, "hidden_act", "gelu_pytorch_tanh", kActivations);
  config.norm_eps = keys::read_float(object, "norm_epsilon", double{config.norm_eps});
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = keys::read_bool(object, "use_bias", true);
  config.initializer_range = keys::read_float(object, "initializer_range", double{config.initializer_range});
  config.rope = keys::read_rope(object, config);
  return config;
}

/// The keys that read() reads: what is written here and read there is the same configuration.
json write(const TransformerConfig& config) {
  json object = {{"max_position_embeddings", config.max_positions},
                 {"hidden_size", config.width},
                 {"num_hidden_layers", config.layers},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.kv_heads},
                 {"intermediate_size", config.ffn_width},
                 {"hidden_act", keys::name_of(config.activation)},
                 {"norm_epsilon", keys::shortest(config.norm_eps)},
                 {"use_bias", config.qkv_bias},
                 {"initializer_range", keys::shortest(config.initializer_range)}};
  keys::write_rope(config.rope, object);
  return object;
}

}  // namespace

const fsdp::Family& starcoder2_family() {
  static const Family family = {.model_type = "starcoder2",
                                .architecture = "Starcoder2ForCausalLM",
                                .names = {.base = "model.",
                                          .token_table = "model.embed_tokens.weight",
                                          .block = "model.layers.{}.",
                                          .norm1 = "input_layernorm",
                                          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                          .attention_out = "self_attn.o_proj",
                                          .norm2 = "post_attention_layernorm",
                                          .ffn_in = {"mlp.c_fc"},
                                          .ffn_out = "mlp.c_proj",
                                          .final_norm = "model.norm",
                                          .head = "lm_head.weight"},
                                .defaults = defaults(),
                                .read = read,
                                .write = write};
  return family;
}
