// All options of fsdp-train: the structs that the library uses, and the table that fills them. Names come from fairseq,
// PyTorch, Hugging Face and llm.c; they end in parsing. Only what depends on files is decided later, in setup.hpp.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"
#include "comm/mpi_session.hpp"
#include "data/samples.hpp"
#include "fsdp/executor.hpp"
#include "fsdp/sharded_model.hpp"
#include "nn/config.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/schedule.hpp"
#include "train/compute_device.hpp"
#include "train/metrics.hpp"
#include "train/saver.hpp"
#include "train/trace.hpp"

namespace fsdp {

enum class InitFrom { random, pretrained };

struct TrainOptions {
  // data
  std::string data, valid;       // open_data.hpp; valid is empty: what belongs to the data, or no validation
  std::string mask, valid_mask;  // which tokens count; empty: what the data say, or all
  BreakMode break_mode = BreakMode::none;
  std::optional<std::size_t> end_of_document;
  bool shuffle = false;
  std::string tokenizer;   // of texts, samples and the model; empty: that of the model, or bytes
  std::string json_field;  // of texts, as TextSource::json_field() takes it
  bool skip_invalid = false;
  // model: one of arch and model, or neither where a checkpoint is resumed, which has its own configuration
  std::string arch;
  std::filesystem::path model;
  bool list_archs = false;
  InitFrom init = InitFrom::random;
  ConfigOverrides sizes;
  double dropout = 0, attention_dropout = 0;
  // batch, sharding, precision, recomputation, optimizer
  ShardingOptions sharding = {.batch = {.B = 1, .T = 1024}};
  std::size_t total_batch_size = 0;           // B K ranks
  Schedule schedule;                          // its total is 0 where passes over the data are the only end
  double clip_norm = 0, clip_value = 0;       // 0: no clipping
  double skip_spikes = 0;                     // standard deviations; 0: no update is left out
  std::size_t max_update = 0, max_epoch = 0;  // 0: no such end; both only with dry_run
  LossScalerOptions loss_scaler;              // of fp16
  // checkpoints
  SaveOptions save;
  double stop_before_s = 0;                 // the end of the Slurm job; 0: do not
  std::filesystem::path finetune_from;      // empty: nothing
  std::vector<std::string> ignore_missing;  // name patterns
  std::string restore = "latest";           // "latest", "none" or a path
  bool reset_optimizer = false, reset_dataloader = false;
  bool no_verify = false;
  // run
  std::string task = "language_modeling", criterion = "cross_entropy";  // there is no other
  DeviceChoice device = DeviceChoice::automatic;
  CommOptions comm = {.kind = "auto"};
  CpuDeviceOptions cpu;
  ExecutorOptions execution;
  std::size_t seed = 1;
  std::size_t log_interval = 10;
  LogFormat log_format = LogFormat::automatic;
  std::filesystem::path log_file;  // empty: no metrics file
  bool log_group_norms = false;
  std::size_t validate_interval_updates = 0;  // 0: at the end only
  std::size_t sample_interval_updates = 0;    // 0: the model says nothing
  std::string sample_prompt = "\n";
  TraceOptions trace;
  bool dry_run = false;
  std::size_t threads = 0;  // OpenMP threads per rank; 0: OMP_NUM_THREADS, or else this rank's share of the node's cores
};

/// The rows over `options`, for every program that takes them, and the rules between them. `ranks` says how many ranks the run
/// has, once options are read.
void add_train_options(OptionTable& table, TrainOptions& options, std::function<int()> ranks);
/// fsdp-train's own table.
OptionTable train_option_table(TrainOptions& options, int ranks);
/// Checks that nothing is missing for a run: data, a model or a checkpoint to restore, a number of updates. Throws UserError.
void require_complete(const TrainOptions& options);

/// A parsed command line.
struct TrainCommand {
  TrainOptions options;  // complete, unless there is an answer
  std::optional<std::string>
      answer;  // text to print on stdout instead of training: help, version, configuration, list of models
};
/// Throws UserError: the same on every rank, unless a rank cannot read the --config file.
TrainCommand parse_train_command(int argc, const char* const* argv, int world_size);

/// A message of the library in the words of fsdp-train: OptionTable::name_options().
std::string with_option_names(const std::string& message);

/// Throws UserError if warm-up and decay do not fit into the updates.
void check_schedule(const Schedule& schedule);
/// Every option by name, as effective: for the metrics' start line and the checkpoint's header.
nlohmann::json to_json(const TrainOptions& options);
/// What --list-archs prints.
std::string list_of_archs();

}  // namespace fsdp
