// Reads whole parameters by name and element range from any source: a Hugging Face folder, a sharded checkpoint, a consolidated
// file. A rank reads only the ranges that it owns.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/stored_model.hpp"
#include "files/sealed_file.hpp"
#include "fsdp/shard_state.hpp"
#include "nn/config.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual StoredModel model() const = 0;
  /// The names of all stored tensors.
  virtual std::vector<std::string> names() const = 0;
  /// parameters_state, and the optimizer states that the source has, such as "exp_avg".
  virtual std::vector<std::string> states() const { return {parameters_state}; }
  /// Returns true if the source has this state of the parameter; only trained parameters have optimizer states.
  virtual bool has_state(const std::string& state, const std::string& name) const = 0;
  /// The parameter's own shape, with one column or one row for a state by row or by column. Throws UserError if there is no
  /// such tensor.
  virtual Shape state_shape(const std::string& state, const std::string& name) const = 0;
  /// Reads the elements [range) of a parameter's state, flattened in its stored shape, as fp32. Throws UserError (missing,
  /// truncated) or CallError.
  virtual void read_state(const std::string& state, const std::string& name, Range range, float* out) const = 0;
  /// The number of bytes of tensor data read so far through this object.
  virtual std::size_t bytes_read() const = 0;
  /// "Hugging Face folder models/gpt2", "checkpoint checkpoints/step-00000350 (4 ranks)".
  virtual std::string description() const = 0;
  /// The file that holds a parameter, or description(), for messages.
  virtual std::string holder_of(const std::string&) const { return description(); }
  /// One sentence for each part of the files that is not used.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// The configuration of a transformer; throws UserError if the source holds another model.
  TransformerConfig config() const { return model().transformer(description()); }

  // For the parameter itself.
  bool has(const std::string& name) const { return has_state(parameters_state, name); }
  Shape shape(const std::string& name) const { return state_shape(parameters_state, name); }
  void read(const std::string& name, Range range, float* out) const { read_state(parameters_state, name, range, out); }
  /// read_state() for callers that compute with the values: throws UserError, which names the file, if an element of a
  /// parameter is not finite. Optimizer states are not checked.
  void read_to_use(const std::string& state, const std::string& name, Range range, float* out) const;
};

/// Opens `path`, whatever it is: a Hugging Face folder, a step folder, a save folder (its latest complete step; `warnings`
/// names incomplete ones) or a consolidated HDF5 file. Throws UserError, which says what was expected and what was found. Also
/// throws if a save folder contains files of a model, such as config.json, since either may be meant. All reads are compared
/// with checksums if the source has any, unless Verify::no. `warnings` also receives the warnings of the source.
std::unique_ptr<TensorSource> open_tensor_source(const std::filesystem::path& path,
                                                 std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes);

/// Opens a Hugging Face folder: config.json and model.safetensors, or the files that model.safetensors.index.json names.
/// Tensors are in fp32, bf16 or fp16, with or without the prefix "transformer." or "model.". Also reads optimizer.safetensors
/// as consolidate() writes it. If several files hold a tensor, the index says which copy counts. names() also contains tensors
/// that the model does not have. If the files hold a head although the model ties it to the embedding, reading a part of the
/// embedding compares it with the head, and throws UserError if they differ.
std::unique_ptr<TensorSource> open_hugging_face(const std::filesystem::path& folder, Verify verify = Verify::yes);
/// Opens one HDF5 file with whole parameters, as written by consolidate().
std::unique_ptr<TensorSource> open_consolidated(const std::filesystem::path& file, Verify verify = Verify::yes);

}  // namespace fsdp
