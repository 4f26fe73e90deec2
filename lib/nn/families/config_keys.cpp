#include "nn/families/config_keys.hpp"

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
  throw UserError(format("config.json: \"{}\" is {} (expected {}): correct the file", name, json_excerpt(value), wanted));
}

std::size_t read_count(const json& object, std::initializer_list<const char*> names, std::size_t otherwise) {
  const json* value = find(object, names);
  if (!value) return otherwise;
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) wrong_value(*names.begin(), *value, "a count");
  return value->get<std::size_t>();
}

double read_number(const json& object, const char* name, double otherwise) {
  const json* value = find(object, {name});
  if (!value) return otherwise;
  if (!value->is_number()) wrong_value(name, *value, "a number");
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
  return excerpt(value->get<std::string>());  // no text that means something is longer
}

void require_off(const json& object, const char* name, const json& off) {
  const json* value = find(object, {name});
  if (!value || *value == off) return;
  throw UserError(format("config.json: \"{}\": {} is not supported (it changes the results); use a model with \"{}\": {}", name,
                         json_excerpt(*value), name, off.dump()));
}

Activation read_activation(const json& object, const char* name, const std::string& otherwise,
                           std::initializer_list<Activation> known) {
  std::string value = read_text(object, name, otherwise), names;
  if (value == "gelu_pytorch_tanh") value = name_of(Activation::gelu_tanh);
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
  if (type == "default") return rope;
  if (type != "llama3")
    throw UserError(
        format("config.json: rope type \"{}\" is not supported (it changes the results); use a model with rope type "
               "\"default\" or \"llama3\"",
               type));
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (!find(*parameters, {name}))
      throw UserError(
          format("config.json: rope type \"llama3\" without \"{}\" (its frequencies depend on it); add the key", name));
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
  // Where both are there, versions 4 and 5 of transformers take rope_scaling, and older files have it alone.
  if (find(object, {"rope_parameters"}) && !(by_parameters == by_scaling))
    throw UserError(
        "config.json: \"rope_parameters\" and \"rope_scaling\" do not say the same (transformers takes rope_scaling, with the "
        "model's own rope_theta); remove the one that does not hold");
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
  // Version 5 of transformers reads rope_parameters; 4 ignores it and reads the other two. Where 5 sees rope_scaling as well,
  // it takes that with rope_theta: the same numbers.
  object["rope_scaling"] = rope.llama3 ? scaling : json();
  object["rope_theta"] = rope.theta;
  scaling["rope_theta"] = rope.theta;
  object["rope_parameters"] = scaling;
}

double shortest(float x) { return std::stod(format("{}", x)); }

}  // namespace fsdp::keys
