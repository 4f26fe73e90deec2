// Children of a process that starts jobs: their output, their end, and that none of their processes outlives them.
#include <boost/test/unit_test.hpp>

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "base/error.hpp"
#include "job/launch.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

ChildEnd run_shell(const std::string& text, double limit_s = 30) {
  return run_child({.words = {"sh", "-c", text}, .limit_s = limit_s});
}

bool lives(const std::string& pid) { return ::kill(std::atoi(pid.c_str()), 0) == 0; }

Allocation allocation_of(const std::map<std::string, std::string>& variables, const std::string& library = "Open MPI v4.1.4",
                         const SchedulerAnswers& answers = {}, const std::string& words = "") {
  return find_allocation(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      library, answers, words);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_child_ends_and_its_output_is_read) {
  const ChildEnd end = run_shell("echo one; echo two >&2; cat; exit 3");
  BOOST_TEST(end.out == "one\n");
  BOOST_TEST(end.err == "two\n");
  BOOST_TEST(end.exit_code == 3);
  BOOST_TEST(!end.timed_out);
  BOOST_TEST(run_shell("kill -9 $$").exit_code == 128 + SIGKILL);
  BOOST_TEST(run_child({.words = {"no-such-program-of-this-name"}}).exit_code == 127);
  BOOST_TEST(run_shell("head -c 1000000 /dev/zero").out.size() == 1000000u);
}

BOOST_AUTO_TEST_CASE(variables_are_set_and_removed) {
  const ChildEnd end = run_child({.words = {"sh", "-c", "echo $FIRST,${HOME-none},$PATH"},
                                  .environment = {{"FIRST", "a 'b'"}, {"HOME", std::nullopt}, {"PATH", "/usr/bin:/bin"}}});
  BOOST_TEST(end.out == "a 'b',none,/usr/bin:/bin\n");
}

BOOST_AUTO_TEST_CASE(no_process_is_left) {
  // A process that leaves its session, and whose parent ends, is killed when the child ends.
  const ChildEnd ended = run_shell("setsid sleep 60 >/dev/null 2>&1 & echo $!");
  BOOST_TEST(ended.seconds < 20);
  BOOST_TEST(!lives(ended.out));
  // The same for processes that ignore SIGTERM, at the limit.
  const ChildEnd hung =
      run_shell("trap '' TERM; (trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60') & echo $!; sleep 60", 0.2);
  BOOST_TEST(hung.timed_out);
  BOOST_TEST(hung.seconds < 20);
  BOOST_TEST(!lives(hung.out));
  // A child that obeys SIGTERM ends at once.
  const ChildEnd obedient = run_shell("exec sleep 60", 0.2);
  BOOST_TEST(obedient.timed_out);
  BOOST_TEST(obedient.exit_code == 128 + SIGTERM);
  BOOST_TEST(obedient.seconds < 2);
}

BOOST_AUTO_TEST_CASE(a_signal_ends_the_child_first) {
  sigset_t before;
  const sigset_t stops = stop_signals();
  ::sigprocmask(SIG_BLOCK, &stops, &before);  // as the caller of run_child() may do
  ::kill(::getpid(), SIGHUP);
  const ChildEnd end = run_shell("exec sleep 60");
  BOOST_TEST(end.timed_out);
  BOOST_TEST(end.seconds < 20);
  BOOST_TEST(stop_is_requested());
  int signal = 0;
  ::sigwait(&stops, &signal);
  BOOST_TEST(signal == SIGHUP);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

BOOST_AUTO_TEST_CASE(ranks_are_started_as_the_scheduler_does) {
  const auto words = [](const Allocation& allocation, RankLayout layout) {
    return joined(launch_words(allocation, layout, 9.5, {"fsdp-bench", "step"}));
  };
  const Allocation laptop = allocation_of({});
  BOOST_TEST(laptop.scheduler == "");
  BOOST_TEST(words(laptop, {1, 4}) ==
             "mpirun -np 4 --map-by ppr:4:node --oversubscribe --bind-to none timeout --signal=KILL 10 fsdp-bench step");
  const std::string list = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n";
  const Allocation slurm = allocation_of(
      {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "4"}, {"SLURM_NTASKS_PER_NODE", "8"}, {"SLURM_CPUS_PER_TASK", "6"}},
      "Open MPI v4.1.4", {.srun_mpi = list});
  BOOST_TEST(slurm.nodes == 4);
  BOOST_TEST(slurm.per_node == 8);
  BOOST_TEST(words(slurm, {2, 8}) ==
             "srun --mpi=pmix --nodes=2 --ntasks=16 --ntasks-per-node=8 --overlap --kill-on-bad-exit=1 --wait=30 "
             "--cpus-per-task=6 timeout --signal=KILL 10 fsdp-bench step");
  BOOST_TEST(words(allocation_of({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "1"}}, "MPICH", {.srun_mpi = list}), {1, 2})
                 .starts_with("srun --mpi=pmi2 "));
  BOOST_TEST(words(allocation_of({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "1"}}, "CRAY MPICH",
                                 {.srun_mpi = "cray_shasta none"}),
                   {1, 2})
                 .starts_with("srun --mpi=cray_shasta "));
  BOOST_TEST(words(allocation_of({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "1"}}), {1, 2})
                 .starts_with("mpirun -np 2 "));  // srun lists no plugin

  const TemporaryFolder folder;
  const std::string hosts = (folder.path() / "hosts").string();
  std::ofstream(hosts) << "x3001\nx3001\nx3002\nx3002\n";
  const Allocation pbs = allocation_of({{"PBS_JOBID", "9"}, {"PBS_NODEFILE", hosts}}, "CRAY MPICH");
  BOOST_TEST(pbs.nodes == 2);
  BOOST_TEST(pbs.per_node == 2);  // two lines for each node
  BOOST_TEST(words(pbs, {2, 4}).starts_with("mpiexec -n 8 --ppn 4 --hostfile " + hosts + " timeout "));
  const Allocation lsf = allocation_of({{"LSB_JOBID", "9"}, {"LSB_DJOB_HOSTFILE", hosts}});
  BOOST_TEST(
      words(lsf, {2, 4}).starts_with("mpirun -np 8 --hostfile " + hosts + " --map-by ppr:4:node --bind-to none timeout "));
  BOOST_TEST(message_of<UserError>([&] {
               allocation_of({{"PBS_JOBID", "9"}, {"PBS_NODEFILE", "/no/such"}});
             }) == "PBS_NODEFILE, /no/such, has no nodes; start this program in a batch job of PBS");
  BOOST_TEST(message_of<UserError>([&] {
               allocation_of({{"LSB_JOBID", "9"}});
             }) == "LSB_DJOB_HOSTFILE has no nodes; start this program in a batch job of LSF");
  BOOST_TEST(
      message_of<UserError>([&] {
        allocation_of({{"FLUX_ENCLOSING_ID", "f1"}}, "Open MPI v4.1.4", {.flux_size = "flux: no"});
      }) ==
      "the number of nodes of this Flux job is unknown (what flux getattr size prints is no number); start this in a job of "
      "Flux");
  const Allocation flux = allocation_of({{"FLUX_ENCLOSING_ID", "f1"}}, "Open MPI v4.1.4", {.flux_size = "3\n"});
  BOOST_TEST(flux.nodes == 3);
  BOOST_TEST(words(flux, {3, 2}).starts_with("flux run --nodes=3 --ntasks=6 "));
  BOOST_TEST(words(allocation_of({}, "Open MPI v4.1.4", {}, "ssh-all -x {nodes} -y {per-node}"), {3, 2})
                 .starts_with("ssh-all -x 3 -y 2 timeout "));
}

BOOST_AUTO_TEST_CASE(why_a_child_failed) {
  const auto error = [](const std::string& err, int code = 1) {
    return error_in({.exit_code = code, .out = "", .err = err}, "fsdp-bench");
  };
  BOOST_TEST(error("[n1] warning\n[1] fsdp-bench: rank 1 on n1: nothing fits\nmpirun has exited\n") ==
             "rank 1 on n1: nothing fits");
  BOOST_TEST(error("-----\nmpirun has detected an attempt to run as root.\n\nWe advise against it.\n-----\n") ==
             "mpirun has detected an attempt to run as root.");
  BOOST_TEST(error("PML ucx cannot be selected\nsrun: error: node2: tasks 2-3: Killed\n") == "PML ucx cannot be selected");
  BOOST_TEST(error("srun: error: node2: tasks 2-3: Killed\n") == "srun: error: node2: tasks 2-3: Killed");
  BOOST_TEST(error("", 127) == "exit code 127");
  CHECK_CONTAINS(run_child({.words = {"no-such-program-of-this-name"}}).err,
                 "no-such-program-of-this-name cannot be started (No such file");
  BOOST_TEST(has_hung({.exit_code = 137, .out = "", .err = "", .seconds = 61}, 60));
  BOOST_TEST(!has_hung({.exit_code = 0, .out = "", .err = "", .seconds = 61}, 60));
}

BOOST_AUTO_TEST_CASE(layouts) {
  const auto layout = [](const Allocation& allocation, int nodes, int per_node, int gpus) {
    const RankLayout chosen = choose_layout(allocation, nodes, per_node, gpus);
    return std::pair(chosen.nodes, chosen.per_node);
  };
  BOOST_TEST((layout({}, 0, 0, 0) == std::pair(1, 2)));
  BOOST_TEST((layout({}, 0, 0, 4) == std::pair(1, 4)));
  BOOST_TEST((layout({"Slurm", 8, 4}, 0, 0, 1) == std::pair(8, 4)));
  BOOST_TEST((layout({"Slurm", 8, 4}, 2, 3, 1) == std::pair(2, 3)));
  BOOST_TEST((layout({"LSF", 8}, 0, 0, 6) == std::pair(8, 6)));
  BOOST_TEST(message_of<UserError>([&] {
               layout({"LSF", 8}, 0, 0, 0);
             }) == "the LSF job does not say how many ranks a node gets; give --ranks-per-node");
  BOOST_TEST(message_of<UserError>([&] {
               layout({"PBS", 2, 4}, 3, 0, 0);
             }) == "--nodes 3 is more than the PBS job (2) has; start this in a larger job, or give fewer nodes");
}

BOOST_AUTO_TEST_CASE(what_cannot_start_ranks_is_refused) {
  BOOST_TEST(message_of<UserError>([] {
               allocation_of({{"OMPI_COMM_WORLD_SIZE", "2"}});
             }) ==
             "this program was started by mpirun of Open MPI, but starts the ranks itself; start it once, in the job, without "
             "mpirun");
  CHECK_CONTAINS(message_of<UserError>([] { allocation_of({}, "Open MPI v4.1.4", {}, "mpirun '{ranks}"); }), "has a quote");
  BOOST_TEST(message_of<UserError>([] { allocation_of({}, "Open MPI v4.1.4", {}, "mpiexec -n 4"); }) ==
             "--launcher 'mpiexec -n 4' does not say how many ranks it starts (it needs {ranks}, or {nodes} and {per-node}); "
             "write for example --launcher 'mpiexec -n {ranks} --ppn {per-node}'");
}
