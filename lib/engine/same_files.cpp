#include "engine/same_files.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "base/format.hpp"
#include "base/progress.hpp"
#include "base/system.hpp"
#include "comm/agree.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;

struct Files {
  std::vector<std::filesystem::path> paths;
  std::string lines;  // name and size of each file
  std::vector<std::size_t> sizes, identities;

  explicit Files(const FileLists& lists) {
    std::set<std::filesystem::path> known;
    for (const auto& list : lists)
      for (const std::filesystem::path& path : list) {
        if (kind_of(path) != PathKind::file || !known.insert(path).second) continue;
        const InputFile file(path);
        paths.push_back(path), sizes.push_back(file.size()), identities.push_back(file.identity());
        lines += format("{} ({} bytes)\n", path.filename().string(), file.size());
      }
  }
  std::int64_t sum() const {
    const std::size_t both[] = {checksum(lines.data(), lines.size()),
                                checksum(identities.data(), identities.size() * sizeof identities[0])};
    return static_cast<std::int64_t>(checksum(both, sizeof both));
  }
  /// The checksum of a block of a file, which depends on its place.
  static std::size_t sum_block(const InputFile& file, std::uint64_t at, std::vector<char>& block) {
    block.resize(std::min<std::uint64_t>(block_bytes, file.size() - at));
    file.read(at, block.data(), block.size());
    const std::uint64_t placed[] = {at, checksum(block.data(), block.size())};
    return checksum(placed, sizeof placed);
  }
};

}  // namespace

void require_same_files(Group& world, const std::function<FileLists()>& lists, bool only_sizes) {
  if (world.size() == 1) return;
  const Files files = agree(world, [&] { return Files(lists()); });
  const std::int64_t mine = files.sum();
  const std::vector<std::int64_t> all = world.gather(std::span(&mine, 1));
  if (std::ranges::count(all, mine) == world.size()) return;

  const std::string here = format("rank {} ({})", world.rank(), host_name()), there = world.broadcast(here, 0);
  constexpr const char* advice = "(all ranks must read the same files); copy them to all nodes again";
  require_same(world, files.lines, [&](const std::string& first) {
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(files.lines, first).in1 - files.lines.begin());
    const std::size_t begin = same == 0 ? 0 : first.rfind('\n', same - 1) + 1;  // of the lines that differ
    const auto i = static_cast<std::size_t>(std::ranges::count(first.substr(0, begin), '\n'));
    throw UserError(
        format("file {} of the run is {} on {}, but {} on {} {}", i + 1,
               i < files.paths.size() ? format("{} ({} bytes)", files.paths[i].string(), files.sizes[i]) : "missing", here,
               begin < first.size() ? first.substr(begin, first.find('\n', begin) - begin) : "missing", there, advice));
  });
  if (only_sizes) return;

  const std::size_t count = files.paths.size();
  std::vector<std::size_t> read = files.identities;  // 1: not the same file on all ranks
  world.broadcast(read.data(), count * sizeof read[0], 0);
  for (std::size_t i = 0; i < count; ++i) read[i] = read[i] != files.identities[i];
  world.max(read);
  // Ranks with the same copies share the reading.
  std::vector<std::int64_t> copies = all;
  std::ranges::sort(copies);
  copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
  std::vector<std::int64_t> sums(copies.size() * count);  // by copy and file
  const auto sum_of = [&](std::int64_t copy, std::size_t file) -> std::int64_t& {
    return sums[count * static_cast<std::size_t>(std::ranges::lower_bound(copies, copy) - copies.begin()) + file];
  };
  const auto readers = std::ranges::count(all, mine), me = std::count(all.begin(), all.begin() + world.rank(), mine);
  work_meanwhile(world, true, [&](const std::function<bool()>& stop) {
    with_progress("comparing the files of the nodes", [&](const auto& progress) {
      std::size_t done = 0, bytes = 0, block = 0;
      for (std::size_t i = 0; i < count; ++i) bytes += read[i] * files.sizes[i];
      std::vector<char> data;
      for (std::size_t i = 0; i < count; ++i) {
        if (!read[i]) continue;
        const InputFile file(files.paths[i]);
        std::size_t sum = 0;
        for (std::uint64_t at = 0; at < file.size() && !stop(); at += block_bytes) {
          if (static_cast<std::ptrdiff_t>(block++) % readers == me) sum += Files::sum_block(file, at, data);
          done += std::min<std::uint64_t>(block_bytes, file.size() - at);
          if (world.rank() == 0) progress(done, bytes);
        }
        sum_of(mine, i) = static_cast<std::int64_t>(sum);
      }
    });
  });
  world.sum(sums);
  agree(world, [&] {
    for (std::size_t i = 0; i < count; ++i)
      if (sum_of(mine, i) != sum_of(all.front(), i))
        throw UserError(format("{} has other contents on {} than on {} {}", files.paths[i].string(), here, there, advice));
  });
}

}  // namespace fsdp
