// All options of fsdp-train: the structs that the library uses, and the table that fills them. The names of the options come
// from fairseq, PyTorch, Hugging Face and llm.c. Names are not used after parsing. Values that depend on files are set later,
// by the functions in setup.hpp.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"
#include "checkpoint/grown_model.hpp"
#include "comm/mpi_session.hpp"
#include "data/samples.hpp"
#include "device/gpu_figures.hpp"
#include "engine/options.hpp"
#include "engine/saver.hpp"
#include "machine/compute_device.hpp"
#include "machine/measured_rates.hpp"
#include "nn/config.hpp"
#include "optim/schedule.hpp"
#include "record/metrics.hpp"
#include "record/trace.hpp"
#include "run/executor.hpp"
#include "run/sharded_model.hpp"
#include "text/record_form.hpp"

namespace fsdp {

enum class InitFrom { random, pretrained };

/// A rehearsal of a job before it queues (--rehearse): the shape of the job, and the limits of the rehearsal.
struct RehearsalOptions {
  bool asked = false;
  int nodes = 1, ranks_per_node = 0;  // ranks_per_node: 0: not given
  const GpuFigures* gpu = nullptr;    // of each rank, to predict times; null: none
  std::string network;                // between nodes: see read_network(); empty: that of `gpu`
  std::string time;                   // the job's time limit, as Slurm writes it; empty: unknown
  std::size_t width = 64;             // of the model that the stand-ins train
  double limit_s = 300;               // the longest run of the stand-ins
};

struct TrainOptions : EngineOptions {
  // data
  std::string data, valid;       // names as in open_data.hpp; empty `valid`: the split `valid` of the data, if there is one
  std::string mask, valid_mask;  // files that say which tokens count in the loss; empty: masks of the data, else all
  BreakMode break_mode = BreakMode::none;
  std::optional<std::size_t> end_of_document;
  LongRows long_rows = LongRows::split;
  Packing packing = Packing::first_come;
  bool group_by_length = false;
  bool shuffle = false;
  std::string tokenizer;                // for texts and samples; empty: the model's tokenizer, or else bytes
  std::string json_field;               // field of JSON lines that holds the text: TextSource::json_field()
  bool chat = false;                    // texts are conversations
  RecordForm form;                      // of conversations
  std::filesystem::path chat_template;  // the template of conversations; empty: the one next to the tokenizer
  bool skip_invalid = false;
  // model: `arch` or `model` is set, or neither if the run resumes from a checkpoint, which has the configuration
  std::string arch;
  std::filesystem::path model;
  bool list_archs = false;
  InitFrom init = InitFrom::random;
  ConfigOverrides sizes;
  std::string add_tokens, add_special_tokens;  // lists or files for read_new_tokens(); empty: none
  NewTokenInit new_token_init = NewTokenInit::mean_of_pieces;
  std::size_t pad_vocab_to = 0;  // the vocabulary is a multiple of it; 0: no padding
  /// Returns true if the vocabulary may grow.
  bool grows_vocabulary() const { return !add_tokens.empty() || !add_special_tokens.empty() || pad_vocab_to > 0; }
  Lora lora;                                       // if its rank is not 0, adapters are trained
  std::vector<std::string> lora_layers;            // lora.layers, as text
  std::filesystem::path adapter;                   // adapters to start from; empty: new ones
  std::optional<kernels::Quantization> base_type;  // of the base model's matrices
  // batch, learning rate
  std::size_t total_batch_size = 0;           // sequences per update: B x micro-batches x ranks
  Schedule schedule;                          // schedule.total is 0 if only max_epoch ends the run
  double warmup_ratio = 0;                    // the warm-up's share of schedule.total; sets schedule.warmup once that is known
  double min_lr_ratio = 0;                    // sets schedule.end
  bool use_ema = false;                       // validate and sample with the average
  std::size_t max_update = 0, max_epoch = 0;  // 0: no limit; both can be 0 only with dry_run
  // checkpoints
  SaveOptions save;
  std::string stripe;                       // of the save folder on Lustre, as --stripe gives it; empty: do not set it
  double stop_before_s = 0;                 // stop this long before the batch job ends; 0: do not stop early
  std::filesystem::path finetune_from;      // empty: no fine-tuning
  std::vector<std::string> ignore_missing;  // patterns of parameter names
  std::string restore = "latest";           // "latest", "best", "none" or a path
  std::size_t decay_from = 0;               // the update of the stable step from which the decay begins; 0: no branch
  std::filesystem::path stable;             // with decay_from: the folder of that step
  bool reset_optimizer = false, reset_dataloader = false;
  bool no_verify = false;
  std::string recompute_num_layers = "0";  // or "auto"; a number sets sharding.plan.recomputed_blocks
  bool offload_activations = false;        // these two set sharding.plan.offloaded_inputs
  std::size_t offloaded_layers = 0;        // 0: all that are recomputed
  bool chooses_blocks = false;             // the memory decides which blocks are recomputed
  // run
  std::vector<std::string> measured;                                    // files of `fsdp-bench --json` for predictions
  std::string task = "language_modeling", criterion = "cross_entropy";  // the only accepted values, for fairseq command lines
  DeviceChoice device = DeviceChoice::automatic;
  AttentionBackend attention_backend = AttentionBackend::own;
  bool bias_gelu_fusion = false;
  CpuDeviceOptions cpu;
  std::size_t log_interval = 10;
  LogFormat log_format = LogFormat::automatic;
  std::filesystem::path log_file;     // empty: no metrics file
  std::filesystem::path tensorboard;  // a folder for event files; empty: none
  bool no_report = false;             // do not write the page of the run into the save folder
  bool log_group_norms = false;
  std::size_t validate_interval_updates = 0;  // 0: at the end only
  std::size_t validate_interval_epochs = 0;   // passes over the data between validations; 0: not by passes
  std::size_t early_stopping = 0;             // stop after this many validations without a smaller loss; 0: do not
  std::size_t max_valid_steps = 0;            // the most batches of a rank in a validation; 0: all data
  bool eval_on_start = false;                 // also validate before the first update
  std::size_t sample_interval_updates = 0;    // 0: no samples
  std::string sample_prompt = "\n";
  TraceOptions trace;
  bool dry_run = false;
  RehearsalOptions rehearsal;
  /// Returns true if there are validations before the end.
  bool validates_often() const { return validate_interval_updates > 0 || validate_interval_epochs > 0; }
  /// Returns true if the result of a validation decides about checkpoints; it then comes before the save of its update.
  bool judges() const { return !save.keep_best.empty() || early_stopping > 0; }
  std::size_t threads = 0;  // OpenMP threads per rank; 0: OMP_NUM_THREADS, or else this rank's share of the node's cores
};

/// Adds the rows that fill `options`, and the checks of options against each other, for every program that accepts them.
/// `ranks` returns the number of ranks of the run; it is called after the options are read.
void add_train_options(OptionTable& table, TrainOptions& options, std::function<int()> ranks);
/// The table of fsdp-train.
OptionTable train_option_table(TrainOptions& options, int ranks);
/// Throws UserError if there are no data, or if an option about the data has no effect.
void require_data(const TrainOptions& options);
/// Throws UserError if something that a run needs is missing: data, a model or a checkpoint to restore, a number of updates.
void require_complete(const TrainOptions& options);

/// A parsed command line.
struct TrainCommand {
  TrainOptions options;  // complete if `answer` is empty
  std::optional<std::string>
      answer;  // text to print on stdout instead of training: help, version, configuration, list of models
};
/// Throws UserError. All ranks throw the same error, unless a rank cannot read the --config file. If `problems` is not null, it
/// receives the errors of options that do not fit together, or not to the number of ranks.
TrainCommand parse_train_command(int argc, const char* const* argv, int world_size,
                                 std::vector<std::string>* problems = nullptr);
/// Returns the words of a command line that sets these options, and no others.
std::vector<std::string> words_of(const TrainOptions& options, int ranks);

/// Returns a message of the library with the option names of fsdp-train, as OptionTable::name_options() does.
std::string with_option_names(const std::string& message);

/// Throws UserError if warm-up and decay do not fit into the number of updates.
void check_schedule(const Schedule& schedule);
/// How a job with these options uses the files of --measured; `gpu` is null on CPUs. A rank has as many threads as the options
/// say, at least one, and the device is not known yet.
MeasuredUse measured_use(const TrainOptions& options, const Cluster& cluster, const GpuFigures* gpu);
/// Every option by name with its effective value, for the start line of the metrics and the header of the checkpoint.
nlohmann::json to_json(const TrainOptions& options);
/// The text of --list-archs.
std::string list_of_archs();

}  // namespace fsdp
