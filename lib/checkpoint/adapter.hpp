// Adapters (nn/lora.hpp) in files: in checkpoints of runs that train adapters, and in PEFT's folders (adapter_config.json and
// adapter_model.safetensors). A checkpoint of adapters has a reference to its base model with the checksum of that model's
// values, so that adapters are never applied to another model unnoticed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_format.hpp"
#include "checkpoint/tensor_source.hpp"
#include "nn/lora.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

/// The checksum of a model's parameters as fp32 values. It does not depend on the format or the dtype of the files. It is a sum
/// modulo 2^64 of `parts` numbers, which several ranks can compute: this function returns number `part`.
std::uint64_t content_sum(const TensorSource& model, int part = 0, int parts = 1);
/// The whole checksum, of which each rank computes a part. Collective over world.
std::uint64_t content_sum(const TensorSource& model, Group& world);

struct Adapter {
  Lora lora;
  std::unique_ptr<TensorSource> tensors;  // with the names of the model's parameters
  std::optional<std::uint64_t> base_sum;  // content_sum() of the base model; empty: unknown
  /// The type of the base model in training: "int8" or "nf4", or "none" if it was not quantized; empty: unknown.
  std::string base_type = {};

  /// `wanted` or, if that is empty, the type of the base model in training.
  std::optional<kernels::Quantization> base_type_or(std::optional<kernels::Quantization> wanted) const;
  /// Adds a warning if the type of the base model in training is known, and is not `used`.
  void compare_base_type(std::optional<kernels::Quantization> used, std::vector<std::string>* warnings) const;
};
/// Opens PEFT's folder, or a step or save folder with a checkpoint of adapters. Throws UserError if its adapters do not fit the
/// model `base`, if the tensors of PEFT's folder are not those of the modules that its adapter_config.json describes, or if it
/// needs something of PEFT that this program does not have. `warnings` may be null.
/// Weights::average: the adapters' moving average, which only a checkpoint can have.
Adapter open_adapter(const std::filesystem::path& path, const TransformerConfig& base,
                     std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes,
                     Weights weights = Weights::trained);
/// Throws UserError if the base model of `adapters` had another content_sum(). `trained_on`: the recorded one; empty: unknown.
void require_base(const TensorSource& adapters, std::optional<std::uint64_t> trained_on, std::uint64_t base_sum,
                  const std::string& base);
/// The path of the base model of a checkpoint of adapters: `given` or, if that is empty, the recorded one. Throws UserError if
/// it does not exist.
std::filesystem::path base_of(const CheckpointReader& adapters, const std::filesystem::path& given = {});
/// The path of a base model that checkpoints of adapters record, if it was opened by `path`: absolute, and of one step.
std::string path_to_record(const TensorSource& base, const std::filesystem::path& path);

/// Opens a whole model: as open_tensor_source(), but the adapters of a checkpoint of adapters are merged into the weights of
/// its base model (W + scale * B A, in fp32) while they are read. If the base model was quantized in training, W is its
/// expanded matrix. With Verify::yes, first reads all of the base model, and compares its checksum.
std::unique_ptr<TensorSource> open_model(const std::filesystem::path& model, std::vector<std::string>* warnings = nullptr,
                                         Verify verify = Verify::yes);
/// Opens a model as it was trained: as open_model(), but the source is a model with adapters, whose base model has the type of
/// Adapter::base_type_or(`base_type`). `adapter` may be empty; the adapters are then those of `model`, if it has some.
/// `weights` selects those of the adapters or, if there are none, of the model.
std::unique_ptr<TensorSource> open_adapted_model(const std::filesystem::path& model, const std::filesystem::path& adapter,
                                                 std::optional<kernels::Quantization> base_type,
                                                 std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes,
                                                 Weights weights = Weights::trained);
/// Returns the model with the adapters of a checkpoint, merged into its weights or as in open_adapted_model(), with the
/// parameters only. It owns the checkpoint. `base`: the base model's folder; empty: as recorded in the checkpoint.
std::unique_ptr<TensorSource> join_adapters(std::unique_ptr<CheckpointReader> adapters, std::filesystem::path base,
                                            std::optional<kernels::Quantization> base_type, bool merge,
                                            std::vector<std::string>* warnings, Verify verify);

/// The format that consolidate() writes for a checkpoint of adapters. It is not in model_formats(): an adapter is no model.
const ModelFormat& peft_format();

}  // namespace fsdp
