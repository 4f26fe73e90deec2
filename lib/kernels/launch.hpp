// Runs a row body, that is, a kernel for one row (rows/lanes.hpp). On the CPU this is an OpenMP loop over rows, compiled for
// this machine's instruction set. On another device, the device's library runs the body. Private to kernels/.
#pragma once

#include <cstddef>

#include "base/error.hpp"
#include "device/cpu/processor.hpp"
#include "device/device.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Expands X(E) for each type of weights and activations; for explicit instantiations.
#define FSDP_FOR_ELEMENTS(X) X(float) X(bf16) X(f16)

/// Returns true if the kernels for tiles of bf16 numbers (tile_product.hpp) can run: the processor has the instructions,
/// neither FSDP_CPU_LEVEL nor the library for products disables them, and the system lets this process use them.
bool has_tiles();

/// Calls body(lanes, row) for each row in [0, rows). Inside a parallel region, the calling thread runs all rows; otherwise the
/// rows are divided among OpenMP's threads. Instantiated in rows/cpu.cpp for the bodies of rows/bodies.hpp.
template <int level, class Body>
void run_rows(const Body& body, std::size_t rows);

/// As run_rows(), with a separate part of the scratch for each thread; for the bodies of rows/attention.hpp.
template <int level, class Body>
void run_attention(const Body& body, std::size_t rows, float* scratch, std::size_t scratch_per_thread);

template <class Body>
void launch(Stream& stream, const Body& body, std::size_t rows) {
  if (rows == 0) return;
  if (const DeviceKernels* device = stream.kernels()) return device->rows(stream, typeid(Body), &body, rows);
  at_cpu_level([&]<int level>() { run_rows<level>(body, rows); });
}

}  // namespace fsdp::kernels
