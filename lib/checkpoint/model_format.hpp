// Formats of whole models: a table with a row for each. A row says which paths are of its format and how they are read, and
// which files a new one has, and where in them the numbers of each tensor lie. consolidate() writes those numbers, whatever the
// format, with their checksums. docs/extending-format.md adds a row from outside.
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

/// A tensor of a model that is made.
struct WrittenTensor {
  std::string state, name;
  Shape shape;
  DType type;
  std::size_t file = 0;      // index
  std::uint64_t offset = 0;  // of its first byte: the elements lie there in order, little-endian, without gaps
  /// "transformer.wte.weight", "exp_avg/transformer.wte.weight"
  std::string whole_name() const;
  std::size_t bytes() const { return numel(shape) * size_of(type); }
};

/// The files of a model while it is made.
struct WrittenModel {
  std::filesystem::path path;          // a file, or a folder of files
  std::vector<std::string> files;      // below `path`; of a model that is one file: ""
  std::vector<std::uint64_t> bytes;    // of each file, once all numbers are in it
  std::vector<WrittenTensor> tensors;  // those of a file in the order of their bytes
  std::filesystem::path path_of(std::size_t file) const;
  /// Makes a file that begins with `head`, and puts the tensors behind it, one after another.
  void add_file(const std::string& name, const std::string& head, const std::vector<WrittenTensor*>& tensors_of_it);
};

struct ModelFormat {
  std::string_view name;   // "safetensors", as users choose it
  std::string_view what;   // "a Hugging Face folder", for messages
  std::string_view about;  // what is made, for the help
  /// Whether a path, which is there, is meant to be such a model. Rows are asked in turn, those that were added last first.
  bool (*is)(const std::filesystem::path& path);
  /// Throws UserError or DamagedError where it is not what it should be.
  std::unique_ptr<TensorSource> (*open)(const std::filesystem::path& path, Verify verify);
  /// Throws UserError if no such model can be made. Null: any can.
  void (*check)(const ConsolidateOptions& options) = nullptr;
  /// Makes all files with all but the numbers, and says where those go.
  void (*lay_out)(const CheckpointReader& source, const ConsolidateOptions& options, WrittenModel& model);
  /// Writes what makes a model of it, once all numbers are there. May be null.
  void (*finish)(const CheckpointReader& source, const ConsolidateOptions& options, const WrittenModel& model,
                 Consolidated& done) = nullptr;
  /// Whether it gives a file in the model's folder this name. Null: the model is one file.
  bool (*is_file)(const std::string& name) = nullptr;
  /// What a model that is one file begins with. It is written last, so that nothing takes what is not finished for a model.
  std::string_view signature = {};
  /// Whether checksums may follow what a file holds (files/sealed_file.hpp); else they are in a file beside it.
  bool seal_follows = false;
};

/// The rows of the library: "hdf5" (consolidated_file.cpp) and "safetensors" (hugging_face.cpp).
const ModelFormat& hdf5_format();
const ModelFormat& safetensors_format();
/// All rows, those of the library first.
const std::vector<const ModelFormat*>& model_formats();
/// Adds a row; `format` must live as long as the program. Call it before anything else.
void add_model_format(const ModelFormat& format);

/// A message if an existing path holds a model in a form that is not read, such as a GGUF file; nothing if no such form is
/// recognised.
std::optional<std::string> model_of_other_kind(const std::filesystem::path& path);
/// The same only for a folder (or file) with an adapter such as LoRA's, which transformers would apply to the model.
std::optional<std::string> adapter_in(const std::filesystem::path& path);
/// The same only for files NAME-00001-of-00002.safetensors in a folder without their index.
std::optional<std::string> shards_without_index(const std::filesystem::path& folder, const std::string& name);

/// Whether consolidate() may give a file of a model this name, in any format, finished or not.
bool is_model_file(const std::string& name);

}  // namespace fsdp
