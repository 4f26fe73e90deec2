// What each sharding strategy needs on a cluster that need not be there. One process, no MPI launcher, no weights.
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/program.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "train/common_options.hpp"

using namespace fsdp;

namespace {

int run(int argc, char** argv) {
  PlanTableOptions options;
  OptionTable option_table = plan_option_table(options);
  const Request request = option_table.parse(argc, argv);
  if (options.train.list_archs && request == Request::run) {
    fmt::print("{}", list_of_archs());
    return exit_code::done;
  }
  if (const auto text = answer(option_table, request)) {
    fmt::print("{}", *text);
    return exit_code::done;
  }
  const PlanTable table = make_plan_table(options);
  print_warnings(table.warnings);
  if (options.json)
    fmt::print("{}\n", to_json(table).dump(2));
  else
    fmt::print("{}{}", describe(table), options.explain ? "\n" + explain(table) : "");
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, run); }
