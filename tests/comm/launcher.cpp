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

BOOST_AUTO_TEST_CASE(another_launcher_is_refused_where_mpi_sees_one_rank) {
  const LaunchedRanks two = launched({{"PMI_SIZE", "2"}});
  require_own_launcher(two, 2, "Open MPI v4.1.4");
  require_own_launcher(two, 4, "Open MPI v4.1.4");  // mpirun inside a job of another launcher
  require_own_launcher({}, 1, "Open MPI v4.1.4");
  CHECK_CONTAINS(message_of([&] { require_own_launcher(two, 1, "Open MPI v4.1.4"); }),
                 "has started at least 2 ranks according to PMI_SIZE, but this program's MPI, Open MPI v4.1.4, sees one");
}

BOOST_AUTO_TEST_CASE(srun_without_a_plugin_that_mpi_knows_is_seen_before_mpi_starts) {
  const auto alone = [](const std::string& library, bool knows_pmi, const Variables& variables) {
    return ranks_stay_alone(launched(variables), library, knows_pmi, environment(variables));
  };
  const Variables none = {{"SLURM_STEP_NUM_TASKS", "2"}}, one = {{"SLURM_STEP_NUM_TASKS", "1"}},
                  pmi2 = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "2"}, {"PMI_FD", "11"}},
                  pmix = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.1.0"}, {"PMIX_RANK", "0"}},
                  mpirun = {{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  for (const bool knows_pmi : {false, true}) {
    BOOST_TEST(alone("Open MPI v4.1.4", knows_pmi, none));
    BOOST_TEST(alone("Open MPI v4.1.4", knows_pmi, pmi2) == !knows_pmi);
    BOOST_TEST(!alone("Open MPI v4.1.4", knows_pmi, one));
    BOOST_TEST(!alone("Open MPI v4.1.4", knows_pmi, pmix));
    BOOST_TEST(!alone("Open MPI v4.1.4", knows_pmi, mpirun));
  }
  BOOST_TEST(!alone("MPICH Version: 4.0.2", true, pmi2));
  BOOST_TEST(alone("MPICH Version: 4.0.2", true, none));
}
