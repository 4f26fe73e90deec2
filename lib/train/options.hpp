// All options of fsdp-train: the struct that the rest of the program reads, and the table that fills it. Names come from
// fairseq, PyTorch, Hugging Face and llm.c.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/dtype.hpp"
#include "base/options.hpp"
#include "comm/mpi_session.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/wrap.hpp"
#include "h5/h5.hpp"
#include "nn/config.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedule.hpp"
#include "train/trace.hpp"

namespace fsdp {

enum class InitFrom { automatic, random, pretrained };

struct TrainOptions {
  // data
  std::filesystem::path data, valid;     // valid is empty: no validation
  std::size_t tokens_per_sample = 1024;  // T
  bool shuffle = false;
  // model: one of arch and model, or neither where a checkpoint is resumed, which has its own configuration
  std::string arch;
  std::filesystem::path model;
  bool list_archs = false;
  InitFrom init = InitFrom::automatic;  // random or pretrained once resolved; random if neither arch nor model is given
  // overrides of the model's configuration; 0: as the model says
  std::size_t decoder_layers = 0, decoder_embed_dim = 0, decoder_ffn_embed_dim = 0, decoder_attention_heads = 0,
              decoder_kv_heads = 0, vocab_size = 0;
  double dropout = 0, attention_dropout = 0;
  // batch
  std::size_t batch_size = 1;        // B: sequences per rank per micro-batch
  std::size_t update_freq = 0;       // K: micro-batches per update; at least 1 once resolved
  std::size_t total_batch_size = 0;  // G = B K ranks once resolved
  // optimizer
  OptimizerKind optimizer = OptimizerKind::adamw;
  double lr = 1e-3;
  // What is below 0 is not given, and becomes the optimizer's own default when options are resolved.
  std::array<double, 2> adam_betas = {-1, -1};
  double adam_eps = -1, momentum = -1, weight_decay = -1;
  bool amsgrad = false, nesterov = false;
  std::vector<std::string> no_decay;  // name patterns
  std::vector<std::string> lr_scale;  // "pattern=0.1"
  DType optimizer_state_dtype = DType::f32;
  double clip_norm = 0;  // 0: no clipping
  Decay lr_scheduler = Decay::fixed;
  std::size_t warmup_updates = 0;
  std::size_t total_num_update = 0;  // max_update once resolved, if not given; 0: as many as max_epoch makes
  std::size_t decay_updates = 0;     // of wsd
  double end_learning_rate = 0, power = 1;
  std::size_t max_update = 0, max_epoch = 0;  // 0: no such end; both only with dry_run
  // sharding
  std::string sharding_strategy;  // a name of placements() once resolved; full if nothing else says otherwise
  std::string ddp_backend;        // fairseq's spelling: "fully_sharded", "pytorch_ddp", or not given
  bool no_reshard_after_forward = false;
  std::size_t shard_group_size = 0;  // of the hybrid strategies; 0: the ranks of a node
  WrapPolicy::Kind wrap_policy = WrapPolicy::Kind::transformer;
  std::size_t wrap_layers = 1;               // transformer: blocks per unit
  std::size_t min_num_params = 100'000'000;  // size
  std::vector<std::string> wrap_units;       // custom
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  std::size_t limit_all_gathers = 2;  // slots
  bool accumulate_unsharded = false;
  std::vector<std::string> ignore_params, freeze, train_only;  // name patterns
  // precision
  std::string precision;  // "fp32", "bf16" or "fp16" once resolved
  bool bf16 = false, fp16 = false;
  std::string param_dtype;  // likewise
  DType reduce_dtype = DType::f32, buffer_dtype = DType::f32;
  double fp16_init_scale = 128;
  std::size_t fp16_scale_window = 0;  // 2^14 / ranks / micro-batches once resolved, if not given
  double fp16_scale_tolerance = 0, min_loss_scale = 1e-4;
  double threshold_loss_scale = 0;  // 0: none
  // memory
  bool checkpoint_activations = false;
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::block;
  std::size_t checkpoint_every = 1;  // blocks per segment
  // checkpoint
  std::filesystem::path save_dir = "checkpoints";
  std::size_t save_interval_updates = 0;  // 0: at the end and on request only
  double save_interval_s = 0;             // likewise
  bool no_async_save = false;
  h5::Compression compress = h5::Compression::none;
  std::size_t keep_last = 0, keep_every = 0;  // 0: all; none beside the last
  std::filesystem::path finetune_from;        // empty: nothing
  std::vector<std::string> ignore_missing;    // name patterns
  std::string restore = "latest";             // "latest", "none" or a path
  bool reset_optimizer = false, reset_dataloader = false;
  bool no_verify = false;
  // run
  std::string device = "auto";
  CommOptions comm = {.kind = CommKind::automatic};
  bool comm_thread = false;
  std::size_t seed = 1;
  std::size_t log_interval = 10;
  std::filesystem::path log_file;  // empty: no metrics file
  bool log_group_norms = false;
  std::size_t validate_interval_updates = 0;  // 0: at the end only
  TraceOptions trace;
  bool dry_run = false;
  std::size_t threads = 0;  // OpenMP threads per rank; 0: OMP_NUM_THREADS, or else this rank's share of the node's cores
};

/// The table over `options`.
OptionTable train_option_table(TrainOptions& options);
/// Its rows, for a program that takes the same options.
void add_train_options(OptionTable& table, TrainOptions& options);

/// Fills in what follows from other options (update_freq, total_batch_size, init, total_num_update) and checks what options say
/// together. Throws UserError; the same on every rank.
void resolve(TrainOptions& options, int world_size);
/// Checks that nothing is missing for a run: data, a model or a checkpoint to restore, a number of updates. Throws UserError.
void require_complete(const TrainOptions& options);

/// A parsed command line.
struct TrainCommand {
  TrainOptions options;  // resolved and complete, unless there is an answer
  std::optional<std::string>
      answer;  // text to print on stdout instead of training: help, version, configuration, list of models
};
/// parse, resolve and require_complete. Throws UserError: the same on every rank, unless a rank cannot read the --config file.
TrainCommand parse_train_command(int argc, const char* const* argv, int world_size);

Schedule schedule_of(const TrainOptions& options);
/// Throws UserError if warm-up and decay do not fit into the updates.
void check_schedule(const Schedule& schedule);
/// They are resolved.
OptimizerOptions optimizer_of(const TrainOptions& options);
/// Every option by name, as effective: for the metrics' start line and the checkpoint's header.
nlohmann::json to_json(const TrainOptions& options);
/// What --list-archs prints.
std::string list_of_archs();
/// Whether saves are written while training goes on: those by interval; those on request alone are not worth the memory.
bool saves_meanwhile(const TrainOptions& options);
/// The sizes of the model that are given.
ConfigOverrides overrides_of(const TrainOptions& options);
/// "--threads N", the same in every program that computes.
Option& add_threads_option(OptionTable& table, std::size_t& threads);
/// "--no-verify", the same in every program that reads checkpoints.
void add_no_verify_option(OptionTable& table, bool& no_verify);
/// --comm and --collective-timeout.
void add_comm_options(OptionTable& table, CommOptions& comm);
/// What they say of weights and activations; resolved options.
DType parameter_type(const TrainOptions& options);
void add_comm_thread_option(OptionTable& table, bool& comm_thread);
/// What --version prints: the program, its version, MPI, HDF5, oneDNN, what is off.
std::string full_version_text(std::string_view program);
/// The text that answers --help, --version and the like; none for a run.
std::optional<std::string> answer(const OptionTable& table, Request request);

}  // namespace fsdp
