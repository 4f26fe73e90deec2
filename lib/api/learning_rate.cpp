#include "api/learning_rate.hpp"

#include <utility>

#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "options/options.hpp"

namespace fsdp {

namespace {

std::string name_in_table(Decay decay) {
  constexpr std::pair<Decay, const char*> names[] = {{Decay::fixed, "fixed"},
                                                     {Decay::polynomial, "polynomial_decay"},
                                                     {Decay::cosine, "cosine"},
                                                     {Decay::inverse_sqrt, "inverse_sqrt"},
                                                     {Decay::wsd, "wsd"},
                                                     {Decay::linear, "linear"},
                                                     {Decay::cosine_with_restarts, "cosine_with_restarts"}};
  for (const auto& [value, name] : names)
    if (value == decay) return name;
  throw UserError(format("decay {} of a schedule does not exist; choose one of Decay", static_cast<int>(decay)));
}

}  // namespace

LearningRate::LearningRate(const Schedule& schedule) : schedule_(schedule) {
  const auto unless_zero = [](std::uint64_t n) { return n > 0 ? std::optional(format("{}", n)) : std::nullopt; };
  const auto number = [](double x) { return std::optional(format("{}", x)); };
  // The table of fsdp-train checks the schedule.
  TrainOptions options;
  OptionTable table = train_option_table(options, 1);
  set_fields(table, {{"lr-scheduler", "decay", name_in_table(schedule.decay)},
                     {"lr", "learning_rate", number(schedule.learning_rate)},
                     {"warmup-updates", "warmup", format("{}", schedule.warmup)},
                     {"total-num-update", "total", unless_zero(schedule.total)},
                     {"end-learning-rate", "end", number(schedule.end)},
                     {"power", "power", number(schedule.power)},
                     {"decay-updates", "decay_updates", unless_zero(schedule.decay_updates)},
                     {"num-cycles", "cycles", unless_zero(schedule.cycles)}});
  if (schedule.total == 0 && has_end(schedule))
    throw UserError(
        format("decay {} has no end (total is 0); set total to the last update of the decay", name_in_table(schedule.decay)));
}

}  // namespace fsdp
