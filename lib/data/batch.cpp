#include "data/batch.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/permutation.hpp"

namespace fsdp {

namespace {
void check_cut(const BatchCut& cut) {
  expect(cut.B > 0 && cut.T > 0 && cut.K > 0 && cut.ranks > 0 && cut.rank >= 0 && cut.rank < cut.ranks,
         "a batch cannot be cut like this");
}
}  // namespace

TrainBatches::TrainBatches(const TokenFile& file, BatchCut cut, std::size_t vocab_size,
                           std::optional<std::uint64_t> shuffle_seed)
    : file_(file), cut_(cut), vocab_size_(vocab_size), shuffle_seed_(shuffle_seed) {
  check_cut(cut);
  if (file.sequences(cut.T) == 0)
    throw UserError(format(
        "'{}' holds no whole sequence ({} tokens, a sequence of {} needs {}) use more text or a smaller --tokens-per-sample",
        file.path().string(), file.tokens(), cut.T, cut.T + 1));
}

void TrainBatches::read(std::uint64_t position, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t B = cut_.B, T = cut_.T;
  const std::uint64_t first = position + cut_.first_sequence(micro);
  const std::uint64_t n = file_.sequences(T);
  for (std::size_t b = 0; b < B; ++b) {
    const std::uint64_t s = first + b;
    const std::uint64_t sequence = shuffle_seed_ ? permuted(s % n, n, *shuffle_seed_, s / n) : s % n;
    file_.read(sequence, T, vocab_size_, inputs + b * T, targets + b * T);
  }
}

ValidBatches::ValidBatches(const TokenFile& file, BatchCut cut, std::size_t vocab_size)
    : file_(file), cut_(cut), vocab_size_(vocab_size) {
  check_cut(cut);
  if (file.tokens() < 2)
    throw UserError(format("'{}' holds nothing to predict ({} tokens, at least 2 are needed) use more text",
                           file.path().string(), file.tokens()));
  const std::size_t sequences = (targets() + cut.T - 1) / cut.T;
  const std::size_t per_batch = cut.B * static_cast<std::size_t>(cut.ranks);
  batches_ = (sequences + per_batch - 1) / per_batch;
}

void ValidBatches::read(std::size_t b, std::int32_t* inputs, std::int32_t* targets) const {
  const auto& [B, T, K, rank, ranks] = cut_;
  const std::size_t first = (b * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)) * B;
  for (std::size_t i = 0; i < B; ++i) file_.read(first + i, T, vocab_size_, inputs + i * T, targets + i * T);
}

}  // namespace fsdp
