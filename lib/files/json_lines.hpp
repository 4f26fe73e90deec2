// Lines of JSON (JSONL, ndjson): texts as most corpora have them, an object per line. simdjson reads them (Langdale and Lemire
// 2019), several times as fast as they can be tokenized.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

/// Reads one field of many lines. Not for several threads at once.
class JsonLineReader {
 public:
  explicit JsonLineReader(std::string field);
  JsonLineReader(JsonLineReader&&) noexcept;
  ~JsonLineReader();

  /// The text of the field, without escapes, valid until the next call; `problem` says why there is none, and is empty
  /// otherwise. The whole line must be JSON in UTF-8, an object, and its field a text.
  std::string_view read(std::string_view line, std::string& problem);

 private:
  struct Parser;
  std::string field_;
  std::unique_ptr<Parser> parser_;
};

/// JSON text in which each escape of half a surrogate pair, as "\ud83d" alone, is that of U+FFFD. Their number is added to
/// `count`.
std::string with_replaced_surrogates(std::string json, std::size_t* count);

}  // namespace fsdp
