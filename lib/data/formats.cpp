#include "data/formats.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/registry.hpp"
#include "data/text_file.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace fs = std::filesystem;

UserError unusable_tokens(const fs::path& path, const std::string& why) {
  return UserError(format("'{}' is not a token file that can be used ({}); make one with fsdp-tokenize", path.string(), why));
}

// The rows of the formats in this folder.
const TokenFormat &llmc_tokens(), &indexed_tokens(), &hdf5_tokens();

namespace {

Registry<TokenFormat>& table() {
  static Registry<TokenFormat> rows({&llmc_tokens(), &indexed_tokens(), &hdf5_tokens()}, "'{}' is not a format of token files");
  return rows;
}

constexpr std::size_t first_bytes = 256;  // the bytes by which formats are recognised

/// Returns true if there are no control characters, except those that texts have: line ends, tabs, form feeds (between pages)
/// and escapes (colours of terminals).
bool looks_like_text(std::string_view beginning) {
  return std::none_of(beginning.begin(), beginning.end(), [](unsigned char c) {
    return c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != '\x1b';
  });
}

/// The error for a file of a kind that is often mistaken for tokens or text, such as NumPy or gzip; nullopt for other files.
std::optional<UserError> of_known_kind(const fs::path& path, std::string_view beginning) {
  constexpr const char* write_tokens =
      "write its tokens to a token file as \"Tokens\" in docs/running.md shows, or its text in UTF-8";
  constexpr const char* write_rows = "write its rows as JSON lines: datasets.Dataset.from_file(FILE).to_json(\"FILE.jsonl\")";
  struct Kind {
    std::string_view signature;
    const char *name, *advice;
  };
  constexpr Kind kinds[] = {
      {"\x93NUMPY", "an array of numpy", write_tokens},
      {"TNTIDX", "the index of an old data set of fairseq; of its implementations only mmap is read", write_tokens},
      {"\x1f\x8b", "compressed by gzip", "only text is read so, and not through a pipe; unpack it with gzip -d"},
      {"\x28\xb5\x2f\xfd", "compressed by zstd", "only text is read so, and not through a pipe; unpack it with zstd -d"},
      {"\xfd"
       "7zXZ",
       "compressed by xz", "unpack it with xz -dk"},
      {"BZh91AY", "compressed by bzip2", "unpack it with bzip2 -dk"},
      {"PK\x03\x04", "a zip archive, as torch.save and numpy.savez make", write_tokens},
      {"PAR1", "a Parquet file", "give it as a file, neither packed nor through a pipe"},
      {"ARROW1", "an Arrow file", write_rows},
      {"\xff\xff\xff\xff", "an Arrow file of datasets, or another binary file", write_rows},
      {"%PDF", "a PDF document", "give its text in UTF-8"}};
  using namespace std::string_view_literals;
  for (const auto& [mark, name] :  // UTF-32 first, because its mark begins like that of UTF-16
       {std::pair("\xff\xfe\0\0"sv, "UTF-32"),
        {"\0\0\xfe\xff"sv, "UTF-32"},
        {"\xff\xfe"sv, "UTF-16"},
        {"\xfe\xff"sv, "UTF-16"}})
    if (beginning.starts_with(mark))
      return UserError(format("'{}' is text in {} (text is read in UTF-8); convert it with iconv -f {} -t UTF-8", path.string(),
                              name, name));
  for (const Kind& kind : kinds)
    if (beginning.starts_with(kind.signature))
      return UserError(format("'{}' is neither a token file that can be used nor text (it is {}); {}", path.string(), kind.name,
                              kind.advice));
  return std::nullopt;
}

UserError of_another_kind(const fs::path& path, std::string_view beginning) {
  if (const auto known = of_known_kind(path, beginning)) return *known;
  std::int32_t first_number = 0;
  std::memcpy(&first_number, beginning.data(), std::min(beginning.size(), sizeof first_number));
  const std::string start = format("it starts with {}, but a token file of llm.c starts with 20240520", first_number);
  if (looks_like_text(beginning)) return unusable_tokens(path, start + "; it looks like text");
  return UserError(
      format("'{}' is not a token file that can be used ({}; no index of Megatron or fairseq is next to it); make one from "
             "text with fsdp-tokenize, or from other tokens as \"Tokens\" in docs/running.md shows",
             path.string(), start));
}

/// The file for a name. For a data set in two files, NAME.bin and NAME.idx, NAME is enough.
fs::path file_named(const fs::path& name) {
  switch (kind_of(name)) {
    case PathKind::missing: {
      const fs::path data = name.string() + ".bin";
      if (kind_of(data) != PathKind::file || kind_of(name.string() + ".idx") != PathKind::file)
        throw UserError(format("data '{}' does not exist (No such file or directory); correct its path", name.string()));
      return data;
    }
    case PathKind::folder:
      throw unusable_tokens(name, "it is a folder");
    case PathKind::other:
      throw unusable_tokens(name, "it is a pipe or a device");
    case PathKind::file:
      break;
  }
  return name;
}

}  // namespace

const std::vector<const TokenFormat*>& token_formats() { return table().rows(); }

const TokenFormat& find_token_format(std::string_view name) { return table().find(name); }

void add_token_format(const TokenFormat& format) { table().add(format); }

bool is_text_file(const fs::path& path) {
  if (kind_of(path) != PathKind::file) return false;
  const TextFile file(path);
  if (file.has_rows()) return true;
  const std::string beginning = file.beginning(first_bytes);
  if (beginning.empty() || !looks_like_text(beginning)) return false;
  if (file.is_packed()) return !of_known_kind(path, beginning);
  for (const TokenFormat* format : token_formats())
    if (format->recognises(path, beginning)) return false;
  return !of_known_kind(path, beginning);
}

void require_no_known_kind(const fs::path& name, std::string_view beginning, bool any_bytes) {
  if (const auto known = of_known_kind(name, beginning)) throw *known;
  if (!any_bytes && !looks_like_text(beginning.substr(0, first_bytes)))
    throw UserError(
        format("'{}' is no text (its beginning has control characters, as files of other programs and text in UTF-16 have); "
               "give text in UTF-8",
               name.string()));
}

std::unique_ptr<Tokens> open_token_file(const fs::path& name) {
  const fs::path path = file_named(name);
  const std::string beginning = InputFile(path).beginning(first_bytes);
  if (beginning.empty()) throw unusable_tokens(path, "it is empty, so it is no text either");
  for (const TokenFormat* format : token_formats())
    if (format->recognises(path, beginning)) return format->open(path);
  throw of_another_kind(path, beginning);
}

}  // namespace fsdp
