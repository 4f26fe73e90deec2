// A model with parameters, gradients and optimizer state sharded over the ranks of a job: like torch's
// FullyShardedDataParallel, together with its optimizer.
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

/// The description of a model without any memory: layers, or the name of a transformer.
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;
  /// For the library: builds the model; returns a text by which ranks detect that their models differ.
  virtual std::shared_ptr<const Model> build(const DeviceTraits& device) const = 0;
  virtual std::string text() const = 0;
};

/// A chain of layers and a loss. A layer's name is like that of a PyTorch module: "encoder.0".
class Sequential final : public ModelDescription {
 public:
  Sequential& add(std::string name, LayerPtr layer);
  Sequential& loss(LossPtr loss, std::string name = "loss");
  /// Throws UserError if the sizes of adjacent layers differ.
  std::shared_ptr<const Model> build(const DeviceTraits& device) const override;
  std::string text() const override;

 private:
  std::vector<std::pair<std::string, LayerPtr>> layers_;
  std::string loss_name_;
  LossPtr loss_;
};

/// A transformer by a name that fsdp-train lists: "gpt2", "llama-3.2-1b". A size of 0 keeps the size of that architecture.
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

/// Names and meanings are PyTorch's, if it has the option; docs/api.md explains each one.
struct FsdpOptions {
  std::size_t batch_size = 1;                   // sequences (or examples) per micro-batch and rank
  std::size_t sequence_length = 1;              // positions per sequence
  std::size_t gradient_accumulation_steps = 1;  // micro-batches per update

  std::string sharding_strategy = "FULL_SHARD";  // SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, "optim", ...
  int shard_group_size = 0;                      // for hybrid strategies; 0: the ranks of a node
  std::string auto_wrap_policy = "layer";  // "layer": each layer is a unit; "size": units of at least min_num_params; "none":
                                           // one unit
  std::optional<std::size_t> min_num_params = {};  // for "size"; empty: 100 million
  std::string backward_prefetch = "pre";           // "post", "none"
  bool forward_prefetch = true;
  std::size_t limit_all_gathers = 2;  // the most units that are gathered at a time

  std::string param_dtype = "fp32";   // the type of gathered parameters and of computation: also "bf16", "fp16"
  std::string reduce_dtype = "fp32";  // the type in which gradients are sent
  bool activation_checkpointing = false;
  bool offload_parameters = false, offload_optimizer = false;  // to host memory, with GPUs

  std::string optimizer = "adamw";  // any optimizer of fsdp-train
  /// Empty: the optimizer's default. A value that the optimizer does not use is refused.
  std::optional<double> beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {};
  double clip_norm = 0;                  // 0: no clipping
  std::vector<std::string> freeze = {};  // shell globs; parameters with a matching name are not trained
  std::uint64_t seed = 1;                // for initial weights, dropout and stochastic rounding; 32 bits
};

/// The memory into which the user writes a micro-batch: one row for each position of each sequence, sequence after sequence.
/// Asking for data that the model does not take throws UserError.
class Batch {
 public:
  Batch(std::size_t micro_batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets, bool tokens, bool labels)
      : micro_batch_(micro_batch), inputs_(inputs), targets_(targets), tokens_(tokens), labels_(labels) {}
  /// The number of the micro-batch within the update: 0, 1, ...
  std::size_t micro_batch() const { return micro_batch_; }
  std::span<std::int32_t> tokens() const;  // [R], if the model takes tokens
  std::span<float> inputs() const;         // [R, inputs()] of the first layer, otherwise
  std::span<std::int32_t> labels() const;  // [R], if the loss takes labels; negative: the row does not count
  std::span<float> targets() const;        // [R, targets()], otherwise

 private:
  std::size_t micro_batch_;
  std::span<std::int32_t> inputs_, targets_;
  bool tokens_, labels_;
};
using FillBatch = std::function<void(const Batch& batch)>;

struct StepResult {
  double loss = 0;           // the mean over all rows that count, of all ranks and micro-batches
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // fp16 overflowed: only the loss scale has changed
};

/// The memory of one rank in bytes, by purpose: memory of its device, and host memory for the batches of an update and for
/// offloaded data. All of it is planned before the first step; `total` is the peak.
struct MemoryUse {
  std::vector<std::pair<std::string, std::size_t>> parts;  // "parameters", "gradients", "optimizer state", ...
  std::size_t total = 0;
};

/// Returns the planned memory of one of `ranks` ranks, to size a job before it runs. On CPUs, each of the rank's `threads` has
/// its own scratch memory. Hybrid strategies require shard_group_size here. Throws UserError.
MemoryUse estimate_memory(const ModelDescription& model, const FsdpOptions& options, int ranks,
                          const std::string& device = "cpu", int threads = 1);

/// All functions are collective over the job unless their comment says otherwise. If a function fails on one rank or on all,
/// for example because of a wrong option or a full disk, all ranks throw the same CollectiveError, which is a UserError. If a
/// layer throws on one of several ranks, that rank prints the message and ends the job, as run() does: the other ranks are
/// inside a collective and cannot be told. Functions that the library calls, such as `fill`, must not call functions of this
/// class: that is refused.
class FullyShardedDataParallel {
 public:
  /// Allocates all memory, and initializes the parameters from options.seed: the same values for any number of ranks.
  FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options = {});
  /// Makes its own job: all processes of MPI_COMM_WORLD, on the default device of Job.
  explicit FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options = {});
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  ~FullyShardedDataParallel();

  /// Runs one update: forward and backward of all micro-batches, the reduction of the gradients over ranks, and the optimizer.
  /// On each rank, `fill` writes that rank's micro-batches. `learning_rate` must be at least 0 and the same on all ranks.
  /// Throws CollectiveError if it is not, and also if the loss or the gradient is not finite; then nothing has changed.
  StepResult step(double learning_rate, const FillBatch& fill);
  /// Returns the mean loss over one micro-batch of every rank.
  double evaluate(const FillBatch& fill);

  /// The number of completed updates. Not collective.
  std::uint64_t updates() const;
  /// Writes FOLDER/step-NNNNNNNN, a sharded state dict: one HDF5 file per rank with its shards, and an index through which any
  /// HDF5 tool sees whole parameters (docs/checkpoint-format.md). It is durable on return. An existing step is not overwritten.
  /// Returns the step's folder.
  std::filesystem::path save(const std::filesystem::path& folder);
  /// Loads parameters, optimizer state and the number of updates that save() wrote with any number of ranks and any strategy.
  /// `folder` is a step folder, or the folder given to save(): then its latest complete step.
  void load(const std::filesystem::path& folder);
  /// Returns true if `folder` contains something that load() can load.
  static bool can_load(const std::filesystem::path& folder);
  /// Writes the whole parameters on rank 0, in constant memory: a full state dict. The result is an HDF5 file, or a folder with
  /// safetensors if the model is a transformer and the name does not end in ".h5". Existing files are not overwritten.
  void save_full(const std::filesystem::path& path);
  /// Loads only the parameters, from a result of save_full(), a checkpoint, or a Hugging Face folder.
  void load_full(const std::filesystem::path& path);
  /// Calls `take(name, shape, values)` on rank 0 for each parameter in order. Each parameter is gathered for its call.
  void for_each_parameter(const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take);

  /// These three are not collective. The planned memory:
  MemoryUse memory() const;
  /// The measured peak of memory.
  std::size_t peak_bytes() const;
  /// The operations of an update in the format of fsdp-train's dry run: the order of gathers, computation, reductions and
  /// releases.
  std::string plan() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
