// The position at which a run resumes if its data or options have changed.
#include <boost/test/unit_test.hpp>

#include "data/position.hpp"

using namespace fsdp;

namespace {

std::string notice;
DataPosition after(const DataPosition& before, const DataPosition& now) { return continue_data(before, now, &notice); }

}  // namespace

BOOST_AUTO_TEST_CASE(nothing_changed) {
  const DataPosition before{25, 10, 1001, true, 7};
  BOOST_CHECK((after(before, {0, 10, 1001, true, 8}) == before));  // in the original order
  BOOST_TEST(notice == "");
}

BOOST_AUTO_TEST_CASE(samples_of_another_length_go_on_after_the_same_tokens) {
  // 1001 tokens: 100 samples of 10, or 40 of 25, a pass.
  BOOST_TEST(after({25, 10, 1001}, {0, 25, 1001}).sequences == 10u);
  BOOST_TEST(notice.find("had 10 tokens and now have 25") != std::string::npos);
  BOOST_TEST(after({29, 10, 1001}, {0, 25, 1001}).sequences == 11u);    // 290 tokens: in the middle of the twelfth
  BOOST_TEST(after({325, 10, 1001}, {0, 25, 1001}).sequences == 130u);  // three passes and a quarter
  BOOST_TEST(after({130, 25, 1001}, {0, 10, 1001}).sequences == 325u);
  BOOST_TEST(after({25, 10, 1001}, {0, 25, 1001}).tokens_per_sample == 25u);
}

BOOST_AUTO_TEST_CASE(other_data_or_another_order_start_anew) {
  BOOST_CHECK((after({25, 10, 1001}, {3, 10, 999}) == DataPosition{0, 10, 999}));
  BOOST_TEST(notice.find("999 tokens, 1001 before") != std::string::npos);
  BOOST_CHECK((after({25, 10, 1001, false, 1}, {0, 10, 1001, true, 2}) == DataPosition{0, 10, 1001, true, 2}));
  BOOST_TEST(notice.find("shuffled now and were not before") != std::string::npos);
  BOOST_CHECK((after({25, 10, 1001, true, 1}, {0, 10, 1001, false, 2}) == DataPosition{0, 10, 1001, false, 2}));
  BOOST_CHECK((after({25, 10, 1001, true, 1}, {0, 20, 1001, true, 2}) == DataPosition{0, 20, 1001, true, 2}));
  BOOST_TEST(notice.find("shuffled sequences had 10") != std::string::npos);
  BOOST_CHECK((after({25, 10, 1001, false, 1, "", 0, 5}, {0, 10, 1001, false, 1, "", 0, 6}) ==
               DataPosition{0, 10, 1001, false, 1, "", 0, 6}));
  BOOST_TEST(notice.find("the same number of tokens, but other tokens") != std::string::npos);
  BOOST_TEST(after({25, 10, 1001, false, 1, "", 0, 5, 1, 2}, {0, 10, 1001, false, 1, "", 0, 5, 3, 2}).sequences == 0u);
  BOOST_TEST(notice.find("the same number of tokens, but other documents") != std::string::npos);
  BOOST_TEST(after({25, 10, 1001, false, 1, "", 0, 5, 1, 2}, {0, 10, 1001, false, 1, "", 0, 5, 1, 4}).sequences == 0u);
  BOOST_TEST(notice.find("but other tokens count in the loss") != std::string::npos);
  BOOST_TEST(after({25, 10, 1001}, {0, 10, 1001, false, 1, "", 0, 6, 7, 8}).sequences == 25u);  // from an older version
  BOOST_TEST(notice == "");
}

BOOST_AUTO_TEST_CASE(a_checkpoint_without_a_position_starts_anew) {
  BOOST_CHECK((after({}, {3, 10, 1001, true, 2}) == DataPosition{0, 10, 1001, true, 2}));
  BOOST_TEST(notice.find("the checkpoint has no position in the data") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(another_mixture_or_cut_starts_anew) {
  const DataPosition before{25, 10, 1001, false, 1, "900 tokens 0.5"};
  BOOST_CHECK((after(before, {0, 10, 1001, false, 2, "900 tokens 0.5"}) == before));
  BOOST_TEST(after(before, {0, 10, 1001, false, 2, "900 tokens 0.6"}).sequences == 0u);
  BOOST_TEST(notice.find("the data are mixed or cut in another way than before") != std::string::npos);
  BOOST_TEST(after(before, {0, 10, 1001}).sequences == 0u);
  BOOST_TEST(after({25, 10, 1001}, {0, 10, 1001, false, 0, "a document each"}).sequences == 0u);
  BOOST_TEST(after(before, {0, 20, 1001, false, 2, "900 tokens 0.5"}).sequences == 0u);
  BOOST_TEST(notice.find("mixed sequences had 10 tokens and now have 20") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(samples_longer_than_the_data) { BOOST_TEST(after({25, 10, 1001}, {0, 5000, 1001}).sequences == 0u); }

BOOST_AUTO_TEST_CASE(one_other_token_is_other_data) {
  DataPosition before{25, 10, 1001}, now{0, 10, 1001};
  before.sample_sum = now.sample_sum = 5, before.token_sum = 7, now.token_sum = 8;
  BOOST_TEST(after(before, now).sequences == 0u);
  BOOST_TEST(notice.find("the same number of tokens, but other tokens") != std::string::npos);
  before.token_sum = 0;  // an older checkpoint
  BOOST_TEST(after(before, now).sequences == 25u);
  BOOST_TEST(after(before, now).token_sum == 8u);
}
