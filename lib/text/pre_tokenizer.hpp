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
  /// Whether a piece ends there always: before a space, before a line feed.
  bool cuts_at_space() const { return cuts_at_space_; }
  bool cuts_at_line_end() const { return cuts_at_line_end_; }
  /// Whether the others stay as they are, too, if a text is cut behind a letter or digit and before a sign; whether one ends
  /// there always.
  bool keeps_signs() const { return keeps_signs_; }
  bool cuts_before_sign() const { return cuts_before_sign_; }
  /// Whether spaces stay with what stands before them: then all this holds for texts without spaces alone.
  bool joins_spaces() const { return joins_spaces_; }
  /// Whether something is put before a text or its pieces.
  bool prepends() const { return prepends_; }
  /// Whether it looks for the piece with which the text begins.
  bool marks_beginning() const { return marks_beginning_; }
  /// Pieces of UTF-8.
  Pieces operator()(std::string text, bool begins_text) const;

 private:
  void add(const nlohmann::json& description);
  void note_cuts(const nlohmann::json& pattern, bool isolates, bool keeps_matches);

  std::vector<Step> steps_;
  bool to_bytes_ = false;
  bool keeps_cuts_ = true, cuts_at_space_ = false, cuts_at_line_end_ = false, prepends_ = false;
  bool keeps_signs_ = true, cuts_before_sign_ = false, joins_spaces_ = false;
  bool marks_beginning_ = false, leaves_out_ = false;  // the second: parts of the text
};

}  // namespace fsdp
