// Mixtures give each data set its share, in an order that every rank computes for itself.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Data sets a, b, c of 50, 7 and 23 sequences of 10; token i of data set n is 1000 n + i.
struct Three {
  Three() {
    for (std::size_t d = 0; d < 3; ++d) {
      std::vector<std::uint16_t> tokens(10 * counts[d] + 1);
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(1000 * d + i);
      write_token_file(folder / std::string(1, static_cast<char>('a' + d)), tokens);
    }
  }
  std::string path(const char* name) const { return (folder / name).string(); }
  Mixture open(const std::string& weights_a, const std::string& b, const std::string& c) const {
    return open_mixture(path("a") + ":" + weights_a + "," + path("b") + ":" + b + "," + path("c") + ":" + c, {10});
  }
  TemporaryFolder folder;
  inline static const std::size_t counts[3] = {50, 7, 23};
};

}  // namespace

BOOST_AUTO_TEST_CASE(each_data_set_gives_its_share_of_any_first_sequences) {
  const Three data;
  const double weights[] = {5, 0.5, 4.5};
  const Mixture mixture = data.open("5", "0.5", "4.5");
  BOOST_TEST(mixture.sequences() == 80u);
  std::uint64_t given[3] = {};
  for (std::uint64_t s = 0; s < 20'000; ++s) {
    const auto [ingredient, n] = mixture.source_of(s);
    BOOST_TEST_REQUIRE(ingredient < 3u);
    BOOST_TEST_REQUIRE(n == given[ingredient]++);  // in order
    for (int d = 0; d < 3; ++d)
      if (std::abs(static_cast<double>(given[d]) - static_cast<double>(s + 1) * weights[d] / 10) > 1.6)
        BOOST_ERROR("data set " << d << " has given " << given[d] << " of " << s + 1);
  }
  // Far from the start, the same.
  const std::uint64_t far = std::uint64_t{1} << 50;
  std::map<std::size_t, int> there;
  for (std::uint64_t s = far; s < far + 1000; ++s) ++there[mixture.source_of(s).ingredient];
  BOOST_TEST(std::abs(there[0] - 500) <= 2);
  BOOST_TEST(std::abs(there[1] - 50) <= 2);
  BOOST_TEST(std::abs(there[2] - 450) <= 2);
}

BOOST_AUTO_TEST_CASE(ranks_and_cuts_of_updates_change_nothing) {
  const Three data;
  const Mixture mixture = data.open("0.6", "0.3", "0.1");
  for (const bool shuffled : {false, true}) {
    const DataOrder order = {.shuffle_seed = shuffled ? std::optional<std::uint64_t>(5) : std::nullopt};
    const auto read = [&](std::size_t B, std::size_t K, int ranks) {
      std::vector<std::int32_t> first;  // input of each sequence
      std::uint64_t position = 0;
      const TrainBatches leader(mixture, {B, 10, K, 0, ranks}, 65536, order);
      for (; first.size() < 240; position = leader.after(position)) {
        BOOST_TEST(leader.targets(position) == 10 * B * K * static_cast<std::size_t>(ranks));
        for (std::size_t micro = 0; micro < K; ++micro)
          for (int rank = 0; rank < ranks; ++rank) {
            const TrainBatches batches(mixture, {B, 10, K, rank, ranks}, 65536, order);
            std::vector<std::int32_t> inputs(10 * B), targets(10 * B);
            batches.read(position, micro, inputs.data(), targets.data());
            for (std::size_t b = 0; b < B; ++b) first.push_back(inputs[10 * b]);
          }
      }
      return first;
    };
    const auto expected = read(1, 1, 1);
    BOOST_TEST(read(2, 2, 2) == expected, boost::test_tools::per_element());
    BOOST_TEST(read(1, 4, 3) == expected, boost::test_tools::per_element());
    BOOST_TEST(read(12, 1, 4) == expected, boost::test_tools::per_element());
    // b gives 72 of 240 sequences, which are ten passes over its 7 and two more: all of them equally often, to within one.
    std::map<std::int32_t, int> of_b;
    for (const std::int32_t token : expected)
      if (token >= 1000 && token < 2000) ++of_b[token];
    BOOST_TEST(of_b.size() == 7u);
    for (const auto& [token, times] : of_b) BOOST_TEST((times == 10 || times == 11));
  }
}

BOOST_AUTO_TEST_CASE(the_names_of_data) {
  const Three data;
  const auto sizes = [&](const std::string& name) {
    const Mixture mixture = open_mixture(name, {10});
    std::vector<std::uint64_t> tokens;
    for (const Ingredient& each : mixture.ingredients()) tokens.push_back(each.samples.tokens().size());
    return tokens;
  };
  using Sizes = std::vector<std::uint64_t>;
  const auto a = data.path("a"), b = data.path("b"), c = data.path("c");
  BOOST_TEST(sizes(a) == Sizes{501}, boost::test_tools::per_element());
  BOOST_TEST((sizes(a + ":0.7," + b + ":0.3") == Sizes{501, 71}));
  BOOST_TEST(sizes(b + ":3") == Sizes{71}, boost::test_tools::per_element());
  BOOST_TEST(sizes(a + "," + b) == Sizes{572}, boost::test_tools::per_element());
  BOOST_TEST(sizes(data.path("*")) == Sizes{803}, boost::test_tools::per_element());
  BOOST_TEST((sizes(data.path("[ab]") + ":2," + c + ":1") == Sizes{572, 231}));

  // Joined tokens follow each other, for any size of reads; places in messages are those in the files.
  const auto joined = open_tokens(c + "," + a + "," + b);
  std::vector<std::uint32_t> expected;
  for (const auto& path : {c, a, b})
    for (const std::uint32_t token : tokens_of(path)) expected.push_back(token);
  BOOST_TEST(all_tokens(*joined) == expected, boost::test_tools::per_element());
  for (const std::uint64_t begin : {0, 230, 231, 700, 731, 732, 802})
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, expected.size() - begin}) {
      if (begin + n > expected.size()) continue;
      std::vector<std::uint32_t> out(n);
      joined->read(begin, out);
      BOOST_TEST(std::equal(out.begin(), out.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  CHECK_CONTAINS(joined->place(732), "position 0 of '" + b + "'");
  CHECK_CONTAINS(joined->place(731), "position 500 of '" + a + "'");
  CHECK_CONTAINS(message_of([&] { check_vocabulary(*joined, 1050, 0, 1); }), "token 2230 at position 230 of '" + c);

  // If a file's name looks like a list, it means that file.
  const std::string odd = data.path("a,b:0.5*");
  std::filesystem::copy_file(a, odd);
  BOOST_TEST(sizes(odd) == Sizes{501}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(folders) {
  const Three data;
  const auto folder = data.folder / "folder";
  std::filesystem::create_directory(folder);
  const auto error = [&](Split split = Split::train) { return message_of([&] { open_tokens(folder.string(), split); }); };
  CHECK_CONTAINS(error(), "holds no token files");
  std::filesystem::copy_file(data.path("b"), folder / "2.bin");
  std::filesystem::copy_file(data.path("a"), folder / "10.bin");
  write_file(folder / "README", "no tokens");
  write_file(folder / ".3.bin", "of an editor");  // hidden
  auto tokens = open_tokens(folder.string());
  BOOST_TEST(tokens->size() == 572u);
  BOOST_TEST(tokens->place(0) == "position 0 of '" + (folder / "10.bin").string() + "'");
  write_file(folder / "dict.en.txt", "the 10\n");
  CHECK_CONTAINS(error(), "of fairseq-preprocess for pairs of languages (dict.en.txt is there");
  // With dict.txt the folder is fairseq's, which has splits.
  write_file(folder / "dict.txt", "the 10\n");
  BOOST_TEST(!valid_data_of(folder.string()).has_value());
  CHECK_CONTAINS(error(), "has no train.bin next to its dict.txt");
  for (const char* name : {"train.bin", "train1.bin", "train3.bin", "valid.bin"})
    std::filesystem::copy_file(data.path("b"), folder / name);
  CHECK_CONTAINS(error(), "train3.bin' would not be read");
  std::filesystem::rename(folder / "train3.bin", folder / "train2.bin");
  BOOST_TEST(open_tokens(folder.string(), Split::train)->size() == 213u);
  BOOST_TEST(open_tokens(folder.string())->size() == 71u);
  BOOST_TEST(valid_data_of(folder.string()).value() == folder.string());
}

BOOST_AUTO_TEST_CASE(a_pattern_reads_both_files_of_a_data_set_once) {
  const Three data;
  for (const char* name : {"m1", "m2"}) {
    const auto writer = make_writer("megatron", data.folder / name, 300);
    writer->add(std::vector<TokenId>{1, 2, 3});
    writer->finish();
  }
  BOOST_TEST(open_tokens(data.path("m*"))->size() == 6u);
  BOOST_TEST(open_tokens(data.path("m*.idx"))->size() == 6u);
  BOOST_TEST(open_tokens(data.path("m1.*"))->size() == 3u);
}

BOOST_AUTO_TEST_CASE(names_that_mean_nothing) {
  const Three data;
  const auto a = data.path("a"), b = data.path("b");
  const auto error = [](const std::string& name) { return message_of([&] { open_mixture(name, {10}); }); };
  CHECK_CONTAINS(error(a + ":0.7," + b), "has weights for some of its data sets");
  CHECK_CONTAINS(error(a + ":0," + b + ":1"), "is not between 0 and 1e9");
  CHECK_CONTAINS(error(a + ":-1," + b + ":1"), "is not between 0 and 1e9");
  CHECK_CONTAINS(error(a + ":2e9," + b + ":1"), "is not between 0 and 1e9");
  CHECK_CONTAINS(error(a + ":nan," + b + ":1"), "is not between 0 and 1e9");
  CHECK_CONTAINS(error(a + ",," + b), "has an empty part");
  CHECK_CONTAINS(error(""), "has an empty part");
  CHECK_CONTAINS(error(data.path("x*")), "no file matches '");
  CHECK_CONTAINS(error(data.path("none")), "No such file or directory");
  CHECK_CONTAINS(error(a + ":half," + b + ":1"), "has weights for some");
  CHECK_CONTAINS(error(a + "," + std::string(5000, 'x')), "No such file or directory");
  CHECK_CONTAINS(message_of([&] { open_tokens(a + ":1," + b + ":1"); }), "leave the weights out");
  CHECK_CONTAINS(message_of([&] { open_mixture(a + ":1," + b + ":1", {100}); }), "b' has no whole sequence (71 tokens");
  CHECK_CONTAINS(message_of([&] { open_mixture(a, {10, BreakMode::eos}); }), "does not store where documents begin");
}

BOOST_AUTO_TEST_CASE(what_an_order_depends_on) {
  const Three data;
  BOOST_TEST(open_mixture(data.path("a"), {10}).order() == "");
  BOOST_TEST(data.open("1", "1", "2").order() == data.open("0.5", "0.5", "1").order());
  BOOST_TEST(data.open("1", "1", "2").order() != data.open("1", "1", "2.1").order());
  BOOST_TEST(open_mixture(data.path("a"), {10, BreakMode::eos, 7}).order() == "a document each, ended by 7");
  BOOST_TEST(open_mixture(data.path("a"), {10, BreakMode::complete, 7}).order() == "whole documents, ended by 7");
  BOOST_TEST(data.open("7", "2", "1").description().find("70 %, '") != std::string::npos);
}
