// What --trace writes: when every operation of a few updates ran, on all ranks, in the Trace Event Format that ui.perfetto.dev
// and chrome://tracing read (JSON; times in microseconds). A process is a rank, a thread one of its streams. All ranks run the
// same plan, so that a rank records two times per operation and nothing else.
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
#include "fsdp/executor.hpp"
#include "fsdp/sharded_model.hpp"

namespace fsdp {

struct TraceOptions {
  std::filesystem::path file;  // empty: no trace
  std::size_t updates = 3;
};
void add_trace_options(OptionTable& table, TraceOptions& options);
/// Throws UserError.
void check(const TraceOptions& options);

/// This rank's times. Allocates when it is made, and not while updates run.
class Recorder {
 public:
  Recorder(const Plan& plan, std::size_t updates);
  /// Where update number `update`, which is about to run, is to be recorded: Executor::record(). Nowhere for the first update,
  /// in which libraries prepare themselves, and once all are recorded.
  std::span<OperationTime> next(std::uint64_t update);
  bool full() const { return numbers_.size() == updates_; }
  const std::vector<std::uint64_t>& updates() const { return numbers_; }
  /// One after another, of each update that was recorded.
  std::span<const OperationTime> times() const { return std::span(times_).first(numbers_.size() * operations_); }
  static std::size_t bytes(const Plan& plan, std::size_t updates) {
    return plan.update.size() * updates * sizeof(OperationTime);
  }

 private:
  std::size_t operations_, updates_;
  bool started_ = false;
  std::vector<std::uint64_t> numbers_;
  std::vector<OperationTime> times_;
};

/// The file, under a temporary name until it is whole. Rank 0 has it.
class TraceFile {
 public:
  /// Creates FILE.tmp-PID. Throws UserError.
  explicit TraceFile(const std::filesystem::path& path);
  TraceFile(const TraceFile&) = delete;
  /// Removes what is not finished.
  ~TraceFile();
  const std::filesystem::path& path() const { return path_; }
  void add(const nlohmann::json& event);
  /// Closes the list of events, waits for the disk, renames. Throws RunError for any write that failed.
  void finish(const nlohmann::json& about);

 private:
  void put(const std::string& text);
  std::filesystem::path path_, temporary_;
  std::FILE* file_;
  bool empty_ = true;
  int error_ = 0;  // errno of the first write that failed
};

/// What to add to this rank's clock so that it shows rank 0's time, and how far off that can be.
struct ClockOffset {
  std::int64_t ns = 0, error_ns = 0;
};
/// Ranks on rank 0's node share its clock. Of the others: nobody leaves a barrier before everyone has entered it, so that a
/// barrier bounds the offset from both sides; the best bounds of many barriers are taken, and the middle between them.
/// Collective over world.
ClockOffset clock_offset(Communicator& world, const std::function<std::int64_t()>& clock_ns);

/// Writes what all ranks have recorded, a rank after another, and finishes the file. `file` is rank 0's, null on others.
/// Returns on rank 0 why it could not be written; "" if it was. Collective over world.
std::string write_trace(const Recorder& recorder, const ShardedModel& sharded, Communicator& world, TraceFile* file);

}  // namespace fsdp
