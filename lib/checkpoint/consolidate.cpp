// One file, or one Hugging Face folder, from a sharded checkpoint: tensors stream through one buffer of fixed size.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <span>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/stored.hpp"
#include "kernels/element.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_elements = std::size_t{4} << 20;  // 16 MiB

struct Total {
  std::size_t done = 0, all = 0;
  explicit Total(const TensorSource& source) {
    for (const std::string& name : source.names()) all += numel(source.shape(name)) * sizeof(float);
  }
};

/// Calls handle(range) for consecutive pieces of a tensor of `elements`, and reports.
template <class Handle>
void in_pieces(std::size_t elements, Total& total, const ByteProgress& progress, Handle&& handle) {
  for (std::size_t at = 0; at < elements; at += piece_elements) {
    const Range range{at, std::min(elements, at + piece_elements)};
    handle(range);
    total.done += range.size() * sizeof(float);
    if (progress) progress(total.done, total.all);
  }
}

void write_hdf5(const CheckpointReader& source, const fs::path& path, DType type, const ByteProgress& progress) {
  Total total(source);
  std::vector<float> piece(std::min(piece_elements, total.all / sizeof(float)));
  h5::File file = h5::File::create(path);
  file.write_text("format", stored::model_kind);
  file.write_integer("format_version", stored::version);
  file.write_text("version", source.header().version);
  stored::write_progress(file, source.header().progress);
  file.write_text("config", config_to_json(source.config()).dump(2));
  for (const std::string& name : source.names()) {
    const Shape shape = source.shape(name);
    h5::Dataset dataset = file.create_dataset(name, shape, type);
    in_pieces(numel(shape), total, progress, [&](Range range) {
      source.read(name, range, piece.data());
      round_values(type, std::span(piece).first(range.size()));  // HDF5's own rounding is not to nearest even
      dataset.write(range, piece.data());
    });
  }
  file.close();
}

using NamedShapes = std::vector<std::pair<std::string, Shape>>;

/// The tensors of each file, in order.
std::vector<NamedShapes> cut_into_files(const CheckpointReader& source, const ConsolidateOptions& options) {
  std::vector<NamedShapes> files(1);
  std::size_t bytes = 0;  // of the last
  for (const std::string& name : source.names()) {
    const Shape shape = source.shape(name);
    const std::size_t mine = numel(shape) * size_of(options.type);
    if (options.max_shard_bytes > 0 && bytes > 0 && bytes + mine > options.max_shard_bytes) files.emplace_back(), bytes = 0;
    files.back().emplace_back(name, shape);
    bytes += mine;
  }
  return files;
}

void write_safetensors(const CheckpointReader& source, const fs::path& folder, const ConsolidateOptions& options,
                       const ByteProgress& progress) {
  Total total(source);
  std::vector<float> piece(std::min(piece_elements, total.all / sizeof(float)));
  fs::create_directory(folder);
  const std::vector<NamedShapes> files = cut_into_files(source, options);
  nlohmann::ordered_json index = {{"metadata", {{"total_size", total.all / sizeof(float) * size_of(options.type)}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string file =
        files.size() == 1 ? "model.safetensors" : format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
    SafetensorsWriter writer(folder / file, files[f], options.type);
    for (const auto& [name, shape] : files[f]) {
      in_pieces(numel(shape), total, progress, [&](Range range) {
        source.read(name, range, piece.data());
        writer.append(piece.data(), range.size());
      });
      index["weight_map"][name] = file;
    }
    writer.finish();
  }
  if (files.size() > 1) write_text_file_durably(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  nlohmann::json config = config_to_json(source.config());
  config["torch_dtype"] = options.type == DType::f32 ? "float32" : options.type == DType::bf16 ? "bfloat16" : "float16";
  write_text_file_durably(folder / "config.json", config.dump(2) + "\n");
  sync_folder(folder);
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
    } catch (const CallError& error) {
      damaged(error);
    }
  }

  const TransformerConfig& config() const override { return config_; }
  std::vector<std::string> names() const override { return file_.dataset_names("/"); }
  bool has(const std::string& name) const override { return file_.has(name); }
  Shape shape(const std::string& name) const override { return find(name).shape(); }
  void read(const std::string& name, Range range, float* out) const override {
    const h5::Dataset dataset = find(name);
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
  h5::Dataset find(const std::string& name) const {
    if (!file_.has(name))
      throw UserError(format("{} has no tensor {} (its model is another one) check the path", path_.string(), name));
    return file_.dataset(name);
  }

  fs::path path_;
  h5::File file_;
  TransformerConfig config_;
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

}  // namespace

void consolidate(const CheckpointReader& source, const fs::path& out, const ConsolidateOptions& options,
                 const ByteProgress& progress) {
  const fs::path target = out.has_filename() ? out : out.parent_path();  // without a final slash
  if (fs::exists(target))
    throw UserError(format("{} exists (it is not overwritten) remove it, or choose another name", target.string()));
  fs::path temporary = target;
  temporary += ".tmp";
  try {
    const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
    fs::create_directories(parent);
    fs::remove_all(temporary);
    require_free_space(parent, Total(source).all / sizeof(float) * size_of(options.type));
    if (options.format == ConsolidatedFormat::hdf5)
      write_hdf5(source, temporary, options.type, progress);
    else
      write_safetensors(source, temporary, options, progress);
    rename_durably(temporary, target);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    if (dynamic_cast<const CallError*>(&error) || dynamic_cast<const fs::filesystem_error*>(&error))
      throw RunError(
          format("{} could not be written ({}) free some space, or choose another place", target.string(), error.what()));
    throw;
  }
}

void compare_sources(const TensorSource& expected, const TensorSource& found, DType type, const ByteProgress& progress) {
  Total total(expected);
  std::vector<float> a(std::min(piece_elements, total.all / sizeof(float))), b(a.size());
  const auto differ = [&](const std::string& name, const std::string& how) {
    throw RunError(
        format("{} of {} differs from that of {} ({}) make it again", name, found.description(), expected.description(), how));
  };
  for (const std::string& name : expected.names()) {
    const Shape shape = expected.shape(name);
    if (!found.has(name)) differ(name, "it is not there");
    if (found.shape(name) != shape)
      differ(name, format("its shape is {}, not {}", to_string(found.shape(name)), to_string(shape)));
    in_pieces(numel(shape), total, progress, [&](Range range) {
      expected.read(name, range, a.data());
      round_values(type, std::span(a).first(range.size()));
      found.read(name, range, b.data());
      if (std::memcmp(a.data(), b.data(), range.size() * sizeof(float)) == 0) return;
      std::size_t i = 0;
      while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
      differ(name, format("element {} is {}, not {}", range.begin + i, b[i], a[i]));
    });
  }
}

std::unique_ptr<TensorSource> open_consolidated(const fs::path& file) { return std::make_unique<ConsolidatedFile>(file); }

}  // namespace fsdp
