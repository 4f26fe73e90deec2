#include "files/sealed_file.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp {

std::filesystem::path seal_beside(const std::filesystem::path& path) { return path.string() + ".xxh3"; }

namespace {

constexpr std::size_t smallest_block = std::size_t{4} << 10, largest_block = std::size_t{1} << 20;
constexpr std::uint64_t most_blocks = 65536;                // for contents below 64 GiB
constexpr std::size_t read_bytes = std::size_t{256} << 10;  // bytes per read, so few that the cache holds them
constexpr char magic[8] = {'f', 's', 'd', 'p', 's', 'e', 'a', 'l'};

struct Footer {
  std::uint64_t content_bytes, block_bytes, part_bytes, sum;
  char magic[8];
};
static_assert(sizeof(Footer) == 40);

std::uint64_t blocks_of(std::uint64_t bytes, std::uint64_t block_bytes) {
  return bytes / block_bytes + (bytes % block_bytes != 0);
}

/// Computes Footer::sum: the checksum of all bytes between the contents and that field.
std::uint64_t sum_of(const std::vector<std::uint64_t>& sums, const std::string& parts, const Footer& footer) {
  RunningSum sum;
  sum.add(sums.data(), sums.size() * sizeof sums[0]);
  sum.add(parts.data(), parts.size());
  sum.add(&footer, offsetof(Footer, sum));
  return sum.value();
}

/// Computes the checksum of a part from the bytes in the file.
template <class File>
std::uint64_t sum_of_part(const File& file, const SealedPart& part) {
  RunningSum sum;
  each_piece(file, part.offset, part.offset + part.bytes, [&](const char* data, std::size_t bytes) { sum.add(data, bytes); });
  return sum.value();
}

/// Returns the parts that the JSON text of a seal lists, up to the first invalid entry.
std::vector<SealedPart> listed_parts(const std::string& text) {
  std::vector<SealedPart> parts;
  const nlohmann::json listed = parse_json(text);
  if (!listed.is_array()) return parts;
  for (const nlohmann::json& part : listed) {
    const bool fits = part.is_array() && part.size() == 4 && part[0].is_string() && part[1].is_number_unsigned() &&
                      part[2].is_number_unsigned() && part[3].is_string();
    if (!fits) return parts;
    parts.push_back({part[0], part[1], part[2], std::strtoull(part[3].get_ref<const std::string&>().c_str(), nullptr, 16)});
  }
  return parts;
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& why) {
  throw DamagedError(format("{} is damaged ({}); restore it from a copy, or make it again", path.string(), why));
}

}  // namespace

// --- sums ---

std::size_t BlockSums::block_bytes_for(std::uint64_t content_bytes) {
  std::size_t bytes = smallest_block;
  while (bytes < largest_block && content_bytes / bytes > most_blocks) bytes *= 2;
  return bytes;
}

void BlockSums::add(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t n = std::min<std::size_t>(bytes, block_bytes_ - bytes_ % block_bytes_);
    if (n == block_bytes_) {
      sums_.push_back(checksum(from, n));
    } else {
      block_.add(from, n);
      if ((bytes_ + n) % block_bytes_ == 0) sums_.push_back(block_.value()), block_.reset();
    }
    bytes_ += n, from += n, bytes -= n;
  }
}

std::vector<std::uint64_t> BlockSums::sums() const {
  std::vector<std::uint64_t> all = sums_;
  if (bytes_ % block_bytes_ != 0) all.push_back(block_.value());
  return all;
}

std::string BlockSums::trailer(const std::vector<SealedPart>& parts) const {
  nlohmann::json listed = nlohmann::json::array();
  for (const SealedPart& part : parts) listed.push_back({part.name, part.offset, part.bytes, checksum_text(part.checksum)});
  const std::vector<std::uint64_t> all = sums();
  const std::string names = json_text(listed);
  Footer footer{bytes_, block_bytes_, names.size(), 0, {}};
  footer.sum = sum_of(all, names, footer);
  std::memcpy(footer.magic, magic, sizeof magic);
  std::string text(reinterpret_cast<const char*>(all.data()), all.size() * sizeof all[0]);
  text += names;
  text.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  return text;
}

void Sealer::take(const void* data, std::size_t bytes) {
  whole_.add(data, bytes);
  blocks_.add(data, bytes);
}

void Sealer::read_up_to(std::uint64_t offset) {
  expect(offset >= blocks_.bytes(), "bytes of a file are sealed in order of their offsets");
  each_piece(file_, blocks_.bytes(), offset, [&](const char* data, std::size_t bytes) { take(data, bytes); });
}

void Sealer::add(std::uint64_t offset, const void* data, std::size_t bytes) {
  read_up_to(offset);
  for (const char* from = static_cast<const char*>(data); bytes > 0;) {  // computes both sums while the bytes are in the cache
    const std::size_t n = std::min(bytes, read_bytes);
    take(from, n);
    from += n, bytes -= n;
  }
}

void Sealer::name_and_sum(SealedPart part) {
  part.checksum = sum_of_part(file_, part);
  name(std::move(part));
}

std::string Sealer::trailer() {
  expect(file_.size() == content_bytes_, "the contents have the announced length");
  read_up_to(content_bytes_);
  return blocks_.trailer(parts_);
}

FileSum Sealer::finish() {
  const std::string end = trailer();
  whole_.add(end.data(), end.size());
  file_.write(blocks_.bytes(), end.data(), end.size());
  return {file_.size(), whole_.value()};
}

// --- reading ---

CheckedFile::CheckedFile(const std::filesystem::path& path, Verify verify, std::optional<FileSum> expected)
    : CheckedFile(path, verify, Unread{}) {
  if (expected && file_.size() != expected->bytes)
    damaged(path, format("it has {} bytes, but {} were written", file_.size(), expected->bytes));
  if (!read_seal(file_, /*beside=*/false) && expected) damaged(path, "its checksums are missing");
}

CheckedFile CheckedFile::sealed_by(const std::filesystem::path& seal_path, const std::filesystem::path& path, Verify verify) {
  CheckedFile file(path, verify, Unread{});
  if (kind_of(seal_path) == PathKind::missing) return file;
  if (verify == Verify::yes && !file.read_seal(InputFile(seal_path), /*beside=*/true))
    damaged(seal_path, "it has no valid seal at its end");
  return file;
}

/// Reads the seal at the end of `from`: this file, or the separate file of its seal if `beside` is true. Returns false if there
/// is no seal.
bool CheckedFile::read_seal(const InputFile& from, bool beside) {
  Footer footer;
  if (from.size() < sizeof footer) return false;
  from.read(from.size() - sizeof footer, &footer, sizeof footer);
  if (std::memcmp(footer.magic, magic, sizeof magic) != 0) return false;
  const std::uint64_t before = from.size() - sizeof footer, begin = beside ? 0 : footer.content_bytes;
  const bool fits =
      std::has_single_bit(footer.block_bytes) && footer.block_bytes >= smallest_block && footer.block_bytes <= largest_block &&
      begin <= before && footer.part_bytes <= before - begin && (before - begin - footer.part_bytes) % sizeof sums_[0] == 0 &&
      (before - begin - footer.part_bytes) / sizeof sums_[0] == blocks_of(footer.content_bytes, footer.block_bytes);
  if (!fits) damaged(from.path(), "its seal does not fit its size");
  std::vector<std::uint64_t> sums(blocks_of(footer.content_bytes, footer.block_bytes));
  std::string parts(footer.part_bytes, '\0');
  from.read(begin, sums.data(), sums.size() * sizeof sums[0]);
  from.read(before - parts.size(), parts.data(), parts.size());
  if (sum_of(sums, parts, footer) != footer.sum) damaged(from.path(), "its list of checksums has changed");
  if (beside && footer.content_bytes != file_.size())
    damaged(path(), format("it has {} bytes, but {} were written; if another program has rewritten it, remove {}", file_.size(),
                           footer.content_bytes, from.path().string()));
  content_bytes_ = footer.content_bytes;
  block_bytes_ = footer.block_bytes;
  sums_ = std::move(sums);
  parts_ = std::move(parts);
  if (verify_ == Verify::no)
    for (const SealedPart& part : listed_parts(parts_)) part_ranges_.emplace_back(part.offset, part.offset + part.bytes);
  std::sort(part_ranges_.begin(), part_ranges_.end());
  return true;
}

bool CheckedFile::lies_in_a_part(std::uint64_t offset, std::size_t bytes) const {
  const auto next = std::upper_bound(part_ranges_.begin(), part_ranges_.end(), offset,
                                     [](std::uint64_t at, const auto& range) { return at < range.first; });
  return next != part_ranges_.begin() && offset + bytes <= std::prev(next)->second;
}

std::string CheckedFile::damaged_part(std::uint64_t offset, std::uint64_t bytes) const {
  for (const SealedPart& part : listed_parts(parts_)) {
    const bool touches = part.offset < offset + bytes && offset < part.offset + part.bytes;
    if (!touches || part.offset > content_bytes_ || part.bytes > content_bytes_ - part.offset) continue;
    if (part.checksum != sum_of_part(file_, part)) return part.name;
  }
  return "";
}

std::size_t CheckedFile::bytes_of(std::uint64_t block) const {
  return std::min<std::uint64_t>(block_bytes_, content_bytes_ - block * block_bytes_);
}

void CheckedFile::check_block(std::uint64_t block, const char* bytes) const {
  const std::uint64_t begin = block * block_bytes_, size = bytes_of(block);
  if (checksum(bytes, size) == sums_[block]) return;
  const std::string part = damaged_part(begin, size);
  damaged(path(),
          format("bytes {} to {} do not match their checksum{}", begin, begin + size, part.empty() ? "" : ", in " + part));
}

const CheckedFile::Block& CheckedFile::kept_block(std::uint64_t block) const {
  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& b) { return b.index == block && !b.bytes.empty(); });
  if (found == kept_.end()) {
    found = kept_.end() - 1;
    found->bytes.clear();  // if the new block is damaged, this entry must hold no block
    std::vector<char> bytes(bytes_of(block));
    file_.read(block * block_bytes_, bytes.data(), bytes.size());
    check_block(block, bytes.data());
    *found = {block, std::move(bytes)};
  }
  std::rotate(kept_.begin(), found, found + 1);
  return kept_.front();
}

void CheckedFile::read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers) const {
  if (bytes == 0) return;
  if (offset > content_bytes_ || bytes > content_bytes_ - offset)
    damaged(path(), format("bytes {} to {} are after the end of its contents, at {}", offset, offset + bytes, content_bytes_));
  const bool may_differ = verify_ == Verify::no && numbers && (part_ranges_.empty() || lies_in_a_part(offset, bytes));
  if (sums_.empty() || may_differ) return file_.read(offset, out, bytes);
  char* to = static_cast<char*>(out);
  const auto advance = [&](std::size_t n) { to += n, offset += n, bytes -= n; };
  while (bytes > 0) {
    const std::uint64_t block = offset / block_bytes_, from = offset % block_bytes_;
    const std::size_t of_block = std::min<std::size_t>(bytes, bytes_of(block) - from);
    if (of_block != bytes_of(block)) {
      std::memcpy(to, kept_block(block).bytes.data() + from, of_block);
      advance(of_block);
      continue;
    }
    // Reads as many whole blocks at once as fit into read_bytes, but at least one. The last block of the file may be shorter.
    const std::size_t whole = std::max(of_block, std::min(bytes, read_bytes) / block_bytes_ * block_bytes_);
    file_.read(offset, to, whole);
    for (std::size_t at = 0; at < whole; at += block_bytes_) check_block((offset + at) / block_bytes_, to + at);
    advance(whole);
  }
}

}  // namespace fsdp
