// Loss, perplexity and bits per byte of a model on a token file, on any number of ranks.
#include <cstdio>

#include "base/program.hpp"
#include "fsdp-evaluate/evaluate.hpp"
#include "train/common_options.hpp"
#include "train/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  return run_mpi_program(argc, argv, [](MpiSession&, Communicator& world, int count, char** words) {
    EvaluateOptions options;
    std::optional<std::string> text;
    agree(world, [&] {
      OptionTable table = evaluate_option_table(options);
      text = answer(table, table.parse(count, words));
      if (!text) require_complete(options);
    });
    if (!text) text = evaluate(options, world);
    if (world.rank() == 0) std::fputs(text->c_str(), stdout);
    return exit_code::done;
  });
}
