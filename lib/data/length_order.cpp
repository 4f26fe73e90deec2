#include "data/length_order.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "data/permutation.hpp"

namespace fsdp {

namespace {
constexpr std::uint64_t most_in_window = 4096, least_in_part = 32, parts_of_window = 8;
constexpr std::uint64_t no_window = std::numeric_limits<std::uint64_t>::max();
}  // namespace

LengthOrder::LengthOrder(std::uint64_t per_pass, std::uint64_t seed, std::function<std::uint32_t(std::uint64_t)> columns)
    : per_pass_(per_pass),
      size_(std::min(most_in_window, (per_pass + 3) / 4)),
      seed_(seed),
      columns_(std::move(columns)),
      last_{no_window, {}},
      before_{no_window, {}} {}

std::uint64_t LengthOrder::at(std::uint64_t s) const {
  const std::uint64_t pass = s / per_pass_, in_pass = s % per_pass_, in_window = in_pass % size_;
  const std::uint64_t number = pass * ((per_pass_ + size_ - 1) / size_) + in_pass / size_, begin = s - in_window;
  const std::lock_guard lock(mutex_);
  if (last_.number != number) {
    std::swap(last_, before_);
    if (last_.number != number) last_.number = number, fill(last_, begin);
  }
  return begin + last_.order[in_window];
}

void LengthOrder::fill(Window& window, std::uint64_t begin) const {
  const std::uint64_t size = std::min(size_, per_pass_ - begin % per_pass_);
  std::vector<std::uint32_t> lengths(size), sorted(size);
  for (std::uint64_t i = 0; i < size; ++i) lengths[i] = columns_(begin + i);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) { return lengths[a] > lengths[b]; });
  const std::uint64_t part = std::max(least_in_part, size_ / parts_of_window), parts = (size + part - 1) / part;
  window.order.clear();
  for (std::uint64_t i = 0; i < parts; ++i) {
    const std::uint64_t first = part * permuted(i, parts, seed_, window.number);
    window.order.insert(window.order.end(), sorted.begin() + static_cast<std::ptrdiff_t>(first),
                        sorted.begin() + static_cast<std::ptrdiff_t>(std::min(size, first + part)));
  }
}

}  // namespace fsdp
