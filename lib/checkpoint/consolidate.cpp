// Makes one file, or one Hugging Face folder, of a sharded checkpoint. First come the files with everything but the numbers, at
// their full size in HDF5; then the numbers stream, through one buffer of fixed size, to where they belong, and the checksums
// of all blocks come last. A journal (journal.hpp) has the checksum of every piece that was written, so that a run that was
// killed is gone on with: what is on the disk is compared with it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/hugging_face_files.hpp"
#include "checkpoint/journal.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
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

/// The result while it is made: a file, or a folder of them, whose items say where their bytes go.
struct Result {
  fs::path model;
  std::vector<std::string> files;    // below `model`; of one HDF5 file ""
  std::vector<std::uint64_t> bytes;  // of each file, once all numbers are in it
  std::vector<Item> items;           // of a file, in the order of their bytes
  fs::path path(std::size_t file) const { return files[file].empty() ? model : model / files[file]; }
};

void write_at_once(const fs::path& path, OutputFile::Open open, std::string_view text) {
  OutputFile output(path, open);
  output.write(0, text.data(), text.size());
  output.finish();
}

/// All but the numbers. The signature at the start is left out until those are there, so that nothing takes it for a file.
void lay_out_hdf5(const CheckpointReader& source, const std::vector<std::string>& states, Result& result) {
  result.files = {""};
  h5::File file = h5::File::create(result.model);
  file.write_text("format", stored::model_kind);
  file.write_text("checksums", "xxh3_64");  // what follows the HDF5 part of the file; without it something is missing
  file.write_integer("format_version", stored::version);
  file.write_text("version", source.header().version);
  stored::write_progress(file, source.header().progress);
  file.write_text("config", json_text(config_to_json(source.config()), 2));
  stored::write_states(file, states);
  if (states.size() > 1) file.write_text("optimizer", source.header().optimizer);
  for (Item& item : result.items) item.offset = file.reserve_dataset(item.whole_name(), item.shape, item.type);
  file.close();
  std::sort(result.items.begin(), result.items.end(), [](const Item& a, const Item& b) { return a.offset < b.offset; });
  result.bytes = {size_of_file(result.model).value()};
  write_at_once(result.model, OutputFile::Open::existing, std::string(h5_signature.size(), '\0'));
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
      result.bytes.push_back(offset);
      write_at_once(result.path(result.files.size() - 1), OutputFile::Open::create, header);
    }
  }
}

/// All files, with everything but the numbers.
Result lay_out(const CheckpointReader& source, const std::vector<std::string>& states, const ConsolidateOptions& options,
               const fs::path& model) {
  Result result = {model, {}, {}, items_of(source, states, options.type)};
  if (options.format == ConsolidatedFormat::hdf5)
    lay_out_hdf5(source, states, result);
  else
    lay_out_safetensors(source, options.max_shard_bytes, result);
  return result;
}

/// Whether `model`, which an earlier call began, has the files of `result` with the same bytes wherever no numbers go. Throws
/// CallError if the disk cannot say.
bool was_laid_out(const Result& result, const fs::path& model) {
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    const fs::path path = result.files[f].empty() ? model : model / result.files[f];
    const InputFile expected(result.path(f));
    const auto size = size_of_file(path);
    if (!size || *size < expected.size()) return false;
    const InputFile found(path);
    std::vector<char> a, b;
    const auto same_up_to = [&](std::uint64_t begin, std::uint64_t end) {
      a.resize(end - begin), b.resize(end - begin);
      expected.read(begin, a.data(), a.size());
      found.read(begin, b.data(), b.size());
      return a == b;
    };
    std::uint64_t at = 0;
    for (const Item& item : result.items) {
      if (item.file != f) continue;
      if (item.offset > at && !same_up_to(at, item.offset)) return false;
      at = item.offset + item.bytes();
    }
    if (at < expected.size() && !same_up_to(at, expected.size())) return false;
  }
  return true;
}

// --- what makes two calls the same ---

/// What makes two calls the same: every byte of the checkpoint, by its marker, which has the checksums of all files; what is
/// asked for; and this program.
nlohmann::ordered_json identity_of(const CheckpointReader& source, const ConsolidateOptions& options) {
  const std::string marker = read_text_file(source.folder() / stored::marker_name);
  return {{"checkpoint", checksum_text(checksum(marker.data(), marker.size()))},
          {"verified", source.verifies()},
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
      throw RunError(format(
          "{} has an element {}, which fp16 cannot hold (its largest is 65504) choose bf16 or fp32 with `type of the result`",
          name, value));
}

/// Returns the bytes that were there already.
std::size_t write_numbers(const CheckpointReader& source, const Result& result, Journal& journal,
                          const ByteProgress& progress) {
  Total total(result.items);
  std::vector<float> piece(total.largest_piece());
  std::vector<std::byte> narrow, there;
  std::size_t k = 0, kept = 0;
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    OutputFile output(result.path(f), OutputFile::Open::existing);
    if (output.size() > result.bytes[f]) output.resize(result.bytes[f]);  // an earlier call had come to the checksums
    const bool is_hdf5 = result.files[f].empty();
    Sealer sealer(output, result.bytes[f]);
    if (is_hdf5) sealer.add(0, h5_signature.data(), h5_signature.size());  // as it will be
    for (const Item& item : result.items) {
      if (item.file != f) continue;
      in_pieces(item, total, progress, [&](Range range) {
        const std::uint64_t at = item.offset + range.begin * size_of(item.type), size = range.size() * size_of(item.type);
        if (journal.has(k) && at + size <= output.size()) {
          there.resize(size);
          output.read(at, there.data(), there.size());
          if (journal.has(k, there)) {
            sealer.add(at, there.data(), there.size());
            kept += there.size();
            ++k;
            return;
          }
        }
        source.read_state(item.state, item.name, range, piece.data());
        const auto values = std::span(piece).first(range.size());
        if (item.type == DType::f16) require_fp16(values, item.name);
        const std::span<const std::byte> bytes = as_stored(item.type, values, narrow);
        output.write(at, bytes.data(), bytes.size());
        sealer.add(at, bytes.data(), bytes.size());
        journal.note(k++, bytes);
      });
    }
    if (is_hdf5) {
      sealer.finish();
    } else {
      write_text_file_durably(seal_of_safetensors(result.path(f)), sealer.trailer());
    }
    output.finish();
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
  write_text_file_durably(result.model / (name + ".safetensors.index.json"), json_text(index, 2) + "\n");
}

constexpr std::size_t longest_kept_file = std::size_t{256} << 20;

/// Adds what the folder says of special tokens to `config`, and copies its files.
void take_from_model_folder(const CheckpointReader& source, const fs::path& model, json& config, Consolidated& done) {
  const fs::path folder = source.header().model_folder;
  if (folder.empty()) return;
  const auto copy_by_hand = [&](const std::string& why) {
    done.warnings.push_back(
        format("no tokenizer files were copied from {}, where the model came from ({}): copy those that fit beside config.json",
               folder.string(), why));
  };
  json theirs;
  try {
    if (kind_of(folder / "config.json") == PathKind::missing) return copy_by_hand("it is not there any more");
    theirs = read_json_file(folder / "config.json");
    const std::size_t vocabulary = config_from_json(theirs).vocab_size;
    if (vocabulary != source.config().vocab_size)
      return copy_by_hand(format("its vocabulary is {}, this model's {}", vocabulary, source.config().vocab_size));
  } catch (const UserError& other) {
    return copy_by_hand(other.what());
  } catch (const CallError& failure) {  // the model's folder may be anywhere
    return copy_by_hand(failure.what());
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (theirs.contains(key)) config[key] = theirs[key];
  for (const char* name : kept_files) {
    if (kind_of(folder / name) != PathKind::file) continue;
    write_text_file_durably(model / name, read_text_file(folder / name, longest_kept_file));
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
  write_text_file_durably(result.model / "config.json", json_text(config, 2) + "\n");
  sync_folder(result.model);
}

void require_absent(const fs::path& target) {
  if (fs::symlink_status(target).type() != fs::file_type::not_found)
    throw UserError(format("{} exists (it is not overwritten) remove it, or choose another name", target.string()));
}

Consolidated write_result(const CheckpointReader& source, const fs::path& target, const WorkFolder& work,
                          const ConsolidateOptions& options, const ByteProgress& progress) {
  const std::vector<std::string> states = consolidated_states(source, options);
  const nlohmann::ordered_json identity = identity_of(source, options);
  Consolidated done;
  Result result;
  std::unique_ptr<Journal> journal = Journal::find(work.journal(), identity);
  if (journal) {
    work.remove(work.layout());
    result = lay_out(source, states, options, work.layout());
    const bool goes_on = was_laid_out(result, work.model());
    work.remove(work.layout());
    if (!goes_on) journal.reset();
  }
  if (!journal) {
    work.clear();
    journal = Journal::begin(work.journal(), identity);
    std::size_t bytes = 0;
    for (const Item& item : items_of(source, states, options.type)) bytes += item.bytes();
    require_free_space(work.journal().parent_path(), bytes);
    result = lay_out(source, states, options, work.model());
  }
  result.model = work.model();
  done.kept_bytes = write_numbers(source, result, *journal, progress);
  if (options.format == ConsolidatedFormat::hdf5)
    write_at_once(result.model, OutputFile::Open::existing, h5_signature);
  else
    finish_safetensors(source, result, options.type, done);
  rename_durably(result.model, target);
  work.clear();
  return done;
}

RunError could_not_write(const fs::path& target, const fs::path& work, const std::exception& error) {
  return RunError(format(
      "{} could not be written ({}) free some space or see to the disk, and start again, which goes on with what is in {}; or "
      "remove that, and choose another place",
      target.string(), error.what(), work.string()));
}

}  // namespace

std::vector<std::string> consolidated_states(const CheckpointReader& source, const ConsolidateOptions& options) {
  if (!options.with_optimizer) return {"parameters"};
  if (source.states().size() < 2)
    throw UserError(format("{} has no state of an optimizer ({} kept none) leave out `states of the optimizer`",
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
    const WorkFolder folder(work);
    const SaveLock lock(work, /*patience_s=*/0);
    require_absent(target);  // another process may just have made it
    return write_result(source, target, folder, options, progress);
  } catch (const CallError& error) {
    throw could_not_write(target, work, error);
  } catch (const fs::filesystem_error& error) {
    if (error.code() == std::errc::permission_denied || error.code() == std::errc::read_only_file_system)
      throw UserError(format("{} cannot be made ({}) choose a place where you may write", target.string(), error.what()));
    throw could_not_write(target, work, error);
  }
}

}  // namespace fsdp
