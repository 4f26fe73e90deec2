#include "report/trace_figure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr std::size_t longest_trace = std::size_t{2} << 30;

/// Reads an operation of a trace. Throws a std::exception if it is none.
Trace::Event event_of(const nlohmann::json& operation) {
  Trace::Event event;
  const auto number = [&](const char* key) {
    const double value = operation.at(key).get<double>();
    if (!(std::abs(value) < 1e15)) throw std::out_of_range(key);
    return value;
  };
  const nlohmann::json &args = operation.at("args"), &rank = operation.at("pid"), &update = args.at("update");
  if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() > 1 << 30) throw std::out_of_range("pid");
  if (!update.is_number_unsigned()) throw std::out_of_range("update");
  event.rank = rank.get<int>();
  event.update = update.get<std::uint64_t>();
  event.begin_us = number("ts");
  event.length_us = number("dur");
  if (event.length_us < 0) throw std::out_of_range("dur");
  event.title = operation.at("name").get<std::string>();
  event.stream = operation.at("cat").get<std::string>();
  event.part = part_named(args.at("part").get<std::string>()).value();
  event.label = event.title;
  if (const auto block = args.find("block"); block != args.end()) {
    event.label = block->dump();
  } else if (const auto unit = args.find("unit"); unit != args.end()) {
    event.label = unit->get<std::string>();
    if (event.label.starts_with("block ")) event.label.erase(0, 6);
  }
  return event;
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why) {
  throw UserError(format("'{}' is no trace that can be drawn ({}); make it with `trace-of-run`", path.string(), why));
}

/// "1, 2 and 3", "1, 2, 3 and 97 more".
template <class Number>
std::string list_of_numbers(const std::vector<Number>& numbers) {
  std::vector<std::string> words;
  for (const Number number : numbers) words.push_back(format("{}", number));
  return list_of(words);
}

}  // namespace

bool is_trace(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string begin(std::min<std::uint64_t>(file.size(), std::uint64_t{1} << 16), '\0');
  file.read(0, begin.data(), begin.size());
  return begin.find("\"traceEvents\"") != std::string::npos;
}

Trace read_trace(const std::filesystem::path& path) {
  Trace trace{.path = path, .events = {}, .ranks = {}, .updates = {}, .save_folder = {}};
  std::string fault;
  // Each event is dropped once it is read, because the JSON of a long trace takes ten times the memory of its text.
  const auto watch = [&](int depth, nlohmann::json::parse_event_t what, nlohmann::json& json) {
    if (what != nlohmann::json::parse_event_t::object_end || depth != 2 || !json.contains("ph")) return true;
    try {
      if (json["ph"] == "X") trace.events.push_back(event_of(json));
    } catch (const std::exception&) {
      const bool older = json.contains("args") && !json["args"].contains("part");
      if (fault.empty())
        fault = (older ? "an older version wrote this operation: " : "this operation is incomplete: ") + json_excerpt(json);
    }
    return false;
  };
  const nlohmann::json rest = parse_json(read_text_file(path, longest_trace), watch);
  if (rest.is_discarded()) refuse(path, "it is cut off, or no JSON");
  if (!fault.empty()) refuse(path, fault);
  if (trace.events.empty()) refuse(path, "it has no operations");
  std::set<int> ranks;
  std::set<std::uint64_t> updates;
  for (const Trace::Event& event : trace.events) ranks.insert(event.rank), updates.insert(event.update);
  trace.ranks.assign(ranks.begin(), ranks.end());
  trace.updates.assign(updates.begin(), updates.end());
  if (rest.contains("otherData")) trace.save_folder = text_at(rest["otherData"], "save_folder");
  return trace;
}

RanksOfUpdate slowest_and_median_rank(const Trace& trace, std::uint64_t update) {
  std::map<int, double> computing;
  for (const Trace::Event& event : trace.events)
    if (event.update == update && event.stream == "compute") computing[event.rank] += event.length_us;
  std::vector<std::pair<double, int>> ranks;
  for (const auto& [rank, time] : computing) ranks.emplace_back(time, rank);
  if (ranks.empty()) return {trace.ranks.front(), trace.ranks.front()};
  std::sort(ranks.begin(), ranks.end());
  return {ranks.back().second, ranks[(ranks.size() - 1) / 2].second};
}

UpdateSplit split_of(const Trace& trace, std::uint64_t update, int rank) {
  // Each event is two changes on its stream, its begin and its end. Between two changes all streams are in the same state.
  enum SplitPart : std::size_t { is_forward, is_backward, is_optimizer, is_other, is_gather, is_reduce, kinds };
  std::vector<std::tuple<double, SplitPart, int>> changes;
  for (const Trace::Event& event : trace.events) {
    if (event.update != update || event.rank != rank) continue;
    if (event.stream != "compute" && event.stream != "gather" && event.stream != "reduce") continue;
    const SplitPart kind = event.stream == "gather"                                               ? is_gather
                           : event.stream == "reduce"                                             ? is_reduce
                           : event.part == UpdatePart::forward || event.part == UpdatePart::again ? is_forward
                           : event.part == UpdatePart::backward                                   ? is_backward
                           : event.part == UpdatePart::optimizer                                  ? is_optimizer
                                                                                                  : is_other;
    changes.emplace_back(event.begin_us, kind, 1);
    changes.emplace_back(event.begin_us + event.length_us, kind, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::array<int, kinds> running = {};
  UpdateSplit split;
  double* const parts[kinds] = {&split.forward, &split.backward, &split.optimizer, &split.other, &split.gather, &split.reduce};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const auto& [at, kind, change] = changes[i];
    if (i > 0) {
      std::size_t now = 0;
      while (now < kinds && running[now] == 0) ++now;
      *(now < kinds ? parts[now] : &split.idle) += 1e-3 * (at - std::get<0>(changes[i - 1]));
    }
    running[kind] += change;
  }
  return split;
}

TracePanels panels_of(const Trace& trace, const TraceView& view) {
  const std::uint64_t update = view.update.value_or(trace.updates.front());
  if (!std::binary_search(trace.updates.begin(), trace.updates.end(), update))
    throw UserError(format("the trace '{}' has no update {} (it has {}); give one of these as `drawn-update`",
                           trace.path.string(), update, list_of_numbers(trace.updates)));
  std::map<int, TimelinePanel> by_rank;
  for (const int rank : view.ranks.empty() ? trace.ranks : view.ranks) {
    if (!std::binary_search(trace.ranks.begin(), trace.ranks.end(), rank))
      throw UserError(format("the trace '{}' has no rank {} (it has {}); give one of these", trace.path.string(), rank,
                             list_of_numbers(trace.ranks)));
    by_rank[rank] = {.title = format("rank {}", rank), .note = {}, .rows = rows_of_streams()};
  }
  double first = std::numeric_limits<double>::infinity(), last = -first;
  const auto is_drawn = [&](const Trace::Event& event) { return event.update == update && by_rank.contains(event.rank); };
  for (const Trace::Event& event : trace.events)
    if (is_drawn(event)) first = std::min(first, event.begin_us), last = std::max(last, event.begin_us + event.length_us);
  for (const Trace::Event& event : trace.events) {
    if (!is_drawn(event)) continue;
    const double begin = (event.begin_us - first) / 1000, length = event.length_us / 1000;
    const DrawnPart& stage = stage_of(event.part);
    add_box(by_rank[event.rank], event.stream,
            {begin, begin + length, event.label, format("{}, {:.3f} ms", event.title, length), stage.fill, &stage});
  }
  TracePanels all;
  for (auto& [rank, panel] : by_rank) all.panels.push_back(std::move(panel));
  all.about = format("update {}, {:.1f} ms", update, std::max(0.0, last - first) / 1000);
  return all;
}

Figure draw_trace_timeline(const Trace& trace, const TraceView& view) {
  const TracePanels all = panels_of(trace, view);
  Figure figure = draw_timeline_panels(all.panels, false);
  figure.svg.text(figure_margin, figure.height + 8, all.about + " from left to right, measured");
  figure.height += 20;
  return figure;
}

}  // namespace fsdp
