#include "train/saver.hpp"

#include <utility>

namespace fsdp {

Saver::Saver(const SaveOptions& options, Buffer snapshot, const Layout& layout, Communicator& world, Metrics& metrics,
             std::uint64_t saved_update)
    : options_(options),
      snapshot_(std::move(snapshot)),
      layout_(layout),
      world_(world),
      metrics_(metrics),
      last_(saved_update) {}

void Saver::save(const CheckpointHeader& header, std::span<const ShardState> states, bool wait) {
  if (options_.none) return;
  if (last_ != header.progress.update) {
    if (save_) finish();
    since_began_.restart();
    const std::span<std::byte> snapshot = wait ? std::span<std::byte>() : std::span(snapshot_.data(), snapshot_.bytes());
    save_ = std::make_unique<CheckpointSave>(options_.folder, header, layout_, states, world_, snapshot, options_.compression);
    last_ = header.progress.update;
    stall_s_ = since_began_.seconds();
    since_save_.restart();
  }
  if (save_ && (wait || snapshot_.bytes() == 0)) finish();
}

void Saver::finish() {
  const double went_on_s = since_began_.seconds();
  const std::unique_ptr<CheckpointSave> save = std::move(save_);
  metrics_.sync();  // no update that a checkpoint holds is missing in the metrics
  const std::filesystem::path folder = save->finish();
  last_duration_s_ = since_began_.seconds();
  stall_s_ += last_duration_s_ - went_on_s;
  metrics_.save(last_, folder, last_duration_s_ * 1e3, stall_s_ * 1e3);
  if (options_.keep_last == 0 || world_.rank() != 0) return;
  const std::string problem = remove_old_checkpoints(options_.folder, options_.keep_last, options_.keep_every);
  if (!problem.empty()) metrics_.say("warning: " + problem);
}

}  // namespace fsdp
