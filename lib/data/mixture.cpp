#include "data/mixture.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"

namespace fsdp {

namespace {

__extension__ using Wide = unsigned __int128;

/// Returns how many of the first `r` sequences belong to an ingredient with this share, rounded in exact arithmetic. If r grows
/// by 1, the result grows by 0 or 1.
std::uint64_t share_of(std::uint64_t r, std::uint64_t share) {
  return static_cast<std::uint64_t>((Wide{r} * share + (std::uint64_t{1} << 31)) >> 32);
}

}  // namespace

UserError has_no_sequence(const std::string& tokens, std::uint64_t size, std::size_t T) {
  return UserError(
      format("{} has no whole sequence ({} tokens, a sequence of {} needs {}); use more text or a smaller `sequence length`",
             tokens, size, T, T + 1));
}

Mixture::Mixture(std::vector<Ingredient> ingredients) : ingredients_(std::move(ingredients)) {
  expect(!ingredients_.empty(), "a mixture is of something");
  double left = 0;
  for (const Ingredient& each : ingredients_) {
    expect(each.weight > 0 && each.samples.T() == T(), "data sets of a mixture have weights and one length of sequences");
    const Tokens& tokens = each.samples.tokens();
    if (each.samples.cut().mode == BreakMode::none && !each.samples.mask() && tokens.size() <= T())
      throw has_no_sequence(tokens.name(), tokens.size(), T());
    if (each.samples.count() == 0)
      throw UserError(format("{} has nothing to predict ({} tokens, in documents of at most one token); use more text",
                             tokens.name(), tokens.size()));
    left += each.weight;
  }
  for (std::size_t i = 0; i + 1 < ingredients_.size(); ++i) {
    const double part = std::round(ingredients_[i].weight / left * 0x1p32);
    shares_.push_back(static_cast<std::uint64_t>(std::clamp(part, 1.0, 0x1p32 - 1)));
    left -= ingredients_[i].weight;
  }
}

std::uint64_t Mixture::sequences() const {
  std::uint64_t count = 0;
  for (const Ingredient& each : ingredients_) count += each.samples.count();
  return count;
}

std::uint64_t Mixture::tokens() const {
  std::uint64_t count = 0;
  for (const Ingredient& each : ingredients_) count += each.samples.tokens().size();
  return count;
}

/// A checksum over the values one(samples) of all data sets; 0 if all these values are 0.
template <class Sum>
std::uint64_t Mixture::sum_of(const Sum& one) const {
  RunningSum sum;
  bool any = false;
  for (const Ingredient& each : ingredients_) {
    const std::uint64_t value = one(each.samples);
    any |= value != 0;
    sum.add(&value, sizeof value);
  }
  return any ? sum.value() | 1 : 0;
}

std::uint64_t Mixture::sample_sum() const {
  return sum_of([](const Samples& samples) { return fsdp::sample_sum(samples.tokens()); });
}
std::uint64_t Mixture::documents_sum() const {
  return sum_of([](const Samples& samples) { return samples.documents_sum(); });
}
std::uint64_t Mixture::mask_sum() const {
  return sum_of([](const Samples& samples) { return samples.mask_sum(); });
}

Mixture::Source Mixture::source_of(std::uint64_t s) const {
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const std::uint64_t before = share_of(s, shares_[i]);
    if (share_of(s + 1, shares_[i]) > before) return {i, before};
    s -= before;
  }
  return {shares_.size(), s};
}

std::string Mixture::description() const {
  if (ingredients_.size() == 1) return ingredients_.front().samples.tokens().name();
  double all = 0;
  for (const Ingredient& each : ingredients_) all += each.weight;
  std::string text;
  for (const Ingredient& each : ingredients_)
    text += format("{}{} {:.3g} %", text.empty() ? "" : ", ", each.samples.tokens().name(), 100 * each.weight / all);
  return text;
}

std::string Mixture::order() const {
  std::string text;
  if (ingredients_.size() > 1)
    for (std::size_t i = 0; i < ingredients_.size(); ++i)
      text += format("{} tokens{}, ", ingredients_[i].samples.tokens().size(),
                     i < shares_.size() ? format(" {:.10f}", static_cast<double>(shares_[i]) * 0x1p-32) : "");
  const Cut& cut = ingredients_.front().samples.cut();
  if (cut.mode != BreakMode::none) text += cut.mode == BreakMode::eos ? "a document each" : "whole documents";
  if (cut.mode != BreakMode::none && cut.end_of_document) text += format(", ended by {}", *cut.end_of_document);
  if (cut.long_rows != LongRows::split)
    text += cut.long_rows == LongRows::drop ? ", long ones dropped" : ", long ones truncated";
  if (cut.packing == Packing::best_fit) text += ", best fit";
  for (const Ingredient& each : ingredients_)  // sequences without targets that count are left out
    if (each.samples.mask() || each.samples.leaves_out())
      text += format("{}{} targets count", text.empty() ? "" : ", ", each.samples.targets());
  return text;
}

}  // namespace fsdp
