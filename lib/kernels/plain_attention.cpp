// Launches the parts of attention that stores its scores, and the tables of rotary positions.
#include "kernels/plain_attention.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void score_softmax(Stream& stream, E* probabilities, float* scores, const ScoreShape<E>& shape, float scale) {
  launch(stream, ScoreSoftmax<E>{probabilities, scores, shape, scale}, shape.rows);
}

template <class E>
void score_softmax_backward(Stream& stream, E* d_scores, const float* d, const E* probabilities, std::size_t rows,
                            std::size_t keys, float scale) {
  launch(stream, ScoreSoftmaxBackward<E>{d_scores, d, probabilities, keys, scale}, rows);
}

void rotary_table(Stream& stream, float* table, std::size_t T, const RotaryFrequencies& frequencies, DType type) {
  with_element(type, [&]<class E>() { launch(stream, RotaryTable<E>{table, frequencies}, T); });
}

#define FSDP_INSTANTIATE(E)                                                      \
  template void score_softmax(Stream&, E*, float*, const ScoreShape<E>&, float); \
  template void score_softmax_backward(Stream&, E*, const float*, const E*, std::size_t, std::size_t, float);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
