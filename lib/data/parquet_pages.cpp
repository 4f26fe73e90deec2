#include "data/parquet_pages.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/format.hpp"
#include "files/unpack.hpp"

namespace fsdp::parquet {

namespace {

constexpr std::size_t longest_page = std::size_t{1} << 30, longest_header = std::size_t{16} << 20;

/// Reads numbers from bytes that may be damaged.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > left()) throw Unreadable{"it is damaged: a length is larger than what follows"};
    at_ += bytes;
    return bytes_.substr(at_ - bytes, bytes);
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1).front()); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint64_t next = byte();
      value |= (next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    throw Unreadable{"it is damaged: a number has too many bytes"};
  }
  std::int64_t zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>((value >> 1) ^ (0 - (value & 1)));
  }
  std::uint64_t fixed(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view all = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) value |= std::uint64_t{static_cast<unsigned char>(all[i])} << (8 * i);
    return value;
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

/// Types of Thrift's compact protocol.
enum : unsigned { stop, yes, no, byte, int16, int32, int64, real, text, list, set, map, structure };

Thrift read_value(Cursor& from, unsigned type, bool in_list, int depth);

Thrift read_fields(Cursor& from, int depth) {
  Thrift all;
  std::int64_t id = 0;
  for (unsigned head; (head = from.byte()) != stop;) {
    id = head >> 4 ? id + (head >> 4) : from.zigzag();
    all.items.emplace_back(id, read_value(from, head & 15, false, depth));
  }
  return all;
}

Thrift read_elements(Cursor& from, int depth) {
  const unsigned head = from.byte();
  const std::uint64_t count = head >> 4 == 15 ? from.varint() : head >> 4;
  if (count > from.left()) throw Unreadable{"it is damaged: a list is longer than what follows"};
  Thrift all;
  for (std::uint64_t i = 0; i < count; ++i)
    all.items.emplace_back(static_cast<std::int64_t>(i), read_value(from, head & 15, true, depth));
  return all;
}

Thrift read_value(Cursor& from, unsigned type, bool in_list, int depth) {
  if (depth > 32) throw Unreadable{"it is damaged: its description is nested too deeply"};
  switch (type) {
    case yes:
    case no:
      return {.number = in_list ? from.byte() == 1 : type == yes};
    case byte:
      return {.number = static_cast<std::int8_t>(from.byte())};
    case int16:
    case int32:
    case int64:
      return {.number = from.zigzag()};
    case real:
      from.take(8);
      return {};
    case text:
      return {.text = from.take(from.varint())};
    case list:
    case set:
      return read_elements(from, depth + 1);
    case structure:
      return read_fields(from, depth + 1);
    default:
      throw Unreadable{"it is damaged: its description has a value of no known type"};
  }
}

unsigned width_of(unsigned most) { return static_cast<unsigned>(std::bit_width(most)); }

void append_number(std::string& to, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to += static_cast<char>(number >> (8 * i));
}

/// Reads DELTA_BINARY_PACKED. Returns at most `most` numbers, and sets *end to the position after them.
std::vector<std::uint64_t> read_deltas(std::string_view bytes, std::uint64_t most, std::size_t* end) {
  *end = 0;
  if (bytes.empty()) return {};  // the values of a page are all null
  Cursor from(bytes);
  const std::uint64_t block = from.varint(), parts = from.varint(), count = from.varint();
  std::uint64_t value = static_cast<std::uint64_t>(from.zigzag());
  if (parts == 0 || block > (1u << 20) || block % parts != 0 || block / parts % 32 != 0 || block == 0 || count > most)
    throw Unreadable{"it is damaged: a page has wrong sizes of blocks"};
  std::vector<std::uint64_t> all;
  if (count > 0) all.push_back(value);
  while (all.size() < count) {
    const auto least = static_cast<std::uint64_t>(from.zigzag());
    const std::string_view widths = from.take(parts);
    for (std::size_t part = 0; part < parts && all.size() < count; ++part) {
      const unsigned width = static_cast<unsigned char>(widths[part]);
      if (width > 64) throw Unreadable{"it is damaged: a number has more than 64 bits"};
      const std::string_view packed = from.take(block / parts * width / 8);
      for (std::size_t i = 0; i < block / parts && all.size() < count; ++i) {
        std::uint64_t delta = 0;
        for (unsigned bit = 0; bit < width; ++bit) {
          const std::size_t at = i * width + bit;
          delta |= std::uint64_t{static_cast<unsigned char>(packed[at / 8]) >> (at % 8) & 1u} << bit;
        }
        all.push_back(value += least + delta);
      }
    }
  }
  *end = from.at();
  return all;
}

}  // namespace

const Thrift& Thrift::at(std::int64_t field) const {
  static const Thrift none;
  for (const auto& [id, value] : items)
    if (id == field && field >= 0) return value;
  return none;
}

Thrift read_thrift(std::string_view bytes, std::size_t* end) {
  Cursor from(bytes);
  Thrift all = read_fields(from, 0);
  if (end) *end = from.at();
  return all;
}

std::uint32_t Runs::next() {
  if (width_ == 0) return 0;
  if (equal_ == 0 && packed_ == 0) {
    Cursor from(bytes_);
    const std::uint64_t head = from.varint();
    if (head & 1) {
      packed_ = (head >> 1) > (bytes_.size() / width_ + 1) ? bytes_.size() * 8 : (head >> 1) * 8;
      bit_ = 0;
    } else {
      equal_ = head >> 1;
      value_ = static_cast<std::uint32_t>(from.fixed((width_ + 7) / 8));
    }
    if (head < 2) throw Unreadable{"it is damaged: a run is empty"};
    bytes_.remove_prefix(from.at());
  }
  if (equal_ > 0) {
    --equal_;
    return value_;
  }
  const std::size_t last = (bit_ + width_ - 1) / 8;
  if (last >= bytes_.size()) throw Unreadable{"it is damaged: a page has fewer numbers than it should"};
  std::uint64_t window = 0;
  for (std::size_t i = 0; i <= last; ++i) window |= std::uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
  const auto number = static_cast<std::uint32_t>(window >> bit_ & ((std::uint64_t{1} << width_) - 1));
  bit_ += width_;
  bytes_.remove_prefix(bit_ / 8);
  bit_ %= 8;
  // A run has whole groups of eight numbers, so it ends at the end of a byte.
  --packed_;
  return number;
}

bool Column::prepare() {
  if (is_prepared_) return true;
  while (in_page_ == 0) {
    if (in_chunk_ == 0) {
      if (chunk_ == chunks_.size()) return false;
      in_chunk_ = chunks_[chunk_].values;
      at_ = chunks_[chunk_++].begin;
      dictionary_.clear();
      continue;
    }
    next_page();
  }
  repetition_ = most_repetition_ > 0 ? repetitions_.next() : 0;
  definition_ = most_definition_ > 0 ? definitions_.next() : 0;
  if (repetition_ > most_repetition_ || definition_ > most_definition_) throw Unreadable{"it is damaged: a level is too high"};
  is_prepared_ = true;
  return true;
}

std::string_view Column::next() {
  if (!prepare()) throw Unreadable{"it is damaged: a column has fewer values than there are rows"};
  --in_page_;
  is_prepared_ = false;
  if (definition_ < most_definition_) return {};
  if (has_indices_) {
    const std::uint32_t index = indices_.next();
    if (index >= dictionary_.size()) throw Unreadable{"it is damaged: a value is not in its dictionary"};
    return dictionary_[index];
  }
  if (type_ != Type::boolean) return take(plain_);
  if (plain_.empty()) throw Unreadable{"it is damaged: a page has fewer values than it should"};
  const bool value = static_cast<unsigned char>(plain_.front()) >> bit_ & 1;
  bit_ = (bit_ + 1) % 8;
  if (bit_ == 0) plain_.remove_prefix(1);
  return value ? std::string_view("\1", 1) : std::string_view("\0", 1);
}

/// Takes a value off the beginning of plain values.
std::string_view Column::take(std::string_view& from) const {
  Cursor cursor(from);
  std::uint64_t bytes = fixed_size_;
  if (type_ == Type::int32 || type_ == Type::float32) bytes = 4;
  if (type_ == Type::int64 || type_ == Type::float64) bytes = 8;
  if (type_ == Type::int96) bytes = 12;
  if (type_ == Type::bytes) bytes = cursor.fixed(4);
  const std::string_view value = cursor.take(bytes);
  from.remove_prefix(cursor.at());
  return value;
}

std::string Column::unpack(std::string_view packed, std::size_t bytes) const {
  struct Codec {
    const char* name;
    bool (*unpack)(std::string_view packed, char* to, std::size_t bytes);
  };
  static constexpr Codec codecs[] = {{"no compression", nullptr}, {"Snappy", unpack_snappy_block},
                                     {"gzip", unpack_gzip_block}, {"LZO", nullptr},
                                     {"Brotli", nullptr},         {"LZ4", nullptr},
                                     {"zstd", unpack_zstd_block}, {"LZ4", nullptr}};
  const std::int64_t number = chunks_[chunk_ - 1].codec;
  if (number == 0 || bytes == 0) return std::string(packed.substr(0, bytes));
  if (number < 0 || number >= std::ssize(codecs) || !codecs[number].unpack)
    throw Unreadable{
        format("it is compressed by {}, and only pages without compression and those of Snappy, gzip and zstd are read",
               number > 0 && number < std::ssize(codecs) ? codecs[number].name : "an unknown program")};
  if (codecs[number].unpack == unpack_zstd_block && !has_zstd)
    throw Unreadable{"it is compressed by zstd, which this build does not read: it was configured without libzstd"};
  std::string page(bytes, '\0');
  if (!codecs[number].unpack(packed, page.data(), bytes))
    throw Unreadable{format("it is damaged: a page cannot be unpacked with {}", codecs[number].name)};
  return page;
}

/// Reads the next page. If it has no values, as dictionaries, in_page_ is still 0.
void Column::next_page() {
  const Chunk& chunk = chunks_[chunk_ - 1];
  Thrift header;
  std::size_t header_bytes = 0;
  std::string beginning;
  for (std::size_t bytes = 1 << 10;; bytes *= 8) {  // its size is not known before it is read
    beginning.resize(std::min<std::uint64_t>(bytes, chunk.end - at_));
    file_.read(at_, beginning.data(), beginning.size());
    try {
      header = read_thrift(beginning, &header_bytes);
      break;
    } catch (const Unreadable&) {
      if (beginning.size() < bytes || bytes > longest_header) throw;
    }
  }
  at_ += header_bytes;
  const std::int64_t type = header.at(1).number, unpacked = header.at(2).number, packed = header.at(3).number;
  if (packed < 0 || unpacked < 0 || static_cast<std::uint64_t>(packed) > chunk.end - at_ ||
      static_cast<std::uint64_t>(unpacked) > longest_page)
    throw Unreadable{"it is damaged, or has a page of more than 1 GiB"};
  std::string bytes(static_cast<std::size_t>(packed), '\0');
  file_.read(at_, bytes.data(), bytes.size());
  at_ += bytes.size();
  if (header.has(4) && crc32_of(bytes) != static_cast<std::uint32_t>(header.at(4).number))
    throw Unreadable{"it is damaged: a page differs from its checksum"};
  enum { data, index, dictionary, data_v2 };
  if (type == index) return;
  if (type == dictionary) {
    dictionary_page_ = unpack(bytes, static_cast<std::size_t>(unpacked));
    return read_dictionary(dictionary_page_, header.at(7));
  }
  const Thrift& about = header.at(type == data ? 5 : 8);
  const std::int64_t values = about.at(1).number;
  if ((type != data && type != data_v2) || values < 0 || static_cast<std::uint64_t>(values) > in_chunk_)
    throw Unreadable{"it is damaged: a page has a wrong number of values"};
  std::string_view repetitions, definitions, rest;
  if (type == data) {
    page_ = unpack(bytes, static_cast<std::size_t>(unpacked));
    Cursor from(page_);
    constexpr std::int64_t rle = 3;
    if ((most_repetition_ > 0 && about.at(4).number != rle) || (most_definition_ > 0 && about.at(3).number != rle))
      throw Unreadable{"its levels are encoded as before 2014"};
    if (most_repetition_ > 0) repetitions = from.take(from.fixed(4));
    if (most_definition_ > 0) definitions = from.take(from.fixed(4));
    rest = from.take(from.left());
    begin_values(rest, about.at(2).number, static_cast<std::uint64_t>(values));
  } else {
    page_ = std::move(bytes);
    Cursor from(page_);
    repetitions = from.take(static_cast<std::uint64_t>(about.at(6).number));
    definitions = from.take(static_cast<std::uint64_t>(about.at(5).number));
    rest = from.take(from.left());
    const std::uint64_t levels = repetitions.size() + definitions.size();
    if (levels > static_cast<std::uint64_t>(unpacked)) throw Unreadable{"it is damaged: the levels of a page are too long"};
    if (!about.has(7) || about.at(7).number == 1) {
      // The values get a string of their own, and the levels stay in page_.
      values_ = unpack(rest, static_cast<std::size_t>(unpacked) - levels);
      rest = values_;
    }
    begin_values(rest, about.at(4).number, static_cast<std::uint64_t>(values));
  }
  repetitions_ = Runs(repetitions, width_of(most_repetition_));
  definitions_ = Runs(definitions, width_of(most_definition_));
  in_page_ = static_cast<std::uint64_t>(values);
  in_chunk_ -= in_page_;
}

void Column::read_dictionary(std::string_view page, const Thrift& header) {
  const std::int64_t values = header.at(1).number;
  dictionary_.clear();
  if (type_ == Type::boolean || values < 0 || (values > 0 && page.empty()))
    throw Unreadable{"it is damaged: a dictionary is wrong"};
  for (std::int64_t i = 0; i < values; ++i) dictionary_.push_back(take(page));
}

/// Prepares to read the values of a page, at most `most`. Values in an encoding that reads several at once are written as plain
/// ones.
void Column::begin_values(std::string_view bytes, std::int64_t encoding, std::uint64_t most) {
  enum { plain, unused, plain_dictionary, rle, bit_packed, deltas, delta_lengths, delta_bytes, rle_dictionary, split };
  has_indices_ = false;
  bit_ = 0;
  plain_ = bytes;
  std::size_t at = 0;
  rewritten_.clear();
  const bool is_number = type_ == Type::int32 || type_ == Type::int64;
  if (encoding == plain) return;
  if ((encoding == plain_dictionary || encoding == rle_dictionary) && !bytes.empty()) {
    const unsigned width = static_cast<unsigned char>(bytes.front());
    if (width > 32) throw Unreadable{"it is damaged: an index has more than 32 bits"};
    has_indices_ = true;
    indices_ = Runs(bytes.substr(1), width);
  } else if (encoding == rle && type_ == Type::boolean) {
    Cursor from(bytes);
    const std::string_view runs = from.take(from.fixed(4));
    dictionary_ = {std::string_view("\0", 1), std::string_view("\1", 1)};
    has_indices_ = true;
    indices_ = Runs(runs, 1);
  } else if (encoding == deltas && is_number) {
    for (const std::uint64_t number : read_deltas(bytes, most, &at))
      append_number(rewritten_, number, type_ == Type::int32 ? 4 : 8);
    plain_ = rewritten_;
  } else if ((encoding == delta_lengths || encoding == delta_bytes) && type_ == Type::bytes) {
    std::vector<std::uint64_t> shared;
    if (encoding == delta_bytes) {
      shared = read_deltas(bytes, most, &at);
      bytes.remove_prefix(at);
    }
    const std::vector<std::uint64_t> lengths = read_deltas(bytes, most, &at);
    shared.resize(lengths.size());
    Cursor from(bytes.substr(at));
    std::size_t before = 0, before_bytes = 0;  // of the value before, in rewritten_
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::string_view own = from.take(lengths[i]);
      if (shared[i] > before_bytes || rewritten_.size() + shared[i] > longest_page)
        throw Unreadable{"it is damaged: a value shares too many bytes with the one before"};
      append_number(rewritten_, shared[i] + own.size(), 4);
      const std::size_t begin = rewritten_.size();
      rewritten_.append(std::string(rewritten_, before, shared[i])).append(own);
      before = begin, before_bytes = rewritten_.size() - begin;
    }
    plain_ = rewritten_;
  } else if (encoding == split && type_ != Type::boolean && type_ != Type::bytes && type_ != Type::int96) {
    // The first bytes of all values, then the second ones, and so on
    const std::size_t width = fixed_size_ > 0 ? fixed_size_ : type_ == Type::int32 || type_ == Type::float32 ? 4 : 8;
    const std::size_t count = bytes.size() / width;
    for (std::size_t i = 0; i < count * width; ++i) rewritten_ += bytes[i % width * count + i / width];
    plain_ = rewritten_;
  } else if (!(bytes.empty() && encoding <= split)) {
    throw Unreadable{format("a page has encoding {} of Parquet, which is not read here", encoding)};
  }
}

}  // namespace fsdp::parquet
