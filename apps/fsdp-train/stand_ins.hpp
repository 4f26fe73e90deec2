// The stand-ins of a rehearsal: fsdp-train itself with few ranks on this machine, with the options, layers, units, strategy and
// data of the job, but a narrow model and a handful of updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "job/launch.hpp"
#include "nn/config.hpp"
#include "options/options.hpp"
#include "train/origin.hpp"

namespace fsdp {

/// The kind of device of the job's ranks. Its nodes may have GPUs although this machine has none: some options are only for
/// GPUs.
DeviceKind kind_of_job(const TrainOptions& job);

/// Returns the same model with at most `width` columns, without adapters. Fewer heads, which are smaller, share them; the ratio
/// of query to key/value heads is kept as far as the heads allow, and the inner width is in proportion.
TransformerConfig narrow_config(TransformerConfig config, std::size_t width);

/// What the stand-ins are, next to their model.
struct StandIns {
  int ranks = 1, shard_group = 0;  // shard_group: with a hybrid strategy
  std::size_t tokens_per_sample = 0;
  std::filesystem::path folder;  // has all of their files
  std::string tokenizer, data, valid;
};
/// The number of updates before the stand-ins' resumption, and in all.
inline constexpr std::size_t first_updates = 3, all_updates = 5;

/// Returns the size of the shard groups of `ranks` stand-ins: the nearest one to the job's that divides them, with more than
/// one group if the job has more than one.
int shard_group_of(int ranks, MeshShape job);
/// Returns the options of the stand-ins of a job. `adapters` are those of the job's model. `shrunk`: the parameters of the
/// narrow model, divided by those of the job's model.
TrainOptions stand_in_options(TrainOptions job, const StandIns& stand_ins, const Lora& adapters, double shrunk);

/// How to start ranks on this machine only, also inside a job. Throws UserError if this process was started by mpirun or srun.
Allocation this_machine();

/// What the stand-ins did.
struct StandInResult {
  std::string done;                   // "8 ranks on this machine: 3 updates, ..."; empty: they did not run to their end
  std::vector<std::string> cut;       // in what they differ from the job: "width 64 (of 4096)"
  std::vector<std::string> warnings;  // that they printed
  std::uint64_t sequences = 0;        // in a pass over the job's data; 0: unknown
};
/// Begins the messages of a run of the stand-ins that failed.
inline constexpr std::string_view from_stand_ins = "stand-ins: ";
/// Runs them, with all of their files in `folder`. `mesh` is that of the job, `program` the path of fsdp-train. Throws
/// exceptions with what failed; `result` then has what is known. No process is left afterwards.
void run_stand_ins(const TrainOptions& job, const Origin& origin, MeshShape mesh, const std::filesystem::path& folder,
                   const Allocation& machine, const std::string& program, StandInResult& result);

}  // namespace fsdp
