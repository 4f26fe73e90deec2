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
  SumOrder sum_order = SumOrder::canonical;        // of NCCL's collectives
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

/// A way to connect the ranks of a group.
struct Connection {
  std::string_view name;   // how users name it
  std::string_view about;  // for the help text, after the name: "by MPI only"
  /// Returns the same ranks, connected in this way. Collective; fails on all ranks or on none. split() of the result must
  /// connect the parts in the same way.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<MessageGroup> group);
  /// Returns staging_bytes() of the result without making a group; plans use it. `nodes` has each rank's node.
  std::size_t (*staging_bytes)(std::span<const int> nodes);
  /// How groups that span nodes send, so that plans can count the bytes.
  Between between = Between::ranks;
};

/// All rows, first those of the library.
const std::vector<const Connection*>& connections();
/// Returns the row with this name. Throws UserError, which lists the known names.
const Connection& find_connection(std::string_view name);
/// Adds a row; `connection` must live until the program ends. Call this before any other function of the library.
void add_connection(const Connection& connection);

/// Returns the same ranks, connected as their options.kind says.
std::unique_ptr<Communicator> connect(std::unique_ptr<MessageGroup> group);

}  // namespace fsdp
