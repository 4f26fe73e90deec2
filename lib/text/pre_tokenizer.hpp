// Splits a text into pieces, such as words, numbers and spaces. A token is always within one piece.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "text/pattern.hpp"

namespace fsdp {

/// The pieces of a text, in order. No piece is empty. Text between two pieces is not tokenized.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;
  bool begins_text = true;  // false if `text` is a section of a longer text, after an added token
};

class PreTokenizer {
 public:
  using Step = std::function<void(Pieces&)>;
  /// Reads the description in tokenizer.json, which is null, ByteLevel, Split, Digits, WhitespaceSplit, Metaspace, or a
  /// Sequence of these. Throws UserError with the name of an unknown part.
  explicit PreTokenizer(const nlohmann::json& description);

  /// Returns true if the model's units are bytes, not characters.
  bool to_bytes() const { return to_bytes_; }
  /// Returns true if a text may be cut between a letter or digit and a space or line feed. Such a cut divides at most the
  /// piece that contains it, and all other pieces stay the same.
  bool keeps_cuts() const { return keeps_cuts_; }
  /// Returns true if a piece always ends where keeps_cuts() allows a cut.
  bool ends_words() const { return ends_words_; }
  /// Returns true if spaces are joined to the text before them. keeps_cuts() and ends_words() then hold only for texts without
  /// spaces.
  bool joins_spaces() const { return joins_spaces_; }
  /// Returns true if the first piece of a text is treated differently (Metaspace with "prepend_scheme": "first").
  bool marks_beginning() const { return marks_beginning_; }
  /// Splits a UTF-8 text. `begins_text` is stored in the result.
  Pieces operator()(std::string text, bool begins_text) const;

 private:
  void add(const nlohmann::json& description);
  void note_cuts(const nlohmann::json& pattern, bool isolates, bool keeps_matches);

  std::vector<Step> steps_;
  bool to_bytes_ = false;
  bool keeps_cuts_ = true, ends_words_ = false, joins_spaces_ = false;
  bool marks_beginning_ = false, leaves_out_ = false;  // leaves_out_: a step removes parts of the text
};

}  // namespace fsdp
