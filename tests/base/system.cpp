// What the system is asked.
#define BOOST_TEST_MODULE base.system
#include <boost/test/unit_test.hpp>

#include "base/system.hpp"
#include "base/timer.hpp"

using namespace fsdp;

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
  BOOST_TEST(!ask_program({"sh", "-c", "while :; do echo more; done"}, 0.2).has_value());
  BOOST_TEST(timer.seconds() < 30);
}
