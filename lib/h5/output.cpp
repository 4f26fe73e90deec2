#include "h5/output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <hdf5.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp::h5 {

namespace {
constexpr std::size_t piece_bytes = std::size_t{16} << 20;
constexpr std::size_t direct_from = std::size_t{1} << 20;   // bytes of one write
constexpr std::size_t direct_bytes = std::size_t{4} << 20;  // at once
constexpr std::size_t direct_alignment = 4096;              // of memory, offset and length; file systems ask for this or less
}  // namespace

Output::Output(std::string path, Open open)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDWR | O_CLOEXEC | (open == Open::create ? O_CREAT | O_EXCL : 0), 0666)),
      direct_piece_(nullptr, std::free) {
  check_errno(fd_ >= 0, (open == Open::create ? "create " : "open ") + path_);
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  size_ = end > 0 ? static_cast<std::uint64_t>(end) : 0;
}

Output::~Output() {
  if (fd_ >= 0) ::close(fd_);
  if (direct_fd_ >= 0) ::close(direct_fd_);
}

void Output::failed(const char* call, std::uint64_t bytes, std::uint64_t offset) noexcept {
  error_ = format("{}, {} at byte {} of {}", std::strerror(errno), call, offset, path_);
  if (bytes != 0) error_ += format(" ({} left to write)", format_bytes(static_cast<double>(bytes)));
}

void Output::write(std::uint64_t offset, const void* data, std::size_t bytes) noexcept {
  size_ = std::max(size_, offset + bytes);
  const char* from = static_cast<const char*>(data);
  const auto advance = [&](std::size_t n) { from += n, offset += n, bytes -= n; };
  if (bytes >= direct_from && !direct_refused_) {  // whole blocks; never one that has been written in part
    const std::size_t head = (direct_alignment - offset % direct_alignment) % direct_alignment;
    write_cached(offset, from, head);
    advance(head);
    advance(write_direct(offset, from, bytes - bytes % direct_alignment));
  }
  write_cached(offset, from, bytes);
}

void Output::write_cached(std::uint64_t offset, const char* from, std::size_t bytes) noexcept {
  while (bytes > 0 && error_.empty()) {
    const ssize_t n = ::pwrite(fd_, from, std::min(bytes, piece_bytes), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno != EINTR) failed("pwrite", bytes, offset);
      continue;
    }
    // The disk starts on this piece while the next is copied, instead of waiting for fsync(). Only a hint: its result does not
    // matter.
    if (n >= ssize_t{1} << 20) ::sync_file_range(fd_, static_cast<off_t>(offset), n, SYNC_FILE_RANGE_WRITE);
    from += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

/// Returns how much was written: less than all where the file system refuses, or has no more room, of which write_cached() then
/// says why.
std::size_t Output::write_direct(std::uint64_t offset, const char* from, std::size_t bytes) noexcept {
  if (!direct_piece_) {
    direct_piece_.reset(static_cast<char*>(std::aligned_alloc(direct_alignment, direct_bytes)));
    direct_fd_ = ::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    direct_refused_ = !direct_piece_ || direct_fd_ < 0;
  }
  std::size_t done = 0;
  while (done < bytes && error_.empty() && !direct_refused_) {
    const std::size_t piece = std::min(direct_bytes, bytes - done);
    std::memcpy(direct_piece_.get(), from + done, piece);
    const ssize_t n = ::pwrite(direct_fd_, direct_piece_.get(), piece, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    direct_refused_ = n != static_cast<ssize_t>(piece);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return done;
}

void Output::read(std::uint64_t offset, void* data, std::size_t bytes) noexcept {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && error_.empty()) failed("pread", 0, offset);
    if (n <= 0) break;
    to += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
  std::memset(to, 0, bytes);
}

void Output::resize(std::uint64_t bytes) noexcept {
  if (bytes == size_) return;
  size_ = bytes;
  if (error_.empty() && ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) failed("ftruncate", 0, bytes);
}

void Output::check() const {
  if (!error_.empty()) throw CallError("write " + path_, error_);
}

void Output::finish() {
  check();
  direct_piece_.reset();
  if (direct_fd_ >= 0) ::close(std::exchange(direct_fd_, -1));
  check_errno(::fsync(fd_) == 0, "fsync " + path_);
  check_errno(::close(std::exchange(fd_, -1)) == 0, "close " + path_);
}

// --- HDF5's side ---

namespace {

/// HDF5 copies this into the access list.
struct Info {
  Output* output;
};

/// What HDF5 sees of an open file: its own part first.
struct Driven : H5FD_t {
  std::shared_ptr<Output> output;
  haddr_t end_of_allocation = 0;
};
Driven& driven(H5FD_t* file) { return *static_cast<Driven*>(file); }
const Driven& driven(const H5FD_t* file) { return *static_cast<const Driven*>(file); }

extern "C" {

H5FD_t* open_output(const char*, unsigned flags, hid_t access, haddr_t) {
  if (!(flags & H5F_ACC_CREAT)) return nullptr;  // HDF5 looks first whether there is such a file: there is none yet
  const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
  if (!info) return nullptr;
  auto* file = new Driven{};
  file->output = info->output->shared_from_this();
  return file;
}
herr_t close_output(H5FD_t* file) {
  delete &driven(file);
  return 0;
}
int compare_outputs(const H5FD_t* a, const H5FD_t* b) {
  const auto *first = driven(a).output.get(), *second = driven(b).output.get();
  return first < second ? -1 : first > second ? 1 : 0;
}
herr_t query_output(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}
haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return driven(file).end_of_allocation; }
herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  driven(file).end_of_allocation = end;
  return 0;
}
haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) { return driven(file).output->size(); }
herr_t read_output(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, void* data) {
  driven(file).output->read(offset, data, bytes);
  return 0;
}
herr_t write_output(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, const void* data) {
  driven(file).output->write(offset, data, bytes);
  return 0;
}
herr_t truncate_output(H5FD_t* file, hid_t, hbool_t) {
  driven(file).output->resize(driven(file).end_of_allocation);
  return 0;
}

}  // extern "C"

const H5FD_class_t output_class = [] {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 14, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(300);  // 256 to 511 are for unregistered drivers
#endif
  driver.name = "fsdp_output";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(Info);
  driver.open = open_output;
  driver.close = close_output;
  driver.cmp = compare_outputs;
  driver.query = query_output;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = read_output;
  driver.write = write_output;
  driver.truncate = truncate_output;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), driver.fl_map);
  return driver;
}();

}  // namespace

void use_output(std::int64_t access_list, Output& output) {
  static const hid_t driver = H5FDregister(&output_class);
  const Info info{&output};
  if (driver < 0 || H5Pset_driver(access_list, driver, &info) < 0) throw CallError("H5Pset_driver", "failed");
}

}  // namespace fsdp::h5
