// Runs the row kernels of kernels/tape.hpp; as kernels/launch.hpp. Private to kernels/.
#pragma once

#include <cstddef>

#include "kernels/tape.hpp"

namespace fsdp::kernels {

/// Runs all parts, and body(lanes, row) for each row in [0, rows). Instantiated in rows/tape.cpp.
template <int level>
void run_tape_tiles(const TapeRun& run);
template <int level, class Body>
void run_tape_rows(const Body& body, std::size_t rows);

}  // namespace fsdp::kernels
