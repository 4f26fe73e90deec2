// Gemma 3, the text models: grouped queries with RMSNorm of each head, norms before and after each branch, GEGLU, and windows
// in five of six layers, which have their own rotary positions (Gemma Team 2025). Keys and defaults are from transformers'
// Gemma3TextConfig. The sizes are from the config.json of models with these names on Hugging Face.
#include <nlohmann/json.hpp>

#include "nn/families/config_keys.hpp"
#include "nn/families/llama.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

TransformerConfig defaults() {
  TransformerConfig config = llama_family().defaults;
  config.family = "gemma3_text";
  config.vocab_size = 262208;
  config.max_positions = 131072;
  config.width = 2304;
  config.layers = 26;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_size = 256;
  config.ffn_width = 9216;
  config.activation = Activation::geglu_tanh;
  config.gain_offset = 1;
  config.branch_norms = config.qk_norm = config.tied_embeddings = true;
  config.scaled_embedding = config.rounded_scale = true;
  config.scores_scaled_by = 256;
  config.sliding_window = 4096;
  config.full_every = 6;
  config.rope.theta = 1e6;
  config.window_rope = Rope{};
  return config;
}

ParameterNames names() {
  ParameterNames names = llama_names();
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.attention_norm = "post_attention_layernorm";
  names.norm2 = "pre_feedforward_layernorm";
  names.ffn_norm = "post_feedforward_layernorm";
  return names;
}

/// Reads the rotary positions of layers with and without a window. rope_scaling belongs to those without.
void read_ropes(const json& object, TransformerConfig& config) {
  const json* parameters = keys::find(object, {"rope_parameters"});
  const auto of = [&](const char* layers) -> json {
    if (!parameters) return json::object();
    const json* found = parameters->is_object() ? keys::find(*parameters, {layers}) : nullptr;
    if (!found || !found->is_object())
      keys::wrong_value("rope_parameters", *parameters, "an object for each of \"full_attention\" and \"sliding_attention\"");
    return *found;
  };
  json full = of("full_attention");
  if (const json* scaling = keys::find(object, {"rope_scaling"})) {
    if (!scaling->is_object()) keys::wrong_value("rope_scaling", *scaling, "an object");
    full.update(*scaling);
  }
  Rope otherwise = config.rope;
  otherwise.theta = keys::read_number(object, "rope_theta", otherwise.theta);
  config.rope = keys::read_rope_parameters(full, config, otherwise);
  otherwise = *config.window_rope;
  otherwise.theta = keys::read_number(object, "rope_local_base_freq", otherwise.theta);
  config.window_rope = keys::read_rope_parameters(of("sliding_attention"), config, otherwise);
}

TransformerConfig read(const json& object, TransformerConfig defaults) {
  json others = object;
  for (const char* key : {"hidden_act", "rope_theta", "rope_scaling", "rope_parameters"}) others.erase(key);
  TransformerConfig config = read_llama_keys(others, std::move(defaults));
  const std::string activation = keys::read_text(object, "hidden_activation", "gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh" && activation != "gelu_new")
    keys::wrong_value("hidden_activation", object["hidden_activation"], "\"gelu_pytorch_tanh\"");
  keys::require_off(object, "use_bidirectional_attention", false);
  config.padding_token = keys::read_padding(object, config.vocab_size, 0);
  config.qkv_bias = config.attention_out_bias = keys::read_bool(object, "attention_bias", false);
  config.scores_scaled_by = keys::read_count(object, {"query_pre_attn_scalar"}, config.scores_scaled_by);
  read_ropes(object, config);
  keys::read_window(object, config);
  config.full_every = keys::read_count(object, {"sliding_window_pattern"}, config.full_every);
  keys::read_layer_types(object, config);
  return config;
}

json write(const TransformerConfig& config) {
  json object = write_llama_keys(config);
  object.erase("hidden_act");
  object["hidden_activation"] = keys::name_of(config.activation);
  object["attention_bias"] = config.qkv_bias;
  object["query_pre_attn_scalar"] = config.scores_scaled_by;
  object["rope_local_base_freq"] = config.window_rope->theta;
  json sliding = keys::written_rope(*config.window_rope);
  sliding["rope_theta"] = config.window_rope->theta;
  object["rope_parameters"] = {{"full_attention", object["rope_parameters"]}, {"sliding_attention", sliding}};
  // transformers needs a window even if no layer has one.
  object["sliding_window"] = config.sliding_window > 0 ? config.sliding_window : 4096;
  keys::write_layer_types(config, object);
  return object;
}

std::vector<Arch> archs() {
  TransformerConfig config = defaults();
  config.vocab_size = 262144;
  config.max_positions = 32768;
  config.sliding_window = 512;
  config.padding_token = 0;
  return archs_of(config, {{"gemma-3-270m", 640, 18, 4, 1, 2048}, {"gemma-3-1b", 1152, 26, 4, 1, 6912}});
}

}  // namespace

const Family& gemma3_family() {
  static const Family family = {.model_type = "gemma3_text",
                                .architecture = "Gemma3ForCausalLM",
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
