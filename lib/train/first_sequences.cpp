#include "train/first_sequences.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "text/shown_tokens.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

namespace {

/// A sequence without its padding, and the indices at which documents begin.
struct Sequence {
  std::vector<TokenId> ids, mask;
  std::vector<std::size_t> documents;

  void add(TokenId id, bool is_target, bool begins_document) {
    if (begins_document) documents.push_back(ids.size());
    ids.push_back(id), mask.push_back(is_target ? 1 : 0);
  }
};

/// The positions in the data at which documents begin, if the data store them and they are few enough to be read for this.
std::vector<std::uint64_t> stored_documents(const Samples& samples) {
  constexpr std::uint64_t most = 1'000'000;
  const std::uint64_t rows = samples.counts().rows;
  return rows > 0 && rows <= most ? samples.tokens().documents() : std::vector<std::uint64_t>();
}

Sequence read_sequence(const Samples& samples, std::uint64_t k, std::size_t vocab_size) {
  const Cut& cut = samples.cut();
  const bool is_packed = cut.packing == Packing::best_fit;
  const std::uint64_t begin = samples.place_of(k).begin;
  const std::size_t count = samples.place_of(k).targets;
  std::vector<std::int32_t> inputs(cut.T), targets(cut.T), positions(cut.T);
  samples.read(k, vocab_size, inputs.data(), targets.data(), cut.positions ? positions.data() : nullptr);
  const auto stored = is_packed || cut.end_of_document ? std::vector<std::uint64_t>() : stored_documents(samples);
  std::uint32_t before = no_token;
  if (cut.end_of_document && begin > 0) samples.tokens().read(begin - 1, {&before, 1});
  const auto begins = [&](std::size_t t) {
    if (is_packed) return positions[t] == 0;
    if (!cut.end_of_document) return std::binary_search(stored.begin(), stored.end(), begin + t);
    return begin + t == 0 || before == *cut.end_of_document;
  };
  Sequence sequence;
  for (std::size_t t = 0; t < count; before = static_cast<std::uint32_t>(inputs[t++])) {
    const bool was_target = t > 0 && targets[t - 1] >= 0, begins_piece = is_packed && begins(t);
    if (begins_piece && was_target) sequence.add(targets[t - 1], true, false);  // the last token of a piece is no input
    sequence.add(inputs[t], was_target && !begins_piece, begins(t));
  }
  if (count > 0 && targets[count - 1] >= 0) sequence.add(targets[count - 1], true, !is_packed && begins(count));
  return sequence;
}

}  // namespace

nlohmann::json first_sequences(const TrainBatches& batches, std::uint64_t position, std::uint64_t most,
                               const std::string& tokenizer, std::size_t vocab_size) {
  nlohmann::json all = nlohmann::json::array();
  const std::unique_ptr<Tokenizer> opened = open_tokenizer(tokenizer);
  for (std::uint64_t s = position; s < position + most; ++s) {
    const auto [samples, number] = batches.place_of(s);
    if (!samples) break;
    const Sequence sequence = read_sequence(*samples, number, vocab_size);
    all.push_back({{"data", samples->tokens().name()},
                   {"tokens", sequence.ids.size()},
                   {"targets", std::count(sequence.mask.begin(), sequence.mask.end(), 1)},
                   {"text", to_json(shown_sequence(*opened, sequence.ids, sequence.mask, sequence.documents))}});
  }
  return all;
}

}  // namespace fsdp
