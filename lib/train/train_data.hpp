// The data of a training run, and the conditions that end the run.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/worker.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/batch.hpp"
#include "data/padding.hpp"
#include "data/text_data.hpp"
#include "engine/rank_data.hpp"
#include "optim/schedule.hpp"
#include "train/decision.hpp"
#include "train/setup.hpp"

namespace fsdp {

/// How the options cut data into sequences, round the columns of micro-batches up, and read texts with this tokenizer; the name
/// of the validation data, empty if there are none.
Cut data_cut(const TrainOptions& options);
ColumnRule column_rule(const TrainOptions& options);
TextReading text_reading(const TrainOptions& options, const std::string& tokenizer, std::size_t vocab_size, Warn warn);
std::string valid_name(const TrainOptions& options);

/// The texts among the data of a run, first those for training.
struct RunTexts {
  std::vector<TextSet> train, valid;
  std::vector<TextSet> all() const;
};
/// Finds the texts, and opens all other data. Throws UserError if something cannot be opened, or if `tokenizer` (empty: none is
/// known) cannot make tokens of the texts as the options say; vocab_size: of the model, 0 if it is not known.
RunTexts find_texts(const TrainOptions& options, const std::string& tokenizer, std::size_t vocab_size);
/// Reports files of the data folders that are not read, masks that are not used, and a file that is both in the training and in
/// the validation data. Returns true if there is such a file.
bool report_files(const TrainOptions& options, const Warn& say, const Warn& warn);

struct ValidData {
  ValidData(std::unique_ptr<Tokens> tokens, const TrainOptions& options, const BatchCut& cut, std::size_t vocab_size);
  /// A checksum of what a validation measures: the targets, which depend on the tokens (with the checksum `token_sum`),
  /// documents, mask and cut, and the weights.
  std::uint64_t sum(std::uint64_t token_sum, const TrainOptions& options) const;
  const Samples samples;
  const ValidBatches batches;
};

struct TrainData {
  /// Sets the position in the data in `progress`: a resumed run keeps it, any other run starts at the beginning of the data.
  /// `token_sum` is the checksum of the tokens of `mixture`, or 0. May throw on one rank and not on others.
  TrainData(const RunContext& run, const Origin& origin, const std::vector<TextSet>& texts, Mixture mixture,
            std::unique_ptr<const ValidData> valid, std::uint64_t token_sum, Progress& progress);
  TrainData(const TrainData&) = delete;
  /// What each data set has, for the metrics.
  nlohmann::json counts() const;
  /// The complete passes at two positions in the data.
  Passes passes(std::uint64_t before, std::uint64_t after) const;

  const Mixture mixture;
  const TrainBatches batches;
  const std::unique_ptr<const ValidData> valid;  // null: no validation
  const Padding padding;                         // of the first sequences, if documents or a mask make some of them short
};

/// Opens the data; returns null if all updates are done and `validates` is false, because then no data are needed. First
/// tokenizes texts, which may take long; a request to stop that `watch` receives ends the tokenizing. The run's peak of memory
/// is measured from the end of tokenizing, and `machine` records this. Warns of suspicious data. Collective over world. Throws
/// CollectiveError; if the run was asked to stop, the error has the exit code of a stopped run.
std::unique_ptr<const TrainData> open_train_data(const RunContext& run, const Origin& origin, Machine& machine,
                                                 Progress& progress, SignalWatch& watch, bool validates);

/// Opens, checks and counts the data for a dry run. Texts of more than 1 GiB are not counted; others are tokenized in a
/// temporary folder. Collective over world; throws CollectiveError.
void try_data(const RunContext& run, const Origin& origin, Machine& machine, SignalWatch& watch);

/// Returns true if --early-stopping ends the run.
bool stopped_early(const TrainOptions& options, const Progress& progress);
/// Returns true if all updates or all passes over the data are done, or if the run is stopped early. `data` may be null.
bool is_done(const TrainOptions& options, const Progress& progress, const TrainData* data);
/// The expected number of the last update. This number can fall during the run, because an update that is left out (fp16
/// overflow or spike) consumes data but does not count. `batches` may be null.
std::uint64_t last_update(const TrainOptions& options, const Progress& progress, const TrainBatches* batches);
/// The learning rate schedule. If only the number of passes over the data ends the run, the decay ends with the last pass. The
/// schedule depends only on the update and the position in the data, so a resumed run continues with the same rates.
Schedule schedule_of(const TrainOptions& options, const Progress& progress, const TrainBatches& batches);

/// What a rank computes in an update: its B x columns positions, those of them after the end of their row, its targets that
/// count, and the FLOPs of the model.
struct BatchWork {
  std::size_t positions = 0, padding = 0, targets = 0;
  double flops = 0;
};

/// Reads the batches of a run. While an update is computed, a thread reads the next batch into the memory from which it is
/// copied to the device.
class BatchSource {
 public:
  /// Reads the batch of the first update. Collective; throws CollectiveError.
  BatchSource(const LoopContext& loop, const TrainData& data);

  /// The learning rate of the next update, and the number of its targets that count, on all ranks.
  double learning_rate() const;
  double targets() const;
  /// Begins the update with the batch that has been read, and begins to read the next one. Collective.
  void load(const UpdateScalars& scalars);
  /// Advances the position in the data. Call it after Engine::judge(), whether the update counts or was left out.
  void advance();
  /// Waits until this rank's part of the next batch is read, if there is a next update. A read error is stored, not thrown:
  /// can_read() then returns false, and the ranks can still save. Not collective.
  void await();
  /// wait_ns() is the duration of the last await() in nanoseconds. waited_s() is the total of all calls since the first update
  /// in seconds.
  std::int64_t wait_ns() const { return wait_ns_; }
  double waited_s() const { return waited_s_; }
  /// The complete passes over the data before and after the last call of advance().
  Passes passes() const { return passes_; }
  bool can_read() const { return problem_ == nullptr; }
  /// What this rank computes in the update that load() has begun.
  const BatchWork& work() const { return work_; }
  /// Call it if can_read() is false on any rank, after everything is saved: all ranks throw the CollectiveError of the rank
  /// that cannot read.
  [[noreturn]] void refuse();

 private:
  void begin_reading(std::uint64_t position);
  void note_end_of_schedule();

  const LoopContext& loop_;
  const TrainData& data_;
  std::exception_ptr problem_;  // why the next batch could not be read; null: no error
  std::int64_t wait_ns_ = 0;
  Passes passes_;
  double waited_s_ = 0;
  BatchWork work_, next_work_;  // next_work_: of the batch that `reader_` reads
  Worker reader_{"fsdp-read"};  // the last member, so it is destroyed first: its thread writes into the executor's memory
};

}  // namespace fsdp
