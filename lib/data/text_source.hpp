// Reads several texts as one text. If all are files, it can be read at any position, otherwise once from the beginning.
// Byte-order marks at the beginnings of texts are skipped. Files may be
// packed (text_file.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/program.hpp"
#include "files/input_file.hpp"

namespace fsdp {

/// Returns true if the extension is that of JSON: .jsonl, .ndjson or .json, in upper or lower case, also before .gz or .zst.
bool is_named_json(const std::filesystem::path& name);

class TextSource {
 public:
  /// The name '-' is standard input. Throws UserError if a text cannot be read, is empty, or does not begin like text (unless
  /// `any_bytes` is true).
  explicit TextSource(const std::vector<std::string>& names, bool any_bytes = false);
  TextSource(TextSource&&) noexcept;
  ~TextSource();

  /// Returns true if all texts are files, so that their sizes are known and they can be read again.
  bool is_of_files() const;
  /// Copies pipes and standard input to files in `folder`, so that all texts are files. The names of these files are removed at
  /// once.
  void copy_streams(const std::filesystem::path& folder);

  /// The number of bytes of all files, as they are on the disk.
  std::uint64_t size_of_files() const;
  /// The number of bytes of all texts. The first call unpacks packed files as a whole. size(), size_of_files(), read_at(),
  /// seek() and begins_at() require that all texts are files.
  std::uint64_t size() const;
  /// Reads `bytes` bytes of the joined texts, or fewer at the end of the last text.
  std::string read_at(std::uint64_t offset, std::size_t bytes) const;
  /// Moves to `offset`: read() continues there.
  void seek(std::uint64_t offset);
  /// Returns true if some text begins at `offset`.
  bool begins_at(std::uint64_t offset) const;
  /// The place of an offset for messages: "byte 17 of 'a.txt'". If a stream, whose size is unknown, is before the offset, the
  /// offset counts as a position in that stream.
  std::string place(std::uint64_t offset) const;
  /// The line of an offset for messages: "line 3 of 'a.txt'", "row 3 of 'a.parquet'", or "the line at byte 17 of '-'" for a
  /// stream. Reads the file to count its lines.
  std::string place_of_line(std::uint64_t offset) const;
  std::string name_at(std::uint64_t offset) const;
  /// The beginning of the text that contains `offset`.
  std::uint64_t begin_of_text(std::uint64_t offset) const;
  /// The name, size, time of the last write and checksum of each text. The checksum of a text of more than 4 MiB covers 64
  /// blocks of 64 KiB, among them the first and the last. By these a job finds out if an earlier job had the same texts.
  nlohmann::ordered_json identity() const;

  /// Returns the JSON field that has the text. This is `named` if `named` is not empty, or otherwise `otherwise` if the names
  /// or contents show that the texts are JSON. Returns an empty text for plain texts. Throws UserError if some texts are JSON
  /// and others plain. Opens no stream after the first text, because the writer of a pipe may wait until the texts before it
  /// are read; require_plain() checks these streams later. Calls `warn` for plain texts with lines that look like JSON.
  std::string json_field(const std::string& named, const char* otherwise = "text", const Warn& warn = print_warning);
  /// Throws UserError if the current text is a stream of JSON.
  void require_plain();

  /// The first bytes of the current text, up to 64 KiB, independent of the position. Blocks of blanks at the beginning of a
  /// file are skipped. If the text is a stream, opens it.
  std::string beginning();
  /// Appends up to `bytes` bytes of the current text. Returns their number; 0 at the end of the text.
  std::size_t read(std::string& to, std::size_t bytes);
  /// Moves to the next text. Returns false if there is none.
  bool next();

 private:
  struct Text;
  const Text& text_at(std::uint64_t& offset) const;
  /// Where place_of_line() has counted to, so that it need not begin again for a later place.
  struct Counted {
    const Text* text = nullptr;
    std::uint64_t end = 0, line = 1;
  };
  std::vector<Text> texts_;
  mutable Counted counted_;
  std::size_t present_ = 0;
  std::uint64_t at_ = 0;  // the position in the current text
};

}  // namespace fsdp
