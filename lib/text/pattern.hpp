// Regular expressions over UTF-8, in the syntax of Hugging Face's tokenizers (Oniguruma), run by PCRE2. Letters and numbers are
// those of Unicode 16, as in Hugging Face's tokenizers; newer_characters.hpp lists the characters that PCRE2 does not know.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// A range of bytes of a text.
struct TextRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

/// Immutable; may be used by several threads at once.
class Pattern {
 public:
  /// Accepts only classes, groups, look-ahead, repetitions, \s \w \d \p{...} and the negations of these. Throws UserError for
  /// an invalid expression, and for one that PCRE2 may interpret in another way than Oniguruma.
  explicit Pattern(std::string_view expression);
  /// An expression that matches only `text`.
  static Pattern literal(std::string_view text);
  Pattern(Pattern&&) noexcept;
  ~Pattern();

  /// Appends all matches from left to right. Each search begins at the end of the previous match. `text` is UTF-8.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace fsdp
