#include "h5/h5.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <source_location>

#include <hdf5.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "files/input_file.hpp"
#include "h5/driver.hpp"

namespace fsdp::h5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t) && sizeof(hsize_t) == sizeof(std::uint64_t));

namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Locks HDF5 for this thread, and turns off HDF5's printing of errors. HDF5 has such a setting, and an error stack, for each
/// thread.
class Lock {
 public:
  Lock() : lock_(library_mutex()) {
    thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    static_cast<void>(silent);
  }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

extern "C" herr_t collect_error(unsigned, const H5E_error2_t* error, void* out) {
  static_cast<std::vector<std::string>*>(out)->push_back(error->desc ? error->desc : "");
  return 0;
}

/// Returns the outermost and the innermost message of HDF5's error stack. The innermost one has the system's reason; the others
/// only repeat each other.
std::string error_stack() {
  std::vector<std::string> all;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, collect_error, &all);
  if (all.empty()) return "failed without a reason";
  return all.size() == 1 ? all.front() : format("{}: {}", all.front(), all.back());
}

/// Returns the result of an HDF5 call. If the result is negative, the call has failed: then throws CallError or, if our file
/// driver (driver.hpp) has failed to read, rethrows the driver's exception.
template <class Result>
Result check_h5(Result result, std::string_view call, std::string_view object,
                std::source_location where = std::source_location::current()) {
  const std::exception_ptr reason = take_read_error();
  if (result >= 0) return result;
  if (reason) std::rethrow_exception(reason);
  throw CallError(format("{} {}", call, object), error_stack(), where);
}

Handle dataspace(const std::vector<hsize_t>& extent) {
  const auto rank = narrow<int>(extent.size());
  return {check_h5(H5Screate_simple(rank, extent.data(), nullptr), "H5Screate_simple", ""), H5Sclose, "H5Sclose"};
}
Handle scalar_space() { return {check_h5(H5Screate(H5S_SCALAR), "H5Screate", "scalar"), H5Sclose, "H5Sclose"}; }
Handle property_list(hid_t kind) { return {check_h5(H5Pcreate(kind), "H5Pcreate", ""), H5Pclose, "H5Pclose"}; }

/// The type of UTF-8 strings of variable length, as h5py writes them.
Handle text_type() {
  Handle type(check_h5(H5Tcopy(H5T_C_S1), "H5Tcopy", "string"), H5Tclose, "H5Tclose");
  check_h5(H5Tset_size(type.id(), H5T_VARIABLE), "H5Tset_size", "string");
  check_h5(H5Tset_cset(type.id(), H5T_CSET_UTF8), "H5Tset_cset", "string");
  return type;
}

/// Returns the properties with which files are opened. HDF5 must not lock files, because some shared file systems refuse locks.
/// No locks are needed: only one rank writes a file, and nobody writes to it after it has its final name. With H5F_CLOSE_SEMI,
/// HDF5 returns an error if a file is closed that has open objects, which would be a bug.
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

constexpr hsize_t most_of_a_chunk = hsize_t{64} << 20;  // the largest accepted chunk, in elements

/// An open attribute with exactly one element, whose type class open_scalar() has checked. `what` names it in messages.
struct OpenAttribute {
  Handle attribute;
  std::string what;
};
OpenAttribute open_scalar(std::int64_t node, const std::string& name, H5T_class_t kind, const std::string& node_name) {
  const std::string what = format("attribute {} of {}", name, node_name);
  Handle attribute(check_h5(H5Aopen(node, name.c_str(), H5P_DEFAULT), "H5Aopen", what), H5Aclose, "H5Aclose");
  const Handle type(check_h5(H5Aget_type(attribute.id()), "H5Aget_type", what), H5Tclose, "H5Tclose");
  if (H5Tget_class(type.id()) != kind) throw CallError("H5Aopen " + what, "the attribute has another type than expected");
  if (kind == H5T_STRING && H5Tis_variable_str(type.id()) <= 0)
    throw CallError("H5Aopen " + what, "the attribute is not a string of variable length");
  const Handle space(check_h5(H5Aget_space(attribute.id()), "H5Aget_space", what), H5Sclose, "H5Sclose");
  if (const hssize_t count = check_h5(H5Sget_simple_extent_npoints(space.id()), "H5Sget_simple_extent_npoints", what);
      count != 1)
    throw CallError("H5Aopen " + what, format("the attribute has {} elements, not one", count));
  return {std::move(attribute), what};
}

/// The names of the datasets and of the other objects in a group. `refused` is the name of a link that is not allowed, or
/// empty.
struct Collected {
  std::vector<std::string> datasets, others;
  std::string refused;
};

constexpr std::size_t longest_name = 1000;

extern "C" herr_t collect_dataset(hid_t group, const char* name, const H5L_info_t* link, void* out) {
  auto& collected = *static_cast<Collected*>(out);
  if (link->type != H5L_TYPE_HARD || std::strlen(name) > longest_name) return collected.refused = excerpt(name), 1;
  const hid_t object = H5Oopen(group, name, H5P_DEFAULT);
  if (object < 0) return -1;
  (H5Iget_type(object) == H5I_DATASET ? collected.datasets : collected.others).push_back(name);
  return H5Oclose(object);
}

extern "C" herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->push_back(excerpt(name));
  return 0;
}

/// Lists the objects directly in a group. Throws UserError for a link that is not a hard link.
Collected collect(const Handle& file, const std::string& group, const std::string& what) {
  const Handle opened(check_h5(H5Gopen2(file.id(), group.c_str(), H5P_DEFAULT), "H5Gopen2", format("{} of {}", group, what)),
                      H5Gclose, "H5Gclose");
  Collected collected;
  check_h5(H5Literate(opened.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_dataset, &collected), "H5Literate", what);
  if (!collected.refused.empty())
    throw UserError(
        format("{} of {} is a link to another place, or has a very long name (a link may lead into any file); copy the linked "
               "object into the file",
               collected.refused, what));
  return collected;
}

}  // namespace

Handle::~Handle() {
  if (id_ < 0) return;
  const Lock lock;
  // During stack unwinding, only the message of the exception is printed.
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

bool Node::has_attribute(const std::string& name) const {
  const Lock lock;
  return check_h5(H5Aexists(handle_.id(), name.c_str()), "H5Aexists", format("{} of {}", name, what_)) > 0;
}

std::vector<std::string> Node::attribute_names() const {
  const Lock lock;
  std::vector<std::string> names;
  check_h5(H5Aiterate2(handle_.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_attribute, &names), "H5Aiterate2", what_);
  return names;
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

// --- datasets ---

namespace {

Shape shape_of(const Handle& dataset, const std::string& what) {
  const Handle space(check_h5(H5Dget_space(dataset.id()), "H5Dget_space", what), H5Sclose, "H5Sclose");
  std::vector<hsize_t> extent(
      static_cast<std::size_t>(check_h5(H5Sget_simple_extent_ndims(space.id()), "H5Sget_simple_extent_ndims", what)));
  check_h5(H5Sget_simple_extent_dims(space.id(), extent.data(), nullptr), "H5Sget_simple_extent_dims", what);
  constexpr std::size_t most = std::size_t{1} << 60;
  std::size_t elements = 1;
  for (const std::size_t e : extent) {
    if (e != 0 && elements > most / e) throw CallError("H5Sget_simple_extent_dims " + what, "it is too large for any memory");
    elements *= e;
  }
  return {extent.begin(), extent.end()};
}

/// Calls transfer(memory, file, offset) for each box of the elements with flat indices `range`: `memory` and `file` are the
/// dataspaces of the box, and `offset` is the index in `range` of its first element.
template <class Transfer>
void each_box(const Handle& dataset, const Shape& shape, Range range, const std::string& what, const Transfer& transfer) {
  const Handle space(check_h5(H5Dget_space(dataset.id()), "H5Dget_space", what), H5Sclose, "H5Sclose");
  for (const Hyperslab& box : hyperslabs(shape, range)) {
    select(space, box, what);
    transfer(dataspace({numel(box.count)}).id(), space.id(), box.offset);
  }
}

}  // namespace

Elements::Elements(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output)
    : Node(std::move(handle), std::move(what)), shape_(shape_of(handle_, what_)), output_(std::move(output)) {}

void Dataset::write(Range range, const float* values) {
  const Lock lock;
  expect(output_ != nullptr, "a dataset of a file open for reading is not written");
  each_box(handle_, shape_, range, what_, [&](hid_t memory, hid_t file, std::size_t offset) {
    check_h5(H5Dwrite(handle_.id(), H5T_NATIVE_FLOAT, memory, file, H5P_DEFAULT, values + offset), "H5Dwrite", what_);
    output_->check();
  });
}

void Dataset::read(Range range, float* out) const {
  const Lock lock;
  each_box(handle_, shape_, range, what_, [&](hid_t memory, hid_t file, std::size_t offset) {
    check_h5(H5Dread(handle_.id(), H5T_NATIVE_FLOAT, memory, file, H5P_DEFAULT, out + offset), "H5Dread", what_);
  });
}

std::optional<std::uint64_t> Dataset::offset() const {
  const Lock lock;
  const haddr_t address = H5Dget_offset(handle_.id());
  return address == HADDR_UNDEF ? std::nullopt : std::optional<std::uint64_t>(address);
}

std::vector<Dataset::StoredRange> Dataset::stored_ranges() const {
  if (const auto begin = offset()) return {{*begin, numel(shape_) * sizeof(float)}};
  const Lock lock;
  std::vector<StoredRange> ranges;
#if H5_VERSION_GE(1, 10, 5)
  const Handle space(check_h5(H5Dget_space(handle_.id()), "H5Dget_space", what_), H5Sclose, "H5Sclose");
  hsize_t chunks = 0;
  check_h5(H5Dget_num_chunks(handle_.id(), space.id(), &chunks), "H5Dget_num_chunks", what_);
  for (hsize_t i = 0; i < chunks; ++i) {
    std::array<hsize_t, H5S_MAX_RANK> start{};
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    unsigned filters = 0;
    check_h5(H5Dget_chunk_info(handle_.id(), space.id(), i, start.data(), &filters, &address, &bytes), "H5Dget_chunk_info",
             what_);
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == address)
      ranges.back().bytes += bytes;
    else
      ranges.push_back({address, bytes});
  }
#endif
  return ranges;
}

// --- files ---

File File::create(const std::filesystem::path& path) {
  const Lock lock;
  auto output = std::make_shared<WrittenStorage>(path);
  const Handle access = file_access();
  use_storage(access.id(), *output);
  Handle file(check_h5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), "H5Fcreate", path.string()), H5Fclose,
              "H5Fclose");
  return {std::move(file), path, std::move(output), nullptr};
}

namespace {
constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";  // HDF5 file format specification, section II.A
}

bool File::looks_like_hdf5(const std::filesystem::path& path) {
  return InputFile(path).beginning(signature.size()) == signature;
}

File File::open(const std::filesystem::path& path, Verify verify, std::optional<FileSum> expected) {
  auto input = std::make_shared<ReadStorage>(path, verify, expected);
  std::string start(signature.size(), '\0');
  if (input->size() >= start.size()) input->read(0, start.data(), start.size(), /*numbers=*/false);
  if (start != signature)
    throw UserError(
        format("{} is not an HDF5 file (it does not begin with HDF5's signature); check the path, or copy the file again",
               path.string()));
  const Lock lock;
  const Handle access = file_access();  // open until error_stack() is called, because closing clears the error stack
  use_storage(access.id(), *input);
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id());
  const std::exception_ptr reason = take_read_error();
  if (id < 0 && reason) std::rethrow_exception(reason);
  if (id < 0)
    throw UserError(format("{} cannot be opened ({}); copy the file again, or use another one", path.string(), error_stack()));
  return {{id, H5Fclose, "H5Fclose"}, path, nullptr, std::move(input)};
}

bool File::is_checked() const { return input_ && input_->file().is_checked(); }

void File::prefetch(std::uint64_t offset, std::size_t bytes) const {
  if (input_) input_->file().prefetch(offset, bytes);
}

namespace {

/// Returns the HDF5 type of the elements. bf16 and fp16 are described by their sign, exponent and mantissa, so that every HDF5
/// tool can show the numbers.
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

constexpr std::size_t chunk_elements = std::size_t{1} << 16;  // as fp32, a quarter of HDF5's chunk cache
constexpr std::size_t fewest_compressed = 4096;               // in elements; a chunk index takes 2 KiB, so less gains nothing
constexpr unsigned deflate_level = 1;                         // mantissas hardly compress: level 4 saves 1 % more and is slower

Handle dataset_creation(const std::string& what) {
  Handle creation = property_list(H5P_DATASET_CREATE);
  check_h5(H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time",
           what);  // our code writes every element, so HDF5 writes no fill values
  return creation;
}

Handle make_dataset(const Handle& file, const std::string& name, hid_t type, const Handle& space, const Handle& creation,
                    const std::string& what) {
  const Handle links = property_list(H5P_LINK_CREATE);
  check_h5(H5Pset_create_intermediate_group(links.id(), 1), "H5Pset_create_intermediate_group", what);
  return {check_h5(H5Dcreate2(file.id(), name.c_str(), type, space.id(), links.id(), creation.id(), H5P_DEFAULT), "H5Dcreate2",
                   what),
          H5Dclose, "H5Dclose"};
}

}  // namespace

Dataset File::create_dataset(const std::string& name, const Shape& shape, Compression compression) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle creation = dataset_creation(what);
  if (compression == Compression::gzip && numel(shape) >= fewest_compressed) {
    expect(shape.size() == 1, "a compressed dataset has one dimension");
    const hsize_t chunk = std::min(shape.front(), chunk_elements);
    check_h5(H5Pset_chunk(creation.id(), 1, &chunk), "H5Pset_chunk", what);
    check_h5(H5Pset_shuffle(creation.id()), "H5Pset_shuffle", what);
    check_h5(H5Pset_deflate(creation.id(), deflate_level), "H5Pset_deflate", what);
  }
  const Handle space = dataspace({shape.begin(), shape.end()});
  return {make_dataset(handle_, name, H5T_IEEE_F32LE, space, creation, what), what, output_};
}

std::uint64_t File::reserve_dataset(const std::string& name, const Shape& shape, DType type) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle creation = dataset_creation(what);
  check_h5(H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time", what);
  check_h5(H5Pset_obj_track_times(creation.id(), false), "H5Pset_obj_track_times", what);
  const Handle space = dataspace({shape.begin(), shape.end()}), stored = file_type(type, what);
  const Handle dataset = make_dataset(handle_, name, stored.id(), space, creation, what);
  const haddr_t offset = H5Dget_offset(dataset.id());
  if (offset == HADDR_UNDEF) throw CallError("H5Dget_offset " + what, error_stack());
  return offset;
}

void File::create_virtual_dataset(const std::string& name, const Shape& shape, std::span<const VirtualPart> parts) {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  const Handle space = dataspace({shape.begin(), shape.end()}), creation = property_list(H5P_DATASET_CREATE);
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
  make_dataset(handle_, name, H5T_IEEE_F32LE, space, creation, what).close(what);
}

bool File::has(const std::string& name) const {
  const Lock lock;
  for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {  // H5Lexists fails if a parent group is missing
    const std::string part = name.substr(0, end), what = format("{} of {}", part, what_);
    if (part != "/" && check_h5(H5Lexists(handle_.id(), part.c_str(), H5P_DEFAULT), "H5Lexists", what) == 0) return false;
    H5L_info_t link{};
    if (part != "/") check_h5(H5Lget_info(handle_.id(), part.c_str(), &link, H5P_DEFAULT), "H5Lget_info", what);
    if (part != "/" && link.type != H5L_TYPE_HARD)
      throw UserError(
          format("{} is a link to another place (it may lead into any file); copy the linked object into the file", what));
    if (end == std::string::npos) return true;
  }
}

namespace {

/// Throws UserError unless the elements of the dataset are in its own file, have a supported type and at least one dimension,
/// and use only HDF5's own filters.
void require_own_elements(const Handle& dataset, bool of_integers, const std::string& what) {
  const Handle creation(check_h5(H5Dget_create_plist(dataset.id()), "H5Dget_create_plist", what), H5Pclose, "H5Pclose");
  const H5D_layout_t layout = check_h5(H5Pget_layout(creation.id()), "H5Pget_layout", what);
  if (check_h5(H5Pget_external_count(creation.id()), "H5Pget_external_count", what) > 0 || layout == H5D_VIRTUAL)
    throw UserError(
        format("{} has its elements in other files (it could show any of your files); copy the elements into this file", what));
  const int filters = check_h5(H5Pget_nfilters(creation.id()), "H5Pget_nfilters", what);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        check_h5(H5Pget_filter2(creation.id(), static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, &config),
                 "H5Pget_filter2", what);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      throw UserError(
          format("{} is stored with filter {} of HDF5 (only shuffle, deflate and fletcher32 are read); store it again without "
                 "this filter",
                 what, static_cast<int>(filter)));
  }
  if (layout == H5D_CHUNKED) {
    std::array<hsize_t, H5S_MAX_RANK> extent{};
    const int rank = check_h5(H5Pget_chunk(creation.id(), H5S_MAX_RANK, extent.data()), "H5Pget_chunk", what);
    hsize_t elements = 1;
    for (const hsize_t e : std::span(extent).first(static_cast<std::size_t>(rank)))
      elements = e == 0 || e > most_of_a_chunk / elements ? most_of_a_chunk + 1 : elements * e;
    if (elements > most_of_a_chunk)
      throw UserError(
          format("{} has chunks of more than {} elements (a chunk is read as a whole); store it again with smaller chunks",
                 what, most_of_a_chunk));
  }
  const Handle space(check_h5(H5Dget_space(dataset.id()), "H5Dget_space", what), H5Sclose, "H5Sclose");
  if (check_h5(H5Sget_simple_extent_ndims(space.id()), "H5Sget_simple_extent_ndims", what) == 0)
    throw UserError(format("{} is a scalar (a tensor has at least one dimension); store it again with a dimension", what));
  const Handle type(check_h5(H5Dget_type(dataset.id()), "H5Dget_type", what), H5Tclose, "H5Tclose");
  const H5T_class_t kind = H5Tget_class(type.id());
  if (of_integers) {
    if (kind != H5T_INTEGER || H5Tget_size(type.id()) > sizeof(std::int64_t))
      throw UserError(format(
          "{} does not have integers of 8, 16, 32 or 64 bits (only these are read); store it again with one of these types",
          what));
  } else if (kind != H5T_FLOAT || H5Tget_size(type.id()) > sizeof(double)) {
    throw UserError(
        format("{} does not have floating-point numbers of 8, 16, 32 or 64 bits (only these are read); store it again with one "
               "of these types",
               what));
  }
}

}  // namespace

Handle File::open_dataset(const std::string& name, bool of_integers, const std::string& what) const {
  if (input_) has(name);  // throws if the name is a link to another file
  Handle dataset(check_h5(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), "H5Dopen2", what), H5Dclose, "H5Dclose");
  if (input_) require_own_elements(dataset, of_integers, what);
  return dataset;
}

Dataset File::dataset(const std::string& name) const {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  return {open_dataset(name, /*of_integers=*/false, what), what, output_};
}

Integers File::integers(const std::string& name) const {
  const Lock lock;
  const std::string what = format("{} of {}", name, what_);
  return {open_dataset(name, /*of_integers=*/true, what), what, output_};
}

Integers::Integers(Handle handle, std::string what, std::shared_ptr<WrittenStorage> output)
    : Elements(std::move(handle), std::move(what), std::move(output)) {
  const Handle type(check_h5(H5Dget_type(handle_.id()), "H5Dget_type", what_), H5Tclose, "H5Tclose");
  bytes_ = H5Tget_size(type.id());
  is_signed_ = H5Tget_sign(type.id()) == H5T_SGN_2;
}

namespace {

/// Checks the result of an HDF5 call that reads a file of another program. If the call has failed, rethrows the exception of
/// our file driver, if there is one; otherwise throws DamagedError.
void require_read(herr_t result, const std::string& what) {
  const std::exception_ptr reason = take_read_error();
  if (result >= 0) return;
  if (reason) std::rethrow_exception(reason);
  throw DamagedError(format("{} cannot be read ({}); copy the file again, or make it anew", what, error_stack()));
}

}  // namespace

void Integers::read(Range range, std::int64_t* out) const {
  const Lock lock;
  each_box(handle_, shape_, range, what_, [&](hid_t memory, hid_t file, std::size_t offset) {
    require_read(H5Dread(handle_.id(), H5T_NATIVE_INT64, memory, file, H5P_DEFAULT, out + offset), what_);
  });
}

void Elements::require_whole() const {
  const Lock lock;
  const auto damaged = [&](const std::string& why) {
    throw DamagedError(format("{} has parts that are not in the file ({}); copy the file again, or make it anew", what_, why));
  };
  const Handle creation(check_h5(H5Dget_create_plist(handle_.id()), "H5Dget_create_plist", what_), H5Pclose, "H5Pclose");
  const H5D_layout_t layout = check_h5(H5Pget_layout(creation.id()), "H5Pget_layout", what_);
  H5D_fill_value_t fill = H5D_FILL_VALUE_ERROR;
  check_h5(H5Pfill_value_defined(creation.id(), &fill), "H5Pfill_value_defined", what_);
  if (fill == H5D_FILL_VALUE_USER_DEFINED) return;
  if (layout == H5D_CONTIGUOUS && numel(shape_) > 0 && H5Dget_storage_size(handle_.id()) == 0)
    damaged("none of its elements was ever written");
#if H5_VERSION_GE(1, 10, 5)
  if (layout != H5D_CHUNKED) return;
  std::vector<hsize_t> chunk(shape_.size());
  check_h5(H5Pget_chunk(creation.id(), static_cast<int>(chunk.size()), chunk.data()), "H5Pget_chunk", what_);
  std::size_t all = 1;
  for (std::size_t d = 0; d < chunk.size(); ++d) all *= (shape_[d] + chunk[d] - 1) / std::max<hsize_t>(chunk[d], 1);
  const Handle space(check_h5(H5Dget_space(handle_.id()), "H5Dget_space", what_), H5Sclose, "H5Sclose");
  hsize_t stored = 0;
  require_read(H5Dget_num_chunks(handle_.id(), space.id(), &stored), what_);
  if (stored < all) damaged(format("only {} of its {} chunks are stored", stored, all));
#endif
}

std::optional<DType> Dataset::plain_type() const {
  const Lock lock;
  if (!offset()) return std::nullopt;
  const Handle type(check_h5(H5Dget_type(handle_.id()), "H5Dget_type", what_), H5Tclose, "H5Tclose");
  for (const DType known : {DType::f32, DType::bf16, DType::f16})
    if (H5Tequal(type.id(), file_type(known, what_).id()) > 0) return known;
  return std::nullopt;
}

void Integers::append(std::span<const std::uint32_t> values) {
  const Lock lock;
  expect(output_ != nullptr, "a dataset of a file open for reading is not written");
  const hsize_t extent = shape_.front() + values.size();
  check_h5(H5Dset_extent(handle_.id(), &extent), "H5Dset_extent", what_);
  const Range added = {shape_.front(), extent};
  shape_.front() = extent;
  each_box(handle_, shape_, added, what_, [&](hid_t memory, hid_t file, std::size_t offset) {
    check_h5(H5Dwrite(handle_.id(), H5T_NATIVE_UINT32, memory, file, H5P_DEFAULT, values.data() + offset), "H5Dwrite", what_);
  });
  output_->check();
}

Integers File::create_integers(const std::string& name, std::size_t bytes, Compression compression) {
  const Lock lock;
  expect(bytes == 1 || bytes == 2 || bytes == 4, "integers have 8, 16 or 32 bits");
  const std::string what = format("{} of {}", name, what_);
  const Handle creation = dataset_creation(what);
  const hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = chunk_elements;
  check_h5(H5Pset_chunk(creation.id(), 1, &chunk), "H5Pset_chunk", what);
  if (compression == Compression::gzip) {
    check_h5(H5Pset_shuffle(creation.id()), "H5Pset_shuffle", what);
    check_h5(H5Pset_deflate(creation.id(), deflate_level), "H5Pset_deflate", what);
  }
  const Handle space(check_h5(H5Screate_simple(1, &none, &unlimited), "H5Screate_simple", what), H5Sclose, "H5Sclose");
  const hid_t type = bytes == 1 ? H5T_STD_U8LE : bytes == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
  return {make_dataset(handle_, name, type, space, creation, what), what, output_};
}

std::vector<std::string> File::dataset_names(const std::string& group) const {
  const Lock lock;
  return collect(handle_, group, what_).datasets;
}

std::vector<std::string> File::other_names(const std::string& group) const {
  const Lock lock;
  return collect(handle_, group, what_).others;
}

void File::close() {
  handle_.close(what_);
  if (output_) output_->file().finish();
}

FileSum File::seal(std::vector<KnownPart> known) {
  handle_.close(what_);
  OutputFile& file = output_->file();
  std::sort(known.begin(), known.end(), [](const KnownPart& a, const KnownPart& b) { return a.part.offset < b.part.offset; });
  Sealer sealer(file, file.size());
  for (auto& [part, bytes] : known) {
    if (bytes) {
      sealer.add(part.offset, bytes, part.bytes);
      sealer.name(std::move(part));
    } else {
      sealer.name_and_sum(std::move(part));
    }
  }
  const FileSum sum = sealer.finish();
  file.finish();
  return sum;
}

std::string library_version() {
  const Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  check_h5(H5get_libversion(&major, &minor, &release), "H5get_libversion", "");
  return format("{}.{}.{}", major, minor, release);
}

std::string header_version() { return format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE); }

}  // namespace fsdp::h5
