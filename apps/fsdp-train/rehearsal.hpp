// `fsdp-train --rehearse`: checks a job before it queues, in one process without MPI. It plans the job for its nodes as
// fsdp-plan does, looks at its data, files and limits, and runs it with the stand-ins (stand_ins.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"
#include "train/save_space.hpp"

namespace fsdp {

/// Returns the seconds of a time limit as sbatch's --time has it: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.
/// Throws UserError. Source: the manual page of sbatch, "--time".
double slurm_seconds(const std::string& text);

/// What the job needs by its plan.
struct JobNeeds {
  std::optional<double> update_s;  // predicted
  std::uint64_t updates = 0;       // 0: unknown
  WillWrite saves = {};
};
/// Returns what would fail, as sentences with a remedy.
std::vector<std::string> judge_time(const TrainOptions& job, const JobNeeds& needs);

/// The program: `job` has the options, and `problems` what is wrong with them. Prints the result. Returns the exit code.
int rehearse(const TrainOptions& job, std::vector<std::string> problems, const std::string& program);

}  // namespace fsdp
