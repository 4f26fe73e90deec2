// Finds places where a long text can be cut, so that the tokens of its parts are those of the whole text.
//
// A cut is after a letter or digit and before a space or line feed. At such a cut the usual pre-tokenizers end a word, no
// Unicode normal form joins or reorders characters, and the usual vocabularies have no token that spans the cut. Whether this
// is so is checked for the normalizer, pre-tokenizer and vocabulary of each tokenizer. The tokens after a cut may depend on
// whether any text is before the cut. So the part after a cut is tokenized with the character before the cut, and the tokens
// of that character are left out.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fsdp {

/// The places at which one tokenizer lets texts be cut. A cut is after an ASCII letter or digit, and at the same time before a
/// character that a flag below allows. By default no flag is set, and texts are never cut.
struct CutRules {
  bool anywhere = false;              // cuts are allowed between any two bytes, because tokens do not depend on earlier text
  bool at_space = false;              // cuts before a space are allowed
  bool at_line_end = false;           // cuts before a line feed are allowed
  bool after_any_letter = false;      // cuts are also allowed after non-ASCII letters that Unicode 6 has
  std::array<bool, 256> not_after{};  // indexed by byte: no cut is allowed after this byte
};

/// Returns the last cut after more than `from` bytes of `text` and before its end, or 0 if there is none. If rules.anywhere is
/// true, returns the end of the text.
std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules);

/// Returns true if `token` contains a letter or digit followed by `space`. No cut is then allowed before `space`.
bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules);

/// Returns true if a match of a pre-tokenizer's regular expression certainly ends at every cut. This is so if all alternatives
/// of the expression are known (from GPT-2, GPT-4, GPT-4o, DeepSeek and similar tokenizers) and one of them is \s+.
bool ends_words(std::string_view expression);

}  // namespace fsdp
