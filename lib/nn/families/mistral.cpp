// Mistral: Llama with a sliding window in all layers, and heads of any size (Jiang et al. 2023). Keys and defaults are from
// transformers' MistralConfig. The sizes are from the config.json of models with these names on Hugging Face.
#include <nlohmann/json.hpp>

#include "nn/families/config_keys.hpp"
#include "nn/families/llama.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config = llama_family().defaults;
  config.family = "mistral";
  config.max_positions = 131072;
  config.kv_heads = 8;
  config.ffn_width = 14336;
  config.sliding_window = 4096;
  return config;
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  TransformerConfig config = read_llama_keys(object, std::move(defaults));
  keys::read_window(object, config);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  keys::write_window(config, object);
  return object;
}

std::vector<Arch> archs() {
  TransformerConfig config = defaults();
  config.head_size = 128;
  config.sliding_window = 0;
  std::vector<Arch> all = archs_of(config, {{"mistral-7b", 4096, 32, 32, 8, 14336, 32000, 32768, 1e-5f, {}, 1e4},
                                            {"mistral-7b-v0.3", 4096, 32, 32, 8, 14336, 32768, 32768, 1e-5f, {}, 1e6},
                                            {"mistral-nemo-12b", 5120, 40, 32, 8, 14336, 131072, 131072, 1e-5f, {}, 1e6}});
  all.front().config.sliding_window = 4096;
  return all;
}

}  // namespace

const Family& mistral_family() {
  static const Family family = {.model_type = "mistral",
                                .architecture = "MistralForCausalLM",
                                .names = llama_names(),
                                .free_head_size = true,
                                .reads_sliding_window = true,
                                .defaults = defaults(),
                                .read = read,
                                .write = write,
                                .archs = archs()};
  return family;
}

}  // namespace fsdp
