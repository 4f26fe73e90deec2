// The sequences of each rank: for any world size, all ranks together read the same sequences in the same order.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "data/batch.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A file in which token i is i, so that an input shows its position.
struct CountingFile {
  explicit CountingFile(std::size_t tokens) {
    std::vector<std::uint16_t> values(tokens);
    for (std::size_t i = 0; i < tokens; ++i) values[i] = static_cast<std::uint16_t>(i);
    write_token_file(folder / "t.bin", values);
  }
  TemporaryFolder folder;
  Samples samples(std::size_t T) const { return Samples(open_token_file(folder / "t.bin"), {T}); }
  Mixture open(std::size_t T) const {
    std::vector<Ingredient> one;
    one.push_back({samples(T)});
    return Mixture(std::move(one));
  }
};

/// Tokens in which token i is i. Counts how many times each token was read.
class WatchedTokens : public Tokens {
 public:
  WatchedTokens(std::size_t tokens, std::vector<int>& times_read) : times_read_(times_read) { times_read.assign(tokens, 0); }
  std::uint64_t size() const override { return times_read_.size(); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::uint32_t>(begin + i);
      ++times_read_.at(begin + i);
    }
  }
  std::string name() const override { return "watched tokens"; }
  std::uint64_t largest_possible() const override { return no_token; }

 private:
  std::vector<int>& times_read_;
};

/// Returns the sequences that all ranks read in one update, in order of micro-batch and rank.
std::vector<std::size_t> sequences_read(const CountingFile& made, std::size_t T, std::size_t B, std::size_t K, int ranks,
                                        std::uint64_t position) {
  std::vector<std::size_t> read;
  const Mixture file = made.open(T);
  for (std::size_t micro = 0; micro < K; ++micro)
    for (int rank = 0; rank < ranks; ++rank) {
      const TrainBatches batches(file, {B, T, K, rank, ranks}, 65536);
      std::vector<std::int32_t> inputs(B * T), targets(B * T);
      batches.read(position, micro, inputs.data(), targets.data());
      for (std::size_t i = 0; i < B * T; ++i) BOOST_TEST_REQUIRE(targets[i] == inputs[i] + 1);
      for (std::size_t b = 0; b < B; ++b) {
        BOOST_TEST_REQUIRE(inputs[b * T] % static_cast<int>(T) == 0);
        read.push_back(static_cast<std::size_t>(inputs[b * T]) / T);
      }
    }
  return read;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_update_reads_the_next_sequences_however_it_is_cut) {
  const CountingFile made(1000);
  const std::size_t T = 7;  // 142 sequences
  std::vector<std::size_t> expected(12);
  for (std::uint64_t update : {1, 2, 11}) {
    for (std::size_t i = 0; i < 12; ++i) expected[i] = (update - 1) * 12 + i;
    for (const auto& [B, K, ranks] : {std::tuple{12, 1, 1}, {2, 6, 1}, {3, 2, 2}, {1, 4, 3}, {3, 1, 4}, {1, 1, 12}})
      BOOST_TEST(sequences_read(made, T, B, K, ranks, (update - 1) * 12) == expected, boost::test_tools::per_element());
  }
}

/// A rank reads only its own inputs and the target after each sequence, once. So all ranks together, for any number of ranks,
/// read an update once, and no rank reads all of it.
BOOST_AUTO_TEST_CASE(a_rank_reads_its_own_sequences_only) {
  constexpr std::size_t tokens = 1001, T = 7, B = 2, K = 2;
  constexpr int ranks = 3;
  for (const bool shuffled : {false, true}) {
    std::vector<int> inputs_of_all(tokens, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> times_read;
      std::vector<Ingredient> one;
      one.push_back({Samples(std::make_unique<WatchedTokens>(tokens, times_read), {T})});
      const Mixture data(std::move(one));
      const DataOrder order = {.shuffle_seed = shuffled ? std::optional<std::uint64_t>(3) : std::nullopt, .passes = 1};
      const TrainBatches batches(data, {B, T, K, rank, ranks}, tokens, order);
      std::vector<int> expected(tokens, 0);
      BOOST_TEST(times_read == expected, boost::test_tools::per_element());  // opening the data reads none
      std::vector<std::int32_t> inputs(B * T), targets(B * T);
      for (std::uint64_t position = 0; !batches.at_end(position); position = batches.after(position)) {
        for (std::size_t micro = 0; micro < K; ++micro) {
          batches.read(position, micro, inputs.data(), targets.data());
          for (std::size_t i = 0; i < B * T; ++i) {
            if (targets[i] < 0) continue;
            ++inputs_of_all[static_cast<std::size_t>(inputs[i])];
            ++expected[static_cast<std::size_t>(inputs[i])];
            if (i % T == T - 1 || targets[i + 1] < 0) ++expected[static_cast<std::size_t>(targets[i])];
          }
        }
        (void)batches.targets(position);  // all ranks need this for all sequences
      }
      BOOST_TEST(times_read == expected, boost::test_tools::per_element());
      const std::size_t sequences = (tokens - 1 + T - 1) / T, updates = (sequences + B * K * ranks - 1) / (B * K * ranks);
      const int read = std::accumulate(times_read.begin(), times_read.end(), 0);
      BOOST_TEST(read <= static_cast<int>(updates * B * K * (T + 1)));
    }
    inputs_of_all.pop_back();  // the last token is only a target
    BOOST_TEST(inputs_of_all == std::vector<int>(tokens - 1, 1), boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(validation_is_read_by_the_rank_that_counts_it) {
  constexpr std::size_t tokens = 101, T = 7, B = 2;
  std::vector<int> of_all(tokens, 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int> times_read;
    const Samples data(std::make_unique<WatchedTokens>(tokens, times_read), {T});
    const ValidBatches batches(data, {B, T, 1, rank, 3}, tokens);
    std::vector<std::int32_t> inputs(B * T), targets(B * T);
    for (std::size_t b = 0; b < batches.batches(); ++b) batches.read(b, inputs.data(), targets.data());
    for (std::size_t i = 0; i < tokens; ++i) of_all[i] += times_read[i];
  }
  // The token at which a sequence ends and the next begins is a target of one and an input of the other.
  for (std::size_t i = 0; i < tokens; ++i) BOOST_TEST(of_all[i] == (i % T == 0 && i > 0 && i + 1 < tokens ? 2 : 1));
}

BOOST_AUTO_TEST_CASE(validation_may_end_early) {
  const CountingFile made(36);  // 5 sequences of 7 targets
  const Samples data = made.samples(7);
  const ValidBatches whole(data, {1, 7, 1, 0, 2}, 100), one(data, {1, 7, 1, 0, 2}, 100, 1), more(data, {1, 7, 1, 0, 2}, 100, 9);
  BOOST_TEST(whole.batches() == 3u);
  BOOST_TEST(whole.targets() == 35u);
  BOOST_TEST(one.batches() == 1u);
  BOOST_TEST(one.targets() == 14u);
  BOOST_TEST(more.targets() == 35u);
}

BOOST_AUTO_TEST_CASE(after_the_last_sequence_the_data_starts_again) {
  const CountingFile made(36);
  // T = 7: 5 sequences
  BOOST_TEST(sequences_read(made, 7, 2, 2, 3, 0) == (std::vector<std::size_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(sequences_read(made, 7, 1, 3, 1, 12) == (std::vector<std::size_t>{2, 3, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(passes_count_every_target_once_however_an_update_is_cut) {
  for (const std::size_t tokens : {36, 40, 41}) {  // 5, 5.6 and 5.7 sequences of 7
    const CountingFile made(tokens);
    const Mixture file = made.open(7);
    for (const bool shuffled : {false, true})
      for (const auto& [B, K, ranks] : {std::tuple{1, 1, 1}, {2, 2, 1}, {2, 1, 2}, {3, 1, 3}, {5, 2, 4}}) {
        const DataOrder order = {.shuffle_seed = shuffled ? std::optional<std::uint64_t>(3) : std::nullopt, .passes = 3};
        const auto cut_of = [&, b = B, k = K, of = ranks](int rank) {
          return BatchCut{static_cast<std::size_t>(b), 7, static_cast<std::size_t>(k), rank, of};
        };
        const TrainBatches first(file, cut_of(0), tokens, order);
        std::map<std::int32_t, int> seen;
        std::uint64_t position = 0, updates = 0;
        for (; !first.at_end(position); position = first.after(position), ++updates) {
          std::uint64_t counted = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const TrainBatches batches(file, cut_of(rank), tokens, order);
            std::vector<std::int32_t> inputs(static_cast<std::size_t>(B) * 7), targets(inputs.size());
            for (std::size_t micro = 0; micro < static_cast<std::size_t>(K); ++micro) {
              batches.read(position, micro, inputs.data(), targets.data());
              for (const std::int32_t target : targets)
                if (target >= 0) ++counted, ++seen[target];
            }
          }
          BOOST_TEST(first.targets(position) == counted);
          BOOST_TEST(first.updates_left(position).value() + updates == first.updates_left(0).value());
          BOOST_TEST(counted > 0u);
        }
        BOOST_TEST(first.updates_left(0).value() == updates);
        BOOST_TEST(position == 3 * file.sequences());
        BOOST_TEST(seen.size() == tokens - 1);
        BOOST_TEST(std::all_of(seen.begin(), seen.end(), [](const auto& one) { return one.second == 3; }));
      }
  }
}

BOOST_AUTO_TEST_CASE(data_without_an_end) {
  const CountingFile made(40);
  const Mixture file = made.open(7);
  const TrainBatches batches(file, {4, 7, 1, 0, 1}, 40);
  BOOST_TEST(!batches.updates_left(0).has_value());
  BOOST_TEST(!batches.at_end(1u << 30));
  BOOST_TEST(batches.after(5) == 9u);
  BOOST_TEST(batches.targets(0) == 28u);
  BOOST_TEST(batches.targets(4) == 25u);  // the sixth sequence has 4 targets
}

BOOST_AUTO_TEST_CASE(a_resumed_run_goes_on_where_another_world_size_stopped) {
  const CountingFile made(1000);
  // Three updates of 8 sequences on 4 ranks, then updates of 9 on 3 ranks.
  const auto next = sequences_read(made, 5, 3, 1, 3, 3 * 8);
  BOOST_TEST(next.front() == 24u);
  BOOST_TEST(next.back() == 32u);
}

BOOST_AUTO_TEST_CASE(too_little_data_is_an_error) {
  const CountingFile made(16);
  BOOST_CHECK_NO_THROW(made.open(15));
  CHECK_CONTAINS(message_of([&] { made.open(16); }), "16 tokens, a sequence of 16 needs 17");
  const CountingFile one(1);
  const Samples short_file = one.samples(4);
  CHECK_CONTAINS(message_of([&] { ValidBatches(short_file, {1, 4, 1, 0, 1}, 16); }), "nothing to predict");
}

BOOST_AUTO_TEST_CASE(a_token_outside_the_vocabulary_is_an_error_of_the_rank_that_reads_it) {
  const CountingFile made(40);
  const Mixture file = made.open(10);
  std::vector<std::int32_t> inputs(10), targets(10);
  const TrainBatches first(file, {1, 10, 1, 0, 2}, 15), second(file, {1, 10, 1, 1, 2}, 15);
  BOOST_CHECK_NO_THROW(first.read(0, 0, inputs.data(), targets.data()));
  CHECK_CONTAINS(message_of([&] { second.read(0, 0, inputs.data(), targets.data()); }), "token 15 at position 15");
}

BOOST_AUTO_TEST_CASE(validation_counts_every_target_once_at_any_world_size) {
  for (const std::size_t tokens : {2, 11, 100, 101, 107}) {
    const CountingFile made(tokens);
    for (const auto& [B, T, ranks] : {std::tuple{3, 5, 1}, {2, 7, 3}, {1, 10, 4}, {4, 100, 2}}) {
      const Samples file = made.samples(static_cast<std::size_t>(T));
      std::vector<int> seen(tokens, 0);
      std::size_t counted = 0, batches = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ValidBatches valid(file, {static_cast<std::size_t>(B), static_cast<std::size_t>(T), 1, rank, ranks}, tokens);
        if (rank == 0) batches = valid.batches();
        BOOST_TEST(valid.batches() == batches);
        BOOST_TEST(valid.targets() == tokens - 1);
        std::vector<std::int32_t> inputs(static_cast<std::size_t>(B * T)), targets(inputs.size());
        for (std::size_t b = 0; b < valid.batches(); ++b) {
          valid.read(b, inputs.data(), targets.data());
          for (std::size_t i = 0; i < targets.size(); ++i) {
            BOOST_TEST_REQUIRE(inputs[i] >= 0);
            if (targets[i] < 0) continue;
            BOOST_TEST_REQUIRE(targets[i] == inputs[i] + 1);
            ++seen[static_cast<std::size_t>(targets[i])];
            ++counted;
          }
        }
      }
      BOOST_TEST(counted == tokens - 1);
      BOOST_TEST(std::count(seen.begin(), seen.end(), 1) == static_cast<long>(tokens - 1));
    }
  }
}
