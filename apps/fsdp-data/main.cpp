// fsdp-data: checks the data of a run before it starts. It is one process without MPI, and needs no model weights.
#include "base/program.hpp"
#include "files/json.hpp"
#include "fsdp-data/data.hpp"
#include "job/program.hpp"
#include "report/run_report.hpp"

using namespace fsdp;

namespace {

int run(const DataOptions& options, const OptionTable& table) {
  if (options.train.list_archs) {
    print_text(stdout, list_of_archs());
    return exit_code::done;
  }
  const DataReport report = look_at_data(options, table);
  if (options.json)
    print_raw(stdout, json_text(to_json(report), 2) + "\n");
  else
    print_raw(stdout, describe(report, stdout));
  if (!options.html.empty()) write_text(options.html, to_html(report));
  return report.is_bad() ? exit_code::failed : exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  DataOptions options;
  OptionTable table = data_option_table(options);
  return run_program(argc, argv, table, [&] { return run(options, table); });
}
