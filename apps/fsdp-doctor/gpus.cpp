#include "fsdp-doctor/gpus.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "comm/nccl/nccl.hpp"
#include "device/cuda_library.hpp"

namespace fsdp {

namespace {

/// Returns "550.54.15" from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 ...".
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789.") == word.npos && word.find('.') != word.npos) return word;
  return "";
}

GpuTraces find_traces() {
  std::error_code error;
  GpuTraces traces{"", driver_version()};
  for (const char* file : {"/dev/nvidia0", "/dev/nvidiactl"})
    if (traces.device_file.empty() && std::filesystem::exists(file, error)) traces.device_file = file;
  return traces;
}

}  // namespace

Finding judge_gpus(const std::vector<std::string>& nodes, const std::vector<int>& node_of, const std::vector<RankGpus>& gpus,
                   const GpuTraces& traces) {
  Finding finding;
  struct NodeGpus {
    std::size_t ranks = 0, visible = 0;
    std::set<std::string> places;
    std::string description;
  };
  std::vector<NodeGpus> of_nodes(nodes.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    NodeGpus& node = of_nodes[static_cast<std::size_t>(node_of[rank])];
    ++node.ranks;
    node.visible = std::max(node.visible, gpus[rank].count);
    if (gpus[rank].count == 0) continue;
    node.places.insert(gpus[rank].place);
    node.description = gpus[rank].description;
  }
  std::vector<std::string> without, shared, idle, descriptions;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeGpus& node = of_nodes[i];
    finding.figures[nodes[i]] = {
        {"visible", node.visible}, {"used", node.places.size()}, {"ranks", node.ranks}, {"gpu", node.description}};
    descriptions.push_back(node.visible == 0 ? "no GPU" : node.description);
    if (node.visible == 0)
      without.push_back(nodes[i]);
    else if (node.places.size() < node.ranks)
      shared.push_back(nodes[i]);
    else if (node.places.size() < node.visible)
      idle.push_back(nodes[i]);
  }
  finding.figures["driver"] = traces.driver;
  if (without.size() == nodes.size()) {
    // Shortens "no driver: libcuda.so.1: cannot open shared object file: No such file or directory".
    const std::string& reason = gpus[0].why_none;
    const std::string why = reason.empty() ? "there is none" : excerpt(reason.substr(0, reason.find(": cannot open")), 160);
    finding.text = format("no usable GPU ({})", why);
    if (reason.find("compute capability") != std::string::npos) {
      finding.warn(format("request nodes with GPUs of compute capability {}, or use --device cpu", least_compute_capability));
      return finding;
    }
    if (traces.device_file.empty() && traces.driver.empty()) return finding;
    finding.text += traces.driver.empty() ? format(", although {} exists", traces.device_file)
                                          : format(", although NVIDIA's driver {} is loaded", traces.driver);
    finding.warn(
        "check that nvidia-smi lists the GPU, that a container gets the driver's libraries (--nv, --gpus all), and that fsdp "
        "was built with CUDA (docs/gpu.md)");
    return finding;
  }
  const std::string driver = traces.driver.empty() ? "" : format("; driver {}", traces.driver);
  finding.text = by_value(nodes, descriptions) + driver;
  if (!without.empty()) {
    finding.text = format("no GPU on {}, and {} elsewhere", list_of(without), plural(of_nodes[0].visible, "GPU"));
    finding.fail("start the job on nodes of the same kind, or use --device cpu");
  } else if (!shared.empty() || !idle.empty()) {
    finding.text += !shared.empty() ? format("; ranks share GPUs on {}", list_of(shared))
                                    : format("; some GPUs of {} have no rank", list_of(idle));
    finding.warn("start one rank for each GPU (--ntasks-per-node equal to --gpus-per-node)");
  } else if (!all_equal(descriptions)) {
    finding.warn("request nodes with the same GPUs: the slowest GPU limits the speed");
  } else {
    finding.text = format("{} of {} on each node; one rank each", of_nodes[0].visible, finding.text);
  }
  return finding;
}

Finding judge_nccl(const std::vector<std::string>& nodes, const std::vector<std::string>& versions,
                   const std::vector<std::string>& problems) {
  Finding finding;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    finding.figures[nodes[i]] = {{"version", versions[i]}, {"problem", problems[i]}};
  if (std::any_of(problems.begin(), problems.end(), [](const std::string& problem) { return !problem.empty(); })) {
    finding.text = format("not found ({}): GPUs exchange data through host memory", by_value(nodes, problems));
    finding.warn("build fsdp with NCCL, or load its module (docs/gpu.md)");
  } else if (!all_equal(versions)) {
    finding.text = by_value(nodes, versions);
    finding.fail("load the same NCCL on all nodes");
  } else {
    finding.text = "NCCL " + by_value(nodes, versions);
  }
  return finding;
}

std::optional<Finding> check_gpus(DoctorJob& job) {
  RankGpus mine;
  std::unique_ptr<Device> gpu;
  if (job.options.device != DeviceChoice::cpu)
    mine.count = static_cast<std::size_t>(visible_gpus(&mine.why_none));
  else
    mine.why_none = "--device cpu";
  // Throws the same error as fsdp-train, if GPUs were allocated to the job but none can be used.
  const DeviceKind kind = agree(*job.world, [&] { return choose_device(job.options.device); });
  const bool everywhere = job.world->all(!is_host(kind));
  if (everywhere) {
    gpu = make_device_of_rank(kind, {}, *job.world, *job.node);
    mine.description = gpu->description();
    mine.place = gpu->place();
  }
  const std::vector<double> counts = job.world->gather(static_cast<double>(mine.count));
  const std::vector<std::string> reasons = job.world->gather(mine.why_none), descriptions = job.world->gather(mine.description),
                                 places = job.world->gather(mine.place);
  std::vector<RankGpus> all;
  for (std::size_t rank = 0; rank < counts.size(); ++rank)
    all.push_back({static_cast<std::size_t>(counts[rank]), reasons[rank], descriptions[rank], places[rank]});
  if (everywhere) job.device = std::move(gpu);
  return judge_gpus(job.nodes, job.node_of, all, job.options.device == DeviceChoice::cpu ? GpuTraces{} : find_traces());
}

std::optional<Finding> check_nccl(DoctorJob& job) {
  if (job.device->kind() != nccl_device_backend.device) return std::nullopt;
  std::string why;
  const DeviceLibrary* const nccl = nccl_device_backend.find(&why);
  const std::vector<std::string> versions = job.of_nodes(nccl ? nccl->version() : std::string()),
                                 problems = job.of_nodes(nccl ? std::string() : why);
  return judge_nccl(job.nodes, versions, problems);
}

}  // namespace fsdp
