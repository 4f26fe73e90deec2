// fsdp-report: shows how runs went: as a page, in a terminal, as a table, or as files for TensorBoard. It is one process, needs
// no MPI launcher, and reads only what runs have written.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "base/terminal.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "fsdp-report/figure.hpp"
#include "fsdp-report/text_plot.hpp"
#include "job/program.hpp"
#include "record/tensorboard.hpp"
#include "report/page_parts.hpp"
#include "report/run_report.hpp"

using namespace fsdp;

namespace {

struct Command {
  std::vector<std::string> runs;
  std::filesystem::path out, tensorboard, csv;
  bool text = false, follow = false;
  FigureOptions figure;
};

OptionTable report_option_table(Command& o) {
  OptionTable table(
      "fsdp-report", "RUN... [options]",
      "Shows how runs went: losses, speed, memory, saves, restarts and options, several runs over each other. Writes one "
      "page that needs no network, or a drawing, a table, files for TensorBoard, or curves in the terminal.");
  table.examples({"fsdp-report checkpoints --out report.html", "fsdp-report run-a run-b --csv both.csv",
                  "fsdp-report checkpoints --text --follow"});
  table.group("What");
  table
      .list("runs", "RUN", o.runs,
            "Save folders of runs, or their metrics files (--log-file of fsdp-train). With --figure: the files that are drawn.")
      .positional()
      .unset("required");
  table.group("How");
  table.path("out", "FILE", o.out, "The page, or the drawing of --figure.")
      .unset("report.html; with --figure: standard output");
  table.flag("text", o.text, "Instead draw loss and speed in the terminal, as wide as it is.");
  table.flag("follow", o.follow, "With --text: draw again every two seconds, until the run ends or stops, or Ctrl-C.");
  table.path("csv", "FILE", o.csv, "Instead write a line for each update and validation, with commas between the values.")
      .unset("no table");
  table
      .path("tensorboard", "DIR", o.tensorboard,
            "Instead write event files for TensorBoard, with the tags of torchtitan; several runs get a folder each in DIR.")
      .unset("no event files");
  add_figure_options(table, o.figure);
  table.then([&o](const OptionTable& given) {
    const auto refuse = [&](const char* name, std::string_view why, std::string_view advice) {
      if (given.given(name)) throw UserError(format("--{} changes nothing ({}); {}", name, why, advice));
    };
    if (!o.figure.figure.empty())
      for (const char* name : {"text", "follow", "csv", "tensorboard"})
        refuse(name, "there is --figure", "leave one of them out");
    if (o.text)
      for (const char* name : {"out", "csv", "tensorboard"})
        refuse(name, "--text prints to standard output", "leave one of them out");
    else
      refuse("follow", "there is no --text", "give --text, too");
    if (!o.csv.empty() || !o.tensorboard.empty()) refuse("out", "--csv and --tensorboard name their own files", "leave it out");
  });
  return table;
}

std::size_t terminal_width() {
  if (const std::size_t width = Terminal(stdout).width(); width > 0) return width;
  const char* const columns = std::getenv("COLUMNS");
  const std::size_t width = columns ? std::strtoul(columns, nullptr, 10) : 0;
  return width > 0 ? std::min<std::size_t>(width, 1000) : 80;
}

/// True if the locale of the environment has Unicode.
bool has_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* const value = std::getenv(name); value && *value) {
      const std::string_view text(value);
      return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos || text.find("UTF8") != text.npos;
    }
  return false;
}

void print_notes(const std::vector<Run>& runs, std::FILE* out) {
  for (const Run& run : runs)
    for (const std::string& note : run.notes) print_to(out, "note: {}\n", run.name + ": " + note);
}

void show_text(const Command& command, const std::vector<std::filesystem::path>& paths) {
  const bool draws = Terminal(stdout).draws();
  while (true) {
    const std::vector<Run> runs = read_named_runs(paths);
    std::string out;
    for (const Run& run : runs) out += text_summary(run);
    for (const Run& run : runs) out += text_curves(run, runs.size() > 1, terminal_width(), has_unicode());
    if (command.follow && draws) print_raw(stdout, "\033[H\033[2J");
    print_text(stdout, out);
    print_notes(runs, stdout);
    std::fflush(stdout);
    const auto has_end = [](const Run& run) { return run.starts.back().has_end(); };
    if (!command.follow || std::all_of(runs.begin(), runs.end(), has_end)) return;
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

/// Returns the name of a folder for each run; no two are the same.
std::vector<std::string> folder_names(const std::vector<Run>& runs) {
  std::vector<std::string> names;
  for (const Run& run : runs) {
    std::string name = one_line(run.name);
    std::replace(name.begin(), name.end(), '/', '_');
    if (name.empty() || name.front() == '.') name.insert(0, "run");
    while (std::find(names.begin(), names.end(), name) != names.end()) name += "_";
    names.push_back(std::move(name));
  }
  return names;
}

void write_tensorboard(const Command& command, const std::vector<Run>& runs) {
  const std::vector<std::string> names = folder_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    TensorBoardFile file(runs.size() == 1 ? command.tensorboard : command.tensorboard / names[i]);
    std::ifstream lines(run.metrics);
    bool mine = false;
    int ranks = 1;
    for (std::string words; next_line(lines, words);) {
      const nlohmann::json line = parse_json(words);
      const double time = number_at(line, "time"), step = number_at(line, "step");
      const double at = std::isfinite(time) ? time : 0;
      if (text_at(line, "type") == "start") {
        mine = text_at(line, "save_folder") == run.save_folder;
        ranks = std::max(1, static_cast<int>(std::min<std::uint64_t>(whole_number(number_at(line, "world_size")), 1 << 30)));
        if (mine) file.begin(at, whole_number(step) + 1);
      } else if (mine && step >= 0) {
        file.add(at, whole_number(step), tensorboard_scalars(line, ranks));
      }
    }
    if (file.failed())
      throw RunError(format("cannot write all of '{}' (is the disk full?); give another folder", file.path().string()));
    print_to(stderr, "{}: {}\n", run.name, file.path().string());
  }
}

int run(const Command& command) {
  if (!command.figure.figure.empty()) {
    const std::string drawing = draw_figure(command.figure, command.runs, command.out);
    if (command.out.empty())
      print_raw(stdout, drawing);
    else
      write_text(command.out, drawing);
    return exit_code::done;
  }
  if (command.runs.empty()) throw UserError("no run is named; give its save folder or its metrics file");
  const std::vector<std::filesystem::path> paths(command.runs.begin(), command.runs.end());
  if (command.text) return show_text(command, paths), exit_code::done;
  std::vector<Run> runs = read_named_runs(paths);
  const std::string count = plural(runs.size(), "run");
  if (!command.csv.empty() || !command.tensorboard.empty()) {
    print_notes(runs, stderr);
    if (!command.csv.empty()) {
      require_no_input(command.csv, inputs_of(runs));
      write_text(command.csv, to_csv(runs));
      print_to(stderr, "{}: {}\n", command.csv.string(), count);
    }
    if (!command.tensorboard.empty()) write_tensorboard(command, runs);
    return exit_code::done;
  }
  runs = with_parts(std::move(runs));
  print_notes(runs, stderr);
  const std::filesystem::path out = command.out.empty() ? "report.html" : command.out;
  require_no_input(out, inputs_of(runs));
  if (command.out.empty()) require_own_file(out, page_beginning);
  write_page(runs, out);
  print_to(stderr, "{}: {}\n", out.string(), count);
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  OptionTable table = report_option_table(command);
  return run_program(argc, argv, table, [&] { return run(command); });
}
