// Merges go by rank, then from the left; cutting long pieces changes nothing.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "text/bpe.hpp"

using namespace fsdp;

namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

/// Encodes by the definition: merges the leftmost pair of the lowest rank until no pair can be merged.
std::vector<TokenId> by_definition(const std::vector<std::string>& tokens, const Merges& merges, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = merges.size(), where = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      for (std::size_t rank = 0; rank < best; ++rank)
        if (merges[rank].first == parts[i] && merges[rank].second == parts[i + 1]) {
          best = rank;
          where = i;
        }
    if (best == merges.size()) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts)
    ids.push_back(static_cast<TokenId>(std::find(tokens.begin(), tokens.end(), part) - tokens.begin()));
  return ids;
}

BpeRules of_bytes() {
  BpeRules rules;
  rules.of_byte.fill(-1);
  return rules;
}

std::vector<TokenId> encode(const Bpe& bpe, const std::string& piece) {
  std::vector<TokenId> ids;
  bpe.encode(piece, ids);
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_vocabularies_give_what_the_definition_gives) {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  std::size_t pieces = 0, wrong = 0, cut = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "d", "e"};
    Merges merges;
    for (std::size_t i = 0; i < 4 + below(40); ++i) {
      const std::string left = tokens[below(tokens.size())], right = tokens[below(tokens.size())];
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      tokens.push_back(left + right);
      merges.emplace_back(left, right);
    }
    const Bpe bpe(tokens, merges, of_bytes());
    for (int n = 0; n < 60; ++n, ++pieces) {
      std::string piece;
      for (std::size_t i = 1 + below(n < 30 ? 12 : 120); i > 0; --i) piece += static_cast<char>('a' + below(5));
      cut += piece.size() > 24;
      for (int again = 0; again < 2; ++again)  // also as a piece that is in the cache
        if (encode(bpe, piece) != by_definition(tokens, merges, piece)) ++wrong;
    }
  }
  BOOST_TEST(pieces == 2400u);
  BOOST_TEST(cut > 500u);
  BOOST_TEST(wrong == 0u);
}

// If there is no token for the unit, its neighbours become adjacent, in long and in short pieces.
BOOST_AUTO_TEST_CASE(a_unit_that_vanishes) {
  const Merges merges = {{"a", "b"}};
  for (const auto units : {BpeRules::Units::bytes, BpeRules::Units::characters})
    for (const std::size_t more : {1, 12, 40}) {
      BpeRules rules = of_bytes();
      rules.units = units;
      std::string piece = "a-b";
      std::vector<TokenId> joined(1 + more, 3), apart = {1, 0, 2};
      for (std::size_t i = 0; i < more; ++i) piece += "ab";
      apart.insert(apart.end(), more, 3);
      BOOST_TEST(encode(Bpe({"", "a", "b", "ab"}, merges, rules), piece) == joined, boost::test_tools::per_element());
      BOOST_TEST(encode(Bpe({"-", "a", "b", "ab"}, merges, rules), piece) == apart, boost::test_tools::per_element());
      rules.unknown = 0;
      BOOST_TEST(encode(Bpe({"<unk>", "a", "b", "ab"}, merges, rules), piece) == apart, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(units_that_are_no_tokens) {
  const std::vector<std::string> tokens = {"<unk>", "a", "b", "ab", "<x>", "<y>"};
  const Merges merges = {{"a", "b"}};
  BpeRules rules = of_bytes();
  rules.units = BpeRules::Units::characters;
  BOOST_TEST(encode(Bpe(tokens, merges, rules), "ab\u00e9\u00e9b") == (std::vector<TokenId>{3, 2}),
             boost::test_tools::per_element());
  rules.unknown = 0;
  BOOST_TEST(encode(Bpe(tokens, merges, rules), "ab\u00e9\u00e9b") == (std::vector<TokenId>{3, 0, 0, 2}),
             boost::test_tools::per_element());
  rules.fuses_unknown = true;
  BOOST_TEST(encode(Bpe(tokens, merges, rules), "ab\u00e9\u00e9b") == (std::vector<TokenId>{3, 0, 2}),
             boost::test_tools::per_element());
  std::string many = "ab";
  for (int i = 0; i < 40; ++i) many += "\u00e9";
  BOOST_TEST(encode(Bpe(tokens, merges, rules), many) == (std::vector<TokenId>{3, 0}), boost::test_tools::per_element());
  rules.of_byte[0xc3] = 4;
  rules.of_byte[0xa9] = 5;  // U+00E9 is C3 A9, U+00E8 is C3 A8
  BOOST_TEST(encode(Bpe(tokens, merges, rules), "a\u00e9\u00e8") == (std::vector<TokenId>{1, 4, 5, 0}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(merges_can_be_ignored) {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc"};
  BpeRules rules = of_bytes();
  const Merges merges = {{"a", "b"}};
  BOOST_TEST(encode(Bpe(tokens, merges, rules), "abc") == (std::vector<TokenId>{3, 2}), boost::test_tools::per_element());
  rules.ignores_merges = true;
  const Bpe bpe(tokens, merges, rules);
  BOOST_TEST(encode(bpe, "abc") == (std::vector<TokenId>{4}), boost::test_tools::per_element());
  // The result for the whole piece.
  BOOST_TEST(encode(bpe, "abcabcabcabcabcabcabcabcabcabc").size() == 20u);
  BOOST_CHECK_THROW(Bpe(tokens, {{"b", "c"}}, of_bytes()), UserError);
  BOOST_CHECK_THROW(Bpe(tokens, {{"x", "c"}}, of_bytes()), UserError);
}
