// Sharded checkpoints: one HDF5 file per rank, an index whose virtual datasets show every whole parameter, a marker last. The
// format is docs/checkpoint-format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
#include "fsdp/layout.hpp"
#include "fsdp/shard_state.hpp"
#include "h5/h5.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

/// How far training has come.
struct Progress {
  std::uint64_t update = 0;  // updates done
  std::uint64_t tokens = 0;  // trained on
  DataPosition data;
  std::uint64_t optimizer_began = 0;                // the update after which the optimizer's states were zero
  std::optional<LossScalerState> loss_scaler = {};  // of fp16
  std::optional<SpikeFilterState> spikes = {};      // where updates that jump are left out
};

/// What a checkpoint says of itself, whatever reads it.
struct CheckpointHeader {
  StoredModel model;
  Progress progress;
  std::string strategy;         // "full"
  int world_size = 1;           // ranks that wrote; each rank file holds the slices that its rank owns exactly once
  int shards = 1;               // size of the shard axis
  std::vector<UnitSpec> units;  // with the number of shards and of ranks: the layout
  std::string optimizer;        // "adamw", a name of optimizers()
  std::string options_json;     // all options of the run, for inspection
  // What computed: bits of products depend on it. Of steps of a run; empty: not known.
  std::string arithmetic = {};
  std::string model_folder = {};  // the Hugging Face folder that the model came from; empty: none
  /// What save_checkpoint() writes beside the tensors. A reader leaves it null: the files lie in its folder.
  std::shared_ptr<const std::vector<TokenizerFile>> tokenizer_files = {};
  std::string version;
};

/// Collective over world. Writes save_dir/step-NNNNNNNN under a temporary name: every rank its slices, rank 0 the index, fsync,
/// barrier; rank 0 rename, marker last, barrier. On return it is durable, or every rank has thrown the same CollectiveError and
/// the temporary folder is gone; earlier checkpoints are as they were. Parameters that are not finite are such an error. A step
/// that exists is replaced only if it is not complete, else UserError. Removes what earlier runs left under temporary names. A
/// rank's index on the shard axis is rank modulo header.shards; each replica writes its part of the shard. `states` has
/// parameters_state first. Returns the folder.
std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir, const CheckpointHeader& header,
                                      const Layout& layout, std::span<const ShardState> states, Communicator& world,
                                      h5::Compression compression = h5::Compression::none);

/// A save that goes on while its caller computes. save_checkpoint() is one that is finished at once.
class CheckpointSave {
 public:
  enum class Stage {
    working,
    done,  // this rank's file is on the disk; on rank 0: the checkpoint is complete
    stuck  // it failed, or only finish() can complete it
  };
  /// Begins what save_checkpoint() does as a whole. What this rank writes is copied into `snapshot`, snapshot_bytes() long, and
  /// a thread writes it from there; `snapshot`, `layout` and `world` must outlive this. Rank 0's thread completes the
  /// checkpoint as soon as the files of all ranks are on the disk. The ranks report that by small files, because their threads
  /// may not use MPI. Without a snapshot, finish() does all that. `may_complete`, if given, is called on rank 0, by its thread,
  /// before the checkpoint is completed or files of a failed one are removed; what it throws fails the save. Collective over
  /// world; all ranks throw the same CollectiveError.
  CheckpointSave(const std::filesystem::path& save_dir, const CheckpointHeader& header, const Layout& layout,
                 std::span<const ShardState> states, Communicator& world, std::span<std::byte> snapshot = {},
                 h5::Compression compression = h5::Compression::none, std::function<void()> may_complete = nullptr);
  CheckpointSave(const CheckpointSave&) = delete;
  /// Waits for this rank's thread. The next save removes a checkpoint that is not complete.
  ~CheckpointSave();

  /// The stage of this rank's thread; done if there is none. Not collective.
  Stage stage() const;
  /// How long it took until the checkpoint was complete, in seconds; negative before. Known to rank 0 at once, to the others
  /// after finish(). Not collective.
  double took_s() const;
  /// The checkpoint's folder.
  const std::filesystem::path& folder() const;
  /// Waits for the files of all ranks, and completes the checkpoint unless that is done. Collective over world. On
  /// return it is durable, or all ranks have thrown the same CollectiveError and the temporary folder is gone.
  std::filesystem::path finish();

 private:
  struct Job;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Worker> writer_;  // last: it works on the job
};
/// The bytes of all that a rank writes. States that have as many elements as their parameters are of type `state_type`.
std::size_t snapshot_bytes(const Layout& layout, DType state_type, int rank, int world_size);

/// Long work calls it now and then with bytes done and bytes in all.
using ByteProgress = std::function<void(std::size_t, std::size_t)>;

/// Reads any part of a complete checkpoint, at any layout. Opens files as needed; checks that all are there.
class CheckpointReader : public TensorSource {
 public:
  /// `folder` is a step folder. Throws what stored::read_complete() throws. Whatever is read later is compared with its
  /// checksums unless Verify::no, and DamagedError thrown where it differs.
  static std::unique_ptr<CheckpointReader> open(const std::filesystem::path& folder, Verify verify = Verify::yes);
  virtual const CheckpointHeader& header() const = 0;
  virtual const std::filesystem::path& folder() const = 0;
  /// The bytes of all files of the checkpoint.
  virtual std::size_t file_bytes() const = 0;
  virtual bool was_trained(const std::string& name) const = 0;
  /// The root of the sum of squares when it was saved; NaN if an element was not finite; nothing if it was not stored.
  virtual std::optional<double> norm(const std::string& state, const std::string& name) const = 0;
  /// Which rank's file has which elements.
  virtual const StoredParts& parts() const = 0;
  /// Says that these elements will be read soon, so that the disk may begin. Does nothing if there are none.
  virtual void prefetch_state(const std::string& state, const std::string& name, Range range) const = 0;
  /// Compares the checksums of those files whose index (rank files, then the index file) is `part` modulo `parts`; throws
  /// RunError naming the first bad one, and in it the first bad tensor.
  virtual void verify(int part, int parts, const ByteProgress& progress = nullptr) const = 0;
};

/// Fills `states` of shard `shard` under `layout` from a checkpoint written at any world size and strategy. Padding is zero,
/// and so is the state of what was not trained when the checkpoint was written. Not collective.
void load_states(const CheckpointReader& reader, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                 std::span<const ShardState> states);
/// Fills the parameters alone, from any source. Those that `fresh` says are left zero. Throws UserError naming every tensor
/// that does not fit.
void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     const ShardState& state, const std::vector<bool>& fresh = {});

/// Tensors that do not fit and that patterns allow.
struct Mismatch {
  std::vector<bool> fresh;        // by parameter: not to be taken from the source
  std::vector<std::string> said;  // a line for each tensor, parameter or not, and for each pattern that changes nothing
};
/// Compares a source's tensors with a model's: names and shapes. Throws UserError naming all that fit neither the model nor a
/// pattern; `remedy` is what the user can do then.
Mismatch find_mismatch(const TensorSource& source, const std::vector<Parameter>& parameters,
                       const std::vector<std::string>& patterns = {}, const std::string& remedy = "");

/// `path` is a step folder, or a save folder: then its latest complete step. Throws UserError.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::filesystem::path& path,
                                                  std::vector<std::string>* warnings = nullptr, Verify verify = Verify::yes);

struct ConsolidateOptions {
  const ModelFormat* format = &hdf5_format();
  DType type = DType::f32;  // fp32 parameters are rounded to it, to nearest
  /// Where the format cuts a model into files, none gets longer: a tensor that would exceed it begins the next. 0: one file.
  std::size_t max_shard_bytes = 0;
  bool with_optimizer = false;  // its states, too, in fp32
};
/// The states that consolidate() writes: parameters_state, or all that `source` has. Throws UserError if there is nothing of an
/// optimizer.
std::vector<std::string> consolidated_states(const CheckpointReader& source, const ConsolidateOptions& options);
struct Consolidated {
  std::vector<std::string> copied;    // the tokenizer's files
  std::filesystem::path copied_from;  // the checkpoint's folder, or the one that the model came from
  std::vector<std::string> warnings;  // why others were not
};
/// Is for one process, without MPI. Streams every whole tensor from `source` into a model of this format (OUT, or OUT/), in
/// constant memory, in the folder OUT.tmp until whole and on the disk. A call that is killed leaves that folder, and the next
/// one replaces it. Throws UserError if OUT exists.
Consolidated consolidate(const CheckpointReader& source, const std::filesystem::path& out, const ConsolidateOptions& options,
                         const ByteProgress& progress = nullptr);

}  // namespace fsdp
