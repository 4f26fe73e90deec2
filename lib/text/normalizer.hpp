// The normalizer of a tokenizer: Unicode normal forms and replacements, applied to a text before it is split.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// A sequence of steps. Each step converts a UTF-8 text to another one. Without steps the text is unchanged.
class Normalizer {
 public:
  using Step = std::function<std::string(const std::string&)>;
  Normalizer() = default;
  /// Reads the description in tokenizer.json: null, NFC, NFD, NFKC, NFKD, Strip, Replace, Prepend, Precompiled, or a Sequence
  /// of them. Throws UserError with the name of an unknown part.
  explicit Normalizer(const nlohmann::json& description);

  bool empty() const { return steps_.empty(); }
  /// Returns true if a text may be cut between an ASCII letter or digit and a space or line feed. Normalizing the parts then
  /// gives the same text as normalizing the whole, apart from prefixes. Spaces and line feeds may be replaced, but
  /// only by spaces, line feeds or U+2581.
  bool keeps_cuts() const { return keeps_cuts_; }
  /// changes_spaces() is true if a step may replace spaces, and changes_line_ends() if a step may replace line feeds.
  bool changes_spaces() const { return changes_spaces_; }
  bool changes_line_ends() const { return changes_line_ends_; }
  /// Returns true if letters that NFC leaves unchanged stay unchanged.
  bool keeps_letters() const { return keeps_letters_; }
  /// Returns true if normalized texts have no spaces.
  bool removes_spaces() const { return removes_spaces_; }
  /// Returns true if the first character of a text is never removed, but kept or replaced.
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
