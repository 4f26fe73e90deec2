#include "data/output_place.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace fs = std::filesystem;

void require_place(const fs::path& path) {
  const auto refuse = [&](const char* why) {
    return UserError(
        format("cannot write '{}' ({}); give a path in a folder that exists and can be written", path.string(), why));
  };
  const fs::path folder = folder_of(path);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw refuse(std::strerror(errno));
  switch (kind_of(path)) {
    case PathKind::folder:
      throw refuse("it is a folder");
    case PathKind::other:
      throw UserError(format("cannot write '{}' (it exists and is not a plain file); choose another name", path.string()));
    case PathKind::file:
    case PathKind::missing:
      break;
  }
}

fs::path temporary_path(const fs::path& path, std::size_t number) {
  return path.string() + format("{}-{}", temporary_suffix, number);
}

void remove_left_over(const fs::path& temporary) {
  if (kind_of(temporary) != PathKind::file) return;
  OutputFile(temporary, OutputFile::Open::existing).lock();
  check_errno(::unlink(temporary.c_str()) == 0, "remove " + temporary.string());
}

std::uint64_t number_of_state(const nlohmann::json& state, const char* key, const fs::path& path) {
  if (!state.contains(key) || !state[key].is_number_unsigned())
    throw DamagedError(format("the resume file of '{}' has no \"{}\"; start anew", path.string(), key));
  return state[key].get<std::uint64_t>();
}

namespace {

void require_unchanged(bool same, const fs::path& path) {
  if (!same) throw DamagedError(format("the temporary file {} has changed since it was written; start anew", path.string()));
}

const fs::path& with_bytes(const fs::path& path, std::uint64_t bytes) {
  const auto there = size_of_file(path);
  require_unchanged(there && *there >= bytes, path);
  return path;
}

}  // namespace

AppendedFile::AppendedFile(const fs::path& path, std::uint64_t header_bytes, const std::optional<FileSum>& kept)
    : file_(kept ? with_bytes(path, kept->bytes) : path, kept ? OutputFile::Open::existing : OutputFile::Open::create),
      written_(kept ? kept->bytes : header_bytes) {
  file_.lock();
  file_.resize(written_);
  if (!kept) return;
  each_piece(file_, header_bytes, written_, [&](const void* data, std::size_t bytes) { sum_.add(data, bytes); });
  require_unchanged(sum_.value() == kept->checksum, path);
}

void AppendedFile::append(std::span<const TokenId> tokens, std::size_t token_bytes) {
  for (std::size_t n; !tokens.empty(); tokens = tokens.subspan(n)) {
    n = std::min(tokens.size(), buffer_bytes / token_bytes);
    const std::size_t before = buffer_.size();
    buffer_.resize(before + n * token_bytes);
    if (token_bytes == sizeof(TokenId)) {
      std::memcpy(buffer_.data() + before, tokens.data(), n * sizeof(TokenId));
    } else {
      std::int32_t all = 0;  // the bitwise or of all tokens
      for (std::size_t i = 0; i < n; ++i) {
        all |= tokens[i];
        const auto token = static_cast<std::uint16_t>(tokens[i]);
        std::memcpy(buffer_.data() + before + 2 * i, &token, sizeof token);
      }
      expect((all & ~0xffff) == 0, "tokens fit into 16 bits");
    }
    if (buffer_.size() >= buffer_bytes) flush();
  }
}

void AppendedFile::flush() {
  file_.write(written_, buffer_.data(), buffer_.size());
  sum_.add(buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  buffer_.clear();
}

}  // namespace fsdp
