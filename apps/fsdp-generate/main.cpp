// fsdp-generate: generates text with a model or a checkpoint, on any number of ranks.
#include <cstdio>

#include "fsdp-generate/generate.hpp"
#include "job/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  GenerateOptions options;
  OptionTable table = generate_option_table(options);
  return run_mpi_program(argc, argv, table, [&](MpiSession&, Communicator& world) {
    agree(world, [&] { require_complete(options); });
    generate(options, world,
             [](std::string_view piece) { std::fwrite(piece.data(), 1, piece.size(), stdout), std::fflush(stdout); });
    return exit_code::done;
  });
}
