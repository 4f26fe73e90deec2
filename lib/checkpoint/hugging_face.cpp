// A Hugging Face folder as a source of tensors. Some checkpoints on the Hub, as GPT-2's, leave out the prefix of the model
// without its head ("transformer."); some carry buffers that are computed, not learned, and are left out. Any other tensor is
// listed, for whoever loads to refuse.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/tensor_source.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

constexpr std::size_t longest_index = std::size_t{64} << 20;

/// The files that an index names, each once. Throws UserError.
std::vector<std::string> files_of_index(const std::filesystem::path& path) {
  using nlohmann::json;
  const auto damaged = [&](const std::string& why) {
    throw UserError(format("{} is damaged ({}) download or copy it again", path.string(), why));
  };
  // The parser keeps only the map of what the file holds: 64 MB of any JSON would become 2 GB of values.
  bool in_map = false;
  std::string entry;
  const auto watch = [&](int depth, json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::key && depth == 1) return in_map = parsed == "weight_map";
    if (event == Event::key && depth == 2) entry = parsed.get<std::string>();
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && in_map && depth == 2) damaged(format("its weight_map names no file for {}", excerpt(entry)));
    return !begins || (event == Event::object_start && (depth == 0 || in_map));
  };
  const json index = parse_json(read_text_file(path, longest_index), watch);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    damaged("it has no weight_map, which says in which file each tensor is");
  std::set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) damaged(format("its weight_map names no file for {}", excerpt(tensor)));
    const std::string name = file;
    const bool is_plain =
        name.find('/') == std::string::npos && excerpt(name, 255) == name && !name.empty() && name != "." && name != "..";
    if (!is_plain) damaged(format("its weight_map names '{}', which is not beside it", excerpt(name)));
    if (kind_of(path.parent_path() / name) == PathKind::missing)
      throw UserError(format("{} is not there ({} is in it, as {} says) copy the whole folder",
                             (path.parent_path() / name).string(), tensor, path.string()));
    names.insert(name);
  }
  return {names.begin(), names.end()};
}

class HuggingFaceFolder final : public TensorSource {
 public:
  /// `files`: names of safetensors files in it, which together hold the model; `state_files` the optimizer's states.
  HuggingFaceFolder(const std::filesystem::path& folder, const std::vector<std::string>& files,
                    const std::vector<std::string>& state_files, Verify verify)
      : folder_(folder), config_(read_config(folder)) {
    config_.validate();
    std::set<std::string> wanted;
    for (const Parameter& parameter : list_parameters(config_).parameters) wanted.insert(parameter.name);
    for (const std::string& name : files) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder / name, verify));
      for (const StoredTensor& tensor : files_.back()->tensors()) take(*files_.back(), tensor, wanted);
    }
    for (const std::string& name : state_files) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder / name, verify));
      for (const StoredTensor& tensor : files_.back()->tensors()) take_state(*files_.back(), tensor);
    }
  }

  const TransformerConfig& config() const override { return config_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [key, place] : tensors_)
      if (key.first == "parameters") all.push_back(key.second);
    return all;
  }
  bool has(const std::string& name) const override { return has_state("parameters", name); }
  Shape shape(const std::string& name) const override { return state_shape("parameters", name); }
  void read(const std::string& name, Range range, float* out) const override { read_state("parameters", name, range, out); }
  const std::vector<std::string>& states() const override { return states_; }
  bool has_state(const std::string& state, const std::string& name) const override { return tensors_.contains({state, name}); }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return locate(state, name).second->shape;
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const auto& [file, tensor] = locate(state, name);
    file->read(*tensor, range, out);
    bytes_read_ += range.size() * size_of(*type_of_safetensors(tensor->dtype));
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("Hugging Face folder {}", folder_.string()); }

 private:
  using Place = std::pair<const SafetensorsFile*, const StoredTensor*>;

  void take(const SafetensorsFile& file, const StoredTensor& tensor, const std::set<std::string>& wanted) {
    std::string name;
    const ParameterNames& names = find_family(config_.family).names;
    for (const std::string& prefix : {std::string(), names.base})
      if (name.empty() && wanted.contains(prefix + tensor.name)) name = prefix + tensor.name;
    if (name.empty()) {
      if (is_buffer(tensor.name) || (config_.tied_embeddings && tensor.name == names.head)) return;
      name = tensor.name;
    } else {
      require_readable(file, tensor);
    }
    add("parameters", name, file, tensor);
  }

  /// "exp_avg/transformer.wte.weight"
  void take_state(const SafetensorsFile& file, const StoredTensor& tensor) {
    const std::size_t slash = tensor.name.find('/');
    if (slash == std::string::npos) return;
    require_readable(file, tensor);
    const std::string state = tensor.name.substr(0, slash);
    if (std::find(states_.begin(), states_.end(), state) == states_.end()) states_.push_back(state);
    add(state, tensor.name.substr(slash + 1), file, tensor);
  }

  static void require_readable(const SafetensorsFile& file, const StoredTensor& tensor) {
    if (!type_of_safetensors(tensor.dtype))
      throw UserError(format("{} holds {} in {} (F32, BF16 and F16 are read) convert the model", file.path().string(),
                             tensor.name, tensor.dtype));
  }

  void add(const std::string& state, const std::string& name, const SafetensorsFile& file, const StoredTensor& tensor) {
    if (!tensors_.emplace(std::pair(state, name), Place{&file, &tensor}).second)
      throw UserError(format("{} holds {} a second time (which one counts is unknown) remove one", file.path().string(), name));
  }

  const Place& locate(const std::string& state, const std::string& name) const {
    const auto found = tensors_.find({state, name});
    if (found != tensors_.end()) return found->second;
    if (state != "parameters")
      throw UserError(
          format("{} has no {} of {} (it holds {}) check the name", folder_.string(), state, name, fmt::join(states_, ", ")));
    throw UserError(
        format("{} has no tensor {} (the model of its config.json needs it) use the whole model", folder_.string(), name));
  }

  std::filesystem::path folder_;
  TransformerConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::pair<std::string, std::string>, Place> tensors_;  // by state and our name
  std::vector<std::string> states_ = {"parameters"};
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<TensorSource> open_hugging_face(const std::filesystem::path& folder, Verify verify) {
  const auto there = [&](const std::string& name) { return kind_of(folder / name) != PathKind::missing; };
  /// NAME.safetensors, or the files that its index names; none if neither is there.
  const auto files_of = [&](const std::string& name) -> std::vector<std::string> {
    const std::string single = name + ".safetensors", index = single + ".index.json";
    if (there(single)) return {single};
    return there(index) ? files_of_index(folder / index) : std::vector<std::string>();
  };
  const std::vector<std::string> files = files_of("model");
  if (files.empty())
    throw UserError(format("{} has no model.safetensors (the weights are read from there){} check the path", folder.string(),
                           there("pytorch_model.bin") ? " save its pytorch_model.bin as safetensors, or" : ""));
  if (!there("config.json"))
    throw UserError(
        format("{} has no config.json (it says what the model is) copy it from where the weights are from", folder.string()));
  return std::make_unique<HuggingFaceFolder>(folder, files, files_of("optimizer"), verify);
}

}  // namespace fsdp
