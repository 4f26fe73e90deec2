// Sampling the next token, with results computed by hand.
#include <cmath>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "generate/sampler.hpp"

using namespace fsdp;

namespace {

/// Returns the token that a new sampler draws; logits are the logs of probabilities 0.4, 0.3, 0.2, 0.1 of tokens 2, 0, 3, 1.
TokenId draw(const SamplingOptions& options, double uniform, std::vector<TokenId> seen = {}) {
  std::vector<float> logits = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};
  return Sampler(options, 4).draw(logits, seen, uniform);
}

}  // namespace

BOOST_AUTO_TEST_CASE(likelier_tokens_come_first) {
  const double uniforms[] = {0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 0.999999};
  const TokenId expected[] = {2, 2, 0, 0, 3, 3, 1, 1};
  for (std::size_t i = 0; i < 8; ++i) BOOST_TEST(draw({}, uniforms[i]) == expected[i]);
}

BOOST_AUTO_TEST_CASE(temperature_sharpens_and_zero_takes_the_likeliest) {
  BOOST_TEST(draw({.temperature = 0}, 0.99) == 2);
  // With temperature 0.5 probabilities are proportional to their squares: 16, 9, 4, 1 of 30.
  BOOST_TEST(draw({.temperature = 0.5}, 15.9 / 30) == 2);
  BOOST_TEST(draw({.temperature = 0.5}, 16.1 / 30) == 0);
  BOOST_TEST(draw({.temperature = 0.5}, 28.9 / 30) == 3);
  BOOST_TEST(draw({.temperature = 0.5}, 29.1 / 30) == 1);
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_leave_the_likeliest) {
  BOOST_TEST(draw({.top_k = 1}, 0.99) == 2);
  BOOST_TEST(draw({.top_k = 2}, 0.56) == 2);  // 4 of 7
  BOOST_TEST(draw({.top_k = 2}, 0.58) == 0);
  BOOST_TEST(draw({.top_k = 9}, 0.95) == 1);
  BOOST_TEST(draw({.top_p = 0.01}, 0.99) == 2);
  BOOST_TEST(draw({.top_p = 0.39}, 0.99) == 2);
  BOOST_TEST(draw({.top_p = 0.41}, 0.99) == 0);
  BOOST_TEST(draw({.top_p = 0.71}, 0.99) == 3);
  BOOST_TEST(draw({.top_p = 0.71}, 0.4) == 2);  // 4 of 9
  // The three tokens of top_k have 4, 3 and 2 of 9: the first two together have more than 0.7.
  BOOST_TEST(draw({.top_k = 3, .top_p = 0.7}, 0.99) == 0);
}

BOOST_AUTO_TEST_CASE(repetition_is_punished_once_for_each_token) {
  // All logits are negative here: those of tokens 2 and 0 double, which squares their probabilities to 0.16 and 0.09.
  BOOST_TEST(draw({.temperature = 0, .repetition_penalty = 2}, 0, {2, 2, 0, 2}) == 3);
  BOOST_TEST(draw({.temperature = 0, .repetition_penalty = 2}, 0, {0}) == 2);
  BOOST_TEST(draw({.temperature = 0, .repetition_penalty = 1}, 0, {2, 2, 0, 2}) == 2);
  std::vector<float> logits = {4, 3, -1};
  Sampler sampler({.temperature = 0, .repetition_penalty = 2}, 3);
  BOOST_TEST(sampler.draw(logits, std::vector<TokenId>{0, 2, 7}, 0) == 1);
  BOOST_TEST(logits == (std::vector<float>{2, 3, -2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(equal_tokens_go_by_their_numbers) {
  std::vector<float> logits(5, 1.0f);
  Sampler sampler({}, 5);
  for (int token = 0; token < 5; ++token) BOOST_TEST(sampler.draw(logits, {}, token / 5.0 + 0.1) == token);
  BOOST_TEST(Sampler({.temperature = 0}, 5).draw(logits, {}, 0.9) == 0);
}
