#include "fsdp-data/duplicates.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::uint64_t no_hash = ~std::uint64_t{0};

}  // namespace

void SortedEntries::add(const Entry& entry) {
  constexpr std::size_t most = 2048;  // entries of a bucket in memory
  Bucket& bucket = buckets_[entry.key >> 58];
  bucket.entries.push_back(entry);
  if (bucket.entries.size() == most) write(bucket);
}

void SortedEntries::write(Bucket& bucket) const {
  if (!bucket.file) {
    std::string name = (folder_ / "fsdp-data-XXXXXX").string();
    const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor < 0) fail("created");
    ::unlink(name.c_str());
    bucket.file.reset(::fdopen(descriptor, "w+b"));
  }
  if (!bucket.file ||
      std::fwrite(bucket.entries.data(), sizeof(Entry), bucket.entries.size(), bucket.file.get()) != bucket.entries.size() ||
      std::fflush(bucket.file.get()) != 0)
    fail("written");
  bucket.in_file += bucket.entries.size();
  bucket.entries.clear();
}

void SortedEntries::fail(const char* what) const {
  throw RunError(
      format("a temporary file in '{}' could not be {} ({}; hashes of rows, 168 bytes for each, show which are duplicates); "
             "free some space, or name another folder by TMPDIR",
             folder_.string(), what, std::generic_category().message(errno)));
}

void SortedEntries::each_group(const std::function<void(std::span<const Entry>)>& take) {
  for (Bucket& bucket : buckets_) {
    std::vector<Entry> entries = std::move(bucket.entries);
    const std::size_t in_memory = entries.size();
    entries.resize(in_memory + bucket.in_file);
    if (bucket.in_file > 0) {
      std::rewind(bucket.file.get());
      if (std::fread(entries.data() + in_memory, sizeof(Entry), bucket.in_file, bucket.file.get()) != bucket.in_file)
        fail("read");
    }
    bucket.file.reset();
    std::sort(entries.begin(), entries.end());
    for (auto first = entries.begin(); first != entries.end();) {
      const auto last = std::find_if(first, entries.end(), [&](const Entry& each) { return each.key != first->key; });
      take({first, last});
      first = last;
    }
  }
}

DuplicateFinder::DuplicateFinder(const std::filesystem::path& folder)
    : same_(folder), bands_(folder), near_(folder), times_(std::size_t{1} << 22) {
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
