// The models that are known by name, one row each.
//
// gpt2*: config.json of openai-community/gpt2 and its larger siblings. llama-*, codellama, tinyllama, smollm2: config.json of
// the models published under these names on Hugging Face. transformer_lm_*: fairseq/models/transformer_lm.py
// (facebookresearch/fairseq): sizes, GELU in its erf form, and whether the output projection shares the embedding (only gpt3
// does unless asked). fairseq takes the vocabulary from the data, 50,257 here (GPT-2's), and the longest sequence from
// what it trains on. Its gpt and gpt2 models have sinusoidal positions unless told otherwise; here positions
// are always learned, as in its gpt3 models.
#include <array>

#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/config.hpp"
#include "nn/transformer.hpp"

namespace fsdp {

namespace {

struct Gpt {
  const char* name;
  std::size_t width, layers, heads, ffn_width, positions;
  Activation activation;
  bool tied;
};

constexpr Gpt kGpts[] = {
    {"gpt2", 768, 12, 12, 3072, 1024, Activation::gelu_tanh, true},
    {"gpt2-medium", 1024, 24, 16, 4096, 1024, Activation::gelu_tanh, true},
    {"gpt2-large", 1280, 36, 20, 5120, 1024, Activation::gelu_tanh, true},
    {"gpt2-xl", 1600, 48, 25, 6400, 1024, Activation::gelu_tanh, true},
    {"transformer_lm_gpt", 768, 12, 12, 3072, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_tiny", 64, 2, 1, 64, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_small", 1024, 24, 16, 4096, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_medium", 1280, 36, 20, 5120, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_big", 1600, 48, 25, 6400, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_big_wide", 2048, 24, 32, 8192, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt2_bigger", 2048, 48, 32, 8192, 1024, Activation::gelu_erf, false},
    {"transformer_lm_gpt3_small", 768, 12, 12, 3072, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_medium", 1024, 24, 16, 4096, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_large", 1536, 24, 16, 6144, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_xl", 2048, 24, 32, 8192, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_2_7", 2560, 32, 32, 10240, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_6_7", 4096, 32, 32, 16384, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_13", 5120, 40, 40, 20480, 2048, Activation::gelu_erf, true},
    {"transformer_lm_gpt3_175", 12288, 96, 96, 49152, 2048, Activation::gelu_erf, true},
};

struct Llama {
  const char* name;
  std::size_t width, layers, heads, kv_heads, ffn_width, vocab_size, positions;
  float eps;
  bool tied;
  double theta;
  double factor;  // of llama3 scaling (low 1, high 4, original 8192 positions), or 0
  float initializer_range = 0.02f;
};

constexpr Llama kLlamas[] = {
    {"llama-7b", 4096, 32, 32, 32, 11008, 32000, 2048, 1e-6f, false, 1e4, 0},
    {"llama-13b", 5120, 40, 40, 40, 13824, 32000, 2048, 1e-6f, false, 1e4, 0},
    {"llama-30b", 6656, 60, 52, 52, 17920, 32000, 2048, 1e-6f, false, 1e4, 0},
    {"llama-65b", 8192, 80, 64, 64, 22016, 32000, 2048, 1e-5f, false, 1e4, 0},
    {"llama-2-7b", 4096, 32, 32, 32, 11008, 32000, 4096, 1e-5f, false, 1e4, 0},
    {"llama-2-13b", 5120, 40, 40, 40, 13824, 32000, 4096, 1e-5f, false, 1e4, 0},
    {"llama-2-70b", 8192, 80, 64, 8, 28672, 32000, 4096, 1e-5f, false, 1e4, 0},
    {"codellama-7b", 4096, 32, 32, 32, 11008, 32016, 16384, 1e-5f, false, 1e6, 0},
    {"llama-3-8b", 4096, 32, 32, 8, 14336, 128256, 8192, 1e-5f, false, 5e5, 0},
    {"llama-3-70b", 8192, 80, 64, 8, 28672, 128256, 8192, 1e-5f, false, 5e5, 0},
    {"llama-3.1-8b", 4096, 32, 32, 8, 14336, 128256, 131072, 1e-5f, false, 5e5, 8},
    {"llama-3.1-70b", 8192, 80, 64, 8, 28672, 128256, 131072, 1e-5f, false, 5e5, 8},
    {"llama-3.1-405b", 16384, 126, 128, 8, 53248, 128256, 131072, 1e-5f, false, 5e5, 8},
    {"llama-3.2-1b", 2048, 16, 32, 8, 8192, 128256, 131072, 1e-5f, true, 5e5, 32},
    {"llama-3.2-3b", 3072, 28, 24, 8, 8192, 128256, 131072, 1e-5f, true, 5e5, 32},
    {"tinyllama-1.1b", 2048, 22, 32, 4, 5632, 32000, 2048, 1e-5f, false, 1e4, 0},
    {"smollm2-135m", 576, 30, 9, 3, 1536, 49152, 8192, 1e-5f, true, 1e5, 0, 1.0f / 24},
    {"smollm2-360m", 960, 32, 15, 5, 2560, 49152, 8192, 1e-5f, true, 1e5, 0},
    {"smollm2-1.7b", 2048, 24, 32, 32, 8192, 49152, 8192, 1e-5f, true, 1.3e5, 0},
};

TransformerConfig make(const Gpt& row) {
  TransformerConfig config;
  config.family = Family::gpt2;
  config.vocab_size = 50257;
  config.max_positions = row.positions;
  config.width = row.width;
  config.layers = row.layers;
  config.heads = config.kv_heads = row.heads;
  config.head_size = row.width / row.heads;
  config.ffn_width = row.ffn_width;
  config.activation = row.activation;
  config.tied_embeddings = row.tied;
  return config;
}

TransformerConfig make(const Llama& row) {
  TransformerConfig config;
  config.family = Family::llama;
  config.vocab_size = row.vocab_size;
  config.max_positions = row.positions;
  config.width = row.width;
  config.layers = row.layers;
  config.heads = row.heads;
  config.kv_heads = row.kv_heads;
  config.head_size = row.width / row.heads;
  config.ffn_width = row.ffn_width;
  config.activation = Activation::swiglu;
  config.norm_eps = row.eps;
  config.tied_embeddings = row.tied;
  config.attention_bias = config.mlp_bias = false;
  config.initializer_range = row.initializer_range;
  config.rope.theta = row.theta;
  if (row.factor > 0) config.rope = {row.theta, true, row.factor, 1, 4, 8192};
  return config;
}

}  // namespace

TransformerConfig arch_config(const std::string& name) {
  std::vector<std::string> names;
  for (const Gpt& row : kGpts) {
    if (name == row.name) return make(row);
    names.push_back(row.name);
  }
  for (const Llama& row : kLlamas) {
    if (name == row.name) return make(row);
    names.push_back(row.name);
  }
  const std::string meant = nearest(name, names);
  throw UserError(format("`architecture` {} is not known ({}) see `list of architectures`", name,
                         meant.empty() ? "no name is near it" : "did you mean " + meant + "?"));
}

std::vector<std::pair<std::string, std::string>> list_archs() {
  std::vector<std::pair<std::string, std::string>> list;
  const auto add = [&](const char* name, const TransformerConfig& config) {
    list.emplace_back(name, format("{} parameters, {} layers, width {}",
                                   format_count(static_cast<double>(parameter_count(config))), config.layers, config.width));
  };
  for (const Gpt& row : kGpts) add(row.name, make(row));
  for (const Llama& row : kLlamas) add(row.name, make(row));
  return list;
}

}  // namespace fsdp
