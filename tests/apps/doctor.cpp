// fsdp-doctor: its judgements on measurements of other machines.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "fsdp-doctor/doctor.hpp"
#include "fsdp-doctor/gpus.hpp"
#include "fsdp-doctor/machine.hpp"
#include "fsdp-doctor/places.hpp"
#include "fsdp-doctor/start.hpp"
#include "fsdp-doctor/storage.hpp"
#include "fsdp-doctor/work.hpp"

using namespace fsdp;

namespace fsdp {
std::ostream& operator<<(std::ostream& out, Status status) { return out << name_of(status); }
}  // namespace fsdp

namespace {

using Names = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

void expect_finding(const Finding& finding, Status status, const Names& texts, const std::string& advice = "") {
  BOOST_TEST_CONTEXT(finding.text << " -> " << finding.advice) {
    BOOST_TEST(finding.status == status);
    for (const std::string& text : texts) BOOST_TEST(has(finding.text, text), text);
    BOOST_TEST(has(finding.advice, advice), advice);
    BOOST_TEST(finding.advice.empty() == (status == Status::ok));
  }
}

const std::string open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4",
                  mpich = "MPICH Version:\t4.0.2\nMPICH Release date: x";
const std::string plugins =
    "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n";
const Variables step = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}};

bool stay_alone(const Start& start, const Environment& get) {
  return ranks_stay_alone(start.launched, start.library, /*has_client=*/false, get);
}

Variables plus(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

}  // namespace

BOOST_AUTO_TEST_CASE(srun_without_pmix) {
  for (const Variables& variables : {step, plus(step, {{"PMI_SIZE", "4"}, {"PMI_FD", "11"}, {"PMI_RANK", "2"}})}) {
    const Start start = how_started(open_mpi, environment(variables));
    BOOST_TEST(start.library == "Open MPI v4.1.4");
    BOOST_TEST(stay_alone(start, environment(variables)));
    BOOST_TEST(launched_rank(environment(variables)) == 2);
    expect_finding(judge_alone(start, plugins), Status::failed, {"srun with", "has started 4 ranks"}, "srun --mpi=pmix");
    expect_finding(judge_alone(start, "MPI plugin types are...\n\tnone\n\tpmi2\n"), Status::failed, {"4 ranks"},
                   "mpirun of Open MPI v4.1.4");
  }
  const auto with_pmix =
      environment(plus(step, {{"PMIX_NAMESPACE", "slurm.pmix.2.0"}, {"PMIX_RANK", "2"}, {"PMIX_VERSION", "4.2.2"}}));
  const Start start = how_started(open_mpi, with_pmix);
  BOOST_TEST(!stay_alone(start, with_pmix));
  BOOST_TEST(start.launcher == "srun with PMIx 4.2.2");
  expect_finding(judge_mpi(start, {"a", "b"}, {2, 2}, {}), Status::ok,
                 {"Open MPI v4.1.4 connects 4 ranks on 2 nodes; started by srun with PMIx 4.2.2"});
  expect_finding(judge_mpi(start, {"a", "b", "c"}, {3, 3, 1}, {}), Status::warning, {"; b has 3, and c has 1"},
                 "--ntasks-per-node");
  // MPICH uses PMI2, and a single task of srun is no mistake.
  const auto with_pmi = environment(plus(step, {{"PMI_SIZE", "4"}}));
  BOOST_TEST(!stay_alone(how_started(mpich, with_pmi), with_pmi));
  const auto one_task = environment({{"SLURM_STEP_NUM_TASKS", "1"}});
  BOOST_TEST(!stay_alone(how_started(open_mpi, one_task), one_task));
  // The shell of srun --pty is a task of the step, but a command typed there is not.
  const auto terminal = environment(plus(step, {{"SLURM_PTY_PORT", "1"}}));
  BOOST_TEST(!stay_alone(how_started(open_mpi, terminal), terminal));
  BOOST_TEST(how_started(open_mpi, terminal).launcher == "");
}

BOOST_AUTO_TEST_CASE(launchers_of_other_mpis) {
  const auto hydra = environment({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  const Start start = how_started(open_mpi, hydra);
  BOOST_TEST(stay_alone(start, hydra));
  expect_finding(judge_alone(start, std::nullopt), Status::failed,
                 {"mpirun of MPICH or Intel MPI has started 2 ranks, and Open MPI v4.1.4 cannot"}, "-DMPI_CXX_COMPILER");
  const auto ours = environment({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "1"}, {"PMI_SIZE", "2"}});
  BOOST_TEST(!stay_alone(how_started(open_mpi, ours), ours));
  BOOST_TEST(how_started(open_mpi, ours).launcher == "mpirun of Open MPI");
  const auto theirs = environment({{"OMPI_COMM_WORLD_SIZE", "2"}});
  BOOST_TEST(stay_alone(how_started(mpich, theirs), theirs));

  // Before a job: whether mpirun belongs to this MPI.
  const Start alone = how_started(open_mpi, environment({}));
  expect_finding(judge_mpi(alone, {"a"}, {1}, "mpirun (Open MPI) 4.1.4\n\nReport bugs to"), Status::ok, {"one rank"});
  expect_finding(judge_mpi(alone, {"a"}, {1}, {}), Status::ok, {"no mpirun in the PATH"});
  expect_finding(judge_mpi(alone, {"a"}, {1}, "HYDRA build details:\n    Version: 4.0.2"), Status::warning,
                 {"another MPI (HYDRA build details:)"}, "first in the PATH");
  expect_finding(judge_mpi(alone, {"a"}, {1}, "mpirun (Open MPI) 5.0.1"), Status::warning, {"another version"},
                 "first in the PATH");
}

BOOST_AUTO_TEST_CASE(what_slurm_has_given) {
  const Start by_srun = how_started(open_mpi, environment(plus(step, {{"PMIX_NAMESPACE", "slurm.pmix.2.0"}}))),
              alone = how_started(open_mpi, environment({}));
  expect_finding(judge_slurm({"12", 2, 4, plugins}, by_srun, 4, 2), Status::ok,
                 {"job 12 with 2 nodes and 4 tasks; srun has PMIx"});
  expect_finding(judge_slurm({"12", 3, 4, plugins}, by_srun, 4, 2), Status::warning, {"ranks on 2 nodes only"}, "--nodes=3");
  expect_finding(judge_slurm({"12", 2, 4, plugins}, alone, 1, 1), Status::warning, {"no launcher has started"},
                 "srun --mpi=pmix");
  expect_finding(judge_slurm({"12", 2, 4, "none"}, alone, 1, 1), Status::warning, {"srun has no PMIx"}, "mpirun");
  expect_finding(judge_slurm({"12", 1, 1, plugins}, alone, 1, 1), Status::ok, {"job 12 with 1 node and 1 task"});
  expect_finding(judge_slurm({"12", 2, 4, plugins, true}, alone, 1, 1), Status::warning, {"SLURM_JOB_ID is 12", "is over"},
                 "unset");
  expect_finding(judge_slurm({"", 1, 1, {}}, alone, 1, 1), Status::ok, {"not a Slurm job"});
  expect_finding(judge_slurm({.other_job = "PBS job 7.server"}, alone, 1, 1), Status::ok,
                 {"not a Slurm job, but PBS job 7.server"});
  const Start on_cray = {{"PMI_SIZE", 4}, "srun with PMI2", "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)"};
  expect_finding(judge_slurm({"12", 2, 4, "MPI plugin types are...\n\tnone\n\tcray_shasta\n"}, on_cray, 4, 2), Status::ok,
                 {"srun has cray_shasta"});
}

BOOST_AUTO_TEST_CASE(processors) {
  expect_finding(judge_processors({"a", "b"}, {"avx2", "avx2"}, {"Zen", "Zen"}), Status::ok, {"Zen; avx2"});
  expect_finding(judge_processors({"a", "b", "c"}, {"avx2", "avx512", "avx2"}, {"Zen", "Xeon", "Zen"}), Status::warning,
                 {"Zen on a and c; Xeon on b; avx2 on a and c; avx512 on b"}, "--constraint");
}

BOOST_AUTO_TEST_CASE(threads_and_binding) {
  const auto judge = [](NodeThreads node, bool on_gpu = false) { return judge_threads({node}, on_gpu); };
  expect_finding(judge({"a", 2, 8, 8, 8}), Status::ok, {"8 threads of 2 ranks on 8 processors"});
  expect_finding(judge({"a", 2, 16, 8, 8}), Status::warning, {"oversubscribed: 16 threads of 2 ranks on 8 processors of a"},
                 "give each rank 4 threads (--threads 4");
  expect_finding(judge({"a", 4, 4, 2, 2}), Status::warning, {"oversubscribed"}, "start at most 2 ranks");
  // Both on one core of eight; each on one of its own; alone with one thread.
  expect_finding(judge({"a", 2, 2, 1, 8}), Status::warning, {"2 threads of 2 ranks on 1 processor of a", "the job may use 8"},
                 "--bind-to none");
  expect_finding(judge({"a", 2, 2, 2, 8}), Status::warning,
                 {"2 threads of 2 ranks on 8 processors of a: half of the cores, or more, are idle"}, "--cpus-per-task=4");
  expect_finding(judge({"a", 1, 1, 8, 8}), Status::warning, {"half of the cores, or more, are idle"}, "unset OMP_NUM_THREADS");
  expect_finding(judge({"a", 1, 1, 8, 8}, true), Status::ok, {"1 thread"});
  expect_finding(judge({"a", 1, 4, 8, 8}), Status::ok, {"4 threads"});  // a core often has two processors
  // One core of two; all cores, of which each has two processors; both processors of half of the cores.
  expect_finding(judge({"a", 1, 1, 1, 2}), Status::warning, {"1 thread of 1 rank on 2 processors of a: half of the cores"},
                 "none");
  expect_finding(judge({"a", 4, 4, 4, 8, 4, 4}), Status::ok, {"4 threads"});
  expect_finding(judge({"a", 4, 4, 4, 8, 2, 4}), Status::warning, {"half of the cores, or more, are idle"}, "--bind-to none");
  // The job has asked for two processors a task, and its step has one.
  expect_finding(judge({"a", 2, 2, 2, 4, 2, 4, 4}), Status::warning,
                 {"2 threads of 2 ranks on 2 processors of a, although the job has asked for 4"},
                 "give --cpus-per-task=2 to srun");
  expect_finding(judge({"a", 2, 4, 4, 4, 4, 4, 4}), Status::ok, {"4 threads"});
  expect_finding(judge_threads({{"a", 1, 4, 4, 4}, {"b", 2, 8, 4, 4}}, false), Status::warning,
                 {"8 threads of 2 ranks on 4 processors of b"}, "--threads 2");
}

BOOST_AUTO_TEST_CASE(limits) {
  const double mib = 1 << 20, gib = 1 << 30;
  expect_finding(judge_locked_memory({"a"}, {8 * mib}, {false}), Status::ok, {"at most 8.00 MiB", "no network here needs it"});
  expect_finding(judge_locked_memory({"a", "b"}, {unlimited, 8 * mib}, {true, true}), Status::warning,
                 {"unlimited on a; at most 8.00 MiB on b", "network of b"}, "LimitMEMLOCK");
  expect_finding(judge_locked_memory({"a"}, {unlimited}, {true}), Status::ok, {"unlimited"});
  expect_finding(judge_shared_memory({"a", "b"}, {gib, 2 * gib}, {8, 8}, false), Status::ok,
                 {"at least 1.00 GiB free in /dev/shm on each node"});
  expect_finding(judge_shared_memory({"a", "b"}, {16 * mib, gib}, {8, 8}, false), Status::warning,
                 {"takes up to 32.0 MiB on a"}, "--shm-size");
  expect_finding(judge_shared_memory({"a"}, {64 * mib}, {4}, true), Status::warning, {"MPI with NCCL takes up to 1.02 GiB"},
                 "--shm-size");
  expect_finding(judge_shared_memory({"a"}, {0}, {1}, false), Status::ok, {"0 B free"});
  expect_finding(judge_shared_memory({"a"}, {-1}, {2}, false), Status::warning, {"there is no /dev/shm"}, "/dev/shm");
  expect_finding(judge_clocks({"a", "b"}, {1e9, 1e9 + 0.002}, 0.004), Status::ok, {"less than 4 ms"});
  expect_finding(judge_clocks({"a", "b", "c"}, {1e9, 1e9 + 0.01, 1e9 - 90}, 0.004), Status::warning,
                 {"differ by 90.0 s: c is 90.0 s behind"}, "chrony");
}

BOOST_AUTO_TEST_CASE(save_folders) {
  expect_finding(judge_save_folder("/lustre/x", "lustre", {{"a"}, {"b"}}), Status::ok,
                 {"/lustre/x (lustre): all 2 nodes read and write it"});
  expect_finding(judge_save_folder("/tmp/x", "ext4", {{"a"}, {"b", "No such file or directory"}, {"c"}}), Status::failed,
                 {"files written by a cannot be read on b (No such file or directory)"}, "a file system that all nodes share");
  expect_finding(judge_save_folder("/nfs/x", "nfs4", {{"a"}, {"b", "", "Permission denied"}}), Status::failed,
                 {"cannot be written to on b (Permission denied)"}, "write permission");
  expect_finding(judge_save_folder("/nfs/x", "nfs4", {{"a"}, {"b", "", "", false}}), Status::failed, {"a cannot read the file"},
                 "write");
  expect_finding(judge_save_folder("/dev/shm/x", "tmpfs", {{"a"}}), Status::warning, {"memory"}, "on a disk");
  expect_finding(judge_hdf5("1.10.8", "1.10.8", {"a", "b"}, {"", ""}), Status::ok, {"by each node"});
  expect_finding(judge_hdf5("1.10.8", "1.14.3", {"a"}, {""}), Status::failed, {"built with HDF5 1.10.8, but loads 1.14.3"},
                 "build it again");
  expect_finding(judge_hdf5("1.10.8", "1.10.8", {"a", "b"}, {"", "no space"}), Status::failed, {"fails on b (no space)"},
                 "disk");
}

BOOST_AUTO_TEST_CASE(state_folders) {
  const auto node = [](const std::string& name, double both, const std::string& problem = "", const std::string& warning = "") {
    return StateFolder{.node = name,
                       .file_system = "xfs",
                       .problem = problem,
                       .warning = warning,
                       .free_bytes = 1 << 30,
                       .write = 4e9,
                       .read = 6e9,
                       .both = both};
  };
  expect_finding(judge_state_folder("/local", {node("a", 5e9)}), Status::ok,
                 {"/local (xfs): 1.00 GiB free; a file writes 4.00, reads 6.00 and both at once 5.00 GB/s"});
  expect_finding(
      judge_state_folder("/local", {node("a", 5e9), node("b", 4.9e9), node("c", 1e9)}), Status::warning,
      {"each node at least writes 4.00, reads 6.00 and both at once 1.00 GB/s", "c reaches 20 % of the others' median"},
      "--exclude=c");
  expect_finding(judge_state_folder("/nfs", {node("a", 1e8, "", "/nfs is NFS, and slow; choose a drive")}), Status::warning,
                 {"both at once 0.10 GB/s; /nfs is NFS, and slow"}, "choose a drive");
  expect_finding(judge_state_folder("/tmp", {node("a", 5e9), node("b", 0, "/tmp is in memory; choose a drive")}),
                 Status::failed, {"b: /tmp is in memory"}, "choose a drive");
}

BOOST_AUTO_TEST_CASE(gpus) {
  const RankGpus none{0, "no driver: libcuda.so.1: cannot open", "", ""};
  const auto gpu = [](std::size_t count, const std::string& place) { return RankGpus{count, "", "H100", place}; };
  expect_finding(judge_gpus({"a"}, {0, 0}, {none, none}, {}), Status::ok, {"no usable GPU (no driver"});
  expect_finding(judge_gpus({"a"}, {0}, {none}, {"/dev/nvidia0", ""}), Status::warning, {"although /dev/nvidia0 exists"},
                 "--nv");
  expect_finding(judge_gpus({"a"}, {0}, {none}, {"/dev/nvidia0", "550.54"}), Status::warning, {"driver 550.54"}, "nvidia-smi");
  expect_finding(judge_gpus({"a", "b"}, {0, 0, 1, 1}, {gpu(2, "1"), gpu(2, "2"), gpu(2, "1"), gpu(2, "2")}, {"", "550.54"}),
                 Status::ok, {"2 of H100; driver 550.54 on each node; one rank each"});
  expect_finding(judge_gpus({"a"}, {0, 0}, {gpu(1, "1"), gpu(1, "1")}, {}), Status::warning, {"ranks share GPUs on a"},
                 "one rank for each GPU");
  expect_finding(judge_gpus({"a"}, {0}, {gpu(4, "1")}, {}), Status::warning, {"some GPUs of a have no rank"},
                 "one rank for each GPU");
  expect_finding(judge_gpus({"a", "b"}, {0, 1}, {gpu(1, "1"), none}, {}), Status::failed, {"no GPU on b"}, "--device cpu");
  expect_finding(judge_nccl({"a", "b"}, {"2.28.9", "2.28.9"}, {"", ""}), Status::ok, {"NCCL 2.28.9"});
  expect_finding(judge_nccl({"a", "b"}, {"2.28.9", "2.20.5"}, {"", ""}), Status::failed, {"2.28.9 on a; 2.20.5 on b"},
                 "same NCCL");
  expect_finding(judge_nccl({"a"}, {""}, {"built without it"}), Status::warning, {"built without it"}, "NCCL");
}

BOOST_AUTO_TEST_CASE(tiny_training) {
  expect_finding(judge_training({5.5, 5.2, 4.9}, true, "4 ranks (MPI)"), Status::ok,
                 {"3 updates of a small model on 4 ranks (MPI): loss 5.500 to 4.900"});
  expect_finding(judge_training({5.5, 5.2}, false, ""), Status::failed, {"different losses"}, "fewer nodes");
  expect_finding(judge_training({5.5, 5.6}, true, ""), Status::failed, {"does not decrease"}, "wrong numbers");
  expect_finding(judge_training({5.5, std::nan("")}, true, ""), Status::failed, {"not finite"}, "wrong numbers");
}

BOOST_AUTO_TEST_CASE(slow_nodes) {
  const NodeSpeed good{"a", 1e11, "EPYC", 4, 0.98}, other{"b", 0.9e11, "EPYC", 4, 0.97};
  const auto judge = [&](NodeSpeed node, bool on_gpu = false) {
    return judge_compute({good, other, node}, DType::f32, on_gpu);
  };
  expect_finding(judge_compute({good}, DType::f32, false), Status::ok, {"a rank multiplies at 100 GFLOP/s (fp32, 4 threads)"});
  expect_finding(judge_compute({good, other}, DType::f32, false), Status::ok, {"at 90 GFLOP/s to 100 GFLOP/s"});
  expect_finding(
      judge({"c", 5e10, "EPYC", 2, 0.98}), Status::warning,
      {"c reaches 50 % of the others' median (50 GFLOP/s with 2 threads, which processors ran for 98 % of the time)"},
      "power or heat (turbostat), or leave it out (sbatch --exclude=c)");
  expect_finding(judge({"c", 9e10, "EPYC", 4, 0.5}), Status::warning, {"c reaches 46 %", "ran for 50 % of the time"},
                 "--exclusive");
  expect_finding(judge({"c", 4e10, "GTX", 4, 0.98}), Status::ok, {"at 40 GFLOP/s to 100 GFLOP/s"});  // another processor
  expect_finding(judge({"c", 4e10, "EPYC", 4, 1}, true), Status::warning, {"c reaches 41 %"}, "nvidia-smi");
  // All share their processors with others, so that chance decides about the best speed.
  expect_finding(judge_compute({{"a", 1e11, "EPYC", 2, 0.3}, {"b", 5e10, "EPYC", 2, 0.2}}, DType::f32, false), Status::ok,
                 {"at 50 GFLOP/s to 100 GFLOP/s"});
}

BOOST_AUTO_TEST_CASE(networks) {
  const auto judge = [](double a, double b, double c, bool uses_tcp = true) {
    return judge_network({{"a", a, uses_tcp}, {"b", b, uses_tcp}, {"c", c, uses_tcp}});
  };
  expect_finding(judge(1e9, 1.1e9, 1.1e9), Status::ok, {"at least 1 GB/s at once (by TCP)"});
  expect_finding(judge(1e10, 1.1e10, 1e10, false), Status::ok, {"(not by TCP)"});
  expect_finding(judge(1e9, 4e8, 1e9), Status::warning, {"b reaches 40 % of the others' median (400 MB/s instead of 1 GB/s)"},
                 "--exclude=b");
  expect_finding(judge(1.2e7, 1.2e7, 1.3e7), Status::warning, {"the network of a, b and c is slower than Gigabit Ethernet"},
                 "btl_tcp_if_include");
  expect_finding(judge_network({{"a", 1e9, true, true}, {"b", 1e9, true, false}}), Status::warning,
                 {"a can do RDMA, and MPI does not use it"}, "UCX");
  expect_finding(judge_network({{"a", 1e9, false, true}, {"b", 1e9, false, true}}), Status::ok, {"(not by TCP)"});

  const std::filesystem::path table = std::filesystem::temp_directory_path() / ("fsdp-dev-" + std::to_string(::getpid()));
  std::ofstream(table) << "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n"
                          "    lo: 9 9 9 9 9 9 9 9 9 9\n  eth0:1 2 3 4 5 6 7 8 1000 1\n veth1: 1 2 3 4 5 6 7 8 500 1\n";
  BOOST_TEST(bytes_sent_by_kernel(table) == 1500.0);
  std::filesystem::remove(table);
  BOOST_TEST(bytes_sent_by_kernel("/nowhere") == 0.0);
}

BOOST_AUTO_TEST_CASE(files) {
  expect_finding(judge_files(5e8, 1 << 26, 4), Status::ok,
                 {"files of 64.0 MiB written by 4 ranks at once: 500 MB/s", "takes 24.0 s to write"});
  expect_finding(judge_files(1e7, 1 << 20, 1), Status::warning, {"a file of 1.00 MiB", "takes 20:00 min to write"},
                 "faster file system");
}

BOOST_AUTO_TEST_CASE(reports) {
  Report report;
  report.title = "2 ranks on a and b";
  report.nodes = {{"a", 1}, {"b", 1}};
  report.lines = {
      {"MPI", {Status::ok, "connects them"}},
      {"threads", {Status::warning, std::string(90, 'x') + " and some words that stand in the next line", "use fewer"}},
      {"HDF5", {Status::failed, "none", "build it again"}}};
  const std::string text = text_of(report);
  BOOST_TEST(has(text, "2 ranks on a and b\n\n  ok       MPI            connects them\n  warning  threads        xxx"), text);
  BOOST_TEST(has(text, "\n                          words that") == false);
  BOOST_TEST(has(text,
                 "\n                          -> use fewer\n  failed   HDF5           none\n                          -> build "
                 "it again\n"),
             text);
  BOOST_TEST(has(text, "\n1 failed, 1 warning, 1 ok; 0.0 s\n"), text);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) BOOST_TEST((line.size() <= 110 || has(line, "xxx")), line);
  const auto json = nlohmann::json::parse(json_of(report));
  BOOST_TEST(json["ranks"] == 2);
  BOOST_TEST(json["failed"] == 1);
  BOOST_TEST(json["checks"][1]["status"] == "warning");
  BOOST_TEST(json["checks"][2]["advice"] == "build it again");
}

BOOST_AUTO_TEST_CASE(a_watchdog_barks_once_and_for_the_right_stage) {
  std::promise<std::string> stage;
  {
    Watchdog watchdog([&](const std::string& name, double) { stage.set_value(name); });
    watchdog.begin("quick", 0.05);
    watchdog.begin("for ever", 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    watchdog.begin("long enough", 60);
    watchdog.begin("stuck", 0.05);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // if the watchdog fired again it would throw
  }
  BOOST_TEST(stage.get_future().get() == "stuck");
}

BOOST_AUTO_TEST_CASE(facts_of_ranks_meet) {
  struct Facts {
    Names texts;
    std::vector<double> numbers, sums;
    std::vector<int> leaders, node_of;
    bool is_leader = false;
  };
  const DoctorOptions options;
  const Start start;
  std::vector<Facts> all(4);
  run_ranks(
      4,
      [&](Communicator& world) {
        const int r = world.rank();
        const DoctorJob job(options, start, [&](const CommOptions&) { return world.split(0, r); });
        all[static_cast<std::size_t>(r)] = {
            world.gather(std::string(static_cast<std::size_t>(7 + r), static_cast<char>('a' + r))),
            world.gather(0.5 * r),
            job.sums_of_nodes(r + 1),
            job.leaders,
            job.node_of,
            job.is_leader()};
      },
      2);
  for (std::size_t r = 0; r < 4; ++r) {
    const auto elements = boost::test_tools::per_element();
    BOOST_TEST(all[r].texts == (Names{"aaaaaaa", "bbbbbbbb", "ccccccccc", "dddddddddd"}), elements);
    BOOST_TEST(all[r].numbers == (std::vector<double>{0, 0.5, 1, 1.5}), elements);
    BOOST_TEST(all[r].leaders == (std::vector<int>{0, 2}), elements);
    BOOST_TEST(all[r].node_of == (std::vector<int>{0, 0, 1, 1}), elements);
    BOOST_TEST(all[r].is_leader == (r % 2 == 0));
    BOOST_TEST(all[r].sums == (std::vector<double>{3, 7}), elements);
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_left_in_the_save_folder) {
  namespace fs = std::filesystem;
  const fs::path base = fs::temp_directory_path() / ("fsdp-doctor-test-" + std::to_string(getpid()));
  fs::remove_all(base);
  {
    const ProbeFolder probe(base / "new" / "checkpoints");
    std::ofstream(probe.path() / "file") << "x";
    BOOST_TEST(fs::is_directory(base / "new" / "checkpoints"));
  }
  BOOST_TEST(!fs::exists(base / "new" / "checkpoints"));
  fs::create_directories(base / "old");
  std::ofstream(base / "old" / "kept") << "x";
  { const ProbeFolder probe(base / "old"); }
  BOOST_TEST(std::distance(fs::directory_iterator(base / "old"), fs::directory_iterator()) == 1);
  BOOST_CHECK_THROW(ProbeFolder(base / "old" / "kept"), UserError);
  fs::remove_all(base);
  BOOST_TEST(file_system_of("/proc") == "proc");
}

BOOST_AUTO_TEST_CASE(places_of_ranks_and_gpus) {
  const auto judge = [](const std::vector<RankPlace>& places) { return judge_places({"node1"}, {0, 0}, places); };
  expect_finding(judge({{0, "0000:03:00", 0, "cxi0"}, {1, "0000:41:00", 1, "cxi1"}}), Status::ok,
                 {"rank 0: GPU 0000:03:00 on NUMA node 0 with cxi0; rank 1", "bound to the NUMA nodes of their GPUs"});
  expect_finding(judge({{-1, "0000:03:00", 0, ""}, {-1, "0000:41:00", 1, ""}}), Status::ok, {"not bound to NUMA nodes"});
  expect_finding(judge({{-1, "0000:03:00", -1, ""}, {-1, "0000:41:00", -1, ""}}), Status::ok, {"rank 1: GPU 0000:41:00"});
  expect_finding(judge({{0, "0000:41:00", 1, ""}, {1, "0000:03:00", 0, ""}}), Status::warning,
                 {"rank 0 on node1 is on NUMA node 0, and its GPU 0000:41:00 on NUMA node 1 (1 more"},
                 "srun --cpu-bind=map_ldom:1,0,");
}

BOOST_AUTO_TEST_CASE(networks_of_nccl) {
  const std::string libfabric = "libfabric (aws-ofi-nccl 1.6.0, cxi)";
  expect_finding(
      judge_nccl_network({"a", "b"}, libfabric, {{80e9, 100e9, "4 x 25 GB/s", ""}, {80e9, 100e9, "4 x 25 GB/s", ""}}),
      Status::ok, {"libfabric (aws-ofi-nccl 1.6.0, cxi): a node sends at least 80 GB/s; the links of a node have 4 x"});
  expect_finding(judge_nccl_network({"a", "b"}, libfabric, {{20e9, 100e9, "4 x 25 GB/s", ""}, {80e9, 100e9, "", ""}}),
                 Status::warning, {"a is below half of that"}, "--transports");
  expect_finding(
      judge_nccl_network({"a", "b"}, "TCP (hsn0)", {{3e9, 100e9, "4 x 25 GB/s", "load it"}, {3e9, 100e9, "", "load it"}}),
      Status::failed, {"TCP (hsn0): 3 GB/s, although a has faster links (4 x 25 GB/s)"}, "load it");
  expect_finding(judge_nccl_network({"a", "b"}, "", {{3e9, 0, "", ""}, {3e9, 0, "", ""}}), Status::ok,
                 {"NCCL does not name", "the rate of the links is unknown"});
}
