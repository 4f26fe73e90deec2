#include "h5/h5.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <mutex>
#include <source_location>

#include <hdf5.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "h5/output.hpp"

namespace fsdp::h5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t) && sizeof(hsize_t) == sizeof(std::uint64_t));

namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Holds the library for this thread, and keeps it from printing (its error stack, and so this setting, is per thread).
class Lock {
 public:
  Lock() : lock_(library_mutex()) {
    thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    static_cast<void>(silent);
  }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

extern "C" herr_t collect_error(unsigned, const H5E_error2_t* error, void* out) {
  static_cast<std::vector<std::string>*>(out)->push_back(error->desc ? error->desc : "");
  return 0;
}

/// HDF5's error stack from the call inwards. The innermost entry has the system's reason; those between only repeat each other.
std::string error_stack() {
  std::vector<std::string> all;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, collect_error, &all);
  if (all.empty()) return "failed without a reason";
  return all.size() == 1 ? all.front() : format("{}: {}", all.front(), all.back());
}

/// The one check of every call: HDF5 returns something negative on failure.
template <class Result>
Result check_h5(Result result, std::string_view call, std::string_view object,
                std::source_location where = std::source_location::current()) {
  if (result < 0) throw CallError(format("{} {}", call, object), error_stack(), where);
  return result;
}

Handle dataspace(const std::vector<hsize_t>& extent) {
  const auto rank = narrow<int>(extent.size());
  return {check_h5(H5Screate_simple(rank, extent.data(), nullptr), "H5Screate_simple", ""), H5Sclose, "H5Sclose"};
}
Handle scalar_space() { return {check_h5(H5Screate(H5S_SCALAR), "H5Screate", "scalar"), H5Sclose, "H5Sclose"}; }
Handle property_list(hid_t kind) { return {check_h5(H5Pcreate(kind), "H5Pcreate", ""), H5Pclose, "H5Pclose"}; }

/// UTF-8 of any length, as h5py writes it.
Handle text_type() {
  Handle type(check_h5(H5Tcopy(H5T_C_S1), "H5Tcopy", "string"), H5Tclose, "H5Tclose");
  check_h5(H5Tset_size(type.id(), H5T_VARIABLE), "H5Tset_size", "string");
  check_h5(H5Tset_cset(type.id(), H5T_CSET_UTF8), "H5Tset_cset", "string");
  return type;
}

/// No locks: some shared file systems refuse them, nobody writes to a file that has its final name, and only its own rank to
/// one that has not. Objects still open when a file closes are a bug that is told (SEMI).
Handle file_access() {
  Handle access = property_list(H5P_FILE_ACCESS);
  check_h5(H5Pset_fclose_degree(access.id(), H5F_CLOSE_SEMI), "H5Pset_fclose_degree", "");
#if H5_VERSION_GE(1, 10, 7)
  check_h5(H5Pset_file_locking(access.id(), false, true), "H5Pset_file_locking", "");
#endif
  return access;
}

void select(const Handle& space, const Hyperslab& box, const std::string& what) {
  const std::vector<hsize_t> start(box.start.begin(), box.start.end()), count(box.count.begin(), box.count.end());
  check_h5(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), "H5Sselect_hyperslab",
           what);
}

void write_attribute(std::int64_t node, const std::string& name, std::int64_t file_type, std::int64_t memory_type,
                     const Handle& space, const void* value, const std::string& what) {
  const Handle attribute(check_h5(H5Acreate2(node, name.c_str(), file_type, space.id(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2",
                                  format("{} of {}", name, what)),
                         H5Aclose, "H5Aclose");
  check_h5(H5Awrite(attribute.id(), memory_type, value), "H5Awrite", format("{} of {}", name, what));
}

/// An attribute that must be of type class `kind`, and the number of its elements.
struct OpenAttribute {
  Handle attribute;
  std::size_t count;
  std::string what;
};
OpenAttribute open_attribute(std::int64_t node, const std::string& name, H5T_class_t kind, const std::string& node_name) {
  const std::string what = format("attribute {} of {}", name, node_name);
  Handle attribute(check_h5(H5Aopen(node, name.c_str(), H5P_DEFAULT), "H5Aopen", what), H5Aclose, "H5Aclose");
  const Handle type(check_h5(H5Aget_type(attribute.id()), "H5Aget_type", what), H5Tclose, "H5Tclose");
  if (H5Tget_class(type.id()) != kind) throw CallError("H5Aopen " + what, "the attribute has another type than expected");
  if (kind == H5T_STRING && H5Tis_variable_str(type.id()) <= 0)
    throw CallError("H5Aopen " + what, "the attribute is not a string of variable length");
  const Handle space(check_h5(H5Aget_space(attribute.id()), "H5Aget_space", what), H5Sclose, "H5Sclose");
  const hssize_t count = check_h5(H5Sget_simple_extent_npoints(space.id()), "H5Sget_simple_extent_npoints", what);
  return {std::move(attribute), static_cast<std::size_t>(count), what};
}

/// Of exactly one element.
OpenAttribute open_scalar(std::int64_t node, const std::string& name, H5T_class_t kind, const std::string& node_name) {
  OpenAttribute result = open_attribute(node, name, kind, node_name);
  if (result.count != 1)
    throw CallError("H5Aopen " + result.what, format("the attribute has {} elements, not one", result.count));
  return result;
}

extern "C" herr_t collect_dataset(hid_t group, const char* name, const H5L_info_t* link, void* out) {
  if (link->type != H5L_TYPE_HARD) return 0;
  const hid_t object = H5Oopen(group, name, H5P_DEFAULT);
  if (object < 0) return -1;
  if (H5Iget_type(object) == H5I_DATASET) static_cast<std::vector<std::string>*>(out)->push_back(name);
  return H5Oclose(object);
}

}  // namespace

Handle::~Handle() {
  if (id_ < 0) return;
  const Lock lock;
  // While an exception unwinds, its message is the one that counts.
  if (close_(id_) < 0 && std::uncaught_exceptions() == 0) std::fprintf(stderr, "%s: %s\n", close_name_, error_stack().c_str());
}

void Handle::close(std::string_view what) {
  if (id_ < 0) return;
  const Lock lock;
  check_h5(close_(std::exchange(id_, -1)), close_name_, what);
}

// --- attributes ---

void Node::write_text(const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string copy(text);
  const char* pointer = copy.c_str();
  const Handle type = text_type();
  write_attribute(handle_.id(), name, type.id(), type.id(), scalar_space(), &pointer, what_);
}

void Node::write_integer(const std::string& name, std::uint64_t value) {
  const Lock lock;
  write_attribute(handle_.id(), name, H5T_STD_U64LE, H5T_NATIVE_UINT64, scalar_space(), &value, what_);
}

void Node::write_integers(const std::string& name, std::span<const std::uint64_t> values) {
  const Lock lock;
  write_attribute(handle_.id(), name, H5T_STD_U64LE, H5T_NATIVE_UINT64, dataspace({values.size()}), values.data(), what_);
}

void Node::write_number(const std::string& name, double value) {
  const Lock lock;
  write_attribute(handle_.id(), name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, scalar_space(), &value, what_);
}

bool Node::has_attribute(const std::string& name) const {
  const Lock lock;
  return check_h5(H5Aexists(handle_.id(), name.c_str()), "H5Aexists", format("{} of {}", name, what_)) > 0;
}

std::string Node::read_text(const std::string& name) const {
  const Lock lock;
  const OpenAttribute open = open_scalar(handle_.id(), name, H5T_STRING, what_);
  const Handle type = text_type();
  char* text = nullptr;
  check_h5(H5Aread(open.attribute.id(), type.id(), &text), "H5Aread", open.what);
  const std::string result = text ? text : "";
  H5free_memory(text);
  return result;
}

std::uint64_t Node::read_integer(const std::string& name) const {
  const Lock lock;
  const OpenAttribute open = open_scalar(handle_.id(), name, H5T_INTEGER, what_);
  std::uint64_t value = 0;
  check_h5(H5Aread(open.attribute.id(), H5T_NATIVE_UINT64, &value), "H5Aread", open.what);
  return value;
}

std::vector<std::uint64_t> Node::read_integers(const std::string& name) const {
  const Lock lock;
  const OpenAttribute open = open_attribute(handle_.id(), name, H5T_INTEGER, what_);
  std::vector<std::uint64_t> values(open.count);
  check_h5(H5Aread(open.attribute.id(), H5T_NATIVE_UINT64, values.data()), "H5Aread", open.what);
  return values;
}

double Node::read_number(const std::string& name) const {
  const Lock lock;
  const OpenAttribute open = open_scalar(handle_.id(), name, H5T_FLOAT, what_);
  double value = 0;
  check_h5(H5Aread(open.attribute.id(), H5T_NATIVE_DOUBLE, &value), "H5Aread", open.what);
  return value;
}

// --- datasets ---

Dataset::Dataset(Handle handle, std::string what, std::shared_ptr<Output> output)
    : Node(std::move(handle), std::move(what)), output_(std::move(output)) {
  const Handle space(check_h5(H5Dget_space(handle_.id()), "H5Dget_space", what_), H5Sclose, "H5Sclose");
  std::vector<hsize_t> extent(
      static_cast<std::size_t>(check_h5(H5Sget_simple_extent_ndims(space.id()), "H5Sget_simple_extent_ndims", what_)));
  check_h5(H5Sget_simple_extent_dims(space.id(), extent.data(), nullptr), "H5Sget_simple_extent_dims", what_);
  shape_.assign(extent.begin(), extent.end());
}

void Dataset::write(Range range, const float* values) {
  const Lock lock;
  expect(output_ != nullptr, "a dataset of a file open for reading is not written");
  const Handle space(check_h5(H5Dget_space(handle_.id()), "H5Dget_space", what_), H5Sclose, "H5Sclose");
  for (const Hyperslab& box : hyperslabs(shape_, range)) {
    select(space, box, what_);
    const Handle memory = dataspace({numel(box.count)});
    check_h5(H5Dwrite(handle_.id(), H5T_NATIVE_FLOAT, memory.id(), space.id(), H5P_DEFAULT, values + box.offset), "H5Dwrite",
             what_);
    output_->check();
  }
}

void Dataset::read(Range range, float* out) const {
  const Lock lock;
  const Handle space(check_h5(H5Dget_space(handle_.id()), "H5Dget_space", what_), H5Sclose, "H5Sclose");
  for (const Hyperslab& box : hyperslabs(shape_, range)) {
    select(space, box, what_);
    const Handle memory = dataspace({numel(box.count)});
    check_h5(H5Dread(handle_.id(), H5T_NATIVE_FLOAT, memory.id(), space.id(), H5P_DEFAULT, out + box.offset), "H5Dread", what_);
  }
}

std::optional<std::uint64_t> Dataset::offset() const {
  const Lock lock;
  const haddr_t address = H5Dget_offset(handle_.id());
  return address == HADDR_UNDEF ? std::nullopt : std::optional<std::uint64_t>(address);
}

// --- files ---

File File::create(const std::filesystem::path& path) {
  const Lock lock;
  auto output = std::make_shared<Output>(path.string());
  const Handle access = file_access();
  use_output(access.id(), *output);
  Handle file(check_h5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), "H5Fcreate", path.string()), H5Fclose,
              "H5Fclose");
  return {std::move(file), path, std::move(output)};
}

bool File::looks_like_hdf5(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(8, '\0');
  return file.read(start.data(), 8) && start == "\x89HDF\r\n\x1a\n";  // format specification, section II.A
}

File File::open(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw UserError(format("{} is not a file (it does not exist, or is a folder) check the path", path.string()));
  if (!looks_like_hdf5(path))
    throw UserError(
        format("{} is not an HDF5 file (it does not begin as one) check the path, or copy the file again", path.string()));
  const Lock lock;
  const Handle access = file_access();  // closing it would clear the error stack
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id());
  if (id < 0)
    throw UserError(
        format("{} cannot be opened ({}) copy the file again, or use another checkpoint", path.string(), error_stack()));
  return {{id, H5Fclose, "H5Fclose"}, path, nullptr};
}

namespace {

/// A type of HDF5's own description, so that any of its tools shows numbers: sign, exponent and mantissa of so many bits.
Handle file_type(DType type, const std::string& what) {
  Handle made(check_h5(H5Tcopy(H5T_IEEE_F32LE), "H5Tcopy", what), H5Tclose, "H5Tclose");
  if (type == DType::f32) return made;
  const std::size_t mantissa = type == DType::bf16 ? 7 : 10, exponent = 15 - mantissa;
  check_h5(H5Tset_fields(made.id(), 15, mantissa, exponent, 0, mantissa), "H5Tset_fields", what);
  check_h5(H5Tset_ebias(made.id(), (std::size_t{1} << (exponent - 1)) - 1), "H5Tset_ebias", what);
  check_h5(H5Tset_precision(made.id(), 16), "H5Tset_precision", what);
  check_h5(H5Tset_size(made.id(), 2), "H5Tset_size", what);
  return made;
}

constexpr std::size_t chunk_elements = std::size_t{1} << 16;  // a quarter of HDF5's cache, which keeps a dataset's last chunks
constexpr std::size_t fewest_compressed = 4096;               // elements: the index of the chunks takes 2 KiB itself
constexpr unsigned deflate_level = 1;  // mantissas are noise: level 4 gains one per cent, and takes longer

Handle dataset_creation(const std::string& what) {
  Handle creation = property_list(H5P_DATASET_CREATE);
  check_h5(H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time",
           what);  // every element is written once, by us
  return creation;
}

Handle make_dataset(const Handle& file, const std::string& name, const Shape& shape, DType type, const Handle& creation,
                    const std::string& what) {
  const Handle space = dataspace({shape.begin(), shape.end()}), links = property_list(H5P_LINK_CREATE),
               stored = file_type(type, what);
  check_h5(H5Pset_create_intermediate_group(links.id(), 1), "H5Pset_create_intermediate_group", what);
  return {check_h5(H5Dcreate2(file.id(), name.c_str(), stored.id(), space.id(), links.id(), creation.id(), H5P_DEFAULT),
                   "H5Dcreate2", what),
          H5Dclose, "H5Dclose"};
}

}  // namespace

Dataset File::create_dataset(const std::string& name, const Shape& shape, Compression compression) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle creation = dataset_creation(what);
  if (compression == Compression::gzip && numel(shape) >= fewest_compressed) {
    expect(shape.size() == 1, "what is compressed is flat");
    const hsize_t chunk = std::min(shape.front(), chunk_elements);
    check_h5(H5Pset_chunk(creation.id(), 1, &chunk), "H5Pset_chunk", what);
    check_h5(H5Pset_shuffle(creation.id()), "H5Pset_shuffle", what);
    check_h5(H5Pset_deflate(creation.id(), deflate_level), "H5Pset_deflate", what);
  }
  return {make_dataset(handle_, name, shape, DType::f32, creation, what), what, output_};
}

std::uint64_t File::reserve_dataset(const std::string& name, const Shape& shape, DType type) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle creation = dataset_creation(what);
  check_h5(H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time", what);
  check_h5(H5Pset_obj_track_times(creation.id(), false), "H5Pset_obj_track_times", what);
  const Handle dataset = make_dataset(handle_, name, shape, type, creation, what);
  const haddr_t offset = H5Dget_offset(dataset.id());
  if (offset == HADDR_UNDEF) throw CallError("H5Dget_offset " + what, error_stack());
  return offset;
}

void File::create_virtual_dataset(const std::string& name, const Shape& shape, std::span<const VirtualPart> parts) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle space = dataspace({shape.begin(), shape.end()});
  const Handle links = property_list(H5P_LINK_CREATE), creation = property_list(H5P_DATASET_CREATE);
  check_h5(H5Pset_create_intermediate_group(links.id(), 1), "H5Pset_create_intermediate_group", what);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  check_h5(H5Pset_fill_value(creation.id(), H5T_NATIVE_FLOAT, &nan), "H5Pset_fill_value", what);
  for (const VirtualPart& part : parts) {
    const Handle source = dataspace({part.range.size()});
    for (const Hyperslab& box : hyperslabs(shape, part.range)) {
      select(space, box, what);
      select(source, {{box.offset}, {numel(box.count)}}, what);
      check_h5(H5Pset_virtual(creation.id(), space.id(), part.file.c_str(), part.dataset.c_str(), source.id()),
               "H5Pset_virtual", what);
    }
  }
  check_h5(H5Sselect_all(space.id()), "H5Sselect_all", what);
  Handle(check_h5(H5Dcreate2(handle_.id(), name.c_str(), H5T_IEEE_F32LE, space.id(), links.id(), creation.id(), H5P_DEFAULT),
                  "H5Dcreate2", what),
         H5Dclose, "H5Dclose")
      .close(what);
}

bool File::has(const std::string& name) const {
  const Lock lock;
  for (std::size_t end = name.find('/', 1);;
       end = name.find('/', end + 1)) {  // H5Lexists fails where a group on the way is missing
    if (check_h5(H5Lexists(handle_.id(), name.substr(0, end).c_str(), H5P_DEFAULT), "H5Lexists",
                 format("{} of {}", name, what_)) == 0)
      return false;
    if (end == std::string::npos) return true;
  }
}

Dataset File::dataset(const std::string& name) const {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  return {{check_h5(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), "H5Dopen2", what), H5Dclose, "H5Dclose"}, what, output_};
}

std::vector<std::string> File::dataset_names(const std::string& group) const {
  const Lock lock;
  const Handle opened(
      check_h5(H5Gopen2(handle_.id(), group.c_str(), H5P_DEFAULT), "H5Gopen2", format("{} of {}", group, what_)), H5Gclose,
      "H5Gclose");
  std::vector<std::string> names;
  check_h5(H5Literate(opened.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_dataset, &names), "H5Literate", what_);
  return names;
}

void File::close() {
  handle_.close(what_);
  if (output_) output_->finish();
}

std::string library_version() {
  const Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  check_h5(H5get_libversion(&major, &minor, &release), "H5get_libversion", "");
  return format("{}.{}.{}", major, minor, release);
}

}  // namespace fsdp::h5
