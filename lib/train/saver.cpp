#include "train/saver.hpp"

#include <algorithm>
#include <utility>

#include "comm/agree.hpp"

namespace fsdp {

Saver::Saver(const SaveOptions& options, Buffer snapshot, const Layout& layout, Communicator& world, Metrics& metrics,
             const SaveLock* lock, std::uint64_t saved_update)
    : options_(options),
      snapshot_(std::move(snapshot)),
      layout_(layout),
      world_(world),
      metrics_(metrics),
      lock_(lock),
      last_(saved_update) {}

void Saver::save(const CheckpointHeader& header, std::span<const ShardState> states, bool wait) {
  if (options_.none) return;
  if (last_ != header.progress.update) {
    if (save_) finish();
    since_began_.restart();
    agree(world_, [&] {
      if (lock_) lock_->require_held();
    });
    const std::span<std::byte> snapshot = wait ? std::span<std::byte>() : std::span(snapshot_.data(), snapshot_.bytes());
    save_ = std::make_unique<CheckpointSave>(options_.folder, header, layout_, states, world_, snapshot, options_.compression,
                                             [this] {
                                               if (lock_) lock_->require_held();
                                               metrics_.sync();  // the file then has every update of the checkpoint
                                             });
    announced_ = false;
    last_ = header.progress.update;
    stall_s_ = since_began_.seconds();
    since_save_.restart();
  }
  if (save_ && (wait || snapshot_.bytes() == 0)) finish();
}

void Saver::announce() {
  if (!save_ || announced_ || save_->took_s() < 0) return;
  announced_ = true;
  last_duration_s_ = std::max(save_->took_s(), stall_s_);
  metrics_.save(last_, save_->folder(), last_duration_s_ * 1e3, stall_s_ * 1e3);
}

void Saver::finish() {
  const Timer timer;
  save_->finish();
  stall_s_ += timer.seconds();
  announce();
  save_.reset();
  if (options_.keep_last == 0 || world_.rank() != 0) return;
  const std::string problem = remove_old_checkpoints(options_.folder, options_.keep_last, options_.keep_every);
  if (!problem.empty()) metrics_.say("warning: " + problem);
}

}  // namespace fsdp
