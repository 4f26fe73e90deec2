// The processes of a job that train together, one of which is this one.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace fsdp {

struct JobOptions {
  std::string device = "auto";  // "cpu", "cuda", or "auto": a GPU where this process sees one
  std::string comm = "auto";    // how ranks exchange data, all in one way: "auto", "shm", "mpi" or "nccl"
  int threads = 0;              // OpenMP threads of this rank; 0: its share of the node's cores
  double timeout_s = 600;       // a rank that does not come to a collective for so long ends the job
};

/// All processes of MPI_COMM_WORLD; their number and this one's are the world size and the rank. Its constructor is collective.
class Job {
 public:
  /// If the program has called MPI_Init, the program calls MPI_Finalize, too, before or after this object goes; else MPI ends
  /// with this object and all that was made with it, and cannot begin again. Throws UserError (no such device, another MPI's
  /// launcher), as collective functions do behind MPI_Finalize. libfsdp calls MPI from the thread that calls libfsdp, and from
  /// no other.
  explicit Job(const JobOptions& options = {});
  Job(const Job&) = delete;
  ~Job();

  int rank() const;
  int size() const;
  /// "CPU: AVX-512, 2 threads", or the GPU's name.
  std::string device() const;

  // Collective:
  void barrier();
  /// Over all ranks, in an order that depends on their number alone.
  double sum(double mine);
  /// Runs `step`, which must not be collective itself, on every rank. If it throws on any of them, all throw the same
  /// CollectiveError, which run() prints once: for whatever may fail on some ranks alone, such as reading a file, and for the
  /// check of arguments.
  void agree(const std::function<void()>& step);

  // For the library:
  struct Parts;
  explicit Job(std::shared_ptr<Parts> parts);
  std::shared_ptr<Parts> parts() const { return parts_; }

 private:
  std::shared_ptr<Parts> parts_;
};

/// A whole main(): makes a Job, calls `body` with it, and returns what that returns. A CollectiveError, which all ranks throw,
/// is printed once. Of any other exception the rank that has it prints "PROGRAM: rank 2 on node7: MESSAGE" and ends the whole
/// job. The exit code is 2 for a UserError that is no RunError, else 1.
int run(int argc, char** argv, const std::function<int(Job& job)>& body, const JobOptions& options = {});

}  // namespace fsdp
