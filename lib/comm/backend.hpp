// The table of backends: one row for each way to connect the processes of a group, such as "mpi" or "auto". Other code finds a
// row only by its name. docs/extending-communicator.md shows how a program adds a row.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/member.hpp"
#include "comm/topology.hpp"

namespace fsdp {

/// How the processes of a job communicate.
struct CommOptions {
  std::string kind = "mpi";                  // the name of a row (Backend::name)
  double timeout_s = 600;                    // the longest wait for a rank; 0: no limit
  SumOrder sum_order = SumOrder::canonical;  // the order of sums in collectives of GPUs (NCCL)
  /// The most GPU memory in which a group of NCCL exchanges the numbers of a canonical sum. Larger sums are computed in pieces.
  /// Each piece is a group of messages, for which NCCL's host thread needs about 70 us.
  std::size_t sum_staging_bytes = std::size_t{256} << 20;
  std::size_t piece_bytes = std::size_t{1} << 30;  // the longest message, below 2^31
  int ranks_per_node = 0;                          // for tests: this many consecutive ranks count as one node; 0: real nodes
};

/// A group of processes that exchange messages, also between nodes. When a job starts, a MessageGroup of all its processes is
/// made, and the selected backend makes its own communicator from that group. The functions of this class return the options,
/// nodes and hosts that backends need.
class MessageGroup : public GroupMember {
 public:
  /// Like split(), but returns a MessageGroup.
  virtual std::unique_ptr<MessageGroup> split_messages(int color, int key) = 0;
  virtual const CommOptions& options() const = 0;
  /// The number of each rank's node, indexed by rank. Ranks with the same number share a node.
  virtual const std::vector<int>& nodes() const = 0;
  /// For each rank of this group, its rank in the job.
  virtual const std::vector<int>& world_ranks() const = 0;
  /// The name of this rank's host, for messages.
  virtual const std::string& host() const = 0;

 protected:
  using GroupMember::GroupMember;
};

/// Returns the value of staging_bytes() for a MessageGroup of `ranks` ranks. It may be smaller if CommOptions::piece_bytes is
/// smaller than the usual piece.
std::size_t staging_of_messages(std::size_t ranks);

struct DeviceCommOptions {
  SumOrder sum_order = SumOrder::canonical;
  double timeout_s = 600;  // the longest wait for a rank; 0: no limit
};

/// Returns the staging memory of a group of `ranks` GPUs whose largest sum has `largest` bytes: as much as its canonical order
/// needs at once, within the limit of `options`. 0 for a group of one rank.
std::size_t staging_of_sums(const CommOptions& options, std::size_t largest, std::size_t ranks);

/// The data that all communicators of a device backend (such as NCCL) share in a job: the communicator of all ranks, from which
/// the others are split, and the watchdog that detects hanging collectives.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;
  /// Makes a communicator for the ranks of `group` and returns its collectives. Each axis of the mesh and each stream needs its
  /// own communicator, because the collectives of one communicator run one after another. Sums use `staging_bytes` of device
  /// memory, which staging_of_sums() returns; 0 is enough for gathers. `group` and this object must outlive the result.
  /// Collective over all ranks of the job; each rank passes the group that it belongs to.
  virtual std::unique_ptr<Collectives> make(Communicator& group, std::size_t staging_bytes) = 0;
  /// The network between nodes, on all ranks: "libfabric (aws-ofi-nccl 1.11.0, cxi)". Empty if there is one node, or if the
  /// library does not say it.
  std::string network = {};
};

/// The functions of a device backend. DeviceBackend::find returns them if the library of the backend was found.
struct DeviceLibrary {
  /// The version of the library: "2.28.9".
  std::string (*version)();
  /// Connects the ranks of `world`; `device` is this rank's device, which no other rank uses. `world` and `device` must
  /// outlive the result. Collective; throws on all ranks or on none.
  std::unique_ptr<DeviceGroups> (*connect)(Communicator& world, Device& device, const DeviceCommOptions& options);
};

/// A library that moves device memory between ranks.
struct DeviceBackend {
  std::string_view name;  // for messages: "NCCL"
  DeviceKind device;      // the kind of device whose memory it moves
  /// Returns null and sets *why if the library is missing.
  const DeviceLibrary* (*find)(std::string* why);
};

/// A row of the table: a way to connect the ranks of a group.
struct Backend {
  std::string_view name;   // the name that users give
  std::string_view about;  // its description in the help text: "only MPI"
  /// Returns a communicator for the same ranks. split() of the result must connect the ranks of the new groups in the same
  /// way. Collective; fails on all ranks or on none.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<MessageGroup> group);
  /// Returns the value that staging_bytes() of a group's communicator would have. `nodes` has the node of each rank of the
  /// group. Memory plans use this function, because they have no communicator.
  std::size_t (*staging_bytes)(std::span<const int> nodes);
  /// How groups that span nodes communicate. Plans use this value to predict the sent bytes.
  Between between = Between::ranks;
  /// Moves device memory if each rank has its own device. If several ranks share a device, or if this pointer is null, device
  /// memory is copied through host memory.
  const DeviceBackend* device_backend = nullptr;
  bool device_backend_is_required = false;  // true: it is an error if device_backend cannot connect the ranks
};

/// The row "auto". The rows of device backends copy the functions of this row for host memory.
extern const Backend automatic_backend;
/// All rows: those of the library, then those of add_backend().
const std::vector<const Backend*>& backends();
/// Returns the row with this name. Throws UserError, which lists the known names.
const Backend& find_backend(std::string_view name);
/// Adds a row; `backend` must live until the program ends. Call this before any other function of the library.
void add_backend(const Backend& backend);

/// Returns a communicator for the same ranks, made by the row that options().kind names.
std::unique_ptr<Communicator> connect(std::unique_ptr<MessageGroup> group);

}  // namespace fsdp
