#include "generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"

namespace fsdp {

Sampler::Sampler(const SamplingOptions& options, std::size_t vocab_size) : options_(options) {
  heap_.reserve(vocab_size);
  drawn_.reserve(vocab_size);
  turn_of_.assign(vocab_size, 0);
}

/// Changes the logit of each token in `seen` once, even if the token occurs several times.
void Sampler::punish_repetition(std::span<float> logits, std::span<const TokenId> seen) {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  if (penalty == 1) return;
  ++turn_;
  for (const TokenId token : seen) {
    const auto t = static_cast<std::size_t>(token);
    if (t >= logits.size() || turn_of_[t] == turn_) continue;
    turn_of_[t] = turn_;
    logits[t] = logits[t] < 0 ? logits[t] * penalty : logits[t] / penalty;
  }
}

TokenId Sampler::draw(std::span<float> logits, std::span<const TokenId> seen, double uniform) {
  expect(!logits.empty() && logits.size() <= turn_of_.size(), "a sampler draws from its vocabulary");
  punish_repetition(logits, seen);
  const auto likeliest = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options_.temperature == 0) return static_cast<TokenId>(likeliest);
  const auto weight = [&](std::size_t token) {
    return std::exp((static_cast<double>(logits[token]) - logits[likeliest]) / options_.temperature);
  };

  heap_.resize(logits.size());
  std::iota(heap_.begin(), heap_.end(), std::size_t{0});
  const auto is_less_likely = [&](std::size_t a, std::size_t b) {
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
  };
  std::make_heap(heap_.begin(), heap_.end(), is_less_likely);
  drawn_.clear();
  const auto take = [&] {
    std::pop_heap(heap_.begin(), heap_.end() - static_cast<std::ptrdiff_t>(drawn_.size()), is_less_likely);
    drawn_.push_back(weight(heap_[heap_.size() - 1 - drawn_.size()]));
    return drawn_.back();
  };
  const auto token_of = [&](std::size_t i) { return static_cast<TokenId>(heap_[heap_.size() - 1 - i]); };

  const std::size_t most = options_.top_k > 0 ? std::min(options_.top_k, logits.size()) : logits.size();
  double all = 0;
  if (most < logits.size()) {
    while (drawn_.size() < most) all += take();
  } else {
    for (std::size_t token = 0; token < logits.size(); ++token) all += weight(token);
  }
  double kept = all;
  std::size_t count = most;  // the number of tokens that top_k and top_p keep
  if (options_.top_p < 1) {
    kept = 0, count = 0;
    while (count < most && (count == 0 || kept < options_.top_p * all)) {
      if (count == drawn_.size()) take();
      kept += drawn_[count++];
    }
  }
  double left = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    if (i == drawn_.size()) take();
    if ((left -= drawn_[i]) < 0) return token_of(i);
  }
  return token_of(count - 1);
}

}  // namespace fsdp
