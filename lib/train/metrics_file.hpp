// The file of metrics: lines of JSON that are appended, and what a run that goes on does about those of updates that it will do
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "train/goodput.hpp"

namespace fsdp {

/// The same for all names of a folder, which need not be there.
std::string whole_path(const std::filesystem::path& path);

/// A file that lines are appended to. Rank 0 has it.
class MetricsFile {
 public:
  MetricsFile() = default;  // none
  /// Makes the file, and its folder, if they are not there. A line that was cut off is ended, so that it does not spoil the
  /// next one. Throws UserError, also for a file that holds something else.
  explicit MetricsFile(std::filesystem::path path);
  MetricsFile(MetricsFile&& other) noexcept { *this = std::move(other); }
  MetricsFile& operator=(MetricsFile&& other) noexcept;
  ~MetricsFile();

  bool is_open() const { return fd_ >= 0 && !failed_; }
  const std::filesystem::path& path() const { return path_; }
  /// False if it could not be written; nothing is written after that.
  [[nodiscard]] bool append(std::string_view line);
  /// Waits until all lines are on the disk, as far as that is possible. Another thread may append.
  void sync() noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool failed_ = false;
};

/// Where a run goes on.
struct GoesOnAt {
  std::string save_dir;         // tells the run from others that write to the same file
  std::uint64_t update = 0;     // done
  std::uint64_t sequences = 0;  // of data used up
  double start_time = 0;        // of this start, in seconds since 1970
};
struct TakenUp {
  TimeSpent before;              // of all earlier starts
  std::size_t lost = 0;          // lines that this call has marked
  bool clock_went_back = false;  // the wall clock does not give the times between lines
  std::string problem;           // why they could not be marked; empty if they could
};
/// Lines of types train, valid and skip that tell of what lies behind the place where the run goes on become lines of type
/// lost, in place: so a reader that takes lines of type train sees each update once. A start that dies in the midst of it
/// leaves the rest to the next one. Looks at lines from the last one back to the update at which the run goes on, and to the
/// last start of the run; what other runs wrote between them, before or behind, stays. Throws CallError if the file
/// cannot be read.
TakenUp take_up_metrics(const std::filesystem::path& path, const GoesOnAt& at);

}  // namespace fsdp
