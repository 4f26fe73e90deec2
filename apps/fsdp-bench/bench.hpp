// The measurements of fsdp-bench. All numbers of a report are measured in one run, so that their ratios are meaningful.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"
#include "machine/compute_device.hpp"
#include "record/trace.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct BenchOptions {
  std::string what;  // "gemm", "step", "tuning" or "collectives"
  std::string arch = "gpt2";
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
  std::size_t threads = 0;
  std::size_t largest_bytes = std::size_t{64} << 20;  // the largest message of the measurement of collectives
  CommOptions comm = {.kind = "auto"};
  bool comm_thread = false;
  bool json = false;
};

/// Returns the configuration of --model or --arch, with `sizes` applied. Throws UserError.
TransformerConfig config_of(const BenchOptions& options);
/// Returns the name of the model for reports.
std::string model_of(const BenchOptions& options);

OptionTable bench_option_table(BenchOptions& options);

/// Returns the report, as text or as one JSON object; `world` was made with options.comm. Collective over world.
std::string bench(const BenchOptions& options, Communicator& world);

}  // namespace fsdp
