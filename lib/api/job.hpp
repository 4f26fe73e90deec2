// The processes of a job that train together; this process is one of them.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace fsdp {

struct JobOptions {
  std::string device = "auto";  // "cpu", "cuda", or "auto": a GPU if this process sees one
  std::string comm = "auto";    // how ranks exchange data, the same on all ranks: "auto", "shm", "mpi" or "nccl"
  int threads = 0;              // OpenMP threads of this rank; 0: its share of the node's cores
  double timeout_s = 600;       // the longest wait for a rank in a collective, after which the job ends; 0: no limit
};

/// All processes of MPI_COMM_WORLD, with this process's rank. The constructor is collective.
class Job {
 public:
  /// If the program has called MPI_Init, it must also call MPI_Finalize, before or after this object is destroyed. Otherwise
  /// MPI is finalized when this object and all objects made with it are destroyed, and cannot start again. Throws UserError (no
  /// such device; the launcher of another MPI); collective functions also throw it after MPI_Finalize. libfsdp calls MPI only
  /// from the thread that calls libfsdp.
  explicit Job(const JobOptions& options = {});
  Job(const Job&) = delete;
  ~Job();

  int rank() const;
  int size() const;
  /// "CPU: AVX-512, 2 threads", or the GPU's name.
  std::string device() const;

  // Collective:
  void barrier();
  /// The sum over all ranks, in an order that depends only on their number.
  double sum(double mine);
  /// Runs `step` on every rank. If it throws on any rank, all ranks throw the same CollectiveError, which run() prints once.
  /// Use it for steps that may fail on some ranks only, such as reading a file, and for checks of arguments. `step` must not be
  /// collective itself.
  void agree(const std::function<void()>& step);

  // For the library:
  struct Parts;
  explicit Job(std::shared_ptr<Parts> parts);
  std::shared_ptr<Parts> parts() const { return parts_; }

 private:
  std::shared_ptr<Parts> parts_;
};

/// A whole main(): makes a Job, calls `body` with it, and returns the result of `body`. A CollectiveError, which all ranks
/// throw, is printed once. For any other exception, the rank that threw it prints "PROGRAM: rank 2 on node7: MESSAGE" and ends
/// the whole job. The exit code is 2 for a UserError that is not a RunError, else 1.
int run(int argc, char** argv, const std::function<int(Job& job)>& body, const JobOptions& options = {});

}  // namespace fsdp
