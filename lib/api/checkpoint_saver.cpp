#include "api/checkpoint_saver.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "api/words.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "train/options.hpp"
#include "train/validation.hpp"

namespace fsdp {

namespace {

/// Returns the options of fsdp-train that keep steps, checked by its table.
SaveOptions kept_steps(const CheckpointOptions& o) {
  const auto unless_zero = [](std::size_t n) { return n > 0 ? std::optional(format("{}", n)) : std::nullopt; };
  TrainOptions options;
  OptionTable table = train_option_table(options, 1);
  set_fields(table,
             {{"keep-last", "keep_last", unless_zero(o.keep_last)}, {"keep-every", "keep_every", unless_zero(o.keep_every)}});
  return options.save;
}

/// One line for each option.
std::string text_of_saved(const CheckpointOptions& o) {
  std::string text = format("keep_last {}\nkeep_every {}\n", o.keep_last, o.keep_every);
  text += o.validation_loss ? format("validation_loss {}\n", *o.validation_loss) : "no validation_loss\n";
  for (const auto& [name, bytes] : o.data)
    text += format("data '{}' of {} bytes with checksum {}\n", name, bytes.size(),
                   checksum_text(checksum(bytes.data(), bytes.size())));
  return text;
}

}  // namespace

CheckpointSaver::CheckpointSaver(Communicator& world, double patience_s)
    : world_(world), patience_s_(patience_s), exceptions_(std::uncaught_exceptions()) {}

CheckpointSaver::~CheckpointSaver() {
  if (!save_ || std::uncaught_exceptions() > exceptions_) return;
  const Timer timer;
  while (save_->stage() == CheckpointSave::Stage::working && (patience_s_ == 0 || timer.seconds() < patience_s_))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (save_->took_s() >= 0)
    keep_steps();
  else if (world_.rank() == 0 || save_->stage() != CheckpointSave::Stage::done)
    print_warnings({format("{} is not complete; call finish_save() before the model is destroyed, which reports the reason",
                           save_->folder().string())});
}

std::filesystem::path CheckpointSaver::save(const std::filesystem::path& folder, const CheckpointOptions& options,
                                            CheckpointHeader header, Progress& progress, const Layout& layout,
                                            std::span<const ShardState> states) {
  finish();
  const bool is_saved = !step_.empty() && kept_.folder == folder && update_ == progress.update;
  require_same_lines(world_, text_of_saved(options), "save different things",
                     "a checkpoint has one copy of them for any number of ranks");
  agree(world_, [&] {
    check(options.data);
    if (options.validation_loss && std::isinf(*options.validation_loss) && *options.validation_loss < 0)
      throw UserError("validation_loss is -inf (it would be the smallest loss for ever); give a finite loss, or none");
    kept_ = kept_steps(options);
    kept_.folder = folder;
  });
  if (is_saved) return step_;
  if (has_failed_) progress.validations = validations_before_;  // that step does not exist
  const Timer timer;
  validations_before_ = progress.validations;
  if (options.validation_loss) note_validation(progress.validations, progress.update, *options.validation_loss);
  header.progress = progress;
  if (!options.data.empty() && world_.rank() == 0) header.user_data = std::make_shared<const UserData>(options.data);
  validations_ = progress.validations, update_ = progress.update;
  step_.clear();
  has_failed_ = true;
  save_ = std::make_unique<CheckpointSave>(folder, header, layout, states, world_,
                                           std::span(snapshot_.data(), snapshot_.bytes()), kept_.compression, [log = log] {
                                             if (log) log->sync();
                                           });
  stall_s_ = timer.seconds();
  std::filesystem::path step = save_->folder();
  if (snapshot_.bytes() == 0) finish();
  return step;
}

void CheckpointSaver::finish() {
  if (!save_) return;
  const Timer timer;
  const std::unique_ptr<CheckpointSave> save = std::move(save_);
  save->finish();
  step_ = save->folder();
  has_failed_ = false;
  stall_s_ += timer.seconds();
  if (log)
    log->save({.step = update_,
               .folder = save->folder(),
               .bytes = save->file_bytes(),
               .ms = std::max(save->took_s(), stall_s_) * 1e3,
               .stall_ms = stall_s_ * 1e3});
  keep_steps();
}

void CheckpointSaver::keep_steps() {
  if (world_.rank() != 0) return;
  std::vector<std::string> problems;
  try {
    if (validations_ && validations_->best_update > 0 &&
        kind_of(kept_.folder / stored::step_name(validations_->best_update)) != PathKind::missing)
      link_best(kept_.folder, validations_->best_update);
  } catch (const std::exception& problem) {
    problems.push_back(format("{} does not name the best step, that of update {} ({})", (kept_.folder / best_name).string(),
                              validations_->best_update, problem.what()));
  }
  if (kept_.keep_last > 0)
    if (std::string problem = remove_old_checkpoints(kept_.folder, kept_.keep_last, kept_.keep_every); !problem.empty())
      problems.push_back(std::move(problem));
  print_warnings(problems);
}

}  // namespace fsdp
