// The flight record of a rank, as a file in the save folder. It holds the rank's last operations and survives any end of the
// process, SIGKILL too, because nothing has to be written at the end. A run that ends in good order removes its records;
// fsdp-inspect reads the remaining ones.
//
// On a file system on one of the node's own disks, the file is mapped: an entry is a store to memory that the kernel owns at
// once, so it outlives the process. On any other file system (NFS, Lustre, ...) a store to a mapped file may wait for the
// server while it writes that page, and a full disk ends the process (SIGBUS). There, entries go to private memory, and a
// thread copies them to the file once a second. If somebody truncates a mapped file, its record is lost and the run continues.
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

/// Runs `work` with a flight record of this rank's operations, and returns its exit code. The record is removed if all ranks
/// end together, also if they end with the same error, which is then reported. It is kept if a rank dies, or ends for a reason
/// that the others may not know. Collective over run.world.
int with_flight_record(const RunContext& run, DeviceKind device, const std::function<int(FlightLanes&)>& work);

enum class FlightMemory { automatic, mapped, copied };
/// Why a process ended, if it could record that: no record, a rank that did not arrive, an error of its own.
enum class FlightEnd : std::int32_t { none, waited, failed };

struct FlightContents;

class FlightFile {
 public:
  /// Makes the folder and this rank's file in it. Never throws if the file cannot be made, because training matters more than
  /// its record: problem() then holds the reason. Not collective.
  FlightFile(const std::filesystem::path& folder, int rank, int size, DeviceKind device,
             FlightMemory memory = FlightMemory::automatic);
  FlightFile(const FlightFile&) = delete;
  /// Keeps the file.
  ~FlightFile();

  FlightLanes& lanes();
  const std::string& problem() const { return problem_; }
  bool is_mapped() const { return mapped_bytes_ > 0; }
  /// Records why this rank ends. `missed` is the first rank that this one waited for in vain; -1: unknown.
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
  std::unique_ptr<FlightContents> own_;  // the record, if the file is not mapped
  FlightContents* record_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread copier_;
};

/// Records what the host does between operations, from construction to destruction, as one entry of the host's lane.
class FlightNote {
 public:
  enum class Kind { alone, exchange };  // an exchange: all ranks wait for each other
  FlightNote(FlightLanes& lanes, std::string_view what, std::uint64_t update, Kind kind = Kind::alone);
  FlightNote(const FlightNote&) = delete;
  /// If an exception is being thrown, leaves the entry without an end.
  ~FlightNote();

 private:
  FlightLane& lane_;
  int uncaught_;
};

/// Moves the records of a run that did not end in good order from save_dir/flight to save_dir/flight.old, replacing older
/// ones. Returns true if there were records and all could be moved. Touches no files except flight records. For the rank that
/// holds the lock of the save folder.
bool put_flight_records_aside(const std::filesystem::path& save_dir);
/// Removes the folder of records if it is empty.
void remove_flight_folder(const std::filesystem::path& save_dir) noexcept;
inline std::filesystem::path flight_folder(const std::filesystem::path& save_dir) { return save_dir / "flight"; }

/// A record as read from its file.
struct FlightRecord {
  struct Lane {
    std::string name;  // "compute"
    std::uint64_t begun = 0, done = 0;
    std::vector<FlightEntry> entries;  // the complete ones, in the order of their numbers
  };
  int rank = 0, size = 1;
  std::string host, version, message;
  std::int64_t process = 0;
  std::int64_t clock_ns = 0;  // now_ns() + clock_ns: nanoseconds since 1970
  FlightEnd end = FlightEnd::none;
  int missed = -1;      // the first rank that this one waited for in vain; -1: unknown
  bool queued = false;  // a GPU's streams: "begun" means enqueued
  bool copied = false;  // the file was not mapped, but copied once a second
  std::vector<Lane> lanes;
  std::size_t unreadable = 0;  // the number of incomplete entries
};
/// Throws UserError if the file does not exist, DamagedError (a RunError) if it is not a flight record or is too damaged to
/// read.
FlightRecord read_flight_record(const std::filesystem::path& path);
/// The flight records in a folder, sorted by name.
std::vector<std::filesystem::path> flight_files(const std::filesystem::path& folder);

}  // namespace fsdp
