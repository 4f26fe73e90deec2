// What the training loop does after an update. The decision is a pure function of what all ranks know, so it is the same on all
// ranks, and tests need no MPI.
#pragma once

#include <cstddef>
#include <cstdint>

#include "options/options.hpp"

namespace fsdp {

/// Returns true if `update` is a multiple of `interval`; 0 means never.
inline bool every(std::size_t interval, std::uint64_t update) { return interval > 0 && update % interval == 0; }

/// The number of complete passes over the data, before and after an update.
struct Passes {
  std::uint64_t before = 0, after = 0;
};
/// Returns true if the update completed a pass whose number is a multiple of `interval`; 0 means never.
inline bool every(std::size_t interval, Passes passes) {
  return interval > 0 && passes.after / interval > passes.before / interval;
}

/// What all ranks know after an update.
struct AfterUpdate {
  std::uint64_t update = 0;          // the number of completed updates
  Passes passes = {};                // the complete passes over the data
  bool counted = true;               // false: the update was left out
  bool is_last = false;              // all updates, or all passes over the data, are done
  std::size_t stops = 0, saves = 0;  // requests to stop, and to save, so far
  std::size_t saves_honoured = 0;    // requests to save that earlier saves have met
  bool is_due = false;               // a save is due by the clock of rank 0
  bool is_saved = false;             // the save under way is complete, or only Saver::finish() can complete it
  bool cannot_read = false;          // some rank cannot read its part of the next batch
};

/// The result of a validation that the loop has made. `interrupted`: there is none, because the run stops.
enum class Validated { worse, best, interrupted };

/// The fields are in the order in which the loop looks at them.
struct Decision {
  enum class Save {
    no,
    if_best,  // if validate_first gives the smallest loss so far
    begin,    // training continues meanwhile
    complete  // training waits for it, because of a request or an error
  };
  bool report = false;          // the numbers of the update
  bool finish_save = false;     // completes the save under way
  bool validate_first = false;  // before the save, because the result decides about it or about the run's end
  Save save = Save::no;
  bool refuse_data = false;  // ends the run with the error of the rank that cannot read
  bool answer_save = false;  // a request to save is met
  bool validate = false;     // after the save, which is written meanwhile
  bool answer_stop = false;  // a request to stop is met
  bool stop = false;         // ends the run before its last update
  bool sample = false;       // prints a text of the model

  bool saves() const { return save == Save::begin || save == Save::complete; }
  /// Continues the decision with the result of the validation that it asked for. An interrupted one stops the run, after a
  /// complete save.
  void note(Validated result);
};

/// Pure function.
Decision decide(const TrainOptions& options, const AfterUpdate& now);

}  // namespace fsdp
