// Where a long text can be cut, so that its parts have the tokens of the whole, part by part.
//
// Nearly all such places are alike: a letter or digit, and behind it a space or the end of a line. There words end for every
// pre-tokenizer in use, no Unicode normal form joins or reorders anything, and no token of any vocabulary in use reaches
// across. Texts without spaces, as Chinese ones, have others: between a letter and a sign that ends a part of a sentence; and,
// where lines end with such signs, behind the end of a line that does not follow a space, and before a letter. Whether that
// holds for a certain tokenizer is found out from its parts. The part behind a cut may depend on that there is something before
// it: so it is tokenized with the character before the cut, whose tokens are then left out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp {

/// Where texts may be cut for one tokenizer. As it is made: nowhere.
struct CutRules {
  bool anywhere = false;           // between any two bytes; nothing depends on what stands before
  bool at_space = false;           // before a space
  bool at_line_end = false;        // before a line feed
  std::uint32_t before_signs = 0;  // before a comma, a full stop and the like, of ASCII or Chinese: a bit for each, see below
  bool behind_line_end = false;    // between a line feed, which follows no space, and a letter
  bool behind_ideograph = false;   // the first four also behind Chinese characters, which no normal form changes
  bool behind_any_letter = false;  // also behind letters beyond ASCII, of scripts whose letters every version of Unicode has
  std::array<bool, 256> not_behind{};  // characters that end with these bytes
};

/// The last cut in `text` that lies behind `from` bytes, before the end; 0 if there is none. With `anywhere`: the end.
std::size_t last_cut(std::string_view text, std::size_t from, const CutRules& rules);
/// How many bytes the character before text[cut] has.
std::size_t character_before(std::string_view text, std::size_t cut);

/// Whether a token reaches across a place between a letter or digit that may be cut behind and `space`.
bool reaches_across(std::string_view token, std::string_view space, const CutRules& rules);
/// The signs that CutRules::before_signs may have; those before which a token reaches across such a place.
extern const std::uint32_t all_signs;
std::uint32_t signs_reached_across(std::string_view token, const CutRules& rules);
/// The sign that a text begins with; 0: none.
std::uint32_t sign_at_beginning(std::string_view text);

/// Whether matches of a pre-tokenizer's expression end behind every word, whatever follows the space there: if each of its
/// alternatives is one of those that tokenizers have (GPT-2's, GPT-4's, GPT-4o's, DeepSeek's and their relatives), one of which
/// is \s+.
bool ends_words(std::string_view expression);

}  // namespace fsdp
