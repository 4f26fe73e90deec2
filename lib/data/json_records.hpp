// Reads JSON records from texts: lines (JSONL, ndjson), the elements of an array, or consecutive objects of several lines each.
// The content of a text shows which form it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/text_source.hpp"

namespace fsdp {

/// The largest JSON record, and the longest piece of text without a place for a cut. To tokenize it takes 9 to 14 times as
/// much memory.
inline constexpr std::size_t longest_piece = std::size_t{256} << 20;
inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// `lines`: each line is a record. `values`: records are the elements of an array, or objects that may have several lines.
enum class JsonShape { none, lines, values };
/// Decides from the beginning of a text if it is JSON. It is JSON if it is an array or begins like an array of objects. It is
/// also JSON if it begins with a brace, and either has only objects, or has the string `field` in its first object or in some
/// line. Other texts that begin with a bracket are not JSON.
JsonShape json_shape(std::string_view beginning, std::string_view field);

/// Returns true if most of the first lines of a text are objects; the very first line need not be one.
bool has_lines_of_json(std::string_view beginning);

/// Reads records one by one.
class JsonRecords {
 public:
  /// Reads the part [begin, end) of a text that is JSON; both positions must be between records. Without `end` it reads to the
  /// end of the text.
  JsonRecords(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end);
  /// Moves to the next record. Returns false at the end. Empty lines are skipped. Throws UserError for a record of 256 MiB or
  /// more, and if the next record of an array cannot be found.
  bool next();
  /// The current record, valid until next() is called. A line may be invalid JSON.
  std::string_view record() const { return std::string_view(buffer_).substr(record_begin_, record_end_ - record_begin_); }
  /// The position of the record in the text.
  std::uint64_t begin() const { return at_ + record_begin_; }
  /// The position after the record and its line end.
  std::uint64_t end() const { return at_ + end_in_buffer_; }
  /// The record's place for messages: "line 3 of 'a.jsonl'".
  std::string place() const { return text_.place_of_line(begin()); }

 private:
  void begin_text(bool at_its_beginning);
  bool more();
  bool next_line();
  bool next_value();
  [[noreturn]] void fail(std::uint64_t at, const std::string& why) const;

  TextSource& text_;
  std::optional<std::uint64_t> end_;
  bool is_lines_ = true;
  bool is_array_ = false;
  enum class Behind {
    nothing,
    bracket,
    element,
    comma,
    end
  } behind_ = Behind::nothing;  // the part of an array that was read last
  bool text_ends_ = false, is_over_ = false;
  std::string buffer_;
  std::size_t record_begin_ = 0, record_end_ = 0, end_in_buffer_ = 0;
  std::uint64_t at_;  // the position of the buffer in the text
};

/// The first position at or after `from` at which a record may begin. Reads an array from its beginning. Requires that all
/// texts are files.
std::uint64_t next_record(TextSource& text, std::uint64_t from);

}  // namespace fsdp
