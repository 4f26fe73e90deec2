// Compares predictions with published measurements (docs/simulator.md): fits the constants, prints the errors, and writes the
// tables of the page.
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include "simulator/page.hpp"

using namespace fsdp;
using namespace fsdp::simulator;

namespace {

constexpr std::string_view usage =
    "usage: validate-simulator fit | table [FOLDER] | write\n"
    "  fit     fits the constants on the ten rows, and prints them\n"
    "  table   prints the errors of all rows and of each source, the worst rows and the scaling\n"
    "  write   writes the tables of docs/simulator.md, and fits again without each term of the method\n"
    "FOLDER has rows.csv and vtrain.csv (one of them may be missing); it is tests/simulator if it is not given.\n";

void print_fit(const std::vector<Row>& rows) {
  const std::vector<const Row*> ten = rows_to_fit(rows);
  const Constants constants = fit(ten, start_of_fit, all_constants());
  for (std::size_t i = 0; i < constant_count; ++i) fmt::print("{:.4g}  {}\n", constants[i], constant_names[i]);
  for (const Row* const row : ten)
    fmt::print("{}: {:+.2f} %\n", row->id, 100 * (MeasuredUpdate(*row).predicted(constants) / row->measured - 1));
}

}  // namespace

int main(int argc, char** argv) try {
  const bool has_folder = argc == 3 && std::string_view(argv[1]) == "table";
  const std::string_view command = argc == 2 || has_folder ? argv[1] : "";
  const std::vector<Row> rows = read_rows(has_folder ? argv[2] : FSDP_SIMULATOR_ROWS);
  if (command == "fit")
    print_fit(rows);
  else if (command == "table")
    for (const Report report{rows, predict_all(rows)}; const char* const name : {"errors", "sources", "worst", "scaling"})
      fmt::print("{}\n", table_of(name, report));
  else if (command == "write")
    write_page(FSDP_SIMULATOR_PAGE, {rows, predict_all(rows)});
  else
    return fmt::print(stderr, "{}", usage), 2;
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "validate-simulator: {}\n", error.what());
  return 1;
}
