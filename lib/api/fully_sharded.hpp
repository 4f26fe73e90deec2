// A model whose parameters, gradients and optimizer state are sharded over the ranks of a job: as torch's
// FullyShardedDataParallel, in one object with its optimizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/job.hpp"
#include "api/layer.hpp"

namespace fsdp {

class Model;
struct DeviceTraits;

/// What a model is, before there is any memory of it: layers, or a transformer by name.
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;
  /// For the library: the model, and a text by which ranks notice that they were given different ones.
  virtual std::shared_ptr<const Model> build(const DeviceTraits& device) const = 0;
  virtual std::string text() const = 0;
};

/// Layers one behind the other, and a loss. A layer's name is that of a module: "encoder.0".
class Sequential final : public ModelDescription {
 public:
  Sequential& add(std::string name, LayerPtr layer);
  Sequential& loss(LossPtr loss, std::string name = "loss");
  /// Throws UserError where layers do not fit each other.
  std::shared_ptr<const Model> build(const DeviceTraits& device) const override;
  std::string text() const override;

 private:
  std::vector<std::pair<std::string, LayerPtr>> layers_;
  std::string loss_name_;
  LossPtr loss_;
};

/// A transformer of tokens by its name, as fsdp-train lists them: "gpt2", "llama-3.2-1b". Sizes that are 0 stay.
class TransformerDescription final : public ModelDescription {
 public:
  explicit TransformerDescription(std::string arch);
  TransformerDescription& layers(std::size_t n);
  TransformerDescription& width(std::size_t n);
  TransformerDescription& heads(std::size_t n);
  TransformerDescription& vocabulary(std::size_t n);
  TransformerDescription& longest_sequence(std::size_t n);
  std::shared_ptr<const Model> build(const DeviceTraits& device) const override;
  std::string text() const override;

 private:
  std::string arch_;
  std::size_t layers_ = 0, width_ = 0, heads_ = 0, vocabulary_ = 0, longest_sequence_ = 0;
};

/// Names and meanings are PyTorch's where it has them; docs/api.md explains each.
struct FsdpOptions {
  std::size_t batch_size = 1;                   // sequences (or examples) of a micro-batch on a rank
  std::size_t sequence_length = 1;              // positions of each
  std::size_t gradient_accumulation_steps = 1;  // micro-batches of an update

  std::string sharding_strategy = "FULL_SHARD";    // SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, "optim", ...
  int shard_group_size = 0;                        // of hybrid strategies; 0: the ranks of a node
  std::string auto_wrap_policy = "layer";          // each layer is a unit; "size": those of min_num_params; "none": all are one
  std::optional<std::size_t> min_num_params = {};  // of "size"; none: 100 million
  std::string backward_prefetch = "pre";           // "post", "none"
  bool forward_prefetch = true;
  std::size_t limit_all_gathers = 2;  // units that are whole at a time

  std::string param_dtype = "fp32";   // what is gathered and computed with: "bf16", "fp16"
  std::string reduce_dtype = "fp32";  // what gradients travel in
  bool activation_checkpointing = false;
  bool offload_parameters = false, offload_optimizer = false;  // to the host's memory, on GPUs

  std::string optimizer = "adamw";  // a name that fsdp-train knows
  /// None: the optimizer's own. One that the optimizer does not read is refused.
  std::optional<double> beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {};
  double clip_norm = 0;                  // 0: no clipping
  std::vector<std::string> freeze = {};  // shell globs over parameter names: not trained
  std::uint64_t seed = 1;                // of initial weights, dropout and what is rounded at random; of 32 bits
};

/// Where a micro-batch is to be written: a row for each position of each sequence, one behind the other. Asking for what the
/// model is not given is a UserError.
class Batch {
 public:
  Batch(std::size_t micro_batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets, bool tokens, bool labels)
      : micro_batch_(micro_batch), inputs_(inputs), targets_(targets), tokens_(tokens), labels_(labels) {}
  /// 0, 1, ... of the update.
  std::size_t micro_batch() const { return micro_batch_; }
  std::span<std::int32_t> tokens() const;  // [R], of a model that takes tokens
  std::span<float> inputs() const;         // [R, inputs()] of the first layer, of any other
  std::span<std::int32_t> labels() const;  // [R], of a loss that takes labels; below 0: the row does not count
  std::span<float> targets() const;        // [R, targets()], of any other

 private:
  std::size_t micro_batch_;
  std::span<std::int32_t> inputs_, targets_;
  bool tokens_, labels_;
};
using FillBatch = std::function<void(const Batch& batch)>;

struct StepResult {
  double loss = 0;           // the mean over the rows that count, of all ranks and micro-batches
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // fp16 overflowed: nothing has changed but the loss scale
};

/// Bytes of a rank, by what they are for: of its device, and of the host the batches of an update and what is offloaded. They
/// are planned before the first step, and add up to the most that is in use at a time.
struct MemoryUse {
  std::vector<std::pair<std::string, std::size_t>> parts;  // "parameters", "gradients", "optimizer state", ...
  std::size_t total = 0;
};

/// What one of `ranks` ranks would hold, by the same plan: for sizing a job before there is one. On CPUs, each of a rank's
/// `threads` has scratch memory of its own. Hybrid strategies need shard_group_size here. Throws UserError.
MemoryUse estimate_memory(const ModelDescription& model, const FsdpOptions& options, int ranks,
                          const std::string& device = "cpu", int threads = 1);

/// All functions but those that say so are collective over the job. What fails on one rank or on all, a wrong option as a full
/// disk, all ranks throw as the same CollectiveError, which is a UserError. What a layer throws on one of several ranks ends
/// the job with that message at once, as run() does: the others are inside a collective then, and cannot be told. None of them
/// may be called by what another one calls, such as `fill`: that is refused.
class FullyShardedDataParallel {
 public:
  /// Takes all memory, and fills the parameters from options.seed: the same at any number of ranks.
  FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options = {});
  /// With a job of its own: all processes of MPI_COMM_WORLD, on the device that Job's default is.
  explicit FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options = {});
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  ~FullyShardedDataParallel();

  /// One update: forward and backward of all micro-batches, which `fill` writes, each rank its own; the sum of the gradients
  /// over ranks; and the optimizer. `learning_rate` is 0 or more, and the same on all ranks. Throws CollectiveError for another
  /// one, and if loss or gradient are not finite; nothing has changed then.
  StepResult step(double learning_rate, const FillBatch& fill);
  /// The mean loss of a batch of each rank.
  double evaluate(const FillBatch& fill);

  /// Updates done. Not collective.
  std::uint64_t updates() const;
  /// Writes FOLDER/step-NNNNNNNN: one HDF5 file of each rank with what it holds, and an index through which any HDF5 tool sees
  /// whole parameters (docs/checkpoint-format.md). It is durable on return; a step that is there is not
  /// overwritten. A sharded state dict. Returns that folder.
  std::filesystem::path save(const std::filesystem::path& folder);
  /// Parameters, optimizer state and updates done, from what save() has written at any number of ranks and strategy: a step's
  /// folder, or the latest complete step of the folder above.
  void load(const std::filesystem::path& folder);
  /// Whether there is something for load().
  static bool can_load(const std::filesystem::path& folder);
  /// Writes the whole parameters by rank 0, in constant memory: an HDF5 file, or, where the name has no ".h5" and the model is
  /// a transformer, a folder with safetensors. Nothing that is there is overwritten. A full state dict.
  void save_full(const std::filesystem::path& path);
  /// The parameters alone: what save_full() has written, a checkpoint, or a Hugging Face folder.
  void load_full(const std::filesystem::path& path);
  /// Calls `take(name, shape, values)` on rank 0 for each parameter in order, which is gathered for it.
  void for_each_parameter(const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take);

  /// Not collective:
  MemoryUse memory() const;
  /// Most that was in use at a time, measured.
  std::size_t peak_bytes() const;
  /// The operations of an update, as a dry run of fsdp-train prints them: what is gathered, computed, reduced and released
  /// when.
  std::string plan() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
