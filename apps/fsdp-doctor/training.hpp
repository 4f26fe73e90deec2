// A check that trains a small model on all ranks, and compares the time of an update with the plan's prediction.
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
  /// Of that update: seconds in which the slowest rank computed; the rest of the update is transfers. 0: unknown (GPUs).
  double compute_s = 0;
  double predicted_compute_s = 0, predicted_transfers_s = 0;  // from the measured rates and the plan; 0: none
  /// The tokens that a rank needs in a micro-batch to compute for as long as the nodes exchange data; 0: one node, or unknown.
  double tokens_to_balance = 0;
  bool network_is_slow = false;  // true if the check of the network has warned
  std::string model = {};        // the size of the model: "0.12 M parameters"
  std::size_t ranks = 1;
  std::string backend = {};  // "MPI between 2 nodes, shared memory within"
};
Finding judge_training(const TrainingFigures& training);

std::optional<Finding> check_training(DoctorJob& job);

}  // namespace fsdp
