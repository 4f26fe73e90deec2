// The storage in a file: any bytes at any place, and what it does if calls of the system fail. This program replaces these
// calls by functions that fail when a test says so.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.hpp"
#include "device/cpu/queue_stream.hpp"
#include "device/file_storage.hpp"
#include "device/memory_view.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

enum class Fault { none, error, half, flip, interrupt };
/// The chosen fault happens in calls [at, at + times) of those that read or write, from 0.
struct Faults {
  Fault fault = Fault::none;
  int error = EIO;
  bool reads = true, writes = true;
  long at = 0, times = 1'000'000;
  std::atomic<long> calls = 0;
  int reserving = 0, unnamed = 0;  // errors of fallocate() and of open() with O_TMPFILE
  std::uint32_t type = 0;          // of file systems; 0: the real one
};
Faults* faults = nullptr;

/// While it lives, calls fail.
struct Failing : Faults {
  Failing() { faults = this; }
  ~Failing() { faults = nullptr; }
};

template <class F>
F* next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

template <class Call>
ssize_t with_fault(bool reads, std::size_t bytes, std::byte* memory, const Call& call) {
  if (!faults || faults->fault == Fault::none || !(reads ? faults->reads : faults->writes)) return call(bytes);
  const long number = faults->calls++;
  if (number < faults->at || number >= faults->at + faults->times) return call(bytes);
  if (faults->fault == Fault::half) return call(bytes > 4096 ? bytes / 2 : bytes);
  if (faults->fault == Fault::interrupt && number % 2 == 0) return errno = EINTR, -1;
  if (faults->fault == Fault::error) return errno = faults->error, -1;
  const ssize_t n = call(bytes);
  if (faults->fault == Fault::flip && n > 0) memory[static_cast<std::size_t>(n) / 3] ^= std::byte{4};
  return n;
}

}  // namespace

extern "C" {
#define FSDP_IO(name, memory_type, reads)                                                                         \
  ssize_t name(int fd, memory_type* memory, size_t bytes, off_t at) {                                             \
    static auto* const real = next(&::name, #name);                                                               \
    return with_fault(reads, bytes, static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(memory))), \
                      [&](std::size_t n) { return real(fd, memory, n, at); });                                    \
  }
FSDP_IO(pread, void, true)
FSDP_IO(pread64, void, true)
FSDP_IO(pwrite, const void, false)
FSDP_IO(pwrite64, const void, false)
#define FSDP_FALLOCATE(name)                                               \
  int name(int fd, int mode, off_t at, off_t bytes) {                      \
    static auto* const real = next(&::name, #name);                        \
    if (faults && faults->reserving) return errno = faults->reserving, -1; \
    return real(fd, mode, at, bytes);                                      \
  }
FSDP_FALLOCATE(fallocate)
FSDP_FALLOCATE(fallocate64)
#define FSDP_FSTATFS(name, info)                                                                \
  int name(int fd, struct info* out) noexcept {                                                 \
    static auto* const real = next(static_cast<int (*)(int, struct info*)>(nullptr), #name);    \
    const int result = real(fd, out);                                                           \
    if (faults && faults->type) out->f_type = static_cast<decltype(out->f_type)>(faults->type); \
    return result;                                                                              \
  }
FSDP_FSTATFS(fstatfs, statfs)
FSDP_FSTATFS(fstatfs64, statfs64)
#define FSDP_OPEN(name)                                                                                    \
  int name(const char* path, int flags, ...) {                                                             \
    static auto* const real = next(&::name, #name);                                                        \
    va_list rest;                                                                                          \
    va_start(rest, flags);                                                                                 \
    const bool has_mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;                           \
    const mode_t mode = has_mode ? va_arg(rest, mode_t) : 0;                                               \
    va_end(rest);                                                                                          \
    if (faults && faults->unnamed && (flags & O_TMPFILE) == O_TMPFILE) return errno = faults->unnamed, -1; \
    return real(path, flags, mode);                                                                        \
  }
FSDP_OPEN(open)
FSDP_OPEN(open64)
}

namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 dice(seed);
  std::vector<std::byte> bytes(count + 8);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t value = dice();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  bytes.resize(count);
  return bytes;
}

struct File {
  explicit File(std::size_t bytes) : storage(make_file_storage(folder.path(), bytes, *device)) {}
  void write(std::size_t begin, const std::vector<std::byte>& values) {
    storage->write(*stream, begin, values.data(), values.size());
  }
  std::vector<std::byte> read(std::size_t begin, std::size_t bytes) {
    std::vector<std::byte> values(bytes + 1, std::byte{7});  // an address that is not aligned
    storage->read(*stream, begin, values.data() + 1, bytes);
    BOOST_TEST((values[0] == std::byte{7}));
    values.erase(values.begin());
    return values;
  }

  TemporaryFolder folder;
  std::unique_ptr<Device> device = make_cpu_device();
  std::shared_ptr<Stream> stream = make_host_stream();
  std::unique_ptr<Storage> storage;
};

template <class Error, class Call>
std::string message_of_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(any_bytes_at_any_place) {
  const std::size_t bytes = 12 * tile_bytes + 12345;
  File file(bytes);
  std::vector<std::byte> want(bytes);
  std::mt19937_64 dice(1);
  for (std::uint64_t step = 0; step < 300; ++step) {
    const std::size_t most = dice() % 8 == 0 ? bytes : dice() % 4 == 0 ? 3 * tile_bytes : 5000;
    std::size_t begin = dice() % bytes;
    if (dice() % 3 == 0) begin -= begin % tile_bytes;
    const std::size_t count = std::min(1 + dice() % most, bytes - begin);
    if (dice() % 2 == 0) {
      const std::vector<std::byte> values = random_bytes(count, step);
      file.write(begin, values);
      std::copy(values.begin(), values.end(), want.begin() + static_cast<std::ptrdiff_t>(begin));
    } else {
      const auto first = want.begin() + static_cast<std::ptrdiff_t>(begin);
      BOOST_TEST_REQUIRE((file.read(begin, count) == std::vector(first, first + static_cast<std::ptrdiff_t>(count))), step);
    }
  }
  BOOST_TEST((file.read(0, bytes) == want));
  BOOST_TEST(fs::is_empty(file.folder.path()));
}

BOOST_AUTO_TEST_CASE(bytes_that_were_not_written_are_zero_and_need_no_disk) {
  File file(3 * tile_bytes);
  BOOST_TEST((file.read(5, 2 * tile_bytes) == std::vector<std::byte>(2 * tile_bytes)));
  BOOST_TEST(file.storage->disk_traffic().read == 0u);
  const std::vector<std::byte> values = random_bytes(5000, 1);
  file.write(tile_bytes, values);
  BOOST_TEST(file.storage->disk_traffic().written == 8192u);
  BOOST_TEST((file.read(tile_bytes, 5000) == values));
  BOOST_TEST(file.storage->disk_traffic().read == 8192u);
  std::vector<std::byte> longer = values;
  longer.resize(2 * tile_bytes);
  BOOST_TEST((file.read(tile_bytes, longer.size()) == longer));
}

// Parts of a tile, as loads of checkpoints write them, are written together.
BOOST_AUTO_TEST_CASE(parts_of_a_tile_are_written_together) {
  File file(3 * tile_bytes);
  const std::vector<std::byte> values = random_bytes(2 * tile_bytes, 1);
  for (std::size_t at = 0; at < values.size(); at += 16384) file.storage->write(*file.stream, at, values.data() + at, 16384);
  BOOST_TEST((file.read(0, values.size()) == values));
  BOOST_TEST(file.storage->disk_traffic().written < 3 * tile_bytes);
}

BOOST_AUTO_TEST_CASE(two_streams_at_once) {
  const std::size_t half = 20 * tile_bytes, bytes = 19 * tile_bytes + 77;
  File file(2 * half);
  QueueStream streams[] = {QueueStream("first"), QueueStream("second")};
  std::vector<std::byte> values[] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)}, found[2];
  for (std::uint64_t round = 0; round < 6; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      if ((round + i) % 2 == 0) values[i] = random_bytes(bytes, 2 * round + i);
      found[i].assign(bytes, std::byte{1});
    }
    struct Job {
      Storage& storage;
      Stream& stream;
      std::size_t begin;
      bool writes;
      std::vector<std::byte>&values, &found;
    };
    std::vector<Job> jobs;
    for (std::size_t i = 0; i < 2; ++i)
      jobs.push_back({*file.storage, streams[i], i * half, (round + i) % 2 == 0, values[i], found[i]});
    for (Job& one : jobs)
      one.stream.submit({[](void* context, std::size_t) {
                           Job& job = *static_cast<Job*>(context);
                           if (job.writes) job.storage.write(job.stream, job.begin, job.values.data(), job.values.size());
                           job.storage.read(job.stream, job.begin, job.found.data(), job.found.size());
                         },
                         &one});
    streams[0].synchronize(), streams[1].synchronize();
    for (std::size_t i = 0; i < 2; ++i) BOOST_TEST((found[i] == values[i]));
  }
}

BOOST_AUTO_TEST_CASE(calls_that_do_a_part_are_continued) {
  for (const Fault fault : {Fault::half, Fault::interrupt}) {
    File file(4 * tile_bytes);
    Failing failing;
    failing.fault = fault;
    const std::vector<std::byte> values = random_bytes(3 * tile_bytes + 77, 1);
    file.write(0, values);
    BOOST_TEST((file.read(0, values.size()) == values));
    BOOST_TEST(failing.calls > 8);
  }
}

// For each call of a load and of an unload of many tiles.
BOOST_AUTO_TEST_CASE(each_call_that_fails_is_an_error_that_names_the_tile) {
  const std::size_t tiles = 11;
  for (const bool reads : {false, true})
    for (long at = 0; at < static_cast<long>(tiles); ++at) {
      File file(tiles * tile_bytes);
      const std::vector<std::byte> values = random_bytes(tiles * tile_bytes, 1);
      file.write(0, values);
      std::string message;
      {
        Failing failing;
        failing.fault = Fault::error, failing.at = at, failing.times = 1, failing.error = reads ? EIO : ENOSPC;
        failing.reads = reads, failing.writes = !reads;
        message =
            message_of_error<RunError>([&] { reads ? static_cast<void>(file.read(0, values.size())) : file.write(0, values); });
      }
      BOOST_TEST((has(message, "tile ") && has(message, file.folder.path().string()) && has(message, "folder of state") &&
                  has(message, reads ? "cannot be read (Input/output error)" : "cannot be written (No space left on device)")),
                 message);
      file.write(0, values);  // nothing of the failed transfer is left
      BOOST_TEST((file.read(0, values.size()) == values));
    }
}

BOOST_AUTO_TEST_CASE(nothing_is_begun_after_an_error) {
  File file(60 * tile_bytes);
  Failing failing;
  failing.fault = Fault::error, failing.times = 1;
  BOOST_CHECK_THROW(file.write(0, std::vector<std::byte>(60 * tile_bytes)), RunError);
  BOOST_TEST(failing.calls < 20);
}

BOOST_AUTO_TEST_CASE(a_bit_that_has_changed_is_an_error) {
  for (const long at : {0, 4, 10}) {
    File file(11 * tile_bytes);
    file.write(0, random_bytes(11 * tile_bytes, 1));
    Failing failing;
    failing.fault = Fault::flip, failing.at = at, failing.times = 1, failing.writes = false;
    const std::string message = message_of_error<RunError>([&] { file.read(0, 11 * tile_bytes); });
    BOOST_TEST((has(message, "tile ") && has(message, "has other bytes than were written")), message);
  }
}

BOOST_AUTO_TEST_CASE(a_wait_for_a_stream_that_has_failed_throws) {
  QueueStream loads("loads");
  loads.submit({[](void*, std::size_t) { throw RunError("tile 3 cannot be read"); }, nullptr, 0});
  const Event loaded = loads.record();
  BOOST_CHECK_THROW(make_host_stream()->wait(loaded), StreamFailed);
  BOOST_CHECK_THROW(loads.synchronize(), RunError);
}

BOOST_AUTO_TEST_CASE(space_is_reserved_at_the_start) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device();
  const std::size_t before = free_bytes_of(folder.path());
  {
    const auto storage = make_file_storage(folder.path(), 64 * tile_bytes + 1, *device);
    if (before > 0) BOOST_TEST(free_bytes_of(folder.path()) < before);
  }
  Failing failing;
  for (const int error : {ENOSPC, EDQUOT}) {
    failing.reserving = error;
    const std::string message =
        message_of_error<UserError>([&] { make_file_storage(folder.path(), 64 * tile_bytes + 1, *device); });
    BOOST_TEST((has(message, "65.0 MiB") && has(message, "are free") && has(message, std::strerror(error))), message);
  }
  failing.reserving = EOPNOTSUPP;  // the run must say so
  make_file_storage(folder.path(), 64 * tile_bytes + 1, *device);
  failing.type = EXT4_SUPER_MAGIC;
  BOOST_TEST(has(check_storage_folder(folder.path()), "cannot reserve space"));
}

BOOST_AUTO_TEST_CASE(folders_are_judged) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  Failing failing;
  failing.type = EXT4_SUPER_MAGIC;
  BOOST_TEST(check_storage_folder(folder.path()) == "");
  BOOST_TEST(has(message_of_error<UserError>([&] { check_storage_folder(folder / "none"); }), "No such file"));
  BOOST_TEST(has(message_of_error<UserError>([&] { check_storage_folder(folder / "file"); }), "Not a directory"));
  BOOST_TEST(has(message_of_error<UserError>([&] { check_storage_folder({}); }), "folder of state"));
  for (const auto& [type, name] : {std::pair(0x6969u, "NFS"), {0x0bd00bd0u, "Lustre"}, {0xfe534d42u, "CIFS"}}) {
    failing.type = type;
    const std::string warning = check_storage_folder(folder.path());
    BOOST_TEST((has(warning, name) && has(warning, "over the network")), warning);
  }
  for (const std::uint32_t type : {0x01021994u, 0x858458f6u}) {
    failing.type = type;
    BOOST_TEST(has(message_of_error<UserError>([&] { check_storage_folder(folder.path()); }), "in memory"));
  }
  failing.type = EXT4_SUPER_MAGIC, failing.unnamed = EROFS;
  BOOST_TEST(has(message_of_error<UserError>([&] { check_storage_folder(folder.path()); }), "Read-only file system"));
  failing.unnamed = EOPNOTSUPP;  // a file system that has only files with names
  BOOST_TEST(check_storage_folder(folder.path()) == "");
  const auto device = make_cpu_device();
  const auto storage = make_file_storage(folder.path(), 10, *device);
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // "file"
}
