// The life of MPI in this process.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "comm/connection.hpp"

namespace fsdp {

/// Initialises MPI (thread level SERIALIZED) with MPI_ERRORS_RETURN, so that a failed call throws CallError instead of killing
/// the job from inside. Where the program has initialised MPI already, the program finalises it, too, and what handles errors
/// of MPI_COMM_WORLD stays as it is. Throws UserError if the launcher is another MPI's (comm/launcher.hpp), under Open MPI
/// before MPI starts, if the environment shows it. Its destructor
/// finalises MPI, except while an exception unwinds: then other ranks may never reach the matching call, and main() ends the
/// job with abort_job(). One per process; the only process-wide state here, because it is MPI's own.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  MpiSession();
  MpiSession(const MpiSession&) = delete;
  ~MpiSession();

  /// All processes of the job. Collective; the session must outlive it and its splits. With "shm" it fails on all ranks
  /// if those of a node cannot share memory.
  std::unique_ptr<Communicator> world(const CommOptions& options = {});
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "node3" or what MPI calls this host.
  std::string host() const;
  /// Ends all processes of the job with `code`; used once an error has been printed.
  [[noreturn]] void abort_job(int code) noexcept;
  /// Whether MPI has ended in this process: nothing may be sent any more.
  static bool is_over();
  /// "Open MPI v4.1.4, ..."
  static std::string library_version();
  /// Returns true unless this is an Open MPI that was built without Slurm's PMI (PMI-1 or PMI-2, not PMIx).
  static bool knows_pmi();

 private:
  void start(int& argc, char**& argv);

  int rank_ = 0, size_ = 1;
  bool began_here_ = true;
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

}  // namespace fsdp
