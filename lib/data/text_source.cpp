#include "data/text_source.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "data/formats.hpp"
#include "files/checksum.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

UserError unreadable(const std::string& name, const char* why) {
  return UserError(format("cannot read '{}' ({}); give a text file", name, why));
}

using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Stream open_stream(const std::string& name) {
  if (name == "-") return Stream(stdin, [](std::FILE*) { return 0; });
  Stream stream(std::fopen(name.c_str(), "rb"), [](std::FILE* file) { return std::fclose(file); });
  if (!stream) throw unreadable(name, std::strerror(errno));
  return stream;
}

}  // namespace

struct TextSource::Text {
  std::string name;
  std::optional<InputFile> file;  // or
  Stream stream{nullptr, nullptr};
  std::uint64_t size() const { return file->size(); }
};

TextSource::TextSource(TextSource&&) noexcept = default;
TextSource::~TextSource() = default;

TextSource::TextSource(const std::vector<std::string>& names) {
  allow_open_files(names.size());
  for (const std::string& name : names) {
    Text text{.name = name, .file = {}};
    const PathKind kind = name == "-" ? PathKind::other : kind_of(name);
    switch (kind) {
      case PathKind::missing:
        throw unreadable(name, "No such file or directory");
      case PathKind::folder:
        throw unreadable(name, "it is a folder");
      case PathKind::file:
        text.file.emplace(name);
        if (text.size() == 0) throw unreadable(name, "it is empty");
        require_no_known_kind(name);
        break;
      case PathKind::other:  // a pipe: opened in its turn, as its writer may wait for that
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
    const Stream stream = open_stream(text.name);
    const std::filesystem::path path = folder / format("fsdp-tokenize.text-{}", ::getpid());
    {
      OutputFile copy(path);
      try {
        std::vector<char> piece(std::size_t{1} << 20);
        std::uint64_t at = 0;
        while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), stream.get())) {
          copy.write(at, piece.data(), got);
          at += got;
        }
        if (std::ferror(stream.get())) throw unreadable(text.name, std::strerror(errno));
        if (at == 0) throw unreadable(text.name, "it is empty");
        text.file.emplace(path);
      } catch (...) {
        ::unlink(path.c_str());
        throw;
      }
    }
    check_errno(::unlink(path.c_str()) == 0, "remove " + path.string());
  }
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
    text.file->read(offset, out.data() + before, here);
    offset = 0;
    if (out.size() == bytes) break;
  }
  return out;
}

void TextSource::seek(std::uint64_t offset) {
  for (present_ = 0; present_ + 1 < texts_.size() && offset >= texts_[present_].size(); ++present_)
    offset -= texts_[present_].size();
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

/// `offset` becomes one in it.
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

std::string TextSource::place(std::uint64_t offset) const {
  const Text& text = text_at(offset);
  return format("byte {} of '{}'", offset, text.name);
}

std::string TextSource::place_of_line(std::uint64_t offset) const {
  const Text& text = text_at(offset);
  if (!text.file) return format("the line at byte {} of '{}'", offset, text.name);
  std::uint64_t line = 1;
  each_piece(*text.file, 0, offset,
             [&](const char* piece, std::size_t bytes) { line += std::count(piece, piece + bytes, '\n'); });
  return format("line {} of '{}'", line, text.name);
}

nlohmann::ordered_json TextSource::identity() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Text& text : texts_) {
    const auto written = std::filesystem::last_write_time(text.name).time_since_epoch().count();
    all.push_back({std::filesystem::absolute(text.name).string(), text.size(), written});
  }
  return all;
}

std::size_t TextSource::read(std::string& to, std::size_t bytes) {
  Text& text = texts_[present_];
  const std::size_t before = to.size();
  if (text.file) {
    const std::size_t here = std::min<std::uint64_t>(bytes, text.size() - at_);
    to.resize(before + here);
    text.file->read(at_, to.data() + before, here);
    at_ += here;
    return here;
  }
  if (!text.stream) text.stream = open_stream(text.name);
  to.resize(before + bytes);
  const std::size_t got = std::fread(to.data() + before, 1, bytes, text.stream.get());
  to.resize(before + got);
  if (std::ferror(text.stream.get())) throw unreadable(text.name, std::strerror(errno));
  if (got == 0 && at_ == 0) throw unreadable(text.name, "it is empty");
  at_ += got;
  return got;
}

bool TextSource::next() {
  if (present_ + 1 == texts_.size()) return false;
  ++present_;
  at_ = 0;
  return true;
}

}  // namespace fsdp
