// What fsdp-bench measures. Every figure comes from this run, and shares are ratios of figures of the same run.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"
#include "fsdp/sharded_model.hpp"
#include "train/compute_device.hpp"
#include "train/trace.hpp"

namespace fsdp {

struct BenchOptions {
  std::string what;  // "gemm", "attention", "step", "tuning", "collectives", "optimizer" or "checkpoint"
  std::string arch = "gpt2";
  ConfigOverrides sizes;                                     // changes to that model
  std::string changes;                                       // the same, as options
  std::filesystem::path model;                               // a Hugging Face folder, whose config.json counts; empty: arch
  ShardingOptions sharding = {.batch = {.B = 4, .T = 256}};  // of the updates that are measured
  std::size_t steps = 5;                                     // counted, after two that are not
  bool fake_collectives = false, exposed = false;
  std::size_t memory_limit = 0;  // of a rank; 0: what there is
  bool every_strategy = true;    // none was asked for
  TraceOptions trace;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  std::size_t largest_bytes = std::size_t{64} << 20;  // of collectives
  CommOptions comm = {.kind = "auto"};
  bool comm_thread = false;
  std::string optimizer;  // empty: all
  std::filesystem::path save_dir = ".";
  bool json = false;
};

/// The configuration that --model or --arch names, with `sizes` applied. Throws UserError.
TransformerConfig config_of(const BenchOptions& options);
/// How reports call it.
std::string model_of(const BenchOptions& options);

OptionTable bench_option_table(BenchOptions& options);

/// The report, as text or as one JSON object; world is made by options.comm. Collective over world.
std::string bench(const BenchOptions& options, Communicator& world);

}  // namespace fsdp
