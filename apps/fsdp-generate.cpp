// Samples text from a model or a checkpoint. One process.
#include <cstdio>

#include "base/program.hpp"
#include "base/system.hpp"
#include "train/generate.hpp"
#include "train/options.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  let_waiting_threads_sleep(argv);
  return run_program(argc, argv, [](int count, char** words) {
    GenerateOptions options;
    OptionTable table = generate_option_table(options);
    const auto text = answer(table, table.parse(count, words));
    if (!text)
      generate(options,
               [](std::string_view piece) { std::fwrite(piece.data(), 1, piece.size(), stdout), std::fflush(stdout); });
    else
      std::fputs(text->c_str(), stdout);
    return exit_code::done;
  });
}
