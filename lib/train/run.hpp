// Everything that a training run holds, and the few things that it does. Made before the loop of train.cpp, which only calls
// it. Constructing, preparing, stepping, validating, saving and finishing are collective over world.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/save_lock.hpp"
#include "data/batch.hpp"
#include "fsdp/sharded_model.hpp"
#include "optim/loss_scaler.hpp"
#include "train/group_norms.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"
#include "train/origin.hpp"
#include "train/trace.hpp"

namespace fsdp {

/// About what matrix products of this type take beside the plan.
std::size_t gemm_bytes(const TransformerConfig& config, BatchShape batch, DType type);

class Run {
 public:
  /// Takes the save folder, finds where to begin, computes layout and plan. Allocates no memory of the plan. Throws
  /// CollectiveError.
  Run(const TrainOptions& options, Communicator& world);

  /// What --dry-run prints, to stdout.
  void print_plan() const;
  /// Finds where in its data the run goes on, and so whether anything is left to do.
  void open_data();
  /// What runs here, of which model, with how much memory; the metrics' start line.
  void announce();
  /// Memory and weights: after it steps can be done.
  void prepare();

  /// Reads this rank's part of the next update, before anything of it begins: a rank that cannot read says so while all can
  /// still save. Not collective. Nothing if all updates are done.
  void read_ahead();
  bool can_read() const { return data_problem_ == nullptr; }
  /// Where some rank could not: all throw its CollectiveError. Everything has been saved.
  [[noreturn]] void refuse_data();

  /// Forward, backward, reduction, optimizer: one update. False: it overflowed in fp16, its batch was left out, and the loss
  /// scale is lower now. Throws CollectiveError if it is not finite otherwise.
  bool step();
  void validate();
  /// A checkpoint, unless this update has been saved already; the one before is finished first. Where saves are asynchronous it
  /// goes on while steps are done, unless `wait`.
  void save(bool wait);
  /// Whether a save goes on; whether this rank has written its part of it.
  bool saving() const { return save_ != nullptr; }
  bool saved_its_part() const { return !save_ || save_->written(); }
  /// Makes a checkpoint of it once all ranks have; then older ones go, as --keep-last says.
  void finish_save();
  /// Whether --save-interval has passed on this rank since the last save.
  bool save_is_due() const { return options_.save.interval_s > 0 && since_save_.seconds() >= options_.save.interval_s; }

  /// All updates or all passes over the data are done; the latter is known after open_data().
  bool done() const;
  std::uint64_t update() const { return progress_.update; }

  void warn(const std::string& text) { metrics_->say("warning: " + with_option_names(text)); }
  void say_stopping(const std::string& reason) { metrics_->stop(progress_.update, reason); }
  /// The closing lines: how it went, planned beside measured memory, how to go on.
  void finish(const std::string& next);

 private:
  [[noreturn]] void refuse(const UpdateResult& result, const BatchReader& read, const UpdateScalars& scalars);
  void open_files();
  std::uint64_t last_update() const;
  Schedule schedule() const;
  void fill_weights();
  std::vector<ShardState> states();
  void require_memory();
  void write_trace();
  std::optional<double> mfu(double tokens_per_second) const;
  std::size_t staging_bytes() const;
  std::size_t borrowed_bytes() const;
  std::size_t gemm_bytes() const;
  std::size_t trace_bytes() const;
  std::size_t batch_bytes() const;
  std::size_t bytes_beside_plan() const;
  std::string overheads() const;
  std::size_t snapshot_bytes() const;

  const TrainOptions& options_;
  Communicator& world_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<Stream> stream_;
  const std::size_t start_bytes_;  // what the process had used before
  int threads_ = 1;
  std::optional<double> peak_flops_;
  std::optional<Metrics> metrics_;
  std::optional<SaveLock> save_lock_;    // rank 0's
  std::optional<TraceFile> trace_file_;  // rank 0's
  std::optional<Recorder> recorder_;     // until its updates are written
  Origin origin_;
  std::optional<ShardedModel> sharded_;
  BatchCut cut_;
  std::optional<TokenFile> train_file_, valid_file_;
  std::optional<TrainBatches> train_batches_;
  std::optional<ValidBatches> valid_batches_;
  std::vector<std::int32_t> batch_;  // what was read ahead: of each micro-batch inputs, then targets
  std::exception_ptr data_problem_;  // why it was not
  nlohmann::json options_json_;
  Progress progress_;
  std::optional<LossScaler> scaler_;  // fp16
  std::optional<GroupNorms> group_norms_;
  std::uint64_t last_save_ = 0, start_tokens_ = 0;
  Buffer snapshot_;  // of what an asynchronous save writes
  std::unique_ptr<CheckpointSave> save_;
  Timer since_save_began_;
  double stall_s_ = 0;
  Timer since_start_, since_save_;
};

}  // namespace fsdp
