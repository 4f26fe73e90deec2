// What a run will write, and the room for it.
#include "train/save_space.hpp"

#include <boost/test/unit_test.hpp>

#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(steps_that_are_there_at_the_same_time) {
  SaveOptions save;
  BOOST_TEST(steps_to_add(save, 0, 0, 100) == 1u);  // at the end
  save.interval_updates = 10;
  BOOST_TEST(steps_to_add(save, 0, 0, 100) == 10u);
  BOOST_TEST(steps_to_add(save, 4, 40, 100) == 6u);
  BOOST_TEST(steps_to_add(save, 0, 0, 0) == 1u);
  save.keep_last = 2;
  BOOST_TEST(steps_to_add(save, 0, 0, 100) == 3u);
  BOOST_TEST(steps_to_add(save, 2, 40, 100) == 1u);
  save.keep_every = 50;
  BOOST_TEST(steps_to_add(save, 2, 40, 100) == 3u);
}

BOOST_AUTO_TEST_CASE(room_for_one_step_is_needed_and_for_all_is_better) {
  const auto judge = [](WillWrite need, Room room) { return judge_room("saves", need, room, "your quota"); };
  BOOST_TEST(judge({1000, 5, 3}, {}) == "");
  BOOST_TEST(judge({1000, 5, 3}, {3000, 15}) == "");
  CHECK_CONTAINS(
      judge({1024, 5, 3}, {2048, 15}),
      "saves has room for 2.00 KiB only, by your quota (a checkpoint has 1.00 KiB, and this run will add 3 of them: 3.00 "
      "KiB); free some");
  CHECK_CONTAINS(judge({1000, 5, 3}, {3000, 14}), "has room for 14 files only");
  CHECK_CONTAINS(message_of<RunError>([&] { judge({1000, 5, 1}, {999, 15}); }), "saves has room for 999 B only");
  CHECK_CONTAINS(message_of<RunError>([&] { judge({1000, 5, 1}, {1000, 4}); }), "has room for 4 files only");
}

BOOST_AUTO_TEST_CASE(scratch_folders_are_known_by_name) {
  BOOST_TEST(path_on_scratch({"/home/me/saves", "/capstor/scratch/cscs/me/data.bin"}, "") ==
             "/capstor/scratch/cscs/me/data.bin");
  BOOST_TEST(path_on_scratch({"/flash/me/saves"}, "/flash/me") == "/flash/me/saves");
  BOOST_TEST(path_on_scratch({"/flash/me/saves"}, "/flash/other") == "");
  BOOST_TEST(path_on_scratch({"/home/me/from-scratch"}, "") == "");  // the name of the folder or file itself says nothing
}

BOOST_AUTO_TEST_CASE(the_best_interval_balances_saves_and_lost_work) {
  BOOST_TEST(optimal_interval_s(0.5, 3600) == 60.0);
  BOOST_TEST(optimal_interval_s(0, 3600) == 0.0);
  BOOST_TEST(optimal_interval_s(60, 100) == 100.0);  // not longer than what runs without a failure
}
