#include "text/pattern.hpp"

#include <cctype>
#include <cstdint>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/uchar.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "text/newer_characters.hpp"

namespace fsdp {

namespace {

// The characters that \s and \w of Oniguruma match, written for use inside [ ]. PCRE2's own \s also matches U+180E, and its \w
// does not match marks and connectors. Outside brackets Oniguruma's \w matches six more characters: Latin-1's numbers that are
// not digits.
constexpr std::string_view space_class =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
const std::string word_class = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
const std::string word_alone = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

/// Removes differences in the spelling of a property's name: case, spaces, hyphens and underscores.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (c != '_' && c != '-' && c != ' ') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

UserError refuse(std::string_view expression, std::string_view why) {
  return UserError(
      format("the regular expression {} is not supported ({}); use a tokenizer without it", excerpt(expression), why));
}

/// Returns the characters of a property such as "L", "Lu", "Han", "Hani" or "word" that PCRE2 does not know, written for use
/// inside [ ].
std::string newer_of(std::string_view property) {
  const int script = u_getPropertyValueEnum(UCHAR_SCRIPT, std::string(property).c_str());  // a short name has one, too
  const char* const whole = script < 0 ? nullptr : u_getPropertyValueName(UCHAR_SCRIPT, script, U_LONG_PROPERTY_NAME);
  if (whole && plain(whole) != plain(property)) return newer_of(whole);
  if (plain(property) == "lc") return newer_of("Lu") + newer_of("Ll");
  std::string all;
  for (const auto& [name, first, last] : newer_characters) {
    const bool is_part = property.size() == 1 && name.size() == 2 && std::toupper(property[0]) == name[0];
    if (is_part || plain(name) == plain(property)) all += format("\\x{{{:x}}}-\\x{{{:x}}}", first, last);
  }
  return all;
}

/// Translates an expression of Oniguruma for PCRE2.
class Translation {
 public:
  explicit Translation(std::string_view expression) : expression_(expression) {
    while (at_ < expression.size()) step();
    if (in_class_) throw wrong("a bracket is not closed");
  }
  std::string take() { return std::move(out_); }

 private:
  UserError wrong(std::string_view why) const { return refuse(expression_, why); }
  bool here(std::string_view text) const { return expression_.substr(at_).starts_with(text); }

  void step() {
    const char c = expression_[at_];
    if (c == '\\') return escape();
    if (in_class_) {
      if (c == '[') throw wrong(here("[:") ? "a POSIX class" : "brackets within brackets");
      if (here("&&")) throw wrong("an intersection of classes");
      in_class_ = c != ']' || at_ == class_begin_;
    } else if (c == '[') {
      in_class_ = true;
      class_begin_ = at_ + (expression_.substr(at_ + 1).starts_with('^') ? 2 : 1);
      while (at_ + 1 < class_begin_) out_ += expression_[at_++];  // the "[" of "[^"
    } else if (here("(?")) {
      const std::string_view rest = expression_.substr(at_ + 2);
      if (!rest.starts_with(':') && !rest.starts_with('!') && !rest.starts_with('=') && !rest.starts_with("i:"))
        throw wrong("a group that is not (?:, (?i:, (?! or (?=");
    } else if (c == '^' || c == '$') {
      throw wrong("it matches the beginning or end of a line");
    } else if (c == '}' && at_ + 1 < expression_.size() && expression_[at_ + 1] == '+') {
      throw wrong("a repetition of a repetition");  // {n}+ is greedy in Oniguruma, and possessive in PCRE2
    } else if (c == '{') {
      const std::string_view inside = expression_.substr(at_ + 1, expression_.find('}', at_) - at_ - 1);
      if (inside.starts_with(',')) throw wrong("{,n}");  // not a repetition in PCRE2
      const bool is_number = !inside.empty() && inside.find_first_not_of("0123456789") == inside.npos;
      if (is_number && expression_.substr(at_ + inside.size() + 1).starts_with("}?"))
        throw wrong("{n}?");  // in Oniguruma: n times or not at all
    }
    out_ += expression_[at_++];
  }

  void escape() {
    if (at_ + 1 >= expression_.size()) throw wrong("it ends with a backslash");
    const char c = expression_[at_ + 1];
    at_ += 2;
    const auto one_of = [&](std::string_view positive, bool negated) {
      if (in_class_ && negated) throw wrong(format("\\{} within brackets", c));
      out_ += in_class_ ? std::string(positive) : format("[{}{}]", negated ? "^" : "", positive);
    };
    if (c == 's' || c == 'S') return one_of(space_class, c == 'S');
    if (c == 'w' || c == 'W') return one_of((in_class_ ? word_class : word_alone) + newer_of("word"), c == 'W');
    if (c == 'd' || c == 'D') return one_of(R"(\p{Nd})" + newer_of("Nd"), c == 'D');
    if (c == 'p' || c == 'P') {
      const std::size_t close = expression_.find('}', at_);
      if (!expression_.substr(at_).starts_with('{') || close == std::string_view::npos)
        throw wrong("a property without braces");
      std::string_view name = expression_.substr(at_ + 1, close - at_ - 1);
      const bool negated = name.starts_with('^');
      if (negated) name.remove_prefix(1);
      if (plain(name) == "c" || plain(name) == "cn") throw wrong("unassigned characters depend on Unicode's version");
      // A name is a category or a script. Without "sc:" PCRE2 would include all characters that are used with the script.
      const std::string property = format("{}{}", name.size() <= 2 ? "" : "sc:", name), newer = newer_of(name);
      at_ = close + 1;
      if (newer.empty())
        out_ += format("\\{}{{{}{}}}", c, negated ? "^" : "", property);
      else
        one_of(format("\\p{{{}}}{}", property, newer), negated != (c == 'P'));
    } else if (c == 'u' || c == 'x') {
      const std::string_view digits = expression_.substr(at_, c == 'u' ? 4 : 2);
      const bool braces = c == 'x' && expression_.substr(at_).starts_with('{');
      if (!braces &&
          (digits.size() < (c == 'u' ? 4u : 2u) || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos))
        throw wrong(format("\\{} without its digits", c));
      if (braces) {
        const std::size_t close = expression_.find('}', at_);
        if (close == std::string_view::npos) throw wrong("a brace is not closed");
        out_ += "\\x" + std::string(expression_.substr(at_, close + 1 - at_));
        at_ = close + 1;
      } else {
        out_ += format("\\x{{{}}}", digits);
        at_ += digits.size();
      }
    } else if (!in_class_ && std::string_view("AzX").find(c) != std::string_view::npos) {
      out_ += format("\\{}", c);  // \A: beginning of the text, \z: its end, \X: a grapheme cluster
    } else if (std::string_view("nrtf").find(c) != std::string_view::npos ||
               (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))) {
      out_ += format("\\{}", c);
    } else {
      throw wrong(static_cast<unsigned char>(c) < 0x80 ? format("\\{}", c) : "a backslash before a letter that is not ASCII");
    }
  }

  std::string_view expression_;
  std::size_t at_ = 0, class_begin_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Compiled = std::unique_ptr<pcre2_code, Free>;

Compiled compile(std::string_view expression, const std::string& translated) {
  int error = 0;
  PCRE2_SIZE where = 0;
  Compiled code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr));
  if (!code) {
    unsigned char why[128] = {};
    pcre2_get_error_message(error, why, sizeof why);
    throw refuse(expression, reinterpret_cast<const char*>(why));
  }
  std::uint32_t matches_nothing = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) throw refuse(expression, "it matches the empty text");
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // if it fails, the same matches are found, only more slowly
  return code;
}

}  // namespace

struct Pattern::Code {
  std::string expression;
  Compiled program;
};

Pattern::Pattern(std::string_view expression)
    : code_(new Code{std::string(expression), compile(expression, Translation(expression).take())}) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::literal(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) expression += '\\';
    expression += c;
  }
  return Pattern(expression);
}

void Pattern::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                            pcre2_match_data_free);
  // A stack is made only if the 32 KiB that PCRE2 takes from the thread's stack are not enough, because making one takes longer
  // than most searches.
  std::unique_ptr<pcre2_jit_stack, void (*)(pcre2_jit_stack*)> stack(nullptr, pcre2_jit_stack_free);
  std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(nullptr, pcre2_match_context_free);
  expect(data != nullptr, "PCRE2 has memory");
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
  for (std::size_t from = 0; from < text.size();) {
    const int found = pcre2_match(code_->program.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !stack) {
      stack.reset(pcre2_jit_stack_create(std::size_t{64} << 10, std::size_t{64} << 20, nullptr));
      context.reset(pcre2_match_context_create(nullptr));
      expect(stack && context, "PCRE2 has memory");
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      continue;
    }
    if (found < 0) {
      unsigned char why[128] = {};
      pcre2_get_error_message(found, why, sizeof why);
      throw RunError(format(
          "the regular expression {} cannot be matched in this text ({}, after {} bytes); cut the text into shorter ones",
          excerpt(code_->expression), reinterpret_cast<const char*>(why), from));
    }
    matches.push_back({range[0], range[1]});
    from = range[1];
  }
}

}  // namespace fsdp
