// main() of a Boost.Test program that runs under mpirun (fsdp_add_test ... NP): include it in place of
// <boost/test/unit_test.hpp>, once. A failed check on any rank makes every rank exit with 1. A test case that ends early on one
// rank would leave the others in a collective: then the job is ended at once, after Boost has said why.
#pragma once

#include <cstdio>
#include <exception>
#include <memory>

#include <boost/test/tree/observer.hpp>
#include <boost/test/unit_test.hpp>

#include "comm/mpi_session.hpp"

namespace fsdp::test {

// Only in programs with a main() of their own, where a process is one rank.
inline std::unique_ptr<MpiSession> session_of_this_process;
inline std::unique_ptr<Communicator> world_of_this_process;

inline MpiSession& session() { return *session_of_this_process; }
/// All ranks of this test.
inline Communicator& world() { return *world_of_this_process; }

struct EndJobWithTestCase : boost::unit_test::test_observer {
  int priority() override {
    return 5;
  }  // after Boost's own observers, which print why; if it came first, no test would start on aarch64
  void test_unit_aborted(const boost::unit_test::test_unit&) override {
    if (world().size() > 1) session().abort_job(1);
  }
};

}  // namespace fsdp::test

int main(int argc, char** argv) {
  using namespace fsdp;
  try {
    test::session_of_this_process = std::make_unique<MpiSession>(argc, argv);
    test::world_of_this_process = test::session().world();
    static test::EndJobWithTestCase observer;
    boost::unit_test::framework::register_observer(observer);
    const int result = boost::unit_test::unit_test_main([] { return true; }, argc, argv);
    const bool passed = test::world().all(result == 0);
    test::world_of_this_process.reset();
    test::session_of_this_process.reset();
    return passed ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (test::session_of_this_process) test::session().abort_job(1);
    return 1;
  }
}
