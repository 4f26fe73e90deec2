#include "fsdp-doctor/machine.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "machine/machine.hpp"

namespace fsdp {

namespace {

/// Returns the processor's name in /proc/cpuinfo: "AMD EPYC 7B13". For Arm's processors the system has only numbers:
/// "implementer 0x41, part 0xd4f".
std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string implementer;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == line.npos) continue;
    const std::string value = excerpt(line.substr(colon + 2), 60);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) return format("implementer {}, part {}", implementer, value);
  }
  return "a processor without a name";
}

/// The numbers of processors and of their cores. A core with two processors (hyperthreads) counts once.
struct Processors {
  std::size_t count = 0, cores = 0;
};
Processors count_of(const cpu_set_t& set) {
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) {
      std::ifstream file(format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
      std::string siblings;
      cores.insert(std::getline(file, siblings) ? siblings : std::to_string(cpu));
    }
  return {static_cast<std::size_t>(CPU_COUNT(&set)), cores.size()};
}

/// Returns the value of an environment variable, 0 if it is not a number above 0.
std::size_t number_in(const char* name) {
  const char* const value = std::getenv(name);
  return value ? static_cast<std::size_t>(std::max(0, std::atoi(value))) : 0;
}

/// Returns the processors that this job may use on its node, regardless of this process's binding. To find them, a thread
/// extends its own CPU affinity, which the control group limits. Slurm's SLURM_CPUS_ON_NODE is another limit.
Processors processors_of_job() {
  Processors all{1, 1};
  std::thread([&] {
    cpu_set_t set;
    std::memset(&set, 0xff, sizeof set);
    static_cast<void>(sched_setaffinity(0, sizeof set, &set));
    if (sched_getaffinity(0, sizeof set, &set) == 0) all = count_of(set);
  }).join();
  const std::size_t given = number_in("SLURM_CPUS_ON_NODE");
  return given > 0 ? Processors{std::min(all.count, given), std::min(all.cores, given)} : all;
}

std::vector<std::string> those(const std::vector<std::string>& nodes, const std::vector<bool>& which) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (which[i]) names.push_back(nodes[i]);
  return names;
}

/// Returns " on each node", or an empty string for one node.
std::string on_each(std::size_t nodes) { return nodes == 1 ? "" : " on each node"; }

}  // namespace

Finding judge_processors(const std::vector<std::string>& nodes, const std::vector<std::string>& instruction_sets,
                         const std::vector<std::string>& models) {
  Finding finding;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    finding.figures[nodes[i]] = {{"model", models[i]}, {"products", instruction_sets[i]}};
  finding.text = format("{}; {}", by_value(nodes, models), by_value(nodes, instruction_sets));
  if (all_equal(instruction_sets)) return finding;
  finding.status = Status::warning;
  finding.advice =
      "request nodes of the same kind (sbatch --constraint): the slowest node limits the speed, and results differ by "
      "rounding, depending on which ranks run where";
  return finding;
}

Finding judge_threads(const std::vector<NodeThreads>& nodes, bool on_gpu) {
  struct Problem {
    std::vector<std::string> nodes;
    const NodeThreads* first = nullptr;
    void add(const NodeThreads& node) {
      if (!first) first = &node;
      nodes.push_back(node.node);
    }
  };
  Problem squeezed, unasked, crowded, idle;
  Finding finding;
  for (const NodeThreads& node : nodes) {
    finding.figures[node.node] = {{"ranks", node.ranks},
                                  {"threads", node.threads},
                                  {"bound_to", node.bound},
                                  {"processors", node.processors},
                                  {"asked", node.asked}};
    if (node.threads > node.bound && node.bound < node.processors)
      squeezed.add(node);
    else if (!on_gpu && node.bound < std::min(node.asked, node.processors))
      unasked.add(node);
    else if (node.threads > std::min(node.bound, node.processors))
      crowded.add(node);
    else if (!on_gpu &&
             (2 * node.threads < node.processors || (node.bound < node.processors && 2 * node.bound_cores <= node.cores)))
      idle.add(node);
  }
  const auto describe = [](const Problem& problem, std::size_t processors) {
    const NodeThreads& node = *problem.first;
    return format("{} of {} on {} of {}", plural(node.threads, "thread"), plural(node.ranks, "rank"),
                  plural(processors, "processor"), list_of(problem.nodes));
  };
  if (squeezed.first) {
    finding.status = Status::warning;
    finding.text = format("{}, to which the ranks are bound, although the job may use {}",
                          describe(squeezed, squeezed.first->bound), squeezed.first->processors);
    finding.advice =
        "do not bind ranks (mpirun --bind-to none), or bind each to its own processors (srun --cpu-bind=cores with "
        "--cpus-per-task)";
  } else if (unasked.first) {
    finding.status = Status::warning;
    finding.text =
        format("{}, although the job has asked for {}", describe(unasked, unasked.first->bound), unasked.first->asked);
    finding.advice = format(
        "give --cpus-per-task={} to srun, too, which does not take it from sbatch or salloc since Slurm 22.05 (or set "
        "SRUN_CPUS_PER_TASK), or do not bind ranks (srun --cpu-bind=none, mpirun --bind-to none)",
        unasked.first->asked / unasked.first->ranks);
  } else if (crowded.first) {
    const NodeThreads& node = *crowded.first;
    const std::size_t processors = std::min(node.bound, node.processors), each = processors / node.ranks;
    finding.status = Status::warning;
    finding.text = format("oversubscribed: {}", describe(crowded, processors));
    finding.advice = each == 0 ? format("start at most {} there, with one thread each", plural(processors, "rank"))
                               : format(
                                     "give each rank {} (--threads {}, or OMP_NUM_THREADS={}), or ask for more processors "
                                     "(sbatch --cpus-per-task)",
                                     plural(each, "thread"), each, each);
  } else if (idle.first) {
    finding.status = Status::warning;
    finding.text = format("{}: half of the cores, or more, are idle", describe(idle, idle.first->processors));
    finding.advice = format(
        "unset OMP_NUM_THREADS, start more ranks, or bind each rank to more than one core (mpirun --bind-to "
        "none, srun --cpus-per-task={})",
        idle.first->processors / idle.first->ranks);
  } else {
    const NodeThreads& node = nodes[0];
    finding.text = format("{} of {} on {}{}", plural(node.threads, "thread"), plural(node.ranks, "rank"),
                          plural(std::min(node.bound, node.processors), "processor"), on_each(nodes.size()));
  }
  return finding;
}

Finding judge_locked_memory(const std::vector<std::string>& nodes, const std::vector<double>& limits,
                            const std::vector<bool>& has_rdma) {
  constexpr double enough = 1 << 30;
  std::vector<std::string> texts;
  std::vector<bool> too_low;
  Finding finding;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    texts.push_back(limits[i] == unlimited ? "unlimited" : "at most " + format_bytes(limits[i]));
    too_low.push_back(has_rdma[i] && limits[i] != unlimited && limits[i] < enough);
    finding.figures[nodes[i]] = {{"bytes", limits[i] == unlimited ? nlohmann::json() : nlohmann::json(limits[i])},
                                 {"rdma", static_cast<bool>(has_rdma[i])}};
  }
  finding.text = by_value(nodes, texts);
  if (const std::vector<std::string> low = those(nodes, too_low); !low.empty()) {
    finding.status = Status::warning;
    finding.text += format("; the network of {} needs locked memory", list_of(low));
    finding.advice =
        "raise the limit to unlimited (ulimit -l); under Slurm by LimitMEMLOCK=infinity for slurmd, and "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf";
  } else if (std::find(has_rdma.begin(), has_rdma.end(), true) == has_rdma.end()) {
    finding.text += "; no network here needs it";
  }
  return finding;
}

Finding judge_shared_memory(const std::vector<std::string>& nodes, const std::vector<double>& free_bytes,
                            const std::vector<std::size_t>& ranks, bool on_gpu) {
  // Open MPI has a file of 4 MiB per rank in /dev/shm (vader_segment.*); NCCL's documentation recommends 1 GiB for containers.
  constexpr double for_mpi = 4 << 20, for_nccl = 1 << 30;
  Finding finding;
  std::vector<std::string> short_of;
  double least = -1, needed = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    finding.figures[nodes[i]] = {{"free_bytes", free_bytes[i]}};
    const double needs = static_cast<double>(ranks[i]) * for_mpi + (on_gpu && ranks[i] > 1 ? for_nccl : 0);
    if (ranks[i] > 1 && free_bytes[i] < needs) {
      short_of.push_back(nodes[i]);
      needed = std::max(needed, needs);
    }
    if (i == 0 || free_bytes[i] < least) least = free_bytes[i];
  }
  finding.text = least < 0 ? std::string("there is no /dev/shm")
                           : format("{}{} free in /dev/shm{}", nodes.size() == 1 ? "" : "at least ", format_bytes(least),
                                    on_each(nodes.size()));
  if (!short_of.empty()) {
    finding.status = Status::warning;
    finding.text += format("; MPI{} takes up to {} on {}", on_gpu ? " with NCCL" : "", format_bytes(needed), list_of(short_of));
    finding.advice =
        "make /dev/shm larger (mount -o remount,size=2g /dev/shm; for containers --shm-size=2g), or remove files that dead "
        "jobs have left there";
  }
  return finding;
}

Finding judge_clocks(const std::vector<std::string>& nodes, const std::vector<double>& clocks, double apart_s) {
  constexpr double noticeable_s = 0.5;
  std::vector<double> sorted = clocks;
  std::sort(sorted.begin(), sorted.end());
  const double middle = sorted[sorted.size() / 2], spread = sorted.back() - sorted.front();
  Finding finding{
      .text = format("the nodes' clocks differ by less than {}", format_duration(std::max(std::max(spread, apart_s), 1e-3)))};
  finding.figures = {{"spread_s", spread}, {"read_within_s", apart_s}};
  if (spread - apart_s < noticeable_s) return finding;
  std::vector<std::string> off;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (std::abs(clocks[i] - middle) - apart_s >= noticeable_s / 2)
      off.push_back(format("{} is {} {}", nodes[i], format_duration(std::abs(clocks[i] - middle)),
                           clocks[i] > middle ? "ahead" : "behind"));
  finding.status = Status::warning;
  finding.text = format("the nodes' clocks differ by {}: {}", format_duration(spread), list_of(off));
  finding.advice =
      "synchronize them with one time server (chrony, ntpd): otherwise times of files and logs do not match, and logins "
      "between nodes may fail";
  return finding;
}

bool node_has_rdma() {
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", error))
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      std::ifstream file(port.path() / "state");  // "4: ACTIVE"
      std::string state;
      if (std::getline(file, state) && state.find("ACTIVE") != state.npos) return true;
    }
  return false;
}

std::optional<Finding> check_processors(DoctorJob& job) {
  // Takes "avx2" from "oneDNN 2.6.3, avx2 (bf16 by ...)".
  const std::string all = kernels::gemm_description();
  const std::size_t begin = std::min(all.find(", "), all.size() - 2) + 2;
  const std::string mine = format("{}, {}", all.substr(begin, all.find(" (", begin) - begin),
                                  kernels::multiplies(DType::bf16) ? "multiplies bf16" : "multiplies bf16 as fp32");
  job.processors = of_leaders(job, job.world->gather(processor_model()));
  return judge_processors(job.nodes, of_leaders(job, job.world->gather(mine)), job.processors);
}

std::optional<Finding> check_threads(DoctorJob& job) {
  const bool on_gpu = !is_host(job.device->kind());
  const CpuShare share = share_of_rank(*job.node, job.options.threads);
  kernels::set_threads(share.threads);
  cpu_set_t mask;
  CPU_ZERO(&mask);
  static_cast<void>(sched_getaffinity(0, sizeof mask, &mask));
  std::vector<std::int64_t> users(CPU_SETSIZE);
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu) users[cpu] = CPU_ISSET(cpu, &mask) ? 1 : 0;
  job.node->sum(users);
  CPU_ZERO(&mask);
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu)
    if (users[cpu] > 0) CPU_SET(cpu, &mask);
  const Processors bound = count_of(mask), all = processors_of_job();
  const std::vector<double> threads = sums_of_nodes(job, job.world->gather(on_gpu ? 1 : share.threads)),
                            asked =
                                sums_of_nodes(job, job.world->gather(static_cast<double>(number_in("SLURM_CPUS_PER_TASK"))));
  const auto of_node = [&](std::size_t value) { return of_leaders(job, job.world->gather(static_cast<double>(value))); };
  const std::vector<double> bounds = of_node(bound.count), bound_cores = of_node(bound.cores), processors = of_node(all.count),
                            cores = of_node(all.cores);
  std::vector<NodeThreads> nodes;
  for (std::size_t i = 0; i < job.nodes.size(); ++i) {
    const auto n = [&](const std::vector<double>& values) { return static_cast<std::size_t>(values[i]); };
    nodes.push_back({job.nodes[i], job.ranks_of(i), n(threads), n(bounds), n(processors), n(bound_cores), n(cores), n(asked)});
  }
  return judge_threads(nodes, on_gpu);
}

std::optional<Finding> check_locked_memory(DoctorJob& job) {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  const double mine = !known || limit.rlim_cur == RLIM_INFINITY ? unlimited : static_cast<double>(limit.rlim_cur);
  const std::vector<double> rdma = of_leaders(job, job.world->gather(node_has_rdma() ? 1 : 0));
  return judge_locked_memory(job.nodes, of_leaders(job, job.world->gather(mine)), {rdma.begin(), rdma.end()});
}

std::optional<Finding> check_shared_memory(DoctorJob& job) {
  struct statvfs info {};
  const double mine =
      statvfs("/dev/shm", &info) == 0 ? static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) : -1;
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < job.nodes.size(); ++i) ranks.push_back(job.ranks_of(i));
  return judge_shared_memory(job.nodes, of_leaders(job, job.world->gather(mine)), ranks, !is_host(job.device->kind()));
}

std::optional<Finding> check_clocks(DoctorJob& job) {
  if (job.nodes.size() == 1) return std::nullopt;
  // All ranks leave a barrier at about the same time: the times differ by at most the longest time that a rank spent in the
  // barrier. The round with the smallest such bound is used.
  std::vector<double> clocks;
  double apart_s = 0;
  for (int round = 0; round < 10; ++round) {
    job.world->barrier();
    const Timer timer;
    job.world->barrier();
    const double waited_s = timer.seconds();
    const double now_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::vector<double> waits = job.world->gather(waited_s), all = job.world->gather(now_s);
    const double longest = *std::max_element(waits.begin(), waits.end());
    if (round > 0 && longest >= apart_s) continue;
    apart_s = longest;
    clocks = of_leaders(job, all);
  }
  return judge_clocks(job.nodes, clocks, apart_s);
}

}  // namespace fsdp
