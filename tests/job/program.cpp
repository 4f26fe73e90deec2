// agree(): a failure of some ranks becomes the same error of all.
#include <boost/test/unit_test.hpp>

#include <atomic>

#include "base/format.hpp"
#include "comm/threads/threads.hpp"
#include "job/program.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(success_is_silent) {
  for (const int ranks : {1, 3}) run_ranks(ranks, [](Communicator& comm) { agree(comm, [] {}); });
}

BOOST_AUTO_TEST_CASE(one_failure_is_everyones_error) {
  std::atomic<int> checked{0};
  run_ranks(5, [&](Communicator& comm) {
    try {
      agree(comm, [&] {
        if (comm.rank() == 2 || comm.rank() == 4) throw UserError(format("no file on {}", comm.rank()));
      });
    } catch (const CollectiveError& error) {
      if (error.what() == std::string("no file on 2") && error.speaker == 2 && !error.all && error.exit_code == 2) ++checked;
    }
    comm.barrier();  // the ranks are still synchronous
  });
  BOOST_TEST(checked == 5);
}

BOOST_AUTO_TEST_CASE(a_failure_of_all_is_told_once_and_a_failed_call_is_not_a_users_mistake) {
  std::atomic<int> checked{0};
  run_ranks(3, [&](Communicator& comm) {
    try {
      agree(comm, [] { throw CallError("read", "disk broken"); });
    } catch (const CollectiveError& error) {
      if (error.speaker == 0 && error.all && error.exit_code == 1) ++checked;
    }
  });
  BOOST_TEST(checked == 3);
}
