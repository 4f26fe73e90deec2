#include "nn/families/config_keys.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp::keys {

using nlohmann::json;

const json* find(const json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found != object.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

void wrong_value(const char* name, const json& value, const char* wanted) {
  throw UserError(format("config.json: \"{}\" is {} (expected {}); correct the file", name, json_excerpt(value), wanted));
}

std::size_t read_count(const json& object, std::initializer_list<const char*> names, std::size_t otherwise) {
  const json* value = find(object, names);
  if (!value) return otherwise;
  for (const char* name : names)
    if (const json* other = find(object, {name}); other && *other != *value)
      wrong_value(
          name, *other,
          format("{}, the value of \"{}\", which is another name of this key", json_excerpt(*value), *names.begin()).c_str());
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) wrong_value(*names.begin(), *value, "a count");
  return value->get<std::size_t>();
}

double read_number(const json& object, const char* name, double otherwise) {
  const json* value = find(object, {name});
  if (!value) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) wrong_value(name, *value, "a number");
  return value->get<double>();
}

float read_float(const json& object, const char* name, double otherwise) {
  const double value = read_number(object, name, otherwise);
  // A number beyond fp32's range would become an infinity, which JSON cannot write.
  if (std::abs(value) > std::numeric_limits<float>::max()) wrong_value(name, object[name], "a number that fp32 holds");
  return static_cast<float>(value);
}

bool read_bool(const json& object, const char* name, bool otherwise) {
  const json* value = find(object, {name});
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong_value(name, *value, "true or false");
  return value->get<bool>();
}

std::string read_text(const json& object, const char* name, const std::string& otherwise) {
  const json* value = find(object, {name});
  if (!value) return otherwise;
  if (!value->is_string()) wrong_value(name, *value, "a string");
  return excerpt(value->get<std::string>());  // shortened: valid values are short
}

std::optional<std::size_t> read_padding(const json& object, std::size_t vocab_size, std::optional<std::size_t> otherwise) {
  const json value = object.value("pad_token_id", otherwise ? json(*otherwise) : json());
  if (value.is_null()) return std::nullopt;
  if (!value.is_number_integer()) wrong_value("pad_token_id", value, "a token's number");
  const auto id = value.get<std::int64_t>(), size = static_cast<std::int64_t>(vocab_size);
  if (id < -size || id >= size) return std::nullopt;
  return static_cast<std::size_t>(id < 0 ? id + size : id);
}

json written(const std::optional<std::size_t>& padding_token) { return padding_token ? json(*padding_token) : json(); }

void require_off(const json& object, const char* name, const json& off) {
  const json* value = find(object, {name});
  if (!value || *value == off) return;
  throw UserError(format("config.json: \"{}\": {} is not supported (it changes the results); use a model with \"{}\": {}", name,
                         json_excerpt(*value), name, off.dump()));
}

std::size_t read_windows(const json& object, std::size_t layers, std::size_t max_positions) {
  const bool used = read_bool(object, "use_sliding_window", false);
  const std::size_t window = used ? read_count(object, {"sliding_window"}, 4096) : 0;
  const bool is_off = !used || (object.contains("sliding_window") && object["sliding_window"].is_null());
  const std::size_t first = std::min(read_count(object, {"max_window_layers"}, 28), layers);
  std::size_t windows = layers - first;
  if (const json* types = find(object, {"layer_types"}))
    windows = static_cast<std::size_t>(std::count(types->begin(), types->end(), json("sliding_attention")));
  if (is_off && windows > 0 && find(object, {"layer_types"}))
    throw UserError(
        "config.json: \"layer_types\" has layers with a sliding window, but \"use_sliding_window\" or \"sliding_window\" turns "
        "windows off; correct the wrong key");
  if (is_off || windows == 0 || (windows < layers && window >= max_positions)) return 0;
  if (windows < layers)
    throw UserError(
        format("config.json: a sliding window of {} in {} of {} layers is not supported (it changes the results of longer "
               "sequences); use a model without \"use_sliding_window\", or with \"max_position_embeddings\": {}",
               window, windows, layers, window));
  if (window == 0) wrong_value("sliding_window", object["sliding_window"], "a count of tokens, or null for no window");
  return window;
}

void write_windows(std::size_t window, json& object) {
  object["sliding_window"] = window == 0 ? json() : json(window);
  object["use_sliding_window"] = window > 0;
  if (window > 0) object["max_window_layers"] = 0;
}

Activation read_activation(const json& object, const char* name, const std::string& otherwise,
                           std::initializer_list<Activation> known) {
  std::string value = read_text(object, name, otherwise), names;
  if (value == "gelu_pytorch_tanh" || value == "gelu_fast" || value == "gelu_accurate") value = name_of(Activation::gelu_tanh);
  if (value == "gelu_python") value = name_of(Activation::gelu_erf);
  if (value == "swish") value = name_of(Activation::swiglu);
  for (const Activation activation : known) {
    if (value == name_of(activation)) return activation;
    names += format("{}\"{}\"", names.empty() ? "" : ", ", name_of(activation));
  }
  throw UserError(format("config.json: \"{}\": \"{}\" is not supported (it changes the results); use a model with one of {}",
                         name, value, names));
}

const char* name_of(Activation activation) {
  constexpr const char* names[] = {"gelu_new", "gelu", "relu", "silu"};  // SwiGLU is named after the activation of its gate
  return names[static_cast<std::size_t>(activation)];
}

namespace {

/// Returns true if a scaling does not change the frequencies. "dynamic" changes them only for sequences longer than
/// max_position_embeddings, and these are refused.
bool changes_no_rotation(const json& parameters, const std::string& type) {
  if (!find(parameters, {"factor"})) return false;
  const double factor = read_number(parameters, "factor", 0);
  if (type == "dynamic") return factor > 0;
  return (type == "linear" || type == "yarn") && factor == 1 && read_number(parameters, "attention_factor", 1) == 1;
}

Rope read_rope_from(const json& object, const char* key, double default_theta) {
  Rope rope;
  rope.theta = default_theta;
  const json* parameters = find(object, {key});
  if (!parameters) return rope;
  if (!parameters->is_object()) wrong_value(key, *parameters, "an object");
  for (const json& value : *parameters)
    if (value.is_object()) wrong_value(key, *parameters, "one set of parameters for all layers");
  require_off(*parameters, "partial_rotary_factor", 1.0);
  rope.theta = read_number(*parameters, "rope_theta", rope.theta);
  const std::string type = read_text(*parameters, "rope_type", read_text(*parameters, "type", "default"));
  if (type == "default" || changes_no_rotation(*parameters, type)) return rope;
  if (type != "llama3")
    throw UserError(
        format("config.json: rope type \"{}\" is not supported (it changes the results); use a model with rope type "
               "\"default\" or \"llama3\"",
               type));
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (!find(*parameters, {name}))
      throw UserError(
          format("config.json: rope type \"llama3\" needs \"{}\" (the frequencies depend on this key); add the key", name));
  rope.llama3 = true;
  rope.factor = read_number(*parameters, "factor", 0);
  rope.low_freq_factor = read_number(*parameters, "low_freq_factor", 0);
  rope.high_freq_factor = read_number(*parameters, "high_freq_factor", 0);
  rope.original_positions = read_count(*parameters, {"original_max_position_embeddings"}, 0);
  return rope;
}

}  // namespace

Rope read_rope(const json& object, double default_theta) {
  require_off(object, "partial_rotary_factor", 1.0);
  const double theta = read_number(object, "rope_theta", default_theta);
  const Rope by_parameters = read_rope_from(object, "rope_parameters", theta);
  const Rope by_scaling = read_rope_from(object, "rope_scaling", theta);
  if (!find(object, {"rope_scaling"})) return by_parameters;
  // If both keys exist, transformers 4 and 5 use rope_scaling. Older files have only rope_scaling.
  if (find(object, {"rope_parameters"}) && !(by_parameters == by_scaling))
    throw UserError(
        "config.json: \"rope_parameters\" and \"rope_scaling\" differ (transformers uses rope_scaling, with \"rope_theta\" "
        "of the model); remove the wrong key");
  return by_scaling;
}

void write_rope(const Rope& rope, json& object) {
  json scaling = {{"rope_type", "default"}};
  if (rope.llama3)
    scaling = {{"rope_type", "llama3"},
               {"factor", rope.factor},
               {"low_freq_factor", rope.low_freq_factor},
               {"high_freq_factor", rope.high_freq_factor},
               {"original_max_position_embeddings", rope.original_positions}};
  // transformers 4 reads rope_scaling and rope_theta. transformers 5 reads rope_parameters; if rope_scaling is not null, it
  // reads rope_scaling and rope_theta instead, which have the same values.
  object["rope_scaling"] = rope.llama3 ? scaling : json();
  object["rope_theta"] = rope.theta;
  scaling["rope_theta"] = rope.theta;
  object["rope_parameters"] = scaling;
}

double shortest(float x) { return std::stod(format("{}", x)); }

}  // namespace fsdp::keys
