// Checks of the speed of a job: matrix products on each node, the network between nodes, and the file system. The measurements
// are those of machine/measure.hpp, which fsdp-bench makes, too. Each takes about a second, and begins with a small size, so that
// it ends soon on slow machines, too.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// The speed of the slowest rank of a node, and what may explain it.
struct NodeSpeed {
  std::string node = {};
  double flops = 0;            // FLOP/s of matrix products
  std::string processor = {};  // its name, or that of the GPU; only nodes with the same one are compared
  std::size_t threads = 1;
  double busy = 1;  // the share of the time in which a processor ran the rank (its first thread)
  double load = 0;  // the load of the node (/proc/loadavg) before the check
};
Finding judge_compute(const std::vector<NodeSpeed>& nodes, DType type, bool on_gpu);

/// A network interface of a node.
struct Interface {
  std::string name = {};
  double bytes_sent = 0;  // since the node was started
  double rate = 0;        // bytes per second of its link; 0 if unknown
  bool is_rdma = false;   // InfiniBand or similar, without the kernel's TCP
};
/// Returns this node's interfaces without the loopback. Rates of interfaces without hardware are unknown.
std::vector<Interface> interfaces_of(const std::filesystem::path& proc_net_dev = "/proc/self/net/dev",
                                     const std::filesystem::path& sys = "/sys/class");
/// The interface that has sent most of the `bytes` bytes between two looks at a node's interfaces; its bytes_sent is the
/// increase. Its name is empty if none has sent a fifth of them, such as if the counters cannot be read.
Interface carrier_of(const std::vector<Interface>& before, const std::vector<Interface>& after, double bytes);

/// The network of a node, measured with its neighbours in a ring of the nodes.
struct NodeLink {
  std::string node = {};
  double rate = 0;             // bytes per second that the node sends, while it receives as many: with the faster neighbour
  double latency = 0;          // seconds of a message
  Interface carrier = {};      // what carried the messages
  std::string idle_rdma = {};  // an interface of RDMA that is active, although the messages took another way
};
Finding judge_network(const std::vector<NodeLink>& nodes);

struct FileRates {
  double write = 0, read = 0;  // bytes per second of all ranks together
  double bytes = 0;            // that each rank has written
  std::size_t ranks = 1;
};
Finding judge_files(const FileRates& rates);

/// Also sets job.rates.flops and job.rates.memory.
std::optional<Finding> check_compute(DoctorJob& job);
/// Returns no finding in a job of one node. Also sets the rates of the network in job.rates.
std::optional<Finding> check_network(DoctorJob& job);
/// Returns no finding if the save folder cannot be used.
std::optional<Finding> check_files(DoctorJob& job);

}  // namespace fsdp
