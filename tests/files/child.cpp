// What may crash or never end is tried elsewhere first.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <new>
#include <stdexcept>
#include <vector>

#include <unistd.h>

#include "base/timer.hpp"
#include "files/child.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(work_that_returns_or_throws_has_come_to_its_end) {
  int changed = 0;
  BOOST_TEST(what_ends([&] { changed = 1; }) == "");
  BOOST_TEST(changed == 0);  // in a process of its own
  BOOST_TEST(what_ends([] { throw std::runtime_error("refused"); }) == "");
}

BOOST_AUTO_TEST_CASE(work_within_work_is_done_in_the_same_process) {
  const auto outer = [] {
    const pid_t self = getpid();
    pid_t inner = 0;
    const std::string end = what_ends([&] {
      inner = getpid();
      throw std::runtime_error("refused");
    });
    if (inner == self && end.empty()) raise(SIGTERM);  // says so
  };
  CHECK_CONTAINS(what_ends(outer), "signal 15");
  CHECK_CONTAINS(what_ends([] { what_ends([] { raise(SIGSEGV); }); }), "signal 11");
}

BOOST_AUTO_TEST_CASE(what_ends_it_is_told) {
  CHECK_CONTAINS(what_ends([] { raise(SIGSEGV); }), "signal 11, Segmentation fault");
  CHECK_CONTAINS(what_ends([] { raise(SIGABRT); }), "signal 6");
}

BOOST_AUTO_TEST_CASE(neither_time_nor_memory_are_without_bounds) {
  const Timer timer;
  std::atomic<unsigned> forever = 0;
  CHECK_CONTAINS(what_ends(
                     [&] {
                       for (;;) ++forever;
                     },
                     {.seconds = 1}),
                 "had not ended after 1.0 s of computing");
  CHECK_CONTAINS(what_ends([] { pause(); }, {.seconds = 0.1}), "had not ended after 600 ms");
  BOOST_TEST(timer.seconds() < 30);
  BOOST_TEST(what_ends(
                 [] {
                   try {
                     std::vector<char> large(std::size_t{1} << 30, 'x');
                   } catch (const std::bad_alloc&) {
                     raise(SIGTERM);  // says so
                   }
                 },
                 {.seconds = 10, .bytes = std::size_t{100} << 20})
                 .find("signal 15") != std::string::npos);
}
