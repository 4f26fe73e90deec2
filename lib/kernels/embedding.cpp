// Launches the embedding of tokens and positions, and the gradients of both tables.
#include <cmath>
#include <limits>

#include "base/philox.hpp"
#include "device/traits.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void embedding_forward(Stream& stream, E* x, const std::int32_t* tokens, const E* token_table, Nullable<E> position_table,
                       std::size_t B, std::size_t T, std::size_t C, const std::int32_t* positions, float scale,
                       const float* sinusoids, TokenRange range) {
  launch(stream, EmbeddingForward<E>{x, tokens, token_table, position_table, T, C, positions, scale, sinusoids, range}, B * T);
}

template <class E>
void embedding_backward(Stream& stream, float* d_token_table, const E* dx, const std::int32_t* tokens, std::size_t R,
                        std::size_t C, std::size_t V, Write write, float scale, std::int32_t skipped, TokenRange range) {
  if (write == Write::overwrite) fill_zero(stream, d_token_table, V * C);
  if (grain_of(stream.kind()).row_for_each_token)
    launch(stream, EmbeddingBackwardByToken<E>{d_token_table, dx, tokens, R, C, scale, skipped, range}, R);
  else
    launch(stream, EmbeddingBackward<E>{d_token_table, dx, tokens, R, C, scale, skipped, range},
           (C + EmbeddingBackward<E>::block - 1) / EmbeddingBackward<E>::block);
}

template <class E>
void position_backward(Stream& stream, float* d_position_table, const E* dx, std::size_t B, std::size_t T, std::size_t C,
                       std::size_t P, Write write) {
  expect(B > 0 && T <= P, "a sequence must not be longer than the position table");
  launch(stream, PositionBackward<E>{d_position_table, dx, B, T, C, write == Write::add}, P);
}

EmbeddingNoise embedding_noise(float alpha, std::uint32_t seed, std::uint64_t update, std::uint64_t first_sequence,
                               std::size_t T, std::size_t C) {
  expect(first_sequence <= std::numeric_limits<std::uint32_t>::max(), "an update must have fewer than 2^32 sequences");
  const auto words = philox({0, static_cast<std::uint32_t>(update), static_cast<std::uint32_t>(update >> 32),
                             static_cast<std::uint32_t>(RandomSite::embedding_noise)},
                            {seed, 0});
  return {{words[0], words[1]},
          static_cast<std::uint32_t>(first_sequence),
          static_cast<float>(double{alpha} / std::sqrt(static_cast<double>(T * C))),
          T};
}

template <class E>
void add_noise(Stream& stream, E* x, std::size_t R, std::size_t C, const EmbeddingNoise& noise) {
  launch(stream, AddNoise<E>{x, C, noise}, R);
}

#define FSDP_INSTANTIATE(E)                                                                                               \
  template void embedding_forward(Stream&, E*, const std::int32_t*, const E*, Nullable<E>, std::size_t, std::size_t,      \
                                  std::size_t, const std::int32_t*, float, const float*, TokenRange);                     \
  template void embedding_backward(Stream&, float*, const E*, const std::int32_t*, std::size_t, std::size_t, std::size_t, \
                                   Write, float, std::int32_t, TokenRange);                                               \
  template void position_backward(Stream&, float*, const E*, std::size_t, std::size_t, std::size_t, std::size_t, Write);  \
  template void add_noise(Stream&, E*, std::size_t, std::size_t, const EmbeddingNoise&);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
