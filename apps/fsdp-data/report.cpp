// The report of fsdp-data.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/terminal.hpp"
#include "fsdp-data/data.hpp"
#include "report/page_parts.hpp"
#include "report/svg.hpp"

namespace fsdp {

namespace {

std::string share(std::uint64_t part, std::uint64_t all) {
  return percent(static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(all, 1)));
}

/// "fails", "allowed" or "warning".
const char* weight_of(const Finding& finding) {
  if (!finding.check->costs_a_run) return "warning";
  return finding.is_allowed ? "allowed" : "fails";
}

std::vector<Cells> table_of_sources(const DataReport& report) {
  std::vector<Cells> rows = {{"data", "for", "rows", "tokens", "in the loss", "share", "sequences"}};
  for (const SurveyedSource& each : report.sources) {
    const DataCounts& counts = each.counts;
    rows.push_back({each.name, each.is_valid ? "validation" : "training", std::to_string(counts.rows),
                    std::to_string(counts.tokens), std::to_string(counts.targets), share(counts.targets, counts.tokens),
                    std::to_string(counts.sequences)});
  }
  return rows;
}

/// Only answers are learned, so each target of conversations is the assistant's. Rows that are left out are counted, too.
std::vector<Cells> table_of_roles(const DataReport& report) {
  std::vector<Cells> rows = {{"data", "role", "messages", "tokens in the loss"}};
  for (const SurveyedSource& each : report.sources)
    for (const auto& [role, messages] : each.counts.roles)
      rows.push_back(
          {each.name, role, std::to_string(messages), std::to_string(role == "assistant" ? each.counts.targets : 0)});
  return rows;
}

/// The most tokens of a row in element `bin` of the lengths.
std::uint64_t most_tokens(std::size_t bin) { return std::uint64_t{1} << bin; }

std::vector<Cells> table_of_lengths(const DataReport& report) {
  const std::uint64_t all = std::accumulate(report.lengths.begin(), report.lengths.end(), std::uint64_t{0});
  const std::uint64_t most = report.lengths.empty() ? 0 : *std::ranges::max_element(report.lengths);
  std::vector<Cells> rows = {{"tokens of a training row", "rows", "share", ""}};
  const auto first = std::ranges::find_if(report.lengths, [](std::uint64_t n) { return n > 0; });
  for (auto bin = static_cast<std::size_t>(first - report.lengths.begin()); bin < report.lengths.size(); ++bin) {
    const double part = static_cast<double>(report.lengths[bin]) / static_cast<double>(most);
    rows.push_back({bin == 0 ? "0 to 1" : format("{} to {}", most_tokens(bin - 1) + 1, most_tokens(bin)),
                    std::to_string(report.lengths[bin]), share(report.lengths[bin], all),
                    std::string(static_cast<std::size_t>(std::ceil(30 * part)), '#')});
  }
  return rows;
}

std::vector<Cells> table_of_ways(const DataReport& report) {
  std::vector<Cells> rows = {{"options of fsdp-train", "positions of a pass", "padding"}};
  for (const WayOfReading& way : report.ways) rows.push_back({way.options, format_count(way.positions), percent(way.padding)});
  return rows;
}

/// A table in columns; its first row is the head. Nothing if it has no other row.
std::string text_table(const std::vector<Cells>& rows) {
  if (rows.size() < 2) return {};
  std::vector<std::size_t> widths(rows[0].size());
  for (const Cells& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out = "\n";
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_number = !row[i].empty() && row[i].front() >= '0' && row[i].front() <= '9' && i > 0;
      line += is_number ? format("{:>{}}  ", row[i], widths[i]) : format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace

std::string describe(const DataReport& report, std::FILE* out) {
  const Terminal terminal(out);
  const auto target = [&](const std::string& text) {
    const std::string coloured = terminal.coloured(text, Colour::green);
    return coloured == text ? "[[" + text + "]]" : coloured;
  };
  std::string text;
  for (const SurveyedSource& each : report.sources)
    for (const std::string& line : describe_counts(each.counts, each.name)) text += wrapped(printable(line)) + "\n";
  if (report.sources.size() > 1) text += text_table(table_of_sources(report));
  for (const auto& rows : {table_of_roles(report), table_of_lengths(report), table_of_ways(report)}) text += text_table(rows);
  if (!report.examples.empty())
    text += format("\nExamples: {} counts in the loss, and \"|\" is where a document begins.\n", target("this"));
  for (const DataReport::Shown& example : report.examples) {
    text += format("\n{}:\n ", printable(example.source));
    for (const ShownText& run : example.text) {
      std::string shown = clean_lines(run.text);
      for (std::size_t at = 0; (at = shown.find('\n', at)) != shown.npos; at += 2) shown.insert(at + 1, " ");
      text += (run.begins_document ? "|" : "") + (run.is_target ? target(shown) : shown);
    }
    text += "\n";
  }
  text += "\n";
  for (const SurveyedSource& each : report.sources)
    for (const std::string& warning : each.counts.warnings) text += warning_line(warning, out) + "\n";
  for (const Finding& each : report.findings) {
    const std::string name = format("{} {}", weight_of(each), each.check->name);
    const bool fails = each.check->costs_a_run && !each.is_allowed;
    text += terminal.coloured(name, fails ? Colour::red : Colour::yellow) + ": " + wrapped(printable(each.message)) + "\n";
  }
  text += report.is_bad() ? "Some checks fail: correct the data, or accept what was found by --allow.\n" : "No check fails.\n";
  return text;
}

nlohmann::ordered_json to_json(const DataReport& report) {
  using Json = nlohmann::ordered_json;
  Json all = {{"ok", !report.is_bad()}};
  for (const char* key : {"sources", "findings", "lengths", "ways", "examples"}) all[key] = Json::array();
  for (const SurveyedSource& each : report.sources) {
    all["sources"].push_back({{"name", each.name}, {"split", each.is_valid ? "valid" : "train"}});
    all["sources"].back().update(to_json(each.counts));
  }
  for (const Finding& each : report.findings)
    all["findings"].push_back({{"check", each.check->name},
                               {"source", each.source},
                               {"costs_a_run", each.check->costs_a_run},
                               {"allowed", each.is_allowed},
                               {"message", each.message}});
  for (std::size_t bin = 0; bin < report.lengths.size(); ++bin)
    all["lengths"].push_back({{"most_tokens", most_tokens(bin)}, {"rows", report.lengths[bin]}});
  for (const WayOfReading& way : report.ways)
    all["ways"].push_back({{"options", way.options}, {"positions", way.positions}, {"padding", way.padding}});
  for (const DataReport::Shown& each : report.examples)
    all["examples"].push_back({{"source", each.source}, {"text", to_json(each.text)}});
  return all;
}

std::string to_html(const DataReport& report) {
  const auto part = [](const char* id, const char* title, const std::vector<Cells>& rows) {
    return html_section(id, title, rows.size() < 2 ? "" : table(rows));
  };
  std::string examples;
  for (const DataReport::Shown& each : report.examples)
    examples += format("<h4>{}</h4>\n", escaped(each.source)) + html_of(each.text);
  std::vector<Cells> findings = {{"", "check", "found"}};
  for (const SurveyedSource& each : report.sources)
    for (const std::string& warning : each.counts.warnings) findings.push_back({"warning", "", warning});
  for (const Finding& each : report.findings) findings.push_back({weight_of(each), each.check->name, each.message});
  return html_page("data", part("findings", "What was found", findings) + part("data", "Data", table_of_sources(report)) +
                               part("roles", "Roles", table_of_roles(report)) +
                               part("lengths", "Lengths of rows", table_of_lengths(report)) +
                               part("ways", "Padding", table_of_ways(report)) + html_section("examples", "Examples", examples));
}

}  // namespace fsdp
