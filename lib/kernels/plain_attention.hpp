// The parts of attention that stores its scores, for shapes that attention_forward() does not support, and tables of rotary
// positions for layers.
#pragma once

#include <array>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Scores of `rows` queries of a sequence and `keys` keys. Query r sees the keys [0, first_end + r), and only those whose mask
/// is not 0; mask[key * mask_stride], or no mask if it is null.
template <class E>
struct ScoreShape {
  std::size_t rows, keys, first_end;
  const E* mask = nullptr;
  std::size_t mask_stride = 0;
};
/// probabilities[rows,keys] = softmax(scale * scores[rows,keys]) over the keys that the query sees, and 0 for other keys. If a
/// query sees no key, its probabilities are 0. Overwrites the scores. `probabilities` may be `scores` if E is float.
template <class E>
void score_softmax(Stream& stream, E* probabilities, float* scores, const ScoreShape<E>& shape, float scale);
/// The gradient of the scores from `d`, that of the probabilities: d_scores = scale * p * (d - sum(p * d)). d_scores may be `d`
/// if E is float.
template <class E>
void score_softmax_backward(Stream& stream, E* d_scores, const float* d, const E* probabilities, std::size_t rows,
                            std::size_t keys, float scale);

/// The angles by which pairs of elements of a head turn per position (rope() in kernels.hpp).
struct RotaryFrequencies {
  static constexpr std::size_t most = 128;
  std::array<float, most> value;
  std::size_t pairs;
};
/// table[T, 2 * pairs]: the cosines, then the sines of each position, as rope() reads them, rounded to `type`.
void rotary_table(Stream& stream, float* table, std::size_t T, const RotaryFrequencies& frequencies, DType type);

}  // namespace fsdp::kernels
