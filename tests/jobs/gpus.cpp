// Jobs with one GPU per rank, on the doubles of CUDA and NCCL (tests/cuda_double): their output, their bits, and how
// they end after a rank is lost. tools/gpu-check runs the cases with lost ranks on real GPUs, too.
#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "jobs/job.hpp"
#include "support/golden.hpp"
#include "support/gpu.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// The number of ranks in jobs that lose one.
int ranks_of_lost_jobs() { return ranks_of_nccl(wants_real_gpu() ? 8 : 3); }

/// With this many layers, an update has more launches than CUDA queues before it blocks the host.
const std::string deep = "--decoder-layers 32 ";

/// The options of a run: `more`, and others unless `more` has them. On a real GPU the model is wider, so that launches wait in
/// the queue; on the double it would take too long.
std::vector<std::string> options(const std::string& name, const std::string& more) {
  const bool wide = wants_real_gpu() && !std::getenv("FSDP_CUDA_DOUBLE_DEVICES");
  std::string all = (golden_folder("gpt2-tied") / "train.bin").string() +
                    " --arch gpt2 --vocab-size 211 --lr 1e-3 --clip-norm 1 --log-interval 1 --threads 1 --log-file " + name +
                    ".jsonl --save-dir " + name + " " + more;
  for (const auto& [option, value] :
       {std::pair("--decoder-layers", "2"), std::pair("--decoder-embed-dim", wide ? "1024" : "32"),
        std::pair("--decoder-attention-heads", wide ? "16" : "4"), std::pair("--tokens-per-sample", "16"),
        std::pair("--batch-size", "1"), std::pair("--device", "cuda")})
    if (more.find(option) == more.npos) all += format(" {} {}", option, value);
  return split(all);
}

/// Runs on `devices` devices of the double, or on real GPUs. Only the last rank gets `environment`. With FSDP_TEST_AS_NODES,
/// NCCL takes each rank for a node.
Outcome train(const fs::path& folder, int np, int devices, const std::string& name, const std::string& more,
              const std::function<void(pid_t)>& meanwhile = {}, const std::string& environment = {}) {
  if (!wants_real_gpu()) {
    ::setenv("FSDP_CUDA_LIBRARY", FSDP_CUDA_ON_DOUBLE, 0);  // cuda_double.mutations sets another one
    ::setenv("FSDP_CUDA_DOUBLE_DEVICES", std::to_string(devices).c_str(), 1);
  }
  const std::string of_last = "if [ $OMPI_COMM_WORLD_RANK = " + std::to_string(np - 1) + " ]; then export " +
                              (environment.empty() ? "NOTHING=" : environment) + "; fi; ";
  const std::string as_nodes = std::getenv("FSDP_TEST_AS_NODES") ? "export NCCL_HOSTID=node-$OMPI_COMM_WORLD_RANK; " : "";
  const std::string own_gpu =
      std::getenv("FSDP_TEST_OWN_GPU") ? "export FSDP_CUDA_DOUBLE_FIRST=$OMPI_COMM_WORLD_LOCAL_RANK; " : "";
  return run(folder,
             mpirun(np, "fsdp-train", options(name, more),
                    {"sh", "-c", as_nodes + own_gpu + of_last + "echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec \"$@\"", "sh"}),
             meanwhile);
}

std::vector<double> losses(const fs::path& folder, const std::string& name) {
  std::vector<double> all;
  for (const json& line : metrics(folder / (name + ".jsonl"), "train")) all.push_back(line["loss"]);
  return all;
}

/// Checks that no process of the job lives, not even a stopped one: it would keep its GPU.
void require_ended(const fs::path& folder, int np) {
  for (int rank = 0; rank < np; ++rank) {
    pid_t process = 0;
    std::ifstream(folder / ("pid." + std::to_string(rank))) >> process;
    BOOST_REQUIRE(process > 0);
    const auto has_ended = [process] { return ::kill(process, 0) != 0; };
    wait_until(has_ended);
    BOOST_TEST(has_ended());
  }
}

/// Sends a signal to rank 1 when the run has done a few updates.
std::function<void(pid_t)> signal_to_rank_1(const fs::path& folder, const std::string& name, int signal) {
  return [=](pid_t) {
    wait_until([&] { return losses(folder, name).size() >= 3; });
    pid_t rank_1 = 0;
    std::ifstream(folder / "pid.1") >> rank_1;
    BOOST_REQUIRE(rank_1 > 0);
    ::kill(rank_1, signal);
  };
}

}  // namespace

BOOST_AUTO_TEST_CASE(canonical_sums_have_the_bits_of_every_other_way) {
  const auto folder = fresh_folder();
  for (const int np : {2, 4}) {
    if (np > ranks_of_nccl(4)) continue;
    const std::string ranks = std::to_string(np) + " ";
    const Outcome nccl = train(folder, np, 4, "nccl" + std::to_string(np), "--max-update 4 --comm nccl");
    BOOST_TEST_REQUIRE(nccl.code == 0, nccl.output);
    BOOST_TEST(nccl.says("collectives of GPUs: NCCL 2."), nccl.output);
    BOOST_TEST(nccl.says(", sums in canonical order"), nccl.output);
    const Outcome automatic = train(folder, np, 4, "auto" + std::to_string(np), "--max-update 4 --sum-order library");
    BOOST_TEST_REQUIRE(automatic.code == 0, automatic.output);
    BOOST_TEST(automatic.says(", sums in the library's order"), automatic.output);
    const Outcome shared = train(folder, np, 1, "shared" + std::to_string(np),
                                 std::string("--max-update 4") + (wants_real_gpu() ? " --comm mpi" : ""));
    BOOST_TEST_REQUIRE(shared.code == 0, shared.output);
    BOOST_TEST(shared.says("collectives of GPUs: through host memory (" +
                           std::string(wants_real_gpu() ? "as requested" : "ranks 0 and 1 share a GPU")),
               shared.output);
    const auto by_nccl = losses(folder, "nccl" + std::to_string(np)), by_host = losses(folder, "shared" + std::to_string(np)),
               by_library = losses(folder, "auto" + std::to_string(np));
    BOOST_TEST_REQUIRE(by_nccl.size() == 4u);
    BOOST_TEST(by_nccl == by_host, ranks << "ranks");
    BOOST_TEST_REQUIRE(by_library.size() == 4u);
    for (std::size_t u = 0; u < by_nccl.size(); ++u) BOOST_TEST(std::abs(by_nccl[u] - by_library[u]) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(each_rank_may_see_only_its_own_gpu) {
  if (wants_real_gpu()) return;
  // As with srun --gpus-per-task=1: each rank sees one GPU, another one than the other ranks.
  const auto folder = fresh_folder();
  const Outcome all = train(folder, 3, 3, "all", "--max-update 3 --comm nccl");
  BOOST_TEST_REQUIRE(all.code == 0, all.output);
  ::setenv("FSDP_TEST_OWN_GPU", "1", 1);
  const Outcome own = train(folder, 3, 1, "own", "--max-update 3 --comm nccl");
  ::unsetenv("FSDP_TEST_OWN_GPU");
  BOOST_TEST_REQUIRE(own.code == 0, own.output);
  BOOST_TEST_REQUIRE(losses(folder, "own").size() == 3u);
  BOOST_TEST(losses(folder, "own") == losses(folder, "all"));
}

namespace {

/// Sets environment variables while it lives.
struct Variables {
  Variables(std::initializer_list<std::pair<const char*, const char*>> variables) : set(variables) {
    for (const auto& [name, value] : set) ::setenv(name, value, 1);
  }
  ~Variables() {
    for (const auto& [name, value] : set) ::unsetenv(name);
  }
  const std::vector<std::pair<const char*, const char*>> set;
};

}  // namespace

BOOST_AUTO_TEST_CASE(nccl_runs_on_a_shared_gpu_for_tests_only) {
  const auto folder = fresh_folder();
  const Outcome host = train(folder, 2, 1, "host", "--max-update 3 --comm mpi");
  BOOST_TEST_REQUIRE(host.code == 0, host.output);
  const auto expected = losses(folder, "host");
  const Variables shared = {{"FSDP_NCCL_SHARED_GPU", "1"}};
  const auto refused = [&](const std::string& message) {
    const Outcome outcome = train(folder, 2, 1, "refused", "--max-update 1 --comm nccl");
    BOOST_TEST(outcome.code != 0);
    BOOST_TEST(outcome.times_said(message) == 1u, outcome.output);
  };
  refused(
      "NCCL 2.28.9 is too old to run several ranks on one GPU, which FSDP_NCCL_SHARED_GPU asks for (2.30 or newer is needed");
  {
    const Variables nodes = {{"FSDP_TEST_AS_NODES", "1"}};
    const Outcome outcome = train(folder, 2, 1, "nodes", "--max-update 3 --comm nccl");
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    BOOST_TEST(losses(folder, "nodes") == expected);
  }
  const Variables newer = {{"FSDP_CUDA_DOUBLE_NCCL_VERSION", "23007"}};
  refused("Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration");
  const Variables enabled = {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
  for (const int np : {2, 4}) {
    const std::string name = "shared" + std::to_string(np);
    const Outcome outcome = train(folder, np, 1, name, "--max-update 3 --comm nccl");
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.says("collectives of GPUs: NCCL 2.30.7, sums in canonical order"), outcome.output);
    if (np == 2) BOOST_TEST(losses(folder, name) == expected);
  }
}

BOOST_AUTO_TEST_CASE(what_nccl_cannot_connect_is_refused_by_name) {
  const auto folder = fresh_folder();
  const Outcome shared = train(folder, 2, 1, "shared", "--max-update 1 --comm nccl");
  BOOST_TEST(shared.code == 2);
  BOOST_TEST(shared.times_said("NCCL cannot connect the ranks (ranks 0 and 1 share a GPU)") == 1u, shared.output);
  const Outcome mixed = train(folder, 2, 2, "mixed", "--max-update 1 --comm nccl", {}, "FSDP_CUDA_DOUBLE_NCCL_VERSION=22703");
  BOOST_TEST(mixed.code == 2);
  BOOST_TEST(mixed.times_said("rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3, which cannot be mixed") == 1u, mixed.output);
  ::setenv("FSDP_CUDA_DOUBLE_NCCL_VERSION", "22105", 1);
  const Outcome old = train(folder, 2, 2, "old", "--max-update 1");
  ::unsetenv("FSDP_CUDA_DOUBLE_NCCL_VERSION");
  BOOST_TEST(old.code == 2);
  BOOST_TEST(old.times_said("NCCL 2.21.5 is too old (2.22 or newer is needed") == 1u, old.output);
  const Outcome some = train(folder, 2, 2, "some", "--max-update 1 --device auto", {}, "FSDP_CUDA_DOUBLE_DEVICES=0");
  BOOST_TEST(some.code == 2);
  BOOST_TEST(
      some.times_said("1 of 2 ranks have a GPU, and the others none (all must compute on the same kind of device)") == 1u,
      some.output);
  const Outcome on_cpu = train(folder, 2, 2, "cpu", "--max-update 1 --comm nccl --device cpu");
  BOOST_TEST(on_cpu.code == 2);
  BOOST_TEST(on_cpu.times_said("the ranks compute on CPUs, but it transfers only GPU memory") == 1u, on_cpu.output);
  const Outcome order = train(folder, 2, 1, "order", "--max-update 1 --sum-order library");
  BOOST_TEST(order.code == 2);
  BOOST_TEST(order.times_said("--sum-order library changes nothing") == 1u, order.output);
  const Outcome thread = train(folder, 2, 2, "thread", "--max-update 1 --comm-thread");
  BOOST_TEST(thread.code == 2);
  BOOST_TEST(thread.times_said("--comm-thread changes nothing on GPUs") == 1u, thread.output);
}

BOOST_AUTO_TEST_CASE(attention_by_cudnn) {
  if (wants_real_gpu()) return;
  const auto folder = fresh_folder();
  const std::string bf16 = "--bf16 --max-update 3 ", cudnn = "--attention-backend cudnn ";
  ::unsetenv("FSDP_CUDNN_LIBRARY");
  const Outcome absent = train(folder, 2, 2, "absent", bf16 + cudnn);
  BOOST_TEST(absent.code == 2);
  BOOST_TEST(absent.says("libfsdp_cudnn.so does not exist: fsdp was built without cuDNN); build fsdp with "
                         "-DFSDP_WITH_CUDNN=ON (docs/install.md), or give --attention-backend own"),
             absent.output);
  const Outcome without = train(folder, 2, 2, "without", bf16 + "--attention-backend auto");
  BOOST_TEST_REQUIRE(without.code == 0, without.output);
  BOOST_TEST(without.says("attention by the kernels of fsdp: cuDNN's attention cannot be used"), without.output);
  BOOST_TEST(!without.says("give "), without.output);
  // A library that cannot be loaded, and one that fails when it is first used.
  const std::string install =
      "; install cuDNN 9 and NVRTC of the CUDA version of this build, add their folders to LD_LIBRARY_PATH";
  for (const auto& [file, fails, why, advice] :
       {std::tuple(FSDP_CUDNN_WITHOUT_NVRTC, "0", std::string("libnvrtc.so.0: cannot open shared object file"), install),
        std::tuple(FSDP_CUDNN_DOUBLE, "1", std::string("cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED"),
                   std::string("; install a cuDNN 9 that supports this GPU and its driver"))}) {
    const Variables variables = {{"FSDP_CUDNN_LIBRARY", file}, {"FSDP_CUDNN_DOUBLE_FAILS", fails}};
    const Outcome refused = train(folder, 2, 2, "refused", bf16 + cudnn),
                  other = train(folder, 2, 2, "refused", bf16 + "--no-save --attention-backend auto");
    BOOST_TEST(refused.code == 2);
    BOOST_TEST(refused.times_said("cuDNN's attention cannot be used (" + why) == 1u, refused.output);
    BOOST_TEST(refused.says(advice), refused.output);
    BOOST_TEST(other.code == 0, other.output);
    BOOST_TEST(other.times_said("attention by the kernels of fsdp: cuDNN's attention cannot be used (" + why) == 1u,
               other.output);
    BOOST_TEST(!other.says(advice), other.output);
  }

  ::setenv("FSDP_CUDNN_LIBRARY", FSDP_CUDNN_DOUBLE, 1);
  {  // cuDNN refuses a shape that it should take
    const Variables variables = {{"FSDP_CUDNN_DOUBLE_FAILS", "2"}};
    const Outcome refused = train(folder, 2, 2, "refused", bf16 + cudnn),
                  own = train(folder, 2, 2, "refused", bf16 + "--no-save --attention-backend auto");
    BOOST_TEST(refused.code == 2);
    BOOST_TEST(refused.says("cuDNN 9.26.0 does not take attention; give --attention-backend own"), refused.output);
    BOOST_TEST(own.code == 0, own.output);
    BOOST_TEST(own.times_said("attention by the kernels of fsdp: cuDNN 9.26.0 does not take attention") == 1u, own.output);
  }
  const Outcome one_refuses = train(folder, 2, 2, "other", bf16 + "--attention-backend auto", {}, "FSDP_CUDNN_DOUBLE_FAILS=2");
  BOOST_TEST(one_refuses.code == 2);
  BOOST_TEST(one_refuses.says("this rank finds no cuDNN for this attention, and rank 0 finds cuDNN 9.26.0"),
             one_refuses.output);
  const Outcome other = train(folder, 2, 2, "other", bf16 + cudnn, {}, "FSDP_CUDNN_DOUBLE_VERSION=91900");
  BOOST_TEST(other.code == 2);
  BOOST_TEST(other.says("this rank finds cuDNN 9.19.0, and rank 0 finds cuDNN 9.26.0 (their results would differ)"),
             other.output);
  const Outcome one = train(folder, 2, 2, "one", bf16 + "--attention-backend own --no-save"),
                two = train(folder, 2, 2, "two", bf16 + cudnn),
                three = train(folder, 2, 2, "three", bf16 + "--attention-backend auto --no-save");
  for (const Outcome* outcome : {&one, &two, &three}) BOOST_TEST_REQUIRE(outcome->code == 0, outcome->output);
  BOOST_TEST(!one.says("attention by"), one.output);
  BOOST_TEST(two.says("attention by cuDNN 9.26.0"), two.output);
  const auto own = losses(folder, "one"), by_cudnn = losses(folder, "two");
  BOOST_TEST_REQUIRE(own.size() == 3u);
  BOOST_TEST(own != by_cudnn);
  BOOST_TEST(by_cudnn == losses(folder, "three"));
  for (std::size_t u = 0; u < 3; ++u) BOOST_TEST(std::abs(own[u] - by_cudnn[u]) < 0.01);

  // Shapes that cuDNN does not take.
  for (const auto& [more, why] :
       {std::pair("--max-update 1", "cuDNN's is for bf16 and fp16"),
        std::pair("--max-update 1 --bf16 --attention-dropout 0.1", "cuDNN's would drop other"),
        std::pair("--max-update 1 --bf16 --document-attention --eos-token-id 3", "cuDNN's is not used for documents"),
        std::pair("--max-update 1 --bf16 --decoder-embed-dim 48",
                  "cuDNN's takes heads whose size is a multiple of 8, at most 256"),
        std::pair("--max-update 1 --bf16 --decoder-embed-dim 544", "on this GPU, cuDNN's takes heads of at most 128 numbers"),
        std::pair("--dry-run --bf16 --tokens-per-sample 1024 --batch-size 512",
                  "cuDNN's needs a workspace of more than 1 GiB for one head of keys")}) {
    const Outcome outcome = train(folder, 2, 2, "shape", std::string(more) + " --no-save " + cudnn);
    BOOST_TEST(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.times_said(std::string("attention by the kernels of fsdp: ") + why) == 1u, outcome.output);
  }
  // A resumed run.
  const std::string resumed = "--bf16 --max-update 4 ";
  const Outcome changed = train(folder, 2, 2, "two", resumed);
  BOOST_TEST_REQUIRE(changed.code == 0, changed.output);
  BOOST_TEST(changed.times_said("attention was computed by cuDNN 9.26.0 before, and is computed by the kernels of fsdp now, so "
                                "the results have other last digits; --attention-backend sets it") == 1u,
             changed.output);
  const Outcome kept = train(folder, 2, 2, "two", "--bf16 --max-update 5");
  BOOST_TEST_REQUIRE(kept.code == 0, kept.output);
  BOOST_TEST(!kept.says("attention was computed by"), kept.output);
  ::unsetenv("FSDP_CUDNN_LIBRARY");
}

BOOST_AUTO_TEST_CASE(a_killed_rank_ends_the_job) {
  const auto folder = fresh_folder();
  const Outcome outcome =
      train(folder, ranks_of_lost_jobs(), 4, "killed", deep + "--max-update 1000000 --comm nccl --collective-timeout 5s",
            signal_to_rank_1(folder, "killed", SIGKILL));
  BOOST_TEST(outcome.code != 0);
  BOOST_TEST(losses(folder, "killed").size() >= 3u);
  require_ended(folder, ranks_of_lost_jobs());
}

BOOST_AUTO_TEST_CASE(a_rank_that_hangs_is_named) {
  const int ranks = ranks_of_lost_jobs(), limit_s = wants_real_gpu() ? 20 : 5;
  for (const std::string& way : {deep + "--comm nccl", std::string("--comm mpi")}) {
    const auto folder = fresh_folder();
    const Outcome outcome =
        train(folder, ranks, 4, "hangs", way + format(" --max-update 1000000 --collective-timeout {}s", limit_s),
              signal_to_rank_1(folder, "hangs", SIGSTOP));
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("rank 1 on "), outcome.output);
    BOOST_TEST(outcome.says(format(" within {}.0 s", limit_s)), outcome.output);
    BOOST_TEST(outcome.says(" has not arrived at "), outcome.output);
    // The message also names the unit, except for sums over the whole update.
    BOOST_TEST((outcome.says("-gather of ") || outcome.says("-scatter of ") || outcome.says("all-reduce within")),
               outcome.output);
    require_ended(folder, ranks);
    const Outcome next = train(folder, ranks, 4, "next", way + " --max-update 2");
    BOOST_TEST(next.code == 0, next.output);
  }
}

// The double raises the error on both ranks, as NCCL does when a connection is lost. In this case and the ones below, a job
// that waits for its time-out exceeds the time limit of the test.
BOOST_AUTO_TEST_CASE(an_error_of_nccl_ends_the_job) {
  const auto folder = fresh_folder();
  ::setenv("FSDP_CUDA_DOUBLE_NCCL_ERROR", "250", 1);
  const Outcome outcome = train(folder, 2, 2, "lost", deep + "--max-update 1000000 --collective-timeout 600s --comm nccl");
  ::unsetenv("FSDP_CUDA_DOUBLE_NCCL_ERROR");
  BOOST_TEST(outcome.code == 1);
  BOOST_TEST(outcome.says("NCCL reports: remote process exited or there was a network error: "), outcome.output);
  require_ended(folder, 2);
}

// NCCL takes memory for its connections when it is first used. The plan is compared with what is then left.
BOOST_AUTO_TEST_CASE(memory_of_nccl_counts_before_the_first_update) {
  const auto folder = fresh_folder();
  ::setenv("FSDP_CUDA_DOUBLE_MEMORY", "60000000", 1);
  const Outcome little = train(folder, 2, 2, "little", "--max-update 1 --comm nccl");
  ::setenv("FSDP_CUDA_DOUBLE_NCCL_MEMORY", "12000000", 1);
  const Outcome much = train(folder, 2, 2, "much", "--max-update 1 --comm nccl");
  ::unsetenv("FSDP_CUDA_DOUBLE_NCCL_MEMORY");
  ::unsetenv("FSDP_CUDA_DOUBLE_MEMORY");
  BOOST_TEST(little.code == 0, little.output);
  BOOST_TEST(much.code == 2, much.output);
  BOOST_TEST(much.times_said("of GPU memory could not be allocated (") == 1u, much.output);
}

// After a bad address in a kernel, every later call of a GPU's process fails, also those that release what it has.
BOOST_AUTO_TEST_CASE(a_gpu_that_has_failed_ends_the_job) {
  const auto folder = fresh_folder();
  for (const std::string comm : {"nccl", "mpi"})
    for (const std::string launch : {"20", "400"}) {
      const Outcome outcome = train(folder, 2, 2, "failed", "--max-update 1000000 --collective-timeout 600s --comm " + comm, {},
                                    "FSDP_CUDA_DOUBLE_STICKY=" + launch);
      BOOST_TEST(outcome.code == 1, outcome.output);
      BOOST_TEST(outcome.times_said("fsdp-train: rank 1 on ") == 1u, outcome.output);
      BOOST_TEST(outcome.times_said("an illegal memory access was encountered") == 1u, outcome.output);
    }
}

// NCCL takes memory when a communicator is first used: here the gathers' has enough, and the reductions' fails inside a group
// of messages.
BOOST_AUTO_TEST_CASE(too_little_memory_for_nccl_ends_the_job) {
  const auto folder = fresh_folder();
  ::setenv("FSDP_CUDA_DOUBLE_NCCL_MEMORY", "2200000000", 1);
  const Outcome outcome = train(folder, 2, 2, "memory", "--max-update 1000000 --collective-timeout 600s --comm nccl");
  ::unsetenv("FSDP_CUDA_DOUBLE_NCCL_MEMORY");
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.says("memory for connections: out of memory"), outcome.output);
}
