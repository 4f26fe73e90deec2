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

/// Pointers to where sequence b begins in the arrays of a batch.
struct Sequence {
  std::size_t T;
  std::int32_t *inputs, *targets, *positions;

  Sequence(const Cut& data, const BatchCut& cut, std::size_t b, std::int32_t* batch_inputs, std::int32_t* batch_targets)
      : T(cut.T),
        inputs(batch_inputs + b * T),
        targets(batch_targets + b * T),
        positions(data.positions ? batch_targets + (cut.B + b) * T : nullptr) {}
  void clear() const {
    std::fill_n(inputs, T, 0);
    std::fill_n(targets, T, -1);
    if (positions) std::fill_n(positions, T, 0);
  }
  void read(const Samples& samples, std::uint64_t k, std::size_t vocab_size) const {
    samples.read(k, vocab_size, inputs, targets, positions);
  }
};
}  // namespace

TrainBatches::TrainBatches(const Mixture& data, BatchCut cut, std::size_t vocab_size, DataOrder order)
    : data_(data), cut_(cut), vocab_size_(vocab_size), order_(order) {
  check_cut(cut);
  expect(cut.T == data.T(), "data are cut as batches are");
  constexpr auto never = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t sequences = data.sequences();
  end_ = order.passes == 0 || order.passes > never / sequences ? never : order.passes * sequences;
  if (order.length_seed)
    by_length_.emplace(sequences, *order.length_seed, [this](std::uint64_t s) {
      const auto [samples, sequence] = ungrouped(s);
      return samples->place_of(sequence).columns;
    });
}

TrainBatches::Place TrainBatches::place_of(std::uint64_t s) const {
  if (s >= end_) return {nullptr, 0};
  return ungrouped(by_length_ ? by_length_->at(s) : s);
}

/// The place of sequence s in the order before grouping by length.
TrainBatches::Place TrainBatches::ungrouped(std::uint64_t s) const {
  const auto [ingredient, n] = data_.source_of(s);
  const Samples& samples = data_.samples(ingredient);
  const std::uint64_t count = samples.count(), in_pass = n % count;
  if (!order_.shuffle_seed) return {&samples, in_pass};
  const std::uint64_t seed = *order_.shuffle_seed + (std::uint64_t{ingredient} << 32);  // the lower 32 bits are the user's seed
  return {&samples, permuted(in_pass, count, seed, n / count)};
}

void TrainBatches::read(std::uint64_t position, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) const {
  const std::uint64_t first = position + cut_.first_sequence(micro);
  for (std::size_t b = 0; b < cut_.B; ++b) {
    const Sequence to(data_.samples(0).cut(), cut_, b, inputs, targets);
    if (const auto [samples, sequence] = place_of(first + b); samples)
      to.read(*samples, sequence, vocab_size_);
    else
      to.clear();
  }
}

std::uint64_t TrainBatches::targets(std::uint64_t position) const {
  std::uint64_t count = 0;
  for (std::uint64_t s = position; s < after(position); ++s) {
    const auto [samples, sequence] = place_of(s);
    count += samples->targets_of(sequence);
  }
  return count;
}

std::uint32_t TrainBatches::columns(std::uint64_t s) const {
  const auto [samples, sequence] = place_of(s);
  return samples ? samples->place_of(sequence).columns : 0;
}

std::optional<std::uint64_t> TrainBatches::updates_left(std::uint64_t position) const {
  if (order_.passes == 0) return {};
  const std::uint64_t G = cut_.sequences_per_update(), left = end_ - std::min(position, end_);
  return left / G + (left % G != 0);
}

ValidBatches::ValidBatches(const Samples& data, BatchCut cut, std::size_t vocab_size, std::size_t most)
    : data_(data), cut_(cut), vocab_size_(vocab_size), targets_(data.targets()) {
  check_cut(cut);
  expect(cut.T == data.T(), "data are cut as batches are");
  if (data.targets() == 0)
    throw UserError(format("{} has nothing to predict ({} tokens, at least 2 are needed); use more text", data.tokens().name(),
                           data.tokens().size()));
  const std::uint64_t per_batch = cut.B * static_cast<std::size_t>(cut.ranks);
  batches_ = (data.count() + per_batch - 1) / per_batch;
  if (most == 0 || batches_ <= most) return;
  batches_ = most, targets_ = 0;
  for (std::uint64_t k = 0; k < most * per_batch; ++k) targets_ += data.targets_of(k);
}

void ValidBatches::clear(std::int32_t* inputs, std::int32_t* targets) const {
  for (std::size_t b = 0; b < cut_.B; ++b) Sequence(data_.cut(), cut_, b, inputs, targets).clear();
}

void ValidBatches::read(std::size_t b, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t first = (b * static_cast<std::size_t>(cut_.ranks) + static_cast<std::size_t>(cut_.rank)) * cut_.B;
  for (std::size_t i = 0; i < cut_.B; ++i) Sequence(data_.cut(), cut_, i, inputs, targets).read(data_, first + i, vocab_size_);
}

}  // namespace fsdp
