#include "record/flight.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

struct Header {
  std::array<char, 8> magic{'f', 's', 'd', 'p', 'f', 'l', 't', '1'};
  std::uint32_t lanes = flight_lanes, entries = FlightLane::size;
  std::int32_t rank = 0, size = 1;
  std::int64_t process = 0, clock_ns = 0;
  std::int32_t queued = 0, copied = 0;
  FlightEnd end = FlightEnd::none;
  std::int32_t missed = -1;
  std::array<char, 64> host{}, version{};
  std::array<char, 1024> message{};
};

template <std::size_t N>
void put(std::array<char, N>& text, std::string_view what) {
  text = {};
  std::copy_n(what.begin(), std::min(what.size(), N - 1), text.begin());
}
template <std::size_t N>
std::string get(const std::array<char, N>& text) {
  return excerpt(std::string(text.begin(), std::find(text.begin(), text.end(), '\0')), N);
}

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name(int rank, int size) { return format("rank-{:05}-of-{:05}.flight", rank, size); }
bool is_flight_file(const std::string& name) { return name.starts_with("rank-") && name.ends_with(".flight"); }

/// Returns true if the file is on a local file system: stores to the mapped file go to memory, never wait for a server, and
/// cannot fail on a full disk once the space is reserved. Returns false for unknown file systems.
bool is_of_the_node(int fd) {
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return false;
  constexpr unsigned long ext = 0xef53, xfs = 0x58465342, tmpfs = 0x01021994, overlay = 0x794c7630;
  const auto type = static_cast<unsigned long>(info.f_type) & 0xffffffff;
  return type == ext || type == xfs || type == tmpfs || type == overlay;
}

}  // namespace

/// The contents of a flight record's file.
struct FlightContents {
  Header header;
  FlightLanes lanes;
};

namespace {

// A store to a mapped file that somebody has truncated raises SIGBUS. The handler of SIGBUS replaces the mapping by private
// memory, so that training continues.
std::array<std::atomic<std::byte*>, 8> mapped_records;  // at most this many records are mapped
struct sigaction before_records {};

extern "C" void replace_truncated_record(int, siginfo_t* info, void*) {
  for (const auto& record : mapped_records) {
    std::byte* const begin = record;
    if (!begin || info->si_addr < begin || info->si_addr >= begin + sizeof(FlightContents)) continue;
    if (::mmap(begin, sizeof(FlightContents), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        MAP_FAILED)
      return;
  }
  ::sigaction(SIGBUS, &before_records, nullptr);  // the access is repeated, and then calls the previous handler
}

bool watch_record(std::byte* begin) {
  static const bool installed = [] {
    struct sigaction ours {};
    ours.sa_sigaction = replace_truncated_record;
    ours.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, &ours, &before_records) == 0;
  }();
  for (auto& record : mapped_records)
    if (std::byte* none = nullptr; installed && record.compare_exchange_strong(none, begin)) return true;
  return false;
}

void forget_record(std::byte* begin) {
  for (auto& record : mapped_records)
    if (std::byte* ours = begin; record.compare_exchange_strong(ours, nullptr)) return;
}

}  // namespace

FlightFile::FlightFile(const fs::path& folder, int rank, int size, DeviceKind device, FlightMemory memory)
    : path_(folder / file_name(rank, size)) {
  std::error_code ignored;  // opening the file reports the error
  fs::create_directory(folder, ignored);
  record_ = open(memory);
  Header& header = record_->header;
  header.rank = rank, header.size = size;
  header.process = ::getpid();
  header.clock_ns = wall_ns() - now_ns();
  header.queued = !is_host(device), header.copied = !is_mapped();
  put(header.host, host_name());
  put(header.version, version_string());
  if (fd_ >= 0 && !is_mapped()) {
    copy_now();
    copier_ = std::thread([this] { copy_each_second(); });
  }
}

/// Opens the file. Returns the memory that holds the record, which is either the mapped file or own_.
FlightContents* FlightFile::open(FlightMemory memory) {
  const auto failed = [&](const char* what) {
    problem_ = format("{} {}: {}", what, path_.string(), std::strerror(errno));
    if (fd_ >= 0) ::close(std::exchange(fd_, -1)), ::unlink(path_.c_str());
  };
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) failed("make");
  // Allocates the disk blocks now: a store to a page without a block would raise SIGBUS on a full disk.
  if (fd_ >= 0) {
    errno = ::posix_fallocate(fd_, 0, sizeof(FlightContents));
    if (errno != 0) failed("reserve space for");
  }
  const bool map = memory == FlightMemory::mapped || (memory == FlightMemory::automatic && fd_ >= 0 && is_of_the_node(fd_));
  if (fd_ >= 0 && map) {
    void* const place = ::mmap(nullptr, sizeof(FlightContents), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
    if (place != MAP_FAILED && watch_record(static_cast<std::byte*>(place))) {
      mapped_bytes_ = sizeof(FlightContents);
      return new (place) FlightContents;
    }
    if (place != MAP_FAILED) ::munmap(place, sizeof(FlightContents));
  }
  own_ = std::make_unique<FlightContents>();
  return own_.get();
}

FlightFile::~FlightFile() {
  if (copier_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    copier_.join();
  }
  if (is_mapped()) {
    forget_record(reinterpret_cast<std::byte*>(record_));
    ::munmap(record_, mapped_bytes_);
  }
  if (fd_ >= 0) ::close(fd_);
}

FlightLanes& FlightFile::lanes() { return record_->lanes; }

/// Writes the record to the file. An entry that is being stored meanwhile may be incomplete in the file; readers skip it. Write
/// errors are ignored, because other code reports a failing disk.
void FlightFile::copy_now() noexcept { static_cast<void>(::pwrite(fd_, own_.get(), sizeof(FlightContents), 0)); }

void FlightFile::copy_each_second() {
  std::uint64_t copied = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return closing_; })) {
    std::uint64_t now = 0;
    for (const FlightLane& lane : record_->lanes) now += lane.begun.load() + lane.done.load();
    if (std::exchange(copied, now) != now) copy_now();
  }
}

void FlightFile::ends(FlightEnd why, std::string_view message, int missed) noexcept {
  record_->header.missed = missed;
  put(record_->header.message, message);
  record_->header.end = why;
  if (fd_ < 0 || is_mapped()) return;
  const std::lock_guard lock(mutex_);
  copy_now();
}

void FlightFile::remove() noexcept {
  if (fd_ < 0) return;
  const std::lock_guard lock(mutex_);
  try {
    if (is_file_at(fd_, path_) && ::unlink(path_.c_str()) != 0 && errno != ENOENT)  // else the file belongs to another run
      print_warning(
          format("{} could not be removed ({}); remove it, or the next run reports that this one did not end normally",
                 path_.string(), std::strerror(errno)));
  } catch (const CallError&) {
  }
}

FlightNote::FlightNote(FlightLanes& lanes, std::string_view what, std::uint64_t update, Kind kind)
    : lane_(lanes[host_lane]), uncaught_(std::uncaught_exceptions()) {
  FlightEntry entry = flight_entry(what);
  entry.exchanges = kind == Kind::exchange ? 1 : 0;
  begin_operation(lane_, entry, update, now_ns());
}

FlightNote::~FlightNote() {
  if (std::uncaught_exceptions() == uncaught_) end_operation(lane_, now_ns());
}

std::vector<fs::path> flight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    if (is_flight_file(at->path().filename().string())) files.push_back(at->path());
  std::sort(files.begin(), files.end());
  return files;
}

bool put_flight_records_aside(const fs::path& save_dir) {
  const fs::path folder = flight_folder(save_dir), old = save_dir / "flight.old";
  require_no_link(folder);
  if (flight_files(folder).empty()) return false;
  require_no_link(old);
  for (const fs::path& file : flight_files(old)) ::unlink(file.c_str());
  ::mkdir(old.c_str(), 0777);
  bool all = true;
  for (const fs::path& file : flight_files(folder)) {
    if (::rename(file.c_str(), (old / file.filename()).c_str()) == 0) continue;
    ::unlink(file.c_str());  // the new run needs this file name
    all = false;
  }
  remove_flight_folder(save_dir);
  return all;
}

void remove_flight_folder(const fs::path& save_dir) noexcept { ::rmdir(flight_folder(save_dir).c_str()); }

namespace {

/// Returns the complete entries of a lane, by ascending number. `unreadable` counts the incomplete entries, except the one that
/// was being written.
std::vector<FlightEntry> entries_of(const FlightLane& lane, std::uint64_t begun, std::size_t& unreadable) {
  std::vector<FlightEntry> entries;
  const std::uint64_t size = FlightLane::size;
  for (std::uint64_t number = begun > size ? begun - size + 1 : 1; number <= begun; ++number) {
    const FlightEntry& entry = lane.entries[number % size];
    const bool whole = entry.number == number && entry.what.back() == '\0' && entry.what.front() != '\0';
    // The slot of the oldest entry is the next to be overwritten, so the oldest entry does not count as unreadable.
    if (!whole) unreadable += begun > size && number == begun - size + 1 ? 0 : 1;
    if (whole) entries.push_back(entry);
  }
  return entries;
}

}  // namespace

FlightRecord read_flight_record(const fs::path& path) {
  const InputFile file(path);
  const auto refuse = [&](std::string_view why) {
    throw DamagedError(
        format("{} is not a flight record ({}); leave it out, the other records may be enough", path.string(), why));
  };
  if (file.size() != sizeof(FlightContents))
    refuse(format("it has {} bytes instead of {}", file.size(), sizeof(FlightContents)));
  const auto read = std::make_unique<FlightContents>();
  file.read(0, static_cast<void*>(read.get()), sizeof(FlightContents));
  const Header& header = read->header;
  const Header ours;
  if (header.magic != ours.magic) refuse("it does not begin like one");
  if (header.lanes != ours.lanes || header.entries != ours.entries) refuse("it was written by another version");
  if (header.size < 1 || header.rank < 0 || header.rank >= header.size || header.end < FlightEnd::none ||
      header.end > FlightEnd::failed || header.missed < -1 || header.missed >= header.size)
    refuse("its header has impossible values");
  FlightRecord record;
  record.rank = header.rank, record.size = header.size;
  record.host = get(header.host), record.version = get(header.version), record.message = get(header.message);
  record.process = header.process, record.clock_ns = header.clock_ns;
  record.end = header.end, record.missed = header.missed;
  record.queued = header.queued != 0, record.copied = header.copied != 0;
  for (std::size_t i = 0; i < flight_lanes; ++i) {
    const FlightLane& lane = read->lanes[i];
    FlightRecord::Lane& mine = record.lanes.emplace_back();
    mine.name = i == host_lane ? "host" : std::string(name_of(static_cast<StreamId>(i)));
    mine.begun = lane.begun.load(), mine.done = lane.done.load();
    if (mine.done > mine.begun || mine.begun > std::uint64_t{1} << 48) refuse("its counts are impossible");
    mine.entries = entries_of(lane, mine.begun, record.unreadable);
  }
  return record;
}

}  // namespace fsdp
