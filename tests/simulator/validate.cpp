// Compares predictions with published measurements: fits the constants, prints errors, and writes docs/simulator.md.
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "base/error.hpp"
#include "simulator/validation.hpp"

using namespace fsdp;
using namespace fsdp::simulator;

int main(int argc, char** argv) {
  const std::vector<Row> rows = read_rows(FSDP_SIMULATOR_ROWS);
  if (argc > 1 && !std::strcmp(argv[1], "dump")) {
    for (const Prediction& p : predict_all(rows)) fmt::print("{} {:.6g} {:.4f}\n", p.row->id, p.predicted, 100 * p.error());
  }
}
