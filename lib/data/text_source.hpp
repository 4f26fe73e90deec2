// Several texts as one: read by position if all are files, else once from the beginning. Byte-order marks at the beginnings
// of texts are skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"

namespace fsdp {

/// Returns true if the extension is that of JSON: .jsonl, .ndjson or .json, in upper or lower case.
bool is_named_json(const std::filesystem::path& name);

class TextSource {
 public:
  /// '-' is standard input. Throws UserError for what cannot be read, is empty, or (unless `any_bytes` do) is no text by its
  /// first bytes.
  explicit TextSource(const std::vector<std::string>& names, bool any_bytes = false);
  TextSource(TextSource&&) noexcept;
  ~TextSource();

  /// Whether all are files, so that the sizes are known and the text can be read again.
  bool is_of_files() const;
  /// Copies what is no file into files in `folder`, whose names are removed at once: then all are.
  void copy_streams(const std::filesystem::path& folder);

  /// All bytes. Requires files, as the next three do.
  std::uint64_t size() const;
  /// Bytes of the whole text, `bytes` or those up to its end.
  std::string read_at(std::uint64_t offset, std::size_t bytes) const;
  /// read() goes on there.
  void seek(std::uint64_t offset);
  /// Whether some text begins there.
  bool begins_at(std::uint64_t offset) const;
  /// "byte 17 of 'a.txt'"; of streams the first name's.
  std::string place(std::uint64_t offset) const;
  /// "line 3 of 'a.txt'", which it counts; of streams "the line at byte 17 of '-'".
  std::string place_of_line(std::uint64_t offset) const;
  std::string name_at(std::uint64_t offset) const;
  /// The beginning of the text that contains `offset`.
  std::uint64_t begin_of_text(std::uint64_t offset) const;
  /// Names, sizes and times of last writing: what tells whether these are the same texts as another time.
  nlohmann::ordered_json identity() const;

  /// Returns the field of JSON that has the text: `named` if it is not empty, else `otherwise` if the texts are JSON by their
  /// names or content, else nothing. Throws UserError if some texts are JSON and some are plain. Opens no stream after the
  /// first text: require_plain() checks those later, because they may depend on what was read before. Warns of plain texts
  /// whose lines look like JSON.
  std::string json_field(const std::string& named, const char* otherwise = "text");
  /// Throws UserError if the present text is a stream of JSON.
  void require_plain();

  /// The first bytes of the present text, up to 64 KiB, whatever has been read; of a file without blocks of blanks before
  /// these. Opens a stream.
  std::string beginning();
  /// Appends up to `bytes` of the present text. Returns how many; 0 at its end.
  std::size_t read(std::string& to, std::size_t bytes);
  /// Begins the next text; false if there is none.
  bool next();

 private:
  struct Text;
  const Text& text_at(std::uint64_t& offset) const;
  std::vector<Text> texts_;
  std::size_t present_ = 0;
  std::uint64_t at_ = 0;  // in the present text
};

}  // namespace fsdp
