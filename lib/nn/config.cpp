// config.json to TransformerConfig and back. Keys and defaults are those of transformers' GPT2Config and LlamaConfig
// (src/transformers/models/{gpt2,llama}/configuration_*.py); versions 4 and 5 differ in how they spell rotary positions.
#include "nn/config.hpp"

#include <cmath>
#include <initializer_list>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp {

using nlohmann::json;

namespace {

/// The first of `keys` that is there and not null, else nullptr.
const json* find(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

[[noreturn]] void wrong_value(const char* key, const json& value, const char* wanted) {
  throw UserError(format("config.json: \"{}\" is {} (expected {}): correct the file", key, json_excerpt(value), wanted));
}

std::size_t read_count(const json& object, std::initializer_list<const char*> keys, std::size_t otherwise) {
  const json* value = find(object, keys);
  if (!value) return otherwise;
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) wrong_value(*keys.begin(), *value, "a count");
  return value->get<std::size_t>();
}

double read_number(const json& object, const char* key, double otherwise) {
  const json* value = find(object, {key});
  if (!value) return otherwise;
  if (!value->is_number()) wrong_value(key, *value, "a number");
  return value->get<double>();
}

/// Beyond fp32's range it would be an infinity, for which JSON has no number.
float read_float(const json& object, const char* key, double otherwise) {
  const double value = read_number(object, key, otherwise);
  if (std::abs(value) > std::numeric_limits<float>::max()) wrong_value(key, object[key], "a number that fp32 holds");
  return static_cast<float>(value);
}

bool read_bool(const json& object, const char* key, bool otherwise) {
  const json* value = find(object, {key});
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong_value(key, *value, "true or false");
  return value->get<bool>();
}

std::string read_text(const json& object, const char* key, const std::string& otherwise) {
  const json* value = find(object, {key});
  if (!value) return otherwise;
  if (!value->is_string()) wrong_value(key, *value, "a string");
  return excerpt(value->get<std::string>());  // no text that means something is longer
}

/// A feature that we do not have must be off; `off` is the value that means so.
void require_off(const json& object, const char* key, const json& off) {
  const json* value = find(object, {key});
  if (!value || *value == off) return;
  throw UserError(format("config.json: \"{}\": {} is not supported (it changes the results) use a model with \"{}\": {}", key,
                         json_excerpt(*value), key, off.dump()));
}

Rope read_rope(const json& object) {
  Rope rope;
  const json* parameters = find(object, {"rope_parameters", "rope_scaling"});
  rope.theta = read_number(object, "rope_theta", rope.theta);
  if (!parameters) return rope;
  if (!parameters->is_object()) wrong_value("rope_parameters", *parameters, "an object");
  for (const json& value : *parameters)
    if (value.is_object()) wrong_value("rope_parameters", *parameters, "one set of parameters for all layers");
  require_off(*parameters, "partial_rotary_factor", 1.0);
  rope.theta = read_number(*parameters, "rope_theta", rope.theta);
  const std::string type = read_text(*parameters, "rope_type", read_text(*parameters, "type", "default"));
  if (type == "default") return rope;
  if (type != "llama3")
    throw UserError(
        format("config.json: rope type \"{}\" is not supported (it changes the results) use a model with rope type "
               "\"default\" or \"llama3\"",
               type));
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (!find(*parameters, {key}))
      throw UserError(
          format("config.json: rope type \"llama3\" without \"{}\" (its frequencies depend on it) add the key", key));
  rope.llama3 = true;
  rope.factor = read_number(*parameters, "factor", 0);
  rope.low_freq_factor = read_number(*parameters, "low_freq_factor", 0);
  rope.high_freq_factor = read_number(*parameters, "high_freq_factor", 0);
  rope.original_positions = read_count(*parameters, {"original_max_position_embeddings"}, 0);
  return rope;
}

TransformerConfig read_gpt2(const json& object) {
  require_off(object, "scale_attn_weights", true);
  require_off(object, "scale_attn_by_inverse_layer_idx", false);
  require_off(object, "reorder_and_upcast_attn", false);
  TransformerConfig config;
  config.family = Family::gpt2;
  config.vocab_size = read_count(object, {"vocab_size"}, 50257);
  config.max_positions = read_count(object, {"n_positions", "max_position_embeddings"}, 1024);
  config.width = read_count(object, {"n_embd", "hidden_size"}, 768);
  config.layers = read_count(object, {"n_layer", "num_hidden_layers"}, 12);
  config.heads = read_count(object, {"n_head", "num_attention_heads"}, 12);
  config.kv_heads = config.heads;
  config.head_size = config.heads == 0 ? 0 : config.width / config.heads;
  config.ffn_width = read_count(object, {"n_inner"}, 4 * config.width);
  const std::string activation = read_text(object, "activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    config.activation = Activation::gelu_tanh;
  } else if (activation == "gelu") {
    config.activation = Activation::gelu_erf;
  } else {
    throw UserError(
        format("config.json: \"activation_function\": \"{}\" is not supported (it changes the results) use a model with "
               "\"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu\"",
               activation));
  }
  config.norm_eps = read_float(object, "layer_norm_epsilon", 1e-5);
  config.tied_embeddings = read_bool(object, "tie_word_embeddings", true);
  config.attention_bias = config.mlp_bias = true;
  return config;
}

TransformerConfig read_llama(const json& object) {
  require_off(object, "hidden_act", "silu");
  require_off(object, "partial_rotary_factor", 1.0);
  TransformerConfig config;
  config.family = Family::llama;
  config.vocab_size = read_count(object, {"vocab_size"}, 32000);
  config.max_positions = read_count(object, {"max_position_embeddings"}, 2048);
  config.width = read_count(object, {"hidden_size"}, 4096);
  config.layers = read_count(object, {"num_hidden_layers"}, 32);
  config.heads = read_count(object, {"num_attention_heads"}, 32);
  config.kv_heads = read_count(object, {"num_key_value_heads"}, config.heads);
  config.head_size = read_count(object, {"head_dim"}, config.heads == 0 ? 0 : config.width / config.heads);
  config.ffn_width = read_count(object, {"intermediate_size"}, 11008);
  config.activation = Activation::swiglu;
  config.norm_eps = read_float(object, "rms_norm_eps", 1e-6);
  config.tied_embeddings = read_bool(object, "tie_word_embeddings", false);
  config.attention_bias = read_bool(object, "attention_bias", false);
  config.mlp_bias = read_bool(object, "mlp_bias", false);
  config.rope = read_rope(object);
  return config;
}

/// The double with the fewest digits that rounds to `x`: 1e-05, not 9.999999747378752e-06.
double shortest(float x) { return std::stod(format("{}", x)); }

json rope_json(const Rope& rope) {
  if (!rope.llama3) return {{"rope_type", "default"}};
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_positions}};
}

}  // namespace

void TransformerConfig::validate() const {
  const auto require = [](bool ok, const std::string& message) {
    if (!ok) throw UserError(message);
  };
  const auto positive = [&](std::size_t value, const char* what, const char* remedy) {
    require(value > 0, format("{} is 0 (a model needs at least one) set {}", what, remedy));
  };
  positive(vocab_size, "the vocabulary size", "`vocabulary size` (config.json: vocab_size)");
  positive(max_positions, "the longest sequence", "n_positions or max_position_embeddings in config.json");
  positive(width, "the width", "`width` (config.json: n_embd, hidden_size)");
  positive(layers, "the number of layers", "`number of layers` (config.json: n_layer, num_hidden_layers)");
  require(layers <= 10'000,
          format("{} layers are more than 10000 (nothing of that size is trained) correct `number of layers` or "
                 "config.json: n_layer, num_hidden_layers",
                 layers));
  positive(heads, "the number of heads", "`number of heads` (config.json: n_head, num_attention_heads)");
  positive(kv_heads, "the number of key/value heads", "`number of key/value heads` (config.json: num_key_value_heads)");
  positive(ffn_width, "the inner width", "`inner width` (config.json: n_inner, intermediate_size)");
  require(vocab_size <= std::numeric_limits<std::int32_t>::max(),
          format("the vocabulary size is {} (tokens are 32-bit) lower `vocabulary size`", vocab_size));
  require(width % heads == 0, format("{} attention heads do not divide the width {} (each head takes an equal part) change "
                                     "`number of heads` or `width`",
                                     heads, width));
  positive(head_size, "the head size", "head_dim in config.json");
  require(heads % kv_heads == 0,
          format("{} key/value heads do not divide {} attention heads (each serves an equal group) change "
                 "`number of key/value heads` or `number of heads`",
                 kv_heads, heads));
  require(norm_eps > 0,
          "the norm's epsilon is not positive (a constant row would divide by zero) set layer_norm_epsilon or rms_norm_eps "
          "in config.json");
  require(initializer_range >= 0, "initializer_range is negative (it is a standard deviation) correct config.json");
  if (family == Family::gpt2) {
    require(
        kv_heads == heads,
        format("{} key/value heads for {} heads (GPT-2 has no grouped queries) leave out `number of key/value heads` or use a "
               "llama architecture",
               kv_heads, heads));
    expect(head_size * heads == width && activation != Activation::swiglu && attention_bias && mlp_bias,
           "a GPT-2 configuration");
    return;
  }
  expect(activation == Activation::swiglu, "a Llama configuration");
  require(head_size % 2 == 0,
          format("the head size {} is odd (rotary positions turn pairs) change `number of heads` or `width` "
                 "(config.json: head_dim)",
                 head_size));
  require(rope.theta > 0, "rope_theta is not positive (frequencies are its powers) correct config.json");
  if (rope.llama3)
    require(rope.factor > 0 && rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor &&
                rope.original_positions > 0,
            "llama3 rope parameters do not fit (factor, low_freq_factor and original_max_position_embeddings must be positive, "
            "high_freq_factor above low_freq_factor) correct config.json");
}

TransformerConfig override_config(TransformerConfig config, const ConfigOverrides& overrides) {
  const TransformerConfig before = config;
  config.layers = overrides.layers.value_or(before.layers);
  config.width = overrides.width.value_or(before.width);
  config.heads = overrides.heads.value_or(before.heads);
  config.vocab_size = overrides.vocab_size.value_or(before.vocab_size);
  config.max_positions = overrides.max_positions.value_or(before.max_positions);
  config.ffn_width = overrides.ffn_width.value_or(before.ffn_width == 4 * before.width ? 4 * config.width : before.ffn_width);
  config.kv_heads = overrides.kv_heads.value_or(before.kv_heads == before.heads ? config.heads : before.kv_heads);
  if ((overrides.width || overrides.heads) && config.heads > 0) config.head_size = config.width / config.heads;
  return config;
}

TransformerConfig config_from_json(const json& object) {
  if (!object.is_object())
    throw UserError("config.json does not hold an object (it is not a model's configuration) check the folder");
  require_off(object, "add_cross_attention", false);
  for (const char* key : {"quantization_config", "sliding_window", "attention_chunk_size"})
    if (const json* value = find(object, {key}); value && *value != json(false))
      throw UserError(format("config.json: \"{}\" is not supported (it changes the results) use a model without it", key));
  if (const json* heads = find(object, {"pruned_heads"}); heads && !heads->empty())
    throw UserError("config.json: \"pruned_heads\" is not supported (it changes the shapes) use a model with all its heads");
  if (const json* types = find(object, {"layer_types"}))
    for (const json& type : *types)
      if (type != "full_attention")
        throw UserError(
            format("config.json: layer type {} is not supported (it changes the results) use a model with full attention in "
                   "all layers",
                   json_excerpt(type)));
  const std::string type = read_text(object, "model_type", "");
  if (type != "gpt2" && type != "llama")
    throw UserError(format(
        "config.json: model_type \"{}\" is not supported (known are gpt2 and llama) use a model of these families", type));
  TransformerConfig config = type == "gpt2" ? read_gpt2(object) : read_llama(object);
  config.initializer_range = read_float(object, "initializer_range", 0.02);
  config.validate();
  return config;
}

json config_to_json(const TransformerConfig& config) {
  json out = {{"dtype", "float32"},
              {"initializer_range", shortest(config.initializer_range)},
              {"tie_word_embeddings", config.tied_embeddings},
              {"use_cache", true},
              {"vocab_size", config.vocab_size}};
  if (config.family == Family::gpt2) {
    out.update(json{{"architectures", {"GPT2LMHeadModel"}},
                    {"model_type", "gpt2"},
                    {"activation_function", config.activation == Activation::gelu_tanh ? "gelu_new" : "gelu"},
                    {"attn_pdrop", 0.0},
                    {"embd_pdrop", 0.0},
                    {"resid_pdrop", 0.0},
                    {"layer_norm_epsilon", shortest(config.norm_eps)},
                    {"n_embd", config.width},
                    {"n_head", config.heads},
                    {"n_inner", config.ffn_width == 4 * config.width ? json() : json(config.ffn_width)},
                    {"n_layer", config.layers},
                    {"n_positions", config.max_positions},
                    {"reorder_and_upcast_attn", false},
                    {"scale_attn_by_inverse_layer_idx", false},
                    {"scale_attn_weights", true}});
    return out;
  }
  // Version 5 reads rope_parameters; 4 ignores it and reads the other two. Where 5 sees rope_scaling as well, it takes that
  // with rope_theta: the same numbers.
  json rope_parameters = rope_json(config.rope);
  rope_parameters["rope_theta"] = config.rope.theta;
  out.update(json{{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"attention_bias", config.attention_bias},
                  {"attention_dropout", 0.0},
                  {"head_dim", config.head_size},
                  {"hidden_act", "silu"},
                  {"hidden_size", config.width},
                  {"intermediate_size", config.ffn_width},
                  {"max_position_embeddings", config.max_positions},
                  {"mlp_bias", config.mlp_bias},
                  {"num_attention_heads", config.heads},
                  {"num_hidden_layers", config.layers},
                  {"num_key_value_heads", config.kv_heads},
                  {"rms_norm_eps", shortest(config.norm_eps)},
                  {"rope_parameters", rope_parameters},
                  {"rope_scaling", config.rope.llama3 ? rope_json(config.rope) : json()},
                  {"rope_theta", config.rope.theta}});
  return out;
}

TransformerConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  if (kind_of(path) == PathKind::missing)
    throw UserError(format("{} cannot be read (a model is a folder with config.json and *.safetensors) check `model folder`",
                           path.string()));
  const json parsed = read_json_file(path);
  if (parsed.is_discarded()) throw UserError(format("{} is not JSON, or nested too deeply; correct the file", path.string()));
  try {
    return config_from_json(parsed);
  } catch (const UserError& error) {
    throw UserError(format("{}: {}", folder.string(), error.what()));
  }
}

}  // namespace fsdp
