// Qwen 3: Llama with RMSNorm of each head of q and k, and heads of any size (Yang et al. 2025). Keys and defaults are from
// transformers' Qwen3Config. The sizes are from the config.json of models with these names on Hugging Face.
#include <nlohmann/json.hpp>

#include "nn/families/config_keys.hpp"
#include "nn/families/llama.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config = llama_family().defaults;
  config.family = "qwen3";
  config.vocab_size = 151936;
  config.max_positions = 32768;
  config.kv_heads = 32;
  config.head_size = 128;
  config.ffn_width = 22016;
  config.qk_norm = true;
  return config;
}

ParameterNames names() {
  ParameterNames names = llama_names();
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  TransformerConfig config = read_llama_keys(object, std::move(defaults));
  config.qkv_bias = config.attention_out_bias = keys::read_bool(object, "attention_bias", false);
  keys::read_qwen_windows(object, config);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  object["attention_bias"] = config.qkv_bias;
  keys::write_qwen_windows(config, object);
  return object;
}

std::vector<Arch> archs() {
  TransformerConfig config = defaults();
  config.max_positions = 40960;
  config.rope.theta = 1e6;
  return archs_of(config, {{"qwen3-0.6b", 1024, 28, 16, 8, 3072, 0, 0, 0, true},
                           {"qwen3-1.7b", 2048, 28, 16, 8, 6144, 0, 0, 0, true},
                           {"qwen3-4b", 2560, 36, 32, 8, 9728, 0, 0, 0, true},
                           {"qwen3-8b", 4096, 36, 32, 8, 12288},
                           {"qwen3-14b", 5120, 40, 40, 8, 17408},
                           {"qwen3-32b", 5120, 64, 64, 8, 25600}});
}

}  // namespace

const Family& qwen3_family() {
  static const Family family = {.model_type = "qwen3",
                                .architecture = "Qwen3ForCausalLM",
                                .names = names(),
                                .free_head_size = true,
                                .reads_sliding_window = true,
                                .reads_layer_types = true,
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs()};
  return family;
}

}  // namespace fsdp
