// Finds rows that are the same, or nearly so. Rows that resemble each other are found by MinHash (Broder 1997, "On the
// Resemblance and Containment of Documents") of their runs of five tokens, with one permutation (Li, Owen, Zhang 2012, "One
// Permutation Hashing"), and bands of equal values (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", section 3.4): a
// pair is found with probability 0.92 if their Jaccard index (runs of both over runs of any) is 0.9, 0.15 if it is 0.7, and
// 0.006 if it is 0.5.
//
// Hashes go to temporary files, 168 bytes for each row and 24 for each find, of which a 64th is in memory at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "files/checksum.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// Entries, which are read in the order of their keys once all were added.
class SortedEntries {
 public:
  struct Entry {
    std::uint64_t key, row, more;
    auto operator<=>(const Entry&) const = default;
  };
  /// Files are made in `folder`. They have no names there, so nothing is left of them however the program ends.
  explicit SortedEntries(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// Throws RunError if a file cannot be written.
  void add(const Entry& entry);
  /// Calls `take` for each group of entries with the same key, sorted by row.
  void each_group(const std::function<void(std::span<const Entry>)>& take);

 private:
  struct Bucket {
    std::vector<Entry> entries = {};  // those that are not in the file yet
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{nullptr, std::fclose};
    std::size_t in_file = 0;
  };
  void write(Bucket& bucket) const;
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path folder_;
  std::array<Bucket, 64> buckets_ = {};  // by the first bits of the key
};

/// Two rows that are the same, or resemble each other, by the numbers that the caller gave them. `row` is not the smaller one.
struct Duplicate {
  std::uint64_t row, earlier;
  bool is_same;
};

class DuplicateFinder {
 public:
  /// Keeps the hashes of rows in `folder`.
  explicit DuplicateFinder(const std::filesystem::path& folder);
  /// Adds tokens to the current row.
  void add(std::span<const TokenId> ids);
  /// Ends a row, and gives it a number. A row of one token or none is not compared.
  void end_row(std::uint64_t row);
  /// Calls `take` once for each row that is the same as one of a smaller number, and once for each different content that
  /// resembles that of a row of a smaller number.
  void find(const std::function<void(const Duplicate&)>& take);

 private:
  static constexpr std::size_t run = 5, bands = 6, bins = 60;
  void add_run();
  void add_row(std::uint64_t row);

  SortedEntries same_, bands_, near_;
  RunningSum sum_;
  std::array<TokenId, run> last_{};  // the last tokens of the current row
  std::size_t tokens_ = 0;
  std::array<std::uint64_t, bins> least_;  // the least hash in each bin
  /// How often a run occurred so far, by a part of its hash. A run that occurred more often than in one row of 64, and more
  /// than four times, comes from a template or a system prompt and is not compared.
  std::vector<std::uint32_t> times_;
  std::uint64_t rows_ = 0;
};

}  // namespace fsdp
