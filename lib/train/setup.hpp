// What a training run finds and decides before its loop: each part by one function, complete when that returns.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_lock.hpp"
#include "text/tokenizer_files.hpp"
#include "train/machine.hpp"
#include "train/memory.hpp"
#include "train/origin.hpp"
#include "train/run_context.hpp"
#include "train/signals.hpp"
#include "train/trace.hpp"

namespace fsdp {

struct TrainData;

/// What a training run computes with.
struct Machine : ComputingRank {  // a dry run has no device
  DeviceKind kind = DeviceKind::cpu;
  std::optional<double> peak_flops = {};  // of all devices of the job, if it is known
  bool measured_peak = false;             // now, of CPUs
  std::size_t start_bytes = 0;            // what the process had used before
  const char* measured_since = "its start";
};

// Collective over world if nothing else is said; they throw CollectiveError.

/// As the options say; a dry run asks no device.
Machine find_machine(const TrainOptions& options, Communicator& world);
std::unique_ptr<Metrics> open_log(const TrainOptions& options, Communicator& world);
/// Rank 0 takes the lock, the others have null, as a dry run does. An earlier start of this job ends once it has saved, or when
/// a collective that hangs times out; `watch` can stop the waiting.
std::unique_ptr<SaveLock> take_save_folder(const RunContext& run, SignalWatch& watch);
/// Rank 0's, if a trace is asked for.
std::unique_ptr<TraceFile> open_trace(const RunContext& run);
/// Where the run stands as it begins, but for the data.
Progress first_progress(const RunContext& run, const Origin& origin, const Machine& machine);
/// Layout and plan, without memory.
ShardedModel make_model(const RunContext& run, const Origin& origin, const Machine& machine);
/// Of the model's tokenizer, on rank 0: they go into checkpoints.
std::shared_ptr<const std::vector<TokenizerFile>> keep_tokenizer_files(const RunContext& run, const Origin& origin);

/// What makes products there: their bits depend on it. Not collective.
std::string arithmetic_of(const Machine& machine);
/// What a dry run prints, to stdout. Not collective.
void print_plan(const ShardedModel& model, const MemoryAccount& memory);
/// Says what the run is, and on what it runs.
void announce(const RunContext& run, const Machine& machine, const ShardedModel& model, const MemoryAccount& memory,
              const Progress& progress, const TrainData* data);

/// Takes the memory of the run, fills it with the weights and the states that belong to them, and closes the files of `origin`.
void prepare(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, Origin& origin);

}  // namespace fsdp
