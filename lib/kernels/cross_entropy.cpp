// Launches the cross-entropy loss, for one piece of the vocabulary at a time, and the gradient of the logits.
#include <algorithm>

#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void cross_entropy(Stream& stream, float* loss, const Logits<E>& logits, std::size_t begin) {
  const auto& [values, stats, targets, R, V, piece] = logits;
  expect(piece > 0, "a piece of the vocabulary must not be empty");
  const std::size_t columns = std::min(piece, V - begin);
  launch(stream, CrossEntropy<E>{loss, stats, values + R * begin, targets, begin, columns, begin + columns == V}, R);
}

template <class E>
void logit_gradient(Stream& stream, const Logits<E>& logits, std::size_t begin, float gradient_scale) {
  const auto& [values, stats, targets, R, V, piece] = logits;
  launch(stream, LogitGradient<E>{values + R * begin, stats, targets, begin, std::min(piece, V - begin), gradient_scale}, R);
}

#define FSDP_INSTANTIATE(E)                                                    \
  template void cross_entropy(Stream&, float*, const Logits<E>&, std::size_t); \
  template void logit_gradient(Stream&, const Logits<E>&, std::size_t, float);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

void add_losses(Stream& stream, LossSum& sum, const float* losses, std::size_t n) {
  launch(stream, AddLosses{&sum, losses, n}, 1);
}

}  // namespace fsdp::kernels
