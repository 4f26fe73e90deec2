#include "train/decision.hpp"

namespace fsdp {

namespace {

Decision::Save save_of(const TrainOptions& options, const AfterUpdate& now, const Decision& next) {
  if (next.answer_save || next.answer_stop || now.cannot_read) return Decision::Save::complete;
  const bool is_due = now.is_due || (now.counted && every(options.save.interval_updates, now.update)) ||
                      every(options.save.interval_epochs, now.passes);
  const bool saves_at_end = options.judges() && now.is_last;  // after the last validation
  if (is_due && !saves_at_end) return Decision::Save::begin;
  return next.validate_first && !options.save.keep_best.empty() ? Decision::Save::if_best : Decision::Save::no;
}

}  // namespace

void Decision::note(Validated result) {
  if (result == Validated::interrupted) save = Save::complete, answer_stop = stop = true;
  if (result == Validated::best && save == Save::if_best) save = Save::begin;
}

Decision decide(const TrainOptions& options, const AfterUpdate& now) {
  Decision next{.report = now.counted,
                .finish_save = now.is_saved,
                .refuse_data = now.cannot_read,
                .answer_save = now.saves > now.saves_honoured,
                .answer_stop = now.stops > 0};
  const bool is_due = (now.counted && every(options.validate_interval_updates, now.update)) ||
                      every(options.validate_interval_epochs, now.passes);
  const bool validates = is_due && !now.is_last && !next.answer_stop;
  next.validate_first = validates && options.judges() && !now.cannot_read;
  next.save = save_of(options, now, next);
  next.validate = validates && !options.judges();
  next.stop = next.answer_stop && !now.is_last;
  next.sample = now.counted && every(options.sample_interval_updates, now.update);
  return next;
}

}  // namespace fsdp
