// How the time of a run was spent.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "record/goodput.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(starts_add_up) {
  TimeSpent run{.running_s = 10, .useful_s = 8, .saves_s = 0.5, .startup_s = 1, .starts = 1};
  run += {.running_s = 30, .useful_s = 10, .lost_s = 4, .skipped_s = 2, .validation_s = 3, .between_s = 100, .starts = 2};
  BOOST_TEST(run.goodput() == 18.0 / 40);  // the time between two processes is not part of running_s
  BOOST_TEST(describe(run) ==
             "goodput 45.0 %: updates 18.0 s of 40.0 s in 3 starts; startup 1.0 s, saves 500 ms, validation 3.0 s, updates "
             "done again 4.0 s, updates left out 2.0 s");
  BOOST_TEST(describe({.running_s = 4, .useful_s = 3, .starts = 1}) == "goodput 75.0 %: updates 3.0 s of 4.0 s");
}

// Clocks differ by a little, and a run may end before it has any time.
BOOST_AUTO_TEST_CASE(goodput_is_between_0_and_1) {
  BOOST_TEST(TimeSpent().goodput() == 0);
  BOOST_TEST((TimeSpent{.running_s = 1, .useful_s = 1.001}).goodput() == 1);
}

BOOST_AUTO_TEST_CASE(json_keeps_all_fields_and_may_lack_some) {
  const TimeSpent run{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const nlohmann::json json = to_json(run);
  BOOST_TEST(json.size() == 9);
  BOOST_TEST(to_json(time_spent_from_json(json)) == json);
  const TimeSpent some = time_spent_from_json({{"useful_s", 3.5}, {"saves_s", "long"}, {"starts", -1}});
  BOOST_TEST(some.useful_s == 3.5);
  BOOST_TEST(some.saves_s == 0);
  BOOST_TEST(some.starts == 0u);
  BOOST_TEST(time_spent_from_json("none").running_s == 0);
}
