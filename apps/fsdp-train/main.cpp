// fsdp-train: trains a transformer, fully sharded over the ranks of an MPI job. The training loop is train() in
// lib/train/train.cpp.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/program.hpp"
#include "base/system.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "fsdp-train/rehearsal.hpp"
#include "job/program.hpp"
#include "job/signals.hpp"
#include "options/options.hpp"
#include "report/page_parts.hpp"
#include "report/run_report.hpp"
#include "train/train.hpp"

namespace {

using namespace fsdp;

/// A run that must stop has too little time to read larger metrics.
constexpr std::uintmax_t most_before_stop = std::uintmax_t{256} << 20;

/// Writes the page of the run into its save folder. A run that trained is not a failure because its page is missing. Metrics
/// that went into a pipe or to a terminal cannot be read again.
void write_report(const TrainOptions& options, int code) {
  if (options.no_report || options.log_file.empty() || options.save.none || options.dry_run) return;
  const std::filesystem::path page = options.save.folder / "report.html";
  try {
    if (kind_of(options.log_file) != PathKind::file) return;
    require_own_file(page, page_beginning);
    if (code == exit_code::stopped && std::filesystem::file_size(options.log_file) > most_before_stop) return;
    write_page(with_parts(read_runs(options.log_file, options.save.folder)), page);
    print_to(stderr, "report: {}\n", page.string());
  } catch (const std::exception& error) {
    print_warning(format("no report is written ({})", with_option_names(error.what())));
  }
}

/// A rehearsal is one process without MPI, which starts ranks itself.
int run_rehearsal(int argc, char** argv) {
  std::vector<std::string> problems;
  const TrainCommand command = parse_train_command(argc, argv, 1, &problems);
  if (!command.answer) return rehearse(command.options, problems, std::filesystem::read_symlink("/proc/self/exe"));
  print_text(stdout, *command.answer);
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  let_waiting_threads_sleep(argv);
  if (std::any_of(argv, argv + argc, [](std::string_view word) { return word == "--rehearse" || word == "--rehearse=true"; }))
    return run_program(argc, argv, run_rehearsal, with_option_names);
  const auto hold = [](int, char**) { return hold_signals(), exit_code::done; };  // must come before any thread starts
  if (const int code = run_program(argc, argv, hold)) return code;
  const auto body = [](MpiSession& session, Communicator& world, int count, char** words) {
    const TrainCommand command = agree(world, [&] { return parse_train_command(count, words, world.size()); });
    if (command.answer) {
      if (world.rank() == 0) std::fputs(command.answer->c_str(), stdout);
      return exit_code::done;
    }
    if (command.options.rehearsal.asked) throw UserError("--rehearse is not for a file; give it on the command line");
    const std::unique_ptr<Communicator> comm = agree(world, [&] { return session.world(command.options.comm); });
    const int code = train(command.options, *comm);
    if (world.rank() == 0) write_report(command.options, code);
    return code;
  };
  return run_mpi_program(argc, argv, body, with_option_names);
}
