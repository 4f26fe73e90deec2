// Finds places where a long text can be cut, so that the tokens of its parts are those of the whole text.
//
// A cut is after a letter or digit and before a space or line feed. Words end there for every pre-tokenizer in use, no Unicode
// normal form joins or reorders anything, and no token of any vocabulary in use spans the place. The parts of a tokenizer tell
// whether that holds for it. The tokens after a cut may depend on whether there is text before it. So the part after a cut is
// tokenized with the character before the cut, and the tokens of that character are left out.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fsdp {

/// Where texts may be cut for one tokenizer. By default nowhere.
struct CutRules {
  bool anywhere = false;              // between any two bytes; nothing depends on what stands before
  bool at_space = false;              // before a space
  bool at_line_end = false;           // before a line feed
  bool after_any_letter = false;      // also after letters beyond ASCII, of scripts whose letters every version of Unicode has
  std::array<bool, 256> not_after{};  // not after characters that end with these bytes
};

/// The last cut in `text` that is after its first `from` bytes and before its end; 0 if there is none. With `anywhere`: the
/// end.
std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules);
/// The number of bytes of the character before text[cut].
std::size_t character_before(std::string_view text, std::size_t cut);

/// Returns true if a token can span "letter or digit, then `space`", so that no cut is allowed there.
bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules);

/// Returns true if matches of a pre-tokenizer's expression end after every word, whatever follows the space there: each of its
/// alternatives is one of those that tokenizers have (GPT-2's, GPT-4's, GPT-4o's, DeepSeek's and their relatives), and one is
/// \s+.
bool ends_words(std::string_view expression);

}  // namespace fsdp
