// Samples text from a model or a checkpoint. One process.
#include <cstdio>

#include "base/system.hpp"
#include "fsdp-generate/generate.hpp"
#include "train/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  let_waiting_threads_sleep(argv);
  GenerateOptions options;
  OptionTable table = generate_option_table(options);
  return run_program(argc, argv, table, [&] {
    generate(options, [](std::string_view piece) { std::fwrite(piece.data(), 1, piece.size(), stdout), std::fflush(stdout); });
    return exit_code::done;
  });
}
