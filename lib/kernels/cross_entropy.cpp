// Launches the cross-entropy loss, for one piece of the vocabulary at a time, and the gradient of the logits.
#include <algorithm>

#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void cross_entropy(Stream& stream, float* loss, const Logits<E>& logits, std::size_t begin) {
  const std::size_t piece = logits.piece, columns = std::min(piece, logits.V - begin);
  expect(piece > 0 && (piece >= logits.V || piece % logits.alignment == 0),
         "pieces of the vocabulary begin at aligned columns");
  expect(reinterpret_cast<std::uintptr_t>(logits.stats) % alignof(SoftmaxStats) == 0, "statistics are aligned");
  launch(stream,
         CrossEntropy<E>{loss, logits.stats, logits.values_from(begin), logits.targets, begin, columns,
                         logits.stride_from(begin), begin + columns == logits.V},
         logits.R);
}

template <class E>
void logit_gradient(Stream& stream, const Logits<E>& logits, std::size_t begin, float gradient_scale) {
  launch(stream,
         LogitGradient<E>{logits.values_from(begin), logits.stats, logits.targets, begin,
                          std::min(logits.piece, logits.V - begin), logits.stride_from(begin), gradient_scale},
         logits.R);
}

template <class E>
void loss_and_gradient(Stream& stream, float* loss, const Logits<E>& logits, float gradient_scale) {
  const std::size_t piece = std::min(logits.piece, logits.V), rest = logits.V - piece;
  expect(rest <= piece, "there are at most two pieces");
  launch(stream,
         LossAndGradient<E>{loss,
                            logits.stats,
                            logits.targets,
                            {logits.values, 0, piece, logits.stride_from(0)},
                            {logits.values_from(piece), piece, rest, logits.stride_from(piece)},
                            gradient_scale},
         logits.R);
}

template <class E>
void logit_gradient(Stream& stream, const Logits<E>& logits, std::size_t begin, float gradient_scale, const LossTerms& terms,
                    float* loss) {
  const std::size_t columns = std::min(logits.piece, logits.V - begin);
  launch(stream,
         LossTermsGradient<E>{loss, logits.values_from(begin), logits.stats, logits.targets, begin, columns,
                              logits.stride_from(begin), gradient_scale, terms.label_smoothing,
                              terms.label_smoothing / static_cast<float>(logits.V), terms.z_loss, begin + columns == logits.V},
         logits.R);
}

template <class E>
void add_predictions(Stream& stream, LossSum& sum, const Logits<E>& logits) {
  launch(stream, AddPredictions{&sum, logits.stats, logits.targets, logits.R}, 1);
}

#define FSDP_INSTANTIATE(E)                                                    \
  template void cross_entropy(Stream&, float*, const Logits<E>&, std::size_t); \
  template void logit_gradient(Stream&, const Logits<E>&, std::size_t, float); \
  template void loss_and_gradient(Stream&, float*, const Logits<E>&, float);   \
  template void add_predictions(Stream&, LossSum&, const Logits<E>&);          \
  template void logit_gradient(Stream&, const Logits<E>&, std::size_t, float, const LossTerms&, float*);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

void add_losses(Stream& stream, LossSum& sum, const float* losses, std::size_t n) {
  launch(stream, AddLosses{&sum, losses, n}, 1);
}

}  // namespace fsdp::kernels
