// What fsdp-doctor has found, and how it is printed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace fsdp {

/// warning: jobs run, slowly or not as was meant. failed: they do not run, or lose something.
enum class Status { ok, warning, failed };
/// "ok", "warning", "failed".
std::string_view name_of(Status status);

/// The answer of one check.
struct Finding {
  Status status = Status::ok;
  std::string text = {};    // what there is
  std::string advice = {};  // what to do, of one that is not ok
  nlohmann::json figures = nlohmann::json::object();
};

/// Of one that `message`, "<problem> (<why>); <what to do>", tells about.
Finding failed_by(std::string_view message);

struct Report {
  struct Line {
    std::string name;
    Finding finding;
    double seconds = 0;  // that the check took
  };
  std::string title;                               // "4 ranks on node1 and node2"
  std::vector<std::pair<std::string, int>> nodes;  // the name of each, and its ranks
  std::vector<Line> lines;
  std::string last;  // what is to be said behind the lines; may be empty
  double seconds = 0;

  std::size_t count(Status status) const;
};

/// Aligned, a line for each check, and below it what to do. At most 110 columns, as far as words allow.
std::string text_of(const Report& report);
/// One object.
std::string json_of(const Report& report);

}  // namespace fsdp
