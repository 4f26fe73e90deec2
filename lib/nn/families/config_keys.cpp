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

namespace {

constexpr const char *window_type = "sliding_attention", *full_type = "full_attention";

/// Sets the fields for layers with windows so that they agree with `windows`, which has an entry for each layer.
void describe_windows(TransformerConfig& config, const std::vector<bool>& windows) {
  const auto agrees = [&](std::size_t from, std::size_t every) {
    config.window_from = from, config.full_every = every;
    for (std::size_t layer = 0; layer < windows.size(); ++layer)
      if ((config.window_of(layer) > 0) != windows[layer]) return false;
    return true;
  };
  const auto first = std::find(windows.begin(), windows.end(), true);
  if (agrees(static_cast<std::size_t>(first - windows.begin()), 0)) return;
  for (std::size_t every = 2; every <= windows.size(); ++every)
    if (agrees(0, every)) return;
  throw UserError(
      "config.json: \"layer_types\" has an order of layers with and without windows that is not supported (supported: "
      "windows in all layers from some layer on, or in all but every n-th layer); use another model");
}

}  // namespace

void read_layer_types(const json& object, TransformerConfig& config) {
  std::vector<bool> windows;
  if (const json* types = find(object, {"layer_types"})) {
    if (!types->is_array() || types->size() != config.layers)
      wrong_value("layer_types", *types, format("a list of {} types", config.layers).c_str());
    for (const json& type : *types) windows.push_back(type == window_type);
    if (config.sliding_window == 0 && std::count(windows.begin(), windows.end(), true) > 0)
      throw UserError(
          "config.json: \"layer_types\" has layers with a sliding window, but \"use_sliding_window\" or \"sliding_window\" "
          "turns "
          "windows off; correct the wrong key");
  } else {
    for (std::size_t layer = 0; layer < config.layers; ++layer) windows.push_back(config.window_of(layer) > 0);
  }
  if (std::count(windows.begin(), windows.end(), true) > 0) return describe_windows(config, windows);
  config.sliding_window = config.window_from = config.full_every = 0;
}

void read_window(const json& object, TransformerConfig& config) {
  if (!object.contains("sliding_window")) return;
  config.sliding_window = read_count(object, {"sliding_window"}, 0);  // null: no window
  if (config.sliding_window == 0 && !object["sliding_window"].is_null())
    wrong_value("sliding_window", object["sliding_window"], "a count of tokens, or null for no window");
}

void read_qwen_windows(const json& object, TransformerConfig& config) {
  config.sliding_window = 0, config.window_from = 0;
  if (read_bool(object, "use_sliding_window", false)) {
    config.sliding_window = 4096;
    read_window(object, config);
    config.window_from = std::min(read_count(object, {"max_window_layers"}, 28), config.layers);
  }
  read_layer_types(object, config);
}

void write_qwen_windows(const TransformerConfig& config, json& object) {
  write_window(config, object);
  object["use_sliding_window"] = config.sliding_window > 0;
  if (config.sliding_window == 0) return;
  if (config.full_every > 0) return write_layer_types(config, object);
  object["max_window_layers"] = config.window_from;
}

void write_window(const TransformerConfig& config, json& object) {
  object["sliding_window"] = config.sliding_window == 0 ? json() : json(config.sliding_window);
}

void write_layer_types(const TransformerConfig& config, json& object) {
  json types = json::array();
  for (std::size_t layer = 0; layer < config.layers; ++layer)
    types.push_back(config.window_of(layer) > 0 ? window_type : full_type);
  object["layer_types"] = types;
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
  // Activations with a gate are named after the activation of the gate.
  constexpr const char* names[] = {"gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"};
  return names[static_cast<std::size_t>(activation)];
}

namespace {

constexpr std::pair<RopeKind, const char*> rope_names[] = {{RopeKind::plain, "default"},     {RopeKind::linear, "linear"},
                                                           {RopeKind::dynamic, "dynamic"},   {RopeKind::yarn, "yarn"},
                                                           {RopeKind::longrope, "longrope"}, {RopeKind::llama3, "llama3"}};

RopeKind read_rope_kind(const json& parameters) {
  const std::string type = read_text(parameters, "rope_type", read_text(parameters, "type", "default"));
  std::vector<std::string> known;
  for (const auto& [kind, name] : rope_names) {
    if (type == name) return kind;
    known.push_back(format("\"{}\"", name));
  }
  throw UserError(format("config.json: rope type \"{}\" is not supported (it changes the results); use a model with one of {}",
                         type, fmt::join(known, ", ")));
}

std::vector<double> read_factors(const json& parameters, const char* name) {
  const json& value = parameters.at(name);
  std::vector<double> factors;
  if (!value.is_array()) wrong_value(name, value, "a list of numbers");
  for (const json& factor : value) {
    if (!factor.is_number()) wrong_value(name, value, "a list of numbers");
    factors.push_back(factor.get<double>());
  }
  return factors;
}

/// YaRN's factor for the attention (Peng et al. 2023, section 3.4), and the form with two scales that DeepSeek-V2 uses.
double yarn_attention_factor(const json& parameters, double factor) {
  const auto scaled = [&](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  const double one = read_number(parameters, "mscale", 0), all = read_number(parameters, "mscale_all_dim", 0);
  return one != 0 && all != 0 ? scaled(one) / scaled(all) : scaled(1);
}

/// LongRoPE's factor for the attention (Ding et al. 2024; transformers' _compute_longrope_parameters).
double longrope_attention_factor(double factor, std::size_t original) {
  return factor <= 1 || original <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

}  // namespace

Rope read_rope_parameters(const json& parameters, const TransformerConfig& config, const Rope& otherwise) {
  Rope rope = otherwise;
  rope.theta = read_number(parameters, "rope_theta", rope.theta);
  rope.rotated = read_number(parameters, "partial_rotary_factor", rope.rotated);
  rope.kind = read_rope_kind(parameters);
  const std::string type = read_text(parameters, "rope_type", read_text(parameters, "type", "default"));
  const auto require_keys = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (!find(parameters, {name}))
        throw UserError(
            format("config.json: rope type \"{}\" needs \"{}\" (the frequencies depend on this key); add the key", type, name));
  };
  const auto original = [&] {
    return read_count(parameters, {"original_max_position_embeddings"},
                      otherwise.original_positions > 0 ? otherwise.original_positions : config.max_positions);
  };
  /// The key "factor", or how much longer the model's positions are than the original ones.
  const auto factor_or_ratio = [&] {
    return read_number(parameters, "factor",
                       static_cast<double>(config.max_positions) / static_cast<double>(std::max<std::size_t>(original(), 1)));
  };
  rope.original_positions = 0;
  switch (rope.kind) {
    case RopeKind::plain:
      break;
    case RopeKind::linear:
    case RopeKind::dynamic:
      require_keys({"factor"});
      rope.factor = read_number(parameters, "factor", 1);
      break;
    case RopeKind::yarn:
      rope.original_positions = original();
      rope.factor = factor_or_ratio();
      rope.attention_factor = read_number(parameters, "attention_factor", yarn_attention_factor(parameters, rope.factor));
      rope.beta_fast = read_number(parameters, "beta_fast", rope.beta_fast);
      rope.beta_slow = read_number(parameters, "beta_slow", rope.beta_slow);
      rope.truncate = read_bool(parameters, "truncate", rope.truncate);
      break;
    case RopeKind::longrope:
      require_keys({"short_factor", "long_factor"});
      rope.original_positions = original();
      rope.attention_factor =
          read_number(parameters, "attention_factor", longrope_attention_factor(factor_or_ratio(), rope.original_positions));
      rope.short_factors = read_factors(parameters, "short_factor"),
      rope.long_factors = read_factors(parameters, "long_factor");
      break;
    case RopeKind::llama3:
      require_keys({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
      rope.factor = read_number(parameters, "factor", 0);
      rope.low_freq_factor = read_number(parameters, "low_freq_factor", 0);
      rope.high_freq_factor = read_number(parameters, "high_freq_factor", 0);
      rope.original_positions = original();
      break;
  }
  // A division by 1 changes nothing.
  if (rope.kind == RopeKind::linear || rope.kind == RopeKind::dynamic || rope.kind == RopeKind::yarn)
    if (rope.factor == 1 && rope.attention_factor == 1)
      rope = {.kind = RopeKind::plain, .theta = rope.theta, .rotated = rope.rotated};
  return rope;
}

Rope read_rope(const json& object, const TransformerConfig& config) {
  Rope otherwise = config.rope;
  otherwise.theta = read_number(object, "rope_theta", otherwise.theta);
  otherwise.rotated = read_number(object, "partial_rotary_factor", otherwise.rotated);
  otherwise.original_positions = read_count(object, {"original_max_position_embeddings"}, otherwise.original_positions);
  const auto read = [&](const char* key) {
    const json* parameters = find(object, {key});
    if (!parameters) return read_rope_parameters(json::object(), config, otherwise);
    if (!parameters->is_object()) wrong_value(key, *parameters, "an object");
    for (const json& value : *parameters)
      if (value.is_object()) wrong_value(key, *parameters, "one set of parameters for all layers");
    return read_rope_parameters(*parameters, config, otherwise);
  };
  const Rope by_parameters = read("rope_parameters"), by_scaling = read("rope_scaling");
  if (!find(object, {"rope_scaling"})) return by_parameters;
  // If both keys exist, transformers 4 and 5 use rope_scaling. Older files have only rope_scaling.
  if (find(object, {"rope_parameters"}) && !(by_parameters == by_scaling))
    throw UserError(
        "config.json: \"rope_parameters\" and \"rope_scaling\" differ (transformers uses rope_scaling, with \"rope_theta\" "
        "of the model); remove the wrong key");
  return by_scaling;
}

json written_rope(const Rope& rope) {
  json object = {{"rope_type", std::find_if(std::begin(rope_names), std::end(rope_names), [&](const auto& name) {
                                 return name.first == rope.kind;
                               })->second}};
  switch (rope.kind) {
    case RopeKind::plain:
      break;
    case RopeKind::linear:
    case RopeKind::dynamic:
      object["factor"] = rope.factor;
      break;
    case RopeKind::yarn:
      object.update({{"factor", rope.factor},
                     {"original_max_position_embeddings", rope.original_positions},
                     {"attention_factor", rope.attention_factor},
                     {"beta_fast", rope.beta_fast},
                     {"beta_slow", rope.beta_slow},
                     {"truncate", rope.truncate}});
      break;
    case RopeKind::longrope:
      object.update({{"original_max_position_embeddings", rope.original_positions},
                     {"attention_factor", rope.attention_factor},
                     {"short_factor", rope.short_factors},
                     {"long_factor", rope.long_factors}});
      break;
    case RopeKind::llama3:
      object.update({{"factor", rope.factor},
                     {"low_freq_factor", rope.low_freq_factor},
                     {"high_freq_factor", rope.high_freq_factor},
                     {"original_max_position_embeddings", rope.original_positions}});
      break;
  }
  return object;
}

void write_rope(const Rope& rope, json& object) {
  json scaling = written_rope(rope);
  // transformers 4 reads rope_scaling and rope_theta. transformers 5 reads rope_parameters; if rope_scaling is not null, it
  // reads rope_scaling and rope_theta instead, which have the same values.
  object["rope_scaling"] = rope.kind == RopeKind::plain ? json() : scaling;
  object["rope_theta"] = rope.theta;
  scaling["rope_theta"] = rope.theta;
  object["rope_parameters"] = scaling;
}

double shortest(float x) { return std::stod(format("{}", x)); }

}  // namespace fsdp::keys
