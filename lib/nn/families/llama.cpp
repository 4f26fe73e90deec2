// Llama: RMSNorm, rotary positions, SwiGLU, grouped queries, optional biases (Touvron et al. 2023). Keys and defaults are from
// transformers' LlamaConfig. The sizes are from the config.json of models with these names on Hugging Face.
#include "nn/families/llama.hpp"

#include <nlohmann/json.hpp>

#include "nn/families/config_keys.hpp"

namespace fsdp {

using nlohmann::json;

ParameterNames llama_names() {
  return {.base = "model.",
          .token_table = "model.embed_tokens.weight",
          .block = "model.layers.{}.",
          .norm1 = "input_layernorm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .attention_out = "self_attn.o_proj",
          .norm2 = "post_attention_layernorm",
          .ffn_in = {"mlp.gate_proj", "mlp.up_proj"},
          .ffn_out = "mlp.down_proj",
          .final_norm = "model.norm",
          .head = "lm_head.weight"};
}

TransformerConfig read_llama_keys(const json& object, TransformerConfig config) {
  keys::read_activation(object, "hidden_act", "silu", {Activation::swiglu});
  config.max_positions = keys::read_count(object, {"max_position_embeddings"}, config.max_positions);
  config.width = keys::read_count(object, {"hidden_size"}, config.width);
  config.layers = keys::read_count(object, {"num_hidden_layers"}, config.layers);
  config.heads = keys::read_count(object, {"num_attention_heads"}, config.heads);
  // A missing key has its default value. A key that is null has the value that follows from other keys.
  const auto follows = [&](const char* name) { return object.contains(name) && object[name].is_null(); };
  if (config.kv_heads == 0 || follows("num_key_value_heads")) config.kv_heads = config.heads;
  config.kv_heads = keys::read_count(object, {"num_key_value_heads"}, config.kv_heads);
  if (config.head_size == 0 || follows("head_dim")) config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.head_size = keys::read_count(object, {"head_dim"}, config.head_size);
  config.ffn_width = keys::read_count(object, {"intermediate_size"}, config.ffn_width);
  config.norm_eps = keys::read_float(object, "rms_norm_eps", double{config.norm_eps});
  config.initializer_range = keys::read_float(object, "initializer_range", double{config.initializer_range});
  config.padding_token = keys::read_padding(object, config.vocab_size);
  config.rope = keys::read_rope(object, config);
  return config;
}

json write_llama_keys(const TransformerConfig& config) {
  json object = {{"attention_dropout", 0.0},
                 {"head_dim", config.head_size},
                 {"hidden_act", "silu"},
                 {"hidden_size", config.width},
                 {"initializer_range", keys::shortest(config.initializer_range)},
                 {"intermediate_size", config.ffn_width},
                 {"max_position_embeddings", config.max_positions},
                 {"num_attention_heads", config.heads},
                 {"num_hidden_layers", config.layers},
                 {"num_key_value_heads", config.kv_heads},
                 {"pad_token_id", keys::written(config.padding_token)},
                 {"rms_norm_eps", keys::shortest(config.norm_eps)}};
  keys::write_rope(config.rope, object);
  return object;
}

namespace {

TransformerConfig defaults() {
  TransformerConfig config;
  config.family = "llama";
  config.vocab_size = 32000;
  config.max_positions = 2048;
  config.width = 4096;
  config.layers = config.heads = 32;
  config.ffn_width = 11008;
  config.norm = NormKind::rms;
  config.positions = Positions::rotary;
  config.activation = Activation::swiglu;
  config.norm_eps = 1e-6f;
  config.tied_embeddings = config.qkv_bias = config.attention_out_bias = config.mlp_bias = false;
  return config;
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  TransformerConfig config = read_llama_keys(object, std::move(defaults));
  config.qkv_bias = config.attention_out_bias = keys::read_bool(object, "attention_bias", false);
  config.mlp_bias = keys::read_bool(object, "mlp_bias", false);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  object["attention_bias"] = config.qkv_bias;
  object["mlp_bias"] = config.mlp_bias;
  return object;
}

std::vector<Arch> archs() {
  std::vector<Arch> all =
      archs_of(defaults(), {{"llama-7b", 4096, 32, 32, 32, 11008, 32000, 2048, 1e-6f, false, 1e4},
                            {"llama-13b", 5120, 40, 40, 40, 13824, 32000, 2048, 1e-6f, false, 1e4},
                            {"llama-30b", 6656, 60, 52, 52, 17920, 32000, 2048, 1e-6f, false, 1e4},
                            {"llama-65b", 8192, 80, 64, 64, 22016, 32000, 2048, 1e-5f, false, 1e4},
                            {"llama-2-7b", 4096, 32, 32, 32, 11008, 32000, 4096, 1e-5f, false, 1e4},
                            {"llama-2-13b", 5120, 40, 40, 40, 13824, 32000, 4096, 1e-5f, false, 1e4},
                            {"llama-2-70b", 8192, 80, 64, 8, 28672, 32000, 4096, 1e-5f, false, 1e4},
                            {"codellama-7b", 4096, 32, 32, 32, 11008, 32016, 16384, 1e-5f, false, 1e6},
                            {"llama-3-8b", 4096, 32, 32, 8, 14336, 128256, 8192, 1e-5f, false, 5e5},
                            {"llama-3-70b", 8192, 80, 64, 8, 28672, 128256, 8192, 1e-5f, false, 5e5},
                            {"llama-3.1-8b", 4096, 32, 32, 8, 14336, 128256, 131072, 1e-5f, false, 5e5},
                            {"llama-3.1-70b", 8192, 80, 64, 8, 28672, 128256, 131072, 1e-5f, false, 5e5},
                            {"llama-3.1-405b", 16384, 126, 128, 8, 53248, 128256, 131072, 1e-5f, false, 5e5},
                            {"llama-3.2-1b", 2048, 16, 32, 8, 8192, 128256, 131072, 1e-5f, true, 5e5},
                            {"llama-3.2-3b", 3072, 28, 24, 8, 8192, 128256, 131072, 1e-5f, true, 5e5},
                            {"tinyllama-1.1b", 2048, 22, 32, 4, 5632, 32000, 2048, 1e-5f, false, 1e4},
                            {"smollm2-135m", 576, 30, 9, 3, 1536, 49152, 8192, 1e-5f, true, 1e5},
                            {"smollm2-360m", 960, 32, 15, 5, 2560, 49152, 8192, 1e-5f, true, 1e5},
                            {"smollm2-1.7b", 2048, 24, 32, 32, 8192, 49152, 8192, 1e-5f, true, 1.3e5}});
  for (auto& [name, config] : all) {
    if (name.starts_with("llama-3.1") || name.starts_with("llama-3.2"))
      config.rope = {.kind = RopeKind::llama3,
                     .theta = 5e5,
                     .factor = name.starts_with("llama-3.1") ? 8.0 : 32.0,
                     .original_positions = 8192};
    if (name == "smollm2-135m") config.initializer_range = 1.0f / 24;
  }
  return all;
}

}  // namespace

const Family& llama_family() {
  static const Family family = {.model_type = "llama",
                                .architecture = "LlamaForCausalLM",
                                .names = llama_names(),
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs()};
  return family;
}

}  // namespace fsdp
