#include "train/program.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <tuple>
#include <vector>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "device/device.hpp"

namespace fsdp {

namespace {

/// What an exception says, and the exit code that it asks for. To be called while it is handled.
std::pair<std::string, int> describe_current_exception() {
  try {
    throw;
  } catch (const UserError& error) {
    return {error.what(), exit_code::wrong_use};
  } catch (const std::bad_alloc&) {
    return {"out of memory (the system gave no more) use more ranks, a smaller batch or --checkpoint-activations", exit_code::failed};
  } catch (const std::exception& error) {
    return {error.what(), exit_code::failed};
  } catch (...) {
    return {"an unknown error", exit_code::failed};
  }
}

}  // namespace

void agree(Communicator& comm, const std::function<void()>& step) {
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<std::int64_t> codes(static_cast<std::size_t>(comm.size()), 0);
  std::string message;
  try {
    step();
  } catch (...) {
    std::tie(message, codes[me]) = describe_current_exception();
  }
  const auto stream = make_cpu_device()->make_stream();
  comm.all_reduce(*stream, codes.data(), codes.size());
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (first == codes.end()) return;

  const int speaker = narrow<int>(first - codes.begin());
  auto length = static_cast<std::int64_t>(comm.rank() == speaker ? message.size() : 0);
  comm.all_reduce(*stream, &length, 1);
  message.resize(static_cast<std::size_t>(length));
  comm.broadcast(*stream, message.data(), message.size(), speaker);
  const bool everywhere = std::find(codes.begin(), codes.end(), 0) == codes.end();
  throw CollectiveError(message, speaker, everywhere, static_cast<int>(*first));
}

int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "fsdp";
  // One write per message, so that the lines of several ranks do not mix.
  const auto print = [&](const std::string& where, const std::string& message) {
    std::fflush(stdout);
    const std::string text = format("{}: {}{}\n", program, where, message);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  try {
    MpiSession session(argc, argv);
    const std::string where = session.size() > 1 ? format("rank {} on {}: ", session.rank(), session.host()) : "";
    try {
      const auto world = session.world();
      int code;
      try {
        code = body(session, *world, argc, argv);
      } catch (const CollectiveError& error) {
        if (session.rank() == error.speaker) print(error.all ? "" : where, error.what());
        code = error.exit_code;
      }
      // mpirun ends the others as soon as one rank exits with an error: nobody may leave before all have printed and saved.
      std::fflush(nullptr);
      world->barrier();
      return code;
    } catch (...) {
      const auto [message, code] = describe_current_exception();
      print(where, message);
      session.abort_job(code);
    }
  } catch (...) {  // MPI itself did not start or end
    const auto [message, code] = describe_current_exception();
    print("", message);
    return code;
  }
}

}  // namespace fsdp
