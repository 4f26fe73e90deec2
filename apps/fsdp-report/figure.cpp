#include "fsdp-report/figure.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "files/input_file.hpp"
#include "fsdp-report/tuning_figure.hpp"
#include "report/run_report.hpp"
#include "report/trace_figure.hpp"

namespace fsdp {

namespace {

struct TitledFile {
  std::string title, path;
  std::optional<Queues> queues;
};
using Files = std::vector<TitledFile>;

const std::vector<std::pair<std::string, std::optional<Queues>>> modes = {
    {"streams", Queues::streams}, {"thread", Queues::thread}, {"one", Queues::one}};

/// Reads TITLE@MODE=FILE, TITLE=FILE or FILE. A title may have '=' and '@', too, and so may the path of a file that exists.
TitledFile titled_file_of(const std::string& argument) {
  const std::size_t equals = argument.rfind('=');
  if (equals == std::string::npos || kind_of(argument) != PathKind::missing) return {"", argument, {}};
  TitledFile file{argument.substr(0, equals), argument.substr(equals + 1), {}};
  if (file.path.empty()) throw UserError(format("'{}' names no file (it ends after its '='); give TITLE=FILE", argument));
  const std::size_t at = file.title.rfind('@');
  if (at == std::string::npos) return file;
  const auto mode =
      std::find_if(modes.begin(), modes.end(), [&](const auto& one) { return one.first == file.title.substr(at + 1); });
  if (mode == modes.end())
    throw UserError(
        format("'{}' has an unknown mode (a title with '@' is TITLE@streams, TITLE@thread or TITLE@one); "
               "leave out '@', or name one of these modes",
               file.title));
  file.title.erase(at);
  file.queues = mode->second;
  return file;
}

/// Makes the plan of fsdp-plan with the options of a file. Predicted times are those with `queues`, if these are given.
ExplainedPlan plan_of_file(const std::string& path, std::optional<Queues> queues = {}) {
  PlanTableOptions options;
  OptionTable table = plan_option_table(options);
  table.config_elsewhere({"{"}, "(it is JSON); give a file that fsdp-plan [options] --print-config has printed");
  const std::array<const char*, 3> words = {"fsdp-plan", "--config", path.c_str()};
  try {
    table.parse(static_cast<int>(words.size()), words.data());
    PlanTable made = make_plan_table(options);
    if (made.rates && queues) made.rates->queues = *queues;
    ExplainedPlan plan = explained_plan(made);
    plan.path = path;
    return plan;
  } catch (const UserError& error) {
    std::string why = table.name_options(error.what());
    if (const std::size_t at = why.find("--config '"); at != why.npos) why.erase(at, 9);  // the user has named only the file
    throw UserError(why);
  }
}

std::vector<TitledPlan> read_plans(const FigureOptions& options, const Files& files) {
  std::vector<TitledPlan> plans;
  for (const TitledFile& file : files) {
    const std::optional<Queues> queues = file.queues ? file.queues : options.queues;
    plans.push_back({file.title, plan_of_file(file.path, queues), queues.value_or(Queues::streams)});
  }
  return plans;
}

Figure draw_timeline_of(const FigureOptions& options, const Files& files) {
  Files plans, traces;
  for (const TitledFile& file : files) (is_trace(file.path) ? traces : plans).push_back(file);
  if (traces.empty()) {
    if (options.update || options.ranks)
      throw UserError(format("--update and --ranks are for traces ('{}' is none); leave them out", files.front().path));
    return draw_plan_timeline(read_plans(options, plans), options.slots);
  }
  const TitledFile& file = traces.front();
  if (traces.size() > 1 || file.queues || (plans.empty() && (options.slots || options.queues)))
    throw UserError(
        format("'{}' is a trace (a figure shows one trace, and --queues and --slots are for plans); give one trace "
               "without these options",
               file.path));
  const Trace trace = read_trace(file.path);
  TraceView view{.update = options.update, .ranks = trace.ranks};
  view.ranks.resize(std::min(view.ranks.size(), options.ranks.value_or(2)));
  if (plans.empty()) return draw_trace_timeline(trace, view);
  TracePanels measured = panels_of(trace, view);
  for (TimelinePanel& panel : measured.panels) {
    if (!file.title.empty()) panel.title = format("{}, {}", file.title, panel.title);
    panel.note = measured.about + ", measured";
  }
  return draw_plan_timeline(read_plans(options, plans), options.slots, measured.panels);
}

Figure draw_losses_of(const FigureOptions&, const Files& files) {
  std::vector<std::filesystem::path> paths;
  for (const TitledFile& file : files) paths.emplace_back(file.path);
  std::vector<Run> runs = read_named_runs(paths);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].title.empty()) continue;
    if (runs.size() != files.size())
      throw UserError(format("the title '{}' cannot be given to one run (a metrics file has several); leave out the titles",
                             files[i].title));
    runs[i].name = files[i].title;
  }
  return draw_losses(runs);
}

/// A kind of figure. `options`: those that it reads. `one_file`: true if it draws exactly one file.
struct FigureRow {
  std::string_view name;
  bool one_file;
  std::vector<std::string_view> options;
  Figure (*draw)(const FigureOptions&, const Files&);
};

const std::vector<FigureRow>& figure_rows() {
  using Options = FigureOptions;
  static const std::vector<FigureRow> rows = {
      {"strategies", true, {}, [](const Options&, const Files& f) { return draw_strategies(plan_of_file(f[0].path)); }},
      {"units", true, {"unit"}, [](const Options& o, const Files& f) { return draw_units(plan_of_file(f[0].path), o.unit); }},
      {"step", true, {"unit"}, [](const Options& o, const Files& f) { return draw_step(plan_of_file(f[0].path), o.unit); }},
      {"nodes", false, {}, [](const Options& o, const Files& f) { return draw_nodes(read_plans(o, f)); }},
      {"bytes", false, {}, [](const Options& o, const Files& f) { return draw_bytes(read_plans(o, f)); }},
      {"memory", false, {}, [](const Options& o, const Files& f) { return draw_memory(read_plans(o, f)); }},
      {"timeline", false, {"queues", "slots", "update", "ranks"}, draw_timeline_of},
      {"loss", false, {}, draw_losses_of},
      {"tuning", true, {}, [](const Options&, const Files& f) { return draw_tuning(read_tuning(f[0].path)); }}};
  return rows;
}

const FigureRow& find_figure(const std::string& name) {
  std::vector<std::string> names;
  for (const FigureRow& row : figure_rows()) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
  }
  const std::string near = nearest(name, names);
  throw UserError(format("there is no figure '{}' (there are {}); {}", name, fmt::join(names, ", "),
                         near.empty() ? "give one of these" : format("did you mean {}?", near)));
}

}  // namespace

void add_figure_options(OptionTable& table, FigureOptions& options) {
  table
      .text(
          "figure", "NAME", options.figure,
          "Draw one figure. Of a file of options of fsdp-plan, as fsdp-plan --print-config prints them: strategies (what each "
          "rank holds of "
          "parameters, gradients and optimizer state), units (the units, their shards, and the tensors of one unit), step "
          "(what becomes of one unit in an update). Of one or more such files: nodes (what each rank holds and sends), bytes "
          "(bytes per parameter), memory (of a rank over the operations of an update), timeline (the streams of an update; if "
          "the options have a GPU, with predicted times). Of what --trace wrote: timeline, with measured times, and below "
          "plans "
          "with predicted times if such files are given, too. Of runs: loss. Of what fsdp-bench tuning printed: tuning (speed "
          "over memory).")
      .unset("none")
      .sets("sharded-plan", "--sharding-strategy full")
      .sets("trace-of-run", "fsdp-train --trace");
  table.integer("unit", "N", options.unit, {0, 1e9}, "In the figures units and step: which unit (0 is the first).")
      .sets("drawn-unit");
  table
      .choice(
          "queues", options.queues, modes,
          "In the timeline of a plan: streams (each stream by itself), thread (one thread computes and another one does the "
          "rest, in the order of the plan, as with --comm-thread) or one (one thread does all). TITLE@MODE=FILE is for one "
          "file.")
      .unset("streams");
  table.flag("slots", options.slots, "In the timeline of a plan: show which unit is in which slot.");
  table
      .integer("update", "N", options.update, {0, static_cast<double>(std::numeric_limits<int>::max())},
               "In the timeline of a trace: which of the recorded updates.")
      .unset("the first one")
      .sets("drawn-update");
  table.integer("ranks", "N", options.ranks, {1, 1e9}, "In the timeline of a trace: draw the first N ranks.").unset("2");
  table.then([&options](const OptionTable& given) {
    const FigureRow* const row = options.figure.empty() ? nullptr : &find_figure(options.figure);
    for (const char* name : {"unit", "queues", "slots", "update", "ranks"}) {
      if (!given.given(name)) continue;
      if (!row)
        throw UserError(format("--{} changes nothing (there is no --figure); give --figure NAME or leave it out", name));
      if (std::find(row->options.begin(), row->options.end(), name) == row->options.end())
        throw UserError(format("--{} changes nothing in the figure {} (it does not use it); leave it out", name, row->name));
    }
  });
}

std::string draw_figure(const FigureOptions& options, const std::vector<std::string>& files, const std::filesystem::path& out) {
  const FigureRow& row = find_figure(options.figure);
  if (files.empty()) throw UserError(format("no file is given (the figure {} shows what a file has); give a FILE", row.name));
  if (row.one_file && files.size() > 1)
    throw UserError(format("{} files are given (the figure {} shows one); give one FILE", files.size(), row.name));
  Files titled;
  for (const std::string& file : files) {
    titled.push_back(titled_file_of(file));
    const std::filesystem::path path = titled.back().path;
    require_no_input(out, {path, path / "metrics.jsonl"});
  }
  const Figure figure = row.draw(options, titled);
  return figure.svg.file(figure.height);
}

}  // namespace fsdp
