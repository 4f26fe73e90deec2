// Sets up a training run before its loop. Each part is made by one function, and is complete when that function returns.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_lock.hpp"
#include "engine/memory.hpp"
#include "job/signals.hpp"
#include "machine/machine.hpp"
#include "record/trace.hpp"
#include "text/tokenizer_files.hpp"
#include "train/origin.hpp"
#include "train/run_context.hpp"

namespace fsdp {

struct TrainData;

/// The devices of a training run and their speed.
struct Machine : ComputingRank {  // a dry run has no device
  DeviceKind kind = DeviceKind::cpu;
  AttentionChoice attention = {};
  std::optional<double> peak_flops = {};     // the sum over all devices of the job; empty if unknown
  bool measured_peak = false;                // true: the peak of CPUs was measured at this start
  std::size_t start_bytes = 0;               // peak memory of the process before the run allocates
  const char* measured_since = "its start";  // the event at which start_bytes was measured, for a message
};

// All functions below are collective over world and throw CollectiveError, unless the comment of a function says otherwise.

/// Finds the devices that `options` ask for. A dry run uses no device.
Machine find_machine(const TrainOptions& options, Communicator& world);
/// Chooses how `machine` computes attention. Prints a line if the checkpoint to resume was computed in another way.
void find_attention(const RunContext& run, const Origin& origin, Machine& machine);
/// Opens the files of the metrics. A file in the save folder is opened once everything else has been checked, because the
/// folder must not appear if the run is refused.
void open_metrics(const RunContext& run);
/// Rank 0 takes the lock of the save folder. Other ranks get null, and so do all ranks of a dry run. If an earlier start of
/// this job still holds the lock, rank 0 waits until that start has ended, but not much longer than the timeout of collectives.
/// A request to stop that `watch` receives ends the wait.
std::unique_ptr<SaveLock> take_save_folder(const RunContext& run, SignalWatch& watch);
/// Returns the given options that are for the first start of a run only: --restore, --reset-optimizer and --reset-dataloader.
/// Not collective.
std::vector<std::string> options_of_first_start(const TrainOptions& options);
/// Returns the batch job of this process and its options for the first start, with the value of --restore; empty outside of a
/// job. Not collective.
std::string first_start_of(const TrainOptions& options);
/// If this is a later start of a batch job, and an earlier one with the same options has saved, resets these options, which
/// have been applied, and says so. `options` are those of `run`. The caller must have the lock of the save folder.
void drop_options_of_first_start(const RunContext& run, TrainOptions& options);
/// Creates the trace file on rank 0 if --trace is given; else returns null.
std::unique_ptr<TraceFile> open_trace(const RunContext& run);
/// The progress with which the run begins, except the position in the data, which open_train_data() sets.
Progress first_progress(const RunContext& run, const Origin& origin, const Machine& machine);
/// Makes the engine with layout and plan, but does not allocate the memory of weights and other buffers. A save fails once
/// `lock`, that of the save folder on rank 0 (null: none), is lost.
Engine make_engine(const RunContext& run, const Origin& origin, const Machine& machine, const SaveLock* lock);
/// Reads the files of the model's tokenizer on rank 0, to store them in checkpoints. Null on other ranks or without a
/// tokenizer.
std::shared_ptr<const std::vector<TokenizerFile>> keep_tokenizer_files(const RunContext& run, const Origin& origin);

/// Describes what computes matrix products: the library or device, and the number of threads. The bits of a run depend on both.
/// Not collective.
std::string arithmetic_of(const Machine& machine);
/// Prints the plan of a dry run to stdout; `node_ranks` is the number of ranks of this node. Not collective.
void print_plan(const ShardedModel& model, const MemoryAccount& memory, int node_ranks);
/// Throws UserError on all ranks if the files of a node's ranks need more than the free bytes of `folder` on that node.
/// Collective over run.world.
void require_disk(const RunContext& run, const Machine& machine, const MemoryAccount& memory,
                  const std::filesystem::path& folder);
/// Logs a description of the run and its devices, and the start line of the metrics.
void announce(const RunContext& run, const Machine& machine, const ShardedModel& model, const MemoryAccount& memory,
              const Progress& progress, const TrainData* data, const Origin& origin);

/// Allocates the memory of the run, loads or initializes weights and optimizer state, and closes the files of `origin`.
void prepare(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, Origin& origin, Observer& flight);

}  // namespace fsdp
