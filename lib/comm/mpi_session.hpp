// The life of MPI in this process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.hpp"

namespace fsdp {

enum class CommKind { automatic, mpi, shm };

/// How the processes of a job communicate.
struct CommOptions {
  /// mpi: by messages. shm: groups whose ranks share a node share memory; groups of several nodes with the same number of
  /// consecutive ranks on each share memory within them and send messages between them; other groups send messages. automatic:
  /// as shm; ranks of a node that cannot share memory send messages instead of failing.
  CommKind kind = CommKind::mpi;
  double timeout_s = 600;                          // how long a rank is waited for; 0: for ever
  std::size_t piece_bytes = std::size_t{1} << 30;  // no message is longer; below 2^31
  int ranks_per_node = 0;                          // for tests: so many consecutive ranks count as a node; 0: as they are
};

/// Initialises MPI (thread level SERIALIZED) with MPI_ERRORS_RETURN, so that a failed call throws CallError instead of killing
/// the job from inside. Throws UserError if the launcher is another MPI's (comm/launcher.hpp). Its destructor finalises MPI,
/// except while an exception unwinds: then other ranks may never reach the matching call, and main() ends the job with
/// abort_job(). One per process; the only process-wide state here, because it is MPI's own.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  MpiSession(const MpiSession&) = delete;
  ~MpiSession();

  /// All processes of the job. Collective; the session must outlive it and its splits. With CommKind::shm it fails on all
  /// ranks if those of a node cannot share memory.
  std::unique_ptr<Communicator> world(const CommOptions& options = {});
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "node3" or what MPI calls this host.
  std::string host() const;
  /// Ends all processes of the job with `code`; used once an error has been printed.
  [[noreturn]] void abort_job(int code) noexcept;
  /// "Open MPI v4.1.4, ..."
  static std::string library_version();

 private:
  int rank_ = 0, size_ = 1;
  int uncaught_at_start_ = 0;
};

/// Communicator::staging_bytes() of a group, without a communicator: `nodes` has the number of each rank's node.
std::size_t planned_staging_bytes(std::span<const int> nodes, CommKind kind);

}  // namespace fsdp
