#include "text/text_cuts.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "text/utf8.hpp"

namespace fsdp {

namespace {

bool is_ascii_word(char c) { return static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)); }

/// Letters (L) in Unicode 6 and ever since; without those that are marks or signs between them.
bool is_old_letter(char32_t c) {
  constexpr std::pair<char32_t, char32_t> letters[] = {
      {0xc0, 0xd6},     {0xd8, 0xf6},     {0xf8, 0x2c1},    {0x3a3, 0x3e1},   {0x400, 0x481},  {0x531, 0x556},
      {0x561, 0x587},   {0x5d0, 0x5ea},   {0x620, 0x64a},   {0x905, 0x939},   {0x985, 0x98c},  {0xe01, 0xe30},
      {0x10d0, 0x10fa}, {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0x4e00, 0x9fcb}, {0xac00, 0xd7a3}};
  return std::any_of(std::begin(letters), std::end(letters),
                     [&](const auto& range) { return range.first <= c && c <= range.second; });
}

/// Unified ideographs of Unicode 5.2 and ever since.
bool is_ideograph(char32_t c) { return 0x4e00 <= c && c <= 0x9fcb; }

/// Whether text[from, at) ends with a letter or digit that may be cut behind.
bool ends_with_word(std::string_view text, std::size_t from, std::size_t at, const CutRules& rules) {
  if (at <= from || rules.not_behind[static_cast<unsigned char>(text[at - 1])]) return false;
  if (is_ascii_word(text[at - 1])) return true;
  if (!(rules.behind_any_letter || rules.behind_ideograph) || static_cast<unsigned char>(text[at - 1]) < 0x80) return false;
  std::size_t begin = at - character_before(text, at);
  if (begin < from) return false;
  const char32_t c = next_character(text, begin);
  return begin == at && (rules.behind_any_letter ? is_old_letter(c) : is_ideograph(c));
}

constexpr std::string_view signs[] = {",",      ";",      ":",      ".",      "!",      "?",      ")",
                                      "]",      "}",      "\"",     "\u3001", "\u3002", "\u300d", "\uff01",
                                      "\uff09", "\uff0c", "\uff1a", "\uff1b", "\uff1f"};

/// Whether some sign begins with this byte: most bytes of a text need no closer look.
constexpr std::array<bool, 256> begins_sign = [] {
  std::array<bool, 256> all{};
  for (const std::string_view sign : signs) all[static_cast<unsigned char>(sign.front())] = true;
  return all;
}();

bool is_letter_at(std::string_view text, std::size_t at) {
  if (is_ascii_word(text[at])) return std::isalpha(static_cast<unsigned char>(text[at])) != 0;
  if (static_cast<unsigned char>(text[at]) < 0x80 || without_open_end(text.substr(at, 4)) == 0) return false;
  return is_old_letter(next_character(text, at));
}

/// Whether text[end - 1] is a line feed that follows a character which is no space.
bool ends_line(std::string_view text, std::size_t from, std::size_t end, const CutRules& rules) {
  if (end < from + 3 || text[end - 1] != '\n' || rules.not_behind[static_cast<unsigned char>(text[end - 2])]) return false;
  const std::size_t bytes = character_before(text, end - 1);
  std::size_t begin = end - 1 - bytes;
  if (begin < from) return false;
  const char32_t before = next_character(text, begin);
  return begin == end - 1 && before > ' ' && before != 0x7f && before != replacement_character && !is_space(before);
}

/// None of these matches what has a letter or number and then a space, a line feed or one of the signs in it, and where one
/// follows the other it matches as at the end of the text.
constexpr std::string_view known_alternatives[] = {
    R"('s)",
    R"('t)",
    R"('re)",
    R"('ve)",
    R"('m)",
    R"('ll)",
    R"('d)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d))",
    R"('(?i:[sdmt]|ll|ve|re))",
    R"(\s+)",
    R"(\s+(?!\S))",
    R"(\s*[\r\n]+)",
    R"(\s*[\r\n])",
    R"( ?\p{L}+)",
    R"( ?\p{N}+)",
    R"(\p{N})",
    R"(\p{N}+)",
    R"(\p{N}{1,3})",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)",
    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)",
    R"( ?[\p{P}\p{S}]+[\r\n]*)",
    R"( ?[^\s\p{L}\p{N}]+)",
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*)",
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)",
    R"([^\r\n\p{L}\p{N}]?\p{L}+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"};

}  // namespace

std::size_t character_before(std::string_view text, std::size_t cut) {
  std::size_t bytes = 1;
  while (bytes < std::min<std::size_t>(cut, 4) && (static_cast<unsigned char>(text[cut - bytes]) & 0xc0) == 0x80) ++bytes;
  return bytes;
}

std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules) {
  if (rules.anywhere) return text.size();
  if (!rules.at_space && !rules.at_line_end && rules.before_signs == 0 && !rules.behind_line_end) return 0;
  for (std::size_t at = text.size(); at-- > from + 1;) {
    if (rules.behind_line_end && text[at - 1] == '\n' && is_letter_at(text, at) && ends_line(text, from, at, rules)) return at;
    if (!(rules.at_space && text[at] == ' ') && !(rules.at_line_end && text[at] == '\n') &&
        (rules.before_signs & sign_at_beginning(text.substr(at))) == 0)
      continue;
    if (ends_with_word(text, from, at, rules)) return at;
  }
  return 0;
}

bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules) {
  for (std::size_t at = token.find(space); at != std::string_view::npos; at = token.find(space, at + 1))
    if (ends_with_word(token, 0, at, rules)) return true;
  return false;
}

const std::uint32_t all_signs = (std::uint32_t{1} << std::size(signs)) - 1;

std::uint32_t signs_reached_across(std::string_view token, const CutRules& rules) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < std::size(signs); ++i)
    if (reaches_across(token, signs[i], rules)) found |= std::uint32_t{1} << i;
  return found;
}

std::uint32_t sign_at_beginning(std::string_view text) {
  if (text.empty() || !begins_sign[static_cast<unsigned char>(text.front())]) return 0;
  for (std::size_t i = 0; i < std::size(signs); ++i)
    if (text.starts_with(signs[i])) return std::uint32_t{1} << i;
  return 0;
}

bool ends_words(std::string_view with_line_ends) {
  std::string expression;  // DeepSeek's have the characters themselves
  for (const char c : with_line_ends) expression += c == '\r' ? "\\r" : c == '\n' ? "\\n" : std::string(1, c);
  bool has_spaces = false, in_class = false;
  int depth = 0;
  for (std::size_t begin = 0, at = 0; at <= expression.size(); ++at) {
    if (at < expression.size() && (in_class || depth > 0 || expression[at] != '|')) {
      const char c = expression[at];
      if (c == '\\') {
        ++at;
      } else if (in_class) {
        in_class = c != ']';
      } else if (c == '[') {
        in_class = true;
      } else {
        depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      }
      continue;
    }
    const std::string_view alternative = std::string_view(expression).substr(begin, at - begin);
    if (std::find(std::begin(known_alternatives), std::end(known_alternatives), alternative) == std::end(known_alternatives))
      return false;
    has_spaces = has_spaces || alternative == R"(\s+)";
    begin = at + 1;
  }
  return has_spaces;
}

}  // namespace fsdp
