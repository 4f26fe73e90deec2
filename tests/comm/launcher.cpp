// Detects the launcher of a process from its environment, and checks the message if it belongs to another MPI.
#include <boost/test/unit_test.hpp>

#include <map>

#include "base/error.hpp"
#include "comm/launcher.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using fsdp::test::message_of;

namespace {

using Variables = std::map<std::string, const char*>;

Environment environment(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  };
}

LaunchedRanks launched(const Variables& variables) { return launched_ranks(environment(variables)); }

}  // namespace

BOOST_AUTO_TEST_CASE(each_launcher_says_how_many_ranks_it_started) {
  BOOST_TEST(launched({}).count == 1);
  BOOST_TEST(launched({{"OMPI_COMM_WORLD_SIZE", "4"}}).count == 4);
  BOOST_TEST(launched({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}).count == 2);
  BOOST_TEST(launched({{"SLURM_STEP_NUM_TASKS", "8"}}).count == 8);
  BOOST_TEST(launched({{"SLURM_STEP_NUM_TASKS", "8"}}).variable == "SLURM_STEP_NUM_TASKS");
  BOOST_TEST(launched({{"PMIX_RANK", "3"}}).count == 4);
  BOOST_TEST(launched({{"PMIX_RANK", "0"}}).count == 1);
  BOOST_TEST(launched({{"PMI_SIZE", "many"}}).count == 1);
}

BOOST_AUTO_TEST_CASE(one_rank_of_an_inner_launcher_is_one_rank) {
  // Open MPI starts its daemons on other nodes with srun; the ranks inherit that step's number of tasks.
  BOOST_TEST(launched({{"SLURM_STEP_NUM_TASKS", "3"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).count == 1);
  BOOST_TEST(launched({{"SLURM_STEP_NUM_TASKS", "3"}, {"PMI_SIZE", "1"}}).count == 1);
  BOOST_TEST(launched({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PTY_PORT", "40001"}}).count == 1);
}

BOOST_AUTO_TEST_CASE(launchers_have_names_and_number_their_ranks) {
  const auto name = [](const Variables& variables) { return launcher_name(environment(variables)); };
  BOOST_TEST(name({}) == "");
  BOOST_TEST(name({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}}) == "mpirun of Open MPI");
  BOOST_TEST(name({{"HYDI_CONTROL_FD", "7"}, {"PMI_SIZE", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}}) ==
             "mpirun of MPICH or Intel MPI");
  BOOST_TEST(name({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "2"}}) == "srun with PMI2");
  BOOST_TEST(name({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.1.0"}}) == "srun with PMIx");
  BOOST_TEST(name({{"SLURM_STEP_NUM_TASKS", "2"}}) == "srun without PMI");
  BOOST_TEST(name({{"PALS_RANKID", "1"}, {"PMI_SIZE", "2"}}) == "mpiexec of PALS");
  BOOST_TEST(name({{"FLUX_TASK_RANK", "1"}, {"PMI_SIZE", "2"}}) == "flux run");
  BOOST_TEST(launched_rank(environment({{"PMI_RANK", "3"}})) == 3);
  BOOST_TEST(launched_rank(environment({})) == 0);
}

BOOST_AUTO_TEST_CASE(another_launcher_is_refused_where_mpi_sees_one_rank) {
  const auto message = [](const LaunchedRanks& launched, int size, const std::string& library, const Variables& variables) {
    return message_of([&] { require_own_launcher(launched, size, library, environment(variables)); });
  };
  const Variables hydra = {{"PMI_SIZE", "2"}, {"HYDI_CONTROL_FD", "7"}}, open_mpi = {{"OMPI_COMM_WORLD_SIZE", "2"}};
  const LaunchedRanks two = launched(hydra);
  require_own_launcher(two, 2, "Open MPI v4.1.4", environment(hydra));
  require_own_launcher(two, 4, "Open MPI v4.1.4", environment(hydra));  // mpirun inside a job of another launcher
  require_own_launcher({}, 1, "Open MPI v4.1.4", environment({}));
  CHECK_CONTAINS(
      message(two, 1, "Open MPI v4.1.4, package: Debian", hydra),
      "(mpirun of MPICH or Intel MPI has started at least 2 ranks according to PMI_SIZE, but cannot connect those of "
      "Open MPI v4.1.4, this program's MPI); start the program with mpirun of Open MPI v4.1.4, or under Slurm with "
      "srun --mpi=pmix; for a job of one rank, unset PMI_SIZE");
  CHECK_CONTAINS(message(launched(open_mpi), 1, "MPICH 4.0.2", open_mpi),
                 "(mpirun of Open MPI has started at least 2 ranks according to OMPI_COMM_WORLD_SIZE, but cannot connect those "
                 "of MPICH 4.0.2, this program's MPI); start the program with mpirun of MPICH 4.0.2, or under Slurm with srun "
                 "--mpi=pmi2");
}

BOOST_AUTO_TEST_CASE(a_launcher_that_mpi_does_not_know_is_seen_before_mpi_starts) {
  const auto alone = [](const std::string& library, bool has_client, const Variables& variables) {
    return ranks_stay_alone(launched(variables), library, has_client, environment(variables));
  };
  const Variables none = {{"SLURM_STEP_NUM_TASKS", "2"}}, one = {{"SLURM_STEP_NUM_TASKS", "1"}},
                  pmi2 = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "2"}, {"PMI_FD", "11"}},
                  pmix = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.1.0"}, {"PMIX_RANK", "0"}},
                  mpirun = {{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
                  hydra = {{"PMI_SIZE", "2"}, {"PMI_FD", "6"}, {"HYDI_CONTROL_FD", "7"}};
  for (const bool has_client : {false, true}) {
    BOOST_TEST(alone("Open MPI v4.1.4", has_client, none));
    BOOST_TEST(alone("Open MPI v4.1.4", has_client, pmi2) == !has_client);
    BOOST_TEST(alone("Open MPI v4.1.4", has_client, hydra));
    BOOST_TEST(!alone("Open MPI v4.1.4", has_client, one));
    BOOST_TEST(!alone("Open MPI v4.1.4", has_client, pmix));
    BOOST_TEST(!alone("Open MPI v4.1.4", has_client, mpirun));
    for (const Variables& variables : {none, pmix, mpirun})
      BOOST_TEST(alone("MPICH 4.0.2", has_client, variables) == !has_client);
    BOOST_TEST(!alone("MPICH 4.0.2", has_client, one));
    BOOST_TEST(!alone("MPICH 4.0.2", has_client, pmi2));
    BOOST_TEST(!alone("MPICH 4.0.2", has_client, hydra));
  }
}

BOOST_AUTO_TEST_CASE(all_ranks_run_the_same_version) {
  const std::vector<std::string> hosts = {"a", "a", "b"};
  BOOST_CHECK_NO_THROW(require_one_program(hosts, {"0.1.0 (x)", "0.1.0 (x)", "0.1.0 (x)"}));
  CHECK_CONTAINS(message_of([&] {
                   require_one_program(hosts, {"0.1.0 (x)", "0.1.0 (x)", "0.1.0 (y)"});
                 }),
                 "rank 2 on b runs fsdp 0.1.0 (y), and rank 0 on a runs fsdp 0.1.0 (x)");
}
