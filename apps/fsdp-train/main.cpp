// fsdp-train: trains a transformer, fully sharded over the ranks of an MPI job. The training loop is train() in
// lib/train/train.cpp.
#include <cstdio>

#include "base/program.hpp"
#include "base/system.hpp"
#include "train/options.hpp"
#include "train/program.hpp"
#include "train/signals.hpp"
#include "train/train.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  open_standard_descriptors();
  let_waiting_threads_sleep(argv);
  const auto hold = [](int, char**) { return hold_signals(), exit_code::done; };  // must come before any thread starts
  if (const int code = run_program(argc, argv, hold)) return code;
  const auto body = [](MpiSession& session, Communicator& world, int count, char** words) {
    const TrainCommand command = agree(world, [&] { return parse_train_command(count, words, world.size()); });
    if (command.answer) {
      if (world.rank() == 0) std::fputs(command.answer->c_str(), stdout);
      return exit_code::done;
    }
    const std::unique_ptr<Communicator> comm = agree(world, [&] { return session.world(command.options.comm); });
    return train(command.options, *comm);
  };
  return run_mpi_program(argc, argv, body, with_option_names);
}
