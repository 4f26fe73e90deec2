// fsdp-plan: prints the memory and communication of each sharding strategy on a cluster, which need not exist. It is one
// process, needs no MPI launcher, and reads no weights.
#include <nlohmann/json.hpp>

#include "base/program.hpp"
#include "files/json.hpp"
#include "files/scratch_folder.hpp"
#include "fsdp-plan/plan_scaling.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "fsdp-plan/tune.hpp"
#include "job/program.hpp"
#include "report/run_report.hpp"

using namespace fsdp;

namespace {

int run(const PlanTableOptions& options, const OptionTable& option_table) {
  if (options.train.list_archs) {
    print_text(stdout, list_of_archs());
    return exit_code::done;
  }
  if (!options.out.empty()) ScratchFolder(options.out, ".fsdp-plan");  // throws UserError if nothing can be written there
  PlanTable table = make_plan_table(options);
  for (std::string& warning : table.warnings) warning = option_table.name_options(warning);
  print_warnings(table.warnings);
  if (options.json) {
    nlohmann::json json = to_json(table);
    json.update(use_json(table));
    print_raw(stdout, json_text(json, 2) + "\n");
  } else {
    print_text(stdout, describe(table) + describe_use(table) + (options.explain ? "\n" + explain(table) : ""));
  }
  if (options.out.empty()) return exit_code::done;
  write_text(options.out / "scaling.html", scaling_page(table));
  write_text(options.out / "scaling.csv", scaling_csv(table));
  if (!options.json) print_to(stdout, "\npage: {}\n", (options.out / "scaling.html").string());
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  PlanTableOptions options;
  OptionTable table = plan_option_table(options);
  return run_program(argc, argv, table, [&] { return run(options, table); });
}
