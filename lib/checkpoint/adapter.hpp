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
};
/// Opens PEFT's folder, or a step or save folder with a checkpoint of adapters. Throws UserError if its adapters do not fit the
/// model `base`, or if it needs something of PEFT that this program does not have. `warnings` may be null.
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

/// Opens a whole model: as open_tensor_source(), but adapters are merged into the weights (W + scale * B A, in fp32) while they
/// are read. `adapter` may be empty; the adapters are then those of `model`, if that is a checkpoint of adapters, whose base
/// model is opened, too. With Verify::yes, first reads all of a base model whose checksum is known, and compares it. `weights`
/// selects those of the adapters or, if there are none, of the model.
std::unique_ptr<TensorSource> open_model(const std::filesystem::path& model, const std::filesystem::path& adapter = {},
                                         std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes,
                                         Weights weights = Weights::trained);
/// Returns a checkpoint of adapters as one of a whole model, with the parameters only. `base`: the base model's folder; empty:
/// as recorded in the checkpoint.
std::unique_ptr<CheckpointReader> merge_adapters(std::unique_ptr<CheckpointReader> adapters, std::filesystem::path base = {},
                                                 std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes);

/// The format that consolidate() writes for a checkpoint of adapters. It is not in model_formats(): an adapter is no model.
const ModelFormat& peft_format();

}  // namespace fsdp
