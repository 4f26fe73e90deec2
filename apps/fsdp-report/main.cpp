// fsdp-report: shows how runs went: as a page, in a terminal, as a table, or as files for TensorBoard. It is one process, needs
// no MPI launcher, and reads only what runs have written.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "files/json.hpp"
#include "fsdp-report/figure.hpp"
#include "report/run_report.hpp"
#include "report/text_plot.hpp"
#include "train/program.hpp"
#include "train/tensorboard.hpp"

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
  table.flag("follow", o.follow, "With --text: draw again every two seconds, until the run ends or Ctrl-C.");
  table.path("csv", "FILE", o.csv, "Instead write a line for each update and validation, with commas between the values.")
      .unset("no table");
  table
      .path("tensorboard", "DIR", o.tensorboard,
            "Instead write event files for TensorBoard, with the tags of torchtitan; several runs get a folder each in DIR.")
      .unset("no event files");
  add_figure_options(table, o.figure);
  return table;
}

std::size_t terminal_width() {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
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

void print_text(const Command& command, const std::vector<std::filesystem::path>& paths) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  while (true) {
    const FoundRuns found = find_runs(paths);
    std::string out;
    for (const Run& run : found.runs) {
      out += text_report(run, terminal_width(), has_unicode());
      for (const std::string& note : run.notes) out += format("note: {}\n", note);
    }
    if (command.follow && terminal) print_to(stdout, "\033[H\033[2J");
    print_to(stdout, "{}", out);
    std::fflush(stdout);
    const bool ended =
        std::all_of(found.runs.begin(), found.runs.end(), [](const Run& run) { return run.starts.back().has_end; });
    if (!command.follow || ended) return;
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

void write_tensorboard(const Command& command, const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    TensorBoardFile file(runs.size() == 1 ? command.tensorboard
                                          : command.tensorboard / std::filesystem::path(run.name).relative_path());
    std::ifstream lines(run.metrics);
    bool mine = false;
    int ranks = 1;
    for (std::string words; std::getline(lines, words);) {
      const nlohmann::json line = parse_json(words);
      if (!line.is_object() || !line.contains("type")) continue;
      if (line["type"] == "start") {
        mine = !line.contains("save_folder") || !line["save_folder"].is_string() || line["save_folder"] == run.save_folder;
        ranks = std::max(1, line.value("world_size", 1));
      }
      if (!mine || !line.contains("step") || !line["step"].is_number_unsigned()) continue;
      file.add(line.value("time", 0.0), line["step"], tensorboard_scalars(line, ranks));
    }
    if (file.failed())
      throw UserError(format("cannot write '{}' (the disk is full); give another folder", file.path().string()));
    print_to(stderr, "{}: {}\n", run.name, file.path().string());
  }
}

int run(const Command& command) {
  if (!command.figure.figure.empty()) {
    const std::string drawing = draw_figure(command.figure, command.runs);
    if (command.out.empty())
      print_to(stdout, "{}", drawing);
    else
      write_text(command.out, drawing);
    return exit_code::done;
  }
  if (command.runs.empty()) throw UserError("no run is named; give its save folder or its metrics file");
  const std::vector<std::filesystem::path> paths(command.runs.begin(), command.runs.end());
  if (command.text) return print_text(command, paths), exit_code::done;
  const FoundRuns found = find_runs(paths);
  for (const Run& run : found.runs)
    for (const std::string& note : run.notes) print_to(stderr, "note: {}: {}\n", run.name, note);
  if (!command.csv.empty()) {
    write_text(command.csv, to_csv(found.runs));
    print_to(stderr, "{}: {}\n", command.csv.string(), plural(found.runs.size(), "run"));
  }
  if (!command.tensorboard.empty()) write_tensorboard(command, found.runs);
  if (command.csv.empty() && command.tensorboard.empty()) {
    const std::filesystem::path out = command.out.empty() ? "report.html" : command.out;
    write_page(found, out);
    print_to(stderr, "{}: {}\n", out.string(), plural(found.runs.size(), "run"));
  }
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  OptionTable table = report_option_table(command);
  return run_program(argc, argv, table, [&] { return run(command); });
}
