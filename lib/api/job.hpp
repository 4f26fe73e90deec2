// A job: the processes that train together, of which this process is one.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace fsdp {

/// Options of a Job. comm and sum_order must be the same on all ranks. docs/api-options.md explains each option.
struct JobOptions {
  std::string device = "auto";          // "cpu", "cuda", or "auto": a GPU if this process sees one
  std::string comm = "auto";            // how ranks exchange data: "auto", "shm", "mpi" or "nccl"
  std::string sum_order = "canonical";  // of sums over ranks with NCCL; "library": NCCL's own, which may be faster
  int threads = 0;                      // OpenMP threads of this rank; 0: its share of the node's cores
  double timeout_s = 600;               // the longest wait for a rank in a collective, after which the job ends; 0: no limit
  bool stop_signals = false;     // SIGTERM, SIGINT and SIGUSR1 do not end the program, but make should_stop() return true
  std::string stop_folder = {};  // with stop_signals: should_stop() returns true if this folder has a file "stop"; empty: none
  double stop_before_s = 0;      // should_stop() returns true if the batch job ends within this time; 0: it does not
};

/// The exit code of a program that has saved and stopped because should_stop() returned true, as that of fsdp-train.
inline constexpr int stopped_exit_code = 75;

/// With JobOptions::stop_signals, run() calls this function. A program that calls MPI_Init itself calls it first in main():
/// threads that started earlier, such as those of MPI, would not hold the signals, so that these would end the process. Holds
/// SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 in this thread and in all that it starts later. A signal that comes before there is a
/// Job is kept for it. A second SIGINT always ends the process.
void hold_signals();

/// All processes of MPI_COMM_WORLD. The constructor is collective.
class Job {
 public:
  /// If the program has called MPI_Init, it must also call MPI_Finalize, before or after this object is destroyed. Otherwise
  /// MPI is finalized when this object and all objects made with it are destroyed, and cannot start again. Throws UserError if
  /// the device does not exist, or if mpirun or srun belongs to another MPI. After MPI_Finalize, all collective functions throw
  /// UserError. libfsdp calls MPI only from the thread that calls libfsdp.
  explicit Job(const JobOptions& options = {});
  Job(const Job&) = delete;
  ~Job();

  int rank() const;  // the number of this process among all: 0, 1, ... The three functions here are not collective
  int size() const;  // the number of all processes
  /// "CPU: AVX-512, 2 threads", or the GPU's name.
  std::string device() const;

  /// Returns when all ranks have called it. Collective.
  void barrier();
  /// Returns the sum over all ranks. The order of additions depends only on the number of ranks. Collective.
  double sum(double mine);
  /// Runs `step` on every rank. If it throws on any rank, all ranks throw the same CollectiveError, which run() prints once.
  /// Use it for steps that may fail on some ranks only, such as reading a file or checking arguments. `step` must not call
  /// collective functions. Collective.
  void agree(const std::function<void()>& step);
  /// Returns true if the program should save and stop, by JobOptions::stop_signals, stop_folder or stop_before_s, on any rank.
  /// All ranks get the same answer. Call it after each step: it is two small all-reduces. Once it has returned true, it always
  /// does. The file "stop" is removed when it first returns true.
  bool should_stop();
  /// Why should_stop() has returned true, the same text on all ranks: "SIGTERM", "the file checkpoints/stop" or "the job ends
  /// in 4:30 min"; empty before that. Not collective.
  std::string stop_reason() const;

  struct Parts;
  explicit Job(std::shared_ptr<Parts> parts);              // for the library
  std::shared_ptr<Parts> parts() const { return parts_; }  // for the library

 private:
  std::shared_ptr<Parts> parts_;
};

/// The body of main(): makes a Job, calls `body` with it, and returns the result of `body`, which is the exit code. A
/// CollectiveError, which all ranks throw, is printed once, and its exit_code is the exit code. For any other exception, the
/// rank that threw it prints "PROGRAM: rank 2 on node7: MESSAGE" and ends the whole job. The exit code is then 2 for a
/// UserError that is not a RunError, else 1.
int run(int argc, char** argv, const std::function<int(Job& job)>& body, const JobOptions& options = {});

}  // namespace fsdp
