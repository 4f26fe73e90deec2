// Functions that query the system.
#include <boost/test/unit_test.hpp>

#include <thread>

#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "base/system.hpp"
#include "base/timer.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(another_program_answers) {
  const auto answer = ask_program({"sh", "-c", "echo one; echo two >&2; cat; exit 3"}, 30);
  BOOST_REQUIRE(answer.has_value());
  BOOST_TEST(answer->text == "one\ntwo\n");
  BOOST_TEST(answer->exit_code == 3);
  const auto words = ask_program({"printf", "%s", "a 'b' $HOME"}, 30);
  BOOST_REQUIRE(words.has_value());
  BOOST_TEST(words->text == "a 'b' $HOME");
}

BOOST_AUTO_TEST_CASE(a_program_that_gives_no_answer) {
  BOOST_TEST(!ask_program({"no-such-program-of-this-name"}, 30).has_value());
  BOOST_TEST(!ask_program({"sh", "-c", "kill -9 $$"}, 30).has_value());
  const Timer timer;
  BOOST_TEST(!ask_program({"sleep", "60"}, 0.2).has_value());
  // A wrapper script does not leave its child.
  const TemporaryFolder folder;
  const std::string file = (folder / "pid").string();
  BOOST_TEST(!ask_program({"sh", "-c", "trap '' TERM; sleep 60 & echo $! >" + file + "; wait"}, 0.3).has_value());
  int pid = 0;
  std::ifstream(file) >> pid;
  BOOST_TEST_REQUIRE(pid > 0);
  for (int i = 0; i < 100 && ::kill(pid, 0) == 0; ++i) ::usleep(20000);
  BOOST_TEST(::kill(pid, 0) != 0);
  BOOST_TEST(!ask_program({"sh", "-c", "while :; do echo more; done"}, 0.2).has_value());
  BOOST_TEST(timer.seconds() < 30);
}

BOOST_AUTO_TEST_CASE(a_wait_counts_the_time_in_which_it_looks) {
  using namespace std::chrono_literals;
  WaitTimer waited;
  const Timer timer;
  std::this_thread::sleep_for(1500ms);  // as if the process had been suspended
  const double first = waited.seconds();
  BOOST_TEST(first <= 1.0);
  BOOST_TEST(first > 0.9);
  double now = first;
  const double before = timer.seconds();
  while (timer.seconds() < before + 0.2) now = waited.seconds();
  BOOST_TEST(now > first + 0.15);
  BOOST_TEST(now <= timer.seconds());
}
