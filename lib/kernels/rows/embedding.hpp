// Row bodies of the embeddings. Letters as in kernels.hpp.
#pragma once

#include "base/element.hpp"
#include "base/philox.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/initial.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r of R. The position of token r is positions[r], or r mod T if `positions` is null. At most one of position_table and
/// sinusoids is given.
template <class E>
struct EmbeddingForward {
  E* x;
  const std::int32_t* tokens;
  const E *token_table, *position_table;
  std::size_t T, C;
  const std::int32_t* positions = nullptr;
  float scale = 1;
  const float* sinusoids = nullptr;
  TokenRange range = {};

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    if (tokens[r] < range.first || tokens[r] >= range.end) return;
    E* out = x + r * C;
    const E* token = token_table + static_cast<std::size_t>(tokens[r] - range.first) * C;
    const std::size_t at = (positions ? static_cast<std::size_t>(positions[r]) : r % T) * C;
    const float by = scale;
    const auto add = [=](E& x_c, float t, float p) FSDP_LANE { x_c = E(by * t + p); };
    if (position_table)
      lanes.each(C, add, writes(out), token, position_table + at);
    else if (sinusoids)
      lanes.each(C, add, writes(out), token, sinusoids + at);
    else
      lanes.each(
          C, [=](E& x_c, float t) FSDP_LANE { x_c = E(by * t); }, writes(out), token);
  }
};

/// d_table += scale dx. A "row" of this body is a block of columns, and adds these columns of all R rows of dx in order. So no
/// two blocks write the same element, and each sum is in the order of r.
template <class E>
struct EmbeddingBackward {
  static constexpr std::size_t block = 256;
  float* d_table;
  const E* dx;
  const std::int32_t* tokens;
  std::size_t R, C;
  float scale = 1;
  std::int32_t skipped = -1;  // the rows of dx for this token are not added
  TokenRange range = {};

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * block;
    const float by = scale;
    const std::size_t n = C - begin < block ? C - begin : block;
    for (std::size_t r = 0; r < R; ++r) {
      if (tokens[r] == skipped || tokens[r] < range.first || tokens[r] >= range.end) continue;
      float* out = d_table + static_cast<std::size_t>(tokens[r] - range.first) * C + begin;
      const E* in = dx + r * C + begin;
      lanes.each(
          n, [=](float& sum, float d) FSDP_LANE { sum += by * d; }, out, in);
      lanes.sync();
    }
  }
};

/// The same sums in the same order as EmbeddingBackward, for a device that runs many rows at once. If r is the first row of its
/// token, row r adds all rows of dx with that token; otherwise it returns at once. So the most frequent token determines the
/// run time.
template <class E>
struct EmbeddingBackwardByToken {
  float* d_table;
  const E* dx;
  const std::int32_t* tokens;
  std::size_t R, C;
  float scale = 1;
  std::int32_t skipped = -1;
  TokenRange range = {};

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    if (tokens[r] == skipped || tokens[r] < range.first || tokens[r] >= range.end) return;
    const float by = scale;
    const std::int32_t *const all = tokens, token = all[r];
    const auto is_same = [=](std::size_t i) FSDP_LANE { return all[i] == token; };
    if (lanes.find(0, r, is_same) < r) return;
    float* out = d_table + static_cast<std::size_t>(token - range.first) * C;
    for (std::size_t row = r; row < R; row = lanes.find(row + 1, R, is_same))
      lanes.each(
          C, [=](float& sum, float d) FSDP_LANE { sum += by * d; }, out, dx + row * C);
  }
};

/// Row t of the position table: sums dx at position t over the sequences, in order.
template <class E>
struct PositionBackward {
  float* d_table;
  const E* dx;
  std::size_t B, T, C;
  bool add;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t t) const {
    float* out = d_table + t * C;
    if (t >= T) {
      if (!add) lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = 0; });
      return;
    }
    const E* in = dx + t * C;
    const std::size_t sequences = B, stride = T * C;
    const bool keep = add;
    lanes.each(C, [=](std::size_t c) FSDP_LANE {
      float total = in[c];
      for (std::size_t b = 1; b < sequences; ++b) total += in[b * stride + c];
      out[c] = keep ? out[c] + total : total;
    });
  }
};

/// Adds noise to row r of R. Counter g gives the noise of elements g, g + groups, g + 2 groups and g + 3 groups, so that
/// adjacent lanes access adjacent elements.
template <class E>
struct AddNoise {
  E* x;
  std::size_t C;
  EmbeddingNoise noise;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* const out = x + r * C;
    const EmbeddingNoise of_rows = noise;
    const std::size_t n = C, groups = (C + 3) / 4;
    const auto position = static_cast<std::uint32_t>(r % noise.T), b = static_cast<std::uint32_t>(r / noise.T);
    lanes.each(groups, [=](std::size_t g) FSDP_LANE {
      float z[4];
      UniformNumbers::from(
          philox({static_cast<std::uint32_t>(g), position, 0, of_rows.first_sequence + b}, {of_rows.key[0], of_rows.key[1]}),
          z);
      FSDP_UNROLL
      for (std::size_t k = 0; k < 4; ++k)
        if (g + k * groups < n) out[g + k * groups] = E(float(out[g + k * groups]) + of_rows.bound * z[k]);
    });
  }
};

}  // namespace fsdp::kernels
