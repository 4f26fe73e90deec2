// One file, or one Hugging Face folder, from a sharded checkpoint. First come the files with everything but the numbers, at
// their full size in HDF5; then the numbers stream, through one buffer of fixed size, to where they belong. A journal has the
// checksum of every piece that was written, so that a run that was killed is gone on with: what is on the disk is compared with
// it.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/stored.hpp"
#include "h5/output.hpp"
#include "kernels/element.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t piece_elements = std::size_t{4} << 20;  // 16 MiB
constexpr std::string_view h5_signature = "\x89HDF\r\n\x1a\n";

// --- what is written where ---

struct Item {
  std::string state, name;
  Shape shape;
  DType type;
  std::size_t file = 0;      // index
  std::uint64_t offset = 0;  // of its first byte
  std::string whole_name() const { return stored::whole_name(state, name); }
  std::size_t bytes() const { return numel(shape) * size_of(type); }
};

std::vector<Item> items_of(const TensorSource& source, const std::vector<std::string>& states, DType type) {
  std::vector<Item> items;
  for (const std::string& state : states)
    for (const std::string& name : source.names())
      if (source.has_state(state, name))
        items.push_back({state, name, source.state_shape(state, name), state == "parameters" ? type : DType::f32});
  return items;
}

struct Total {
  std::size_t done = 0, all = 0;  // bytes as fp32
  explicit Total(const std::vector<Item>& items) {
    for (const Item& item : items) all += numel(item.shape) * sizeof(float);
  }
  std::size_t largest_piece() const { return std::min(piece_elements, all / sizeof(float)); }
};

/// Calls handle(range) for consecutive pieces of a tensor, and reports.
template <class Handle>
void in_pieces(const Item& item, Total& total, const ByteProgress& progress, Handle&& handle) {
  for (std::size_t at = 0; at < numel(item.shape); at += piece_elements) {
    const Range range{at, std::min(numel(item.shape), at + piece_elements)};
    handle(range);
    total.done += range.size() * sizeof(float);
    if (progress) progress(total.done, total.all);
  }
}

/// The result while it is made: OUT.tmp/model, a file or a folder of them, whose items say where their bytes go.
struct Result {
  fs::path model;
  std::vector<std::string> files;  // below `model`; of one HDF5 file ""
  std::vector<Item> items;
  fs::path path(std::size_t file) const { return files[file].empty() ? model : model / files[file]; }
};

void write_at_once(const fs::path& path, h5::Output::Open open, std::string_view text) {
  const auto output = std::make_shared<h5::Output>(path.string(), open);
  output->write(0, text.data(), text.size());
  output->finish();
}

/// All but the numbers. The signature at the start is left out until those are there, so that nothing takes it for a file.
void lay_out_hdf5(const CheckpointReader& source, const std::vector<std::string>& states, Result& result) {
  result.files = {""};
  h5::File file = h5::File::create(result.model);
  file.write_text("format", stored::model_kind);
  file.write_integer("format_version", stored::version);
  file.write_text("version", source.header().version);
  stored::write_progress(file, source.header().progress);
  file.write_text("config", config_to_json(source.config()).dump(2));
  stored::write_states(file, states);
  if (states.size() > 1) file.write_text("optimizer", source.header().optimizer);
  for (Item& item : result.items) item.offset = file.reserve_dataset(item.whole_name(), item.shape, item.type);
  file.close();
  write_at_once(result.model, h5::Output::Open::existing, std::string(h5_signature.size(), '\0'));
}

/// model.safetensors, and optimizer.safetensors, or several of each; all are shorter than they say until the last number is
/// there.
void lay_out_safetensors(const CheckpointReader& source, std::size_t max_shard_bytes, Result& result) {
  fs::create_directory(result.model);
  for (const bool of_optimizer : {false, true}) {
    std::vector<std::vector<Item*>> files;
    std::size_t bytes = 0;  // of the last
    for (Item& item : result.items) {
      if ((item.state != "parameters") != of_optimizer) continue;
      if (files.empty() || (max_shard_bytes > 0 && bytes > 0 && bytes + item.bytes() > max_shard_bytes))
        files.emplace_back(), bytes = 0;
      files.back().push_back(&item);
      bytes += item.bytes();
    }
    const std::string name = of_optimizer ? "optimizer" : "model";
    for (std::size_t f = 0; f < files.size(); ++f) {
      std::vector<std::pair<std::string, Shape>> tensors;
      for (const Item* item : files[f]) tensors.emplace_back(item->whole_name(), item->shape);
      std::map<std::string, std::string> metadata;
      const Progress& trained = source.header().progress;
      if (of_optimizer)
        metadata = {{"optimizer", source.header().optimizer},
                    {"step", std::to_string(trained.update - trained.optimizer_began)}};
      const std::string header = safetensors_header(tensors, files[f].front()->type, metadata);
      std::uint64_t offset = header.size();
      for (Item* item : files[f]) {
        item->file = result.files.size();
        item->offset = offset;
        offset += item->bytes();
      }
      result.files.push_back(files.size() == 1 ? name + ".safetensors"
                                               : format("{}-{:05}-of-{:05}.safetensors", name, f + 1, files.size()));
      write_at_once(result.path(result.files.size() - 1), h5::Output::Open::create, header);
    }
  }
}

// --- the journal ---

/// The checksum of what lies between the items in the first `bytes` of a file: headers and HDF5's metadata.
std::string sum_between_items(const Result& result, std::size_t f, std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> items;
  for (const Item& item : result.items)
    if (item.file == f) items.emplace_back(item.offset, item.offset + item.bytes());
  std::sort(items.begin(), items.end());
  items.emplace_back(bytes, bytes);
  const auto output = std::make_shared<h5::Output>(result.path(f).string(), h5::Output::Open::existing);
  std::string between;
  std::uint64_t at = 0;
  for (const auto& [begin, end] : items) {
    if (begin > at) {
      const std::size_t had = between.size();
      between.resize(had + (begin - at));
      output->read(at, between.data() + had, begin - at);
    }
    at = end;
  }
  return checksum_text(checksum(between.data(), between.size()));
}

/// OUT.tmp/journal: a line of JSON, which says what is made, where each item lies and what is between, then the checksum of
/// each piece, a line of fixed length each.
class Journal {
 public:
  /// Of an earlier call that made the same, or null.
  static std::unique_ptr<Journal> find(const fs::path& path, const json& identity, Result& result) {
    if (!fs::is_regular_file(path)) return nullptr;
    const std::string text = read_text_file(path);
    const std::size_t line = text.find('\n');
    const json head = json::parse(text.substr(0, line), nullptr, /*allow_exceptions=*/false);
    if (line == std::string::npos || !head.is_object() || head.value("of", json()) != identity) return nullptr;
    result.files.clear();
    for (const json& file : head.at("files")) result.files.push_back(file.at("name"));
    for (std::size_t i = 0; i < result.items.size(); ++i)
      result.items[i].file = head.at("items").at(i).at(0), result.items[i].offset = head.at("items").at(i).at(1);
    for (std::size_t f = 0; f < result.files.size(); ++f) {
      const json& file = head.at("files").at(f);
      if (!fs::is_regular_file(result.path(f)) || sum_between_items(result, f, file.at("bytes")) != file.at("between"))
        return nullptr;
    }
    std::unique_ptr<Journal> journal(new Journal(path, line + 1));
    for (std::size_t at = line + 1; at + line_bytes <= text.size(); at += line_bytes)
      journal->checksums_.push_back(text.substr(at, line_bytes));
    return journal;
  }
  static std::unique_ptr<Journal> begin(const fs::path& path, const json& identity, const Result& result) {
    json items = json::array();
    for (const Item& item : result.items) items.push_back({item.file, item.offset});
    json files = json::array();
    for (std::size_t f = 0; f < result.files.size(); ++f) {
      const std::uint64_t bytes = fs::file_size(result.path(f));
      files.push_back({{"name", result.files[f]}, {"bytes", bytes}, {"between", sum_between_items(result, f, bytes)}});
    }
    const std::string head = json{{"of", identity}, {"files", files}, {"items", items}}.dump() + "\n";
    write_text_file_durably(path, head);
    return std::unique_ptr<Journal>(new Journal(path, head.size()));
  }

  /// Whether an earlier call wrote these bytes as piece `k`.
  bool has(std::size_t k, std::span<const std::byte> bytes) const {
    return k < checksums_.size() && checksums_[k] == line_of(bytes);
  }
  bool has(std::size_t k) const { return k < checksums_.size(); }
  void note(std::size_t k, std::span<const std::byte> bytes) {
    const std::string line = line_of(bytes);
    output_->write(start_ + k * line_bytes, line.data(), line.size());
    output_->check();
  }

 private:
  static constexpr std::size_t line_bytes = 17;
  Journal(const fs::path& path, std::size_t start)
      : output_(std::make_shared<h5::Output>(path.string(), h5::Output::Open::existing)), start_(start) {}
  static std::string line_of(std::span<const std::byte> bytes) {
    return checksum_text(checksum(bytes.data(), bytes.size())) + "\n";
  }

  std::shared_ptr<h5::Output> output_;
  std::size_t start_;
  std::vector<std::string> checksums_;
};

/// What makes two calls the same: every byte of the checkpoint, by its marker, which has the checksums of all files; what is
/// asked for; and this program.
json identity_of(const CheckpointReader& source, const ConsolidateOptions& options) {
  const std::string marker = read_text_file(source.folder() / stored::marker_name);
  return {{"checkpoint", checksum_text(checksum(marker.data(), marker.size()))},
          {"program", version_string()},
          {"hdf5", h5::library_version()},
          {"format", options.format == ConsolidatedFormat::hdf5 ? "hdf5" : "safetensors"},
          {"dtype", name_of(options.type)},
          {"max_shard_bytes", options.max_shard_bytes},
          {"with_optimizer", options.with_optimizer}};
}

// --- the numbers ---

/// The bytes of `values` as `type`, which may be those of `values`; else they are in `narrow`.
std::span<const std::byte> as_stored(DType type, std::span<const float> values, std::vector<std::byte>& narrow) {
  return with_element(type, [&]<class E>() -> std::span<const std::byte> {
    if constexpr (std::is_same_v<E, float>) {
      return std::as_bytes(values);
    } else {
      narrow.resize(values.size() * sizeof(E));
      auto* to = reinterpret_cast<E*>(narrow.data());
      for (const float value : values) *to++ = E(value);
      return narrow;
    }
  });
}

void require_fp16(std::span<const float> values, const std::string& name) {
  constexpr float beyond = 65520;  // rounds to infinity
  for (const float value : values)
    if (std::isfinite(value) && std::abs(value) >= beyond)
      throw RunError(
          format("{} has an element {}, which fp16 cannot hold (its largest is 65504) use --dtype bf16 or fp32", name, value));
}

/// Returns the bytes that were there already.
std::size_t write_numbers(const CheckpointReader& source, const Result& result, Journal& journal,
                          const ByteProgress& progress) {
  Total total(result.items);
  std::vector<float> piece(total.largest_piece());
  std::vector<std::byte> narrow, there;
  std::size_t k = 0, kept = 0;
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    const auto output = std::make_shared<h5::Output>(result.path(f).string(), h5::Output::Open::existing);
    for (const Item& item : result.items) {
      if (item.file != f) continue;
      in_pieces(item, total, progress, [&](Range range) {
        const std::uint64_t at = item.offset + range.begin * size_of(item.type);
        if (journal.has(k)) {
          there.resize(range.size() * size_of(item.type));
          output->read(at, there.data(), there.size());
          if (journal.has(k, there)) {
            kept += there.size();
            ++k;
            return;
          }
        }
        source.read_state(item.state, item.name, range, piece.data());
        const auto values = std::span(piece).first(range.size());
        if (item.type == DType::f16) require_fp16(values, item.name);
        const std::span<const std::byte> bytes = as_stored(item.type, values, narrow);
        output->write(at, bytes.data(), bytes.size());
        output->check();
        journal.note(k++, bytes);
      });
    }
    output->finish();
  }
  return kept;
}

// --- what transformers needs beside the numbers ---

/// The index of several files, if there are.
void write_file_index(const Result& result, const std::string& name) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::size_t bytes = 0;
  for (const Item& item : result.items) {
    const std::string& file = result.files[item.file];
    if (!file.starts_with(name + "-")) continue;
    map[item.whole_name()] = file;
    bytes += item.bytes();
  }
  if (map.empty()) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  write_text_file_durably(result.model / (name + ".safetensors.index.json"), index.dump(2) + "\n");
}

/// Files of the folder that the model came from which say how text becomes tokens, and how to generate.
constexpr const char* kept_files[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.model",
                                      "vocab.json",
                                      "vocab.txt",
                                      "merges.txt",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "generation_config.json"};

/// Adds what the folder says of special tokens to `config`, and copies its files.
void take_from_model_folder(const CheckpointReader& source, const fs::path& model, json& config, Consolidated& done) {
  const fs::path folder = source.header().model_folder;
  if (folder.empty()) return;
  const auto copy_by_hand = [&](const std::string& why) {
    done.warnings.push_back(
        format("no tokenizer files were copied from {}, where the model came from ({}): copy those that fit beside config.json",
               folder.string(), why));
  };
  std::error_code error;
  if (!fs::exists(folder / "config.json", error)) return copy_by_hand("it is not there any more");
  json theirs;
  try {
    theirs = json::parse(read_text_file(folder / "config.json"), nullptr, /*allow_exceptions=*/false);
    const std::size_t vocabulary = config_from_json(theirs).vocab_size;
    if (vocabulary != source.config().vocab_size)
      return copy_by_hand(format("its vocabulary is {}, this model's {}", vocabulary, source.config().vocab_size));
  } catch (const UserError& other) {
    return copy_by_hand(other.what());
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (theirs.contains(key)) config[key] = theirs[key];
  for (const char* name : kept_files) {
    if (!fs::is_regular_file(folder / name, error)) continue;
    write_text_file_durably(model / name, read_text_file(folder / name));
    done.copied.push_back(name);
  }
}

void finish_safetensors(const CheckpointReader& source, const Result& result, DType type, Consolidated& done) {
  for (const char* name : {"model", "optimizer"}) write_file_index(result, name);
  json config = config_to_json(source.config());
  // Version 5 of transformers reads the first, older ones the second; without ids they would take those of GPT-2's vocabulary.
  config["dtype"] = config["torch_dtype"] = type == DType::f32 ? "float32" : type == DType::bf16 ? "bfloat16" : "float16";
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  take_from_model_folder(source, result.model, config, done);
  write_text_file_durably(result.model / "config.json", config.dump(2) + "\n");
  sync_folder(result.model);
}

void require_absent(const fs::path& target) {
  if (fs::exists(target))
    throw UserError(format("{} exists (it is not overwritten) remove it, or choose another name", target.string()));
}

Consolidated write_result(const CheckpointReader& source, const fs::path& target, const fs::path& work,
                          const ConsolidateOptions& options, const ByteProgress& progress) {
  const std::vector<std::string> states = consolidated_states(source, options);
  Result result = {work / "model", {}, items_of(source, states, options.type)};
  const json identity = identity_of(source, options);
  const fs::path journal_path = work / "journal";
  std::unique_ptr<Journal> journal = Journal::find(journal_path, identity, result);
  if (!journal) {
    fs::remove_all(journal_path);
    fs::remove_all(result.model);
    result.files.clear();
    std::size_t bytes = 0;
    for (const Item& item : result.items) bytes += item.bytes();
    require_free_space(work, bytes);
    if (options.format == ConsolidatedFormat::hdf5)
      lay_out_hdf5(source, states, result);
    else
      lay_out_safetensors(source, options.max_shard_bytes, result);
    journal = Journal::begin(journal_path, identity, result);
  }
  Consolidated done;
  done.kept_bytes = write_numbers(source, result, *journal, progress);
  if (options.format == ConsolidatedFormat::hdf5)
    write_at_once(result.model, h5::Output::Open::existing, h5_signature);
  else
    finish_safetensors(source, result, options.type, done);
  rename_durably(result.model, target);
  return done;
}

RunError could_not_write(const fs::path& target, const fs::path& work, const std::exception& error) {
  return RunError(format(
      "{} could not be written ({}) free some space or see to the disk, and start again, which goes on with what is in {}; or "
      "remove that, and choose another place",
      target.string(), error.what(), work.string()));
}

class ConsolidatedFile final : public TensorSource {
 public:
  explicit ConsolidatedFile(const fs::path& path) : path_(path), file_(h5::File::open(path)) {
    try {
      stored::check_kind(file_, path.string(), stored::model_kind);
      const auto config = nlohmann::json::parse(file_.read_text("config"), nullptr, /*allow_exceptions=*/false);
      if (config.is_discarded())
        throw RunError(format("{} is damaged (its configuration is not JSON) consolidate again", path.string()));
      config_ = config_from_json(config);
      config_.validate();
      if (file_.has_attribute("states")) states_ = stored::read_states(file_);
    } catch (const CallError& error) {
      damaged(error);
    }
  }

  const TransformerConfig& config() const override { return config_; }
  std::vector<std::string> names() const override { return file_.dataset_names("/"); }
  bool has(const std::string& name) const override { return has_state("parameters", name); }
  Shape shape(const std::string& name) const override { return state_shape("parameters", name); }
  void read(const std::string& name, Range range, float* out) const override { read_state("parameters", name, range, out); }
  const std::vector<std::string>& states() const override { return states_; }
  bool has_state(const std::string& state, const std::string& name) const override {
    return file_.has(stored::whole_name(state, name));
  }
  Shape state_shape(const std::string& state, const std::string& name) const override { return find(state, name).shape(); }
  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const h5::Dataset dataset = find(state, name);
    try {
      dataset.read(range, out);
    } catch (const CallError& error) {
      damaged(error);
    }
    bytes_read_ += range.size() * sizeof(float);
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override { return format("consolidated file {}", path_.string()); }

 private:
  [[noreturn]] void damaged(const CallError& error) const {
    throw RunError(format("{} is damaged ({}) consolidate again, or copy it again", path_.string(), error.what()));
  }
  h5::Dataset find(const std::string& state, const std::string& name) const {
    if (!has_state(state, name))
      throw UserError(format("{} has no tensor {} (its model has none of that name) fsdp-inspect lists those it has",
                             path_.string(), stored::whole_name(state, name)));
    return file_.dataset(stored::whole_name(state, name));
  }

  fs::path path_;
  h5::File file_;
  TransformerConfig config_;
  std::vector<std::string> states_ = {"parameters"};
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

}  // namespace

std::vector<std::string> consolidated_states(const CheckpointReader& source, const ConsolidateOptions& options) {
  if (!options.with_optimizer) return {"parameters"};
  if (source.states().size() < 2)
    throw UserError(format("{} has no state of an optimizer (--optimizer {} kept none) leave out --with-optimizer",
                           source.description(), source.header().optimizer));
  return source.states();
}

Consolidated consolidate(const CheckpointReader& source, const fs::path& out, const ConsolidateOptions& options,
                         const ByteProgress& progress) {
  const fs::path target = out.has_filename() ? out : out.parent_path();  // without a final slash
  require_absent(target);
  fs::path work = target;
  work += ".tmp";
  try {
    if (target.has_parent_path()) fs::create_directories(target.parent_path());
    if (fs::exists(work) && !fs::is_directory(work)) fs::remove(work);
    Consolidated done;
    {
      const SaveLock lock(work, /*patience_s=*/0);
      require_absent(target);  // another process may just have made it
      done = write_result(source, target, work, options, progress);
    }
    fs::remove_all(work);
    return done;
  } catch (const CallError& error) {
    throw could_not_write(target, work, error);
  } catch (const fs::filesystem_error& error) {
    throw could_not_write(target, work, error);
  }
}

void compare_sources(const TensorSource& expected, const TensorSource& found, DType type, const ByteProgress& progress,
                     const std::vector<std::string>& states) {
  const std::vector<Item> items = items_of(expected, states, type);
  Total total(items);
  std::vector<float> a(total.largest_piece()), b(a.size());
  const auto differ = [&](const std::string& name, const std::string& how) {
    throw RunError(
        format("{} of {} differs from that of {} ({}) make it again", name, found.description(), expected.description(), how));
  };
  for (const Item& item : items) {
    const std::string what = item.whole_name();
    if (!found.has_state(item.state, item.name)) differ(what, "it is not there");
    if (const Shape shape = found.state_shape(item.state, item.name); shape != item.shape)
      differ(what, format("its shape is {}, not {}", to_string(shape), to_string(item.shape)));
    in_pieces(item, total, progress, [&](Range range) {
      expected.read_state(item.state, item.name, range, a.data());
      round_values(item.type, std::span(a).first(range.size()));
      found.read_state(item.state, item.name, range, b.data());
      if (std::memcmp(a.data(), b.data(), range.size() * sizeof(float)) == 0) return;
      std::size_t i = 0;
      while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
      differ(what, format("element {} is {}, not {}", range.begin + i, b[i], a[i]));
    });
  }
}

std::unique_ptr<TensorSource> open_consolidated(const fs::path& file) { return std::make_unique<ConsolidatedFile>(file); }

}  // namespace fsdp
