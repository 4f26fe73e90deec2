// Shared by the kernel tests: plain vectors, a stream, comparison with references in double, and gradients by central
// differences of those references.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

/// A new stream of a CPU device: kernels have no state.
struct CpuStream {
  std::unique_ptr<Device> device = make_cpu_device();
  std::shared_ptr<Stream> stream = device->make_stream();
  operator Stream&() { return *stream; }
};

/// Returns numbers uniform in (-scale, scale), a function of (seed, index).
inline Floats random_floats(std::size_t n, std::uint32_t seed, float scale = 1.0f) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = scale * (static_cast<float>(philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {seed, 77})[0]) * 0x1p-31f - 1.0f);
  return x;
}

inline Doubles upcast(const Floats& x) { return {x.begin(), x.end()}; }

/// Returns the largest |got - want| divided by the largest |want|; infinite if there is a NaN or sizes differ.
inline double relative_error(const Floats& got, const Doubles& want) {
  double error = 0, size = 0;
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(static_cast<double>(got[i]) - want[i]));
    size = std::max(size, std::abs(want[i]));
  }
  return size > 0 ? error / size : error;
}

/// Returns d loss / d x_i by central differences. In double with this step the error is about 1e-9 of the third derivative.
template <class Loss>
Doubles numeric_gradient(const Loss& loss, Doubles x) {
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], h = 1e-5;
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    const double below = loss(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

inline Doubles added(Doubles a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += static_cast<double>(b[i]);
  return a;
}

}  // namespace fsdp::test
