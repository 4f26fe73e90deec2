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

struct Size {
  const char* name;
  std::size_t width, layers, ffn_width, vocab_size, positions, window;  // all have 32 heads of 128, and 8 key/value heads
  double theta;
};

constexpr Size kSizes[] = {
    {"mistral-7b", 4096, 32, 14336, 32000, 32768, 4096, 1e4},
    {"mistral-7b-v0.3", 4096, 32, 14336, 32768, 32768, 0, 1e6},
    {"mistral-nemo-12b", 5120, 40, 14336, 131072, 131072, 0, 1e6},
};

std::vector<Arch> archs() {
  std::vector<Arch> all;
  for (const Size& size : kSizes) {
    TransformerConfig config = with_sizes(defaults(), size.width, size.layers, 32, 8, size.ffn_width);
    config.head_size = 128;
    config.vocab_size = size.vocab_size;
    config.max_positions = size.positions;
    config.norm_eps = 1e-5f;
    config.rope.theta = size.theta;
    config.sliding_window = size.window;
    all.push_back({size.name, config});
  }
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
