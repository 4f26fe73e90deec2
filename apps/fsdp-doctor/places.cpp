#include "fsdp-doctor/places.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "comm/mesh.hpp"
#include "machine/measure.hpp"
#include "machine/node_places.hpp"

namespace fsdp {

Finding judge_places(const std::vector<std::string>& nodes, const std::vector<int>& node_of,
                     const std::vector<RankPlace>& places) {
  Finding finding;
  std::vector<std::string> far, on_first;
  std::string first_map;  // the NUMA nodes of the GPUs of the first node's ranks, in order
  bool any_known = false, all_bound = true;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const RankPlace& place = places[r];
    const std::string& node = nodes[static_cast<std::size_t>(node_of[r])];
    finding.figures[format("rank {}", r)] = {
        {"node", node}, {"numa", place.numa}, {"gpu", place.gpu}, {"gpu_numa", place.gpu_numa}, {"links", place.links}};
    any_known = any_known || place.gpu_numa >= 0;
    all_bound = all_bound && place.numa >= 0;
    if (place.gpu_numa >= 0 && place.numa >= 0 && place.gpu_numa != place.numa)
      far.push_back(format("rank {} on {} is on NUMA node {}, and its GPU {} on NUMA node {}", r, node, place.numa, place.gpu,
                           place.gpu_numa));
    if (node_of[r] != 0) continue;
    first_map += format("{}{}", first_map.empty() ? "" : ",", place.gpu_numa);
    on_first.push_back(format("rank {}: GPU {}{}{}", r, place.gpu,
                              place.gpu_numa >= 0 ? format(" on NUMA node {}", place.gpu_numa) : std::string(),
                              place.links.empty() ? "" : " with " + place.links));
  }
  if (far.empty()) {
    finding.text = format("{}{}", nodes.size() > 1 ? nodes[0] + ": " : std::string(), fmt::join(on_first, "; "));
    if (any_known)
      finding.text += all_bound ? "; ranks are bound to the NUMA nodes of their GPUs" : "; ranks are not bound to NUMA nodes";
    return finding;
  }
  finding.text = far[0] + (far.size() > 1 ? format(" ({} more are far from their GPUs)", far.size() - 1) : "");
  finding.warn(
      format("bind ranks to the NUMA nodes of their GPUs: srun --cpu-bind=map_ldom:{0}, or mpirun --bind-to none", first_map));
  return finding;
}

Finding judge_nccl_network(const std::vector<std::string>& nodes, const std::string& network,
                           const std::vector<NodeNccl>& nccl) {
  constexpr double slow = 0.5;  // the share of the links' rate that good transports exceed with large buffers
  Finding finding;
  std::vector<std::string> below;
  double least = nccl[0].rate;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    finding.figures[nodes[i]] = {{"bytes_per_s", nccl[i].rate}, {"link_bytes_per_s", nccl[i].link_rate}};
    least = std::min(least, nccl[i].rate);
    if (nccl[i].link_rate > 0 && nccl[i].rate < slow * nccl[i].link_rate) below.push_back(nodes[i]);
  }
  finding.figures["network"] = network;
  const std::string name =
      network.empty() ? "a network that NCCL does not name (NCCL_DEBUG is set, or NCCL was used before)" : network;
  const auto of_link = [](const NodeNccl& node) {
    return node.link_rate > 0 ? format("; the links of a node have {}", node.links)
                              : std::string("; the rate of the links is unknown");
  };
  finding.text = format("{}: a node sends at least {:.3g} GB/s{}", name, least / 1e9, of_link(nccl[0]));
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!nccl[i].advice.empty()) {
      finding.text =
          format("{}: {:.3g} GB/s, although {} has faster links ({})", name, nccl[i].rate / 1e9, nodes[i], nccl[i].links);
      finding.fail(nccl[i].advice);
      return finding;
    }
  if (!below.empty()) {
    finding.text += format("; {} {} below half of that", list_of(below), below.size() == 1 ? "is" : "are");
    finding.warn("find faster settings with fsdp-doctor --transports; check cables and ports (ibstat, ethtool)");
  }
  return finding;
}

std::optional<Finding> check_places(DoctorJob& job) {
  if (is_host(job.device->kind())) return std::nullopt;
  RankPlace mine{
      .numa = numa_of_thread(), .gpu = job.device->place(), .gpu_numa = numa_of_gpu(job.device->place()), .links = {}};
  for (const Link& link : find_links())
    if (link.numa >= 0 && link.numa == mine.gpu_numa) mine.links += (mine.links.empty() ? "" : ", ") + link.name;
  const auto gpus = job.world->gather(mine.gpu), links = job.world->gather(mine.links);
  const auto numa = job.world->gather(static_cast<double>(mine.numa)),
             gpu_numa = job.world->gather(static_cast<double>(mine.gpu_numa));
  std::vector<RankPlace> all;
  for (std::size_t r = 0; r < gpus.size(); ++r)
    all.push_back({static_cast<int>(numa[r]), gpus[r], static_cast<int>(gpu_numa[r]), links[r]});
  return judge_places(job.nodes, job.node_of, all);
}

std::optional<Finding> check_nccl_network(DoctorJob& job) {
  const std::size_t n = job.nodes.size();
  if (n == 1 || is_host(job.device->kind())) return std::nullopt;
  constexpr std::size_t whole = std::size_t{64} << 20;
  const auto ranks = static_cast<std::size_t>(job.world->size());
  const std::unique_ptr<Communicator> comm = job.connect(job.options.comm);
  Mesh mesh = make_mesh(*comm, comm->size(), 1);
  mesh.use_device(*job.device, job.options.comm, {whole, 0, 0});
  if (!mesh.device_groups) return std::nullopt;
  Collectives& data = mesh.data_along(GroupAxis::shard);
  const auto stream = job.device->make_stream(StreamUse::communication);
  const std::size_t count = whole / ranks / sizeof(float);
  const Buffer all = data.allocate(*job.device, count * ranks * sizeof(float));
  const Buffer part = agree(*comm, [&] { return job.device->allocate(count * sizeof(float)); });
  const double seconds =
      time_collective(*stream, *comm, 2, 5, [&] { data.all_gather(*stream, part.data(), all.data(), count, DType::f32); });
  // In a ring a node sends each of the other nodes' bytes but its successor's.
  const double sent = static_cast<double>(count * ranks * sizeof(float)) * static_cast<double>(n - 1) / static_cast<double>(n);
  const std::vector<Link> links = find_links();
  const auto link_rates = job.of_nodes(bytes_per_s(links));
  const auto described_links = job.of_nodes(describe(links)),
             advice = job.of_nodes(advise_network(mesh.device_groups->network, links));
  std::vector<NodeNccl> nccl;
  for (std::size_t i = 0; i < n; ++i) nccl.push_back({sent / seconds, link_rates[i], described_links[i], advice[i]});
  return judge_nccl_network(job.nodes, mesh.device_groups->network, nccl);
}

}  // namespace fsdp
