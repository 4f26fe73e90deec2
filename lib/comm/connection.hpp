// How the processes of a group are connected: a table with a row for each way, which is made of the backends in this folder.
// The table is the only place that knows which ways there are. docs/extending-communicator.md adds one from outside.
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
  double timeout_s = 600;                          // how long a rank is waited for; 0: for ever
  SumOrder sum_order = SumOrder::canonical;        // of NCCL's collectives
  std::size_t piece_bytes = std::size_t{1} << 30;  // no message is longer; below 2^31
  int ranks_per_node = 0;                          // for tests: so many consecutive ranks count as a node; 0: as they are
};

/// A group of processes as the job's start and its splits give it: it sends messages, wherever its ranks are, and knows what a
/// backend may need of them.
class MessageGroup : public GroupMember {
 public:
  /// As split(), but the part is such a group, too.
  virtual std::unique_ptr<MessageGroup> split_messages(int color, int key) = 0;
  virtual const CommOptions& options() const = 0;
  /// Numbers of nodes, by rank: ranks with the same number share a node.
  virtual const std::vector<int>& nodes() const = 0;
  /// Ranks of the job, by rank.
  virtual const std::vector<int>& world_ranks() const = 0;
  /// The name of this rank's host, for messages.
  virtual const std::string& host() const = 0;

 protected:
  using GroupMember::GroupMember;
};

/// A way to connect the ranks of a group.
struct Connection {
  std::string_view name;   // what users choose it by
  std::string_view about;  // for the help, behind the name: "by MPI alone"
  /// The same ranks, connected so. Collective; fails on all ranks or on none. What is split from the result must be connected
  /// so, too.
  std::unique_ptr<Communicator> (*connect)(std::unique_ptr<MessageGroup> group);
  /// What staging_bytes() of the result will be, without a group: for plans.
  std::size_t (*staging_bytes)(std::span<const int> nodes);
  /// How groups that span nodes send, for plans, which count the bytes.
  Between between = Between::ranks;
};

/// All rows, those of the library first.
const std::vector<const Connection*>& connections();
/// The row of this name. Throws UserError, which names those that there are.
const Connection& find_connection(std::string_view name);
/// Adds a row; `connection` must live as long as the program. Call it before anything else.
void add_connection(const Connection& connection);

/// The same ranks, connected as their options say.
std::unique_ptr<Communicator> connect(std::unique_ptr<MessageGroup> group);

}  // namespace fsdp
