// A model with parameters, gradients and optimizer state sharded over the ranks of a job: like torch's
// FullyShardedDataParallel, together with its optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/checkpoint_options.hpp"
#include "api/job.hpp"
#include "api/weights.hpp"
#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "layers/tower.hpp"
#include "nn/lora.hpp"
#include "optim/parameter_group.hpp"

namespace fsdp {

class Model;
class TokenData;
struct DeviceTraits;

/// The description of a model: its layers, or the name of a transformer. It has no memory for parameters.
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;
  /// The library calls build() and text(). build() makes the model. text() describes the model, so that ranks can detect that
  /// their models differ.
  virtual std::shared_ptr<const Model> build(const DeviceTraits& device) const = 0;
  virtual std::string text() const = 0;
};

/// A chain of layers and a loss. A layer's name is like that of a PyTorch module: "encoder.0".
class Sequential final : public ModelDescription {
 public:
  Sequential& add(std::string name, LayerPtr layer);  // after the layers that were added before
  /// Makes this a model with several inputs: each has a tower, which comes before the layers of add(). All towers must end with
  /// sequence_length rows for each example. A row of what follows has the outputs of the towers next to each other, in this
  /// order. Call it once, before add(). Throws UserError if it is called again or later, or if names of towers or inputs are
  /// empty or used twice.
  Sequential& towers(NamedTowers towers);
  Sequential& loss(LossPtr loss, std::string name = "loss");  // `name` is part of the names of its parameters
  /// Makes two parameters one, as `head.weight = embedding.weight` does in PyTorch: tie("head.weight", "embedding.weight").
  /// `same_as` is the parameter of an earlier layer and has the same shape. Its name and initial values remain, and its
  /// gradient is the sum of both. Such a parameter stays gathered from its first use to its last.
  Sequential& tie(std::string parameter, std::string same_as);
  /// Throws UserError if the sizes of adjacent layers differ.
  std::shared_ptr<const Model> build(const DeviceTraits& device) const override;
  std::string text() const override;

 private:
  NamedTowers towers_;
  NamedLayers layers_;
  std::vector<std::pair<std::string, std::string>> tied_;
  std::string loss_name_;
  LossPtr loss_;
};

/// A transformer. `arch` is the name of an architecture that fsdp-train lists, such as "gpt2" or "llama-3.2-1b".
class TransformerDescription final : public ModelDescription {
 public:
  explicit TransformerDescription(std::string arch);  // build() throws UserError if there is no such architecture
  /// The model that config.json in a Hugging Face folder describes. build() reads the file.
  static TransformerDescription from_config(std::filesystem::path folder);
  /// The next five functions set sizes of the model; 0 means the size that the architecture has.
  TransformerDescription& layers(std::size_t n);
  TransformerDescription& width(std::size_t n);
  TransformerDescription& heads(std::size_t n);
  TransformerDescription& vocabulary(std::size_t n);
  TransformerDescription& longest_sequence(std::size_t n);
  /// Adds adapters to the model, and freezes its other parameters, the base model, which load_full() or load() reads. Until
  /// then, all other functions that need its values throw CollectiveError. docs/api-options.md explains the fields of Lora.
  TransformerDescription& lora(Lora adapters);
  /// Adds adapters with the rank, scale and targets of those in a folder of PEFT or a checkpoint of adapters. load_adapter()
  /// reads their values.
  TransformerDescription& lora(std::filesystem::path folder, double dropout = 0);
  /// Keeps the matrices of the base model's blocks in 8 or 4 bits: "int8" or "nf4". Requires lora().
  TransformerDescription& base_dtype(std::string type);
  std::shared_ptr<const Model> build(const DeviceTraits& device) const override;
  std::string text() const override;

 private:
  std::string arch_;
  std::filesystem::path folder_;  // from_config(); else empty
  std::optional<Lora> lora_;
  std::filesystem::path adapter_;  // lora(folder); else empty
  std::optional<std::string> base_dtype_;
  std::size_t layers_ = 0, width_ = 0, heads_ = 0, vocabulary_ = 0, longest_sequence_ = 0;
};

/// Options that also exist in PyTorch's FSDP have the same names and meanings. docs/api-options.md explains each option.
struct FsdpOptions {
  std::size_t batch_size = 1;                   // sequences (or examples) per micro-batch and rank
  std::size_t sequence_length = 1;              // positions per sequence
  std::size_t gradient_accumulation_steps = 1;  // micro-batches per update

  std::string sharding_strategy = "FULL_SHARD";  // SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, "optim", ...
  int shard_group_size = 0;                      // for hybrid strategies; 0: the ranks of a node
  std::string auto_wrap_policy = "layer";  // "layer": each layer is a unit; "size": units of at least min_num_params; "custom":
                                           // by wrap_patterns; "none": one unit
  std::size_t wrap_layers = 1;             // for "layer": layers per unit
  std::optional<std::size_t> min_num_params = {};  // for "size"; empty: 100 million
  /// For "custom": shell globs over names of layers, also of inner ones: {"blocks.*.mlp", "head"}. Each layer that matches one
  /// is a unit; the layers inside it are not matched again.
  std::vector<std::string> wrap_patterns = {};
  std::string backward_prefetch = "pre";  // "post", "none"
  bool forward_prefetch = true;           // gather the next unit while the current one computes
  std::size_t limit_all_gathers = 2;      // the largest number of units that are gathered at a time
  bool accumulate_unsharded = false;  // keep whole gradients between micro-batches, and reduce them once (PyTorch's no_sync())
  bool invariant = false;             // the same bits at 1, 2, 4, 8, ... ranks, if the micro-batches of an update are the same
  std::vector<std::string> ignored_params = {};  // shell globs: these parameters are kept whole on every rank

  std::string param_dtype = "fp32";   // the type of gathered parameters and of computation: "fp32", "bf16" or "fp16"
  std::string reduce_dtype = "fp32";  // the type in which gradients are sent; the same choices
  /// The types of the parameters that the optimizer updates ("bf16": only with param_dtype "bf16"), of sums of gradients that
  /// a rank keeps, and of a transformer's tables of rotary positions.
  std::string master_dtype = "fp32", grad_dtype = "fp32", buffer_dtype = "fp32";
  /// The loss scale, only with param_dtype "fp16". An empty value means the default of fsdp-train.
  std::optional<double> fp16_init_scale = {}, fp16_scale_tolerance = {}, min_loss_scale = {}, threshold_loss_scale = {};
  std::optional<std::size_t> fp16_scale_window = {};  // likewise
  std::string attention_backend = "own";              // "cudnn", "auto": a transformer's attention by cuDNN, on GPUs
  bool activation_checkpointing = false;    // keep only the input of each layer, and compute the layer again in backward
  std::string checkpoint_policy = "block";  // what is kept; "selective": also products and attention, only of a transformer
  std::size_t checkpoint_every = 1;         // how many blocks share one kept input
  std::string recompute_num_layers = "0";   // instead of activation_checkpointing: compute the first N layers again, or "auto"
  std::size_t memory_limit = 0;             // of a rank, in bytes; pieces get smaller and layers are recomputed to fit; 0: none
  bool offload_activations = false;  // inputs of recomputed layers to host memory, with GPUs; implies activation_checkpointing
  /// "cpu": in host memory, with GPUs; "nvme": in a file of each rank in the folder nvme_path, and gradients in host memory.
  /// If offload_optimizer is empty, it is offload_parameters.
  std::string offload_parameters = "none", offload_optimizer = "", nvme_path = "";
  std::string gemm_algorithms = "";  // a file with cuBLASLt's algorithms, which is made if it does not exist

  std::string optimizer = "adamw";  // or another optimizer of fsdp-train, or the name of one of the user's own
  /// An empty value means the optimizer's default. It is an error to set a value that the optimizer does not use.
  std::optional<double> beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {};
  bool amsgrad = false, nesterov = false;         // only for the optimizers that have them
  std::vector<ParameterGroup> param_groups = {};  // parameters with other settings
  std::string optimizer_state_dtype = "fp32";     // or "bf16"
  double clip_norm = 0;                           // 0: no clipping
  std::vector<std::string> norm_patterns = {};    // shell globs: step() returns the norm of the gradient of each parameter
  double clip_value = 0;                          // the largest absolute value of an element of the gradient; 0: no limit
  double skip_spikes = 0;  // leave out updates with a loss or norm this many standard deviations above the mean; 0: none
  double ema_decay = 0;    // of a moving average of the parameters; 0: none is kept
  std::uint64_t ema_start_update = 0;  // until this update, the average is a copy of the parameters
  /// Only for a TransformerDescription; cross_entropy() has the first two, too.
  double label_smoothing = 0, z_loss = 0, neftune_alpha = 0;
  double dropout = 0, attention_dropout = 0;  // only for a TransformerDescription
  std::vector<std::string> freeze = {};       // shell globs: parameters whose names match are not trained
  std::vector<std::string> train_only = {};   // shell globs: all other parameters are not trained
  bool check_first_update = true;             // find mistakes in layers, loss and batches: docs/api.md, "The first update"
  std::uint64_t seed = 1;                     // for initial weights, dropout and stochastic rounding; 32 bits
  std::size_t generate_positions = 0;         // for TextGenerator: the most tokens of a prompt and its text; 0: none
  std::size_t eval_batch_size = 0;  // sequences (or examples) per rank in evaluate(), predict() and the like; 0: batch_size
  bool background_saves = false;    // save() copies the state, and returns while a thread writes the copy
};

/// The memory into which the user writes a micro-batch: one row for each position of each sequence, sequence after sequence. R
/// is the number of rows: batch_size * sequence_length, or eval_batch_size * sequence_length in evaluate(), predict(),
/// predict_layer() and measure(). If the model does not take a kind of data, the function for it throws UserError.
class Batch {
 public:
  Batch(std::size_t micro_batch, std::size_t sequences, std::span<const NamedInput> of_model, std::span<std::int32_t> inputs,
        std::span<std::int32_t> targets, bool labels)
      : micro_batch_(micro_batch),
        sequences_(sequences),
        of_model_(of_model),
        inputs_(inputs),
        targets_(targets),
        labels_(labels) {}  // for the library
  /// The number of the micro-batch within the update: 0, 1, ...
  std::size_t micro_batch() const { return micro_batch_; }
  /// The number of sequences (or examples) in this batch: batch_size or eval_batch_size.
  std::size_t sequences() const { return sequences_; }
  std::span<std::int32_t> tokens() const;  // [R, inputs() of the first layer], if it takes tokens; of transformers [R]
  std::span<float> inputs() const;         // [R, inputs() of the first layer], if it takes numbers
  /// An input of a model with towers: [sequences() * length, columns], example after example. Throws UserError if there is no
  /// input with this name, or if it is of the other kind.
  std::span<std::int32_t> tokens(std::string_view input) const;
  std::span<float> inputs(std::string_view input) const;
  std::span<std::int32_t> labels() const;  // [R, targets() of the loss], if it takes labels; negative: row not counted
  std::span<float> targets() const;        // [R, targets() of the loss], if it takes numbers

 private:
  std::span<std::int32_t> find(std::string_view input, bool integers) const;

  std::size_t micro_batch_, sequences_;
  std::span<const NamedInput> of_model_;
  std::span<std::int32_t> inputs_, targets_;
  bool labels_;
};
/// Writes a micro-batch.
using FillBatch = std::function<void(const Batch& batch)>;

/// A number that is added up over rows and ranks. `outputs` has the numbers of the last layer for each row of `batch`.
using Metric = std::function<double(std::span<const float> outputs, const Batch& batch)>;
/// A Metric: the number of rows whose largest output is that of their label. Rows with a negative label do not count.
double accuracy(std::span<const float> outputs, const Batch& batch);

/// The result of an update. It is the same on all ranks.
struct StepResult {
  double loss = 0;           // the mean over all rows that count, of all ranks and micro-batches
  double gradient_norm = 0;  // before clipping
  /// Of the trained parameters that match FsdpOptions::norm_patterns: the name, and the norm of the gradient before clip_norm.
  std::vector<std::pair<std::string, double>> gradient_norms = {};
  bool skipped = false;  // true: parameters did not change, because fp16 overflowed or because of skip_spikes
};

/// The memory of one rank in bytes, by purpose, as fsdp-plan counts it. It is planned before the first step, except what
/// libraries allocate: the workspace of matrix products and, on a GPU, the driver's memory are estimates. `total`
/// does not include parts whose names end in ", on the host" (on GPUs) or ", on the disk".
struct MemoryUse {
  std::vector<std::pair<std::string, std::size_t>> parts;  // "parameters", "gradients", "optimizer state", ...
  std::size_t total = 0;                                   // the peak of the device's memory
};

/// Returns the memory of each rank in a job of `ranks` ranks on one node, without running the job. On CPUs it depends on the
/// number of threads of a rank, because each thread has its own scratch memory. With a hybrid strategy,
/// options.shard_group_size must not be 0. Throws UserError.
MemoryUse estimate_memory(const ModelDescription& model, const FsdpOptions& options, int ranks,
                          const std::string& device = "cpu", int threads = 1);

/// All functions are collective over the job unless their comment says otherwise. If a function fails on one rank or on all,
/// for example because of a wrong option or a full disk, all ranks throw the same CollectiveError, which is a UserError. If a
/// layer throws on one of several ranks, that rank prints the message and ends the job, as run() does, because the other ranks
/// are inside a collective. Functions that the library calls, such as `fill`, must not call functions of this class; if they
/// do, UserError is thrown.
class FullyShardedDataParallel {
 public:
  /// Allocates all memory, and initializes the parameters from options.seed: the same values for any number of ranks. A model
  /// with adapters has no values before load_full() or load().
  FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options = {});
  /// Makes a Job with the default JobOptions, instead of using an existing one.
  explicit FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options = {});
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  ~FullyShardedDataParallel();

  /// Runs one update: forward and backward of all micro-batches, the reduction of the gradients over ranks, and the optimizer.
  /// On each rank, `fill` writes that rank's micro-batches. `learning_rate` must be at least 0 and the same on all ranks.
  /// Throws CollectiveError if it is not, or if the loss or the gradient is not finite; the model is then unchanged. With
  /// param_dtype "fp16", an overflow of the gradient lowers the loss scale and only skips the update.
  StepResult step(double learning_rate, const FillBatch& fill);
  /// Returns the mean loss over one micro-batch of every rank, without the terms that only training has (label smoothing,
  /// z-loss). `use_ema`: the loss of the average of the parameters, which options.ema_decay must have kept.
  double evaluate(const FillBatch& fill, bool use_ema = false);
  /// The same over all targets of `data`, wherever its position is. Throws CollectiveError if `data` is a mixture.
  double evaluate(const TokenData& data, bool use_ema = false);
  /// Runs forward over one micro-batch of every rank, and returns the outputs of the last layer for this rank's rows: [R,
  /// inputs of the loss], converted to fp32. `fill` need not write labels or targets. Throws CollectiveError if the model is a
  /// TransformerDescription.
  std::vector<float> predict(const FillBatch& fill, bool use_ema = false);
  /// As predict(), for the outputs of the layer with this name: that of add(), "NAME.i" for layer i of a repeat(), "TOWER.NAME"
  /// for a layer of a tower, or the name of a layer inside others ("blocks.3.mlp.up"), as in the names of parameters. The model
  /// runs up to the layer of add() that contains it; of the towers, only that of the layer runs, and `fill` need not write
  /// other inputs. If that runs the layer more than once, the last outputs are returned.
  std::vector<float> predict_layer(const std::string& layer, const FillBatch& fill, bool use_ema = false);
  /// Returns the gradient of evaluate()'s mean loss with respect to this rank's numbers of the input, [R, inputs of the first
  /// layer], for a batch of batch_size. `input` is the name in a model with several inputs. As in evaluate(), nothing is
  /// dropped. The model and its gradients stay as they are. The first call makes a new plan, with the memory for a backward
  /// pass through all layers, as freeze() does. Throws CollectiveError if the input is tokens, or if there is too little
  /// memory.
  std::vector<float> input_gradients(const FillBatch& fill, const std::string& input = "");
  /// As predict(); returns the sum of `metric` over all ranks, divided by the number of rows that count (those without a
  /// negative label). It is the same number on all ranks, and does not depend on the strategy.
  double measure(const Metric& metric, const FillBatch& fill, bool use_ema = false);

  /// The number of completed updates. Not collective.
  std::uint64_t updates() const;
  /// Writes the folder FOLDER/step-NNNNNNNN, a sharded state dict, and returns its path. It contains one HDF5 file per rank
  /// with the rank's shards, and an index in which any HDF5 tool can read whole parameters (docs/checkpoint-format.md). When
  /// the function returns, all files are on the disk. An existing step is not overwritten; if this object's last save was of
  /// the same update into the same folder, the function returns that step. If the model has adapters, only they are saved, with
  /// the path and the checksum of the base model.
  ///
  /// With FsdpOptions::background_saves, the function returns as soon as the state is copied. The step is complete when the
  /// next save(), load(), restore(), freeze() or finish_save(), the first input_gradients() or the destructor returns. The
  /// functions throw an error of the save, and the destructor prints a warning. The destructor waits at most
  /// JobOptions::timeout_s. While an exception is thrown, it does not wait for other ranks: the step may then remain
  /// incomplete, and load() ignores it.
  std::filesystem::path save(const std::filesystem::path& folder);
  std::filesystem::path save(const std::filesystem::path& folder, const CheckpointOptions& options);
  /// Waits until the save under way is complete; returns at once if there is none.
  void finish_save();
  /// Loads the latest complete step in `folder`, or the step whose folder or link (FOLDER/best) `folder` is. Returns false, and
  /// changes nothing, if there is none. As fsdp-train does, renames a damaged step in a folder of steps, with a warning, and
  /// loads the one before; throws CollectiveError if all are damaged.
  bool restore(const std::filesystem::path& folder);
  /// The data that the program stored under this name (CheckpointOptions::data) in the checkpoint that load() or restore() has
  /// loaded; empty if there are none. Not collective.
  std::optional<std::string> data(const std::string& name) const;
  /// Loads what save() has written: parameters, optimizer state and the number of updates. The number of ranks and the strategy
  /// may differ from those of save(). `folder` is a step's folder, or the folder that was passed to save(); then the latest
  /// complete step is loaded. If the model has adapters, also loads their base model from its recorded path, unless load_full()
  /// has loaded it.
  void load(const std::filesystem::path& folder);
  /// Returns true if `folder` contains something that load() can load. Not collective.
  static bool can_load(const std::filesystem::path& folder);
  /// Writes a full state dict: rank 0 writes all whole parameters, in constant memory. If the name ends in ".h5" or ".hdf5",
  /// the result is an HDF5 file; otherwise it is a folder with safetensors, and the model must be a transformer. Existing files
  /// are not overwritten. `use_ema`: writes the average of the parameters instead. If the model has adapters, only they are
  /// written, as a folder of PEFT.
  void save_full(const std::filesystem::path& path, bool use_ema = false);
  /// Loads only the parameters; the average of the parameters begins anew. `path` is a file or folder of save_full(), a folder
  /// of save(), or a Hugging Face folder; for a Sequential also any HDF5 file with datasets of floats (a dataset in groups has
  /// "." for "/" in its name), a .safetensors file, or a folder of these. Elements of fp16, bf16, fp32 and fp64 are converted;
  /// a rank reads only its ranges. CollectiveError names all tensors that do not fit, with both shapes; nothing has changed
  /// then. If the model has adapters, loads their base model, and the adapters begin anew, from options.seed;
  /// LoadOptions::names and the patterns must be empty. Adapters in `path` are merged into the weights.
  LoadResult load_full(const std::filesystem::path& path, const LoadOptions& options = {});
  /// Sets a parameter, row-major. The values of rank 0 count; other ranks may pass none. The optimizer's state and the average
  /// stay. The counterpart of for_each_parameter(). Throws CollectiveError for an unknown name, another number of values,
  /// values that are not finite, and parameters of the base model of adapters.
  void set_parameter(const std::string& name, std::span<const float> values);
  /// Loads only the adapters, from a folder of PEFT or a checkpoint of adapters.
  void load_adapter(const std::filesystem::path& folder);
  /// Calls `take(name, shape, values)` on rank 0 for each parameter in order. Only one whole parameter is in memory at a time.
  /// If the model has adapters, only their parameters are passed.
  void for_each_parameter(const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take);

  /// freeze() stops the training of the parameters whose names match the shell globs, and unfreeze() begins or resumes it. All
  /// parameters, and the optimizer state of parameters that remain trained, keep their bits. The state of parameters that were
  /// frozen begins at zero. memory() and plan() are then those of a new plan. During the call, each rank has a copy of its
  /// parameters and optimizer state in host memory (4 bytes per number), and 16 MiB more. Throws CollectiveError if a pattern
  /// matches no parameter, if nothing is left to train, if the model has adapters, or if there is too little memory. Nothing
  /// has changed then. Checkpoints have what these calls have set, and load() and restore() set it again.
  void freeze(const std::vector<std::string>& patterns);
  void unfreeze(const std::vector<std::string>& patterns);

  /// The planned memory. Not collective.
  MemoryUse memory() const;
  /// The measured peak of the memory that is planned, and what memory() counts besides, in bytes. Not collective.
  std::size_t peak_bytes() const;
  /// The operations of an update in order (all-gathers, computation, reductions, releases of memory), as a dry run of
  /// fsdp-train prints them. Not collective.
  std::string plan() const;

  struct Inside;
  Inside inside() const;  // for the library

 private:
  friend class TextGenerator;
  /// Calls `work` with the parameters, or with their average, in an executor with key-value caches. Collective.
  void decode(bool use_ema, const std::function<void(const Inside&)>& work);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
