#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so must this machine be");

namespace {

constexpr std::size_t converted_at_once = std::size_t{1} << 16;  // elements
constexpr std::uint64_t largest_header = 100'000'000;            // the same limit as in the reference implementation
constexpr std::size_t most_tensors = 200'000;  // in one file; the largest models have half as many in all their files together
constexpr std::size_t longest_name = 1000;     // in characters
constexpr std::size_t most_values = 64;        // in one entry, which has a type, two positions and a shape

[[noreturn]] void refuse_damaged(const std::filesystem::path& path, const std::string& why) {
  throw UserError(format("{} is damaged ({}); download or copy it again", path.string(), why));
}

/// Returns the bytes per element; empty for an unknown type.
std::optional<std::size_t> element_bytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype == "F8_E5M2" || dtype == "F8_E4M3") return 1;
  return std::nullopt;
}

/// Reads `count` elements of type E as fp32.
template <class E>
void read_as(const CheckedFile& file, std::uint64_t offset, std::size_t count, float* out) {
  std::vector<E> piece(std::min(converted_at_once, count));
  for (std::size_t at = 0; at < count; at += piece.size()) {
    const std::size_t n = std::min(piece.size(), count - at);
    file.read(offset + at * sizeof(E), piece.data(), n * sizeof(E));
    std::transform(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n), out + at,
                   [](E value) { return static_cast<float>(value); });
  }
}

std::string_view name_in_file(DType type) { return type == DType::f32 ? "F32" : type == DType::bf16 ? "BF16" : "F16"; }

/// Returns a * b, or nothing if it overflows.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) return std::nullopt;
  return a * b;
}

/// Reads one entry of the header. Throws UserError.
StoredTensor read_entry(const std::filesystem::path& path, const std::string& name, const json& entry, std::uint64_t data_start,
                        std::uint64_t data_bytes) {
  const auto fail = [&](const std::string& why) { refuse_damaged(path, format("its entry for {} {}", excerpt(name), why)); };
  if (excerpt(name, longest_name) != name) fail("has control characters in its name, or a very long one");
  const auto is_count = [](const json& value) { return value.is_number_unsigned(); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    fail("lacks dtype, shape or data_offsets");
  const json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string()) fail("has a dtype that is not a text");
  if (dtype.get_ref<const std::string&>().size() > longest_name) fail("has an invalid dtype");
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) fail("has a shape that is not a list of sizes");
  if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) || !is_count(offsets[1]))
    fail("has data_offsets that are not two positions");
  const std::uint64_t begin = offsets[0], end = offsets[1];
  if (begin > end || end > data_bytes)
    fail(format("has bytes {} to {}, but the data has only {} bytes", begin, end, data_bytes));
  StoredTensor tensor{name, dtype, shape.get<Shape>(), data_start + begin, end - begin};
  if (const auto size = element_bytes(tensor.dtype)) {
    std::optional<std::uint64_t> bytes = *size;
    for (const std::size_t extent : tensor.shape) bytes = bytes ? product(*bytes, extent) : bytes;
    if (bytes != tensor.bytes)
      fail(format("has {} bytes, which is not the size of {} in {}", tensor.bytes, to_string(tensor.shape), tensor.dtype));
  }
  return tensor;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Verify verify)
    : file_(CheckedFile::sealed_by(seal_beside(path), path, verify)) {
  if (file_.size() < 8) refuse_damaged(path, format("it has {} bytes, but the length of a header alone takes 8", file_.size()));
  std::uint64_t length = 0;
  file_.read(0, &length, sizeof length);
  if (std::memcmp(&length, "version ", sizeof length) == 0)
    throw UserError(format(
        "{} is a pointer of Git LFS and not the file itself (a clone without git-lfs has only pointers); run git lfs pull",
        path.string()));
  if (length > largest_header || length > file_.size() - 8)
    refuse_damaged(path, format("its header would be {} bytes long, but the file has {} bytes", length, file_.size()));
  std::string text(length, '\0');
  file_.read(8, text.data(), text.size());
  const std::uint64_t data_start = 8 + length, data_bytes = file_.size() - data_start;

  // Each entry is checked when it is complete, and then dropped: 100 MB of arbitrary JSON could take 2 GB of memory. `seen`
  // finds repeated names, which JSON allows and this format does not.
  std::vector<std::string> seen;
  std::size_t values = 0;  // in the current entry
  std::string about;       // the current key of the metadata
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    using Parsing = json::parse_event_t;
    const bool is_entry = depth == 1;
    if (event == Parsing::key && is_entry) {
      seen.push_back(parsed.get<std::string>());
      if (seen.size() > most_tensors) refuse_damaged(path, format("its header names more than {} tensors", most_tensors));
      values = 0;
      return seen.back() != "__metadata__";
    }
    const bool of_metadata = !seen.empty() && seen.back() == "__metadata__";
    if (of_metadata && depth == 2 && event == Parsing::key) about = parsed.get<std::string>();
    if (of_metadata && depth == 2 && event == Parsing::value && parsed.is_string() && metadata_.size() < 64)
      if (const auto& text_of_it = parsed.get_ref<const std::string&>(); text_of_it.size() + about.size() < 1024)
        metadata_[about] = text_of_it;
    if (seen.empty() || of_metadata) return depth == 0 || (is_entry && event == Parsing::object_start);
    if (is_entry && event == Parsing::object_end) {
      tensors_.push_back(read_entry(path, seen.back(), parsed, data_start, data_bytes));
      return false;
    }
    if (is_entry && (event == Parsing::value || event == Parsing::array_start))
      read_entry(path, seen.back(), json(), data_start, data_bytes);
    if (event == Parsing::value && ++values > most_values)
      refuse_damaged(path, format("its entry for {} is too long", excerpt(seen.back())));
    return true;
  };
  const json header = parse_json(text, watch);
  if (header.is_discarded() || !header.is_object()) refuse_damaged(path, "its header is not a JSON object");
  std::sort(seen.begin(), seen.end());
  if (const auto repeated = std::adjacent_find(seen.begin(), seen.end()); repeated != seen.end())
    refuse_damaged(path, format("its header names {} twice", excerpt(*repeated)));

  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);  // an empty tensor sorts before its neighbor
  });
  std::uint64_t at = data_start;
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.offset != at)
      refuse_damaged(path,
                     format("{} starts at byte {}, but the tensor before it ends at byte {}", tensor.name, tensor.offset, at));
    at += tensor.bytes;
  }
  if (at != file_.size()) refuse_damaged(path, format("its header describes {} bytes, but the file has {}", at, file_.size()));
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const StoredTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

DType SafetensorsFile::type_of(const StoredTensor& tensor) const {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    if (tensor.dtype == name_in_file(type)) return type;
  throw UserError(format("{} holds {} in type {} (only F32, BF16 and F16 can be read); convert it", path().string(),
                         tensor.name, tensor.dtype));
}

void SafetensorsFile::read(const StoredTensor& tensor, Range range, float* out) const {
  expect(range.begin <= range.end && range.end <= numel(tensor.shape), "a range is outside its tensor");
  if (tensor.dtype == "F64") return read_as<double>(file_, tensor.offset + range.begin * sizeof(double), range.size(), out);
  const DType type = type_of(tensor);
  read_elements(file_, type, tensor.offset + range.begin * size_of(type), range.size(), out);
}

void read_elements(const CheckedFile& file, DType type, std::uint64_t offset, std::size_t count, float* out) {
  with_element(type, [&]<class E>() {
    if constexpr (std::is_same_v<E, float>)
      file.read(offset, out, count * sizeof(E));
    else
      read_as<E>(file, offset, count, out);
  });
}

std::string safetensors_header(const std::vector<std::pair<std::string, Shape>>& tensors, DType type,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";  // transformers requires it
  std::uint64_t at = 0;
  for (const auto& [name, shape] : tensors) {
    const std::uint64_t end = at + numel(shape) * size_of(type);
    header[name] = {{"dtype", name_in_file(type)}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize(round_up(text.size(), 8), ' ');  // aligns the tensor data
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace fsdp
