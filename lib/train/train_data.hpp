// The data of a training run, and when they and the run end.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/worker.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/batch.hpp"
#include "data/text_data.hpp"
#include "optim/schedule.hpp"
#include "train/setup.hpp"

namespace fsdp {

BatchCut batch_cut(const TrainOptions& options, const Group& world);

struct ValidData {
  ValidData(std::unique_ptr<Tokens> tokens, const TrainOptions& options, const BatchCut& cut, std::size_t vocab_size);
  const Samples samples;
  const ValidBatches batches;
};

struct TrainData {
  /// Opens all files; `texts` among them have become tokens. The run goes on in them where `progress` says, which gets the
  /// position of a run that begins. May fail on this rank alone.
  TrainData(const RunContext& run, const Origin& origin, const std::vector<TextSet>& texts, Progress& progress);
  TrainData(const TrainData&) = delete;

  const Mixture mixture;
  const std::uint32_t largest_token;  // that this rank has found
  const TrainBatches batches;
  const std::unique_ptr<const ValidData> valid;  // null: there are none
};

/// Null if all updates are done: then nobody needs the data. Makes tokens of texts first, which may take long: `watch` can stop
/// that; `machine` then measures memory from there. Warns of what is odd. Collective over world. Throws CollectiveError, with
/// the exit code of a stopped run if it was asked to stop.
std::unique_ptr<const TrainData> open_train_data(const RunContext& run, const Origin& origin, Machine& machine,
                                                 Progress& progress, SignalWatch& watch);

/// All updates or all passes over the data are done. `data` may be null.
bool is_done(const TrainOptions& options, const Progress& progress, const TrainData* data);
/// The last update, as far as it is known: an overflow in fp16 uses up data without an update. `batches` may be null.
std::uint64_t last_update(const TrainOptions& options, const Progress& progress, const TrainBatches* batches);
/// Where passes over the data are the only end, the decay ends with them: a function of the update and the position, so that a
/// resumed run continues with the same rates.
Schedule schedule_of(const TrainOptions& options, const Progress& progress, const TrainBatches& batches);

/// The batches of a run: the next one is read while an update is computed, into the memory from which it goes to the device.
class BatchSource {
 public:
  /// Reads the batch of the first update. Collective; throws CollectiveError.
  BatchSource(const LoopContext& loop, const TrainData& data);

  /// Begins the update over the batch that has been read, and begins to read the next one. Collective.
  void load(const UpdateScalars& scalars);
  /// Waits for this rank's part of the next update, if there is one: a rank that cannot read says so while all can still save.
  /// Not collective.
  void await();
  /// How long that was, and all such waits together since the first update.
  std::int64_t wait_ns() const { return wait_ns_; }
  double waited_s() const { return waited_s_; }
  bool can_read() const { return problem_ == nullptr; }
  /// Where some rank could not: all throw its CollectiveError. Everything has been saved.
  [[noreturn]] void refuse();

 private:
  void begin_reading(std::uint64_t position);

  const LoopContext& loop_;
  const TrainData& data_;
  std::exception_ptr problem_;  // why the next one could not be read
  std::int64_t wait_ns_ = 0;
  double waited_s_ = 0;
  Worker reader_{"fsdp-read"};  // last: it writes into the executor's memory
};

}  // namespace fsdp
