// What fsdp-data counts while it reads rows is what training counts in stored tokens; and duplicates.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "data/open_data.hpp"
#include "fsdp-data/duplicates.hpp"
#include "fsdp-data/sequences.hpp"
#include "fsdp-data/survey.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct TestRow {
  std::vector<TokenId> ids, mask;
};

/// Rows of 1 to `longest` tokens. In the mask, ranges count that have nothing to do with rows.
std::vector<TestRow> random_rows(std::size_t n, std::size_t longest, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TestRow> rows(n);
  std::size_t next = 0;
  for (TestRow& row : rows)
    for (std::size_t left = 1 + random() % longest; left > 0; --left, ++next)
      row.ids.push_back(static_cast<TokenId>(random() % 1000)), row.mask.push_back(next / 9 % 3 == 1);
  return rows;
}

nlohmann::ordered_json cut_while_reading(const std::vector<TestRow>& rows, const Cut& cut, bool masked) {
  std::uint64_t counted = 0;
  SequenceCutter cutter(cut, [&](const CutSequence& sequence) { counted += sequence.counted; });
  for (const TestRow& row : rows) {
    const std::size_t half = row.ids.size() / 2;  // rows come in pieces
    const auto mask = std::span(row.mask).first(masked ? row.mask.size() : 0);
    cutter.add(std::span(row.ids).first(half), masked ? mask.first(half) : mask);
    cutter.add(std::span(row.ids).subspan(half), masked ? mask.subspan(half) : mask);
    cutter.end_row();
  }
  DataCounts counts;
  cutter.finish(counts);
  BOOST_TEST(counts.targets == counted);
  counts.idle_sequences = counts.cut_answers = 0;  // Samples does not count these
  return to_json(counts);
}

}  // namespace

BOOST_AUTO_TEST_CASE(sequences_are_those_of_training) {
  const TemporaryFolder folder;
  const std::vector<TestRow> rows = random_rows(400, 60, 5);
  const auto writer = make_writer("megatron", folder / "d", 1000), masks = make_writer("megatron", folder / "m", 2);
  for (const TestRow& row : rows) {
    writer->add(row.ids), masks->add(row.mask);
    writer->end_document(), masks->end_document();
  }
  writer->finish(), masks->finish();
  std::size_t compared = 0;
  for (const std::size_t T : {1, 7, 24, 100})
    for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos})
      for (const bool positions : {false, true})
        for (const LongRows long_rows : {LongRows::split, LongRows::truncate, LongRows::drop})
          for (const Packing packing : {Packing::first_come, Packing::best_fit})
            for (const bool masked : {false, true}) {
              if (mode == BreakMode::none && long_rows != LongRows::split) continue;
              if (packing == Packing::best_fit && (mode != BreakMode::complete || !positions)) continue;
              const Cut cut{T, mode, {}, positions, long_rows, packing};
              DataCounts stored =
                  Samples(open_tokens((folder / "d").string()), cut, masked ? open_tokens((folder / "m").string()) : nullptr)
                      .counts();
              stored.rows = stored.tokens = stored.longest_row = 0;  // SequenceCutter does not count these
              BOOST_TEST_CONTEXT("T " << T << ", mode " << static_cast<int>(mode) << ", positions " << positions
                                      << ", long rows " << static_cast<int>(long_rows) << ", packing "
                                      << static_cast<int>(packing) << ", masked " << masked)
              BOOST_TEST(to_json(stored) == cut_while_reading(rows, cut, masked));
              ++compared;
            }
  BOOST_TEST(compared == 136u);
}

BOOST_AUTO_TEST_CASE(equal_and_similar_rows_are_found) {
  const TemporaryFolder folder;
  std::vector<TestRow> rows = random_rows(3000, 400, 11);
  std::erase_if(rows, [](const TestRow& row) { return row.ids.size() < 200; });
  const std::size_t originals = rows.size();
  BOOST_TEST_REQUIRE(originals > 1000u);
  for (TestRow& row : rows) row.ids.insert(row.ids.begin(), 300, 7);  // a prompt that all rows have
  for (std::size_t i = 0; i < 100; ++i) rows.push_back(rows[3 * i]);  // equal
  for (std::size_t i = 0; i < 100; ++i) {                             // one token in the middle is another one
    rows.push_back(rows[3 * i + 1]);
    rows.back().ids[rows.back().ids.size() / 2 + 150] ^= 1;
  }
  DuplicateFinder finder(folder / "");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    finder.add(rows[i].ids);
    finder.end_row(i);
  }
  BOOST_TEST(std::filesystem::is_empty(folder / ""));  // files without names: nothing is left if the program is killed
  std::size_t equal = 0, similar = 0;
  finder.find([&](const Duplicate& found) {
    const std::size_t copy = found.row - originals;
    BOOST_TEST_REQUIRE(found.row >= originals);
    BOOST_TEST(found.earlier == 3 * (copy % 100) + (copy < 100 ? 0 : 1));
    BOOST_TEST(found.is_same == (copy < 100));
    ++(found.is_same ? equal : similar);
  });
  BOOST_TEST(equal == 100u);
  BOOST_TEST(similar >= 95u);
}

BOOST_AUTO_TEST_CASE(rows_are_checked) {
  const TemporaryFolder folder;
  constexpr TokenId bos = 1, end = 2;
  Survey survey(
      {.cut = {.T = 4, .mode = BreakMode::eos}, .rule = {2, 4}, .vocab_size = 100, .longest = 6, .ends = {end}, .bos = bos},
      folder / "");
  const auto add = [&](const std::vector<TokenId>& ids, const std::vector<TokenId>& mask, std::uint64_t place) {
    survey.add(ids, mask);
    survey.end_row(place);
  };
  survey.begin("a", false, true, [](std::uint64_t place) { return format("place {}", place); });
  add({bos, 5, 6, end}, {}, 10);
  add({bos, bos, 5, end}, {}, 20);                                        // doubled BOS
  add({bos, 5, 100, -1, end}, {}, 30);                                    // two unknown tokens
  add({bos, 5, 6, 7}, {}, 40);                                            // no end token
  add({end}, {}, 50);                                                     // empty
  add({bos, 5, 6, 7, 8, 9, 5, 6, end}, {0, 0, 0, 0, 0, 0, 0, 1, 1}, 60);  // the prompt fills a sequence, beyond the model
  add({bos, 5, 6, 7, end, 9}, {0, 1, 1, 1, 0, 0}, 70);                    // the end token is outside the loss
  survey.end({});
  survey.begin("b", true, true, [](std::uint64_t place) { return format("b {}", place); });
  add({bos, 5, 6, end}, {}, 1);  // also in a
  add({bos, 9, 9, end}, {}, 2);
  add({bos, 9, 9, end}, {}, 3);
  survey.end({});
  survey.finish();
  const DataCounts& a = survey.sources()[0].counts;
  const DataCounts& b = survey.sources()[1].counts;
  BOOST_TEST((a.rows == 7 && a.tokens == 33 && a.longest_row == 9));
  BOOST_TEST((a.doubled_bos == 1 && a.firsts.at("doubled-bos") == "place 20"));
  BOOST_TEST((a.unknown_tokens == 2 && a.firsts.at("unknown-tokens") == "place 30"));
  BOOST_TEST((a.unended_rows == 1 && a.firsts.at("unended-rows") == "place 40"));
  BOOST_TEST((a.empty_rows == 1 && a.firsts.at("empty-rows") == "place 50"));
  BOOST_TEST((a.long_prompts == 1 && a.beyond_model == 1 && a.firsts.at("beyond-model") == "place 60"));
  BOOST_TEST((a.answers == 2 && a.unended_answers == 1));
  BOOST_TEST((a.duplicates == 0 && b.duplicates == 1 && b.in_training == 1));
  BOOST_TEST(b.firsts.at("duplicates") == "b 3, as b 2");
  BOOST_TEST(b.firsts.at("in-training") == "b 1, as place 10");
  BOOST_TEST(survey.lengths() == (std::vector<std::uint64_t>{1, 0, 3, 2, 1}), boost::test_tools::per_element());
  for (const DataCheck& check : data_checks())
    if (const auto first = a.firsts.find(check.name); first != a.firsts.end())
      CHECK_CONTAINS(check.message(a, "a"), first->second);
}

BOOST_AUTO_TEST_CASE(the_page_of_docs_has_all_checks) {
  const std::string page = read_file(FSDP_DOCS "/data.md");
  for (const DataCheck& check : data_checks()) {
    const std::size_t at = page.find(format("\n| `{}` | ", check.name));
    BOOST_TEST_REQUIRE((at != page.npos), check.name);
    const std::string row = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
    BOOST_TEST(row.ends_with(check.costs_a_run ? "| yes |" : "| |"), row);
  }
}
