// Reads JSON records from texts. The records are lines (JSONL, ndjson), the elements of an array, or consecutive objects of
// several lines each. Which of these a text has is found from its content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/text_source.hpp"

namespace fsdp {

/// The largest size in bytes of a JSON record, or of a piece of plain text that can be cut nowhere (text_cuts.hpp). Tokenizing
/// such a piece takes 9 to 14 times as much memory.
inline constexpr std::size_t longest_piece = std::size_t{256} << 20;
inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// `lines`: each line is a record. `values`: records are the elements of an array, or objects that may have several lines.
enum class JsonShape { none, lines, values };
/// Decides from the beginning of a text if the text is JSON. It is JSON if it is an array or begins like an array of objects;
/// other texts that begin with a bracket are not JSON. A text that begins with a brace is JSON if it has only objects, or if
/// its first object or some line has the string `field`.
JsonShape json_shape(std::string_view beginning, std::string_view field);

/// Returns true if most of the first lines of a text are JSON objects, whether or not the very first line is an object.
bool has_lines_of_json(std::string_view beginning);

/// Reads records one by one.
class JsonRecords {
 public:
  /// Reads the part [begin, end) of a JSON text. `begin` and `end` must be between records. If `end` is not set, reads to the
  /// end of the text.
  JsonRecords(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end);
  /// Moves to the next record. Returns false at the end. Empty lines are skipped. Throws UserError for a record of 256 MiB or
  /// more, and if the next record of an array cannot be found.
  bool next();
  /// The current record, valid until next() is called. If records are lines, this may be invalid JSON.
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
  enum class LastRead {
    nothing,
    bracket,
    element,
    comma,
    end
  } last_read_ = LastRead::nothing;  // an element of an array, a sign around elements, or nothing yet
  bool text_ends_ = false, is_over_ = false;
  std::string buffer_;
  std::size_t record_begin_ = 0, record_end_ = 0, end_in_buffer_ = 0;
  std::uint64_t at_;  // the position in the text at which the buffer begins
};

/// Returns the first position at or after `from` at which a record may begin. For an array, reads the text from the array's
/// beginning. Requires that all texts are files.
std::uint64_t next_record(TextSource& text, std::uint64_t from);

}  // namespace fsdp
