#include "machine/node_places.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/format.hpp"
#include "machine/machine.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

int numa_in(const fs::path& device) {
  const std::string text = line_of(device / "numa_node");
  return text.empty() ? -1 : std::atoi(text.c_str());
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

/// The speed of an interface in bytes per second. Linux has it in Mbit/s.
double speed_of(const fs::path& interface) { return std::max(0.0, std::atof(line_of(interface / "speed").c_str())) * 1e6 / 8; }

}  // namespace

std::vector<std::size_t> processors_in(const std::string& list) {
  std::vector<std::size_t> all;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    char* end = nullptr;
    const std::size_t first = std::strtoul(part.c_str(), &end, 10);
    if (end == part.c_str()) continue;
    const std::size_t last = *end == '-' ? std::strtoul(end + 1, nullptr, 10) : first;
    for (std::size_t cpu = first; cpu <= last; ++cpu) all.push_back(cpu);
  }
  return all;
}

int numa_of_gpu(const std::string& place, const fs::path& sys) { return numa_in(sys / "bus/pci/devices" / (place + ".0")); }

int numa_of_thread(const fs::path& sys) {
  const std::vector<std::int64_t> allowed = allowed_processors();
  std::set<int> used;
  int count = 0;
  for (const fs::path& node : entries_of(sys / "devices/system/node")) {
    const std::string name = node.filename().string();
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != name.npos || name.size() == 4) continue;
    ++count;
    for (const std::size_t cpu : processors_in(line_of(node / "cpulist")))
      if (cpu < allowed.size() && allowed[cpu] != 0) used.insert(std::atoi(name.c_str() + 4));
  }
  return count > 1 && used.size() == 1 ? *used.begin() : -1;
}

std::vector<Link> find_links(const fs::path& sys) {
  std::vector<Link> links;
  for (const fs::path& device : entries_of(sys / "class/infiniband"))
    for (const fs::path& port : entries_of(device / "ports"))
      if (line_of(port / "state").find("ACTIVE") != std::string::npos)  // "4: ACTIVE"
        links.push_back({device.filename().string(), Link::Kind::infiniband,
                         std::atof(line_of(port / "rate").c_str()) * 1e9 / 8,  // "200 Gb/sec (4X HDR)"
                         numa_in(device / "device")});
  // HPE Slingshot: the interface of cxi0 is hsn0, and has the speed.
  for (const fs::path& device : entries_of(sys / "class/cxi")) {
    const std::string name = device.filename().string();
    const fs::path interface = sys / "class/net" / ("hsn" + name.substr(std::min<std::size_t>(3, name.size())));
    links.push_back({name, Link::Kind::slingshot, speed_of(interface), numa_in(device / "device")});
  }
  if (!links.empty()) return links;
  std::error_code error;
  for (const fs::path& interface : entries_of(sys / "class/net"))
    if (fs::exists(interface / "device", error) && line_of(interface / "operstate") == "up")  // not lo, bridges and the like
      links.push_back(
          {interface.filename().string(), Link::Kind::ethernet, speed_of(interface), numa_in(interface / "device")});
  return links;
}

double bytes_per_s(const std::vector<Link>& links) {
  double sum = 0;
  for (const Link& link : links) sum += link.bytes_per_s;
  return sum;
}

std::string describe(const std::vector<Link>& links) {
  const bool known = !links.empty() && links.front().bytes_per_s > 0;
  return known ? format("{} x {:.3g} GB/s", links.size(), links.front().bytes_per_s / 1e9) : std::string();
}

std::string advise_network(const std::string& network, const std::vector<Link>& links) {
  if (!network.starts_with("TCP") || links.empty() || !links.front().is_fast()) return "";
  return links.front().kind == Link::Kind::slingshot
             ? "load the plugin aws-ofi-nccl (module load aws-ofi-nccl; it must be in LD_LIBRARY_PATH of all ranks), or set "
               "NCCL_NET='AWS Libfabric', which makes NCCL say why the plugin is missing"
             : "on AWS (EFA) load aws-ofi-nccl; else see that libibverbs.so.1 is installed on all nodes and NCCL_IB_DISABLE is "
               "not set, or set NCCL_NET=IB, which makes NCCL say what is missing";
}

std::vector<int> choose_gpus(const std::vector<std::int64_t>& ranks, const std::vector<std::int64_t>& gpus) {
  std::vector<int> chosen;
  for (std::size_t r = 0; r < ranks.size(); ++r) chosen.push_back(static_cast<int>(r % gpus.size()));
  std::map<std::int64_t, std::vector<int>> gpus_by_numa, ranks_by_numa;
  for (std::size_t g = 0; g < gpus.size(); ++g) gpus_by_numa[gpus[g]].push_back(static_cast<int>(g));
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks_by_numa[ranks[r]].push_back(static_cast<int>(r));
  for (const auto& [numa, of_numa] : ranks_by_numa)
    if (numa < 0 || gpus_by_numa[numa].size() != of_numa.size()) return chosen;
  for (const auto& [numa, of_numa] : ranks_by_numa)
    for (std::size_t i = 0; i < of_numa.size(); ++i) chosen[static_cast<std::size_t>(of_numa[i])] = gpus_by_numa[numa][i];
  return chosen;
}

}  // namespace fsdp
