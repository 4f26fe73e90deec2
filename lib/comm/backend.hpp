// How the processes of a group are connected: a table with one row for each way. The rows combine the backends of this folder.
// No other code knows the rows; docs/extending-communicator.md adds one from outside.
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
  std::string kind = "mpi";                        // the name of a row of the table
  double timeout_s = 600;                          // the longest wait for a rank; 0: no limit
  SumOrder sum_order = SumOrder::canonical;        // of a device backend's collectives
  std::size_t piece_bytes = std::size_t{1} << 30;  // the longest message; below 2^31
  int ranks_per_node = 0;                          // for tests: this many consecutive ranks count as a node; 0: real nodes
};

/// A group of processes that sends messages, wherever its ranks are: what the job's start and its splits return. It also gives
/// the facts that backends need.
class MessageGroup : public GroupMember {
 public:
  /// As split(), but the result is a MessageGroup, too.
  virtual std::unique_ptr<MessageGroup> split_messages(int color, int key) = 0;
  virtual const CommOptions& options() const = 0;
  /// The number of each rank's node, by rank: ranks with the same number share a node.
  virtual const std::vector<int>& nodes() const = 0;
  /// The ranks in the job, by rank of this group.
  virtual const std::vector<int>& world_ranks() const = 0;
  /// The name of this rank's host, for messages.
  virtual const std::string& host() const = 0;

 protected:
  using GroupMember::GroupMember;
};

struct DeviceCommOptions {
  SumOrder sum_order = SumOrder::canonical;
  double timeout_s = 600;  // the longest wait for a rank; 0: no limit
};

/// What a device backend's communicators of a job share: the communicator of all ranks, from which the others are split, and
/// the watchdog over collectives in progress.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;
  /// Returns the collectives of the ranks of `group`, over a new communicator. Each axis and each stream needs its own, because
  /// the collectives of one communicator run one after another. `group` and this object must outlive the result. Collective
  /// over all ranks of the job; each rank passes the group that it belongs to.
  virtual std::unique_ptr<Collectives> make(Communicator& group) = 0;
};

/// The functions of a device backend whose library was found.
struct DeviceLibrary {
  /// "2.28.9"
  std::string (*version)();
  /// Connects the ranks of `world`; `device` is this rank's device, which no other rank uses. Both must outlive the result.
  /// Collective; throws on all ranks or on none.
  std::unique_ptr<DeviceGroups> (*connect)(Communicator& world, Device& device, const DeviceCommOptions& options);
};

/// A library that moves device memory between ranks.
struct DeviceBackend {
  std::string_view name;      // for messages: "NCCL"
  DeviceKind device;          // the kind of device whose memory it moves
  std::size_t staging_bytes;  // the device memory that each communicator uses for sums in canonical order
  /// Returns null and sets *why if the library is missing.
  const DeviceLibrary* (*find)(std::string* why);
};

/// A way to connect the ranks of a group.
struct Backend {
  std::string_view name;   // how users name it
  std::string_view about;  // for the help text, after the name: "only MPI"
  /// Returns the same ranks, connected in this way. Collective; fails on all ranks or on none. split() of the result must
  /// connect the parts in the same way.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<MessageGroup> group);
  /// Returns staging_bytes() of the result without making a group; plans use it. `nodes` has each rank's node.
  std::size_t (*staging_bytes)(std::span<const int> nodes);
  /// How groups that span nodes send, so that plans can count the bytes.
  Between between = Between::ranks;
  /// Moves device memory if each rank has its own device; else, or if null, device memory is copied through host memory.
  const DeviceBackend* device_backend = nullptr;
  bool device_backend_is_required = false;  // an error, where the backend cannot connect the ranks
};

/// The row "auto". Rows for device backends copy what they do not change.
extern const Backend automatic_backend;
/// All rows, first those of the library.
const std::vector<const Backend*>& backends();
/// Returns the row with this name. Throws UserError, which lists the known names.
const Backend& find_backend(std::string_view name);
/// Adds a row; `backend` must live until the program ends. Call this before any other function of the library.
void add_backend(const Backend& backend);

/// Returns the same ranks, connected as their options.kind says.
std::unique_ptr<Communicator> connect(std::unique_ptr<MessageGroup> group);

}  // namespace fsdp
