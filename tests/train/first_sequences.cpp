// The first sequences of a run as text: with their masks, and documents where they begin, however the data are cut.
#include "train/first_sequences.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "data/open_data.hpp"
#include "support/files.hpp"
#include "support/tokens.hpp"
#include "text/shown_tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Texts = std::vector<std::string>;

/// Documents of bytes that end with '.'; capital letters count in the loss. Stored with an index, and without.
class Letters {
 public:
  explicit Letters(const std::vector<std::string>& documents) {
    const auto indexed = make_writer("megatron", folder_ / "indexed", 256);
    std::vector<std::uint16_t> tokens, mask;
    for (const std::string& document : documents) {
      for (const char letter : document) {
        const TokenId token = letter;
        indexed->add(std::span(&token, 1));
        tokens.push_back(static_cast<std::uint16_t>(letter)), mask.push_back(letter >= 'A' && letter <= 'Z' ? 1 : 0);
      }
      indexed->end_document();
    }
    indexed->finish();
    write_token_file(folder_ / "plain.bin", tokens);
    write_token_file(folder_ / "mask.bin", mask);
  }

  nlohmann::json first(const Cut& cut, std::uint64_t position = 0, const DataOrder& order = {},
                       const std::string& tokenizer = "bytes") const {
    const auto open = [&](const char* name) { return open_token_file(folder_ / name); };
    std::vector<Ingredient> sets;
    sets.push_back({Samples(open(cut.end_of_document ? "plain.bin" : "indexed"), cut, open("mask.bin")), 1});
    const Mixture mixture(std::move(sets));
    const TrainBatches batches(mixture, {.B = 5, .T = cut.T}, 256, order);
    return first_sequences(batches, position, std::min<std::uint64_t>(3, mixture.sequences()), tokenizer, 256);
  }
  /// "^" is before what begins a document, and "[" and "]" are around targets.
  Texts texts(const Cut& cut, std::uint64_t position = 0, const DataOrder& order = {}) const {
    Texts all;
    for (const nlohmann::json& sequence : first(cut, position, order)) {
      all.emplace_back();
      for (const ShownText& run : shown_of_json(sequence["text"]))
        all.back() += (run.begins_document ? "^" : "") + (run.is_target ? "[" + run.text + "]" : run.text);
    }
    return all;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(masks_and_documents_are_those_of_the_cut) {
  const Letters letters({"qAB.", "RC.", "sDEF."});
  const auto is = [](const Texts& texts, const Texts& wanted) {
    BOOST_TEST(texts == wanted, boost::test_tools::per_element());
  };
  // The last token is left out: it is no input, and it does not count.
  is(letters.texts({.T = 20}), {"^q[AB].^[RC].^s[DEF]"});
  is(letters.texts({.T = 20, .end_of_document = '.'}), {"^q[AB].^[RC].^s[DEF]"});
  is(letters.texts({.T = 4}), {"^q[AB].^[R]", "^R[C].^s[D]", "D[EF]"});
  is(letters.texts({.T = 4, .end_of_document = '.'}), {"^q[AB].^[R]", "^R[C].^s[D]", "D[EF]"});
  // If attention stays within documents, their first tokens are no targets.
  is(letters.texts({.T = 20, .positions = true}), {"^q[AB].^R[C].^s[DEF]"});
  is(letters.texts({.T = 4, .mode = BreakMode::eos}), {"^q[AB]", "^R[C]", "^s[DEF]"});
  is(letters.texts({.T = 2, .mode = BreakMode::eos}), {"^q[AB]", "^R[C]", "^s[DE]"});
  is(letters.texts({.T = 2, .mode = BreakMode::eos}, 3), {"E[F]", "^q[AB]", "^R[C]"});
  is(letters.texts({.T = 2, .mode = BreakMode::eos}, 3, {.passes = 1}), {"E[F]"});
  is(letters.texts({.T = 4, .mode = BreakMode::complete, .positions = true, .packing = Packing::best_fit}),
     {"^q[AB]", "^R[C]^s[DEF]"});

  const nlohmann::json first = letters.first({.T = 4})[0];
  BOOST_TEST((first["tokens"] == 5 && first["targets"] == 3), first);
  BOOST_TEST(first["data"].get<std::string>().find("indexed") != std::string::npos);
  BOOST_CHECK_THROW(letters.first({.T = 4}, 0, {}, "nowhere/tokenizer.json"), UserError);
}

BOOST_AUTO_TEST_CASE(long_sequences_are_shown_around_their_first_target) {
  const std::string x(1000, 'x');
  const Letters letters({x + "YES.", x});
  BOOST_TEST(letters.texts({.T = 3000})[0] ==
             "^" + x.substr(0, 150) + "..." + x.substr(0, 50) + "[YES].^" + x.substr(0, 946) + "...");
}
