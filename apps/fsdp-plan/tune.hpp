// fsdp-plan --tune: searches the options that are fastest by prediction and fit the memory. Also computes the hours, energy and
// cost of --tokens.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fsdp-plan/plan_table.hpp"
#include "fsdp-plan/what_if.hpp"

namespace fsdp {

/// none: no block. fewest: the fewest first blocks with which it fits. all: --checkpoint-activations. all_from_host: all
/// blocks, with their inputs in host memory.
enum class Recompute { none, fewest, all, all_from_host };

/// A combination of the options that the search varies, and its prediction.
struct TunedOptions {
  const Placement* placement = nullptr;
  int shard_group_size = 0;  // 0 unless the strategy is hybrid
  std::size_t batch_size = 1, micro_batches = 1;
  AttentionBackend attention = AttentionBackend::own;
  StatePlaces places = {};
  Recompute recompute = Recompute::none;
  std::size_t recomputed_blocks = 0, offloaded_inputs = 0;       // as in PlanOptions
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::block;  // these two are the user's if all blocks are recomputed
  std::size_t checkpoint_every = 1;

  std::size_t memory = 0, on_host = 0;  // of a rank, and of its host if it computes on a GPU
  bool fits = false;
  StepPrediction step = {};  // if it fits, as the next two
  double tokens_per_second = 0, mfu = 0;
};

struct Tuning {
  std::vector<TunedOptions> best;       // those that fit, at most ten; the fastest first
  std::optional<TunedOptions> nearest;  // what exceeds the memory least, if nothing fits
  TunedOptions own;                     // the options of the user
  std::vector<std::string> left_out;    // names of the user's options that contradict or change the first of `best`
  std::size_t combinations = 0;         // in all
  std::size_t planned = 0;              // of these, planned; the others are impossible or only do more work
  std::size_t predicted = 0;            // of these, simulated
  std::string without_cudnn;            // why no combination has cuDNN's attention; empty if some have, and on CPUs
  double seconds = 0;                   // of the search
};

/// Searches all combinations. Held constant: the sequence length, all options that are not in TunedOptions and, if
/// options.keeps_update, the tokens of an update. Without it, an update has one micro-batch, of 1, 2, 4, ... sequences.
/// Requires table.predicts() and a memory limit. Deterministic.
Tuning tune(const PlanTable& table);
/// The options as a command line sets them: names and values; a flag has an empty value.
std::vector<std::pair<std::string, std::string>> words_of(const TunedOptions& tuned);

/// What training on a number of tokens takes.
struct TrainingCost {
  double updates = 0, hours = 0;
  double device_hours = 0;  // of GPUs; without GPUs, of nodes
  double kwh = 0;           // of the GPUs at their power limit; 0 without GPUs
  double cost = 0;          // 0: without a price
};
/// `seconds` and `tokens_of_update` are those of an update of all ranks.
TrainingCost training_cost(const PlanTable& table, double seconds, double tokens_of_update);

/// Returns the lines of --tune, or those of --tokens and of the critical path for the chosen strategy; an empty string if
/// there are no predictions.
std::string describe_use(const PlanTable& table);
/// The same as an object for --json; empty if there are no predictions.
nlohmann::json use_json(const PlanTable& table);

}  // namespace fsdp
