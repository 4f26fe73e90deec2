// Exit codes of offline programs, and their version text.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "base/program.hpp"
#include "base/version.hpp"
#include "support/messages.hpp"

using namespace fsdp;

namespace {
int run(const std::function<int()>& body) {
  char name[] = "/somewhere/fsdp-x";
  char* argv[] = {name, nullptr};
  return run_program(1, argv, [&](int, char**) { return body(); });
}
}  // namespace

BOOST_AUTO_TEST_CASE(exit_codes) {
  BOOST_TEST(run([] { return 0; }) == 0);
  BOOST_TEST(run([] { return 75; }) == 75);
  BOOST_TEST(run([]() -> int { throw UserError("wrong"); }) == 2);
  BOOST_TEST(run([]() -> int { throw CallError("open", "no"); }) == 1);
  BOOST_TEST(run([]() -> int { throw InternalError("bug"); }) == 1);
  BOOST_TEST(run([]() -> int { throw std::bad_alloc(); }) == 1);
}

BOOST_AUTO_TEST_CASE(a_thread_that_cannot_be_started_says_what_to_raise) {
  CHECK_CONTAINS(message_of(std::system_error(EAGAIN, std::generic_category())), "ulimit -u");
  CHECK_CONTAINS(message_of(std::system_error(ENOENT, std::generic_category(), "x")), "x: No such file");
}

BOOST_AUTO_TEST_CASE(version) {
  const std::string text = version_text("fsdp-x", {{"a library", "1.2"}});
  BOOST_TEST(text.starts_with("fsdp-x " + version_string() + "\n"));
  CHECK_CONTAINS(text, "Boost");
  CHECK_CONTAINS(text, "  a library  1.2\n");
  // A commit or "unknown", never nothing.
  BOOST_TEST(!fsdp::test::contains(version_string(), "()"));
}
