// What several measurements of fsdp-bench have in common.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "fsdp-bench/bench.hpp"
#include "fsdp/sharded_model.hpp"

namespace fsdp {

/// The upper one of two in the middle.
double median(std::vector<double> values);

/// Seconds of each call of `work`, which gives work to the stream, by the stream's own marks: of at least 3 calls, that
/// together fill about `seconds`, after one that does not count. The stream must be idle.
std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work);

/// "512 GFLOP/s" of a CPU, "512.0 TFLOP/s" of a GPU.
std::string format_rate(double flops, DeviceKind kind);
/// "71 %"; "-" where the peak is not known.
std::string format_share(double flops, std::optional<double> peak);

/// Batches of random tokens, the same in each update, others on each rank.
BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank);

/// torch_checkpoint.py and torch_optimizer.py, which are compiled into the program: it needs no other file, wherever it lies.
extern const char torch_checkpoint_py[];
extern const char torch_optimizer_py[];

/// A Python process that works whenever it is asked to. Its script prints the version of torch, and one line for each line that
/// it reads.
class PythonProcess {
 public:
  /// Throws UserError if it ends before its first line.
  PythonProcess(const std::filesystem::path& python, const std::string& script);
  PythonProcess(const PythonProcess&) = delete;
  /// Ends its input, and waits for its end.
  ~PythonProcess();

  /// Its answer to a line. Throws RunError if it has ended.
  std::string ask(const std::string& question);
  const std::string& torch_version() const { return version_; }

 private:
  std::string line();

  pid_t child_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  std::string version_;
};

}  // namespace fsdp
