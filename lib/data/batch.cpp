#include "data/batch.hpp"

#include <limits>

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

TrainBatches::TrainBatches(const TokenFile& file, BatchCut cut, std::size_t vocab_size, DataOrder order)
    : file_(file), cut_(cut), vocab_size_(vocab_size), order_(order), sequences_(file.sequences(cut.T)) {
  check_cut(cut);
  if (file.targets() < cut.T)
    throw UserError(format(
        "'{}' holds no whole sequence ({} tokens, a sequence of {} needs {}); use more text or a smaller `sequence length`",
        file.path().string(), file.tokens(), cut.T, cut.T + 1));
  constexpr auto never = std::numeric_limits<std::uint64_t>::max();
  end_ = order.passes == 0 || order.passes > never / sequences_ ? never : order.passes * sequences_;
}

std::uint64_t TrainBatches::sequence_at(std::uint64_t s) const {
  const std::uint64_t in_pass = s % sequences_;
  return order_.shuffle_seed ? permuted(in_pass, sequences_, *order_.shuffle_seed, s / sequences_) : in_pass;
}

void TrainBatches::read(std::uint64_t position, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t B = cut_.B, T = cut_.T;
  const std::uint64_t first = position + cut_.first_sequence(micro);
  for (std::size_t b = 0; b < B; ++b) {
    const std::uint64_t s = first + b, none = sequences_;  // which lies past the end of the file
    file_.read(s < end_ ? sequence_at(s) : none, T, vocab_size_, inputs + b * T, targets + b * T);
  }
}

std::uint64_t TrainBatches::targets(std::uint64_t position) const {
  const std::uint64_t T = cut_.T, next = after(position), missing = sequences_ * T - file_.targets();
  std::uint64_t count = (next - position) * T;
  for (std::uint64_t s = position; s < next && missing > 0; ++s)
    if (sequence_at(s) == sequences_ - 1) count -= missing;
  return count;
}

std::optional<std::uint64_t> TrainBatches::updates_left(std::uint64_t position) const {
  if (order_.passes == 0) return {};
  const std::uint64_t G = cut_.sequences_per_update(), left = end_ - std::min(position, end_);
  return left / G + (left % G != 0);
}

ValidBatches::ValidBatches(const TokenFile& file, BatchCut cut, std::size_t vocab_size)
    : file_(file), cut_(cut), vocab_size_(vocab_size) {
  check_cut(cut);
  if (file.tokens() < 2)
    throw UserError(format("'{}' holds nothing to predict ({} tokens, at least 2 are needed); use more text",
                           file.path().string(), file.tokens()));
  const std::size_t sequences = file.sequences(cut.T);
  const std::size_t per_batch = cut.B * static_cast<std::size_t>(cut.ranks);
  batches_ = (sequences + per_batch - 1) / per_batch;
}

void ValidBatches::clear(std::int32_t* inputs, std::int32_t* targets) const {
  std::fill_n(inputs, cut_.B * cut_.T, 0);
  std::fill_n(targets, cut_.B * cut_.T, -1);
}

void ValidBatches::read(std::size_t b, std::int32_t* inputs, std::int32_t* targets) const {
  const auto& [B, T, K, rank, ranks] = cut_;
  const std::size_t first = (b * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)) * B;
  for (std::size_t i = 0; i < B; ++i) file_.read(first + i, T, vocab_size_, inputs + i * T, targets + i * T);
}

}  // namespace fsdp
