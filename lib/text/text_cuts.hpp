// Finds places where a long text can be cut, so that the tokens of its parts are those of the whole text.
//
// A cut is after a letter or digit and before a space or line feed. At such a cut the usual pre-tokenizers end a word, no
// Unicode normal form joins or reorders characters, and the usual vocabularies have no token that spans the cut. For each
// tokenizer, its normalizer, pre-tokenizer and vocabulary are checked for this. The tokens after a cut may depend on whether
// there is text before it. So the part after a cut is tokenized with the character before the cut, and the tokens of that
// character are left out.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fsdp {

/// The places at which texts may be cut for one tokenizer: after ASCII letters and digits, before the characters named here. By
/// default there are none.
struct CutRules {
  bool anywhere = false;              // between any two bytes; tokens do not depend on the text before them
  bool at_space = false;              // before a space
  bool at_line_end = false;           // before a line feed
  bool after_any_letter = false;      // also after non-ASCII letters that Unicode has had since version 6
  std::array<bool, 256> not_after{};  // not after characters that end with these bytes
};

/// The last possible cut in `text` after its first `from` bytes and before its end; 0 if there is none. If rules.anywhere is
/// true, the end of the text.
std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules);
/// The number of bytes of the character before text[cut].
std::size_t character_before(std::string_view text, std::size_t cut);

/// Returns true if a token can span "letter or digit, then `space`", so that no cut is allowed there.
bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules);

/// Returns true if a match of a pre-tokenizer's expression ends at every cut. This function knows the alternatives of the
/// expressions of GPT-2, GPT-4, GPT-4o, DeepSeek and their relatives. It returns true if all alternatives are known and one is
/// \s+, else false.
bool ends_words(std::string_view expression);

}  // namespace fsdp
