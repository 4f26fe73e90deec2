// Reads parameters and optimizer states by name and range of elements, from any source: a Hugging Face folder, a sharded
// checkpoint, a consolidated file. A rank reads only the ranges that it owns.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/stored_model.hpp"
#include "files/sealed_file.hpp"
#include "nn/config.hpp"
#include "run/shard_state.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// Which weights of a checkpoint are read as its parameters: those that were trained, or their moving average (average_state).
enum class Weights { trained, average };

class CheckpointReader;

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual StoredModel model() const = 0;
  /// The names of all stored tensors.
  virtual std::vector<std::string> names() const = 0;
  /// The states that the source has: parameters_state (the parameters themselves), and optimizer states such as "exp_avg".
  virtual std::vector<std::string> states() const { return {parameters_state}; }
  /// The checkpoint that the tensors come from: this one, or that of the adapters that are merged into a model. Null if none.
  virtual const CheckpointReader* checkpoint() const { return nullptr; }
  /// Returns true if the source has this state of the parameter; only trained parameters have optimizer states.
  virtual bool has_state(const std::string& state, const std::string& name) const = 0;
  /// The shape of a parameter or of its state. A state by row has one column, and a state by column one row. Throws UserError
  /// if there is no such tensor.
  virtual Shape state_shape(const std::string& state, const std::string& name) const = 0;
  /// Reads a range of elements of a parameter's state as fp32; the range counts elements in row-major order. Throws UserError
  /// if the tensor is missing or cut off, and CallError.
  virtual void read_state(const std::string& state, const std::string& name, Range range, float* out) const = 0;
  /// The number of bytes of tensor data read so far through this object.
  virtual std::size_t bytes_read() const = 0;
  /// For messages: "Hugging Face folder models/gpt2", "checkpoint checkpoints/step-00000350 (4 ranks)".
  virtual std::string description() const = 0;
  /// For messages: the file that holds a parameter, or description() if several files may hold it.
  virtual std::string holder_of(const std::string&) const { return description(); }
  /// The files with the model and its tensors, for require_same_files() (engine/same_files.hpp).
  virtual std::vector<std::filesystem::path> files() const { return {}; }
  /// The folder that may have a copy of the tokenizer with which the tensors were trained; empty if there is none.
  virtual std::filesystem::path tokenizer_folder() const { return {}; }
  /// Messages about parts of the files that are not used.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// The configuration of a transformer; throws UserError if the source holds another model.
  TransformerConfig config() const { return model().transformer(description()); }

  // has_state(), state_shape() and read_state() for the parameter itself.
  bool has(const std::string& name) const { return has_state(parameters_state, name); }
  Shape shape(const std::string& name) const { return state_shape(parameters_state, name); }
  void read(const std::string& name, Range range, float* out) const { read_state(parameters_state, name, range, out); }
  /// read_state() for callers that compute with the values: throws UserError, which names the file, if an element of a
  /// parameter is not finite. Optimizer states are not checked.
  void read_to_use(const std::string& state, const std::string& name, Range range, float* out) const;
};

/// Opens `path`, whatever it is: a Hugging Face folder, a step folder, a save folder (then its latest complete step), or a
/// consolidated HDF5 file. Throws UserError, which names what was expected and what was found. A save folder that also contains
/// files of a model, such as config.json, is such an error, since either may be meant. All reads are compared with checksums if
/// the source has any, unless Verify::no. `warnings` receives the names of incomplete steps and the warnings of the source.
/// Only a checkpoint can have Weights::average; for any other source that is an error.
std::unique_ptr<TensorSource> open_tensor_source(const std::filesystem::path& path,
                                                 std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes,
                                                 Weights weights = Weights::trained);

/// Opens a Hugging Face folder: config.json and model.safetensors, or the files that model.safetensors.index.json names.
/// Tensors are in fp32, bf16 or fp16, with or without the prefix "transformer." or "model.". Also reads optimizer.safetensors
/// as consolidate() writes it. If several files hold a tensor, the index decides which copy is read. names() also contains
/// tensors that the model does not have. If the files hold an LM head although the model ties it to the embedding, reading a
/// part of the embedding compares that part with the head, and throws UserError if they differ.
std::unique_ptr<TensorSource> open_hugging_face(const std::filesystem::path& folder, Verify verify = Verify::yes);
/// Opens one HDF5 file with whole parameters, as written by consolidate().
std::unique_ptr<TensorSource> open_consolidated(const std::filesystem::path& file, Verify verify = Verify::yes);
/// Returns true if the path is a file with tensors, or a folder of safetensors, of any program.
bool has_plain_tensors(const std::filesystem::path& path);
/// Opens such a path: an HDF5 file, also one of open_consolidated(), whose datasets are tensors (in groups, with "." for "/" in
/// their names), a safetensors file, or a folder of these. Elements of fp16, bf16, fp32 and fp64 can be read. The model is
/// only the tensors' names and shapes. Throws UserError.
std::unique_ptr<TensorSource> open_plain(const std::filesystem::path& path, Verify verify = Verify::yes);
/// open_plain() for an HDF5 file.
std::unique_ptr<TensorSource> open_plain_hdf5(const std::filesystem::path& file, Verify verify);
/// A rule for names of tensors: `theirs` becomes `ours`. Each has at most one "*", which stands for the same text in both.
struct RenamedTensor {
  std::string theirs, ours;
};
/// The same tensors under other names. The first rule that fits a name is used; other names stay as they are. Throws UserError
/// if a rule fits no tensor or has several "*", or if two tensors become one.
std::unique_ptr<TensorSource> rename_tensors(std::unique_ptr<TensorSource> source, const std::vector<RenamedTensor>& rules);

}  // namespace fsdp
