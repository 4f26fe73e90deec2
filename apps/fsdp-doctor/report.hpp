// The findings of fsdp-doctor, and how they are printed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace fsdp {

/// `warning` means that jobs run, but slowly or not as intended; `failed` means that jobs do not run, or lose data.
enum class Status { ok, warning, failed };
/// Returns "ok", "warning" or "failed".
std::string_view name_of(Status status);

/// The result of one check.
struct Finding {
  Status status = Status::ok;
  std::string text = {};    // the state that was found
  std::string advice = {};  // what to do, unless the status is ok
  nlohmann::json figures = nlohmann::json::object();

  void warn(std::string what_to_do) { status = Status::warning, advice = std::move(what_to_do); }
  void fail(std::string what_to_do) { status = Status::failed, advice = std::move(what_to_do); }
};

/// Converts an error message "<problem> (<why>); <what to do>" to a finding with status failed.
Finding failed_by(std::string_view message);

struct Report {
  struct Line {
    std::string name;
    Finding finding;
    double seconds = 0;  // the time that the check took
  };
  std::string title;                               // "4 ranks on node1 and node2"
  std::vector<std::pair<std::string, int>> nodes;  // the name of each node, and its number of ranks
  std::vector<Line> lines;
  std::string last;    // a sentence after the lines; may be empty
  double seconds = 0;  // the time that all checks took

  std::size_t count(Status status) const;
};

/// Returns aligned text: one line for each check, followed by its advice. At most 110 columns, unless a word is longer.
std::string text_of(const Report& report);
/// Returns one JSON object.
std::string json_of(const Report& report);

}  // namespace fsdp
