// Random changes of a file's bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::fuzz {

/// SplitMix64 (Steele, Lea and Flood 2014): any state is valid.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Returns a number below `n`, which must not be 0.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

inline constexpr std::size_t longest_input = std::size_t{4} << 20;

/// Returns a file of the corpus, changed in one or a few places. It is not longer than longest_input.
std::string mutant(std::span<const std::string> corpus, bool is_text, Random& random);

}  // namespace fsdp::fuzz
