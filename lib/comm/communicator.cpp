#include "comm/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/narrow.hpp"

namespace fsdp {

void Collectives::all_reduce(Stream& stream, void* data, std::size_t count, DType type, DType reduce_dtype) {
  switch (type) {
    case DType::f32:
      return all_reduce(stream, static_cast<float*>(data), count, reduce_dtype);
    case DType::f64:
      return all_reduce(stream, static_cast<double*>(data), count);
    case DType::i64:
      return all_reduce(stream, static_cast<std::int64_t*>(data), count);
    case DType::bf16:
    case DType::f16:
      break;
  }
  fail_expectation("all-reduces of 16-bit numbers use fp32 memory", std::source_location::current());
}

void Group::max(std::span<std::size_t> values) {
  std::vector<std::int64_t> mine(values.size());
  std::transform(values.begin(), values.end(), mine.begin(), narrow<std::int64_t, std::size_t>);
  const std::vector<std::int64_t> all = gather(mine);
  for (std::size_t k = 0; k < all.size(); ++k) {
    std::size_t& most = values[k % values.size()];
    most = std::max(most, static_cast<std::size_t>(all[k]));
  }
}

std::size_t Group::min(std::size_t mine) {
  constexpr std::size_t most = std::numeric_limits<std::int64_t>::max();
  const auto value = static_cast<std::int64_t>(std::min(mine, most));
  return static_cast<std::size_t>(std::ranges::min(gather(std::span(&value, 1))));
}

namespace {

/// Gathers by a sum, which every group has: each rank writes its numbers to its own part of `all`, and zeros to the other
/// parts.
template <class T>
std::vector<T> gather_numbers(Group& group, std::span<const T> mine) {
  std::vector<T> all(static_cast<std::size_t>(group.size()) * mine.size());
  std::copy(mine.begin(), mine.end(), all.data() + static_cast<std::size_t>(group.rank()) * mine.size());
  group.sum(std::span(all));
  return all;
}

}  // namespace

std::vector<std::int64_t> Group::gather(std::span<const std::int64_t> mine) { return gather_numbers(*this, mine); }

std::vector<double> Group::gather(double mine) { return gather_numbers(*this, std::span<const double>(&mine, 1)); }

std::vector<std::string> Group::gather(const std::string& mine) {
  const std::size_t words = max(mine.size()) / sizeof(std::int64_t) + 1;  // room for a final NUL
  std::vector<std::int64_t> text(words);
  std::memcpy(text.data(), mine.data(), mine.size());
  const std::vector<std::int64_t> all = gather(text);
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += words) texts.emplace_back(reinterpret_cast<const char*>(&all[at]));
  return texts;
}

std::string Group::broadcast(std::string text, int root) {
  std::uint64_t length = text.size();
  broadcast(&length, sizeof length, root);
  text.resize(length);
  broadcast(text.data(), text.size(), root);
  return text;
}

}  // namespace fsdp
