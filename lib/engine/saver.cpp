#include "engine/saver.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"

namespace fsdp {

void count_files(SaveOptions& options, Communicator& world, Communicator& node) {
  if (options.files_per_checkpoint == "node") options.files = narrow<int>(world.sum(std::int64_t{node.rank() == 0}));
}

double optimal_interval_s(double cost_s, double mtbf_s) { return std::min(std::sqrt(2 * cost_s * mtbf_s), mtbf_s); }

Saver::Saver(Communicator& world, SaveListener listener, double patience_s)
    : world_(world), listener_(std::move(listener)), patience_s_(patience_s), exceptions_(std::uncaught_exceptions()) {}

Saver::~Saver() {
  if (!save_ || std::uncaught_exceptions() > exceptions_) return;
  const Timer timer;
  while (save_->stage() == CheckpointSave::Stage::working && (patience_s_ == 0 || timer.seconds() < patience_s_))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (save_->took_s() >= 0)
    keep_steps();
  else if (listener_.warn && (world_.rank() == 0 || save_->stage() != CheckpointSave::Stage::done))
    listener_.warn(format("{} is not complete; call finish_save() before the model is destroyed, which reports the reason",
                          save_->folder().string()));
}

std::filesystem::path Saver::save(const SaveOptions& options, const CheckpointHeader& header, const Layout& layout,
                                  std::span<const ShardState> states, bool wait) {
  if (options.none) return {};
  const std::uint64_t update = header.progress.update;
  const bool is_there = is_saved(options, update);
  if (!is_there) finish();
  kept_ = options, validations_ = header.progress.validations;
  if (!is_there) {
    since_began_.restart();
    update_.reset(), step_.clear();
    has_failed_ = true;  // until it has begun
    if (listener_.may_begin) agree(world_, listener_.may_begin);
    const std::span<std::byte> snapshot = wait ? std::span<std::byte>() : std::span(snapshot_.data(), snapshot_.bytes());
    save_ = std::make_unique<CheckpointSave>(options.folder, header, layout, states, world_, snapshot, options.compression,
                                             listener_.may_complete, options.files);
    step_ = save_->folder(), update_ = update;
    has_failed_ = announced_ = false;
    stall_s_ = since_began_.seconds();
    since_save_.restart();
  }
  const std::filesystem::path step = step_;
  if (!save_)
    link_best(kept_, validations_);
  else if (wait || snapshot_.bytes() == 0)
    finish();
  return step;
}

void Saver::announce() {
  if (!save_ || announced_ || save_->took_s() < 0) return;
  announced_ = true;
  last_duration_s_ = std::max(save_->took_s(), stall_s_);
  if (listener_.saved)
    listener_.saved({.step = last_update(),
                     .folder = save_->folder(),
                     .bytes = save_->file_bytes(),
                     .ms = last_duration_s_ * 1e3,
                     .stall_ms = stall_s_ * 1e3,
                     .interval_s = kept_.interval_auto ? interval_s(kept_) : 0});
}

double Saver::interval_s(const SaveOptions& options) const {
  if (!options.interval_auto) return options.interval_s;
  const double duration_s = last_duration_s_;
  if (duration_s < 0) return 0;
  // A save in the background takes cores, memory and the file system, which others share, for a tenth of the time at most,
  // unless failures are so frequent that even saves for which training waits would be due earlier.
  const double least_s = std::max(std::min(10 * duration_s, optimal_interval_s(duration_s, options.mtbf_s)), duration_s);
  return std::max(optimal_interval_s(stall_s_, options.mtbf_s), least_s);
}

void Saver::finish() {
  if (!save_) return;
  const Timer timer;
  try {
    save_->finish();
  } catch (...) {
    save_.reset(), update_.reset(), step_.clear();
    has_failed_ = true;
    throw;
  }
  stall_s_ += timer.seconds();
  announce();
  save_.reset();
  keep_steps();
}

void Saver::link_best(const SaveOptions& options, const std::optional<Validations>& validations) {
  const std::uint64_t best = validations && !options.keep_best.empty() ? validations->best_update : 0;
  const std::filesystem::path step = options.folder / stored::step_name(best);
  if (best == 0 || step == linked_ || world_.rank() != 0) return;
  if (kind_of(step) == PathKind::missing) return;  // the run began with a step of another folder, and the best one is there
  try {
    fsdp::link_best(options.folder, best);
    linked_ = step;
  } catch (const std::exception& problem) {  // training continues
    if (listener_.warn)
      listener_.warn(format("{} does not name the best step, that of update {} ({})", (options.folder / best_name).string(),
                            best, problem.what()));
  }
}

void Saver::keep_steps() {
  link_best(kept_, validations_);
  if (kept_.keep_last == 0 || world_.rank() != 0) return;
  const std::string problem = remove_old_checkpoints(kept_.folder, kept_.keep_last, kept_.keep_every);
  if (!problem.empty() && listener_.warn) listener_.warn(problem);
}

}  // namespace fsdp
