// Mistakes in users' programs end whole jobs at once, with one message, with shared memory and with messages.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <map>
#include <regex>

#include "api/job_parts.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"

using namespace fsdp::test;

namespace {

const std::vector<std::string> ways = {"shm", "mpi"};

Outcome make(const std::string& mistake, const std::string& comm, int ranks = 3) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run(fresh_folder(), mpirun(ranks, "test_api_program", {mistake, comm}));
  // A rank that waits for another one would time out after 100 s.
  BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)), mistake << " took long");
  return outcome;
}

}  // namespace

// Ranks compare the codes of the functions that they call.
BOOST_AUTO_TEST_CASE(functions_have_codes_of_their_own) {
  const std::filesystem::path root = std::filesystem::path(FSDP_TEST_DATA).parent_path().parent_path();
  const std::string source = read_file(root / "lib/api/fully_sharded.cpp");
  std::map<std::int64_t, std::string> functions;
  const std::regex definition(R"(FullyShardedDataParallel::(\w+)\()");
  for (std::sregex_iterator match(source.begin(), source.end(), definition), end; match != end; ++match) {
    const std::string name = (*match)[1];
    const auto [found, is_new] = functions.emplace(fsdp::Job::Parts::code_of(name), name);
    BOOST_TEST(found->second == name);
    BOOST_TEST(found->first >= 8);
    BOOST_TEST(found->first < fsdp::Job::Parts::most_functions);
  }
  BOOST_TEST(functions.size() >= 16u);
  BOOST_TEST(!functions.contains(fsdp::Job::Parts::code_of("generate")));  // the name for ranks of decode()
}

BOOST_DATA_TEST_CASE(a_program_without_mistakes, ways, comm) {
  const Outcome outcome = make("none", comm);
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.times_said("trained") == 1u, outcome.output);
  BOOST_TEST(outcome.times_said("main() begins") == 3u, outcome.output);  // once on each rank
}

BOOST_DATA_TEST_CASE(a_layer_that_throws_on_one_rank, ways, comm) {
  for (const char* mistake : {"layer", "layer_by_itself"}) {
    const Outcome outcome = make(mistake, comm);
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.times_said("test_api_program: rank 1 on ") == 1u, outcome.output);
    BOOST_TEST(outcome.times_said("the table of this layer has no row 7") == 1u, outcome.output);
    BOOST_TEST(!outcome.says("trained"), outcome.output);
  }
}

BOOST_DATA_TEST_CASE(options_that_differ_between_ranks, ways, comm) {
  const Outcome outcome = make("options_by_itself", comm);
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(
      outcome.times_said("caught: the ranks have different options or models ('beta1 and beta2 (0.8,0.999)' here, 'beta1 "
                         "and beta2 (0.9,0.999)' on rank 0") == 1u,
      outcome.output);
}

BOOST_AUTO_TEST_CASE(ranks_that_exchange_data_in_other_ways) {
  const Outcome outcome = make("comm_by_itself", "auto");
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.times_said(
                 "caught: comm is 'mpi' here and 'auto' on rank 0 (all ranks must exchange data in the same way)") == 1u,
             outcome.output);
}

BOOST_AUTO_TEST_CASE(a_job_that_not_all_ranks_make) {
  const Outcome outcome = make("not_all", "auto");
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.times_said("not all of 3 ranks have connected") == 1u, outcome.output);
  BOOST_TEST(outcome.says("or raise timeout_s"), outcome.output);
}

BOOST_DATA_TEST_CASE(a_function_that_a_rank_does_not_call, ways, comm) {
  const Outcome absent = make("no_step", comm, 2), slow = make("slow_fill", comm, 2);
  BOOST_TEST(absent.code == 1, absent.output);
  BOOST_TEST(absent.says("has not arrived at the call of step() within 2"), absent.output);
  BOOST_TEST(slow.code == 1, slow.output);
  BOOST_TEST(slow.says("during step(): rank 1 on "), slow.output);
}

BOOST_AUTO_TEST_CASE(a_device_that_is_not_there) {
  ::setenv("FSDP_CUDA_LIBRARY", "/nowhere/libfsdp_cuda.so", 1);
  const Outcome outcome = make("device", "auto");
  BOOST_TEST(outcome.code == 2, outcome.output);
  BOOST_TEST(outcome.times_said("test_api_program: device cuda finds no GPU (") == 1u, outcome.output);
  BOOST_TEST(outcome.says("or give device cpu"), outcome.output);
}

BOOST_DATA_TEST_CASE(a_step_behind_mpi_finalize, ways, comm) {
  for (const int ranks : {1, 3}) {
    const Outcome outcome = make("after_mpi", comm, ranks);
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.says("MPI was finalized, so the ranks cannot communicate any more"), outcome.output);
  }
}
