// What several measurements of fsdp-bench have in common.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "fsdp-bench/bench.hpp"
#include "fsdp/sharded_model.hpp"
#include "train/measure.hpp"

namespace fsdp {

/// "512 GFLOP/s" of a CPU, "512.0 TFLOP/s" of a GPU.
std::string format_rate(double flops, DeviceKind kind);
/// "71 %"; "-" where the peak is not known.
std::string format_share(double flops, std::optional<double> peak);

/// Tokens of an update with micro-batches of this shape, of all ranks together.
double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world);
/// Seconds of one update, by the clock of this rank, from when all ranks are there until all are done; the executor's own times
/// are of this update alone afterwards. Collective over world.
double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world);

/// The scripts beside this file, which are compiled into the program: it needs no other file, wherever it lies.
extern const char torch_checkpoint_py[];
extern const char torch_generate_py[];
extern const char torch_optimizer_py[];
extern const char hugging_face_tokenize_py[];

/// A Python process that works whenever it is asked to. Its script prints the version of a package, and one line for each line
/// that it reads.
class PythonProcess {
 public:
  /// Throws UserError if it ends before its first line: then it lacks `package`.
  PythonProcess(const std::filesystem::path& python, const std::string& script, const std::string& package = "torch");
  PythonProcess(const PythonProcess&) = delete;
  /// Ends its input, and waits for its end.
  ~PythonProcess();

  /// Its answer to a line. Throws RunError if it has ended.
  std::string ask(const std::string& question);
  const std::string& version() const { return version_; }

 private:
  std::string line();

  pid_t child_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  std::string package_, version_;
};

}  // namespace fsdp
