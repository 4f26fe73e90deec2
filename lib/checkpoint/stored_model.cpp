#include "checkpoint/stored_model.hpp"

#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"
#include "nn/transformer.hpp"

namespace fsdp {

namespace {

constexpr const char* lora_key = "lora";
constexpr const char* base_type_key = "base_dtype";
constexpr const char* layers_type = "fsdp-layers";  // not the name of any family of transformers

/// Reads layers from the JSON of StoredModel::to_json(). Throws UserError if the JSON is not valid.
std::vector<Parameter> read_layers(const nlohmann::json& config, const std::string& what) {
  const auto refuse = [&](const std::string& why) -> std::vector<Parameter> {
    throw UserError(format("{} describes no model ({}); use another file", what, why));
  };
  constexpr std::size_t most = std::size_t{1} << 48;  // elements of a parameter: more than any machine can hold
  const auto found = config.find("parameters");
  if (found == config.end() || !found->is_array() || found->empty()) return refuse("its configuration lists no parameters");
  std::vector<Parameter> parameters;
  std::set<std::string> names;
  for (const nlohmann::json& one : *found) {
    const bool is_whole = one.is_object() && one.contains("name") && one["name"].is_string() && one.contains("shape") &&
                          one["shape"].is_array() && !one["shape"].empty();
    if (!is_whole) return refuse("a parameter in its configuration has no name or no shape");
    Parameter parameter = {.name = one["name"], .shape = {}, .init = {}, .decayed = one["shape"].size() > 1, .block = -1};
    if (parameter.name.empty() || !names.insert(parameter.name).second)
      return refuse("a parameter in its configuration has an empty or repeated name");
    std::size_t elements = 1;
    for (const nlohmann::json& extent : one["shape"]) {
      if (!extent.is_number_unsigned() || extent.get<std::size_t>() == 0 || extent.get<std::size_t>() > most / elements)
        return refuse(format("the shape of {} is impossible", excerpt(parameter.name)));
      parameter.shape.push_back(extent);
      elements *= parameter.shape.back();
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

Lora read_lora(const nlohmann::json& config, const std::string& what) {
  try {  // nlohmann checks every access
    Lora lora = {.rank = config.at("r"),
                 .alpha = config.at("lora_alpha"),
                 .dropout = config.at("lora_dropout"),
                 .rank_stabilized = config.at("use_rslora"),
                 .targets = config.at("target_modules")};
    const auto read = [&](const char* key, auto& field) {  // keys that are only there if they change something
      if (config.contains(key)) config[key].get_to(field);
    };
    read("rank_pattern", lora.ranks), read("alpha_pattern", lora.alphas), read("layers_to_transform", lora.layers);
    read("modules_to_save", lora.modules_to_save), read("trainable_token_indices", lora.tokens);
    read("trainable_head_indices", lora.head_tokens), read("base_vocab_size", lora.base_vocab);
    if (lora.base_vocab > 0) config.at("vocab_size").get_to(lora.vocab);
    for (const auto& [name, rank] : lora.ranks)
      if (!(rank >= 1 && rank <= 65536)) throw std::out_of_range("a rank");
    if (lora.rank > 0 && lora.rank <= 65536 && lora.alpha > 0 && lora.dropout >= 0 && lora.dropout < 1) return lora;
  } catch (const std::exception&) {
  }
  throw UserError(format("{} describes impossible adapters; use another file", what));
}

nlohmann::json lora_json(const Lora& lora) {
  nlohmann::json out = {{"r", lora.rank},
                        {"lora_alpha", lora.alpha},
                        {"lora_dropout", lora.dropout},
                        {"use_rslora", lora.rank_stabilized},
                        {"target_modules", lora.targets}};
  const auto write = [&](const char* key, const auto& list) {
    if (!list.empty()) out[key] = list;
  };
  write("rank_pattern", lora.ranks), write("alpha_pattern", lora.alphas), write("layers_to_transform", lora.layers);
  write("modules_to_save", lora.modules_to_save), write("trainable_token_indices", lora.tokens);
  write("trainable_head_indices", lora.head_tokens);
  if (lora.base_vocab > 0) out["base_vocab_size"] = lora.base_vocab, out["vocab_size"] = lora.vocab;
  return out;
}

kernels::Quantization read_base_type(const nlohmann::json& name, const std::string& what) {
  for (const kernels::Quantization kind : {kernels::Quantization::int8, kernels::Quantization::nf4})
    if (name == kernels::name_of(kind)) return kind;
  throw UserError(format("{} describes an unknown type of the base model; use another file", what));
}

}  // namespace

StoredModel::StoredModel(TransformerConfig config) : config_(std::move(config)) {}

StoredModel::StoredModel(std::vector<Parameter> parameters) : layers_(std::move(parameters)) {
  expect(!layers_.empty(), "a model has parameters");
}

StoredModel::StoredModel(const Model& model) {
  if (const TransformerConfig* const config = model.transformer_config)
    config_ = *config;
  else
    *this = StoredModel(model.parameters());
}

const TransformerConfig& StoredModel::transformer(const std::string& what) const {
  if (!is_transformer())
    throw UserError(
        format("{} is a model with layers of a user's program (not a known family of transformers); use that program, or read "
               "the parameters with an HDF5 tool",
               what));
  return config_;
}

std::vector<Parameter> StoredModel::parameters() const {
  return is_transformer() ? list_parameters(config_).parameters : layers_;
}

nlohmann::json StoredModel::to_json() const {
  if (is_transformer()) {
    nlohmann::json config = config_to_json(config_);
    if (const Lora& lora = config_.lora; lora.rank > 0) config[lora_key] = lora_json(lora);
    if (config_.base_type) config[base_type_key] = kernels::name_of(*config_.base_type);
    return config;
  }
  nlohmann::json model = {{"model_type", layers_type}, {"parameters", nlohmann::json::array()}};
  for (const Parameter& parameter : layers_)
    model["parameters"].push_back({{"name", parameter.name}, {"shape", parameter.shape}});
  return model;
}

StoredModel StoredModel::read(const nlohmann::json& model, const std::string& what) {
  if (model.is_object() && model.value("model_type", nlohmann::json()) == layers_type)
    return StoredModel(read_layers(model, what));
  const bool adapts = model.is_object() && model.contains(lora_key);
  nlohmann::json base = model;
  if (adapts) base.erase(lora_key), base.erase(base_type_key);
  TransformerConfig config = config_from_json(base);
  if (adapts) config.lora = read_lora(model[lora_key], what);
  if (adapts && model.contains(base_type_key)) config.base_type = read_base_type(model[base_type_key], what);
  config.validate();
  if (adapts) list_parameters(config);  // throws for targets that match nothing
  return config;
}

std::string describe_differences(TransformerConfig requested, const TransformerConfig& there, const std::string& place) {
  requested.lora.dropout = there.lora.dropout;  // an option of training, which may change
  if (requested == there) return "";
  const nlohmann::json a = StoredModel(requested).to_json(), b = StoredModel(there).to_json();
  std::vector<std::string> differences;
  if (b.contains(lora_key) && !a.contains(lora_key))
    differences.push_back(format("no adapters requested (`rank of adapters`), adapters in {}", place));
  if (b.contains(base_type_key) && !a.contains(base_type_key))
    differences.push_back(
        format("no `type of the base model` requested, {} in {}", b[base_type_key].get<std::string>(), place));
  const bool same_type = a.value("model_type", "") == b.value("model_type", "");  // otherwise nearly all fields differ
  for (const auto& [key, value] : a.items())
    if ((same_type || key == "model_type") && (!b.contains(key) || b[key] != value))
      differences.push_back(format("{}: {} requested, {} in {}", key, json_excerpt(value),
                                   b.contains(key) ? json_excerpt(b[key]) : "nothing", place));
  for (const auto& [key, value] : b.items())
    if (same_type && !a.contains(key) && key != lora_key && key != base_type_key)
      differences.push_back(format("{}: nothing requested, {} in {}", key, json_excerpt(value), place));
  if (differences.empty()) differences.push_back("other values that config.json does not have");
  return format("{}", fmt::join(differences, "; "));
}

}  // namespace fsdp
