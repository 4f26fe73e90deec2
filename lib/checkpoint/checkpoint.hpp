// Sharded checkpoints. A checkpoint is a folder ("step folder") with one HDF5 file per rank (or fewer), an index file with a
// virtual dataset for every whole parameter, and a marker file that is written last. Step folders are in a "save folder".
// docs/checkpoint-format.md describes the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/worker.hpp"
#include "checkpoint/model_format.hpp"
#include "checkpoint/read_plan.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored_model.hpp"
#include "checkpoint/tensor_source.hpp"
#include "comm/communicator.hpp"
#include "data/position.hpp"
#include "files/sealed_file.hpp"
#include "h5/h5.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "plan/layout.hpp"
#include "run/shard_state.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

/// The validations of a run, in the order of their updates.
struct Validations {
  std::uint64_t update = 0;       // of the last one
  double loss = 0;                // mean over all targets
  std::uint64_t best_update = 0;  // of the one with the smallest loss
  double best_loss = 0;
  std::uint64_t since_best = 0;  // the number of validations after the best one
};

/// How far training has come.
struct Progress {
  std::uint64_t update = 0;  // the number of completed updates
  std::uint64_t tokens = 0;  // the number of tokens trained on
  DataPosition data;
  std::uint64_t optimizer_began = 0;                // the value of `update` when the optimizer started, with zero states
  std::optional<LossScalerState> loss_scaler = {};  // only if training is in fp16
  std::optional<SpikeFilterState> spikes = {};      // only if updates with a spike in the loss or gradient norm are skipped
  std::optional<Validations> validations = {};      // only if there were any
  /// For parameters that were frozen at first: the update after which their optimizer states were zero. The states of all other
  /// trained parameters were zero after `optimizer_began`.
  std::map<std::string, std::uint64_t> states_began = {};
  std::uint64_t valid_sum = 0;  // what `validations` measured (ValidData::sum); 0: not known
  /// The update at which the decay of the learning rate ends if its data end the run; 0: it has no end, or it is unknown.
  std::uint64_t schedule_end = 0;
  std::map<std::string, bool> frozen = {};  // what freeze() (true) and unfreeze() of a user's program have set, by parameter
};
/// For each parameter: how many updates of the optimizer came before its first one (Executor::count_from()).
std::vector<std::uint64_t> missed_updates(const Progress& progress, const std::vector<Parameter>& parameters);
/// Notes in progress.states_began which parameters train from now on: those with trains[p]. The states of parameters without
/// had_state(p) are zero now.
void note_states(Progress& progress, const std::vector<Parameter>& parameters, const std::vector<bool>& trains,
                 const std::function<bool(std::size_t)>& had_state);

/// The model to which a checkpoint's adapters belong: its path when the checkpoint was written, and its content_sum()
/// (checkpoint/adapter.hpp).
struct BaseModel {
  std::string path;
  std::uint64_t sum = 0;
};

/// Bytes that a user's program stores in a checkpoint, by name.
using UserData = std::map<std::string, std::string>;
inline constexpr std::size_t most_user_bytes = std::size_t{1} << 30;  // of one name
/// Throws UserError unless each name has 1 to 100 printable ASCII characters without '/', is not "." or "..", and its data have
/// at most most_user_bytes.
void check(const UserData& data);

/// The metadata of a checkpoint.
struct CheckpointHeader {
  StoredModel model;
  Progress progress;
  std::string strategy;         // the name of the sharding strategy, such as "full"
  int world_size = 1;           // the number of ranks whose files together hold each element once
  int ranks = 1;                // in a header that was read: the number of ranks that wrote these files
  int shards = 1;               // the size of the shard axis: the number of ranks that share a sharded unit
  std::vector<UnitSpec> units;  // the FSDP units; with `shards` and `world_size` they determine the layout
  std::string optimizer;        // a name in optimizers(), such as "adamw"
  std::string options_json;     // all options of the run, for inspection
  /// The CPU library and its number of threads, or the GPU, that computed the matrix products. A run that resumes with another
  /// one may round differently. Empty if unknown.
  std::string arithmetic = {};
  /// The library that computed attention, such as "cuDNN 9.26.0". Empty: the kernels of fsdp.
  std::string attention = {};
  std::string gemm_algorithms = {};  // a checksum of timed algorithms; empty: cuBLASLt's own choice
  std::string model_folder = {};     // the Hugging Face folder that the model came from; empty if none
  std::string first_start = {};      // of the batch job that made the checkpoint, see first_start_of() in train/setup.hpp
  /// Set if the model has adapters. The checkpoint then has only these (UnitSpec::saved).
  std::optional<BaseModel> base = {};
  /// The tokenizer's files, which save_checkpoint() also writes. Null in a header that was read from a checkpoint: then the
  /// files are in the step folder.
  std::shared_ptr<const std::vector<TokenizerFile>> tokenizer_files = {};
  /// The data of the user's program, which rank 0 writes into the index; null if there are none. Null in a header that was read
  /// from a checkpoint: CheckpointReader::read_user_data() reads them.
  std::shared_ptr<const UserData> user_data = {};
  std::string version;
};

/// Writes the step folder save_dir/step-NNNNNNNN, at first under a temporary name. Every rank writes its slices, and rank 0
/// also the index; fsync and a barrier follow. Then rank 0 renames the folder and writes the marker; a barrier follows.
/// Collective over world. Afterwards either the checkpoint is durable, or all ranks throw the same CollectiveError and the
/// temporary folder is gone; earlier checkpoints are unchanged. Parameters that are not finite are also an error. Throws
/// UserError if the step exists and is complete; an incomplete step is replaced. Removes temporary folders that earlier runs
/// left. A rank's index on the shard axis is rank modulo header.shards; each replica of a shard writes a part of the shard. The
/// first of `states` must be parameters_state. If `files` is less than the number of ranks (0: all of them), several ranks
/// write each file together (shared_files.hpp), without compression. Returns the step folder.
std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir, const CheckpointHeader& header,
                                      const Layout& layout, std::span<const ShardState> states, Communicator& world,
                                      h5::Compression compression = h5::Compression::none, int files = 0);

/// A save that runs in the background while the caller computes. save_checkpoint() begins a save and waits for it.
class CheckpointSave {
 public:
  enum class Stage {
    working,
    done,  // what this rank writes is on disk; on rank 0 also: the checkpoint is complete
    stuck  // the save failed, or only finish() can complete the save
  };
  /// Begins a save as in save_checkpoint(). The data that this rank writes is copied into `snapshot`, whose size is
  /// snapshot_bytes(), and a thread writes it from there; `snapshot`, `layout` and `world` must outlive this object. Rank 0's
  /// thread completes the checkpoint as soon as the files of all ranks are on disk. The rank that seals a file reports that to
  /// rank 0 by a small file (a note), because the threads may not use MPI. Without a snapshot, finish() does all the work.
  /// `may_complete`, if given, is called by rank 0's thread before the checkpoint is completed or the files of a failed save
  /// are removed; if it throws, the save fails. Collective over world; all ranks throw the same CollectiveError.
  CheckpointSave(const std::filesystem::path& save_dir, const CheckpointHeader& header, const Layout& layout,
                 std::span<const ShardState> states, Communicator& world, std::span<std::byte> snapshot = {},
                 h5::Compression compression = h5::Compression::none, std::function<void()> may_complete = nullptr,
                 int files = 0);
  CheckpointSave(const CheckpointSave&) = delete;
  /// Waits for this rank's thread. The folder of an incomplete checkpoint remains until the next save removes that folder.
  ~CheckpointSave();

  /// The stage of this rank's thread; `done` if there is no thread. Not collective.
  Stage stage() const;
  /// The time from the start of the save until the checkpoint was complete, in seconds; negative before that. Rank 0 knows the
  /// time at once, the other ranks after finish(). Not collective.
  double took_s() const;
  /// The size of the ranks' files and of the index, in bytes, on rank 0 once it knows took_s(); else 0. Not collective.
  std::uint64_t file_bytes() const;
  /// The checkpoint's folder.
  const std::filesystem::path& folder() const;
  /// Waits for the files of all ranks, and completes the checkpoint if rank 0's thread has not done so. Collective over world.
  /// Afterwards either the checkpoint is durable, or all ranks throw the same CollectiveError and the temporary folder is
  /// gone.
  std::filesystem::path finish();

 private:
  struct Job;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Worker> writer_;  // declared last, so that its thread ends before `job_` is destroyed
};
/// The size of the snapshot of a rank, in bytes. Optimizer states with one element per parameter element have type
/// `state_type`. `with_average`: the parameters have a moving average.
std::size_t snapshot_bytes(const Layout& layout, DType state_type, int rank, int world_size, bool with_average = false);

/// The size of all tensors of a checkpoint, in bytes. Its files have a little more.
std::size_t step_bytes(const Layout& layout, bool with_average = false);

/// Long operations call this function regularly with the bytes done and the total.
using ByteProgress = std::function<void(std::size_t, std::size_t)>;

/// Reads any range of any tensor of a complete checkpoint, so that a run with another layout can load the checkpoint. Opens a
/// file when it is first needed; checks at once that all files exist.
class CheckpointReader : public TensorSource {
 public:
  /// `folder` is a step folder. Throws the errors of stored::read_complete(). With Verify::yes, all later reads are compared
  /// with checksums, and a difference throws DamagedError. With Weights::average, parameters_state is the average of the
  /// parameters, and of those that were not trained, which have none, the parameter itself; throws UserError if the checkpoint
  /// has no average.
  static std::unique_ptr<CheckpointReader> open(const std::filesystem::path& folder, Verify verify = Verify::yes,
                                                Weights weights = Weights::trained);
  const CheckpointReader* checkpoint() const final { return this; }
  virtual const CheckpointHeader& header() const = 0;
  virtual const std::filesystem::path& folder() const = 0;
  std::filesystem::path tokenizer_folder() const final { return folder(); }
  /// The total size of the checkpoint's files, in bytes.
  virtual std::size_t file_bytes() const = 0;
  virtual bool was_trained(const std::string& name) const = 0;
  /// The L2 norm of the tensor when it was saved; NaN if an element was not finite; empty if the checkpoint has no norm.
  virtual std::optional<double> norm(const std::string& state, const std::string& name) const = 0;
  /// The names of the user's data in the checkpoint, and how many bytes each has. Throws DamagedError.
  virtual std::map<std::string, std::size_t> user_data_sizes() const = 0;
  /// Reads user data, whose name must be in user_data_sizes(). Damaged bytes throw DamagedError, with any Verify.
  virtual std::string read_user_data(const std::string& name) const = 0;
  /// Says which elements are in which rank's file.
  virtual const StoredParts& parts() const = 0;
  /// Announces that these elements will be read soon, so that the disk can start reading. Does nothing if the checkpoint does
  /// not have this state of the parameter.
  virtual void prefetch_state(const std::string& state, const std::string& name, Range range) const = 0;
  /// Verifies the checksums of all files i with i % parts == part, so that ranks can share the work. File i is that of rank i;
  /// the last one is the index. Throws RunError, which names the first damaged file and the first damaged tensor in that file.
  virtual void verify(int part, int parts, const ByteProgress& progress = nullptr) const = 0;
};

/// Returns true if the checkpoint has a moving average of the parameters (average_state).
bool has_average(const TensorSource& source);

/// Fills `states`, which hold shard `shard` of `layout`, from a checkpoint of any world size and strategy. Padding becomes
/// zero, and so do the states of parameters that were not trained when the checkpoint was written, and parameters that are not
/// saved (UnitSpec::saved). The average of a parameter that was not trained becomes the parameter. Not collective.
void load_states(const CheckpointReader& reader, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                 std::span<const ShardState> states, const ByteProgress& progress = nullptr);
/// Returns `state` with only those units whose UnitSpec::saved is `saved`: the units that checkpoints store, or those of a base
/// model. Loading skips the others.
ShardState only_units(ShardState state, const Layout& layout, bool saved);
/// Fills only the parameters, from any source. A parameter p with fresh[p] keeps its values. If `fresh` is empty, all are
/// loaded; then tensors that do not fit throw UserError, as in find_mismatch().
void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     const ShardState& state, const std::vector<bool>& fresh = {}, const ByteProgress& progress = nullptr);

/// Patterns (nn/patterns.hpp) for parameters that may be missing in a source, or have another shape there, and for tensors that
/// the model need not have.
struct IgnoredTensors {
  std::vector<std::string> missing = {}, unexpected = {};
};
/// The tensors that do not fit the model, if all of their names match patterns for which the user allows that.
struct Mismatch {
  std::vector<bool> fresh;              // by parameter: true if it is not to be loaded from the source
  std::vector<std::string> unexpected;  // the names of tensors that the model does not have
  std::vector<std::string> said;  // messages: one for each of these tensors (also those that the model does not have), and one
                                  // for each pattern without effect
};
/// Compares the names and shapes of a source's tensors with a model's. Throws UserError, which names all tensors that do not
/// fit and match no pattern; `remedy` is the advice at the end of that message.
Mismatch find_mismatch(const TensorSource& source, const std::vector<Parameter>& parameters, const IgnoredTensors& ignored = {},
                       const std::string& remedy = "");

/// Opens a step folder, or the latest complete step of a save folder. Throws UserError.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::filesystem::path& path,
                                                  std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes,
                                                  Weights weights = Weights::trained);

struct ConsolidateOptions {
  const ModelFormat* format = &hdf5_format();
  DType type = DType::f32;  // of the written parameters, which are rounded from fp32 to the nearest value
  /// The largest size of a file in bytes, for formats that split a model into files. A tensor for which the current file has
  /// too little space begins a new file. 0 means that all parameters are in one file.
  std::size_t max_shard_bytes = 0;
  bool with_optimizer = false;  // also writes the optimizer's states, in fp32
};
/// Returns the states that consolidate() writes: all states of `source` with options.with_optimizer, else only
/// parameters_state. Throws UserError if optimizer states are requested and the checkpoint has none.
std::vector<std::string> consolidated_states(const TensorSource& source, const ConsolidateOptions& options);
struct Consolidated {
  std::vector<std::string> copied;    // the tokenizer's files
  std::filesystem::path copied_from;  // the step folder, or the folder that the model came from
  std::vector<std::string> warnings;  // for example, why tokenizer files were not copied
};
/// Writes every whole tensor of `source`, which comes from a checkpoint, into one model of the given format, the file or folder
/// `out`, in constant memory. The model is in the folder OUT.tmp (`out` with ".tmp") until it is complete and on disk. A killed
/// call leaves that folder, and the next call replaces it. Throws UserError if `out` exists. For one process, without MPI.
Consolidated consolidate(const TensorSource& source, const std::filesystem::path& out, const ConsolidateOptions& options,
                         const ByteProgress& progress = nullptr);

}  // namespace fsdp
