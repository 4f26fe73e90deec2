// A check that trains a small model on all ranks, and compares where its time goes with the plan's prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

struct TrainingFigures {
  std::vector<double> losses = {};  // the loss of each update, on rank 0
  bool agreed = true;               // true if all ranks have the same losses
  double update_s = 0;              // the time of the fastest update
  std::string model = {};           // the size of the model: "0.12 M parameters"
  std::size_t ranks = 1;
  std::string backend = {};  // "MPI between 2 nodes, shared memory within"
};
Finding judge_training(const TrainingFigures& training);
Finding judge_update(const UpdateSplit& split, bool network_is_slow);

/// Also sets job.split.
std::optional<Finding> check_training(DoctorJob& job);
/// Returns no finding without job.split.
std::optional<Finding> check_update(DoctorJob& job);

}  // namespace fsdp
