#include "text/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/byte_order_mark.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

using nlohmann::json;

constexpr std::size_t deepest = 1000;  // deepest nesting of brackets that is read; Python's limit is about the same

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_high(unsigned unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low(unsigned unit) { return unit >= 0xdc00 && unit < 0xe000; }
/// Returns true for a character that needs no escape in a string. Has no branches, so that compilers vectorize its loop.
bool is_plain(char c) { return (c != '"') & (c != '\\') & (static_cast<unsigned char>(c) >= 0x20); }

/// Reads values, beginning at a position. Each function returns false if the text is not JSON or ends too early.
/// Values and strings are stored in `to`, unless it is null.
template <class Json>
class Reader {
 public:
  explicit Reader(std::string_view text, std::size_t at = 0) : text_(text), begin_(at), at_(at) {}

  std::size_t at() const { return at_; }
  bool is_open() const { return is_open_; }
  const std::string& problem() const { return problem_; }
  std::size_t replaced() const { return replaced_; }

  bool value(Json* to) {
    skip_spaces();
    if (at_ == text_.size()) return open();
    switch (text_[at_]) {
      case '{':
        if (to) *to = Json::object();
        return members(
            [&](std::string& key) {
              Json* const member = to ? &(*to)[key] : nullptr;
              return value(member);
            },
            to != nullptr);
      case '[':
        return array(to);
      case '"': {
        if (!to) return string(nullptr);
        std::string read;
        if (!string(&read)) return false;
        *to = std::move(read);
        return true;
      }
      default:
        return scalar(to);
    }
  }

  /// Reads an object. take(key) must read the value of each member. If `with_keys` is false, `key` is always empty.
  template <class Take>
  bool members(const Take& take, bool with_keys = true) {
    return nested('}', [&] {
      skip_spaces();
      if (at_ == text_.size()) return open();
      if (text_[at_] != '"') return fail("no key in quotes");
      std::string key;
      if (!string(with_keys ? &key : nullptr)) return false;
      skip_spaces();
      if (at_ == text_.size()) return open();
      if (text_[at_] != ':') return fail("no colon after a key");
      ++at_;
      return take(key);
    });
  }

  /// Reads to the end of the text. Only spaces may follow.
  bool end() {
    skip_spaces();
    return at_ == text_.size() || fail("something follows the value");
  }

  bool starts_object() {
    skip_spaces();
    return at_ < text_.size() && text_[at_] == '{';
  }

 private:
  bool open() {
    is_open_ = true;
    problem_ = "it ends too early";
    return false;
  }
  bool fail(const char* what) {
    problem_ = format("{}, at byte {}", what, at_ - begin_);
    return false;
  }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }

  /// Reads the parts of an object or an array, beginning at its bracket.
  template <class Part>
  bool nested(char close, const Part& part) {
    if (++depth_ > deepest) return fail("brackets are nested deeper than 1000");
    ++at_;
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == close) {
      ++at_, --depth_;
      return true;
    }
    for (;; ++at_) {
      if (!part()) return false;
      skip_spaces();
      if (at_ == text_.size()) return open();
      if (text_[at_] == ',') continue;
      if (text_[at_] != close) return fail("no comma or closing bracket after a value");
      ++at_, --depth_;
      return true;
    }
  }

  bool array(Json* to) {
    if (to) *to = Json::array();
    return nested(']', [&] {
      if (!to) return value(nullptr);
      Json element;
      if (!value(&element)) return false;
      to->push_back(std::move(element));
      return true;
    });
  }

  /// The number of bytes before the next escape, the end of the string or a control character.
  std::size_t plain_bytes() const {
    // Checks a block at once, but the first block byte by byte, because many texts have an escape in each line.
    constexpr std::size_t block = 32;
    std::size_t i = at_;
    const auto one_by_one = [&](std::size_t end) {
      while (i < end && is_plain(text_[i])) ++i;
      return i == end;
    };
    if (!one_by_one(std::min(at_ + block, text_.size()))) return i - at_;
    for (; i + block <= text_.size(); i += block) {
      unsigned char others = 0;
      for (std::size_t k = 0; k < block; ++k) others |= static_cast<unsigned char>(!is_plain(text_[i + k]));
      if (others != 0) break;
    }
    one_by_one(text_.size());
    return i - at_;
  }

  bool string(std::string* to) {
    for (++at_;;) {
      const std::size_t plain = plain_bytes();
      if (to) to->append(text_, at_, plain);
      at_ += plain;
      if (at_ == text_.size()) return open();
      if (text_[at_] == '"') break;
      if (text_[at_] != '\\') return fail("a control character in a string");
      if (!escape(to)) return false;
    }
    ++at_;
    if (!to || valid_until(*to) == to->size()) return true;
    std::size_t count = 0;
    *to = with_replacements(*to, &count);
    replaced_ += count;
    return true;
  }

  /// The number in "\uXXXX" at this position; nullopt if there is none.
  std::optional<unsigned> escaped_at(std::size_t at) const {
    if (at + 6 > text_.size() || text_.substr(at, 2) != "\\u") return std::nullopt;
    unsigned unit = 0;
    const char* const end = text_.data() + at + 6;
    return std::from_chars(text_.data() + at + 2, end, unit, 16).ptr == end ? std::optional(unit) : std::nullopt;
  }

  bool escape(std::string* to) {
    constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (at_ + 1 == text_.size()) return open();
    if (const std::size_t i = names.find(text_[at_ + 1]); i != names.npos) {
      if (to) *to += meanings[i];
      at_ += 2;
      return true;
    }
    const std::optional<unsigned> unit = escaped_at(at_);
    if (!unit) return text_[at_ + 1] == 'u' && at_ + 6 > text_.size() ? open() : fail("an invalid escape in a string");
    at_ += 6;
    char32_t character = *unit;
    if (is_high(*unit) && is_low(escaped_at(at_).value_or(0))) {
      character = 0x10000 + ((*unit - 0xd800) << 10) + (*escaped_at(at_) - 0xdc00);
      at_ += 6;
    } else if (is_high(*unit) || is_low(*unit)) {
      character = replacement_character;
      replaced_ += to ? 1 : 0;
    }
    if (to) append_utf8(*to, character);
    return true;
  }

  bool scalar(Json* to) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    static const std::pair<std::string_view, Json> words[] = {
        {"true", true},         {"false", false},        {"null", nullptr}, {"NaN", std::numeric_limits<double>::quiet_NaN()},
        {"Infinity", infinity}, {"-Infinity", -infinity}};
    const std::string_view rest = text_.substr(at_);
    for (const auto& [word, meaning] : words) {
      if (rest.starts_with(word)) {
        if (to) *to = meaning;
        at_ += word.size();
        return true;
      }
      if (word.starts_with(rest)) return open();
    }
    return number(to);
  }

  bool number(Json* to) {
    std::size_t end = at_;
    const auto is = [&](std::string_view one_of) { return end < text_.size() && one_of.find(text_[end]) != one_of.npos; };
    const auto digits = [&] {
      const std::size_t first = end;
      while (end < text_.size() && is_digit(text_[end])) ++end;
      return end > first;
    };
    if (is("-")) ++end;
    if (is("0")) {
      ++end;
    } else if (!digits()) {
      return end == text_.size() ? open() : fail("no value");
    }
    bool is_integer = true;
    for (const auto& [begins, signs] : {std::pair(".", ""), std::pair("eE", "+-")}) {
      if (!is(begins)) continue;
      is_integer = false;
      ++end;
      if (is(signs)) ++end;
      if (!digits()) return end == text_.size() ? open() : fail("a number without its digits");
    }
    if (to) *to = number_of(text_.substr(at_, end - at_), is_integer);
    at_ = end;
    return true;
  }

  static Json number_of(std::string_view text, bool is_integer) {
    const auto read = [&](auto number) {
      const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      return error == std::errc() ? Json(number) : Json();
    };
    Json number = is_integer ? read(std::uint64_t{}) : Json();
    if (is_integer && number.is_null()) number = read(std::int64_t{});
    if (number.is_null()) number = read(double{});
    return number.is_null() ? Json(std::numeric_limits<double>::quiet_NaN()) : number;  // NaN if it is too large for a double
  }

  std::string_view text_;
  std::size_t begin_, at_, depth_ = 0, replaced_ = 0;
  bool is_open_ = false;
  std::string problem_;
};

template <class Json>
bool finish(Reader<Json>& reader, bool done, std::string& problem, std::size_t* replaced) {
  const bool is_value = done && reader.end();
  problem = is_value ? "" : "it is not JSON: " + reader.problem();
  if (is_value && replaced) *replaced += reader.replaced();
  return is_value;
}

}  // namespace

JsonEnd end_of_json(std::string_view text, std::size_t at) {
  Reader<json> reader(text, at);
  if (reader.value(nullptr)) return {JsonEnd::whole, reader.at()};
  return {reader.is_open() ? JsonEnd::open : JsonEnd::wrong, 0, reader.problem()};
}

namespace {

template <class Json>
Json read_as(std::string_view text, std::string& problem, std::size_t* replaced) {
  Reader<Json> reader(text);
  Json value;
  return finish(reader, reader.value(&value), problem, replaced) ? value : Json(Json::value_t::discarded);
}

}  // namespace

json read_json(std::string_view text, std::string& problem, std::size_t* replaced) {
  return read_as<json>(text, problem, replaced);
}

nlohmann::ordered_json read_json_in_order(std::string_view text, std::string& problem, std::size_t* replaced) {
  return read_as<nlohmann::ordered_json>(text, problem, replaced);
}

template <class Json>
Json read_json_object(const std::filesystem::path& path) {
  const std::string file = read_text_file(path);
  const std::string_view text = std::string_view(file).substr(byte_order_mark(file));
  Reader<Json> reader(text);
  Json object;
  std::string problem;
  if (const std::size_t wrong = valid_until(text); wrong < text.size())
    problem = format("byte {} is not UTF-8", wrong);
  else if (!reader.value(&object) || !reader.end())
    problem = reader.problem();
  else if (!object.is_object())
    problem = "it is another value";
  else
    return object;
  throw UserError(format("'{}' is not a JSON object ({}); correct the file, or fetch it again", path.string(), problem));
}
template json read_json_object(const std::filesystem::path& path);
template nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

std::optional<std::string> read_json_field(std::string_view text, std::string_view field, std::string& problem,
                                           std::size_t* replaced) {
  Reader<json> reader(text);
  if (!reader.starts_object()) {
    if (finish(reader, reader.value(nullptr), problem, nullptr)) problem = "it is no object";
    return std::nullopt;
  }
  json found(json::value_t::discarded);
  const bool done = reader.members([&](const std::string& key) { return reader.value(key == field ? &found : nullptr); });
  if (!finish(reader, done, problem, replaced)) return std::nullopt;
  if (found.is_string()) return std::move(found.get_ref<std::string&>());
  problem = found.is_discarded() ? format("it has no \"{}\"", field) : format("its \"{}\" is no text", field);
  return std::nullopt;
}

}  // namespace fsdp
