// Regular expressions over UTF-8, written as Hugging Face's tokenizers take them (Oniguruma), run by PCRE2. Which characters
// are letters or numbers is what Unicode 16 says, as there, where PCRE2 knows an older one (newer_characters.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// A part of a text, in bytes.
struct TextRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

/// Immutable; may be used by several threads at once.
class Pattern {
 public:
  /// Throws UserError for an expression that is wrong, or that means something else to PCRE2 than to Oniguruma: what is taken
  /// is a list (classes, groups, look-ahead, repetitions, \s \w \d \p{...} and their opposites), not what is refused.
  explicit Pattern(std::string_view expression);
  /// An expression that matches `text` and nothing else.
  static Pattern literal(std::string_view text);
  Pattern(Pattern&&) noexcept;
  ~Pattern();

  /// Appends all matches from left to right; the search for each begins where the one before ended. `text` is UTF-8.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace fsdp
