// fairseq's language models (facebookresearch/fairseq, models/transformer_lm.py): GPT-2's block with separate projections for
// q, k and v. Token embeddings are multiplied by sqrt(C). The first position is in row 2 of the position table, because row 1
// is that of fairseq's padding token. In transformers, models with learned positions are biogpt (Luo et al. 2022), and models
// with sinusoidal positions are xglm (Lin et al. 2022). Keys and defaults are from its BioGptConfig and XGLMConfig. Both have
// LayerNorm's default epsilon of 1e-5; the model does not read layer_norm_eps of BioGptConfig.
//
// The sizes of transformer_lm_* are from fairseq's functions of these names. fairseq takes the vocabulary size from the data;
// the default here is 50,264, the size of its dictionary of GPT-2's tokens. In fairseq the longest sequence is that of
// training; here it is 2,048 for learned positions (as in GPT-3), and 100,000 for sinusoidal positions (the limit in fairseq).
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"
#include "nn/families.hpp"
#include "nn/families/config_keys.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

/// Defaults that biogpt and xglm share: the sizes of BioGPT and XGLM 564M.
TransformerConfig defaults(const char* family, Positions positions) {
  TransformerConfig config;
  config.width = 1024;
  config.layers = 24;
  config.heads = config.kv_heads = 16;
  config.ffn_width = 4096;
  config.family = family;
  config.positions = positions;
  config.position_offset = 2;
  config.scaled_embedding = true;
  config.activation = Activation::gelu_erf;
  return config;
}

TransformerConfig biogpt_defaults() {
  TransformerConfig config = defaults("biogpt", Positions::learned);
  config.vocab_size = 42384;
  config.max_positions = 1024;
  return config;
}

TransformerConfig xglm_defaults() {
  TransformerConfig config = defaults("xglm", Positions::sinusoidal);
  config.vocab_size = 256008;
  config.max_positions = 2048;
  return config;
}

/// The names of keys that both families have. XGLMConfig also accepts BioGPT's names of the first three.
struct ConfigKeys {
  const char *width, *layers, *heads, *ffn_width, *activation, *deviation;
};
constexpr ConfigKeys biogpt_keys = {"hidden_size",       "num_hidden_layers", "num_attention_heads",
                                    "intermediate_size", "hidden_act",        "initializer_range"};
constexpr ConfigKeys xglm_keys = {"d_model", "num_layers", "attention_heads", "ffn_dim", "activation_function", "init_std"};

TransformerConfig read(const json& object, TransformerConfig config, const ConfigKeys& keys) {
  config.max_positions = keys::read_count(object, {"max_position_embeddings"}, config.max_positions);
  config.width = keys::read_count(object, {keys.width, biogpt_keys.width}, config.width);
  config.layers = keys::read_count(object, {keys.layers, biogpt_keys.layers}, config.layers);
  config.heads = config.kv_heads = keys::read_count(object, {keys.heads, biogpt_keys.heads}, config.heads);
  config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.ffn_width = keys::read_count(object, {keys.ffn_width}, config.ffn_width);
  config.activation =
      keys::read_activation(object, keys.activation, "gelu", {Activation::gelu_erf, Activation::gelu_tanh, Activation::relu});
  config.initializer_range = keys::read_float(object, keys.deviation, double{config.initializer_range});
  config.padding_token = keys::read_padding(object, config.vocab_size, 1);
  config.scaled_embedding = keys::read_bool(object, "scale_embedding", true);
  return config;
}

json write(const TransformerConfig& config, const ConfigKeys& keys) {
  return {{"activation_dropout", 0.0},
          {"layerdrop", 0.0},
          {"max_position_embeddings", config.max_positions},
          {"pad_token_id", keys::written(config.padding_token)},
          {"scale_embedding", config.scaled_embedding},
          {keys.width, config.width},
          {keys.layers, config.layers},
          {keys.heads, config.heads},
          {keys.ffn_width, config.ffn_width},
          {keys.activation, keys::name_of(config.activation)},
          {keys.deviation, keys::shortest(config.initializer_range)}};
}

TransformerConfig read_biogpt(const json& object, TransformerConfig config) {
  return read(object, std::move(config), biogpt_keys);
}
json write_biogpt(const TransformerConfig& config) {
  json object = write(config, biogpt_keys);
  object.update({{"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0}});
  return object;
}
TransformerConfig read_xglm(const json& object, TransformerConfig config) {
  if (const json* pad = keys::find(object, {"pad_token_id"}); pad && *pad != 0 && *pad != 1)
    throw UserError(format(
        "config.json: \"pad_token_id\": {} is not supported (transformers sets this row of the position table to zero, which "
        "changes the results); use a model with \"pad_token_id\": 1",
        json_excerpt(*pad)));
  return read(object, std::move(config), xglm_keys);
}
json write_xglm(const TransformerConfig& config) {
  json object = write(config, xglm_keys);
  object.update({{"dropout", 0.0}, {"attention_dropout", 0.0}});
  return object;
}

ParameterNames names(const std::string& base, const char* position_table, const char* head) {
  return {.base = base,
          .token_table = base + "embed_tokens.weight",
          .position_table = position_table,
          .block = base + "layers.{}.",
          .norm1 = "self_attn_layer_norm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .attention_out = "self_attn.out_proj",
          .norm2 = "final_layer_norm",
          .ffn_in = {"fc1"},
          .ffn_out = "fc2",
          .final_norm = base + "layer_norm",
          .head = head};
}

std::vector<Arch> archs(TransformerConfig config, std::size_t positions, bool tied, const std::vector<ArchSizes>& models) {
  config.vocab_size = 50264;
  config.max_positions = positions;
  config.tied_embeddings = tied;
  return archs_of(config, models);
}

/// From base_gpt3_architecture(): learned positions, and the output projection is tied to the embedding.
std::vector<Arch> learned_archs() {
  return archs(biogpt_defaults(), 2048, true,
               {{"transformer_lm_gpt3_small", 768, 12, 12, 0, 3072},
                {"transformer_lm_gpt3_medium", 1024, 24, 16, 0, 4096},
                {"transformer_lm_gpt3_large", 1536, 24, 16, 0, 6144},
                {"transformer_lm_gpt3_xl", 2048, 24, 32, 0, 8192},
                {"transformer_lm_gpt3_2_7", 2560, 32, 32, 0, 10240},
                {"transformer_lm_gpt3_6_7", 4096, 32, 32, 0, 16384},
                {"transformer_lm_gpt3_13", 5120, 40, 40, 0, 20480},
                {"transformer_lm_gpt3_175", 12288, 96, 96, 0, 49152}});
}

/// From base_lm_architecture(): sinusoidal positions, and the output projection is not tied to the embedding.
std::vector<Arch> sinusoidal_archs() {
  std::vector<Arch> all = archs(xglm_defaults(), 100000, false,
                                {{"transformer_lm_big", 1024, 12, 16, 0, 4096},
                                 {"transformer_lm_gpt", 768, 12, 12, 0, 3072},
                                 {"transformer_lm_gpt2_tiny", 64, 2, 1, 0, 64},
                                 {"transformer_lm_gpt2_small", 1024, 24, 16, 0, 4096},
                                 {"transformer_lm_gpt2_medium", 1280, 36, 20, 0, 5120},
                                 {"transformer_lm_gpt2_big", 1600, 48, 25, 0, 6400},
                                 {"transformer_lm_gpt2_big_wide", 2048, 24, 32, 0, 8192},
                                 {"transformer_lm_gpt2_bigger", 2048, 48, 32, 0, 8192}});
  all.front().config.activation = Activation::relu;
  return all;
}

std::vector<OtherArch> others() {
  const std::string adaptive =
      "its embedding and its softmax are adaptive: rare tokens have narrower embeddings, and no family here has that";
  const std::string no_norm = "it has no norm after the last block, and every family here has one";
  const std::string post_norm =
      "its norms are after attention and MLP, and every family here has them before attention and MLP";
  const std::string wiki = "take transformer_lm_big with `number of layers` 16 and `number of heads` 8";
  const std::string gbw = "take transformer_lm_big with `width` 512";
  const std::string base = "take transformer_lm_big with `number of layers` 6, `width` 512 and `number of heads` 8";
  const std::string gpt2 = "it is Hugging Face's GPT-2, which has its Hugging Face name here",
                    network = "take gpt2, or see `list of architectures`";
  return {{"lstm_lm", "it is a recurrent network, and every family here is a transformer", network},
          {"fconv_lm", "it is a network of convolutions, and every family here is a transformer", network},
          {"lightconv_lm", "it has convolutions instead of attention, and every family here has attention", network},
          {"hf_gpt2", gpt2, "take gpt2"},
          {"hf_gpt2_medium", gpt2, "take gpt2-medium"},
          {"hf_gpt2_large", gpt2, "take gpt2-large"},
          {"hf_gpt2_xl", gpt2, "take gpt2-xl"},
          {"transformer_lm", post_norm, base},
          {"transformer_lm_wiki103", adaptive, wiki},
          {"transformer_lm_baevski_wiki103", adaptive, wiki},
          {"transformer_lm_gbw", no_norm, gbw},
          {"transformer_lm_baevski_gbw", no_norm, gbw}};
}

}  // namespace

const Family& biogpt_family() {
  static const Family family = {.model_type = "biogpt",
                                .architecture = "BioGptForCausalLM",
                                .names = names("biogpt.", "biogpt.embed_positions.weight", "output_projection.weight"),
                                .initial = InitialWeights::fairseq,
                                .grouped_queries = false,
                                .defaults = biogpt_defaults(),
                                .read = read_biogpt,
                                .write = write_biogpt,
                                .archs = learned_archs()};
  return family;
}

const Family& xglm_family() {
  static const Family family = {.model_type = "xglm",
                                .architecture = "XGLMForCausalLM",
                                .names = names("model.", "", "lm_head.weight"),
                                .initial = InitialWeights::fairseq,
                                .grouped_queries = false,
                                .defaults = xglm_defaults(),
                                .read = read_xglm,
                                .write = write_xglm,
                                .archs = sinusoidal_archs(),
                                .other_archs = others()};
  return family;
}

}  // namespace fsdp
