#include "fsdp-doctor/report.hpp"

#include <algorithm>
#include <string>

#include "base/format.hpp"
#include "base/terminal.hpp"
#include "base/version.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr std::size_t width = 110, status_width = 9, name_width = 15;

}  // namespace

std::string_view name_of(Status status) {
  constexpr std::string_view names[] = {"ok", "warning", "failed"};
  return names[static_cast<std::size_t>(status)];
}

Finding failed_by(std::string_view message) {
  const std::size_t end = std::min(message.rfind("; "), message.size());
  return {.status = Status::failed,
          .text = std::string(message.substr(0, end)),
          .advice = std::string(message.substr(std::min(end + 2, message.size())))};
}

std::size_t Report::count(Status status) const {
  return static_cast<std::size_t>(
      std::count_if(lines.begin(), lines.end(), [&](const Line& line) { return line.finding.status == status; }));
}

std::string text_of(const Report& report) {
  constexpr std::size_t indent = 2 + status_width + name_width;
  std::string text = format("fsdp-doctor {}: {}\n\n", version_string(), report.title);
  for (const auto& [name, finding, seconds] : report.lines) {
    text += format("  {:<{}}{:<{}}{}\n", name_of(finding.status), status_width, name, name_width,
                   wrap(finding.text, indent, width));
    if (!finding.advice.empty()) text += format("{:{}}-> {}\n", "", indent, wrap(finding.advice, indent + 3, width));
  }
  text += '\n' + (report.last.empty() ? std::string() : wrap(report.last, 0, width) + '\n');
  const std::size_t warnings = report.count(Status::warning), failed = report.count(Status::failed);
  text += failed + warnings == 0
              ? format("all {} are ok", plural(report.lines.size(), "check"))
              : format("{} failed, {}, {} ok", failed, plural(warnings, "warning"), report.lines.size() - failed - warnings);
  return text + format("; {:.1f} s\n", report.seconds);
}

std::string json_of(const Report& report) {
  nlohmann::json json = {{"program", "fsdp-doctor"},
                         {"version", version_string()},
                         {"seconds", report.seconds},
                         {"failed", report.count(Status::failed)},
                         {"warnings", report.count(Status::warning)},
                         {"nodes", nlohmann::json::array()},
                         {"checks", nlohmann::json::array()}};
  int ranks = 0;
  for (const auto& [name, count] : report.nodes) {
    json["nodes"].push_back({{"name", name}, {"ranks", count}});
    ranks += count;
  }
  json["ranks"] = ranks;
  for (const auto& [name, finding, seconds] : report.lines)
    json["checks"].push_back({{"name", name},
                              {"status", name_of(finding.status)},
                              {"text", finding.text},
                              {"advice", finding.advice},
                              {"seconds", seconds},
                              {"figures", finding.figures}});
  return json_text(json) + "\n";
}

}  // namespace fsdp
