#include "job/program.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/terminal.hpp"
#include "comm/launcher.hpp"
#include "options/common_options.hpp"

namespace fsdp {

namespace {

/// Prints with one write, so that the lines of several ranks do not mix.
void print_problem(const std::string& program, const std::string& where, const std::string& message, const Wording& wording) {
  std::fflush(stdout);
  const std::string text = format("{} {}{}\n", Terminal(stderr).coloured(program + ":", Colour::red), where,
                                  printable(wording ? wording(message) : message));
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string place_of(const MpiSession& session) {
  return session.size() > 1 ? format("rank {} on {}: ", session.rank(), session.host()) : "";
}

}  // namespace

void end_job(MpiSession& session, const std::string& program, const Wording& wording) {
  const Failure failure = describe_current_exception();
  try {
    throw;
  } catch (const GroupAborted&) {
    // The rank that failed reports why and ends this process. Before that it may wait for 10 s (let_others_report_first()).
    std::this_thread::sleep_for(std::chrono::seconds(15));
  } catch (...) {
  }
  print_problem(program, place_of(session), failure.message, wording);
  session.abort_job(failure.exit_code);
}

int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body,
                    const Wording& wording) {
  open_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a job continues if the reader of its log is gone
  std::signal(SIGXFSZ, SIG_IGN);  // a write above the limit of a file's size (ulimit -f) is an error of its call
  keep_freed_memory();            // oneDNN's gemm allocates and frees its packed panels in every call
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "fsdp";
  const auto print = [&](const std::string& where, const std::string& message) {
    print_problem(program, where, message, wording);
  };
  try {
    MpiSession session(argc, argv);
    const std::string where = place_of(session);
    try {
      const auto world = session.world();
      int code;
      try {
        code = body(session, *world, argc, argv);
      } catch (const CollectiveError& error) {
        if (session.rank() == error.speaker) print(error.all ? "" : where, error.what());
        code = error.exit_code;
      }
      if (code == exit_code::done && (std::fflush(stdout) != 0 || std::ferror(stdout))) {
        print(where, "cannot write to standard output (the disk is full or the reader is gone); send it elsewhere");
        code = exit_code::failed;
      }
      // mpirun ends the other ranks as soon as one rank exits with an error, so no rank may exit before all ranks have printed
      // and saved.
      std::fflush(nullptr);
      world->barrier();
      return code;
    } catch (...) {
      end_job(session, program, wording);
    }
  } catch (const CollectiveError& error) {  // the launcher belongs to another MPI
    if (launched_rank([](const char* name) { return std::getenv(name); }) == error.speaker) print("", error.what());
    return error.exit_code;
  } catch (...) {  // starting or ending MPI failed
    const auto [message, code, damage] = describe_current_exception();
    print("", message);
    return code;
  }
}

int run_mpi_program(int argc, char** argv, OptionTable& table,
                    const std::function<int(MpiSession& session, Communicator& world)>& body) {
  let_waiting_threads_sleep(argv);
  return run_mpi_program(
      argc, argv,
      [&](MpiSession& session, Communicator& world, int count, char** words) {
        const std::optional<std::string> text = agree(world, [&] { return answer(table, table.parse(count, words)); });
        if (!text) return body(session, world);
        if (world.rank() == 0) std::fputs(text->c_str(), stdout);
        return exit_code::done;
      },
      [&](const std::string& message) { return table.name_options(message); });
}

int run_program(int argc, char** argv, OptionTable& table, const std::function<int()>& body) {
  return run_program(
      argc, argv,
      [&](int count, char** words) {
        const auto text = answer(table, table.parse(count, words));
        if (!text) return body();
        std::fputs(text->c_str(), stdout);
        return exit_code::done;
      },
      [&](const std::string& message) { return table.name_options(message); });
}

}  // namespace fsdp
