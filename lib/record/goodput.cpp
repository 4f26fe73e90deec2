#include "record/goodput.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::pair<const char*, double TimeSpent::*> fields[] = {
    {"running_s", &TimeSpent::running_s}, {"useful_s", &TimeSpent::useful_s},  {"lost_s", &TimeSpent::lost_s},
    {"skipped_s", &TimeSpent::skipped_s}, {"saves_s", &TimeSpent::saves_s},    {"validation_s", &TimeSpent::validation_s},
    {"startup_s", &TimeSpent::startup_s}, {"between_s", &TimeSpent::between_s}};

}  // namespace

double TimeSpent::goodput() const { return running_s > 0 ? std::min(1.0, useful_s / running_s) : 0; }

TimeSpent& TimeSpent::operator+=(const TimeSpent& other) {
  for (const auto& [name, field] : fields) this->*field += other.*field;
  starts += other.starts;
  return *this;
}

nlohmann::json to_json(const TimeSpent& spent) {
  nlohmann::json json = {{"starts", spent.starts}};
  for (const auto& [name, field] : fields) json[name] = spent.*field;
  return json;
}

TimeSpent time_spent_from_json(const nlohmann::json& json) {
  TimeSpent spent;
  if (!json.is_object()) return spent;
  for (const auto& [name, field] : fields)
    if (json.contains(name) && json[name].is_number()) spent.*field = json[name].get<double>();
  if (json.contains("starts") && json["starts"].is_number_unsigned()) spent.starts = json["starts"].get<std::uint64_t>();
  return spent;
}

std::string describe(const TimeSpent& spent) {
  std::string text = format("goodput {:.1f} %: updates {} of {}", 100 * spent.goodput(), format_duration(spent.useful_s),
                            format_duration(spent.running_s));
  if (spent.starts > 1) text += format(" in {} starts", spent.starts);
  const std::pair<const char*, double> rest[] = {{"startup", spent.startup_s},
                                                 {"saves", spent.saves_s},
                                                 {"validation", spent.validation_s},
                                                 {"updates done again", spent.lost_s},
                                                 {"updates left out", spent.skipped_s}};
  const char* before = "; ";
  for (const auto& [what, seconds] : rest)
    if (seconds > 0) text += format("{}{} {}", std::exchange(before, ", "), what, format_duration(seconds));
  return text;
}

}  // namespace fsdp
