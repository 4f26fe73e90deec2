// The metrics file, to which lines of JSON are appended. When a run resumes, it marks the lines of updates that it repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/timer.hpp"
#include "record/goodput.hpp"

namespace fsdp {

/// The canonical absolute path of a folder, without links and final "/". The folder need not exist.
std::string whole_path(const std::filesystem::path& path);

/// A file that lines are appended to. Only rank 0 opens one.
class MetricsFile {
 public:
  MetricsFile() = default;  // no file: append() does nothing
  /// Opens the file; creates it and its folder if they do not exist. Throws UserError if the file cannot be opened or is not a
  /// metrics file.
  explicit MetricsFile(const std::filesystem::path& path) { open(path); }
  MetricsFile(const MetricsFile&) = delete;
  ~MetricsFile();
  /// Opens the file, as the constructor with a path does. Call it at most once.
  void open(const std::filesystem::path& path);

  bool is_open() const { return fd_ >= 0 && !failed_; }
  const std::filesystem::path& path() const { return path_; }
  /// Locks the file, if it is a plain file, until this object or the process ends. Then, if the last line is incomplete,
  /// appends a line end, so that the next line can be read. Throws RunError if another run still has the lock after
  /// `patience_s` seconds. On a file system without locks, two runs are not noticed.
  void take(double patience_s = 5);
  /// Returns false if the write fails; later calls write nothing and return true.
  [[nodiscard]] bool append(std::string_view line);
  /// Waits until all lines are on the disk. Returns 0, or errno. Another thread may append meanwhile.
  int sync() noexcept;
  /// Returns false if a plain file was opened and its path now leads to something else. Looks at most once a second, or if
  /// `now`.
  bool is_in_place(bool now);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool failed_ = false, is_plain_ = false, taken_ = false, in_place_ = true;
  Timer since_look_;
};

/// The point at which a run starts or resumes.
struct GoesOnAt {
  std::string save_dir;         // identifies the run among those that write to the same file
  std::uint64_t update = 0;     // updates that are done
  std::uint64_t sequences = 0;  // sequences consumed so far
  double start_time = 0;        // the begin of this process, in seconds since 1970
};
struct TakenUp {
  TimeSpent before;              // time of all earlier starts
  std::size_t lost = 0;          // lines of updates that this run repeats
  bool clock_went_back = false;  // the wall clock was set back, so times between lines are unknown
  std::string problem;           // why the `lost` lines could not be marked; empty: all are marked
  std::optional<double> loss;    // of the validation after `update`, if the file has one; NaN: it was not finite
  bool sampled = false;          // the file has a text sample after `update`
};
/// Marks the lines of updates that the run repeats: changes their type from `train`, `valid`, `sample` or `skip` to `lost`, in
/// place. A run that starts at update 0 also repeats the validation before its first update. After that, the file has one
/// `train` line for each update of this run. If the process dies before all lines are marked, the next start marks the rest.
/// Reads the file backwards, up to the latest start of this run with an update that is not repeated, or to the beginning of the
/// file. Does not change lines of other runs; changes none if `only_look` is true. Throws CallError if the file cannot be read.
TakenUp take_up_metrics(const std::filesystem::path& path, const GoesOnAt& at, bool only_look = false);

}  // namespace fsdp
