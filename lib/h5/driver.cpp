#include "h5/driver.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <hdf5.h>

#include "base/error.hpp"

namespace fsdp::h5 {

// --- written files ---

/// Calls `work` and keeps its exception, unless there is an error already.
template <class Work>
void WrittenStorage::keep_error(Work&& work) {
  if (error_) return;
  try {
    work();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void WrittenStorage::read(std::uint64_t offset, void* out, std::size_t bytes, bool) {
  const std::size_t there = offset >= file_.size() ? 0 : std::min<std::uint64_t>(bytes, file_.size() - offset);
  std::memset(out, 0, bytes);
  keep_error([&] { file_.read(offset, out, there); });
}

void WrittenStorage::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  size_ = std::max(size_, offset + bytes);
  keep_error([&] { file_.write(offset, data, bytes); });
}

void WrittenStorage::resize(std::uint64_t bytes) {
  size_ = bytes;
  keep_error([&] { file_.resize(bytes); });
}

void WrittenStorage::check() const {
  if (error_) std::rethrow_exception(error_);
}

OutputFile& WrittenStorage::file() {
  check();
  return file_;
}

// --- the driver that HDF5 calls ---

namespace {

/// The driver's part of a file access property list. HDF5 copies this struct.
struct Info {
  Storage* storage;
};

/// An open file: HDF5's struct, then our members.
struct Driven : H5FD_t {
  std::shared_ptr<Storage> storage;
  haddr_t end_of_allocation = 0;
};
Driven& driven(H5FD_t* file) { return *static_cast<Driven*>(file); }
const Driven& driven(const H5FD_t* file) { return *static_cast<const Driven*>(file); }

thread_local std::exception_ptr read_error;

extern "C" {

H5FD_t* open_storage(const char*, unsigned flags, hid_t access, haddr_t) {
  const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
  if (!info) return nullptr;
  // Before HDF5 creates a file, it tries to open it. That must fail, because there is no file yet.
  if (info->storage->is_written() != ((flags & H5F_ACC_CREAT) != 0)) return nullptr;
  auto* file = new Driven{};
  file->storage = info->storage->shared_from_this();
  return file;
}
herr_t close_storage(H5FD_t* file) {
  delete &driven(file);
  return 0;
}
int compare_storages(const H5FD_t* a, const H5FD_t* b) {
  const auto *first = driven(a).storage.get(), *second = driven(b).storage.get();
  return first < second ? -1 : first > second ? 1 : 0;
}
herr_t query_storage(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}
haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return driven(file).end_of_allocation; }
herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  driven(file).end_of_allocation = end;
  return 0;
}
haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) { return driven(file).storage->size(); }
herr_t read_storage(H5FD_t* file, H5FD_mem_t kind, hid_t, haddr_t offset, size_t bytes, void* data) {
  try {
    driven(file).storage->read(offset, data, bytes, kind == H5FD_MEM_DRAW);
    return 0;
  } catch (...) {
    if (!read_error) read_error = std::current_exception();
    return -1;
  }
}
herr_t write_storage(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, const void* data) {
  driven(file).storage->write(offset, data, bytes);
  return 0;
}
herr_t truncate_storage(H5FD_t* file, hid_t, hbool_t) {
  driven(file).storage->resize(driven(file).end_of_allocation);
  return 0;
}

}  // extern "C"

const H5FD_class_t storage_class = [] {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 14, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(300);  // 256 to 511 are for drivers that are not registered with HDF5
#endif
  driver.name = "fsdp_storage";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(Info);
  driver.open = open_storage;
  driver.close = close_storage;
  driver.cmp = compare_storages;
  driver.query = query_storage;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = read_storage;
  driver.write = write_storage;
  driver.truncate = truncate_storage;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), driver.fl_map);
  return driver;
}();

}  // namespace

void use_storage(std::int64_t access_list, Storage& storage) {
  static const hid_t driver = H5FDregister(&storage_class);
  const Info info{&storage};
  if (driver < 0 || H5Pset_driver(access_list, driver, &info) < 0) throw CallError("H5Pset_driver", "failed");
}

std::exception_ptr take_read_error() { return std::exchange(read_error, nullptr); }

}  // namespace fsdp::h5
