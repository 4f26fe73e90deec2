#include "text/text_cuts.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "text/utf8.hpp"

namespace fsdp {

namespace {

bool is_ascii_word(char c) { return static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)); }

/// Returns true for letters (category L) that Unicode has had since version 6 and that NFC leaves unchanged. The ranges leave
/// out marks and signs.
bool is_old_letter(char32_t c) {
  constexpr std::pair<char32_t, char32_t> letters[] = {
      {0xc0, 0xd6},     {0xd8, 0xf6},     {0xf8, 0x2c1},    {0x3a3, 0x3e1},   {0x400, 0x481},  {0x531, 0x556},
      {0x561, 0x587},   {0x5d0, 0x5ea},   {0x620, 0x64a},   {0x905, 0x939},   {0x985, 0x98c},  {0xe01, 0xe30},
      {0x10d0, 0x10fa}, {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0x4e00, 0x9fcb}, {0xac00, 0xd7a3}};
  return std::any_of(std::begin(letters), std::end(letters),
                     [&](const auto& range) { return range.first <= c && c <= range.second; });
}

/// Returns true if text[from, at) ends with a letter or digit after which a cut is allowed.
bool ends_with_word(std::string_view text, std::size_t from, std::size_t at, const CutRules& rules) {
  if (at <= from || rules.not_after[static_cast<unsigned char>(text[at - 1])]) return false;
  if (is_ascii_word(text[at - 1])) return true;
  if (!rules.after_any_letter || static_cast<unsigned char>(text[at - 1]) < 0x80) return false;
  std::size_t begin = at - character_before(text, at);
  if (begin < from) return false;
  const char32_t c = next_character(text, begin);
  return begin == at && is_old_letter(c);
}

/// Alternatives of regular expressions whose matches always end at a cut. A cut is between a letter or digit and a space or
/// line feed. No match spans a cut, and the matches before a cut are the same as if the text ended there.
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

std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules) {
  if (rules.anywhere) return text.size();
  for (std::size_t at = text.size(); at-- > from + 1;)
    if (((rules.at_space && text[at] == ' ') || (rules.at_line_end && text[at] == '\n')) &&
        ends_with_word(text, from, at, rules))
      return at;
  return 0;
}

bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules) {
  for (std::size_t at = token.find(space); at != std::string_view::npos; at = token.find(space, at + 1))
    if (ends_with_word(token, 0, at, rules)) return true;
  return false;
}

bool ends_words(std::string_view with_line_ends) {
  std::string expression;  // with line ends escaped; DeepSeek's expressions contain the characters themselves
  for (const char c : with_line_ends) expression += c == '\r' ? "\\r" : c == '\n' ? "\\n" : std::string(1, c);
  expression += '|';
  bool has_spaces = false;
  for (std::string_view rest = expression; !rest.empty();) {
    const auto* const known =
        std::find_if(std::begin(known_alternatives), std::end(known_alternatives),
                     [&](std::string_view one) { return rest.starts_with(one) && rest.substr(one.size()).starts_with('|'); });
    if (known == std::end(known_alternatives)) return false;
    has_spaces = has_spaces || *known == R"(\s+)";
    rest.remove_prefix(known->size() + 1);
  }
  return has_spaces;
}

}  // namespace fsdp
