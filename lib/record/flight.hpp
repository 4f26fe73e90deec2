// The flight record of a rank: a file in the save folder with the last operations that the rank began and ended. It survives
// any end of the process, even by SIGKILL, because nothing has to be written at the end. A run that ends normally removes its
// records; fsdp-inspect reads the records that are left.
//
// If the file is on one of the node's own disks, it is mapped: an entry is stored in the kernel's page cache, which outlives
// the process. On other file systems (NFS, Lustre, ...) a store to a mapped file may wait until the server has written the
// page, and on a full disk it ends the process (SIGBUS). There, entries are stored in private memory, and a thread copies them
// to the file once a second. If another program truncates a mapped file, the record is lost, but the run continues.
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

#include "run/flight.hpp"

namespace fsdp {

enum class FlightMemory { automatic, mapped, copied };
/// The recorded reason for the end of a process. `none`: no reason was recorded; `waited`: the process waited for another rank
/// in vain; `failed`: the process had an error of its own.
enum class FlightEnd : std::int32_t { none, waited, failed };

struct FlightContents;

class FlightFile {
 public:
  /// Creates the folder and this rank's file in it. If that fails, problem() has the reason; the constructor does not throw,
  /// because training can continue without a record. Not collective.
  FlightFile(const std::filesystem::path& folder, int rank, int size, DeviceKind device,
             FlightMemory memory = FlightMemory::automatic);
  FlightFile(const FlightFile&) = delete;
  /// Closes the file, but does not remove it.
  ~FlightFile();

  FlightLanes& lanes();
  const std::string& problem() const { return problem_; }
  bool is_mapped() const { return mapped_bytes_ > 0; }
  /// Records why this rank ends. `missed` is the first rank that this one waited for in vain; -1: unknown.
  void ends(FlightEnd why, std::string_view message, int missed = -1) noexcept;
  /// Removes the file, unless it now belongs to another run. For a run that ends normally.
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

/// Records an activity of the host between operations, such as a save, as one entry in the lane of the host. The activity lasts
/// from construction to destruction of this object. (A record has one lane of entries for each stream and one for the host.)
class FlightNote {
 public:
  enum class Kind { alone, exchange };  // `exchange`: all ranks wait for each other
  FlightNote(FlightLanes& lanes, std::string_view what, std::uint64_t update, Kind kind = Kind::alone);
  FlightNote(const FlightNote&) = delete;
  /// If an exception is being thrown, leaves the entry without an end.
  ~FlightNote();

 private:
  FlightLane& lane_;
  int uncaught_;
};

/// Moves the records of a run that did not end normally from save_dir/flight to save_dir/flight.old, replacing older ones.
/// Returns true if there were records and all could be moved. Touches no files except flight records. Only the rank that holds
/// the lock of the save folder may call it.
bool put_flight_records_aside(const std::filesystem::path& save_dir);
/// Removes the folder of records if it is empty.
void remove_flight_folder(const std::filesystem::path& save_dir) noexcept;
inline std::filesystem::path flight_folder(const std::filesystem::path& save_dir) { return save_dir / "flight"; }

/// A record as read from its file.
struct FlightRecord {
  struct Lane {
    std::string name;  // "compute"
    std::uint64_t begun = 0, done = 0;
    std::vector<FlightEntry> entries;  // the complete entries, by ascending number
  };
  int rank = 0, size = 1;
  std::string host, version, message;
  std::int64_t process = 0;
  std::int64_t clock_ns = 0;  // now_ns() + clock_ns is the time in nanoseconds since 1970
  FlightEnd end = FlightEnd::none;
  int missed = -1;      // the first rank that this one waited for in vain; -1: unknown
  bool queued = false;  // true: the streams are a GPU's, and "begun" only means enqueued
  bool copied = false;  // true: the file was not mapped, but rewritten once a second
  std::vector<Lane> lanes;
  std::size_t unreadable = 0;  // the number of incomplete entries
};
/// Throws UserError if the file does not exist, DamagedError (a RunError) if it is not a flight record or is too damaged to
/// read.
FlightRecord read_flight_record(const std::filesystem::path& path);
/// The flight records in a folder, sorted by name.
std::vector<std::filesystem::path> flight_files(const std::filesystem::path& folder);

}  // namespace fsdp
