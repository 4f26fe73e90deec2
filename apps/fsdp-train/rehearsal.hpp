// `fsdp-train --rehearse`: checks a job before it queues, in one process without MPI. It plans the job for its nodes as
// fsdp-plan does, looks at its data, files and limits, and then starts the stand-ins: fsdp-train itself with few ranks on this
// machine, with the options, layers, units, strategy and data of the job, but a narrow model and a handful of updates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace fsdp {

/// Returns the seconds of a time limit as sbatch's --time has it: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.
/// Throws UserError. Source: the manual page of sbatch, "--time".
double slurm_seconds(const std::string& text);

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
/// The number of updates before and after the stand-ins' resumption.
inline constexpr std::size_t first_updates = 3, all_updates = 5;

/// Returns how many of the job's shards a group of `ranks` stand-ins has: the nearest number that divides them, with more than
/// one group if the job has more than one.
int shard_group_of(int ranks, MeshShape job);
/// Returns the options of the stand-ins of a job. `narrow` is their model, `adapters` those of the job's model.
TrainOptions stand_in_options(TrainOptions job, const StandIns& stand_ins, const Lora& adapters, double shrunk);

/// What the job needs by its plan.
struct JobNeeds {
  std::optional<double> update_s;  // predicted
  std::uint64_t updates = 0;       // 0: unknown
  std::uint64_t save_bytes = 0, saves = 0, kept = 0;
};
/// Returns how often the job saves, and how many steps there are at most at the same time.
void count_saves(const SaveOptions& save, JobNeeds& needs);
/// Return what would fail, as sentences with a remedy.
std::vector<std::string> judge_time(const TrainOptions& job, const JobNeeds& needs);
std::vector<std::string> judge_space(const TrainOptions& job, const JobNeeds& needs, std::uint64_t free_bytes,
                                     const std::string& folder);

/// The program: `job` has the options, and `problems` what is wrong with them. Prints the result. Returns the exit code.
int rehearse(const TrainOptions& job, std::vector<std::string> problems, const std::string& program);

}  // namespace fsdp
