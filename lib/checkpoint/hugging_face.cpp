// The format "safetensors": a Hugging Face folder. Names of tensors may lack the prefix "transformer." or "model.", as in
// GPT-2's folder on the Hub. Prefixes that PyTorch's wrappers add ("_orig_mod.") are removed. Buffers,
// which are computed and not learned, are skipped. All other tensors that the model does not have are listed by names(), so
// that the caller can refuse them.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/tensor_source.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/parameters.hpp"
#include "text/end_tokens.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

/// Removes the prefixes that torch.compile, FSDP and activation checkpointing add to the names of modules, and the prefix that
/// DDP adds to all names.
std::string without_wrappers(std::string name) {
  for (const std::string wrapper : {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."})
    for (std::size_t at = name.find(wrapper); at != std::string::npos; at = name.find(wrapper, at))
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, wrapper.size());
      else
        ++at;
  const std::string ddp = "module.";
  return name.starts_with(ddp) ? name.substr(ddp.size()) : name;
}

constexpr std::size_t longest_index = std::size_t{64} << 20;

/// The safetensors files of a model, and the file of each tensor according to model.safetensors.index.json ("the index").
/// Without an index `file_of` is empty.
struct ModelFiles {
  std::vector<std::string> names;
  std::map<std::string, std::string> file_of = {};
};

/// Reads the index of a model's files. Throws UserError.
ModelFiles files_of_index(const fs::path& path) {
  const auto damaged = [&](const std::string& why) {
    throw UserError(format("{} is damaged ({}); download or copy it again", path.string(), why));
  };
  // The parser keeps only weight_map, which maps tensors to files, because 64 MB of other JSON could take 2 GB of memory.
  bool in_map = false;
  std::string entry;
  const auto watch = [&](int depth, json::parse_event_t event, const json& parsed) {
    using Parsing = json::parse_event_t;
    if (event == Parsing::key && depth == 1) return in_map = parsed == "weight_map";
    if (event == Parsing::key && depth == 2) entry = parsed.get<std::string>();
    const bool begins = event == Parsing::object_start || event == Parsing::array_start;
    if (begins && in_map && depth == 2) damaged(format("its weight_map names no file for {}", excerpt(entry)));
    return !begins || (event == Parsing::object_start && (depth == 0 || in_map));
  };
  const json index = parse_json(read_text_file(path, longest_index), watch);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    damaged("it has no weight_map, which maps tensors to files");
  std::set<std::string> names;
  ModelFiles files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) damaged(format("its weight_map names no file for {}", excerpt(tensor)));
    const std::string name = file;
    const bool is_plain =
        name.find('/') == std::string::npos && excerpt(name, 255) == name && !name.empty() && name != "." && name != "..";
    if (!is_plain) damaged(format("its weight_map names '{}', which is not a file name in its folder", excerpt(name)));
    if (kind_of(path.parent_path() / name) == PathKind::missing)
      throw UserError(format("{} is missing ({} is in this file according to {}); copy the whole folder",
                             (path.parent_path() / name).string(), tensor, path.string()));
    names.insert(name);
    files.file_of[tensor] = name;
  }
  files.names.assign(names.begin(), names.end());
  return files;
}

class HuggingFaceFolder final : public TensorSource {
 public:
  /// `files` hold the parameters, and `state_files` the optimizer's states.
  HuggingFaceFolder(const fs::path& folder, const ModelFiles& files, const ModelFiles& state_files, Verify verify)
      : folder_(folder), config_(read_config(folder)) {
    config_.validate();
    std::set<std::string> wanted;
    for (const Parameter& parameter : list_parameters(config_).parameters) wanted.insert(parameter.name);
    open_all(files, verify, [&](const SafetensorsFile& file, const StoredTensor& tensor) { take(file, tensor, wanted); });
    const auto table = tensors_.find({parameters_state, find_family(config_.family).names.token_table});
    if (tied_head_.first && table != tensors_.end() && table->second.second->shape != tied_head_.second->shape)
      refuse_tied_head();
    open_all(state_files, verify, [&](const SafetensorsFile& file, const StoredTensor& tensor) { take_state(file, tensor); });
    note_unread(files);
  }

  StoredModel model() const override { return config_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [key, place] : tensors_)
      if (key.first == parameters_state) all.push_back(key.second);
    return all;
  }
  std::vector<std::string> states() const override { return states_; }
  bool has_state(const std::string& state, const std::string& name) const override { return tensors_.contains({state, name}); }
  Shape state_shape(const std::string& state, const std::string& name) const override {
    return locate(state, name).second->shape;
  }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const auto& [file, tensor] = locate(state, name);
    file->read(*tensor, range, out);
    if (tied_head_.first && state == parameters_state && name == find_family(config_.family).names.token_table)
      compare_tied_head(range, out);
    bytes_read_ += range.size() * size_of(file->type_of(*tensor));
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("Hugging Face folder {}", folder_.string()); }
  std::vector<fs::path> files() const override {
    std::vector<fs::path> all = {folder_ / "config.json", folder_ / "model.safetensors.index.json"};
    for (const auto& file : files_) all.push_back(file->path());
    return all;
  }
  std::string holder_of(const std::string& name) const override {
    return locate(parameters_state, name).first->path().string();
  }
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  using Place = std::pair<const SafetensorsFile*, const StoredTensor*>;

  /// Opens all files and calls handle(file, tensor) for each tensor, except for copies of tensors that the index assigns to
  /// another file. Throws UserError if a tensor is not in the file that the index names.
  template <class Handle>
  void open_all(const ModelFiles& files, Verify verify, Handle&& handle) {
    std::map<std::string, const SafetensorsFile*> by_name;
    std::string warning;
    std::size_t unread = 0;  // the number of copies of tensors that the index assigns to another file
    for (const std::string& name : files.names) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder_ / name, verify));
      const SafetensorsFile& file = *files_.back();
      by_name[name] = &file;
      for (const StoredTensor& tensor : file.tensors()) {
        const auto entry = files.file_of.find(tensor.name);
        if (entry == files.file_of.end() || entry->second == name)
          handle(file, tensor);
        else if (!is_buffer(tensor.name) && ++unread == 1)
          warning = format("{} of {} is not read (according to the folder's index this tensor is in {}", tensor.name,
                           file.path().string(), entry->second);
      }
    }
    if (unread > 0)
      warnings_.push_back(warning + (unread == 1 ? ")" : format("; nor are {} other copies of tensors)", unread - 1)));
    for (const auto& [tensor, name] : files.file_of)
      if (!by_name.at(name)->find(tensor) && !is_not_needed(tensor))
        throw UserError(
            format("{} has no tensor {} (according to the folder's index it has this tensor); copy the whole folder",
                   (folder_ / name).string(), excerpt(tensor)));
  }

  /// Warns of files in the folder that look like weights of the model, but are not read.
  void note_unread(const ModelFiles& files) {
    std::vector<std::string> unread;
    std::error_code ignored;
    for (fs::directory_iterator at(folder_, ignored), end; at != end; at.increment(ignored)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with("model") && name.ends_with(".safetensors") &&
          std::find(files.names.begin(), files.names.end(), name) == files.names.end())
        unread.push_back(excerpt(name));
    }
    if (unread.empty()) return;
    std::sort(unread.begin(), unread.end());
    const std::size_t all = unread.size();
    if (all > 3) unread.resize(3), unread.push_back(format("and {} more", all - 3));
    warnings_.push_back(format(
        "{} of {} {} not read ({})", fmt::join(unread, ", "), folder_.string(), all == 1 ? "is" : "are",
        files.file_of.empty() ? "model.safetensors is the whole model" : "model.safetensors.index.json does not name it"));
  }

  bool is_not_needed(const std::string& name) const {
    return is_buffer(name) || (config_.tied_embeddings && without_wrappers(name) == find_family(config_.family).names.head);
  }

  void take(const SafetensorsFile& file, const StoredTensor& tensor, const std::set<std::string>& wanted) {
    std::string name;
    const ParameterNames& names = find_family(config_.family).names;
    const std::string plain = without_wrappers(tensor.name);
    for (const std::string& prefix : {std::string(), names.base})
      for (const std::string& suffix : {tensor.name, plain})
        if (name.empty() && wanted.contains(prefix + suffix)) name = prefix + suffix;
    if (name.empty()) {
      if (is_buffer(tensor.name)) return;
      if (is_not_needed(tensor.name)) {
        if (tied_head_.first) refuse_second(file, tensor.name);
        tied_head_ = {&file, &tensor};
        return;
      }
      name = tensor.name;
    } else {
      static_cast<void>(file.type_of(tensor));  // throws for types that are not read
    }
    add(parameters_state, name, file, tensor);
  }

  [[noreturn]] void refuse_tied_head() const {
    const auto& [file, head] = tied_head_;
    throw UserError(
        format("{} holds {} that differs from {}, and the model ties the two (tie_word_embeddings of config.json); set "
               "tie_word_embeddings to false to use this head, or remove this tensor from the file",
               file->path().string(), head->name, find_family(config_.family).names.token_table));
  }

  /// Compares a part of the embedding (`table`) with the LM head in the files, if the model ties the two. Each rank compares
  /// the part that it loads, so that together the ranks compare the whole tensor.
  void compare_tied_head(Range range, const float* table) const {
    const auto& [file, head] = tied_head_;
    std::vector<float> piece(std::min(range.size(), std::size_t{1} << 16));
    for (std::size_t at = 0; at < range.size(); at += piece.size()) {
      const std::size_t n = std::min(piece.size(), range.size() - at);
      file->read(*head, {range.begin + at, range.begin + at + n}, piece.data());
      if (std::memcmp(piece.data(), table + at, n * sizeof(float)) != 0) refuse_tied_head();
    }
  }

  /// Adds an optimizer state, such as "exp_avg/transformer.wte.weight".
  void take_state(const SafetensorsFile& file, const StoredTensor& tensor) {
    const std::size_t slash = tensor.name.find('/');
    if (slash == std::string::npos) return;
    static_cast<void>(file.type_of(tensor));
    const std::string state = tensor.name.substr(0, slash);
    if (std::find(states_.begin(), states_.end(), state) == states_.end()) states_.push_back(state);
    add(state, tensor.name.substr(slash + 1), file, tensor);
  }

  void add(const std::string& state, const std::string& name, const SafetensorsFile& file, const StoredTensor& tensor) {
    if (!tensors_.emplace(std::pair(state, name), Place{&file, &tensor}).second) refuse_second(file, name);
  }

  [[noreturn]] static void refuse_second(const SafetensorsFile& file, const std::string& name) {
    throw UserError(
        format("{} holds {} a second time (it is unknown which copy is right); remove one copy", file.path().string(), name));
  }

  const Place& locate(const std::string& state, const std::string& name) const {
    const auto found = tensors_.find({state, name});
    if (found != tensors_.end()) return found->second;
    if (state != parameters_state)
      throw UserError(format("{} has no {} of {} (its states are {}); check the name", folder_.string(), state, name,
                             fmt::join(states_, ", ")));
    throw UserError(
        format("{} has no tensor {} (the model of its config.json needs it); use the whole model", folder_.string(), name));
  }

  fs::path folder_;
  TransformerConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::pair<std::string, std::string>, Place> tensors_;  // by state and by the model's name of the parameter
  Place tied_head_ = {};  // an LM head in the files, if the model ties the LM head to the embedding
  std::vector<std::string> states_ = {parameters_state}, warnings_;
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

// --- writing ---

/// Makes model.safetensors and optimizer.safetensors, or several files of each. A file is shorter than its header requires
/// until its last tensor is written, so that an unfinished file is not valid.
void lay_out_safetensors(const TensorSource& source, const ConsolidateOptions& options, WrittenModel& model) {
  for (const bool of_optimizer : {false, true}) {
    std::vector<std::vector<WrittenTensor*>> files;
    std::size_t bytes = 0;  // of the last file
    for (WrittenTensor& tensor : model.tensors) {
      if ((tensor.state != parameters_state) != of_optimizer) continue;
      if (files.empty() || (options.max_shard_bytes > 0 && bytes > 0 && bytes + tensor.bytes() > options.max_shard_bytes))
        files.emplace_back(), bytes = 0;
      files.back().push_back(&tensor);
      bytes += tensor.bytes();
    }
    const std::string name = of_optimizer ? "optimizer" : "model";
    for (std::size_t f = 0; f < files.size(); ++f) {
      std::vector<std::pair<std::string, Shape>> tensors;
      for (const WrittenTensor* tensor : files[f]) tensors.emplace_back(tensor->whole_name(), tensor->shape);
      std::map<std::string, std::string> metadata;
      const CheckpointHeader& checkpoint = source.checkpoint()->header();
      const Progress& trained = checkpoint.progress;
      if (of_optimizer)
        metadata = {{"optimizer", checkpoint.optimizer}, {"step", std::to_string(trained.update - trained.optimizer_began)}};
      const std::string header = safetensors_header(tensors, files[f].front()->type, metadata);
      model.add_file(
          files.size() == 1 ? name + ".safetensors" : format("{}-{:05}-of-{:05}.safetensors", name, f + 1, files.size()),
          header, files[f]);
    }
  }
}

// --- files that transformers needs besides the tensors ---

/// Writes NAME.safetensors.index.json if there are several files of `name`.
void write_file_index(const WrittenModel& model, const std::string& name) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::size_t bytes = 0;
  for (const WrittenTensor& tensor : model.tensors) {
    const std::string& file = model.files[tensor.file];
    if (!file.starts_with(name + "-")) continue;
    map[tensor.whole_name()] = file;
    bytes += tensor.bytes();
  }
  if (map.empty()) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  write_text_file_durably(model.path / (name + ".safetensors.index.json"), json_text(index, 2) + "\n");
}

/// Copies the tokenizer's files from the checkpoint, else from the original folder, which the model came from. The original
/// config.json also names special tokens, which are copied into `config`. Returns the original folder if its config.json was
/// used, else an empty path.
fs::path take_tokenizer(const CheckpointReader& source, const fs::path& model, json& config, Consolidated& done) {
  const auto copy = [&](const fs::path& folder) {
    for (const TokenizerFile& file : read_tokenizer_files(folder)) {
      write_text_file_durably(model / file.name, file.text);
      done.copied.push_back(file.name);
    }
    if (!done.copied.empty()) done.copied_from = folder;
  };
  copy(source.folder());
  const fs::path folder = source.header().model_folder;
  if (folder.empty() || !source.model().is_transformer()) return {};
  const auto copy_by_hand = [&](const std::string& why) -> fs::path {
    if (!done.copied.empty()) return {};
    done.warnings.push_back(
        format("no tokenizer files were copied from the model's original folder {} ({}); copy the right files to the folder of "
               "config.json",
               folder.string(), why));
    return {};
  };
  json theirs;
  try {
    if (kind_of(folder / "config.json") == PathKind::missing) return copy_by_hand("it no longer exists");
    theirs = read_json_object(folder / "config.json");
    const std::size_t vocabulary = config_from_json(theirs).vocab_size;
    // A tokenizer that has grown keeps the ids of its special tokens.
    const bool has_grown =
        vocabulary < source.config().vocab_size && has_tokenizer(source.folder()) && has_tokenizer(folder) &&
        open_tokenizer(source.folder().string())->special_tokens() == open_tokenizer(folder.string())->special_tokens();
    if (vocabulary != source.config().vocab_size && !has_grown)
      return copy_by_hand(
          format("its vocabulary has {} tokens, but this model's has {}", vocabulary, source.config().vocab_size));
  } catch (const UserError& other) {
    return copy_by_hand(other.what());
  } catch (const CallError& failure) {  // reading the original folder failed; the model is complete without it
    return copy_by_hand(failure.what());
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (theirs.contains(key)) config[key] = theirs[key];
  if (done.copied.empty()) copy(folder);
  if (const fs::path more = folder / "additional_chat_templates"; kind_of(more) == PathKind::folder)
    done.warnings.push_back(
        format("{} was not copied (only the files of the folder itself are copied); copy it by hand", more.string()));
  return folder;
}

/// Collects the tokens that end a text from all files that name them, and writes them to config.json and
/// generation_config.json, where transformers reads them. `origin` is the folder that the model came from; empty if unused.
void write_end_tokens(const TensorSource& source, const fs::path& model, const fs::path& origin, json& config,
                      Consolidated& done) {
  const std::size_t vocab_size =
      source.model().is_transformer() ? source.config().vocab_size : std::numeric_limits<std::size_t>::max();
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    if (has_tokenizer(model)) tokenizer = open_tokenizer(model.string());
  } catch (const UserError&) {  // this program does not read this kind of tokenizer
  }
  try {
    const EndTokens end = find_end_tokens(model, origin, tokenizer.get(), vocab_size);
    if (!end.contradiction.empty()) done.warnings.push_back(end.contradiction);
    if (end.ids.empty()) return;
    const json ids = end.ids.size() == 1 ? json(end.ids.front()) : json(end.ids);
    config["eos_token_id"] = ids;
    const fs::path path = model / "generation_config.json";
    if (kind_of(path) != PathKind::file) return;
    json generation = read_json_object(path);
    const json found = generation.value("eos_token_id", json());
    if (found == ids ||
        (found.is_array() && std::set<json>(found.begin(), found.end()) == std::set<json>(ids.begin(), ids.end())))
      return;
    generation["eos_token_id"] = ids;
    write_text_file_durably(path, json_text(generation, 2) + "\n");
  } catch (const UserError& error) {
    done.warnings.push_back(format("only config.json names the tokens that end a text ({})", error.what()));
  }
}

void finish(const TensorSource& source, const ConsolidateOptions& options, const WrittenModel& model, Consolidated& done) {
  for (const char* name : {"model", "optimizer"}) write_file_index(model, name);
  json config = source.model().to_json();
  // Version 5 of transformers reads "dtype", older versions "torch_dtype". Without the ids of special tokens transformers would
  // use those of GPT-2's vocabulary.
  config["dtype"] = config["torch_dtype"] = options.type == DType::f32    ? "float32"
                                            : options.type == DType::bf16 ? "bfloat16"
                                                                          : "float16";
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  const fs::path origin = take_tokenizer(*source.checkpoint(), model.path, config, done);
  write_end_tokens(source, model.path, origin, config, done);
  write_text_file_durably(model.path / "config.json", json_text(config, 2) + "\n");
  sync_folder(model.path);
}

bool is_file(const std::string& name) {
  if (name == "config.json" || is_tokenizer_file(name)) return true;
  for (const char* kind : {"model", "optimizer"}) {
    if (name == format("{}.safetensors", kind) || name == format("{}.safetensors.index.json", kind)) return true;
    int file = 0, files = 0, end = 0;
    if (std::sscanf(name.c_str(), format("{}-%9d-of-%9d.safetensors%n", kind).c_str(), &file, &files, &end) == 2 &&
        static_cast<std::size_t>(end) == name.size())
      return true;
  }
  return false;
}

/// Returns true also for a single file: opening it then reports that its folder is needed.
bool is_hugging_face(const fs::path& path) {
  if (kind_of(path) != PathKind::folder) return path.extension() == ".safetensors";
  const auto files = {"config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"};
  return std::any_of(files.begin(), files.end(), [&](const char* name) { return kind_of(path / name) != PathKind::missing; });
}

constexpr ModelFormat safetensors_row = {
    .name = "safetensors",
    .what = "a Hugging Face folder",
    .about =
        "a Hugging Face folder with config.json, model.safetensors and the tokenizer's files, which come from the checkpoint "
        "or from the folder that the model came from",
    .is = is_hugging_face,
    .open = open_hugging_face,
    .lay_out = lay_out_safetensors,
    .finish = finish,
    .is_file = is_file,
};

}  // namespace

std::unique_ptr<TensorSource> open_hugging_face(const fs::path& folder, Verify verify) {
  if (const auto adapter = adapter_in(folder)) throw UserError(*adapter);
  const PathKind kind = kind_of(folder);
  if (kind != PathKind::folder && kind != PathKind::missing)
    throw UserError(format("{} is a single file (the model's config.json is needed, too); give its folder", folder.string()));
  const auto there = [&](const std::string& name) { return kind_of(folder / name) != PathKind::missing; };
  /// Returns NAME.safetensors, or the files that NAME.safetensors.index.json names; none if neither exists.
  const auto files_of = [&](const std::string& name) -> ModelFiles {
    const std::string single = name + ".safetensors", index = single + ".index.json";
    if (there(single)) return {{single}};
    if (!there(index))
      if (const auto shards = shards_without_index(folder, name)) throw UserError(*shards);
    return there(index) ? files_of_index(folder / index) : ModelFiles();
  };
  const ModelFiles files = files_of("model");
  if (files.names.empty()) {
    if (const auto other = model_of_other_kind(folder)) throw UserError(*other);
    throw UserError(format("{} has no model.safetensors (the weights are read from there); check the path", folder.string()));
  }
  if (!there("config.json"))
    throw UserError(
        format("{} has no config.json (it describes the model); copy it from the source of the weights", folder.string()));
  return std::make_unique<HuggingFaceFolder>(folder, files, files_of("optimizer"), verify);
}

const ModelFormat& safetensors_format() { return safetensors_row; }

}  // namespace fsdp
