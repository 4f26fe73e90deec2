#include "data/json_records.hpp"

#include <algorithm>

#include "base/byte_order_mark.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

namespace {

constexpr std::string_view spaces = " \t\r\n";

bool has_field(std::string_view object, std::string_view field) {
  std::string problem;
  return read_json_field(object, field, problem).has_value();
}

std::size_t after_spaces(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(spaces, at), text.size());
}

/// Calls take(line) for each whole line, until take() returns true. Returns false if take() never did.
template <class Take>
bool any_line(std::string_view text, const Take& take) {
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    if (take(text.substr(0, end))) return true;
  return false;
}

}  // namespace

JsonShape json_shape(std::string_view beginning, std::string_view field) {
  const std::size_t begin = after_spaces(beginning, 0);
  if (begin == beginning.size()) return JsonShape::none;
  const bool is_array = beginning[begin] == '[';
  if (!is_array && beginning[begin] != '{') return JsonShape::none;
  const JsonEnd first = end_of_json(beginning, begin);
  const auto has_lines = [&](std::string_view text) { return text.find('\n') != text.npos; };
  if (first.kind == JsonEnd::wrong && is_array) {
    const std::size_t element = after_spaces(beginning, begin + 1);
    const bool is_json = beginning[element] == '{' && end_of_json(beginning, element).kind == JsonEnd::whole;
    return is_json ? JsonShape::values : JsonShape::none;
  }
  if (first.kind == JsonEnd::wrong)
    return any_line(beginning, [&](std::string_view line) { return has_field(line, field); }) ? JsonShape::lines
                                                                                              : JsonShape::none;
  if (first.kind == JsonEnd::open) return is_array || has_lines(beginning.substr(begin)) ? JsonShape::values : JsonShape::lines;
  const std::string_view value = beginning.substr(begin, first.at - begin);
  const std::size_t next = after_spaces(beginning, first.at);
  const bool ends = next == beginning.size();
  if (is_array) return ends || beginning[after_spaces(beginning, begin + 1)] == '{' ? JsonShape::values : JsonShape::none;
  if (!ends && beginning[next] != '{' && !has_field(value, field)) return JsonShape::none;
  return has_lines(value) ? JsonShape::values : JsonShape::lines;
}

bool has_lines_of_json(std::string_view beginning) {
  std::size_t lines = 0, objects = 0;
  for (std::size_t at = 0, end; (at = after_spaces(beginning, at)) < beginning.size(); at = end + 1) {
    end = std::min(beginning.find('\n', at), beginning.size());
    const std::string_view line = beginning.substr(at, end - at);
    ++lines;
    if (line.front() != '{') continue;
    const JsonEnd found = end_of_json(line, 0);
    const bool is_whole = found.kind == JsonEnd::whole && after_spaces(line, found.at) == line.size();
    objects += is_whole || (found.kind == JsonEnd::open && end == beginning.size());  // the last may be cut
  }
  return 2 * objects > lines;
}

JsonRecords::JsonRecords(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end)
    : text_(text), end_(end), at_(begin) {
  if (text.is_of_files()) text_.seek(begin);
  begin_text(!text.is_of_files() || text.begins_at(begin));
}

void JsonRecords::begin_text(bool at_its_beginning) {
  const std::string beginning = text_.beginning();
  is_lines_ = json_shape(beginning, "") != JsonShape::values;
  is_array_ = !is_lines_ && beginning[after_spaces(beginning, 0)] == '[';
  last_read_ = at_its_beginning ? LastRead::nothing : LastRead::element;
  text_ends_ = false;
}

void JsonRecords::fail(std::uint64_t at, const std::string& why) const {
  throw UserError(format("{} is not JSON that can be read ({}); correct it", text_.place_of_line(at), why));
}

/// Reads more of the current text into the buffer, and drops the bytes before the record. At the end of the text, returns false
/// and leaves the buffer unchanged.
bool JsonRecords::more() {
  if (text_ends_) return false;
  const std::size_t kept = buffer_.size() - record_begin_;
  if (kept >= longest_piece)
    throw UserError(
        format("{} has {} or more (a whole line is held in memory); divide its text among several lines, and check "
               "that this is JSON in lines",
               place(), format_bytes(static_cast<double>(longest_piece))));
  // Reads as many bytes as are kept, so that the buffer doubles: an incomplete value is scanned again from its beginning.
  std::size_t bytes = std::max(piece_bytes, is_lines_ ? 0 : kept);
  if (end_) bytes = std::min<std::uint64_t>(bytes, *end_ - at_ - buffer_.size());
  is_over_ = bytes == 0;
  text_ends_ = is_over_ || text_.read(buffer_, bytes) == 0;
  if (text_ends_) return false;
  buffer_.erase(0, record_begin_);
  at_ += record_begin_;
  end_in_buffer_ -= std::min(record_begin_, end_in_buffer_);
  record_begin_ = 0;
  return true;
}

bool JsonRecords::next() {
  for (;;) {
    record_begin_ = end_in_buffer_;
    if (is_lines_ ? next_line() : next_value()) return true;
    if (is_over_ || !text_.next()) return false;
    begin_text(true);
  }
}

bool JsonRecords::next_line() {
  for (std::size_t searched = record_begin_;;) {
    const std::size_t found = buffer_.find('\n', searched);
    if (found == std::string::npos) {
      searched = buffer_.size() - record_begin_;
      if (more()) continue;
      if (record_begin_ == buffer_.size()) return false;
    }
    record_end_ = end_in_buffer_ = found == std::string::npos ? buffer_.size() : found + 1;
    record_begin_ += byte_order_mark(record());  // for joined files that each had a byte-order mark
    if (after_spaces(record(), 0) < record().size()) return true;
    searched = record_begin_ = end_in_buffer_;
  }
}

bool JsonRecords::next_value() {
  for (;; ++record_begin_) {
    while ((record_begin_ = after_spaces(buffer_, record_begin_)) == buffer_.size()) {
      if (more()) continue;
      if (is_array_ && last_read_ != LastRead::end && !is_over_)
        fail(at_ + record_begin_ - 1, "the array has no closing bracket: it was cut");
      end_in_buffer_ = record_begin_;
      return false;
    }
    if (!is_array_) break;
    const char c = buffer_[record_begin_];
    if (last_read_ == LastRead::nothing) {
      last_read_ = LastRead::bracket;
    } else if (c == ']' && (last_read_ == LastRead::bracket || last_read_ == LastRead::element)) {
      last_read_ = LastRead::end;
    } else if (c == ',' && last_read_ == LastRead::element) {
      last_read_ = LastRead::comma;
    } else if (last_read_ == LastRead::element || last_read_ == LastRead::end) {
      fail(begin(), "no comma or closing bracket after an element");
    } else {
      break;
    }
  }
  for (;;) {
    const JsonEnd found = end_of_json(buffer_, record_begin_);
    if (found.kind == JsonEnd::wrong) fail(begin(), found.problem);
    const bool could_go_on = found.kind == JsonEnd::open || found.at == buffer_.size();
    if (could_go_on && more()) continue;
    if (found.kind == JsonEnd::open) fail(begin(), found.problem);
    record_end_ = end_in_buffer_ = found.at;
    last_read_ = LastRead::element;
    return true;
  }
}

std::uint64_t next_record(TextSource& text, std::uint64_t from) {
  const std::uint64_t first = text.begin_of_text(from);
  text.seek(first);
  if (json_shape(text.beginning(), "") == JsonShape::values) {
    JsonRecords records(text, first, std::nullopt);
    while (records.end() < from && records.next()) continue;
    return records.end();
  }
  for (std::uint64_t at = from - std::min<std::uint64_t>(from, 1); at < text.size();) {
    const std::string piece = text.read_at(at, std::size_t{1} << 16);
    if (const std::size_t end = piece.find('\n'); end != std::string::npos) return at + end + 1;
    at += piece.size();
  }
  return text.size();
}

}  // namespace fsdp
