#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void embedding_forward(Stream& stream, float* x, const std::int32_t* tokens, const float* token_table,
                       const float* position_table, std::size_t B, std::size_t T, std::size_t C) {
  launch(stream, EmbeddingForward{x, tokens, token_table, position_table, T, C}, B * T);
}

void embedding_backward(Stream& stream, float* d_token_table, const float* dx, const std::int32_t* tokens, std::size_t R,
                        std::size_t C, std::size_t V, Write write) {
  if (write == Write::overwrite) fill_zero(stream, d_token_table, V * C);
  launch(stream, EmbeddingBackward{d_token_table, dx, tokens, R, C},
         (C + EmbeddingBackward::block - 1) / EmbeddingBackward::block);
}

void position_backward(Stream& stream, float* d_position_table, const float* dx, std::size_t B, std::size_t T, std::size_t C,
                       std::size_t P, Write write) {
  expect(B > 0 && T <= P, "a sequence is longer than the position table");
  launch(stream, PositionBackward{d_position_table, dx, B, T, C, write == Write::add}, P);
}

}  // namespace fsdp::kernels
