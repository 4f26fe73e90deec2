// Launches the sums over ranks in collectives, and the rounding of values before they are sent.
#include "kernels/rows/ranks.hpp"
#include "kernels/launch.hpp"

namespace fsdp::kernels {

namespace {

template <std::size_t ranks, class In>
void sum_few_ranks(Stream& stream, float* out, const In* own, const In* received, std::size_t stride, int me, std::size_t n,
                   Write write) {
  SumFewRanks<In, ranks> body{out, {}, n, write == Write::add};
  for (std::size_t r = 0, mine = static_cast<std::size_t>(me); r < ranks; ++r)
    body.of_rank[r] = r == mine ? own : received + (r < mine ? r : r - 1) * stride;
  launch(stream, body, flat_blocks(n));
}

}  // namespace

template <class T, class In>
void sum_ranks(Stream& stream, T* out, const In* own, const In* received, std::size_t stride, int ranks, int me, std::size_t n,
               Write write) {
  if constexpr (std::is_same_v<T, float>) {
    if (ranks == 2) return sum_few_ranks<2>(stream, out, own, received, stride, me, n, write);
    if (ranks == 4) return sum_few_ranks<4>(stream, out, own, received, stride, me, n, write);
    if (ranks == 8) return sum_few_ranks<8>(stream, out, own, received, stride, me, n, write);
  }
  launch(stream, SumRanks<T, In>{out, own, received, stride, n, ranks, me, write == Write::add}, flat_blocks(n));
}
template void sum_ranks(Stream&, float*, const float*, const float*, std::size_t, int, int, std::size_t, Write);
template void sum_ranks(Stream&, float*, const bf16*, const bf16*, std::size_t, int, int, std::size_t, Write);
template void sum_ranks(Stream&, float*, const f16*, const f16*, std::size_t, int, int, std::size_t, Write);
template void sum_ranks(Stream&, double*, const double*, const double*, std::size_t, int, int, std::size_t, Write);

template <class In>
void round_shares(Stream& stream, In* out, const float* whole, std::size_t total, std::size_t begin, std::size_t n,
                  std::size_t stride, int ranks) {
  const auto parts = static_cast<std::size_t>(ranks);
  launch(stream, RoundShares<In>{out, whole, total, begin, n, stride, parts}, parts * flat_blocks(n));
}
template void round_shares(Stream&, bf16*, const float*, std::size_t, std::size_t, std::size_t, std::size_t, int);
template void round_shares(Stream&, f16*, const float*, std::size_t, std::size_t, std::size_t, std::size_t, int);

void round_to(Stream& stream, DType type, float* x, std::size_t n) {
  if (type == DType::bf16) launch(stream, RoundValues<bf16>{x, n}, flat_blocks(n));
  if (type == DType::f16) launch(stream, RoundValues<f16>{x, n}, flat_blocks(n));
}

}  // namespace fsdp::kernels
