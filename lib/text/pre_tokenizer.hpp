// Cuts a text into the pieces that tokens do not cross: words, numbers, spaces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "text/pattern.hpp"

namespace fsdp {

/// A text in pieces, none of them empty, in order. Between pieces there may be what was left out.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;
  bool begins_text = true;  // nothing stands before it: no other part of the text, no token
};

class PreTokenizer {
 public:
  using Step = std::function<void(Pieces&)>;
  /// As tokenizer.json describes it: null, ByteLevel, Split, Digits, WhitespaceSplit, Metaspace, or a Sequence of
  /// them. Throws UserError for anything else, by its name.
  explicit PreTokenizer(const nlohmann::json& description);

  /// Whether pieces are bytes from then on, and not characters.
  bool to_bytes() const { return to_bytes_; }
  /// Whether a text may be cut behind a letter or digit and before a space or line feed: the other pieces stay as they are
  /// then.
  bool keeps_cuts() const { return keeps_cuts_; }
  /// Whether a piece always ends there.
  bool ends_words() const { return ends_words_; }
  /// Whether spaces stay with what stands before them: then all this holds only for texts without spaces.
  bool joins_spaces() const { return joins_spaces_; }
  /// Whether it looks for the piece with which the text begins.
  bool marks_beginning() const { return marks_beginning_; }
  /// Pieces of UTF-8.
  Pieces operator()(std::string text, bool begins_text) const;

 private:
  void add(const nlohmann::json& description);
  void note_cuts(const nlohmann::json& pattern, bool isolates, bool keeps_matches);

  std::vector<Step> steps_;
  bool to_bytes_ = false;
  bool keeps_cuts_ = true, ends_words_ = false, joins_spaces_ = false;
  bool marks_beginning_ = false, leaves_out_ = false;  // the second: parts of the text
};

}  // namespace fsdp
