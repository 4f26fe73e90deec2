// Whole parameters by name and element range, wherever they are stored: a Hugging Face folder, a sharded checkpoint, a
// consolidated file. Whoever loads asks for the ranges that it owns and gets no more.
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
  /// Names of all tensors stored.
  virtual std::vector<std::string> names() const = 0;
  /// parameters_state, and those of the optimizer that are stored beside them: "exp_avg".
  virtual std::vector<std::string> states() const { return {parameters_state}; }
  /// Whether this state of a parameter is there: the optimizer's is for those that were trained.
  virtual bool has_state(const std::string& state, const std::string& name) const = 0;
  /// The parameter's own shape, with one column or row for a state by row or by column. Throws UserError if there is no such
  /// tensor.
  virtual Shape state_shape(const std::string& state, const std::string& name) const = 0;
  /// Elements [range) of a parameter's state, flat in its stored shape, as fp32. Throws UserError (missing, truncated) or
  /// CallError.
  virtual void read_state(const std::string& state, const std::string& name, Range range, float* out) const = 0;
  /// Bytes of tensor data read so far through this object.
  virtual std::size_t bytes_read() const = 0;
  /// "Hugging Face folder models/gpt2", "checkpoint checkpoints/step-00000350 (4 ranks)".
  virtual std::string description() const = 0;
  /// The file that holds a parameter, or description(), for messages.
  virtual std::string holder_of(const std::string&) const { return description(); }
  /// Parts of the files that are not used, a sentence each.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// Of a transformer; throws UserError where the source holds another model.
  TransformerConfig config() const { return model().transformer(description()); }

  // Of the parameter itself.
  bool has(const std::string& name) const { return has_state(parameters_state, name); }
  Shape shape(const std::string& name) const { return state_shape(parameters_state, name); }
  void read(const std::string& name, Range range, float* out) const { read_state(parameters_state, name, range, out); }
  /// read_state() for callers that compute with the values: throws UserError, with the file, if an element of a parameter is
  /// not finite. States of the optimizer are not checked.
  void read_to_use(const std::string& state, const std::string& name, Range range, float* out) const;
};

/// Opens whatever `path` is: a Hugging Face folder, a step folder, a save folder (its latest complete step; incomplete ones are
/// named in `warnings`) or a consolidated HDF5 file. Throws UserError that says what was expected and found, also where a save
/// folder holds the files of a model, too, config.json for example: it is not guessed which of them is meant. What is read is
/// compared with checksums wherever there are some, unless Verify::no. `warnings` receives those of the source, too.
std::unique_ptr<TensorSource> open_tensor_source(const std::filesystem::path& path,
                                                 std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes);

/// A Hugging Face folder: config.json and model.safetensors, or the files that model.safetensors.index.json names, with tensors
/// in fp32, bf16 or fp16, with or without their "transformer." or "model."; optimizer.safetensors as consolidate() writes it.
/// If several files hold a tensor, the index says which copy counts. The source's names include tensors that the model does
/// not have. If the files hold a head although the model ties it to the embedding, reading a part of the embedding compares it
/// with the head, and throws UserError if they differ.
std::unique_ptr<TensorSource> open_hugging_face(const std::filesystem::path& folder, Verify verify = Verify::yes);
/// Opens one HDF5 file with whole parameters, as consolidate() writes it.
std::unique_ptr<TensorSource> open_consolidated(const std::filesystem::path& file, Verify verify = Verify::yes);

}  // namespace fsdp
