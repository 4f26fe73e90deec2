// A setup holds all that a run decides before it takes memory: the machine that it runs on, where it begins, its model, layout,
// plan and data. A dry run ends here, and so does a run that has nothing to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "checkpoint/save_lock.hpp"
#include "data/batch.hpp"
#include "data/text_data.hpp"
#include "fsdp/sharded_model.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_files.hpp"
#include "train/machine.hpp"
#include "train/memory.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"
#include "train/origin.hpp"
#include "train/signals.hpp"
#include "train/trace.hpp"

namespace fsdp {

struct Setup {
  /// Takes the save folder, finds where to begin, computes layout and plan, opens the data and says all that; in a dry run it
  /// touches no file of others and opens no data. Texts among the data become tokens here, which may take long: `watch`, if not
  /// null, can stop that. Collective over world, which must outlive it, as options must. Throws CollectiveError, with the exit
  /// code of a stopped run if it was asked to stop.
  Setup(const TrainOptions& options, Communicator& world, SignalWatch* watch = nullptr);
  Setup(const Setup&) = delete;

  /// What a dry run prints, to stdout.
  void print_plan() const;
  /// All updates or all passes over the data are done.
  bool done() const;
  /// The last update, as far as it is known: an overflow in fp16 uses up data without an update.
  std::uint64_t last_update() const;
  /// Where passes over the data are the only end, the decay ends with them: a function of the update and the position, so that
  /// a resumed run continues with the same rates.
  Schedule schedule() const;
  /// The share of the peak of the job's devices, if it is known. All positions count, also those that are not in the loss. A
  /// stored rate of the cores that the run exceeds is forgotten, with a warning.
  std::optional<double> mfu(double positions_per_second);
  void warn(const std::string& text);
  /// What makes products here: their bits depend on it.
  std::string arithmetic() const;

  const TrainOptions& options;
  Communicator& world;
  ComputingRank rank;           // a dry run has no device
  std::size_t start_bytes = 0;  // what the process had used before
  const char* measured_since = "its start";
  std::optional<double> peak_flops;  // of all devices of the job, if it is known
  CorePeak core_peak;                // likewise, of CPUs
  nlohmann::json options_json;
  std::optional<Metrics> metrics;
  std::optional<SaveLock> save_lock;    // rank 0's
  std::optional<TraceFile> trace_file;  // rank 0's
  Origin origin;
  Progress progress;  // where the run stands; it goes on from here
  std::optional<ShardedModel> sharded;
  MemoryAccount memory;
  BatchCut cut;
  std::optional<Mixture> train_data;
  std::optional<Samples> valid_data;
  std::optional<TrainBatches> train_batches;  // none where all updates are done: then nobody needs the data
  std::optional<ValidBatches> valid_batches;
  std::shared_ptr<const std::vector<TokenizerFile>> tokenizer_files;  // rank 0's: they go into checkpoints
  std::unique_ptr<Tokenizer> tokenizer;  // for samples of what the model says; null: there are none
  std::vector<TokenId> sample_prompt, sample_end;

 private:
  std::vector<TextSet> texts_;  // of the training data
  DeviceKind start();
  void note_arithmetic(const CheckpointHeader& before);
  std::uint32_t open_files();
  std::filesystem::path text_tokens() const { return options.save.folder / "tokens"; }
  Cut data_cut() const { return {cut.T, options.break_mode, options.end_of_document, options.sharding.plan.documents}; }
  void take_save_folder(SignalWatch* watch);
  void make_tokens_of_texts(SignalWatch* watch);
  void open_data();
  void warn_of_files();
  /// Warns of files of a tokenizer that differ from those that the checkpoint has kept.
  void note_changed_files(const std::vector<TokenizerFile>& now);
  void open_tokenizer();
  std::optional<NodeTraffic> traffic_of_nodes();
  void announce();
};

}  // namespace fsdp
