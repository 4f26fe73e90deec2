// fsdp-bench: measures parts of training, and reports ratios of measurements of the same run.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/clean_text.hpp"
#include "base/program.hpp"
#include "fsdp-bench/bench.hpp"
#include "fsdp-bench/scaling.hpp"
#include "job/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  BenchOptions options;
  OptionTable table = bench_option_table(options);
  const auto variable = [](const char* name) { return std::getenv(name); };
  if (argc > 1 && std::string_view(argv[1]) == "scaling" && launcher_name(variable).empty())
    return run_program(argc, argv, table, [&] { return run_scaling(options, options.of_step); });
  return run_mpi_program(argc, argv, table, [&](MpiSession& session, Communicator& world) {
    const std::unique_ptr<Communicator> comm = agree(world, [&] { return session.world(options.comm); });
    const std::string text = bench(options, *comm);
    if (world.rank() == 0) print_raw(stdout, options.json ? text : clean_lines(text));
    return exit_code::done;
  });
}
