// Documents in sequences, and which of their targets count.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/format.hpp"
#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// 300 tokens from 1 to 99 in documents that end with a 0; the first document has no beginning and the last no end. Stored as
/// llm.c's file and with an index. In its mask whole ranges count or do not count.
struct Corpus {
  Corpus() {
    std::mt19937 generator(3);
    const auto indexed = make_writer("megatron", folder / "indexed", 100);
    for (std::size_t i = 0, left = 5; i < 300; ++i) {
      const bool ends = left-- == 0;
      tokens.push_back(ends ? 0 : static_cast<std::uint16_t>(1 + generator() % 99));
      mask.push_back(i / 23 % 3 == 1 ? 1 : 0);
      const TokenId token = tokens.back();
      indexed->add(std::span(&token, 1));
      if (!ends) continue;
      indexed->end_document();
      left = generator() % 3 == 0 ? 0 : generator() % 40;
    }
    indexed->end_document();
    indexed->finish();
    write_token_file(folder / "t.bin", tokens);
    write_token_file(folder / "t.mask.bin", mask);
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::unique_ptr<Tokens> open(const std::string& name) const { return open_tokens(path(name)); }

  TemporaryFolder folder;
  std::vector<std::uint16_t> tokens, mask;
};

struct Sequence {
  explicit Sequence(const Samples& samples, std::uint64_t k)
      : inputs(samples.T()), targets(samples.T()), positions(samples.T(), 77) {
    samples.read(k, 100, inputs.data(), targets.data(), positions.data());
  }
  std::vector<std::int32_t> inputs, targets, positions;
};

}  // namespace

BOOST_AUTO_TEST_CASE(positions_begin_anew_with_each_document) {
  const Corpus corpus;
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos})
    for (const std::size_t T : {1, 7, 64, 400}) {
      const Samples by_token(corpus.open("t.bin"), {T, mode, 0, true}), by_index(corpus.open("indexed"), {T, mode, {}, true});
      BOOST_TEST_REQUIRE(by_token.count() == by_index.count());
      for (std::uint64_t k = 0; k < by_token.count(); ++k) {
        const Sequence one(by_token, k);
        BOOST_TEST((Sequence(by_index, k).positions == one.positions));
        for (std::size_t t = 0; t < T; ++t) {
          const bool begins = t == 0 || t >= by_token.place_of(k).targets || one.inputs[t - 1] == 0;
          BOOST_TEST_REQUIRE(one.positions[t] == (begins ? 0 : one.positions[t - 1] + 1));
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(rows_and_targets_without_their_beginning_are_counted) {
  const Corpus corpus;
  std::vector<std::size_t> begins = {0};
  for (std::size_t i = 0; i + 1 < corpus.tokens.size(); ++i)
    if (corpus.tokens[i] == 0) begins.push_back(i + 1);
  const auto begin_of_row = [&](std::size_t at) { return *(std::upper_bound(begins.begin(), begins.end(), at) - 1); };
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos})
    for (const std::size_t T : {1, 7, 64, 400})
      for (const bool positions : {false, true}) {
        const Samples samples(corpus.open("indexed"), {T, mode, {}, positions}, corpus.open("t.mask.bin"));
        std::uint64_t late = 0, padding = 0;
        for (std::uint64_t k = 0; k < samples.count(); ++k) {
          const Samples::Place place = samples.place_of(k);
          padding += T - place.targets;
          for (std::size_t at = place.begin + 1; at <= place.begin + place.targets; ++at)
            late += corpus.mask[at] == 1 && begin_of_row(at) < place.begin;
        }
        const DataCounts& counts = samples.counts();
        BOOST_TEST(counts.late_targets == late);
        BOOST_TEST(counts.padding == padding);
        BOOST_TEST(counts.rows == begins.size());
        BOOST_TEST(counts.targets == samples.targets());
        BOOST_TEST((counts.cut_rows > 0) == (T < 64 || (T == 64 && mode == BreakMode::none)));
      }
}

/// docs/targets.md has each of these rows.
BOOST_AUTO_TEST_CASE(the_targets_of_six_documents) {
  const TemporaryFolder folder;
  const auto writer = make_writer("megatron", folder / "six", 100);
  for (const std::size_t length : {5, 7, 1, 9, 16, 3}) {
    writer->add(std::vector<TokenId>(length, 1));
    writer->end_document();
  }
  writer->finish();
  const std::string page = read_file(FSDP_TEST_DATA "/../../docs/targets.md");
  for (const auto& [name, mode] :
       {std::pair("none", BreakMode::none), {"complete", BreakMode::complete}, {"eos", BreakMode::eos}})
    for (const std::size_t T : {8, 16, 64}) {
      const Samples all(open_token_file(folder / "six"), {T, mode}),
          apart(open_token_file(folder / "six"), {T, mode, {}, true});
      std::string sequences;
      for (std::uint64_t k = 0; k < all.count(); ++k)
        sequences += (k == 0 ? "" : ", ") + std::to_string(all.place_of(k).targets + 1);
      BOOST_TEST(apart.targets() == 35u);
      const std::string row = format("\n| {} | {} | {} | {} | {} |\n", name, T, sequences, all.targets(), apart.targets());
      BOOST_TEST(page.find(row) != std::string::npos, "docs/targets.md lacks" << row);
    }
}

/// With attention within documents their first tokens are not targets, for any source of the documents' beginnings, with and
/// without a mask.
BOOST_AUTO_TEST_CASE(first_tokens_are_no_targets_of_other_documents) {
  const Corpus corpus;
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos})
    for (const std::size_t T : {1, 7, 64, 400})
      for (const bool masked : {false, true}) {
        const auto mask = [&] { return masked ? corpus.open("t.mask.bin") : nullptr; };
        const Samples all(corpus.open("t.bin"), {T, mode, 0}, mask());
        const Samples by_token(corpus.open("t.bin"), {T, mode, 0, true}, mask());
        const Samples by_index(corpus.open("indexed"), {T, mode, {}, true}, mask());
        BOOST_TEST(by_token.targets() == by_index.targets());
        std::uint64_t counted = 0, k = 0;  // counted in by_token
        for (std::uint64_t s = 0; s < all.count(); ++s) {
          Sequence expected(all, s);
          for (std::size_t t = 0; t < T; ++t)
            if (expected.inputs[t] == 0) expected.targets[t] = -1;  // this token ends a document
          const auto count = T - static_cast<std::size_t>(std::ranges::count(expected.targets, -1));
          if (count == 0) continue;
          BOOST_TEST_REQUIRE(k < by_token.count());
          BOOST_TEST(by_token.targets_of(k) == count);
          BOOST_TEST((Sequence(by_token, k).targets == expected.targets));
          BOOST_TEST((Sequence(by_index, k).targets == expected.targets));
          counted += count, ++k;
        }
        BOOST_TEST(by_token.count() == k);
        BOOST_TEST(by_token.targets() == counted);
        std::vector<std::uint32_t> counts(300);
        by_token.read_counts(0, counts);
        for (std::size_t i = 1; i < 300; ++i)
          BOOST_TEST((counts[i] == 1) == (corpus.tokens[i - 1] != 0 && (!masked || corpus.mask[i] == 1)));
      }
}

BOOST_AUTO_TEST_CASE(documents_must_be_known) {
  const Corpus corpus;
  CHECK_CONTAINS(message_of([&] {
                   Samples(corpus.open("t.bin"), {7, BreakMode::none, {}, true});
                 }),
                 "or leave out `attention within documents`");
}

BOOST_AUTO_TEST_CASE(targets_count_by_the_mask) {
  const Corpus corpus;
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos})
    for (const std::size_t T : {1, 7, 64, 400}) {
      const Cut cut = {T, mode, 0};
      const Samples all(corpus.open("t.bin"), cut), some(corpus.open("t.bin"), cut, corpus.open("t.mask.bin"));
      std::uint64_t left = 0, counted = 0;
      std::size_t from = 0;  // the beginning of the sequence
      for (std::uint64_t k = 0; k < all.count(); ++k) {
        Sequence expected(all, k);
        while (!std::equal(expected.inputs.begin(), expected.inputs.begin() + static_cast<std::ptrdiff_t>(all.targets_of(k)),
                           corpus.tokens.begin() + static_cast<std::ptrdiff_t>(from)))
          ++from;
        std::size_t count = 0;
        for (std::size_t t = 0; t < all.targets_of(k); ++t)
          if (corpus.mask[from + t + 1])
            ++count;
          else
            expected.targets[t] = -1;
        from += all.targets_of(k);
        if (count == 0) continue;
        BOOST_TEST_REQUIRE(left < some.count());
        BOOST_TEST((Sequence(some, left).inputs == expected.inputs));
        BOOST_TEST((Sequence(some, left).targets == expected.targets));
        BOOST_TEST(some.targets_of(left++) == count);
        counted += count;
      }
      BOOST_TEST(some.count() == left);
      BOOST_TEST(some.targets() == counted);
      BOOST_TEST(counted < all.targets());
    }
}

BOOST_AUTO_TEST_CASE(a_token_that_ends_other_documents_than_the_stored_ones_is_doubted) {
  const Corpus corpus;
  const auto doubt = [&](const std::string& name, const Cut& cut) { return Samples(corpus.open(name), cut).doubt(); };
  const auto stored = std::to_string(corpus.open("indexed")->documents().size());
  const auto ended = std::to_string(Samples(corpus.open("t.bin"), {7, BreakMode::eos, 5}).documents());
  BOOST_TEST_REQUIRE(stored != ended);
  for (const Cut& cut : {Cut{7, BreakMode::eos, 5}, Cut{7, BreakMode::none, 5, true}}) {
    CHECK_CONTAINS(doubt("indexed", cut), "stores where " + stored + " documents begin, but token 5 ends " + ended + ", ");
    BOOST_TEST(doubt("t.bin", cut) == "");
    BOOST_TEST(doubt("indexed", {7, cut.mode, 0, cut.positions}) == "");
    BOOST_TEST(doubt("indexed", {7, cut.mode, {}, cut.positions}) == "");
    // One of two files stores documents.
    CHECK_CONTAINS(doubt(corpus.path("indexed") + "," + corpus.path("t.bin"), cut), "stores where " + stored + " documents");
  }
}

// The splits are those of get_data_patterns() of datasets 5.2, except that it searches all folders, and reads a file with the
// names of two splits as both. A folder whose files are all of one split is read as a whole.
BOOST_AUTO_TEST_CASE(a_folder_with_splits_is_read_as_datasets_reads_it) {
  struct Folder {
    std::vector<std::string> names;
    std::string train, valid;  // the names of the files that are read, or a part of the message
    std::string unread = "";
  };
  const Folder folders[] = {
      {{"train.jsonl", "valid.jsonl"}, "train.jsonl", "valid.jsonl"},
      {{"train-00000.json", "train-00001.json", "x.train.json"},
       "train-00000.json train-00001.json x.train.json",
       "train-00000.json train-00001.json x.train.json"},
      {{"valid.json", "dev.json"}, "dev.json valid.json", "dev.json valid.json"},
      {{"contest.json", "development.json", "trains.json", "values.json"},
       "contest.json development.json trains.json values.json",
       "contest.json development.json trains.json values.json"},
      {{"my-train_1.jsonl", "my-val_1.jsonl", "eval.jsonl", "more.jsonl"},
       "my-train_1.jsonl",
       "my-val_1.jsonl",
       "eval.jsonl more.jsonl"},
      {{"train/a.jsonl", "train/deep/b.txt", "dev-1/a.jsonl", "testing/c.jsonl", "train.jsonl"},
       "train/a.jsonl train/deep/b.txt",
       "dev-1/a.jsonl",
       "testing/c.jsonl train.jsonl"},
      {{"data/train-00000-of-00002-ab.json", "data/train-00001-of-00002-cd.json", "data/test-00000-of-00001.json",
        "valid.json"},
       "data/train-00000-of-00002-ab.json data/train-00001-of-00002-cd.json",
       "has no validation split",
       "data/test-00000-of-00001.json valid.json"},
      {{"data/train.json", "data/validation.json", "other/test.json"}, "data/train.json", "data/validation.json"},
      {{"a.json", "checkpoints/train.json", "data/b.json"}, "a.json", "a.json"},
      {{"a.json", "data/deep/b.json", "val_eval_logs/c.json"}, "a.json", "a.json"},
      {{"data/train-00000-of-00001.json"}, "data/train-00000-of-00001.json", "data/train-00000-of-00001.json"},
      {{"a.json", "x_evaluation.json"},
       "has no train split by the names of its files (x_evaluation.json, a.json)",
       "has no validation split"},
      {{"test.json", "val.json"}, "has no train split", "val.json"},
      {{"data/train_sft-00000-of-00001.json", "data/test_sft-00000-of-00001.json"}, "has a split t", "has a split t"},
      {{"train.json", "train-test.json"},
       "'train-test.json' contains the names of two splits",
       "contains the names of two splits"},
      {{"a.jsonl", "a.jsonl.gz"}, "are the same text by their names", "are the same text by their names"}};
  const TemporaryFolder listed;
  for (const char* const name : {"a.jsonl", "a.jsonl.gz"}) write_file(listed / name, R"({"text": "words"})");
  const std::string first = (listed / "a.jsonl").string();
  CHECK_CONTAINS(message_of([&] { texts_in(first + "," + first + ".gz", Split::train); }), "are the same text by their names");
  BOOST_TEST(texts_in(first + "," + first, Split::train).size() == 2u);
  for (const Folder& each : folders) {
    const TemporaryFolder folder;
    for (const std::string& name : each.names) {
      std::filesystem::create_directories((folder / name).parent_path());
      write_file(folder / name, R"({"text": "words"})");
    }
    const auto shown = [&](const auto& paths) {
      std::string all;
      for (const std::filesystem::path& path : paths)
        all += (all.empty() ? "" : " ") + path.lexically_relative(folder.path()).string();
      return all;
    };
    for (const auto& [split, expected] : {std::pair(Split::train, each.train), {Split::valid, each.valid}}) {
      try {
        BOOST_TEST(shown(files_of_data(folder.path().string(), split)) == expected);
      } catch (const UserError& error) {
        CHECK_CONTAINS(std::string(error.what()), expected);
      }
    }
    if (each.train.find(' ') == std::string::npos || each.train.find("json") == 0)
      BOOST_TEST(shown(unread_files(folder.path().string(), true)) == each.unread);
  }
  // The name of the folder itself means nothing.
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "data");
  write_file(folder / "data" / "a.json", R"({"text": "words"})");
  BOOST_TEST(files_of_data((folder / "data").string(), Split::train).size() == 1u);
}

BOOST_AUTO_TEST_CASE(masks_that_do_not_belong_to_the_tokens) {
  const Corpus corpus;
  const auto complaint = [&](const std::vector<std::uint16_t>& mask) {
    write_token_file(corpus.folder / "other.bin", mask);
    return message_of([&] { Samples(corpus.open("t.bin"), {7}, corpus.open("other.bin")); });
  };
  CHECK_CONTAINS(complaint(std::vector<std::uint16_t>(299, 1)), "has 299 numbers, and '" + corpus.path("t.bin") + "' has 300");
  std::vector<std::uint16_t> mask(300, 1);
  mask[17] = 2;
  CHECK_CONTAINS(complaint(mask), "position 17 of '" + corpus.path("other.bin") + "' is 2");
  mask.assign(300, 0);
  mask[0] = 1;  // token 0 is not a target
  CHECK_CONTAINS(complaint(mask), "lets no token count in the loss");
}

// Each of ten sequences of one data set counts in part, and every update has targets that count.
BOOST_AUTO_TEST_CASE(a_mixture_has_a_mask_for_each_data_set) {
  const Corpus corpus;
  const std::string names = corpus.path("t.bin") + ":0.5," + corpus.path("indexed") + ":0.5", mask = corpus.path("t.mask.bin");
  const Mixture data = open_mixture(names, {7}, mask + "," + mask);
  BOOST_TEST(data.samples(0).targets() == data.samples(1).targets());
  CHECK_CONTAINS(data.order(), "targets count");
  const TrainBatches batches(data, {1, 7, 1, 0, 1}, 100, {.passes = 1});
  for (std::uint64_t at = 0; !batches.at_end(at); at = batches.after(at)) {
    std::vector<std::int32_t> inputs(7), targets(7);
    batches.read(at, 0, inputs.data(), targets.data());
    const auto counted = std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
    BOOST_TEST(batches.targets(at) == static_cast<std::uint64_t>(counted));
    BOOST_TEST(counted > 0);
  }
  CHECK_CONTAINS(message_of([&] { open_mixture(names, {7}, mask); }), "has 2 data sets, but");
}

/// The checksums that a resumed run compares: they do not depend on where documents are stored, and differ for other documents
/// or another mask.
BOOST_AUTO_TEST_CASE(sums_of_documents_and_masks) {
  const Corpus corpus;
  const auto open = [&](const char* name, const Cut& cut, const char* mask = "") {
    return open_mixture(corpus.path(name), cut, *mask ? corpus.path(mask) : "");
  };
  const Mixture plain = open("t.bin", {7});
  BOOST_TEST(plain.documents_sum() == 0u);
  BOOST_TEST(plain.mask_sum() == 0u);
  const std::uint64_t documents = open("indexed", {7, BreakMode::eos}).documents_sum();
  BOOST_TEST(documents != 0u);
  BOOST_TEST(open("t.bin", {64, BreakMode::none, 0, true}).documents_sum() == documents);
  BOOST_TEST(open("t.bin", {7, BreakMode::eos, 1}).documents_sum() != documents);
  const std::uint64_t mask = open("t.bin", {7}, "t.mask.bin").mask_sum();
  BOOST_TEST(mask != 0u);
  BOOST_TEST(open("t.bin", {64, BreakMode::complete, 0}, "t.mask.bin").mask_sum() == mask);
  std::vector<std::uint16_t> other = corpus.mask;
  std::swap(other[100], *std::find(other.begin() + 100, other.end(), 1 - other[100]));  // the number of ones stays the same
  write_token_file(corpus.folder / "other.bin", other);
  BOOST_TEST(open("t.bin", {7}, "other.bin").mask_sum() != mask);
}

BOOST_AUTO_TEST_CASE(what_is_left_of_a_batch_has_positions) {
  const Corpus corpus;
  const Samples samples(corpus.open("t.bin"), {64, BreakMode::none, 0, true});
  const ValidBatches batches(samples, {3, 64, 1, 1, 2}, 100);
  std::vector<std::int32_t> inputs(3 * 64), numbers(2 * 3 * 64, 77);
  batches.read(0, inputs.data(), numbers.data());  // sequences 3 and 4, and none
  BOOST_TEST(std::equal(numbers.begin() + 3 * 64, numbers.begin() + 4 * 64, Sequence(samples, 3).positions.begin()));
  BOOST_TEST(std::all_of(numbers.begin() + 5 * 64, numbers.end(), [](std::int32_t position) { return position == 0; }));
}

BOOST_AUTO_TEST_CASE(a_mask_in_a_folder_is_no_data) {
  const Corpus corpus;
  BOOST_TEST(open_tokens(corpus.path("*.bin"))->size() == 600u);  // t.bin and indexed.bin
  BOOST_TEST(open_tokens(corpus.folder.path().string())->size() == 600u);
  BOOST_TEST(open_tokens(corpus.path("*.mask.bin"))->size() == 300u);
  for (const std::string& name :
       {corpus.path("t.bin"), corpus.path("*.bin"), corpus.path("indexed") + "," + corpus.path("t.bin")})
    CHECK_CONTAINS(unused_masks(name, Split::train, "--mask"), "t.mask.bin' is not used (it is named like the loss mask of");
  BOOST_TEST(unused_masks(corpus.path("indexed"), Split::train, "--mask") == "");
  for (const char* const name : {"n_000001.bin", "n_000002.bin"}) write_token_file(corpus.folder / name, corpus.tokens);
  for (const char* const name : {"n.mask_000001.bin", "n.mask_000002.bin"})
    write_token_file(corpus.folder / name, std::vector<std::uint16_t>(100, 1));
  BOOST_TEST(open_tokens(corpus.path("n*.bin"))->size() == 600u);
  const std::string unused = unused_masks(corpus.path("n*.bin"), Split::valid, "--valid-mask");
  CHECK_CONTAINS(unused, "n.mask_000001.bin' is not used (it is named like the loss mask of '" + corpus.path("n_000001.bin"));
  CHECK_CONTAINS(unused, "give it by --valid-mask, or rename it if it is no mask; the same holds for 1 more files");
  BOOST_TEST(open_tokens(corpus.path("n.mask_*.bin"))->size() == 200u);
  BOOST_TEST(open_tokens(corpus.folder.path().string())->size() == 1200u);
}
