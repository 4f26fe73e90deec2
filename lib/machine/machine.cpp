#include "machine/machine.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "device/gpu_figures.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "kernels/threads.hpp"
#include "machine/measure.hpp"

namespace fsdp {

namespace {

/// The file with the stored rates of this host. Each host has a file of its own, because hosts may share home folders.
std::filesystem::path note_of_this_host() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) return {};
  return (cache ? std::filesystem::path(cache) : std::filesystem::path(home) / ".cache") / "fsdp" /
         format("gemm-peak-{}.json", host_name());
}

}  // namespace

std::size_t number_in_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? static_cast<std::size_t>(std::max(0, std::atoi(value))) : 0;
}

std::vector<std::int64_t> allowed_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  check_errno(sched_getaffinity(0, sizeof mask, &mask) == 0, "sched_getaffinity");
  std::vector<std::int64_t> allowed(CPU_SETSIZE);
  for (std::size_t cpu = 0; cpu < allowed.size(); ++cpu) allowed[cpu] = CPU_ISSET(cpu, &mask) ? 1 : 0;
  return allowed;
}

CpuShare share_of_rank(Group& node, std::size_t wanted, int kept_free) {
  const std::vector<std::int64_t> mine = allowed_processors();
  std::vector<std::int64_t> users = mine;
  node.sum(users);
  double cores = 0;
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu)
    if (mine[cpu] > 0) cores += 1.0 / static_cast<double>(users[cpu]);
  int cpus = static_cast<int>(cores + 1e-9);
  // If Slurm does not bind tasks to cores, only SLURM_CPUS_PER_TASK tells how many cores were requested.
  if (const int asked = narrow<int>(number_in_environment("SLURM_CPUS_PER_TASK")); asked > 0) cpus = std::min(cpus, asked);
  int threads = std::max(1, cpus - kept_free);
  if (const int asked = narrow<int>(number_in_environment("OMP_NUM_THREADS")); asked > 0) threads = asked;
  if (wanted > 0) threads = narrow<int>(wanted);
  return {threads, std::min(cores, static_cast<double>(threads))};
}

ComputingRank start_rank_to_plan(std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu) {
  ComputingRank rank;
  rank.node = world.split_by_node();
  rank.cpus = share_of_rank(*rank.node, threads, cpu.communication_thread ? 1 : 0);
  kernels::set_threads(rank.cpus.threads);
  return rank;
}

ComputingRank start_rank(DeviceChoice choice, std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu) {
  ComputingRank rank = start_rank_to_plan(threads, world, cpu);
  const DeviceKind kind = agree(world, [&] { return choose_device(choice); });
  rank.device = make_device_of_rank(kind, cpu, world, *rank.node);
  return rank;
}

std::size_t free_memory_of_a_rank(const ComputingRank& rank, Group& world) {
  const bool on_cpu = !rank.device || is_host(rank.device->kind());
  const std::size_t mine =
      on_cpu ? available_memory_bytes() / 10 * 9 / static_cast<std::size_t>(rank.node->size()) : rank.device->free_bytes();
  constexpr std::size_t most = std::size_t{1} << 62;
  return most - world.max(most - std::min(mine, most));
}

void load_model(std::optional<ShardedModel>& model, const TensorSource& source, const ShardingOptions& sharding,
                std::optional<kernels::Quantization> base_type, const ComputingRank& rank, Communicator& world,
                const ExecutorOptions& execution, const CommOptions& comm, const ByteProgress& progress) {
  TransformerConfig config = source.config();
  if (base_type) config.base_type = base_type;
  agree(world, [&] { check_sharding(config, sharding, world.size()); });
  model.emplace(std::move(config), sharding, world, traits_of(rank.device->kind(), rank.cpus.threads));
  Executor& executor = model->allocate(*rank.device, execution, comm);
  agree(world, [&] {
    load_parameters(source, model->model().parameters(), model->layout(), model->shard(), executor.parameters(), {}, progress);
  });
  executor.publish_parameters();
}

namespace {

nlohmann::json read_note(const std::filesystem::path& path) {
  nlohmann::json note;
  try {
    if (kind_of(path) == PathKind::file) note = read_json_file(path);
  } catch (const std::exception&) {  // unreadable: the rates are measured again
  }
  return note.is_object() && note.contains("flops_per_core") && note["flops_per_core"].is_object() ? note["flops_per_core"]
                                                                                                   : nlohmann::json::object();
}

std::optional<double> peak_in(const nlohmann::json& peaks, DType type) {
  const auto peak = peaks.find(name_of(type));
  return peak != peaks.end() && peak->is_number() ? std::optional(peak->get<double>()) : std::nullopt;
}

}  // namespace

void note_peak_per_core(DType type, double flops) {
  const std::filesystem::path path = note_of_this_host();
  nlohmann::json peaks = read_note(path);
  if (flops <= peak_in(peaks, type).value_or(0)) return;  // a lower rate means that other work was running
  peaks[std::string(name_of(type))] = flops;
  try {
    std::filesystem::create_directories(path.parent_path());
    write_text_file_durably(path, json_text(nlohmann::json{{"flops_per_core", peaks}}) + "\n");
  } catch (const std::exception&) {  // without the file, the next start measures again
  }
}

void forget_peak_per_core() {
  std::error_code ignored;
  std::filesystem::remove(note_of_this_host(), ignored);
}

CorePeak peak_of_cores(DType type, const ComputingRank& rank, Communicator& world) {
  std::optional<double> per_core = peak_in(read_note(note_of_this_host()), type);
  const bool measure = !world.all(per_core.has_value());
  if (measure) {
    const auto stream = rank.device->make_stream();
    const double rate =
        product_rate(type, *rank.device, *stream, world, kernels::Trans::no, kernels::Trans::no, 1024, 1024, 1024, 0.3);
    const double now = rank.node->sum(rate) / rank.node->sum(rank.cpus.cores);
    if (rank.node->rank() == 0) note_peak_per_core(type, now);
    per_core = std::max(now, per_core.value_or(0));
  }
  return {world.sum(*per_core * rank.cpus.cores), measure};
}

std::optional<double> peak_of_gpus(const Device& device, DType type, Group& world) {
  const GpuFigures* const figures = is_host(device.kind()) ? nullptr : figures_of(device.description());
  const bool known = world.all(figures != nullptr);
  const double sum = world.sum(figures ? figures->flops(type) : 0.0);
  return known ? std::optional(sum) : std::nullopt;
}

}  // namespace fsdp
