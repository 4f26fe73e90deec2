// The data that the checks of fsdp-doctor share: the ranks of the job and their nodes, and results of earlier checks.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backend.hpp"
#include "comm/launcher.hpp"
#include "device/device.hpp"
#include "fsdp-doctor/report.hpp"
#include "machine/compute_device.hpp"

namespace fsdp {

struct DoctorOptions {
  std::filesystem::path save_dir = "checkpoints";
  std::filesystem::path nvme_path;  // the folder for state in files; empty: not checked
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;                               // of a rank; 0 means as many as fsdp-train would use
  CommOptions comm = {.kind = "auto", .timeout_s = 20};  // as in training; timeout_s limits all waits
  bool json = false;
  std::filesystem::path pack, out;  // the run that is packed, and the archive; empty: none, and a name in this folder
  // For --transports:
  bool transports = false;
  int nodes = 0, ranks_per_node = 0;  // 0: those of the job
  std::string launcher;               // words that start ranks; empty: those of the job's scheduler
  double transport_limit_s = 60;      // of one transport
  std::string arch = "gpt2";
  std::filesystem::path model;
  ConfigOverrides sizes;
  ShardingOptions sharding;
  std::vector<std::string> of_bench;  // the options of fsdp-bench collectives
};

/// How the ranks were started, according to the environment before MPI starts.
struct Start {
  LaunchedRanks launched = {};
  std::string launcher = {};  // "srun with PMIx 4.2.2", "mpirun"; empty if there is none
  std::string library = {};   // "Open MPI v4.1.4"
};

class ProbeFolder;

struct DoctorJob {
  using Connect = std::function<std::unique_ptr<Communicator>(const CommOptions&)>;
  /// `connect_ranks` makes a communicator of all ranks with the given options. Collective over all ranks.
  DoctorJob(const DoctorOptions& wanted, const Start& started, Connect connect_ranks);
  ~DoctorJob();

  const DoctorOptions& options;
  const Start& start;
  Connect connect;
  std::unique_ptr<Communicator> world;  // all ranks, connected by MPI messages only
  std::unique_ptr<Communicator> node;   // the ranks of this node
  std::vector<std::string> nodes;       // the names of the nodes, ordered by their lowest ranks
  std::vector<int> leaders;             // the lowest rank of each node
  std::vector<std::size_t> ranks_of;    // the number of ranks of each node
  std::vector<int> node_of;             // the node of each rank, as an index in `nodes`
  std::unique_ptr<Device> device;       // the device of the job; the CPU until a check has found a GPU
  std::unique_ptr<ProbeFolder> probe;   // set on all ranks by check_save_folder(); null if the folder cannot be used

  std::vector<std::string> processors;  // the name of each node's processor; set by check_processors()

  bool is_leader() const { return node->rank() == 0; }
  std::size_t my_node() const { return static_cast<std::size_t>(node_of[static_cast<std::size_t>(world->rank())]); }
  /// Returns the values of the lowest rank of each node, ordered by node. Collective.
  template <class T>
  auto of_nodes(const T& mine) const {
    const auto by_rank = world->gather(mine);
    auto values = by_rank;
    values.clear();
    for (const int leader : leaders) values.push_back(by_rank[static_cast<std::size_t>(leader)]);
    return values;
  }
  /// Returns the sum over the ranks of each node, ordered by node. Collective.
  std::vector<double> sums_of_nodes(double mine) const;
};

/// Returns "AVX2" if all values are the same, else "AVX2 on node1; AVX-512 on node2 and node3".
std::string by_value(const std::vector<std::string>& nodes, const std::vector<std::string>& values);
bool all_equal(const std::vector<std::string>& values);

}  // namespace fsdp
