// What the training loop does after an update, compared with the rules in docs/running.md.
#include <boost/test/unit_test.hpp>

#include "train/decision.hpp"

using namespace fsdp;
using Save = Decision::Save;

namespace {

TrainOptions every_two() {
  TrainOptions options;
  options.save.interval_updates = options.validate_interval_updates = options.sample_interval_updates = 2;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_CASE(nothing_is_due) {
  const Decision next = decide(every_two(), {.update = 3});
  BOOST_TEST(next.report);
  BOOST_TEST(!(next.finish_save || next.validate_first || next.saves() || next.refuse_data || next.answer_save ||
               next.validate || next.answer_stop || next.stop || next.sample));
}

BOOST_AUTO_TEST_CASE(a_validation_that_decides_nothing_runs_while_the_save_is_written) {
  const Decision next = decide(every_two(), {.update = 4});
  BOOST_TEST((next.save == Save::begin));
  BOOST_TEST((next.validate && !next.validate_first && next.sample));
}

BOOST_AUTO_TEST_CASE(an_update_that_was_left_out_is_not_due_again) {
  const Decision next = decide(every_two(), {.update = 4, .counted = false});
  BOOST_TEST(!(next.report || next.saves() || next.validate || next.sample));
  BOOST_TEST((decide(every_two(), {.update = 4, .counted = false, .is_due = true}).save == Save::begin));  // by the clock
}

BOOST_AUTO_TEST_CASE(passes_over_the_data_are_due_after_the_update_that_ends_them) {
  TrainOptions options;
  options.validate_interval_epochs = 1, options.save.interval_epochs = 2;
  BOOST_TEST((!decide(options, {.update = 3, .passes = {0, 0}}).validate &&
              !decide(options, {.update = 3, .passes = {2, 2}}).validate));
  const Decision one = decide(options, {.update = 3, .passes = {0, 1}}), two = decide(options, {.update = 3, .passes = {1, 2}}),
                 many = decide(options, {.update = 3, .passes = {0, 3}});  // a large update has several passes
  BOOST_TEST((one.validate && !one.saves() && two.validate && two.saves() && many.validate && many.saves()));
  // An update that is left out may still end a pass.
  BOOST_TEST(decide(options, {.update = 3, .passes = {0, 1}, .counted = false}).validate);
  BOOST_TEST(!decide(options, {.update = 3, .passes = {0, 1}, .is_last = true}).validate);
  options.save.keep_best = "loss";
  BOOST_TEST(decide(options, {.update = 3, .passes = {0, 1}}).validate_first);
}

BOOST_AUTO_TEST_CASE(the_best_step_is_saved_once_it_is_known) {
  TrainOptions options = every_two();
  options.save.interval_updates = 0, options.save.keep_best = "loss";
  for (const auto& [result, saves] : {std::pair(Validated::worse, false), {Validated::best, true}}) {
    Decision next = decide(options, {.update = 4});
    BOOST_TEST((next.validate_first && !next.validate && next.save == Save::if_best && !next.saves()));
    next.note(result);
    BOOST_TEST(next.saves() == saves);
    BOOST_TEST(!next.stop);
  }
  options.save.interval_updates = 4;  // a save that is due does not depend on the result
  Decision due = decide(options, {.update = 4});
  due.note(Validated::worse);
  BOOST_TEST((due.save == Save::begin));
  due = decide(options, {.update = 4, .is_last = true});
  BOOST_TEST((!due.validate_first && !due.saves()));  // the loop's end validates and saves
}

BOOST_AUTO_TEST_CASE(early_stopping_validates_before_the_save_but_keeps_no_best_step) {
  TrainOptions options = every_two();
  options.save.interval_updates = 0, options.early_stopping = 1;
  Decision next = decide(options, {.update = 4});
  BOOST_TEST((next.validate_first && next.save == Save::no));
  next.note(Validated::best);
  BOOST_TEST(!next.saves());
}

BOOST_AUTO_TEST_CASE(requests_are_met_at_once) {
  const Decision save = decide(every_two(), {.update = 3, .saves = 2, .saves_honoured = 1});
  BOOST_TEST((save.answer_save && save.save == Save::complete && !save.stop));
  BOOST_TEST(!decide(every_two(), {.update = 3, .saves = 2, .saves_honoured = 2}).saves());
  const Decision stop = decide(every_two(), {.update = 4, .stops = 1});
  BOOST_TEST((stop.answer_stop && stop.stop && stop.save == Save::complete && !stop.validate));
  const Decision at_the_end = decide(every_two(), {.update = 3, .is_last = true, .stops = 1});
  BOOST_TEST((at_the_end.answer_stop && !at_the_end.stop));  // the run is done
}

BOOST_AUTO_TEST_CASE(a_validation_that_is_interrupted_stops_the_run_after_a_save) {
  for (const bool judges : {false, true}) {
    TrainOptions options = every_two();
    options.early_stopping = judges ? 1 : 0;
    Decision next = decide(options, {.update = 4});
    BOOST_TEST((judges ? next.validate_first : next.validate));
    next.note(Validated::interrupted);
    BOOST_TEST((next.stop && next.answer_stop && next.save == Save::complete));
  }
}

BOOST_AUTO_TEST_CASE(data_that_cannot_be_read_end_the_run_after_a_save) {
  TrainOptions options = every_two();
  options.early_stopping = 1;
  const Decision next = decide(options, {.update = 4, .is_saved = true, .cannot_read = true});
  BOOST_TEST((next.refuse_data && next.finish_save && next.save == Save::complete && !next.validate_first));
}
