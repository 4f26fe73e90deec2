// Writes the file of --trace: the times of every operation of a few updates on all ranks, in the Trace Event Format that
// ui.perfetto.dev and chrome://tracing read (JSON; times in microseconds). A process in the file is a rank, and a thread is one
// of the rank's streams. All ranks run the same plan, so a rank only records the times at which each operation begins and ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"
#include "comm/communicator.hpp"
#include "run/observer.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct TraceOptions {
  std::filesystem::path file;  // empty: no trace
  std::size_t updates = 3;
};
void add_trace_options(OptionTable& table, TraceOptions& options);

/// The recorded times of this rank, if an executor has it as observer. The memory is allocated at construction, not while
/// updates run.
class Recorder : public Observer {
 public:
  Recorder(const Plan& plan, std::size_t updates);
  /// Records the next update that runs. Does nothing the first time, because libraries initialize themselves in the first
  /// update, and once all updates are recorded.
  void record_next();
  bool needs_times(const ListRun& run) override { return waits_ && &run.operations == &plan_.update; }
  void finished(const ListRun& run) override;
  bool full() const { return numbers_.size() == updates_; }
  const std::vector<std::uint64_t>& updates() const { return numbers_; }
  /// The times of the recorded updates, one update after the other.
  std::span<const OperationTime> times() const { return std::span(times_).first(numbers_.size() * plan_.update.size()); }
  static std::size_t bytes(const Plan& plan, std::size_t updates) {
    return plan.update.size() * updates * sizeof(OperationTime);
  }

 private:
  const Plan& plan_;
  const std::size_t updates_;
  bool started_ = false, waits_ = false;  // waits_: for the next update
  std::vector<std::uint64_t> numbers_;
  std::vector<OperationTime> times_;
};

/// The trace file, which has a temporary name until it is complete. Only rank 0 has one.
class TraceFile {
 public:
  /// Creates FILE.tmp-PID. `save_folder`, if given, tells readers of which run the trace is. Throws UserError.
  explicit TraceFile(const std::filesystem::path& path, std::string save_folder = {});
  TraceFile(const TraceFile&) = delete;
  /// Removes the file if finish() has not completed it.
  ~TraceFile();
  const std::filesystem::path& path() const { return path_; }
  void add(const nlohmann::json& event);
  /// Closes the list of events, syncs the file to disk and renames it. Throws RunError if any write failed.
  void finish(const nlohmann::json& about);

 private:
  void put(const std::string& text);
  std::filesystem::path path_, temporary_;
  std::string save_folder_;
  std::FILE* file_;
  bool empty_ = true;
  int error_ = 0;  // errno of the first write that failed
};

/// The offset to add to this rank's clock to get rank 0's time, and the maximum error of the offset.
struct ClockOffset {
  std::int64_t ns = 0, error_ns = 0;
};
/// Ranks on rank 0's node share its clock. For a rank on another node, each barrier gives an upper and a lower bound of the
/// offset, because no rank leaves a barrier before all ranks have entered it. The result is the middle between the tightest
/// bounds from many barriers. Collective over world.
ClockOffset clock_offset(Communicator& world, const std::function<std::int64_t()>& clock_ns);

/// Writes the recorded times of all ranks, one rank after the other, and finishes the file. `file` is null except on rank 0. On
/// rank 0 returns why the file could not be written, or "" if it was; on other ranks returns "". Collective over world.
std::string write_trace(const Recorder& recorder, const ShardedModel& sharded, Communicator& world, TraceFile* file);

}  // namespace fsdp
