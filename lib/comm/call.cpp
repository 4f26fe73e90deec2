#include "comm/call.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/format.hpp"

namespace fsdp {

std::string name_of(const Called& called) {
  constexpr std::array<std::string_view, 7> names = {"all-gather", "reduce-scatter", "all-reduce", "broadcast",
                                                     "barrier",    "split",          "allocate"};
  const std::string_view name = names[static_cast<std::size_t>(called.call)];
  return called.subject ? format("{} of {}", name, called.subject) : std::string(name);
}

std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> numbers, places;
  for (const int rank : ranks) numbers.push_back(format("{}", rank));
  for (const std::string& host : hosts)
    if (std::find(places.begin(), places.end(), host) == places.end()) places.push_back(host);
  return format("rank{} {}{}", ranks.size() == 1 ? "" : "s", list_of(numbers), places.empty() ? "" : " on " + list_of(places));
}

CollectiveTimeout not_arrived(const std::string& who, const std::vector<int>& ranks, std::string_view what, double timeout_s) {
  const std::string time = format_duration(timeout_s);
  const std::string message =
      ranks.size() > 1 ? format(
                             "{} have not arrived at {} within {} (they hang, were stopped, or are busy with something else); "
                             "see what they do, or raise `longest wait`",
                             who, what, time)
                       : format(
                             "{} has not arrived at {} within {} (it hangs, was stopped, or is busy with something else); "
                             "see what it does, or raise `longest wait`",
                             who, what, time);
  return CollectiveTimeout(message, who, ranks, timeout_s);
}

CollectiveTimeout not_passed_on(const std::string& who, const std::vector<int>& ranks, std::string_view what,
                                double timeout_s) {
  const std::string_view others = ranks.size() <= 1 ? ", or a rank that it waits for," : ", or ranks that they wait for,";
  return not_arrived(who.ends_with(others) ? who : who + std::string(others), ranks, what, timeout_s);
}

void let_others_report_first(double timeout_s) {
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.25 * timeout_s, 10.0)));
}

}  // namespace fsdp
