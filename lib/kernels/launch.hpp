// Runs a row body, that is, a kernel for one row (rows/lanes.hpp). On the CPU this is an OpenMP loop over rows, compiled for
// this machine's instruction set. On another device, the device's library runs the body. Private to kernels/.
#pragma once

#include <cstddef>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Expands X(E) for each type of weights and activations; for explicit instantiations.
#define FSDP_FOR_ELEMENTS(X) X(float) X(bf16) X(f16)

/// x86-64-v2 (SSE4.2), -v3 (AVX2, FMA), -v4 (AVX-512).
enum class CpuLevel { v2 = 2, v3 = 3, v4 = 4 };
/// The best level of this processor, or a lower one if the environment variable FSDP_CPU_LEVEL is v2, v3 or v4. Throws
/// UserError if the value is unknown or above the processor's level.
CpuLevel cpu_level();
/// Returns true if the AMX kernels can run: the processor is of level v4 and has AMX for bf16, the settings of the library for
/// products do not disable AMX, and the system lets this process use it.
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
  switch (cpu_level()) {
    case CpuLevel::v4:
      return run_rows<4>(body, rows);
    case CpuLevel::v3:
      return run_rows<3>(body, rows);
    case CpuLevel::v2:
      return run_rows<2>(body, rows);
  }
}

}  // namespace fsdp::kernels
