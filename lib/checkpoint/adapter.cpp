#include "checkpoint/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/safetensors.hpp"
#include "comm/agree.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/families.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* config_name = "adapter_config.json";
constexpr const char* weights_name = "adapter_model.safetensors";
constexpr const char* name_prefix = "base_model.model.";  // PEFT wraps the model in two modules
constexpr const char* sum_key = "base_xxh3";              // in the metadata of the safetensors file
constexpr const char* a_suffix = ".lora_A.weight";
constexpr const char* b_suffix = ".lora_B.weight";

// --- reading PEFT's folder ---

class PeftFolder final : public TensorSource {
 public:
  PeftFolder(const fs::path& folder, Verify verify) : folder_(folder), file_(folder / weights_name, verify) {
    for (const StoredTensor& tensor : file_.tensors()) {
      const std::string name =
          tensor.name.starts_with(name_prefix) ? tensor.name.substr(std::string(name_prefix).size()) : tensor.name;
      if (!type_of_safetensors(tensor.dtype))
        throw UserError(format("{} holds {} in type {} (only F32, BF16 and F16 can be read); convert the adapter",
                               file_.path().string(), tensor.name, tensor.dtype));
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
    bytes_read_ += range.size() * size_of(*type_of_safetensors(tensor.dtype));
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("PEFT folder {}", folder_.string()); }
  std::vector<fs::path> files() const override { return {folder_ / config_name, folder_ / weights_name}; }
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

bool is_projection(const Parameter& parameter) { return parameter.block >= 0 && parameter.shape.size() == 2; }

bool is_off(const json& value) {
  return value.is_null() || value == json(false) || ((value.is_object() || value.is_array()) && value.empty());
}

/// Reads adapter_config.json, except the targets, which the tensors tell. Every key that could change results is read or
/// refused.
Lora lora_of_config(const fs::path& path, const json& config) {
  const auto refuse = [&](const std::string& what, const std::string& why) {
    throw UserError(
        format("{} has {} ({}); use an adapter without it, or merge it into its model in Python", path.string(), what, why));
  };
  const auto number = [&](const char* key, double least, double most, double otherwise) {
    if (!config.contains(key)) return otherwise;
    const json& value = config[key];
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
      throw UserError(format("{} is damaged ({} is {}); copy it again", path.string(), key, json_excerpt(value)));
    return value.get<double>();
  };
  if (const json type = config.value("peft_type", json()); type != "LORA")
    refuse(format("peft_type {}", json_excerpt(type)), "only LORA is read");
  if (const json bias = config.value("bias", json("none")); bias != "none")
    refuse(format("bias {}", json_excerpt(bias)), "the biases of the base model are frozen here");
  if (const json start = config.value("init_lora_weights", json(true));
      !start.is_boolean() && start != "gaussian" && start != "orthogonal" && start != "eva")
    refuse(format("init_lora_weights {}", json_excerpt(start)), "such adapters may go with a changed base model");
  constexpr std::string_view read[] = {"peft_type",  "bias",         "init_lora_weights", "r",
                                       "lora_alpha", "lora_dropout", "use_rslora"};
  constexpr std::string_view without_effect[] = {
      "task_type",      "auto_mapping",   "peft_version",     "base_model_name_or_path", "revision",
      "inference_mode", "target_modules", "exclude_modules",  "fan_in_fan_out",          "layers_to_transform",
      "layers_pattern", "megatron_core",  "qalora_group_size"};
  const auto is_in = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  for (const auto& [key, value] : config.items())
    if (!is_in(read, key) && !is_in(without_effect, key) && !is_off(value))
      refuse(format("{} {}", key, json_excerpt(value)), "this program does not have it");
  const json stabilized = config.value("use_rslora", json(false));
  return {.rank = static_cast<std::size_t>(number("r", 1, 65536, 8)),
          .alpha = number("lora_alpha", 1e-30, 1e30, 8),
          .dropout = number("lora_dropout", 0, 1, 0),
          .rank_stabilized = stabilized == json(true)};
}

Adapter open_peft(const fs::path& folder, std::vector<std::string>* warnings, Verify verify) {
  const fs::path path = folder / config_name;
  const json config = read_json_object(path);
  Adapter adapter = {lora_of_config(path, config), nullptr, {}};
  if (kind_of(folder / weights_name) == PathKind::missing)
    throw UserError(format("{} has no {} (the weights are read from there); save the adapter with PEFT's save_pretrained()",
                           folder.string(), weights_name));
  auto tensors = std::make_unique<PeftFolder>(folder, verify);
  for (const std::string& name : tensors->names())
    if (name.ends_with(a_suffix)) adapter.lora.targets.push_back(name.substr(0, name.size() - std::string(a_suffix).size()));
  adapter.base_sum = tensors->base_sum();
  if (warnings && !adapter.base_sum)
    if (const json base = config.value("base_model_name_or_path", json()); base.is_string())
      warnings->push_back(
          format("the adapters of {} were trained on the model {}; that the base model is the same is not checked",
                 folder.string(), json_excerpt(base)));
  adapter.tensors = std::move(tensors);
  return adapter;
}

std::vector<Parameter> adapter_parameters(TransformerConfig base, const Lora& lora) {
  base.lora = lora;
  std::vector<Parameter> all = list_parameters(base).parameters;
  std::erase_if(all, [](const Parameter& parameter) { return !parameter.is_adapter; });
  return all;
}

// --- merging ---

class MergedModel final : public TensorSource {
 public:
  MergedModel(std::unique_ptr<TensorSource> base, Adapter adapter) : base_(std::move(base)), adapter_(std::move(adapter)) {
    const TransformerConfig config = base_->config();
    in_out_ = find_family(config.family).weights == WeightLayout::in_out;
    for (const Parameter& parameter : adapter_parameters(config, adapter_.lora))
      if (parameter.name.ends_with(a_suffix))
        merged_.insert(parameter.name.substr(0, parameter.name.size() - std::string(a_suffix).size()) + ".weight");
  }
  StoredModel model() const override { return base_->model(); }
  std::vector<std::string> names() const override { return base_->names(); }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && base_->has(name);
  }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return base_->state_shape(state, name);
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    base_->read_state(state, name, range, out);
    if (!merged_.contains(name)) return;
    const std::lock_guard lock(mutex_);
    if (current_.name != name) read_matrices(name);
    // Element e of a weight is W[o,i], at o * in + i or, if it is stored transposed, at i * out + o. In both cases its change
    // is that of row e / columns of one matrix and column e % columns of the other one.
    const std::size_t rank = adapter_.lora.rank, columns = in_out_ ? current_.out : current_.in;
    for (std::size_t at = range.begin; at < range.end;) {
      const std::size_t row = at / columns, first = at % columns, end = std::min(columns, first + (range.end - at));
      float* const to = out + (at - range.begin);
      for (std::size_t k = 0; k < rank; ++k) {
        const float factor = in_out_ ? current_.a[k * current_.in + row] : current_.b[row * rank + k];
        const float* const other = in_out_ ? &current_.b_columns[k * current_.out] : &current_.a[k * current_.in];
        for (std::size_t c = first; c < end; ++c) to[c - first] += factor * other[c];
      }
      at += end - first;
    }
  }
  std::size_t bytes_read() const override { return base_->bytes_read() + adapter_.tensors->bytes_read(); }
  std::string description() const override {
    return format("{} with the adapters of {}", base_->description(), adapter_.tensors->description());
  }
  std::string holder_of(const std::string& name) const override { return base_->holder_of(name); }
  std::vector<std::string> warnings() const override { return base_->warnings(); }
  std::vector<fs::path> files() const override {
    std::vector<fs::path> all = base_->files(), more = adapter_.tensors->files();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  /// The matrices of one adapter; b is multiplied by the scale.
  struct Matrices {
    std::string name;  // of the weight
    std::size_t in = 0, out = 0;
    std::vector<float> a, b, b_columns;  // [rank,in], [out,rank], [rank,out]
  };

  void read_matrices(const std::string& name) const {
    const std::string module = name.substr(0, name.rfind('.'));
    const auto matrix = [&](const char* suffix) {
      std::vector<float> values(numel(adapter_.tensors->shape(module + suffix)));
      adapter_.tensors->read_to_use(parameters_state, module + suffix, {0, values.size()}, values.data());
      return values;
    };
    const std::size_t rank = adapter_.lora.rank;
    current_ = {name, 0, 0, matrix(a_suffix), matrix(b_suffix), {}};
    current_.in = current_.a.size() / rank, current_.out = current_.b.size() / rank;
    for (float& value : current_.b) value *= static_cast<float>(adapter_.lora.scale());
    if (!in_out_) return;
    current_.b_columns.resize(current_.b.size());
    for (std::size_t o = 0; o < current_.out; ++o)
      for (std::size_t k = 0; k < rank; ++k) current_.b_columns[k * current_.out + o] = current_.b[o * rank + k];
  }

  std::unique_ptr<TensorSource> base_;
  Adapter adapter_;
  bool in_out_;
  std::set<std::string> merged_;  // weights that have an adapter
  mutable std::mutex mutex_;
  mutable Matrices current_;
};

class MergedCheckpoint final : public CheckpointReader {
 public:
  MergedCheckpoint(const CheckpointReader& adapters, std::unique_ptr<MergedModel> merged)
      : header_(adapters.header()), folder_(adapters.folder()), file_bytes_(adapters.file_bytes()), merged_(std::move(merged)) {
    header_.model = merged_->model();
    header_.base.reset();
    header_.units = {{"root", {}, false}};
    for (std::size_t p = 0; p < header_.model.parameters().size(); ++p) header_.units.front().parameters.push_back(p);
    const Layout layout(header_.model.parameters(), header_.units, 1);
    parts_.emplace(header_.model.parameters(), layout, 1);
  }
  const CheckpointHeader& header() const override { return header_; }
  const fs::path& folder() const override { return folder_; }
  std::size_t file_bytes() const override { return file_bytes_; }
  bool was_trained(const std::string&) const override { return false; }
  std::optional<double> norm(const std::string&, const std::string&) const override { return {}; }
  std::map<std::string, std::size_t> user_data_sizes() const override { return {}; }
  std::string read_user_data(const std::string&) const override { return ""; }
  const StoredParts& parts() const override { return *parts_; }
  void prefetch_state(const std::string&, const std::string&, Range) const override {}
  void verify(int, int, const ByteProgress&) const override {}
  StoredModel model() const override { return header_.model; }
  std::vector<std::string> names() const override { return merged_->names(); }
  bool has_state(const std::string& state, const std::string& name) const override { return merged_->has_state(state, name); }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return merged_->state_shape(state, name);
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    merged_->read_state(state, name, range, out);
  }
  std::size_t bytes_read() const override { return merged_->bytes_read(); }
  std::string description() const override { return merged_->description(); }
  std::vector<fs::path> files() const override { return merged_->files(); }
  std::string holder_of(const std::string& name) const override { return merged_->holder_of(name); }

 private:
  CheckpointHeader header_;
  fs::path folder_;
  std::size_t file_bytes_;
  std::unique_ptr<MergedModel> merged_;
  std::optional<StoredParts> parts_;
};

void verify_base(const Adapter& adapter, const TensorSource& base, Verify verify) {
  if (adapter.base_sum && verify == Verify::yes)
    require_base(*adapter.tensors, adapter.base_sum, content_sum(base), base.description());
}

Adapter adapter_of(std::unique_ptr<CheckpointReader> checkpoint) {
  const CheckpointHeader& header = checkpoint->header();
  Adapter adapter = {header.model.transformer(checkpoint->description()).lora, nullptr, header.base->sum};
  adapter.tensors = std::move(checkpoint);
  return adapter;
}

// --- writing PEFT's folder ---

void lay_out_peft(const CheckpointReader& source, const ConsolidateOptions&, WrittenModel& model) {
  std::vector<std::pair<std::string, Shape>> names;
  std::vector<WrittenTensor*> tensors;
  for (WrittenTensor& tensor : model.tensors) {
    names.emplace_back(name_prefix + tensor.name, tensor.shape);
    tensors.push_back(&tensor);
  }
  model.add_file(weights_name,
                 safetensors_header(names, tensors.front()->type, {{sum_key, checksum_text(source.header().base->sum)}}),
                 tensors);
}

/// The names for PEFT's target_modules, which mean all modules whose names they are or end: the last parts of the modules'
/// names or, if these would mean other modules, too, the whole names.
std::vector<std::string> target_modules(const TransformerConfig& config) {
  const auto last_part = [](const std::string& module) { return module.substr(module.rfind('.') + 1); };
  std::set<std::string> chosen, all, last_parts;  // modules with adapters, all projections
  for (const Parameter& parameter : list_parameters(config).parameters)
    if (parameter.is_adapter)
      chosen.insert(parameter.name.substr(0, parameter.name.find(".lora_")));
    else if (is_projection(parameter))
      all.insert(parameter.name.substr(0, parameter.name.rfind('.')));
  for (const std::string& module : chosen) last_parts.insert(last_part(module));
  for (const std::string& module : all)
    if (last_parts.contains(last_part(module)) && !chosen.contains(module)) return {chosen.begin(), chosen.end()};
  return {last_parts.begin(), last_parts.end()};
}

void finish_peft(const CheckpointReader& source, const ConsolidateOptions&, const WrittenModel& model, Consolidated&) {
  const TransformerConfig config = source.config();
  const Lora& lora = config.lora;
  const bool is_integer = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15;
  nlohmann::ordered_json out;
  out["peft_type"] = "LORA";
  out["task_type"] = "CAUSAL_LM";
  out["base_model_name_or_path"] = source.header().base->path;
  out["inference_mode"] = true;
  out["r"] = lora.rank;
  if (is_integer)
    out["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  else
    out["lora_alpha"] = lora.alpha;
  out["lora_dropout"] = lora.dropout;
  out["use_rslora"] = lora.rank_stabilized;
  out["target_modules"] = target_modules(config);
  out["fan_in_fan_out"] = find_family(config.family).weights == WeightLayout::in_out;
  out["bias"] = "none";
  out["modules_to_save"] = nullptr;
  write_text_file_durably(model.path / config_name, json_text(out, 2) + "\n");
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
    .is_file = [](const std::string& name) { return name == config_name || name == weights_name; },
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
  if (kind_of(path / config_name) == PathKind::file) {
    if (weights == Weights::average)
      throw UserError(format("{} has no average of the weights (it is a folder of PEFT); leave out `weights of the average`",
                             path.string()));
    adapter = open_peft(path, warnings, verify);
  } else {
    auto checkpoint = open_checkpoint(path, warnings, verify, weights);
    if (!checkpoint->header().base)
      throw UserError(
          format("{} is no checkpoint of adapters (it holds a whole model); give it as the model", checkpoint->description()));
    adapter = adapter_of(std::move(checkpoint));
  }
  const std::string remedy = "give the base model that these adapters were trained on";
  std::map<std::string, bool> is_possible;  // by the name of a tensor: true for the weights of projections
  for (const Parameter& parameter : list_parameters(without_adapters(base)).parameters)
    is_possible[parameter.name] = is_projection(parameter);
  for (const std::string& name : adapter.tensors->names()) {
    const std::string module = name.substr(0, name.find(".lora_"));
    const auto found = is_possible.find(module + ".weight");
    if (found == is_possible.end())
      throw UserError(
          format("{} has adapters of another model (its tensor {} is for a module that the base model does not have); {}",
                 adapter.tensors->description(), name, remedy));
    if (!found->second)
      throw UserError(
          format("{} has adapters of {} (only projections of the blocks have adapters here); use an adapter without "
                 "them, or merge it into its model in Python",
                 adapter.tensors->description(), module));
  }
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
  const auto* const step = dynamic_cast<const CheckpointReader*>(&base);
  return fs::absolute(step ? step->folder() : path).lexically_normal().string();
}

std::unique_ptr<CheckpointReader> merge_adapters(std::unique_ptr<CheckpointReader> adapters, fs::path base,
                                                 std::vector<std::string>* warnings, Verify verify) {
  const CheckpointReader& reader = *adapters;
  base = base_of(reader, base);
  auto model = open_model(base, {}, warnings, verify);
  if (!(model->config() == without_adapters(reader.config())))
    throw UserError(format("{} holds adapters of another model than {}; give the base model that they were trained on",
                           reader.description(), model->description()));
  Adapter adapter = adapter_of(std::move(adapters));
  verify_base(adapter, *model, verify);
  return std::make_unique<MergedCheckpoint>(reader, std::make_unique<MergedModel>(std::move(model), std::move(adapter)));
}

std::unique_ptr<TensorSource> open_model(const fs::path& path, const fs::path& adapter_path, std::vector<std::string>* warnings,
                                         Verify verify, Weights weights) {
  auto source = open_tensor_source(path, warnings, verify, adapter_path.empty() ? weights : Weights::trained);
  auto* const checkpoint = dynamic_cast<CheckpointReader*>(source.get());
  const bool has_adapters = checkpoint && checkpoint->header().base;
  if (has_adapters && !adapter_path.empty())
    throw UserError(format("{} has adapters already (another `adapter` is given, too); give its base model, {}, as the model",
                           source->description(), checkpoint->header().base->path));
  if (has_adapters) {
    source.release();
    return merge_adapters(std::unique_ptr<CheckpointReader>(checkpoint), {}, warnings, verify);
  }
  if (adapter_path.empty()) return source;
  Adapter adapter = open_adapter(adapter_path, source->config(), warnings, verify, weights);
  verify_base(adapter, *source, verify);
  return std::make_unique<MergedModel>(std::move(source), std::move(adapter));
}

const ModelFormat& peft_format() { return peft_row; }

}  // namespace fsdp
