// Qwen 2 and 2.5: Llama with biases of q, k and v (Yang et al. 2024). Keys and defaults are from transformers' Qwen2Config. The
// sizes are from the config.json of models with these names on Hugging Face.
#include <nlohmann/json.hpp>

#include "nn/families/config_keys.hpp"
#include "nn/families/llama.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config = llama_family().defaults;
  config.family = "qwen2";
  config.vocab_size = 151936;
  config.max_positions = 32768;
  config.kv_heads = 32;
  config.ffn_width = 22016;
  config.qkv_bias = true;
  return config;
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  TransformerConfig config = read_llama_keys(object, std::move(defaults));
  keys::read_qwen_windows(object, config);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  keys::write_qwen_windows(config, object);
  return object;
}

std::vector<Arch> archs() {
  return archs_of(defaults(), {{"qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, 32768, 1e-6f, true, 1e6},
                               {"qwen2.5-1.5b", 1536, 28, 12, 2, 8960, 151936, 131072, 1e-6f, true, 1e6},
                               {"qwen2.5-3b", 2048, 36, 16, 2, 11008, 151936, 32768, 1e-6f, true, 1e6},
                               {"qwen2.5-7b", 3584, 28, 28, 4, 18944, 152064, 131072, 1e-6f, false, 1e6},
                               {"qwen2.5-14b", 5120, 48, 40, 8, 13824, 152064, 131072, 1e-5f, false, 1e6},
                               {"qwen2.5-32b", 5120, 64, 40, 8, 27648, 152064, 131072, 1e-5f, false, 1e6},
                               {"qwen2.5-72b", 8192, 80, 64, 8, 29568, 152064, 131072, 1e-5f, false, 1e6}});
}

}  // namespace

const Family& qwen2_family() {
  static const Family family = {.model_type = "qwen2",
                                .architecture = "Qwen2ForCausalLM",
                                .names = llama_names(),
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
