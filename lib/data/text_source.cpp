#include "data/text_source.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "base/byte_order_mark.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "data/formats.hpp"
#include "data/json_records.hpp"
#include "data/text_file.hpp"
#include "files/checksum.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

UserError unreadable(const std::string& name, const char* why) {
  return UserError(format("cannot read '{}' ({}); give a text file", name, why));
}

constexpr std::size_t beginning_bytes = std::size_t{1} << 16;

using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Stream open_stream(const std::string& name) {
  if (name == "-") return Stream(stdin, [](std::FILE*) { return 0; });
  Stream stream(std::fopen(name.c_str(), "rb"), [](std::FILE* file) { return std::fclose(file); });
  if (!stream) throw unreadable(name, std::strerror(errno));
  return stream;
}

UserError mixed(const std::string& json, const std::string& plain) {
  return UserError(format(
      "'{}' is JSON and '{}' is not (texts that are read together must all be JSON or all plain); give one kind at a time, "
      "or name the field that has the text by `field of JSON` if all are JSON",
      json, plain));
}

}  // namespace

bool is_named_json(const std::filesystem::path& name) {
  std::string extension = without_packing(name).extension().string();
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

struct TextSource::Text {
  std::string name;
  bool any_bytes;
  std::optional<TextFile> file;  // set if the text is a file; otherwise stream is used
  Stream stream{nullptr, nullptr};
  std::string first = {};      // for a stream: the bytes that beginning() has read
  std::size_t first_used = 0;  // the number of bytes of `first` that read_on() has returned
  std::size_t mark = 0;        // length of the byte-order mark

  std::uint64_t size() const { return file->size() - mark; }
  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) const { return file->read(mark + offset, to, bytes); }

  void use_file(const std::filesystem::path& path) {
    file.emplace(path);
    mark = byte_order_mark(file->beginning(3));
  }

  void open() {
    if (stream) return;
    stream = open_stream(name);
    first.resize(beginning_bytes);
    first.resize(std::fread(first.data(), 1, first.size(), stream.get()));
    if (std::ferror(stream.get())) throw unreadable(name, std::strerror(errno));
    first.erase(0, byte_order_mark(first));
    if (first.empty()) throw unreadable(name, "it is empty");
    require_no_known_kind(name, first, any_bytes);
  }

  std::string beginning() {
    if (!file) return open(), first;
    std::string text;
    for (std::uint64_t at = 0; text.find_first_not_of(" \t\r\n") == text.npos; at += text.size()) {
      std::string next(beginning_bytes, '\0');
      next.resize(read(at, next.data(), next.size()));
      if (next.empty()) break;
      text = std::move(next);
    }
    return text;
  }

  bool is_json(const char* field) { return is_named_json(name) || json_shape(beginning(), field) != JsonShape::none; }

  std::size_t read_on(char* to, std::size_t bytes) {
    open();
    const std::size_t known = first.copy(to, bytes, first_used);
    first_used += known;
    const std::size_t got = known < bytes ? std::fread(to + known, 1, bytes - known, stream.get()) : 0;
    if (std::ferror(stream.get())) throw unreadable(name, std::strerror(errno));
    return known + got;
  }
};

TextSource::TextSource(TextSource&&) noexcept = default;
TextSource::~TextSource() = default;

TextSource::TextSource(const std::vector<std::string>& names, bool any_bytes) {
  for (const std::string& name : names) {
    Text text{.name = name, .any_bytes = any_bytes, .file = {}};
    const PathKind kind = name == "-" ? PathKind::other : kind_of(name);
    switch (kind) {
      case PathKind::missing:
        throw unreadable(name, "No such file or directory");
      case PathKind::folder:
        throw unreadable(name, "it is a folder");
      case PathKind::file:
        text.use_file(name);
        if (const std::string beginning = text.beginning(); beginning.empty())
          throw unreadable(name, "it is empty");
        else
          require_no_known_kind(name, beginning, any_bytes);
        text.file->close();
        break;
      case PathKind::other:  // a pipe is opened when it is read, because its writer may wait for that
        break;
    }
    texts_.push_back(std::move(text));
  }
}

bool TextSource::is_of_files() const {
  return std::all_of(texts_.begin(), texts_.end(), [](const Text& text) { return text.file.has_value(); });
}

void TextSource::copy_streams(const std::filesystem::path& folder) {
  for (Text& text : texts_) {
    if (text.file) continue;
    const std::filesystem::path path = folder / format("fsdp-tokenize.text-{}", ::getpid());
    {
      OutputFile copy(path);
      try {
        std::vector<char> piece(std::size_t{1} << 20);
        std::uint64_t at = 0;
        while (const std::size_t got = text.read_on(piece.data(), piece.size())) {
          copy.write(at, piece.data(), got);
          at += got;
        }
        text.use_file(path);
        text.file->keep_open();
      } catch (...) {
        ::unlink(path.c_str());
        throw;
      }
    }
    check_errno(::unlink(path.c_str()) == 0, "remove " + path.string());
  }
}

std::uint64_t TextSource::size_of_files() const {
  std::uint64_t all = 0;
  for (const Text& text : texts_) all += text.file->size_of_file();
  return all;
}

std::uint64_t TextSource::size() const {
  std::uint64_t all = 0;
  for (const Text& text : texts_) all += text.size();
  return all;
}

std::string TextSource::read_at(std::uint64_t offset, std::size_t bytes) const {
  std::string out;
  for (const Text& text : texts_) {
    if (offset >= text.size()) {
      offset -= text.size();
      continue;
    }
    const std::size_t before = out.size(), here = std::min<std::uint64_t>(bytes - before, text.size() - offset);
    out.resize(before + here);
    text.read(offset, out.data() + before, here);
    if (&text != &texts_[present_]) text.file->close();
    offset = 0;
    if (out.size() == bytes) break;
  }
  return out;
}

void TextSource::seek(std::uint64_t offset) {
  const Text& before = texts_[present_];
  // At the first text, sizes are not needed: that of a packed text is not known before it is unpacked.
  for (present_ = 0; offset > 0 && present_ + 1 < texts_.size() && offset >= texts_[present_].size(); ++present_)
    offset -= texts_[present_].size();
  if (&before != &texts_[present_] && before.file) before.file->close();
  at_ = offset;
}

bool TextSource::begins_at(std::uint64_t offset) const {
  for (const Text& text : texts_) {
    if (offset == 0) return true;
    if (offset < text.size()) return false;
    offset -= text.size();
  }
  return false;
}

/// The text at `offset`. `offset` becomes a position in that text.
const TextSource::Text& TextSource::text_at(std::uint64_t& offset) const {
  const Text* found = &texts_.front();
  for (const Text& text : texts_) {
    found = &text;
    if (!text.file || offset < text.size()) break;
    offset -= text.size();
  }
  return *found;
}

std::string TextSource::name_at(std::uint64_t offset) const { return text_at(offset).name; }

std::uint64_t TextSource::begin_of_text(std::uint64_t offset) const {
  std::uint64_t in_text = offset;
  text_at(in_text);
  return offset - in_text;
}

std::string TextSource::place(std::uint64_t offset) const {
  const Text& text = text_at(offset);
  return format("byte {} of '{}'", text.mark + offset, text.name);
}

std::string TextSource::place_of_line(std::uint64_t offset) const {
  const Text& text = text_at(offset);
  if (!text.file) return format("the line at byte {} of '{}'", text.mark + offset, text.name);
  const std::uint64_t end = text.mark + offset;
  if (counted_.text != &text || counted_.end > end) counted_ = {&text, 0, 1};
  const auto count = [&](const char* piece, std::size_t bytes) { counted_.line += std::count(piece, piece + bytes, '\n'); };
  each_piece(*text.file, counted_.end, end, count);
  counted_.end = end;
  return format("{} {} of '{}'", text.file->has_rows() ? "row" : "line", counted_.line, text.name);
}

nlohmann::ordered_json TextSource::identity() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Text& text : texts_) {
    const auto written = std::filesystem::last_write_time(text.name).time_since_epoch().count();
    all.push_back(
        {std::filesystem::absolute(text.name).string(), text.file->size_of_file(), written, text.file->checksum_of_blocks()});
  }
  return all;
}

std::string TextSource::json_field(const std::string& named, const char* otherwise, const Warn& warn) {
  if (!named.empty()) return named;
  const Text *json = nullptr, *plain = nullptr;
  for (Text& text : texts_) {
    if (!text.file && &text != &texts_.front()) continue;
    (text.is_json(otherwise) ? json : plain) = &text;
    if (text.file) text.file->close();
  }
  if (json && plain) throw mixed(json->name, plain->name);
  std::vector<std::string> doubtful;
  for (Text& text : texts_) {
    if (!plain || !text.file) continue;
    if (has_lines_of_json(text.beginning())) doubtful.push_back(text.name);
    text.file->close();
  }
  if (!doubtful.empty())
    warn(format(
        "'{}' is read as plain text (its beginning is not JSON), but most of its first lines are JSON objects; if it is JSON, "
        "remove the text before its first object{}",
        doubtful.front(), doubtful.size() == 1 ? "" : format("; the same holds for {} more files", doubtful.size() - 1)));
  return json ? otherwise : "";
}

void TextSource::require_plain() {
  Text& text = texts_[present_];
  if (!text.file && text.is_json("text")) throw mixed(text.name, texts_.front().name);
}

std::string TextSource::beginning() { return texts_[present_].beginning(); }

std::size_t TextSource::read(std::string& to, std::size_t bytes) {
  Text& text = texts_[present_];
  const std::size_t before = to.size();
  if (text.file) {
    to.resize(before + bytes);
    const std::size_t here = text.read(at_, to.data() + before, bytes);
    to.resize(before + here);
    at_ += here;
    return here;
  }
  to.resize(before + bytes);
  const std::size_t got = text.read_on(to.data() + before, bytes);
  to.resize(before + got);
  at_ += got;
  return got;
}

bool TextSource::next() {
  if (texts_[present_].file) texts_[present_].file->close();
  if (present_ + 1 == texts_.size()) return false;
  ++present_;
  at_ = 0;
  return true;
}

}  // namespace fsdp
