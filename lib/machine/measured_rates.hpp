// Rates that fsdp-bench measured on a machine (its --json), and predictions with them: --measured FILE.
//
// On CPUs, `fsdp-bench step` writes the rates: the work of the measured update by the costs of its plan (kind.hpp), divided by
// the times that the executor measured. They are those of a node with all its ranks, so that one file is for any number of
// ranks on the same cores. On GPUs, `fsdp-bench gemm` and `fsdp-bench collectives` replace figures of data sheets.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plan/rates.hpp"
#include "plan/sharding.hpp"

namespace fsdp {

/// The work of a rank in one update.
struct UpdateWork {
  Cost model;  // forward, backward and recomputation
  double optimizer_bytes = 0, collective_bytes = 0;
};
/// `plan` and `layout` are those of plan_sharding() with these options. Pure function.
UpdateWork work_of_update(const Transformer& model, const Plan& plan, const Layout& layout, const ShardingOptions& options,
                          MeshShape mesh);

/// The seconds of a rank for the parts of UpdateWork.
struct WorkSeconds {
  double products = 0, attention = 0, memory = 0, optimizer = 0, collectives = 0;
};
/// The rates of a rank, in FLOP/s and bytes per second.
struct WorkRates {
  double products = 0, attention = 0, memory = 0, optimizer = 0, collectives = 0;  // 0: unknown
};
WorkRates rates_of_work(const UpdateWork& work, const WorkSeconds& seconds);
/// `node` has the sums of the rates of a node's ranks, each with so many threads. `cores` is the number of cores that they kept
/// busy, and `peak` their FLOP/s in a large product. The collectives' rate is null if it is unknown.
nlohmann::json to_json(const WorkRates& node, int threads, double cores, double peak);

/// The run that a prediction is for.
struct MeasuredUse {
  const GpuFigures* gpu = nullptr;  // null: CPUs
  std::string device = {};          // Device::description() of the run; empty if there is no run yet
  DType type = DType::f32;
  int ranks = 1, ranks_per_node = 1;
  double threads = 1;  // that compute, of a rank
  double cores = 0;    // of a rank; 0: its share of the cores in the file, at most one for each thread
  Queues queues = Queues::one;
};
/// Returns `rates`, which are those of use.gpu, with what the files measured instead. On CPUs all rates come from one file, and
/// `rates` is not used. Without files it returns `rates`. Throws UserError if a file is no output of fsdp-bench, if its rates
/// are impossible, and if it is of another machine or precision than the run.
Rates measured_rates(std::span<const std::string> files, const MeasuredUse& use, Rates rates = {});
/// The same for one file's content. `name` is the name of the file.
Rates measured_rates(const nlohmann::json& content, const std::string& name, const MeasuredUse& use, Rates rates = {});

}  // namespace fsdp
