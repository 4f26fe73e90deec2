// Formats of whole models: a table with one row (ModelFormat) per format. A row has functions that recognize a path of its
// format, open the model, and lay out the files of a new model: which files there are, and the offset of each tensor in them.
// consolidate() writes the tensor data and their checksums for all formats. In docs/extending-format.md a user's program adds a
// row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "checkpoint/tensor_source.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

class CheckpointReader;
struct ConsolidateOptions;
struct Consolidated;

/// A tensor of a model that is being written.
struct WrittenTensor {
  std::string state, name;
  Shape shape;
  DType type;
  std::size_t file = 0;      // index in WrittenModel::files
  std::uint64_t offset = 0;  // of the tensor's first byte in the file; the elements are row-major and little-endian
  /// The name in the file: "transformer.wte.weight" for a parameter, "exp_avg/transformer.wte.weight" for an optimizer state.
  std::string whole_name() const;
  std::size_t bytes() const { return numel(shape) * size_of(type); }
};

/// The files of a model that is being written.
struct WrittenModel {
  std::filesystem::path path;          // a file, or a folder of files
  std::vector<std::string> files;      // relative to `path`; "" if the model is one file
  std::vector<std::uint64_t> bytes;    // the size of each complete file
  std::vector<WrittenTensor> tensors;  // the tensors of one file are in the order of their offsets
  std::filesystem::path path_of(std::size_t file) const;
  /// Makes a file that begins with `head`, and assigns the bytes after `head` to the tensors, one after another.
  void add_file(const std::string& name, const std::string& head, const std::vector<WrittenTensor*>& tensors_of_it);
};

struct ModelFormat {
  std::string_view name;   // the name by which users choose it: "safetensors"
  std::string_view what;   // "a Hugging Face folder", for messages
  std::string_view about;  // describes the files that are written, for the help text
  /// Returns true if an existing path is meant to be a model of this format. If several rows do, the last added one is used.
  bool (*is)(const std::filesystem::path& path);
  /// Throws UserError or DamagedError if the path is not a valid model.
  std::unique_ptr<TensorSource> (*open)(const std::filesystem::path& path, Verify verify);
  /// Throws UserError if the options cannot be used with this format. Null if all options can be used.
  void (*check)(const ConsolidateOptions& options) = nullptr;
  /// Makes all files without tensor data, and sets model.files, model.bytes and the file and offset of each tensor.
  void (*lay_out)(const TensorSource& source, const ConsolidateOptions& options, WrittenModel& model);
  /// Writes the remaining files after all tensor data has been written. May be null.
  void (*finish)(const TensorSource& source, const ConsolidateOptions& options, const WrittenModel& model,
                 Consolidated& done) = nullptr;
  /// Returns true if the format uses this name for a file in the model's folder. Null if the model is one file.
  bool (*is_file)(const std::string& name) = nullptr;
  /// The first bytes of a model that is one file. They are written last, so that an unfinished file is never taken for a model.
  std::string_view signature = {};
  /// True if the format allows checksums after the content of a file (files/sealed_file.hpp); else they are in a separate file.
  bool seal_follows = false;
};

/// The rows of the library: "hdf5" (consolidated_file.cpp) and "safetensors" (hugging_face.cpp).
const ModelFormat& hdf5_format();
const ModelFormat& safetensors_format();
/// All rows, first those of the library.
const std::vector<const ModelFormat*>& model_formats();
/// Adds a row; `format` must live until the program ends. Call this before any other function of the library.
void add_model_format(const ModelFormat& format);

/// Returns a message if an existing path holds a model in a form that this program does not read, such as a GGUF file; empty if
/// it recognizes no such form.
std::optional<std::string> model_of_other_kind(const std::filesystem::path& path);
/// Returns a message if `path` is a file of an adapter (such as LoRA's) or a folder with such files, else nothing. An adapter
/// is no whole model: transformers would apply it to another model.
std::optional<std::string> adapter_in(const std::filesystem::path& path);
/// Returns a message if the folder has files NAME-00001-of-00002.safetensors without their index, else nothing.
std::optional<std::string> shards_without_index(const std::filesystem::path& folder, const std::string& name);

/// Returns true if consolidate() uses this name in some format: for a file of a model, its checksums, or a temporary file.
bool is_model_file(const std::string& name);

}  // namespace fsdp
