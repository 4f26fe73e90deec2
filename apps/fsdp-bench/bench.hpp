// The measurements of fsdp-bench. All numbers of a report are measured in one run, so that their ratios are meaningful.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"
#include "machine/compute_device.hpp"
#include "machine/measure.hpp"
#include "record/trace.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct BenchOptions {
  std::string what;              // "gemm", "step", "tuning", "scaling", "collectives" or "storage"
  std::filesystem::path folder;  // of the measurement of storage
  std::string arch = "gpt2";
  bool names_model = false;     // true if the user gave `arch` or `model`
  ConfigOverrides sizes;        // sizes that replace those of the model of `arch` or `model`
  std::string changes;          // `sizes` as command-line options, for reports
  std::filesystem::path model;  // a Hugging Face folder with a config.json, used instead of `arch`; empty if `arch` is used
  ShardingOptions sharding = {.batch = {.B = 4, .T = 256}};  // of the measured updates
  std::size_t steps = 5;                                     // the number of measured updates, after two updates of warm-up
  bool fake_collectives = false, exposed = false;
  std::size_t memory_limit = 0;  // of a rank; 0 means the available memory
  bool every_strategy = true;    // for tuning: true unless the user requested one strategy
  TraceOptions trace;
  DeviceChoice device = DeviceChoice::automatic;
  AttentionBackend attention_backend = AttentionBackend::own;
  bool bias_gelu_fusion = false;
  std::size_t threads = 0;
  std::size_t largest_bytes = std::size_t{64} << 20;  // the largest message of the measurement of collectives
  std::size_t file_bytes = std::size_t{512} << 20;    // of a rank's file in the measurement of storage
  CommOptions comm = {.kind = "auto"};
  ExecutorOptions execution;
  bool comm_thread = false;
  bool json = false;
  // For `scaling`:
  int nodes = 0, ranks_per_node = 0;  // 0: those of the job
  int extrapolate = 0;                // nodes, or ranks on one node; 0: none
  double run_limit_s = 600;           // of the updates on some nodes
  std::string launcher;               // words that start ranks; empty: those of the job's scheduler
  std::filesystem::path out;          // a folder; empty: no page
  std::vector<std::string> of_step;   // the options of fsdp-bench step
};

/// Returns the configuration of --model or --arch, with `sizes` applied. Throws UserError.
TransformerConfig config_of(const BenchOptions& options);
/// Returns the device's traits for updates of a model. Collective over world.
DeviceTraits traits_for(const BenchOptions& options, const TransformerConfig& config, const ShardingOptions& sharding,
                        Device& device, Communicator& world);
/// Returns the name of the model for reports.
std::string model_of(const BenchOptions& options);
/// Returns a rate as "512 GFLOP/s" for a CPU, or as "512.0 TFLOP/s" for a GPU.
std::string format_rate(double flops, DeviceKind kind);
/// Returns the share of the peak rate, "71 %"; "-" if the peak is unknown.
std::string format_share(double flops, std::optional<double> peak);
/// Throws UserError if state would be offloaded from a CPU's memory to the same memory.
void require_places(const PlanOptions& plan, DeviceKind kind);
/// Returns the number of tokens in an update with micro-batches of this shape, over all ranks.
double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world);
/// Returns the seconds of one update by this rank's clock, from a barrier before it to a barrier after it. Afterwards the times
/// that the executor has recorded cover only this update. Collective over world.
double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world);

OptionTable bench_option_table(BenchOptions& options);

// Each returns the report, as text or as one JSON object. `world` has all processes of the job, and was made with options.comm.
// Collective over world.

std::string bench(const BenchOptions& options, Communicator& world);
/// Finds the fastest combination of batch size, strategy, and recomputation or none. The batch size doubles until a rank's
/// memory is too small. The text has a table for plotting programs. `node` has the ranks of this node.
std::string bench_tuning(const BenchOptions& options, Communicator& world, Communicator& node, Device& device);
/// On CPUs, compares this project's collectives with the MPI library's own, alternating in one run. On GPUs, measures only this
/// project's collectives: options.comm selects NCCL or transfers through host memory.
std::string bench_collectives(const BenchOptions& options, Communicator& world, Device& device);
/// Measures the collectives of an update of the model: each size, group and kind once, and how often an update calls it.
std::string bench_collectives_of_update(const BenchOptions& options, Communicator& world, Device& device);
/// Compares reads and writes of a file for state with a plain loop, alternating in one run.
std::string bench_storage(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
