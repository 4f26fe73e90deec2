// Documents that share a sequence by best fit, documents that are longer than a sequence, and the order of sequences by length.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Documents of 1 to 60 tokens, each token with its own number, and a mask in which ranges count.
struct Corpus {
  explicit Corpus(std::size_t documents, std::size_t longest = 60) {
    std::mt19937 generator(5);
    const auto writer = make_writer("megatron", folder / "d", 1 << 16), masks = make_writer("megatron", folder / "m", 2);
    TokenId next = 0;
    for (std::size_t d = 0; d < documents; ++d) {
      begins.push_back(next);
      for (std::size_t n = 1 + generator() % longest; n > 0; --n, ++next) {
        const TokenId counts = next / 9 % 3 == 1;
        writer->add(std::span(&next, 1)), masks->add(std::span(&counts, 1));
      }
      writer->end_document(), masks->end_document();
    }
    writer->finish(), masks->finish();
    begins.push_back(next);
  }
  Samples open(const Cut& cut, bool masked = false) const {
    return Samples(open_tokens((folder / "d").string()), cut, masked ? open_tokens((folder / "m").string()) : nullptr);
  }
  TemporaryFolder folder;
  std::vector<TokenId> begins;  // of documents, and the end
};

/// target -> the input before it, and its position, of all targets that count; each target once.
std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> targets_of(const Samples& samples) {
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> all;
  const std::size_t T = samples.T();
  std::vector<std::int32_t> inputs(T), targets(T), positions(T);
  std::uint64_t counted = 0;
  for (std::uint64_t k = 0; k < samples.count(); ++k) {
    samples.read(k, 1 << 16, inputs.data(), targets.data(), positions.data());
    std::size_t columns = 0;
    for (std::size_t t = 0; t < T; ++t)
      if (targets[t] >= 0) {
        BOOST_TEST_REQUIRE(all.try_emplace(targets[t], inputs[t], positions[t]).second, "a target is read twice");
        columns = t + 1, ++counted;
      }
    BOOST_TEST_REQUIRE(samples.place_of(k).columns == columns);
  }
  BOOST_TEST(counted == samples.targets());
  return all;
}

std::uint64_t padding(const Samples& samples) { return samples.counts().padding; }

}  // namespace

BOOST_AUTO_TEST_CASE(best_fit_is_that_of_a_plain_loop) {
  std::mt19937 generator(7);
  for (const std::size_t T : {1u, 7u, 63u, 64u, 65u, 200u})
    for (const std::size_t n : {0u, 1u, 30u, 500u}) {
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < n; ++i) pieces.push_back({1000 * i, static_cast<std::uint32_t>(1 + generator() % T), 0});
      const auto sequences = best_fit(pieces, T);
      // The plain loop: the sequence with the least room; of equal ones, that which got this room last.
      std::vector<Piece> order = pieces;
      std::stable_sort(order.begin(), order.end(), [](const Piece& a, const Piece& b) { return a.targets > b.targets; });
      struct Plain {
        std::size_t room, changed;
        std::set<std::uint64_t> begins;
      };
      std::vector<Plain> plain;
      for (std::size_t i = 0; i < order.size(); ++i) {
        Plain* best = nullptr;
        for (Plain& each : plain)
          if (each.room >= order[i].targets &&
              (!best || each.room < best->room || (each.room == best->room && each.changed > best->changed)))
            best = &each;
        if (!best) best = &plain.emplace_back(Plain{T, i, {}});
        best->room -= order[i].targets, best->changed = i, best->begins.insert(order[i].begin);
      }
      std::set<std::set<std::uint64_t>> expected, found;
      for (const Plain& each : plain) expected.insert(each.begins);
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        std::uint32_t at = 0;
        for (const Piece& piece : sequences[s]) {
          BOOST_TEST_REQUIRE(piece.at == at);
          at += piece.targets;
        }
        BOOST_TEST_REQUIRE(at <= T);
        BOOST_TEST_REQUIRE((s == 0 || sequences[s - 1].front().begin < sequences[s].front().begin));
        std::set<std::uint64_t> begins;
        for (const Piece& piece : sequences[s]) begins.insert(piece.begin);
        found.insert(begins);
      }
      BOOST_TEST((found == expected));
    }
}

BOOST_AUTO_TEST_CASE(packed_sequences_have_the_targets_of_one_document_each) {
  const Corpus corpus(300);
  for (const std::size_t T : {5u, 32u, 100u})
    for (const bool masked : {false, true})
      for (const LongRows rows : {LongRows::split, LongRows::truncate, LongRows::drop}) {
        const Samples packed = corpus.open({T, BreakMode::complete, {}, true, rows, Packing::best_fit}, masked),
                      each = corpus.open({T, BreakMode::eos, {}, true, rows}, masked),
                      first = corpus.open({T, BreakMode::complete, {}, true, rows}, masked);
        BOOST_TEST((targets_of(packed) == targets_of(each)));
        BOOST_TEST((T < 32 || packed.count() < first.count()));
        BOOST_TEST(packed.counts().lost_targets == each.counts().lost_targets);
        BOOST_TEST(packed.counts().late_targets == each.counts().late_targets);
        if (T == 100 && !masked)
          BOOST_TEST(static_cast<double>(padding(packed)) < 0.02 * static_cast<double>(packed.counts().positions));
      }
}

BOOST_AUTO_TEST_CASE(long_documents_are_split_truncated_or_dropped) {
  const Corpus corpus(200);
  constexpr std::size_t T = 24;
  for (const BreakMode mode : {BreakMode::complete, BreakMode::eos})
    for (const bool masked : {false, true}) {
      const auto counts = [&](std::size_t token) { return !masked || token / 9 % 3 == 1; };
      std::set<std::int32_t> whole, begun, fitting;
      std::uint64_t long_ones = 0;
      for (std::size_t d = 0; d + 1 < corpus.begins.size(); ++d) {
        const std::size_t begin = corpus.begins[d], end = corpus.begins[d + 1];
        long_ones += end - begin > T + 1;
        for (std::size_t token = begin + 1; token < end; ++token) {
          if (!counts(token)) continue;
          const auto target = static_cast<std::int32_t>(token);
          // A part of a document begins at a target of the part before it.
          whole.insert(target);
          if (token <= begin + T) begun.insert(target);
          if (end - begin <= T + 1) fitting.insert(target);
        }
      }
      for (const auto& [rows, expected] :
           {std::pair(LongRows::split, whole), {LongRows::truncate, begun}, {LongRows::drop, fitting}}) {
        const Samples samples = corpus.open({T, mode, {}, true, rows}, masked);
        std::set<std::int32_t> found;
        for (const auto& [target, input] : targets_of(samples)) found.insert(target);
        BOOST_TEST((found == expected));
        BOOST_TEST(samples.counts().lost_targets == whole.size() - expected.size());
        BOOST_TEST(samples.counts().truncated_rows == (rows == LongRows::truncate ? long_ones : 0));
        BOOST_TEST(samples.counts().dropped_rows == (rows == LongRows::drop ? long_ones : 0));
        if (rows != LongRows::split) BOOST_TEST(samples.counts().late_targets == 0u);
      }
    }
  const TemporaryFolder folder;
  const auto writer = make_writer("megatron", folder / "three", 100);
  for (int d = 0; d < 3; ++d) writer->add(std::vector<TokenId>(9, 1)), writer->end_document();
  writer->finish();
  CHECK_CONTAINS(message_of([&] {
                   Samples(open_tokens((folder / "three").string()), {4, BreakMode::eos, {}, false, LongRows::drop});
                 }),
                 "has no document that fits a sequence (all 3 have more than 5 tokens");
}

BOOST_AUTO_TEST_CASE(each_pass_has_each_sequence_once_in_order_of_length) {
  for (const std::uint64_t n : {1u, 2u, 64u, 1000u, 20000u}) {
    const auto length = [n](std::uint64_t s) { return static_cast<std::uint32_t>(s % n * 7919 % 97); };
    const LengthOrder order(n, 3, length), other(n, 4, length);
    std::size_t differ = 0;
    for (std::uint64_t pass = 0; pass < 2; ++pass) {
      std::set<std::uint64_t> seen;
      std::uint64_t rises = 0;
      for (std::uint64_t s = pass * n; s < (pass + 1) * n; ++s) {
        seen.insert(order.at(s));
        differ += order.at(s) != other.at(s);
        rises += s % n > 0 && length(order.at(s)) > length(order.at(s - 1));
      }
      BOOST_TEST(seen.size() == n);
      BOOST_TEST((*seen.begin() == pass * n && *seen.rbegin() == (pass + 1) * n - 1));
      BOOST_TEST(rises <= n / 32 + 5);  // only where a part or a window begins
    }
    BOOST_TEST((differ > 0) == (n >= 1000));
  }
}

/// Any number of ranks reads the same micro-batches, which have less padding than those of the file's order.
BOOST_AUTO_TEST_CASE(micro_batches_by_length_are_the_same_at_any_number_of_ranks) {
  const Corpus corpus(700);
  constexpr std::size_t T = 60, B = 3, batches = 24;
  std::vector<Ingredient> one;
  one.push_back({corpus.open({T, BreakMode::eos, {}, false})});
  const Mixture mixture(std::move(one));
  const auto read_all = [&](int ranks, const DataOrder& order) {
    std::vector<std::vector<std::int32_t>> all;
    std::vector<std::unique_ptr<TrainBatches>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank)
      of_ranks.push_back(std::make_unique<TrainBatches>(mixture, BatchCut{B, T, 2, rank, ranks}, 1 << 16, order));
    std::uint64_t position = 0;
    while (all.size() < batches) {
      for (std::size_t micro = 0; micro < 2; ++micro)
        for (int rank = 0; rank < ranks; ++rank) {
          std::vector<std::int32_t>& batch = all.emplace_back(2 * B * T);
          of_ranks[static_cast<std::size_t>(rank)]->read(position, micro, batch.data(), batch.data() + B * T);
        }
      position = of_ranks[0]->after(position);
    }
    return all;
  };
  for (const auto shuffle : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(9)}) {
    const auto grouped = read_all(1, {shuffle, 0, 5});
    for (const int ranks : {2, 3, 4}) BOOST_TEST((read_all(ranks, {shuffle, 0, 5}) == grouped));
    const auto columns = [&](const std::vector<std::vector<std::int32_t>>& all) {
      std::size_t computed = 0;
      for (const auto& batch : all) {
        std::size_t most = 0;
        for (std::size_t i = 0; i < B * T; ++i)
          if (batch[B * T + i] >= 0) most = std::max(most, i % T + 1);
        computed += B * most;
      }
      std::size_t targets = 0;
      for (const auto& batch : all)
        targets += static_cast<std::size_t>(std::count_if(batch.begin() + B * T, batch.end(), [](auto t) { return t >= 0; }));
      return static_cast<double>(computed) / static_cast<double>(targets);
    };
    BOOST_TEST(columns(grouped) < 1.15);
    BOOST_TEST(columns(read_all(1, {shuffle, 0, {}})) > 1.3);
  }
}
