#include "fsdp-doctor/machine.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
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
#include "machine/node_places.hpp"

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
/// Counts the processors that have users.
Processors count_of(const std::vector<std::int64_t>& users) {
  Processors all;
  std::set<std::string> cores;
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu)
    if (users[cpu] > 0) {
      std::ifstream file(format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
      std::string siblings;
      cores.insert(std::getline(file, siblings) ? siblings : std::to_string(cpu));
      ++all.count;
    }
  all.cores = cores.size();
  return all;
}

/// Returns the processors that this job may use on its node, regardless of this process's binding. To find them, a thread
/// extends its own CPU affinity, which the control group limits. Slurm's SLURM_CPUS_ON_NODE is another limit.
Processors processors_of_job() {
  std::vector<std::int64_t> allowed = allowed_processors();  // not in the thread, which an exception would end
  std::thread([&] {
    cpu_set_t set;
    std::memset(&set, 0xff, sizeof set);
    static_cast<void>(sched_setaffinity(0, sizeof set, &set));
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (std::size_t cpu = 0; cpu < allowed.size(); ++cpu) allowed[cpu] = CPU_ISSET(cpu, &set) ? 1 : 0;
  }).join();
  const Processors all = count_of(allowed);
  const std::size_t given = number_in_environment("SLURM_CPUS_ON_NODE");
  return given > 0 ? Processors{std::min(all.count, given), std::min(all.cores, given)} : all;
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
  finding.warn(
      "request nodes of the same kind (sbatch --constraint): the slowest node limits the speed, and results differ by "
      "rounding, depending on which ranks run where");
  return finding;
}

Finding judge_threads(const std::vector<NodeThreads>& nodes, bool on_gpu) {
  std::vector<NodeThreads> squeezed, unasked, crowded, idle;
  Finding finding;
  for (const NodeThreads& node : nodes) {
    finding.figures[node.node] = {{"ranks", node.ranks},
                                  {"threads", node.threads},
                                  {"bound_to", node.bound},
                                  {"processors", node.processors},
                                  {"asked", node.asked}};
    if (node.threads > node.bound && node.bound < node.processors)
      squeezed.push_back(node);
    else if (!on_gpu && node.bound < std::min(node.asked, node.processors))
      unasked.push_back(node);
    else if (node.threads > std::min(node.bound, node.processors))
      crowded.push_back(node);
    else if (!on_gpu &&
             (2 * node.threads < node.processors || (node.bound < node.processors && 2 * node.bound_cores <= node.cores)))
      idle.push_back(node);
  }
  const auto describe = [](const std::vector<NodeThreads>& alike, std::size_t processors) {
    std::vector<std::string> names;
    for (const NodeThreads& node : alike) names.push_back(node.node);
    return format("{} of {} on {} of {}", plural(alike[0].threads, "thread"), plural(alike[0].ranks, "rank"),
                  plural(processors, "processor"), list_of(names));
  };
  if (!squeezed.empty()) {
    finding.text = format("{}, to which the ranks are bound, although the job may use {}",
                          describe(squeezed, squeezed.front().bound), squeezed.front().processors);
    finding.warn(
        "do not bind ranks (mpirun --bind-to none), or bind each to its own processors (srun --cpu-bind=cores with "
        "--cpus-per-task)");
  } else if (!unasked.empty()) {
    finding.text =
        format("{}, although the job has asked for {}", describe(unasked, unasked.front().bound), unasked.front().asked);
    finding.warn(
        format("give --cpus-per-task={} to srun, too, which does not take it from sbatch or salloc since Slurm 22.05 (or set "
               "SRUN_CPUS_PER_TASK), or do not bind ranks (srun --cpu-bind=none, mpirun --bind-to none)",
               unasked.front().asked / unasked.front().ranks));
  } else if (!crowded.empty()) {
    const NodeThreads& node = crowded.front();
    const std::size_t processors = std::min(node.bound, node.processors), each = processors / node.ranks;
    finding.text = format("oversubscribed: {}", describe(crowded, processors));
    finding.warn(each == 0 ? format("start at most {} there, with one thread each", plural(processors, "rank"))
                           : format("give each rank {} (--threads {}, or OMP_NUM_THREADS={}), or ask for more processors "
                                    "(sbatch --cpus-per-task)",
                                    plural(each, "thread"), each, each));
  } else if (!idle.empty()) {
    finding.text = format("{}: half of the cores, or more, are idle", describe(idle, idle.front().processors));
    finding.warn(
        format("unset OMP_NUM_THREADS, start more ranks, or bind each rank to more than one core (mpirun --bind-to "
               "none, srun --cpus-per-task={})",
               idle.front().processors / idle.front().ranks));
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
  std::vector<std::string> texts, low;
  Finding finding;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    texts.push_back(limits[i] == unlimited ? "unlimited" : "at most " + format_bytes(limits[i]));
    if (has_rdma[i] && limits[i] != unlimited && limits[i] < enough) low.push_back(nodes[i]);
    finding.figures[nodes[i]] = {{"bytes", limits[i] == unlimited ? nlohmann::json() : nlohmann::json(limits[i])},
                                 {"rdma", static_cast<bool>(has_rdma[i])}};
  }
  finding.text = by_value(nodes, texts);
  if (!low.empty()) {
    finding.text += format("; the network of {} needs locked memory", list_of(low));
    finding.warn(
        "raise the limit to unlimited (ulimit -l); under Slurm by LimitMEMLOCK=infinity for slurmd, and "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf");
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
    finding.text += format("; MPI{} takes up to {} on {}", on_gpu ? " with NCCL" : "", format_bytes(needed), list_of(short_of));
    finding.warn(
        "make /dev/shm larger (mount -o remount,size=2g /dev/shm; for containers --shm-size=2g), or remove files that dead "
        "jobs have left there");
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
  finding.text = format("the nodes' clocks differ by {}: {}", format_duration(spread), list_of(off));
  finding.warn(
      "synchronize them with one time server (chrony, ntpd): otherwise times of files and logs do not match, and logins "
      "between nodes may fail");
  return finding;
}

bool node_has_rdma() {
  const std::vector<Link> links = find_links();
  return !links.empty() && links.front().is_fast();
}

std::optional<Finding> check_processors(DoctorJob& job) {
  // Takes "avx2" from "oneDNN 2.6.3, avx2 (bf16 by ...)".
  const std::string all = kernels::gemm_description();
  const std::size_t begin = std::min(all.find(", "), all.size() - 2) + 2;
  const std::string mine = format("{}, {}", all.substr(begin, all.find(" (", begin) - begin),
                                  kernels::multiplies(DType::bf16) ? "multiplies bf16" : "multiplies bf16 as fp32");
  job.processors = job.of_nodes(processor_model());
  return judge_processors(job.nodes, job.of_nodes(mine), job.processors);
}

std::optional<Finding> check_threads(DoctorJob& job) {
  const bool on_gpu = !is_host(job.device->kind());
  const CpuShare share = share_of_rank(*job.node, job.options.threads);
  kernels::set_threads(share.threads);
  std::vector<std::int64_t> users = allowed_processors();
  job.node->sum(users);
  const Processors bound = count_of(users), all = processors_of_job();
  const std::vector<double> threads = job.sums_of_nodes(on_gpu ? 1 : share.threads),
                            asked = job.sums_of_nodes(static_cast<double>(number_in_environment("SLURM_CPUS_PER_TASK")));
  const auto of_nodes = [&](std::size_t value) { return job.of_nodes(static_cast<double>(value)); };
  const std::vector<double> bounds = of_nodes(bound.count), bound_cores = of_nodes(bound.cores),
                            processors = of_nodes(all.count), cores = of_nodes(all.cores);
  std::vector<NodeThreads> nodes;
  for (std::size_t i = 0; i < job.nodes.size(); ++i) {
    const auto n = [&](const std::vector<double>& values) { return static_cast<std::size_t>(values[i]); };
    nodes.push_back({job.nodes[i], job.ranks_of[i], n(threads), n(bounds), n(processors), n(bound_cores), n(cores), n(asked)});
  }
  return judge_threads(nodes, on_gpu);
}

std::optional<Finding> check_locked_memory(DoctorJob& job) {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  const double mine = !known || limit.rlim_cur == RLIM_INFINITY ? unlimited : static_cast<double>(limit.rlim_cur);
  const std::vector<double> rdma = job.of_nodes(node_has_rdma() ? 1 : 0);
  return judge_locked_memory(job.nodes, job.of_nodes(mine), {rdma.begin(), rdma.end()});
}

std::optional<Finding> check_shared_memory(DoctorJob& job) {
  struct statvfs info {};
  const double mine =
      statvfs("/dev/shm", &info) == 0 ? static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) : -1;
  return judge_shared_memory(job.nodes, job.of_nodes(mine), job.ranks_of, !is_host(job.device->kind()));
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
    const std::vector<double> waits = job.world->gather(waited_s), all = job.of_nodes(now_s);
    const double longest = *std::max_element(waits.begin(), waits.end());
    if (round > 0 && longest >= apart_s) continue;
    apart_s = longest;
    clocks = all;
  }
  return judge_clocks(job.nodes, clocks, apart_s);
}

}  // namespace fsdp
