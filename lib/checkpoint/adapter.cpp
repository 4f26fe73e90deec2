#include "checkpoint/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/safetensors.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "kernels/quantized.hpp"
#include "nn/families.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* config_name = "adapter_config.json";
constexpr const char* weights_name = "adapter_model.safetensors";
constexpr const char* name_prefix = "base_model.model.";  // PEFT wraps the model in two modules
constexpr const char* sum_key = "base_xxh3";              // in the metadata of the safetensors file
constexpr const char* type_key = "base_dtype";            // there, too: Adapter::base_type

// --- reading PEFT's folder ---

class PeftFolder final : public TensorSource {
 public:
  PeftFolder(const fs::path& folder, Verify verify) : folder_(folder), file_(folder / weights_name, verify) {
    for (const StoredTensor& tensor : file_.tensors()) {
      const std::string name =
          tensor.name.starts_with(name_prefix) ? tensor.name.substr(std::string(name_prefix).size()) : tensor.name;
      static_cast<void>(file_.type_of(tensor));  // throws for types that are not read
      tensors_[name] = &tensor;
    }
    if (tensors_.empty())
      throw UserError(format("{} holds no tensors (an adapter has some); use another adapter", file_.path().string()));
  }
  StoredModel model() const override {
    std::vector<Parameter> parameters;
    for (const auto& [name, tensor] : tensors_) parameters.push_back({name, tensor->shape, {}, true, -1});
    return StoredModel(std::move(parameters));
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && tensors_.contains(name);
  }
  Shape state_shape(const std::string& state, const std::string& name) const override { return find(state, name).shape; }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const StoredTensor& tensor = find(state, name);
    file_.read(tensor, range, out);
    bytes_read_ += range.size() * size_of(file_.type_of(tensor));
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("PEFT folder {}", folder_.string()); }
  std::vector<fs::path> files() const override { return {folder_ / config_name, folder_ / weights_name}; }
  fs::path tokenizer_folder() const override { return folder_; }
  /// Leaves out a tensor, if it is there.
  void leave_out(const std::string& name) { tensors_.erase(name); }
  std::string base_type() const { return file_.metadata(type_key); }
  std::optional<std::uint64_t> base_sum() const {
    const std::string text = file_.metadata(sum_key);
    return text.empty() ? std::nullopt : std::optional<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 16));
  }

 private:
  const StoredTensor& find(const std::string& state, const std::string& name) const {
    if (!has_state(state, name))
      throw UserError(format("{} has no {} of {}; use another adapter", folder_.string(), state, name));
    return *tensors_.at(name);
  }

  fs::path folder_;
  SafetensorsFile file_;
  std::map<std::string, const StoredTensor*> tensors_;  // by the model's name of the parameter
  mutable std::size_t bytes_read_ = 0;
};

constexpr const char* only_some = "only projections of the blocks, the embedding and the head have adapters here";

std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

/// The module of an adapter's first matrix; empty for all other parameters.
std::string adapted_module(const std::string& parameter) {
  for (const std::string suffix : {lora_a_suffix, embedding_a_suffix})
    if (parameter.ends_with(suffix)) return parameter.substr(0, parameter.size() - suffix.size());
  return "";
}

bool is_off(const json& value) {
  return value.is_null() || value == json(false) || ((value.is_object() || value.is_array()) && value.empty());
}

[[noreturn]] void refuse(const std::string& where, const std::string& what, const std::string& why) {
  throw UserError(format(
      "{} has {} ({}); use an adapter without it, or merge it into its model with PEFT (merge_and_unload()) and use that "
      "model",
      where, what, why));
}

/// Returns a function that tests whether `key` of adapter_config.json matches a module. The key has a list of names, or of ends
/// of names, or a regular expression.
std::function<bool(const std::string&)> modules_named(const fs::path& path, const json& config, const char* key) {
  const json value = config.value(key, json());
  try {
    if (is_off(value)) return [](const std::string&) { return false; };
    if (value.is_array())
      return [list = value.get<std::vector<std::string>>()](const std::string& module) {
        return std::any_of(list.begin(), list.end(),
                           [&](const std::string& name) { return module == name || module.ends_with("." + name); });
      };
    const std::string text = value;
    for (const char* slow : {"{", "(?=", "(?!"})  // std::regex may take very long for these
      if (text.size() > 1000 || text.find(slow) != text.npos) throw UserError("the pattern may be slow");
    return [pattern = std::regex(text, std::regex::ECMAScript | std::regex_constants::__polynomial)](
               const std::string& module) { return std::regex_match(module, pattern); };
  } catch (const std::exception&) {
    refuse(path, format("{} {}", key, json_excerpt(value)), "a list of names, or a simple pattern, is read");
  }
}

/// Throws UserError if adapter_config.json, by PEFT's rules (check_target_module_exists), describes other modules than those
/// `with_adapters`. `blocks` has the number of the block of each module of the base model that has a matrix, or -1. `tables`:
/// the embedding and the head.
void require_described(const fs::path& path, const std::map<std::string, int>& blocks, const std::set<std::string>& tables,
                       const std::set<std::string>& with_adapters) {
  const json config = read_json_object(path), targets = config.value("target_modules", json());
  json layers = config.value("layers_to_transform", json());
  if (!is_off(layers) && !layers.is_array()) layers = json::array({layers});
  if (!is_off(layers) && !targets.is_array())
    refuse(path, "layers_to_transform", "PEFT takes it only with a list of target_modules");
  const auto is_target = modules_named(path, config, "target_modules"),
             is_excluded = modules_named(path, config, "exclude_modules"),
             is_saved = modules_named(path, config, "modules_to_save");
  json lists = config.value("layers_pattern", json());  // of the list of blocks, as "layers" or "h"
  if (!is_off(lists) && !lists.is_array()) lists = json::array({lists});
  const auto is_in_list = [&](const std::string& module) {
    return is_off(lists) || std::any_of(lists.begin(), lists.end(), [&](const json& list) {
             return list.is_string() &&
                    format(".{}", module).find(format(".{}.", list.get<std::string>())) != std::string::npos;
           });
  };
  const auto has = [](const json& list, const json& one) { return std::find(list.begin(), list.end(), one) != list.end(); };
  std::vector<std::string> missing, surplus;
  for (const auto& [module, block] : blocks) {
    const bool is_described =
        !is_excluded(module) && !is_saved(module) &&
        (targets == "all-linear"
             ? block >= 0
             : is_target(module) && (is_off(layers) || (has(layers, block) && is_in_list(module)) || has(targets, module)));
    if (is_described && block < 0 && !tables.contains(module)) refuse(path, "adapters of " + module, only_some);
    if (is_described != with_adapters.contains(module)) (is_described ? missing : surplus).push_back(module);
  }
  std::vector<std::string> problems;
  if (!missing.empty())
    problems.push_back(format("{} without an adapter: {}", plural(missing.size(), "module"), missing.front()));
  if (!surplus.empty())
    problems.push_back(format("adapters of {} that it leaves out: {}", plural(surplus.size(), "module"), surplus.front()));
  if (!problems.empty())
    throw UserError(
        format("{} does not describe the adapters in {} ({}); save the adapter with PEFT again, or correct target_modules, "
               "layers_to_transform and exclude_modules",
               path.string(), weights_name, fmt::join(problems, "; ")));
}

/// Returns which module a key of rank_pattern or alpha_pattern means: the end of its name, or a regular expression for it
/// (PEFT's get_pattern_key()).
std::function<bool(const std::string&)> modules_of_key(const fs::path& path, const std::string& key) {
  if (key.find_first_of("\\^$*+?()[]{}|") == key.npos)
    return [key](const std::string& module) { return is_target(key, module); };
  return modules_named(path, {{"the pattern", "(.*\\.)?(" + key + ")"}}, "the pattern");
}

/// Reads rank_pattern or alpha_pattern: the number of each module that a key means. The first key that means a module counts.
std::vector<std::pair<std::string, double>> read_pattern(const fs::path& path, const nlohmann::ordered_json& config,
                                                         const char* name, const std::set<std::string>& modules, double least) {
  std::map<std::string, double> numbers;
  const nlohmann::ordered_json pattern = config.value(name, nlohmann::ordered_json::object());
  if (!pattern.is_null() && !pattern.is_object()) refuse(path, format("{} {}", name, pattern.dump()), "it is an object");
  for (const auto& [key, value] : pattern.items()) {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= 65536))
      throw UserError(format("{} is damaged ({} of {} is {}); copy it again", path.string(), name, key, value.dump()));
    const auto is_meant = modules_of_key(path, key);
    for (const std::string& module : modules)
      if (is_meant(module)) numbers.emplace(module, value.get<double>());
  }
  return {numbers.begin(), numbers.end()};
}

/// Reads a list of token ids of trainable_token_indices.
std::vector<std::size_t> read_tokens(const fs::path& path, const json& list) {
  try {
    for (const json& one : list)
      if (!one.is_number_unsigned() || one.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
        throw std::exception();
    return list.get<std::vector<std::size_t>>();
  } catch (const std::exception&) {
    refuse(path, format("trainable_token_indices {}", json_excerpt(list)), "token numbers, in a list or by module, are read");
  }
}

/// Reads what adapter_config.json says of the embedding, the head and whole modules; `tensors` are those of the folder.
void read_tables(const fs::path& path, const json& config, const TransformerConfig& base, PeftFolder& tensors, Lora& lora,
                 std::vector<std::string>* warnings) {
  const ParameterNames& names = find_family(base.family).names;
  const std::string embedding = module_of(names.token_table), head = module_of(names.head);
  const json tokens = config.value("trainable_token_indices", json());
  if (tokens.is_object()) {
    for (const auto& [module, list] : tokens.items())
      if (is_target(module, embedding))
        lora.tokens = read_tokens(path, list);
      else if (is_target(module, head))
        lora.head_tokens = read_tokens(path, list);
      else
        refuse(path, "trainable_token_indices of " + module, "only the embedding and the head have rows of tokens");
  } else if (!is_off(tokens)) {
    lora.tokens = read_tokens(path, tokens);
  }
  if (base.tied_embeddings && !lora.head_tokens.empty() && lora.head_tokens != lora.tokens)
    refuse(path, "other trainable_token_indices for the head than for the embedding", "this model ties the two");
  const json whole = config.value("modules_to_save", json());
  if (!is_off(whole)) {
    if (!whole.is_array() || !std::all_of(whole.begin(), whole.end(), [](const json& one) { return one.is_string(); }))
      refuse(path, format("modules_to_save {}", json_excerpt(whole)), "a list of names is read");
    lora.modules_to_save = whole.get<std::vector<std::string>>();
  }
  TransformerConfig adapted = base;
  adapted.lora = lora;
  const bool saves_table = trains_whole(adapted, names.token_table) || trains_whole(adapted, names.head);
  if (base.tied_embeddings && saves_table && config.value("ensure_weight_tying", json()) != json(true))
    refuse(path, format("modules_to_save {} without ensure_weight_tying", json_excerpt(whole)),
           "the embedding and the head would no longer be tied");
  const auto is_adapted = [&](const std::string& module) {
    return tensors.has(module + lora_a_suffix) || tensors.has(module + embedding_a_suffix);
  };
  if (base.tied_embeddings && config.value("ensure_weight_tying", json()) == json(true) &&
      (is_adapted(embedding) || is_adapted(head)))
    refuse(path, format("ensure_weight_tying and adapters of {}", is_adapted(embedding) ? embedding : head),
           "adapters of the embedding and the head are not tied here");
  // Copies that PEFT writes of tied tensors, of tables with adapters, and of tables that were resized before training.
  if (base.tied_embeddings) {
    lora.head_tokens.clear();
    tensors.leave_out(head + token_rows_suffix);
    if (saves_table) tensors.leave_out(names.head);
  }
  for (const std::string& module : {embedding, head})
    if (const std::string copy = module + (is_adapted(module) ? ".base_layer.weight" : ".token_adapter.base_layer.weight");
        tensors.has(copy)) {
      if (warnings && !(base.tied_embeddings && module == head && !is_adapted(head)))
        warnings->push_back(format("{} is not read from {}: the rows of the base model are used", copy, weights_name));
      tensors.leave_out(copy);
    }
  std::size_t vocab = base.vocab_size;
  for (const std::vector<std::size_t>* const list : {&lora.tokens, &lora.head_tokens})
    for (const std::size_t token : *list) vocab = std::max(vocab, token + 1);
  for (const std::string& table : {names.token_table, names.head})
    if (tensors.has(table) && tensors.shape(table).size() == 2) vocab = std::max(vocab, tensors.shape(table)[0]);
  if (vocab > base.vocab_size) lora.base_vocab = base.vocab_size, lora.vocab = vocab;
}

/// Reads adapter_config.json, except the modules that it describes. Every key that could change results is read or refused.
Lora lora_of_config(const fs::path& path, const json& config) {
  const auto number = [&](const char* key, double least, double most, double otherwise) {
    if (!config.contains(key)) return otherwise;
    const json& value = config[key];
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
      throw UserError(format("{} is damaged ({} is {}); copy it again", path.string(), key, json_excerpt(value)));
    return value.get<double>();
  };
  if (const json type = config.value("peft_type", json()); type != "LORA")
    refuse(path, format("peft_type {}", json_excerpt(type)), "only LORA is read");
  if (const json bias = config.value("bias", json("none")); bias != "none")
    refuse(path, format("bias {}", json_excerpt(bias)), "the biases of the base model are frozen here");
  if (const json start = config.value("init_lora_weights", json(true));
      !start.is_boolean() && start != "gaussian" && start != "orthogonal" && start != "eva")
    refuse(path, format("init_lora_weights {}", json_excerpt(start)), "such adapters may go with a changed base model");
  constexpr std::string_view read[] = {"peft_type",
                                       "bias",
                                       "r",
                                       "init_lora_weights",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "use_rslora",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "trainable_token_indices",
                                       "modules_to_save",
                                       "ensure_weight_tying"};
  constexpr std::string_view without_effect[] = {
      "task_type",      "auto_mapping",   "peft_version",     "base_model_name_or_path", "revision",
      "inference_mode", "target_modules", "exclude_modules",  "fan_in_fan_out",          "layers_to_transform",
      "layers_pattern", "megatron_core",  "qalora_group_size"};
  const auto is_in = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  for (const auto& [key, value] : config.items())
    if (!is_in(read, key) && !is_in(without_effect, key) && !is_off(value))
      refuse(path, format("{} {}", key, json_excerpt(value)), "this program does not have it");
  const json stabilized = config.value("use_rslora", json(false)), rank = config.value("r", json(8));
  if (!stabilized.is_boolean() || !rank.is_number_integer())
    refuse(path, format("r {} and use_rslora {}", json_excerpt(rank), json_excerpt(stabilized)),
           "they are a whole number, and true or false");
  return {.rank = static_cast<std::size_t>(number("r", 1, 65536, 8)),
          .alpha = number("lora_alpha", 1e-30, 1e30, 8),
          .dropout = number("lora_dropout", 0, 1, 0),
          .rank_stabilized = stabilized == json(true)};
}

Adapter open_peft(const fs::path& folder, const TransformerConfig& base_config, std::vector<std::string>* warnings,
                  Verify verify) {
  const fs::path path = folder / config_name;
  const json config = read_json_object(path);
  Adapter adapter = {lora_of_config(path, config), nullptr, {}};
  if (kind_of(folder / weights_name) == PathKind::missing)
    throw UserError(format("{} has no {} (the weights are read from there); save the adapter with PEFT's save_pretrained()",
                           folder.string(), weights_name));
  auto tensors = std::make_unique<PeftFolder>(folder, verify);
  std::set<std::string> modules;
  for (const std::string& name : tensors->names())
    if (const std::size_t end = name.find(".lora_"); end != std::string::npos) modules.insert(name.substr(0, end));
  adapter.lora.targets.assign(modules.begin(), modules.end());
  const auto ordered = read_json_object<nlohmann::ordered_json>(path);
  adapter.lora.ranks = read_pattern(path, ordered, "rank_pattern", modules, 1);
  adapter.lora.alphas = read_pattern(path, ordered, "alpha_pattern", modules, 1e-30);
  read_tables(path, config, base_config, *tensors, adapter.lora, warnings);
  adapter.base_sum = tensors->base_sum(), adapter.base_type = tensors->base_type();
  if (warnings && !adapter.base_sum) {
    const json base = config.value("base_model_name_or_path", json()), revision = config.value("revision", json());
    warnings->push_back(format("the adapters of {} were trained on {}{}; it is not checked that the base model is the same",
                               folder.string(),
                               base.is_string() ? "the model " + json_excerpt(base) : "a model that is not named",
                               revision.is_string() ? ", revision " + json_excerpt(revision) : ""));
  }
  adapter.tensors = std::move(tensors);
  return adapter;
}

std::vector<Parameter> adapter_parameters(const TransformerConfig& base, const Lora& lora) {
  const TransformerConfig adapted = with_lora(base, lora);
  adapted.validate();
  std::vector<Parameter> all = list_parameters(adapted).parameters;
  std::erase_if(all, [](const Parameter& parameter) { return !parameter.is_adapter; });
  return all;
}

std::string type_text(std::optional<kernels::Quantization> type) {
  return type ? std::string(kernels::name_of(*type)) : "none";
}

/// Returns true if adapters train rows of the embedding or the head, perhaps those of new tokens.
bool trains_tables(const TransformerConfig& config) {
  const ParameterNames& names = find_family(config.family).names;
  return !config.lora.tokens.empty() || !config.lora.head_tokens.empty() || trains_whole(config, names.token_table) ||
         trains_whole(config, names.head);
}

// --- the base model with adapters ---

/// A model with adapters, or the model into which they are merged.
class AdaptedModel final : public TensorSource {
 public:
  /// `base_type`: of the base model when its values are computed with or merged.
  /// `checkpoint`: the one of the adapters; null if they are in a folder of PEFT.
  AdaptedModel(std::unique_ptr<TensorSource> base, Adapter adapter, std::optional<kernels::Quantization> base_type, bool merge,
               const CheckpointReader* checkpoint)
      : base_(std::move(base)),
        adapter_(std::move(adapter)),
        base_type_(base_type),
        merge_(merge),
        checkpoint_(checkpoint),
        config_(base_->config()) {
    TransformerConfig adapted = with_lora(config_, adapter_.lora);
    adapted.lora.dropout = 0, adapted.base_type = base_type;
    config_.vocab_size = adapted.vocab_size;
    trains_tables_ = trains_tables(adapted);
    if (!merge) config_ = adapted;
    ModelParameters all = list_parameters(adapted);
    const auto name_of = [&](int table) { return all.parameters[static_cast<std::size_t>(table)].name; };
    for (const auto& [table, rows] : {std::pair(all.head, &all.head_rows), std::pair(all.token_table, &all.embedding_rows)})
      if (merge && (rows->size() > 1 || rows->front().parameter != table))
        for (const TableRows& some : *rows) rows_[name_of(table)].emplace_back(some, name_of(some.parameter));
    const ParameterNames& names = find_family(config_.family).names;
    for (const std::string& table : {names.token_table, names.head})
      if (merge && config_.tied_embeddings && table_rank(adapted, table) > 0)
        throw UserError(format(
            "the adapter of {} cannot be merged (the embedding and the head are one table of this model, and the adapter "
            "changes one of them); use the adapters unmerged, or write them as a folder of PEFT",
            module_of(table)));
    for (const Parameter& parameter : all.parameters)
      if (parameter.is_adapter && base_->has(parameter.name))
        whole_.insert(parameter.name);
      else if (const std::string module = adapted_module(parameter.name); merge && !module.empty())
        merged_[module + ".weight"] =
            module + ".weight" == names.token_table ||
            (find_family(config_.family).weights == WeightLayout::in_out && module + ".weight" != names.head);
      else if (merge && parameter.quantized)
        quantized_.emplace(parameter.name, parameter);
  }
  const CheckpointReader* checkpoint() const override { return checkpoint_; }
  StoredModel model() const override { return config_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all = base_->names();
    if (!merge_)
      for (std::string& name : adapter_.tensors->names())
        if (!whole_.contains(name)) all.push_back(std::move(name));
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && source_of(name).has(name);
  }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    if (rows_.contains(name)) return {config_.vocab_size, config_.width};
    return source_of(name).state_shape(state, name);
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    if (const auto found = rows_.find(name); found != rows_.end()) {
      const std::size_t C = config_.width;
      for (const auto& [rows, from] : found->second) {
        const std::size_t first = std::max(range.begin, rows.first * C),
                          end = std::min(range.end, (rows.first + rows.count) * C);
        if (first >= end) continue;
        const std::size_t there = rows.row * C + first - rows.first * C;
        (from == name ? *base_ : *adapter_.tensors)
            .read_state(state, from, {there, there + end - first}, out + (first - range.begin));
      }
      return;
    }
    const auto quantized = quantized_.find(name);
    if (quantized == quantized_.end()) source_of(name).read_state(state, name, range, out);
    if (quantized == quantized_.end() && !merged_.contains(name)) return;
    const std::lock_guard lock(mutex_);
    if (current_.name != name) read_matrices(name);
    if (quantized != quantized_.end()) expand(quantized->second, range, out);
    if (!merged_.contains(name)) return;
    // Element e of a weight is W[o,i], at o * in + i or, if it is stored transposed, at i * out + o. In both cases its change
    // is that of row e / columns of one matrix and column e % columns of the other one.
    const bool in_out = merged_.at(name);
    const std::size_t rank = current_.rank, columns = in_out ? current_.out : current_.in;
    for (std::size_t at = range.begin; at < range.end;) {
      const std::size_t row = at / columns, first = at % columns, end = std::min(columns, first + (range.end - at));
      float* const to = out + (at - range.begin);
      for (std::size_t k = 0; k < rank; ++k) {
        const float factor = in_out ? current_.a[k * current_.in + row] : current_.b[row * rank + k];
        const float* const other = in_out ? &current_.b_columns[k * current_.out] : &current_.a[k * current_.in];
        for (std::size_t c = first; c < end; ++c) to[c - first] += factor * other[c];
      }
      at += end - first;
    }
  }
  std::size_t bytes_read() const override { return base_->bytes_read() + adapter_.tensors->bytes_read(); }
  std::string description() const override {
    return format("{}{} with the adapters of {}", base_->description(),
                  base_type_ ? format("{}{}", merge_ ? " expanded from " : " in ", kernels::name_of(*base_type_)) : "",
                  adapter_.tensors->description());
  }
  std::string holder_of(const std::string& name) const override { return source_of(name).holder_of(name); }
  fs::path tokenizer_folder() const override { return trains_tables_ ? adapter_.tensors->tokenizer_folder() : fs::path(); }
  std::vector<std::string> warnings() const override { return checkpoint_ ? std::vector<std::string>() : base_->warnings(); }
  std::vector<fs::path> files() const override {
    std::vector<fs::path> all = base_->files(), more = adapter_.tensors->files();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  const TensorSource& source_of(const std::string& name) const {
    return whole_.contains(name) || (!merge_ && adapter_.tensors->has(name)) ? *adapter_.tensors : *base_;
  }

  /// What is read to merge one weight; b is multiplied by the scale.
  struct Matrices {
    std::string name;  // of the weight
    std::size_t rank = 0, in = 0, out = 0;
    std::vector<float> a, b, b_columns;  // [rank,in], [out,rank], [rank,out]
    Buffer base;                         // the quantized weight
  };

  /// Reads elements of the current weight as training expands them.
  void expand(const Parameter& weight, Range range, float* out) const {
    const kernels::MatrixShape shape = weight.matrix_shape();
    const std::size_t step = *weight.quantized == kernels::Quantization::nf4 ? kernels::quantized_block : shape.columns;
    const Range whole = {range.begin / step * step, std::min(round_up(range.end, step), shape.numel())};
    std::vector<float> values(whole.size());
    kernels::dequantize(*make_host_stream(), *weight.quantized, shape, current_.base.data(), whole, values.data());
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(range.begin - whole.begin), range.size(), out);
  }

  void read_matrices(const std::string& name) const {
    const std::string module = module_of(name);
    const auto matrix = [&](const char* suffix) {
      std::vector<float> values(numel(adapter_.tensors->shape(module + suffix)));
      adapter_.tensors->read_to_use(parameters_state, module + suffix, {0, values.size()}, values.data());
      return values;
    };
    current_ = {};
    if (const auto found = quantized_.find(name); found != quantized_.end()) {
      const auto& [kind, shape] = std::pair(*found->second.quantized, found->second.matrix_shape());
      current_.base = allocate_host(kernels::QuantizedParts(kind, shape).end);
      kernels::quantize(kind, shape, [&](Range range, float* out) { base_->read_to_use(parameters_state, name, range, out); },
                        {current_.base.data(), current_.base.bytes()});
    }
    current_.name = name;
    if (!merged_.contains(name)) return;
    const bool is_embedding = adapter_.tensors->has(module + embedding_a_suffix);
    current_.a = matrix(is_embedding ? embedding_a_suffix : lora_a_suffix);
    current_.b = matrix(is_embedding ? embedding_b_suffix : lora_b_suffix);
    const std::size_t rank = current_.rank = adapter_.lora.rank_of(module);
    current_.in = current_.a.size() / rank, current_.out = current_.b.size() / rank;
    const auto scale = static_cast<float>(adapter_.lora.scale_of(module));
    for (float& value : current_.b) value *= scale;
    if (!merged_.at(name)) return;
    current_.b_columns.resize(current_.b.size());
    for (std::size_t o = 0; o < current_.out; ++o)
      for (std::size_t k = 0; k < rank; ++k) current_.b_columns[k * current_.out + o] = current_.b[o * rank + k];
  }

  std::unique_ptr<TensorSource> base_;
  Adapter adapter_;
  std::optional<kernels::Quantization> base_type_;
  bool merge_, trains_tables_ = false;
  const CheckpointReader* checkpoint_;
  TransformerConfig config_;
  std::map<std::string, std::vector<std::pair<TableRows, std::string>>> rows_;  // of tables to merge, with their tensors
  std::set<std::string> whole_;                                                 // parameters that are trained as a whole
  std::map<std::string, bool> merged_;                                          // weights with an adapter; true: [in,out]
  std::map<std::string, Parameter> quantized_;                                  // weights that are quantized in training
  mutable std::mutex mutex_;
  mutable Matrices current_;
};

std::unique_ptr<TensorSource> join(std::unique_ptr<TensorSource> base, Adapter adapter,
                                   std::optional<kernels::Quantization> base_type, std::vector<std::string>* warnings,
                                   Verify verify, bool merge, const CheckpointReader* checkpoint = nullptr) {
  if (adapter.base_sum && verify == Verify::yes)
    require_base(*adapter.tensors, adapter.base_sum, content_sum(*base), base->description());
  base_type = adapter.base_type_or(base_type);
  adapter.compare_base_type(base_type, warnings);
  return std::make_unique<AdaptedModel>(std::move(base), std::move(adapter), base_type, merge, checkpoint);
}

Adapter adapter_of(std::unique_ptr<CheckpointReader> checkpoint) {
  const CheckpointHeader& header = checkpoint->header();
  const TransformerConfig& config = header.model.transformer(checkpoint->description());
  Adapter adapter = {config.lora, nullptr, header.base->sum, type_text(config.base_type)};
  adapter.tensors = std::move(checkpoint);
  return adapter;
}

// --- writing PEFT's folder ---

bool ties_whole_table(const TransformerConfig& config) {
  return config.tied_embeddings && trains_whole(config, find_family(config.family).names.token_table);
}

void lay_out_peft(const TensorSource& source, const ConsolidateOptions&, WrittenModel& model) {
  std::vector<std::pair<std::string, Shape>> names;
  std::vector<WrittenTensor*> tensors;
  const TransformerConfig config = source.config();
  const ParameterNames& tables = find_family(config.family).names;
  const bool copies = ties_whole_table(config);  // PEFT reads a tied head under its own name, too
  if (copies)
    model.tensors.push_back(*std::find_if(model.tensors.begin(), model.tensors.end(),
                                          [&](const WrittenTensor& tensor) { return tensor.name == tables.token_table; }));
  for (WrittenTensor& tensor : model.tensors) {
    const bool is_copy = copies && &tensor == &model.tensors.back();
    names.emplace_back(name_prefix + (is_copy ? tables.head : tensor.name), tensor.shape);
    tensors.push_back(&tensor);
  }
  model.add_file(weights_name,
                 safetensors_header(names, tensors.front()->type,
                                    {{sum_key, checksum_text(source.checkpoint()->header().base->sum)},
                                     {type_key, type_text(source.config().base_type)}}),
                 tensors);
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// The numbers of modules with adapters, where they are not `usual`, by the last part of the modules' names or, if modules with
/// this last part differ, by their names.
json pattern_of(const TransformerConfig& config, double usual, const std::function<double(const std::string&)>& number_of) {
  std::map<std::string, std::map<std::string, double>> by_part;
  for (const Parameter& parameter : list_parameters(config).parameters)
    if (const std::string module = adapted_module(parameter.name); !module.empty())
      by_part[last_part(module)][module] = number_of(module);
  json pattern = json::object();
  const auto write = [&](const std::string& name, double number) {
    if (number != usual) pattern[name] = number == std::floor(number) ? json(static_cast<std::int64_t>(number)) : json(number);
  };
  for (const auto& [part, modules] : by_part) {
    const double first = modules.begin()->second;
    if (std::all_of(modules.begin(), modules.end(), [&](const auto& one) { return one.second == first; }))
      write(part, first);
    else
      for (const auto& [module, number] : modules) write(module, number);
  }
  return pattern;
}

/// The names for PEFT's target_modules, which mean all modules whose names they are or end: the last parts of the modules'
/// names or, if these would mean other modules, too, the whole names.
std::vector<std::string> target_modules(const TransformerConfig& config) {
  std::set<std::string> chosen, all, last_parts;  // modules with adapters, all projections
  for (const Parameter& parameter : list_parameters(config).parameters)
    if (const std::size_t end = parameter.name.find(".lora_"); end != std::string::npos)
      chosen.insert(parameter.name.substr(0, end));
    else if (parameter.block >= 0 && parameter.shape.size() == 2)  // a projection
      all.insert(module_of(parameter.name));
  for (const std::string& module : chosen) last_parts.insert(last_part(module));
  for (const std::string& module : all)
    if (last_parts.contains(last_part(module)) && !chosen.contains(module)) return {chosen.begin(), chosen.end()};
  return {last_parts.begin(), last_parts.end()};
}

void finish_peft(const TensorSource& source, const ConsolidateOptions&, const WrittenModel& model, Consolidated& done) {
  const TransformerConfig config = source.config();
  const Lora& lora = config.lora;
  const bool is_integer = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15;
  nlohmann::ordered_json out;
  out["peft_type"] = "LORA";
  out["task_type"] = "CAUSAL_LM";
  out["base_model_name_or_path"] = source.checkpoint()->header().base->path;
  out["inference_mode"] = true;
  out["r"] = lora.rank;
  if (is_integer)
    out["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  else
    out["lora_alpha"] = lora.alpha;
  out["lora_dropout"] = lora.dropout;
  out["use_rslora"] = lora.rank_stabilized;
  const ParameterNames& tables = find_family(config.family).names;
  TransformerConfig all_layers = config;
  all_layers.lora.layers.clear();
  const std::vector<std::string> names = target_modules(all_layers);
  // PEFT chooses the embedding and the head by layer only if their whole names are there.
  const bool has_tables = table_rank(config, tables.token_table) > 0 || table_rank(config, tables.head) > 0;
  const bool by_layer = !lora.layers.empty() && !has_tables && names.front().find('.') == std::string::npos;
  out["target_modules"] = by_layer ? names : target_modules(config);
  if (by_layer) out["layers_to_transform"] = lora.layers;
  out["rank_pattern"] = pattern_of(config, static_cast<double>(lora.rank),
                                   [&](const std::string& module) { return static_cast<double>(lora.rank_of(module)); });
  out["alpha_pattern"] = pattern_of(config, lora.alpha, [&](const std::string& module) { return lora.alpha_of(module); });
  out["fan_in_fan_out"] = find_family(config.family).weights == WeightLayout::in_out;
  out["bias"] = "none";
  const std::string embedding = last_part(module_of(tables.token_table)), head = last_part(module_of(tables.head));
  std::set<std::string> whole(lora.modules_to_save.begin(), lora.modules_to_save.end());
  if (ties_whole_table(config)) whole.insert(embedding), whole.erase(head), out["ensure_weight_tying"] = true;
  out["modules_to_save"] = whole.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(whole);
  if (!lora.head_tokens.empty())
    out["trainable_token_indices"] = {{embedding, lora.tokens}, {head, lora.head_tokens}};
  else if (!lora.tokens.empty())
    out["trainable_token_indices"] = lora.tokens;
  write_text_file_durably(model.path / config_name, json_text(out, 2) + "\n");
  if (trains_tables(config)) {  // the base model's tokenizer may lack new tokens
    done.copied_from = source.checkpoint()->folder();
    for (const TokenizerFile& file : read_tokenizer_files(done.copied_from)) {
      write_text_file_durably(model.path / file.name, file.text);
      done.copied.push_back(file.name);
    }
  }
  sync_folder(model.path);
}

void check_peft(const ConsolidateOptions& options) {
  if (options.with_optimizer)
    throw UserError("`states of the optimizer` are not written for adapters (PEFT has no place for them); leave it out");
  if (options.max_shard_bytes > 0) throw UserError("`largest file` changes nothing (adapters are one file); leave it out");
}

constexpr ModelFormat peft_row = {
    .name = "peft",
    .what = "a folder of PEFT",
    .about = "adapter_config.json and adapter_model.safetensors",
    .is = nullptr,
    .open = nullptr,
    .check = check_peft,
    .lay_out = lay_out_peft,
    .finish = finish_peft,
    .is_file = [](const std::string& name) { return name == config_name || name == weights_name || is_tokenizer_file(name); },
};

}  // namespace

std::uint64_t content_sum(const TensorSource& model, int part, int parts) {
  constexpr std::size_t block = std::size_t{1} << 20;  // elements
  std::vector<float> values;
  std::uint64_t sum = 0, number = 0;
  for (const Parameter& parameter : list_parameters(without_adapters(model.config())).parameters)
    for (std::size_t at = 0, all = numel(parameter.shape); at < all; at += block, ++number) {
      if (number % static_cast<std::uint64_t>(parts) != static_cast<std::uint64_t>(part)) continue;
      values.resize(std::min(block, all - at));
      model.read(parameter.name, {at, at + values.size()}, values.data());
      sum += checksum(values.data(), values.size() * sizeof(float)) * (2 * number + 1);
    }
  return sum;
}

std::uint64_t content_sum(const TensorSource& model, Group& world) {
  const std::uint64_t mine = agree(world, [&] { return content_sum(model, world.rank(), world.size()); });
  return static_cast<std::uint64_t>(world.sum(static_cast<std::int64_t>(mine)));
}

Adapter open_adapter(const fs::path& given, const TransformerConfig& base, std::vector<std::string>* warnings, Verify verify,
                     Weights weights) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  if (kind_of(path) == PathKind::missing)
    throw UserError(
        format("{} does not exist (expected a folder of PEFT, or a checkpoint of adapters); check the path", path.string()));
  Adapter adapter;
  const bool is_peft = kind_of(path / config_name) == PathKind::file;
  if (is_peft) {
    if (weights == Weights::average)
      throw UserError(format("{} has no average of the weights (it is a folder of PEFT); leave out `weights of the average`",
                             path.string()));
    adapter = open_peft(path, base, warnings, verify);
  } else {
    auto checkpoint = open_checkpoint(path, warnings, verify, weights);
    if (!checkpoint->header().base)
      throw UserError(
          format("{} is no checkpoint of adapters (it holds a whole model); give it as the model", checkpoint->description()));
    adapter = adapter_of(std::move(checkpoint));
  }
  const std::string remedy = "give the base model that these adapters were trained on";
  const ParameterNames& names = find_family(base.family).names;
  const std::set<std::string> tables = {module_of(names.token_table), module_of(names.head)};
  std::map<std::string, int> blocks = {{module_of(names.head), -1}};  // of each module with a matrix
  std::set<std::string> parameters, with_adapters;
  const auto is_whole = [&](const std::string& name) {
    const auto& whole = adapter.lora.modules_to_save;
    return trains_whole(with_lora(base, adapter.lora), name) ||
           std::any_of(whole.begin(), whole.end(), [&](const std::string& module) { return is_part_of(name, module); });
  };
  for (const Parameter& parameter : list_parameters(without_adapters(base)).parameters) {
    parameters.insert(parameter.name);
    if (parameter.shape.size() == 2) blocks[module_of(parameter.name)] = parameter.block;
  }
  for (const std::string& name : adapter.tensors->names()) {
    const std::string module = name.substr(0, name.find(".lora_"));
    const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const auto& one) {
      return module == one.first || (module == name && name.starts_with(one.first + "."));
    });
    if (found == blocks.end() && !parameters.contains(name))
      throw UserError(
          format("{} has adapters of another model (its tensor {} is for a module that the base model does not have); {}",
                 adapter.tensors->description(), name, remedy));
    const bool is_table = found != blocks.end() && tables.contains(found->first);
    if (is_table && name == found->first + token_rows_suffix) continue;
    if (parameters.contains(name) && is_whole(name)) continue;
    if (module == name || (found->second < 0 && !is_table))
      refuse(adapter.tensors->description(), module == name ? "the tensor " + name : "adapters of " + module, only_some);
    with_adapters.insert(module);
  }
  if (is_peft) require_described(path / config_name, blocks, tables, with_adapters);
  find_mismatch(*adapter.tensors, adapter_parameters(base, adapter.lora), {}, remedy);
  return adapter;
}

void require_base(const TensorSource& adapters, std::optional<std::uint64_t> trained_on, std::uint64_t base_sum,
                  const std::string& base) {
  if (trained_on && *trained_on != base_sum)
    throw UserError(format(
        "the adapters of {} were trained on another base model than {} (the checksum of its weights is {}, not {}); give "
        "the base model that they were trained on",
        adapters.description(), base, checksum_text(base_sum), checksum_text(*trained_on)));
}

fs::path base_of(const CheckpointReader& adapters, const fs::path& given) {
  expect(adapters.header().base.has_value(), "a checkpoint of adapters names its base model");
  fs::path base = given.empty() ? fs::path(adapters.header().base->path) : given;
  if (kind_of(base) == PathKind::missing)
    throw UserError(
        format("{} holds adapters of the model {}, which does not exist; put that model back, or give its new place (`base "
               "model`)",
               adapters.description(), base.string()));
  return base;
}

std::string path_to_record(const TensorSource& base, const fs::path& path) {
  const CheckpointReader* const step = base.checkpoint();
  return fs::absolute(step ? step->folder() : path).lexically_normal().string();
}

std::unique_ptr<TensorSource> join_adapters(std::unique_ptr<CheckpointReader> adapters, fs::path base,
                                            std::optional<kernels::Quantization> base_type, bool merge,
                                            std::vector<std::string>* warnings, Verify verify) {
  const CheckpointReader& reader = *adapters;
  base = base_of(reader, base);
  auto model = open_model(base, warnings, verify);
  if (!(model->config() == without_adapters(reader.config())))
    throw UserError(format("{} holds adapters of another model than {}; give the base model that they were trained on",
                           reader.description(), model->description()));
  return join(std::move(model), adapter_of(std::move(adapters)), base_type, warnings, verify, merge, &reader);
}

namespace {

/// Returns the source as a checkpoint if it is one of adapters; else null, and leaves `source` as it is.
std::unique_ptr<CheckpointReader> take_adapters(std::unique_ptr<TensorSource>& source) {
  auto* const checkpoint = dynamic_cast<CheckpointReader*>(source.get());
  if (!checkpoint || !checkpoint->header().base) return nullptr;
  source.release();
  return std::unique_ptr<CheckpointReader>(checkpoint);
}

}  // namespace

std::optional<kernels::Quantization> Adapter::base_type_or(std::optional<kernels::Quantization> wanted) const {
  for (const kernels::Quantization kind : {kernels::Quantization::int8, kernels::Quantization::nf4})
    if (!wanted && base_type == kernels::name_of(kind)) return kind;
  return wanted;
}

void Adapter::compare_base_type(std::optional<kernels::Quantization> used, std::vector<std::string>* warnings) const {
  const std::string here = type_text(used);
  if (base_type.empty() || base_type == here || !warnings) return;
  const auto in = [](const std::string& type) { return type == "none" ? "that is not quantized" : "in " + type; };
  warnings->push_back(format("the adapters of {} were trained over a base model {}, but are used over one {}: results differ",
                             tensors->description(), in(base_type), in(here)));
}

std::unique_ptr<TensorSource> open_model(const fs::path& path, std::vector<std::string>* warnings, Verify verify) {
  auto source = open_tensor_source(path, warnings, verify);
  if (auto adapters = take_adapters(source))
    return join_adapters(std::move(adapters), {}, {}, /*merge=*/true, warnings, verify);
  return source;
}

std::unique_ptr<TensorSource> open_adapted_model(const fs::path& path, const fs::path& adapter_path,
                                                 std::optional<kernels::Quantization> base_type,
                                                 std::vector<std::string>* warnings, Verify verify, Weights weights) {
  auto source = open_tensor_source(path, warnings, verify, adapter_path.empty() ? weights : Weights::trained);
  if (auto adapters = take_adapters(source)) {
    if (!adapter_path.empty())
      throw UserError(format("{} has adapters already (another `adapter` is given, too); give its base model, {}, as the model",
                             adapters->description(), adapters->header().base->path));
    return join_adapters(std::move(adapters), {}, base_type, /*merge=*/false, warnings, verify);
  }
  if (adapter_path.empty()) return source;
  Adapter adapter = open_adapter(adapter_path, source->config(), warnings, verify, weights);
  return join(std::move(source), std::move(adapter), base_type, warnings, verify, false);
}

const ModelFormat& peft_format() { return peft_row; }

}  // namespace fsdp
