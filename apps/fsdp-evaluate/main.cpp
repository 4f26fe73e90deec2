// fsdp-evaluate: measures loss, perplexity and bits per byte of a model on tokens, or the share of questions that it answers
// correctly, on any number of ranks.
#include <cstdio>

#include "base/clean_text.hpp"
#include "base/program.hpp"
#include "fsdp-evaluate/evaluate.hpp"
#include "job/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  EvaluateOptions options;
  OptionTable table = evaluate_option_table(options);
  return run_mpi_program(argc, argv, table, [&](MpiSession&, Communicator& world) {
    agree(world, [&] { require_complete(options); });
    const std::string text = evaluate(options, world);
    if (world.rank() == 0) print_raw(stdout, options.json ? text : clean_lines(text));
    return exit_code::done;
  });
}
