// The flight record of a rank as a file in the save folder: what the rank did last is there however its process ends, by
// SIGKILL too, without anything being done at the end. A run that ends in good order removes it; fsdp-inspect reads what is
// left.
//
// Where the file system is one of the node's own disks, the file is mapped: a note of an operation is a store to memory, the
// kernel has it at once, and it outlives the process. On any other one (NFS, Lustre, ...) a store to a mapped file may wait for
// the server, when the page is just being written there, and a full disk ends the process (SIGBUS): so there the notes are
// taken in memory, and a thread copies them to the file once a second. If somebody truncates a mapped file, its record is lost,
// and the run continues.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/flight.hpp"

namespace fsdp {

struct RunContext;

/// Runs `work` with a flight record of what this rank does. It goes if all ranks end together, even with an error, which is
/// told then; it stays where a rank dies, or ends for a reason that others may not know. Collective over run.world.
int with_flight_record(const RunContext& run, DeviceKind device, const std::function<int(FlightLanes&)>& work);

enum class FlightMemory { automatic, mapped, copied };
/// Why a process ended, as far as it could say.
enum class FlightEnd : std::int32_t { none, waited, failed };  // nothing said; another rank did not come; an error of its own

struct FlightContents;

class FlightFile {
 public:
  /// Makes the folder, and in it the file of this rank. Never throws for want of a file: training is worth more than its
  /// record, and problem() says what is the matter. Not collective.
  FlightFile(const std::filesystem::path& folder, int rank, int size, DeviceKind device,
             FlightMemory memory = FlightMemory::automatic);
  FlightFile(const FlightFile&) = delete;
  /// Leaves the file where it is.
  ~FlightFile();

  FlightLanes& lanes();
  const std::string& problem() const { return problem_; }
  bool is_mapped() const { return mapped_bytes_ > 0; }
  /// Notes why this rank ends; `missed` is the rank that it has waited for in vain, of several the first, if it knows.
  void ends(FlightEnd why, std::string_view message, int missed = -1) noexcept;
  /// Removes the file: the run has ended well.
  void remove() noexcept;

 private:
  FlightContents* open(FlightMemory memory);
  void copy_now() noexcept;
  void copy_each_second();

  std::filesystem::path path_;
  std::string problem_;
  int fd_ = -1;
  std::size_t mapped_bytes_ = 0;
  std::unique_ptr<FlightContents> own_;  // where the file is not mapped
  FlightContents* record_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread copier_;
};

/// What the host does between operations, from construction to destruction: an entry of its lane.
class FlightNote {
 public:
  enum class Kind { alone, exchange };  // an exchange: all ranks wait for each other
  FlightNote(FlightLanes& lanes, std::string_view what, std::uint64_t update, Kind kind = Kind::alone);
  FlightNote(const FlightNote&) = delete;
  /// After an exception the entry stays open.
  ~FlightNote();

 private:
  FlightLane& lane_;
  int uncaught_;
};

/// Puts the records of a run that did not end well aside, from save_dir/flight to save_dir/flight.old, in the place of older
/// ones; returns whether there were any, and all could be. Nothing but our files is touched. Of the rank that holds the save
/// folder.
bool put_flight_records_aside(const std::filesystem::path& save_dir);
/// Removes the folder of records if it is empty.
void remove_flight_folder(const std::filesystem::path& save_dir) noexcept;
inline std::filesystem::path flight_folder(const std::filesystem::path& save_dir) { return save_dir / "flight"; }

/// A record as read from its file.
struct FlightRecord {
  struct Lane {
    std::string name;  // "compute"
    std::uint64_t begun = 0, done = 0;
    std::vector<FlightEntry> entries;  // in order of their numbers; those that were whole
  };
  int rank = 0, size = 1;
  std::string host, version, message;
  std::int64_t process = 0;
  std::int64_t clock_ns = 0;  // now_ns() + clock_ns: nanoseconds since 1970
  FlightEnd end = FlightEnd::none;
  int missed = -1;      // the rank that this one has waited for in vain, of several the first; -1: unknown
  bool queued = false;  // the streams of a GPU: "begun" means given to it
  bool copied = false;  // once a second
  std::vector<Lane> lanes;
  std::size_t unreadable = 0;  // entries
};
/// Throws UserError if there is no such file, RunError if it is no record, or too damaged to say anything.
FlightRecord read_flight_record(const std::filesystem::path& path);
/// Files of records in a folder, by name.
std::vector<std::filesystem::path> flight_files(const std::filesystem::path& folder);

}  // namespace fsdp
