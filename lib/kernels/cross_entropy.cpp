#include <algorithm>

#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void cross_entropy(Stream& stream, float* loss, const Logits& logits, float gradient_scale) {
  const auto& [values, factors, targets, R, V, piece] = logits;
  expect(piece > 0, "the vocabulary is cut into pieces");
  launch(stream, CrossEntropy{loss, factors, values, targets, R, V, piece, gradient_scale}, R);
}

template <class E>
void logit_gradient(Stream& stream, E* d, const Logits& logits, std::size_t begin, float gradient_scale) {
  const std::size_t columns = std::min(logits.piece, logits.V - begin);
  launch(stream,
         LogitGradient<E>{d, logits.values + logits.R * begin, logits.factors, logits.targets, begin, columns, gradient_scale},
         logits.R);
}

#define FSDP_INSTANTIATE(E) template void logit_gradient(Stream&, E*, const Logits&, std::size_t, float);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

double sum(Stream& stream, const float* x, std::size_t n) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) total += static_cast<double>(x[i]);
  return total;
}

}  // namespace fsdp::kernels
