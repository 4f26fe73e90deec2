// Event files of TensorBoard: records of length, data and checksums (TFRecord), each with one message Event of
// tensorflow/core/util/event.proto. The tags are those of torchtitan (components/metrics.py), so that its dashboards fit.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

struct Scalar {
  std::string tag;
  double value;
};
/// The scalars of a line of the metrics file; none if the line is neither of type `train` nor `valid`. Fields that are null, or
/// not finite, are left out. `ranks` divides the tokens per second, which torchtitan gives per device.
std::vector<Scalar> tensorboard_scalars(const nlohmann::json& line, int ranks);

/// A new event file in a folder. TensorBoard shows the files of a folder as one run; a later file's begin() removes the steps
/// that it repeats from what is shown. One process at a time writes to a folder.
class TensorBoardFile {
 public:
  /// Creates the folder and the file. Throws UserError if that fails, or if another process has a file open in this folder.
  explicit TensorBoardFile(const std::filesystem::path& folder);
  TensorBoardFile(const TensorBoardFile&) = delete;
  ~TensorBoardFile();

  const std::filesystem::path& path() const { return path_; }
  /// The steps from `step` on are written (again). `time`: seconds since 1970.
  void begin(double time, std::uint64_t step);
  /// Writes one event, so that it outlives this process. An error of the disk is kept: see failed().
  void add(double time, std::uint64_t step, std::span<const Scalar> scalars);
  /// Returns true if a write failed; nothing is written from then on.
  bool failed() const { return failed_; }

 private:
  void record(std::string_view data);

  std::filesystem::path path_;
  int folder_ = -1;  // a descriptor of the folder, which holds the lock
  std::FILE* file_ = nullptr;
  bool failed_ = false;
};

}  // namespace fsdp
