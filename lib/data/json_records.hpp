// Records of JSON in texts: lines (JSONL, ndjson), the elements of an array, or objects of several lines each, one after the
// other. The content of a text says which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/text_source.hpp"

namespace fsdp {

/// The limit of a record of JSON, and of a stretch of text that cannot be cut; memory is 9 to 14 times as much.
inline constexpr std::size_t longest_piece = std::size_t{256} << 20;
inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;

enum class JsonShape { none, lines, values };
/// Decides by the beginning of a text whether it is JSON: an array, or the beginning of an array of objects; or text that
/// begins with a brace, and either has only objects, or has the string `field` in the first object or in a whole line. Other
/// texts that begin with a bracket are not JSON.
JsonShape json_shape(std::string_view beginning, std::string_view field);

/// Returns true if most of the first lines of a text are objects, whatever its first line is.
bool has_lines_of_json(std::string_view beginning);

/// Reads the records one by one.
class JsonRecords {
 public:
  /// Reads the part [begin, end) of a text that is JSON; both are between records. Without `end`: up to the end of the text.
  JsonRecords(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end);
  /// False at the end. Throws UserError for a record of 256 MiB or more, and if the next record of an array cannot be found.
  /// Empty lines are no records.
  bool next();
  /// Valid until the next one. A line may be no JSON.
  std::string_view record() const { return std::string_view(buffer_).substr(record_begin_, record_end_ - record_begin_); }
  /// Where the record begins in the text.
  std::uint64_t begin() const { return at_ + record_begin_; }
  /// Where the next part of the text begins.
  std::uint64_t end() const { return at_ + end_in_buffer_; }
  /// "line 3 of 'a.jsonl'".
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
  enum class Behind { nothing, bracket, element, comma, end } behind_ = Behind::nothing;  // the last thing read of an array
  bool text_ends_ = false, is_over_ = false;
  std::string buffer_;
  std::size_t record_begin_ = 0, record_end_ = 0, end_in_buffer_ = 0;
  std::uint64_t at_;  // where the buffer begins in the text
};

/// The first place at or after `from` where a record may begin. Reads an array from its beginning. Requires files.
std::uint64_t next_record(TextSource& text, std::uint64_t from);

}  // namespace fsdp
