#include "fsdp-data/duplicates.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

constexpr std::uint64_t no_hash = ~std::uint64_t{0};

}  // namespace

SortedEntries::SortedEntries(std::filesystem::path path) : path_(std::move(path)) {}

void SortedEntries::add(const Entry& entry) {
  constexpr std::size_t most = 2048;  // entries of a bucket in memory
  std::vector<Entry>& bucket = buckets_[entry.key >> 58];
  bucket.push_back(entry);
  if (bucket.size() == most) write(entry.key >> 58);
}

void SortedEntries::write(std::size_t bucket) {
  std::vector<Entry>& entries = buckets_[bucket];
  const std::string name = format("{}-{}", path_.string(), bucket);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name.c_str(), "ab"), std::fclose);
  if (!file || std::fwrite(entries.data(), sizeof(Entry), entries.size(), file.get()) != entries.size() ||
      std::fflush(file.get()) != 0)
    throw RunError(format(
        "'{}' could not be written ({}; hashes of rows, 168 bytes for each, show which are duplicates); free some space, "
        "or name another folder by TMPDIR",
        name, std::generic_category().message(errno)));
  entries.clear();
}

void SortedEntries::each_group(const std::function<void(std::span<const Entry>)>& take) {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    std::vector<Entry>& entries = buckets_[bucket];
    const std::filesystem::path file = format("{}-{}", path_.string(), bucket);
    if (const auto bytes = size_of_file(file)) {
      const std::size_t in_memory = entries.size();
      entries.resize(in_memory + *bytes / sizeof(Entry));
      InputFile(file).read(0, entries.data() + in_memory, *bytes);
    }
    std::sort(entries.begin(), entries.end());
    for (auto first = entries.begin(); first != entries.end();) {
      const auto last = std::find_if(first, entries.end(), [&](const Entry& each) { return each.key != first->key; });
      take({first, last});
      first = last;
    }
    entries = {};
  }
}

DuplicateFinder::DuplicateFinder(const std::filesystem::path& folder)
    : same_(folder / "same"), bands_(folder / "bands"), near_(folder / "near"), times_(std::size_t{1} << 22) {
  least_.fill(no_hash);
}

void DuplicateFinder::add(std::span<const TokenId> ids) {
  sum_.add(ids.data(), ids.size_bytes());
  for (const TokenId id : ids) {
    std::shift_left(last_.begin(), last_.end(), 1);
    last_.back() = id;
    if (++tokens_ >= run) add_run();
  }
}

void DuplicateFinder::add_run() {
  const std::uint64_t hash = checksum(last_.data(), sizeof last_);
  const std::uint32_t times = ++times_[hash % times_.size()];
  if (times > 4 && times > rows_ / 64) return;
  std::uint64_t& least = least_[(hash >> 32) % bins];
  least = std::min(least, hash);
}

void DuplicateFinder::end_row(std::uint64_t row) {
  if (tokens_ > 1) add_row(row);
  sum_.reset();
  tokens_ = 0;
  least_.fill(no_hash);
  ++rows_;
}

void DuplicateFinder::add_row(std::uint64_t row) {
  const std::uint64_t sum = sum_.value();
  same_.add({sum, row, 0});
  if (std::ranges::count(least_, no_hash) == bins) return;  // no run is compared
  constexpr std::size_t size = bins / bands;
  for (std::size_t i = 0; i < bands; ++i) {
    std::array<std::uint64_t, size + 1> band{};
    for (std::size_t j = 0; j < size; ++j) {
      std::size_t from = i * size + j;  // an empty bin gets the value of the next one that is not empty
      while (least_[from % bins] == no_hash) ++from;
      band[j] = least_[from % bins] + from;
    }
    band[size] = i;
    bands_.add({checksum(band.data(), sizeof band), row, sum});
  }
}

void DuplicateFinder::find(const std::function<void(const Duplicate&)>& take) {
  using Entries = std::span<const SortedEntries::Entry>;
  same_.each_group([&](Entries group) {
    for (const auto& each : group.subspan(1)) take({each.row, group.front().row, true});
  });
  bands_.each_group([&](Entries group) {
    for (const auto& each : group)
      if (each.more != group.front().more) near_.add({each.more, each.row, group.front().row});
  });
  near_.each_group([&](Entries group) { take({group.front().row, group.front().more, false}); });
}

}  // namespace fsdp
