// Starts and ends MPI in this process.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "comm/backend.hpp"

namespace fsdp {

/// Initializes MPI (thread level SERIALIZED) with MPI_ERRORS_RETURN, so that a failed call throws CallError instead of killing
/// the job. If the program has already initialized MPI, the program also finalizes it, and the error handler of MPI_COMM_WORLD
/// is not changed. Throws CollectiveError if the launcher belongs to another MPI (comm/launcher.hpp), before MPI_Init if the
/// environment variables show that. Ranks other than the launcher's first wait first, until that one has printed the message.
///
/// The destructor finalizes MPI, except during the unwinding of an exception: other ranks may then never call MPI_Finalize, so
/// main() ends the job with abort_job() instead. There can be only one session per process, because MPI's state belongs to the
/// process.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  MpiSession();
  MpiSession(const MpiSession&) = delete;
  ~MpiSession();

  /// Returns the group of all processes of the job. The session must outlive the group and all groups that are split from it.
  /// With options.kind "shm", all ranks throw if the ranks of a node cannot share memory. Collective.
  std::unique_ptr<Communicator> world(const CommOptions& options = {});
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// MPI's name for this host, such as "node3".
  std::string host() const;
  /// Ends all processes of the job with exit code `code`; call it after the error has been printed.
  [[noreturn]] void abort_job(int code) noexcept;
  /// Returns true if MPI has been finalized in this process, so that nothing can be sent any more.
  static bool is_over();
  /// MPI's version text: "Open MPI v4.1.4, ...".
  static std::string library_version();
  /// Returns true if MPI has a client of process managers besides its own: Slurm's PMI for Open MPI, and for others any library
  /// of PMI or PMIx. If so, only MPI_Init can tell whether the launcher connects the ranks.
  static bool has_client();

 private:
  void start(int& argc, char**& argv);

  int rank_ = 0, size_ = 1;
  bool began_here_ = true;
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

}  // namespace fsdp
