#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void cross_entropy(Stream& stream, float* loss, float* logits, const std::int32_t* targets, std::size_t R, std::size_t V,
                   float gradient_scale) {
  launch(stream, CrossEntropy{loss, logits, targets, V, gradient_scale}, R);
}

double sum(Stream& stream, const float* x, std::size_t n) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) total += static_cast<double>(x[i]);
  return total;
}

}  // namespace fsdp::kernels
