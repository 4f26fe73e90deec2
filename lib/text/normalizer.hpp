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
  /// As tokenizer.json describes it: null, NFC, NFD, NFKC, NFKD, Strip, Replace, Prepend, or a Sequence of them. Throws
  /// UserError for anything else, by its name.
  explicit Normalizer(const nlohmann::json& description);

  bool empty() const { return steps_.empty(); }
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& description);

  std::vector<Step> steps_;
};

}  // namespace fsdp
