#include "train/agreement.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "comm/agree.hpp"

namespace fsdp {

namespace {

/// The values that a rank sends to the others after an update.
struct Told {
  std::int64_t stop, save;    // the number of requests to stop and to save
  std::int64_t is_due;        // 1 on rank 0 if a save is due by its clock
  std::int64_t save_stage;    // the stage of this rank's part of the save under way
  std::int64_t cannot_read;   // 1 if this rank cannot read its part of the next batch
  RankWork work;              // in this update
  std::int64_t data_wait_ns;  // this rank's wait for its part of the next batch
  std::int64_t loss;          // the bits of this rank's mean loss in this update, a double
};
static_assert(std::is_trivially_copyable_v<Told>);
constexpr std::size_t told_words = sizeof(Told) / sizeof(std::int64_t);

/// Returns the end of the job on rank 0 if --stop-before is given; else null. Collective.
std::unique_ptr<JobEnd> find_job_end(const RunContext& run) {
  const double lead_s = run.options.stop_before_s;
  auto end = agree(run.world, [&] { return lead_s > 0 && run.world.rank() == 0 ? std::make_unique<JobEnd>(lead_s) : nullptr; });
  if (end && !end->seconds_left()) run.log.warn("--stop-before does nothing (this job has no time limit)");
  return end;
}

}  // namespace

Agreement::Agreement(const LoopContext& loop, SignalWatch& watch, SaveLock* lock)
    : loop_(loop),
      watch_(watch),
      job_end_(find_job_end(loop)),
      lock_(lock),
      words_(told_words * static_cast<std::size_t>(loop.world.size())),
      ranks_(static_cast<std::size_t>(loop.world.size())) {
  if (const std::string text = watch.left_over(); !text.empty()) loop.log.warn(text);
  watch_.expect({loop.engine.progress().update + 1});
}

AfterUpdate Agreement::after(Verdict verdict, bool is_last, const BatchSource& batches, const Reporter& reporter) {
  const Saver& saver = loop_.engine.saver();
  const FlightNote note(loop_.flight, "agree on requests to stop or save", loop_.engine.progress().update,
                        FlightNote::Kind::exchange);
  const Requests mine = watch_.poll();
  ends_ = job_end_ && job_end_->is_near();
  wanted_ = lock_ && lock_->is_wanted();
  // With --save-interval auto, the first save shows what a save costs. The first updates may be slower than others.
  constexpr int updates_before_first_save = 5;
  const bool measures_save = loop_.options.save.interval_auto && ++updates_ >= updates_before_first_save && !saver.saving() &&
                             saver.last_duration_s() < 0;
  const Told told = {.stop = narrow<std::int64_t>(mine.stop) + ends_ + wanted_,
                     .save = narrow<std::int64_t>(mine.save),
                     .is_due = loop_.world.rank() == 0 && (saver.is_due(saver.interval_s(loop_.options.save)) || measures_save),
                     .save_stage = static_cast<std::int64_t>(saver.stage()),
                     .cannot_read = !batches.can_read(),
                     .work = {reporter.computing_ns(), narrow<std::int64_t>(batches.work().positions),
                              narrow<std::int64_t>(batches.work().padding), batches.work().flops},
                     .data_wait_ns = batches.wait_ns(),
                     .loss = std::bit_cast<std::int64_t>(reporter.own_loss())};
  const auto words_of = [&](int rank) { return words_.data() + told_words * static_cast<std::size_t>(rank); };
  std::fill(words_.begin(), words_.end(), 0);
  std::memcpy(words_of(loop_.world.rank()), &told, sizeof told);
  loop_.world.sum(words_);
  data_wait_ns_ = 0;
  largest_loss_ = -std::numeric_limits<double>::infinity();
  bool working = false, stuck = false;
  AfterUpdate all{.update = loop_.engine.progress().update,
                  .passes = batches.passes(),
                  .counted = verdict == Verdict::done,
                  .is_last = is_last,
                  .saves_honoured = saves_honoured_};
  for (int rank = 0; rank < loop_.world.size(); ++rank) {
    Told theirs;
    std::memcpy(&theirs, words_of(rank), sizeof theirs);
    all.stops = std::max(all.stops, static_cast<std::size_t>(theirs.stop));
    all.saves = std::max(all.saves, static_cast<std::size_t>(theirs.save));
    all.is_due |= theirs.is_due > 0;
    working |= theirs.save_stage == static_cast<std::int64_t>(CheckpointSave::Stage::working);
    stuck |= theirs.save_stage == static_cast<std::int64_t>(CheckpointSave::Stage::stuck);
    all.cannot_read |= theirs.cannot_read > 0;
    ranks_[static_cast<std::size_t>(rank)] = theirs.work;
    data_wait_ns_ = std::max(data_wait_ns_, theirs.data_wait_ns);
    largest_loss_ = std::max(largest_loss_, std::bit_cast<double>(theirs.loss));
  }
  all.is_saved = saver.saving() && (stuck || !working);
  saves_ = all.saves;
  // Requests that come later are honoured after the next update.
  watch_.expect({loop_.engine.progress().update + 1, reporter.last_update_s(), saver.last_duration_s()});
  warn_of_short_lead(reporter.last_update_s());
  return all;
}

void Agreement::warn_of_short_lead(double update_s) {
  const double lead_s = loop_.options.stop_before_s, save_s = loop_.engine.saver().last_duration_s();
  const double needed_s = update_s + save_s;  // to stop, a run may need the time of both
  if (lead_is_short_ || lead_s == 0 || save_s < 0 || needed_s <= lead_s) return;
  lead_is_short_ = true;
  loop_.log.warn(format("--stop-before {} may be too short (the last update and the last save took {} together); raise it",
                        format_duration(lead_s), format_duration(needed_s)));
}

void Agreement::answer_save() {
  saves_honoured_ = saves_;
  if (loop_.options.save.none) loop_.log.warn("a save was requested, but --no-save forbids all saves");
  if (const std::string problem = watch_.honoured_save(); !problem.empty()) loop_.log.warn(problem);
}

void Agreement::answer_stop() {
  if (const std::string problem = watch_.honoured_stop(); !problem.empty()) loop_.log.warn(problem);
}

std::string Agreement::stop_reason() {
  return ends_ || (job_end_ && job_end_->is_near()) ? job_end_->reason()
         : wanted_ ? "a later start of this job waits for " + loop_.options.save.folder.string()
                   : watch_.stop_reason();
}

}  // namespace fsdp
