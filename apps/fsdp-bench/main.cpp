// Measurements, as ratios in one run.
#include <cstdio>

#include "base/program.hpp"
#include "fsdp-bench/bench.hpp"
#include "train/common_options.hpp"
#include "train/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  return run_mpi_program(argc, argv, [](MpiSession& session, Communicator& world, int count, char** words) {
    BenchOptions options;
    std::optional<std::string> text;
    agree(world, [&] {
      OptionTable table = bench_option_table(options);
      text = answer(table, table.parse(count, words));
    });
    if (!text) {
      std::unique_ptr<Communicator> comm;
      agree(world, [&] { comm = session.world(options.comm); });
      text = bench(options, *comm);
    }
    if (world.rank() == 0) std::fputs(text->c_str(), stdout);
    return exit_code::done;
  });
}
