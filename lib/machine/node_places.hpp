// What Linux's sysfs says of a node: its NUMA nodes (memory and the processors next to it), which of them a GPU or a network
// link is attached to, and how fast its links are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

/// The NUMA node of a PCI device (Device::place(), "0000:3b:00"); -1: unknown, or the node has only one.
int numa_of_gpu(const std::string& place, const std::filesystem::path& sys = "/sys");
/// The only NUMA node whose processors the calling thread may use; -1: several, unknown, or the node has only one.
int numa_of_thread(const std::filesystem::path& sys = "/sys");
/// The numbers in Linux's list of processors: "0-2,8" is 0, 1, 2 and 8.
std::vector<std::size_t> processors_in(const std::string& list);

/// A network link that is up.
struct Link {
  std::string name;  // "mlx5_0", "cxi0", "eth0"
  enum class Kind { infiniband, slingshot, ethernet } kind = Kind::ethernet;
  double bytes_per_s = 0;  // in one direction; 0: unknown
  int numa = -1;           // as numa_of_gpu()
  bool is_fast() const { return kind != Kind::ethernet; }
};
/// The InfiniBand and Slingshot links of this node or, if it has none, its Ethernet interfaces; in the order of their names.
/// RoCE counts as InfiniBand.
std::vector<Link> find_links(const std::filesystem::path& sys = "/sys");
/// The sum over the links; 0: unknown.
double bytes_per_s(const std::vector<Link>& links);
/// "4 x 25 GB/s", with the rate of the first link; empty if there is no link, or if its rate is unknown.
std::string describe(const std::vector<Link>& links);

/// If NCCL's network (DeviceGroups::network) is TCP although the node has a fast link: what to do. Else empty.
std::string advise_network(const std::string& network, const std::vector<Link>& links);

/// Returns the index of a GPU for each rank of a node. `ranks` and `gpus`, which is not empty, have the NUMA nodes. If each
/// rank is bound to a NUMA node that has as many GPUs as ranks, ranks get GPUs of their NUMA nodes, in order; else rank r gets
/// GPU r modulo their number.
std::vector<int> choose_gpus(const std::vector<std::int64_t>& ranks, const std::vector<std::int64_t>& gpus);

}  // namespace fsdp
