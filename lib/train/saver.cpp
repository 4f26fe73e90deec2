#include "train/saver.hpp"

#include <algorithm>
#include <utility>

#include "base/format.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "train/run_context.hpp"

namespace fsdp {

Saver::Saver(const LoopContext& loop, CheckpointHeader header, Buffer snapshot, const SaveLock* lock)
    : loop_(loop),
      options_(loop.options.save),
      header_(std::move(header)),
      snapshot_(std::move(snapshot)),
      lock_(lock),
      last_(header_.progress.update) {
  link_best();  // the last start may have ended before it did
}

bool link_best_step(const RunContext& run, const Validations& validations) {
  const SaveOptions& options = run.options.save;
  if (options.keep_best.empty() || validations.best_update == 0) return false;
  // If the run began with a step of another folder, the best step so far may be there.
  if (kind_of(options.folder / stored::step_name(validations.best_update)) == PathKind::missing) return false;
  try {
    link_best(options.folder, validations.best_update);
    return true;
  } catch (const std::exception& problem) {  // training continues
    run.log.warn(format("{} does not name the best step, that of update {} ({})", (options.folder / best_name).string(),
                        validations.best_update, problem.what()));
    return false;
  }
}

void Saver::save(bool wait) {
  const Progress& progress = loop_.progress;
  const FlightNote note(loop_.flight, "save", progress.update);
  if (options_.none) return;
  const std::vector<ShardState> states = loop_.model.executor().states();
  if (last_ != progress.update) {
    if (save_) finish();
    since_began_.restart();
    agree(loop_.world, [&] {
      if (lock_) lock_->require_held();
    });
    header_.progress = progress;
    const std::span<std::byte> snapshot = wait ? std::span<std::byte>() : std::span(snapshot_.data(), snapshot_.bytes());
    save_ = std::make_unique<CheckpointSave>(options_.folder, header_, loop_.model.layout(), states, loop_.world, snapshot,
                                             options_.compression, [this] {
                                               if (lock_) lock_->require_held();
                                               loop_.log.sync();  // the metrics file then has every update of the checkpoint
                                             });
    announced_ = false;
    last_ = progress.update;
    stall_s_ = since_began_.seconds();
    since_save_.restart();
  }
  if (!save_ && header_.progress.update == progress.update) {
    header_.progress.validations = progress.validations;
    link_best();
  }
  if (save_ && (wait || snapshot_.bytes() == 0)) finish();
}

void Saver::announce() {
  if (!save_ || announced_ || save_->took_s() < 0) return;
  announced_ = true;
  last_duration_s_ = std::max(save_->took_s(), stall_s_);
  loop_.log.save({.step = last_,
                  .folder = save_->folder(),
                  .bytes = save_->file_bytes(),
                  .ms = last_duration_s_ * 1e3,
                  .stall_ms = stall_s_ * 1e3});
}

void Saver::link_best() {
  const auto& validations = header_.progress.validations;
  if (!validations || validations->best_update == linked_ || loop_.world.rank() != 0) return;
  if (link_best_step(loop_, *validations)) linked_ = validations->best_update;
}

void Saver::finish() {
  const Timer timer;
  save_->finish();
  stall_s_ += timer.seconds();
  announce();
  save_.reset();
  link_best();
  if (options_.keep_last == 0 || loop_.world.rank() != 0) return;
  const std::string problem = remove_old_checkpoints(options_.folder, options_.keep_last, options_.keep_every);
  if (!problem.empty()) loop_.log.warn(problem);
}

}  // namespace fsdp
