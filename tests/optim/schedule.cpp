// Learning rates, compared with numbers computed by hand, with golden runs of PyTorch, and with transformers.get_scheduler().
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "optim/schedule.hpp"

using namespace fsdp;
namespace tt = boost::test_tools;

BOOST_AUTO_TEST_CASE(warm_up_is_the_same_for_all) {
  for (const Decay decay : {Decay::fixed, Decay::polynomial, Decay::cosine, Decay::inverse_sqrt, Decay::wsd, Decay::linear,
                            Decay::cosine_with_restarts}) {
    const Schedule s{decay, 0.01, 5, 20, 0.001, 1, 3};
    for (std::uint64_t u = 1; u <= 5; ++u) BOOST_TEST(learning_rate(s, u) == 0.01 * static_cast<double>(u) / 5);
  }
}

BOOST_AUTO_TEST_CASE(without_warm_up_the_first_update_decays_already) {
  BOOST_TEST(learning_rate({Decay::fixed, 0.5, 0, 0, 0, 1}, 1) == 0.5);
  BOOST_TEST(learning_rate({Decay::polynomial, 1.0, 0, 4, 0, 1}, 1) == 0.75);
}

BOOST_AUTO_TEST_CASE(polynomial) {
  // lr 0.01 to 0.001 over 20 updates after 5 of warm-up, as in the golden runs: update 6 is one fifteenth of the way.
  const Schedule s{Decay::polynomial, 0.01, 5, 20, 0.001, 1};
  BOOST_TEST(learning_rate(s, 6) == 0.0094, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(s, 19) == 0.0016, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(s, 20) == 0.001);
  BOOST_TEST(learning_rate(s, 21) == 0.001);
  BOOST_TEST(learning_rate(s, 1'000'000'000'000) == 0.001);
  // Power 2 at half of the schedule: a quarter of the range remains.
  BOOST_TEST(learning_rate({Decay::polynomial, 1.0, 10, 30, 0.2, 2}, 20) == 0.4, tt::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(cosine) {
  const Schedule s{Decay::cosine, 1.0, 7, 25, 0.1, 1};
  BOOST_TEST(learning_rate(s, 7) == 1.0);
  BOOST_TEST(learning_rate(s, 16) == 0.55, tt::tolerance(1e-12));              // half of the way
  BOOST_TEST(learning_rate(s, 13) == 0.1 + 0.9 * 0.75, tt::tolerance(1e-12));  // a third: (1 + cos 60)/2
  BOOST_TEST(learning_rate(s, 25) == 0.1);
  BOOST_TEST(learning_rate(s, 26) == 0.1);
  for (std::uint64_t u = 8; u <= 25; ++u) BOOST_TEST(learning_rate(s, u) < learning_rate(s, u - 1));
}

BOOST_AUTO_TEST_CASE(inverse_square_root) {
  const Schedule s{Decay::inverse_sqrt, 1.0, 100, 1600, 0, 1};
  BOOST_TEST(learning_rate(s, 50) == 0.5);
  BOOST_TEST(learning_rate(s, 100) == 1.0);
  BOOST_TEST(learning_rate(s, 400) == 0.5, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(s, 1600) == 0.25, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(s, 6400) == 0.25, tt::tolerance(1e-12));  // stays as it is at the end
  BOOST_TEST(learning_rate({Decay::inverse_sqrt, 1.0, 0, 0, 0, 1}, 4) == 0.5, tt::tolerance(1e-12));  // W counts as 1
}

BOOST_AUTO_TEST_CASE(warm_up_stable_decay) {
  const Schedule s{Decay::wsd, 1.0, 10, 100, 0.2, 1, 20};
  BOOST_TEST(learning_rate(s, 5) == 0.5);
  BOOST_TEST(learning_rate(s, 11) == 1.0);
  BOOST_TEST(learning_rate(s, 80) == 1.0);
  BOOST_TEST(learning_rate(s, 90) == 0.6, tt::tolerance(1e-12));  // half of the way
  BOOST_TEST(learning_rate(s, 99) == 0.24, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(s, 100) == 0.2);
  BOOST_TEST(learning_rate(s, 101) == 0.2);
}

BOOST_AUTO_TEST_CASE(warm_up_to_the_very_end) {
  const Schedule s{Decay::cosine, 1.0, 4, 4, 0.25, 1};
  BOOST_TEST(learning_rate(s, 4) == 1.0);
  BOOST_TEST(learning_rate(s, 5) == 0.25);
}

// transformers names the rate of an update by the number of updates before it. fsdp's update u has the rate after u of its
// steps, so that the first update already has a rate above 0.
BOOST_AUTO_TEST_CASE(rates_are_those_of_transformers) {
  const auto made = nlohmann::json::parse(std::ifstream(FSDP_TEST_DATA "/schedules/schedules.json"));
  const std::map<std::string, Decay> decays = {{"constant_with_warmup", Decay::fixed},
                                               {"linear", Decay::linear},
                                               {"cosine", Decay::cosine},
                                               {"cosine_with_restarts", Decay::cosine_with_restarts},
                                               {"cosine_with_min_lr", Decay::cosine},
                                               {"polynomial", Decay::polynomial},
                                               {"inverse_sqrt", Decay::inverse_sqrt}};
  const std::uint64_t total = made["total"];
  BOOST_TEST(made["schedules"].size() == 10u);
  for (const auto& [name, one] : made["schedules"].items()) BOOST_TEST_CONTEXT(name) {
      Schedule s{.decay = decays.at(name.substr(0, name.find(' '))), .learning_rate = 1, .total = total};
      s.warmup = one.contains("ratio") ? warmup_of(one["ratio"], total) : one["warmup"].get<std::uint64_t>();
      s.end = one.value("min_lr_rate", one.value("lr_end", 0.0));
      s.power = one.value("power", 1.0);
      s.cycles = one.value("num_cycles", 1u);
      const auto factors = one["factors"].get<std::vector<double>>();
      BOOST_TEST_REQUIRE(factors.size() > total);
      for (std::uint64_t u = 1; u <= total; ++u) BOOST_TEST(std::abs(learning_rate(s, u) - factors[u - 1]) < 1e-12);
      const bool goes_on = name == "inverse_sqrt" || name == "cosine" || name == "cosine_with_min_lr";  // fsdp's rate stays
      if (!goes_on) BOOST_TEST(std::abs(learning_rate(s, total + 3) - factors[total + 2]) < 1e-12);
    }
}
