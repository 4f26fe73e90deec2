// What a tokenizer does to a text before it looks at it: Unicode normal forms and replacements.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// Steps that each make another text of a text; UTF-8 before and after. Without steps the text stays.
class Normalizer {
 public:
  using Step = std::function<std::string(const std::string&)>;
  Normalizer() = default;
  /// From its description in tokenizer.json: null, NFC, NFD, NFKC, NFKD, Strip, Replace, Prepend, Precompiled, or a Sequence
  /// of them. Throws UserError
  /// with the name of anything else.
  explicit Normalizer(const nlohmann::json& description);

  bool empty() const { return steps_.empty(); }
  /// Whether a text may be cut behind an ASCII letter or digit and before a space or line feed: what is made of the parts is
  /// then what is made of the whole, but for what is put before them. Spaces and line feeds become such, or U+2581.
  bool keeps_cuts() const { return keeps_cuts_; }
  /// Whether spaces, or line feeds, may become something else.
  bool changes_spaces() const { return changes_spaces_; }
  bool changes_line_ends() const { return changes_line_ends_; }
  /// Whether letters stay as they are, if they are in NFC.
  bool keeps_letters() const { return keeps_letters_; }
  /// Whether none of its texts has a space.
  bool removes_spaces() const { return removes_spaces_; }
  /// Whether a text still begins with what it began with, or what that became.
  bool keeps_beginning() const { return keeps_beginning_; }
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& description);
  void note_replacement(const nlohmann::json& pattern, const std::string& with);

  std::vector<Step> steps_;
  bool keeps_cuts_ = true, changes_spaces_ = false, changes_line_ends_ = false;
  bool keeps_letters_ = true, removes_spaces_ = false, keeps_beginning_ = true;
};

}  // namespace fsdp
