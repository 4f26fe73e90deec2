#include "device/file_storage.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"

namespace fsdp {

namespace {

constexpr std::size_t block_bytes = 4096;  // O_DIRECT needs memory, offset and length to be multiples of this
constexpr std::size_t thread_count = 8;    // also the number of slots for each direction

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
std::string text_of(int error) { return std::generic_category().message(error); }

[[noreturn]] void refuse(const std::filesystem::path& folder, int error) {
  throw UserError(format("no file can be made in {} ({}); choose another `folder of state`, on a drive of this machine",
                         folder.string(), text_of(error)));
}

}  // namespace

OwnedDescriptor open_unnamed(const std::filesystem::path& folder) {
  if (folder.empty())
    throw UserError("no folder is given for the file of the state; give a `folder of state` on a drive of this machine");
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // the file system has only files with names
    std::string name = (folder / "fsdp-state-XXXXXX").string();
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) refuse(folder, errno);
  ::fcntl(fd, F_SETFL, O_DIRECT);
  return OwnedDescriptor(fd);
}

namespace {

/// Returns 0 or the error of the system.
int reserve(int fd, std::size_t bytes) {
  int error;
  do error = bytes > 0 && ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 ? errno : 0;
  while (error == EINTR);
  return error;
}

/// A part of one tile.
struct Part {
  std::size_t tile, begin, bytes;
};

class FileStorage final : public Storage {
 public:
  FileStorage(const std::filesystem::path& folder, std::size_t bytes, Device& device);
  void read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) override;
  void write(Stream& stream, std::size_t begin, const void* from, std::size_t bytes) override;
  DiskTraffic disk_traffic() const override { return {read_, written_}; }
  std::size_t file_bytes() const override;

 private:
  struct Tile {
    std::uint64_t checksum = 0;
    std::size_t bytes = 0;  // those that were written; the others are zero
  };
  /// Memory for one tile, and what a thread does with it.
  struct Slot {
    std::byte* memory;
    Part part = {};
    bool writes = false, done = false;
    std::exception_ptr error = {};
  };
  struct Direction {
    std::mutex mutex;  // locked during a transfer
    std::array<Slot, thread_count> slots;
  };

  template <class Copy>
  void transfer(bool writes, std::size_t begin, std::size_t bytes, const Copy& copy);
  template <class Copy>
  bool use_cache(bool writes, const Part& part, const Copy& copy);
  void give(Slot& slot);
  void take(Slot& slot);
  void work(const std::stop_token& stop);
  void read_tile(std::size_t tile, std::byte* memory, std::size_t bytes);
  void write_tile(std::size_t tile, std::byte* memory, std::size_t bytes);
  template <class Call>
  void call_all(Call call, const char* done, std::size_t tile, std::byte* memory, std::size_t bytes,
                std::atomic<std::uint64_t>& count);
  [[noreturn]] void fail(std::size_t tile, const std::string& problem) const;

  const std::filesystem::path folder_;
  const std::size_t bytes_;
  const OwnedDescriptor fd_;
  const Buffer memory_;
  std::vector<Tile> tiles_;
  std::array<Direction, 2> directions_;  // read, write
  std::atomic<std::uint64_t> read_ = 0, written_ = 0;

  // A cache of one tile, for transfers of a part of a tile. A changed tile is written when another one takes its place.
  std::mutex cache_mutex_;
  std::byte* cache_ = nullptr;
  std::size_t cached_ = static_cast<std::size_t>(-1), cached_bytes_ = 0;
  bool changed_ = false;

  // The slots that no thread has begun, in order.
  std::mutex mutex_;
  std::condition_variable_any is_given_, is_done_;
  std::array<Slot*, 2 * thread_count> given_ = {};
  std::size_t given_count_ = 0, begun_count_ = 0;
  std::vector<std::jthread> threads_;  // the last member: they end before the others do
};

FileStorage::FileStorage(const std::filesystem::path& folder, std::size_t bytes, Device& device)
    : folder_(folder),
      bytes_(bytes),
      fd_(open_unnamed(folder)),
      memory_(device.allocate_staging(file_staging_bytes)),
      tiles_(rounded_up(bytes, tile_bytes) / tile_bytes) {
  const std::size_t wanted = tiles_.size() * tile_bytes;
  const std::size_t free = free_bytes_of(folder);
  const int error = reserve(fd_, wanted);
  if (error == EFBIG)
    throw UserError(
        format("a file of {} for the state of this rank cannot be made in {} ({}); raise the limit of a file's size "
               "(ulimit -f), or use more ranks",
               format_bytes(static_cast<double>(wanted)), folder_.string(), text_of(error)));
  if (error == ENOSPC || error == EDQUOT)
    throw UserError(format(
        "{} for the state of this rank cannot be reserved in {} ({}; {} are free); free space there, choose "
        "another `folder of state`, or use more nodes",
        format_bytes(static_cast<double>(wanted)), folder_.string(), text_of(error), format_bytes(static_cast<double>(free))));
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) refuse(folder_, error);
  // A tile for each slot and the cached one.
  static_assert(file_staging_bytes >= (2 * thread_count + 1) * tile_bytes + block_bytes);
  auto* memory = memory_.data() + rounded_up(reinterpret_cast<std::uintptr_t>(memory_.data()), block_bytes) -
                 reinterpret_cast<std::uintptr_t>(memory_.data());
  for (Direction& direction : directions_)
    for (Slot& slot : direction.slots) slot.memory = std::exchange(memory, memory + tile_bytes);
  cache_ = memory;
  while (threads_.size() < thread_count) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    pthread_setname_np(threads_.back().native_handle(), "fsdp-file");
  }
}

std::size_t FileStorage::file_bytes() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) refuse(folder_, errno);
  return static_cast<std::size_t>(info.st_size);
}

void FileStorage::read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) {
  transfer(false, begin, bytes, [&](std::byte* memory, std::size_t at, std::size_t count) {
    stream.copy(static_cast<std::byte*>(to) + at, memory, count);
  });
}

void FileStorage::write(Stream& stream, std::size_t begin, const void* from, std::size_t bytes) {
  transfer(true, begin, bytes, [&](std::byte* memory, std::size_t at, std::size_t count) {
    stream.copy(memory, static_cast<const std::byte*>(from) + at, count);
  });
}

/// `copy(memory, at, count)` copies between the memory of a slot and bytes [at, at + count) of the caller's memory. It is
/// called on the stream's thread: other threads may have no access to the memory of a device. After an error, no more tiles are
/// begun.
template <class Copy>
void FileStorage::transfer(bool writes, std::size_t begin, std::size_t bytes, const Copy& copy) {
  expect(begin + bytes <= bytes_, "bytes of the file");
  Direction& direction = directions_[writes];
  const std::lock_guard one_transfer(direction.mutex);
  const std::size_t end = begin + bytes;
  std::size_t next = begin, given = 0, taken = 0;
  std::exception_ptr error;
  while (next < end || taken < given) try {
      if (next < end && given - taken < thread_count) {
        const std::size_t at = next - begin;
        const Part part = {next / tile_bytes, next % tile_bytes, std::min(end - next, tile_bytes - next % tile_bytes)};
        next += part.bytes;
        if (use_cache(writes, part, [&](std::byte* memory) { copy(memory, at, part.bytes); })) continue;
        Slot& slot = direction.slots[given % thread_count];
        if (writes) copy(slot.memory, at, part.bytes);
        slot.part = part, slot.writes = writes;
        give(slot), ++given;
      } else {
        Slot& slot = direction.slots[taken++ % thread_count];
        take(slot);
        if (!writes && !error) copy(slot.memory, slot.part.tile * tile_bytes + slot.part.begin - begin, slot.part.bytes);
      }
    } catch (...) {
      if (!error) error = std::current_exception();
      next = end;
    }
  if (error) std::rethrow_exception(error);
}

/// Copies the part through the cached tile if it is in that tile or only a part of a tile; else returns false.
template <class Copy>
bool FileStorage::use_cache(bool writes, const Part& part, const Copy& copy) {
  const std::lock_guard lock(cache_mutex_);
  if (part.tile != cached_) {
    if (part.begin == 0 && part.bytes >= tiles_[part.tile].bytes) return false;
    if (changed_) write_tile(cached_, cache_, cached_bytes_);
    changed_ = false, cached_ = static_cast<std::size_t>(-1);
    read_tile(part.tile, cache_, tile_bytes);
    cached_ = part.tile, cached_bytes_ = tiles_[part.tile].bytes;
  }
  copy(cache_ + part.begin);
  if (writes) changed_ = true, cached_bytes_ = std::max(cached_bytes_, part.begin + part.bytes);
  return true;
}

void FileStorage::give(Slot& slot) {
  const std::lock_guard lock(mutex_);
  slot.done = false;
  given_[given_count_++ % given_.size()] = &slot;
  is_given_.notify_one();
}

/// Waits until a thread is done with the slot, and throws its error.
void FileStorage::take(Slot& slot) {
  {
    std::unique_lock lock(mutex_);
    is_done_.wait(lock, [&] { return slot.done; });
  }
  if (slot.error) std::rethrow_exception(std::exchange(slot.error, nullptr));
}

void FileStorage::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (is_given_.wait(lock, stop, [this] { return begun_count_ < given_count_; })) {
    Slot& slot = *given_[begun_count_++ % given_.size()];
    lock.unlock();
    try {
      slot.writes ? write_tile(slot.part.tile, slot.memory, slot.part.bytes)
                  : read_tile(slot.part.tile, slot.memory, slot.part.bytes);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    slot.done = true;
    is_done_.notify_all();
  }
}

/// Reads the tile's first `bytes` bytes, which include all that were written.
void FileStorage::read_tile(std::size_t tile, std::byte* memory, std::size_t bytes) {
  const Tile& stored = tiles_[tile];
  call_all(::pread, "read", tile, memory, rounded_up(stored.bytes, block_bytes), read_);
  if (stored.bytes > 0 && checksum(memory, stored.bytes) != stored.checksum)
    fail(tile, "has other bytes than were written (its checksum is another one)");
  std::memset(memory + stored.bytes, 0, bytes - stored.bytes);
}

/// Writes the tile's first `bytes` bytes, which include all that were written before.
void FileStorage::write_tile(std::size_t tile, std::byte* memory, std::size_t bytes) {
  const std::size_t whole = rounded_up(bytes, block_bytes);
  std::memset(memory + bytes, 0, whole - bytes);
  tiles_[tile] = {checksum(memory, bytes), bytes};  // a write that fails leaves a tile that cannot be read
  call_all(::pwrite, "written", tile, memory, whole, written_);
}

template <class Call>
void FileStorage::call_all(Call call, const char* done, std::size_t tile, std::byte* memory, std::size_t bytes,
                           std::atomic<std::uint64_t>& count) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t n = call(fd_, memory + at, bytes - at, static_cast<off_t>(tile * tile_bytes + at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(tile, format("cannot be {} ({})", done, n < 0 ? text_of(errno) : "the file ends there"));
    const auto moved = static_cast<std::size_t>(n);
    count += moved;
    at += moved;
    if (at < bytes && moved >= block_bytes) at -= at % block_bytes;  // O_DIRECT continues at whole blocks
  }
}

void FileStorage::fail(std::size_t tile, const std::string& problem) const {
  throw RunError(
      format("tile {} of the state in {} {}; choose another `folder of state`, and continue from the last "
             "checkpoint",
             tile, folder_.string(), problem));
}

constexpr std::pair<std::uint32_t, const char*> network_file_systems[] = {
    {NFS_SUPER_MAGIC, "NFS"}, {SMB_SUPER_MAGIC, "CIFS"}, {0xff534d42, "CIFS"}, {0xfe534d42, "CIFS"}, {0x0bd00bd0, "Lustre"},
    {0x47504653, "GPFS"},     {0x19830326, "BeeGFS"},    {0x00c36400, "Ceph"}, {0x65735546, "FUSE"}, {V9FS_MAGIC, "9P"}};

}  // namespace

std::unique_ptr<Storage> make_file_storage(const std::filesystem::path& folder, std::size_t bytes, Device& device) {
  return std::make_unique<FileStorage>(folder, bytes, device);
}

std::string check_storage_folder(const std::filesystem::path& folder) {
  const OwnedDescriptor fd = open_unnamed(folder);
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) refuse(folder, errno);
  const auto type = static_cast<std::uint32_t>(info.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC)
    throw UserError(
        format("{} is in memory (a tmpfs), so state in its files would save no memory; choose another "
               "`folder of state`, on a drive of this machine",
               folder.string()));
  for (const auto& [network, name] : network_file_systems)
    if (type == network)
      return format(
          "{} is a file system over the network ({}), whose rate all ranks of the job share; choose a `folder of state` on a "
          "drive of this machine",
          folder.string(), name);
  if ((::fcntl(fd, F_GETFL) & O_DIRECT) == 0)
    return format(
        "the file system of {} has no direct transfers (O_DIRECT), so the system keeps written state in memory, too; "
        "choose another `folder of state`",
        folder.string());
  if (const int error = reserve(fd, block_bytes); error == EOPNOTSUPP || error == ENOSYS)
    return format("the file system of {} cannot reserve space, so a full disk would end the run later; keep its space free",
                  folder.string());
  return {};
}

std::size_t free_bytes_of(const std::filesystem::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) refuse(folder, errno);
  return static_cast<std::size_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace fsdp
