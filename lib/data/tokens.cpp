#include "data/tokens.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

std::string Tokens::place(std::uint64_t position) const { return format("position {} of {}", position, name()); }

void refuse_token(const Tokens& tokens, std::uint64_t position, std::uint32_t token, std::size_t vocab_size) {
  if (token == no_token)
    throw UserError(format("the number at {} is no token (it is negative, or has more than 32 bits); make the file again",
                           tokens.place(position)));
  throw UserError(format(
      "token {} at {} is outside the vocabulary of {} tokens (the file was made with another model's tokenizer); tokenize "
      "again with this model's tokenizer, or use a model with a larger vocabulary",
      token, tokens.place(position), vocab_size));
}

namespace {

/// A hash of the token at `position`: the last step of the generator splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t hash_of(std::uint64_t position, std::uint32_t token) {
  std::uint64_t x = (position + 1) * 0x9e3779b97f4a7c15 + token;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

TokenCheck check_vocabulary(const Tokens& tokens, std::size_t vocab_size, std::size_t part, std::size_t parts) {
  tokens.check(part, parts);
  const Range mine = share(tokens.size(), parts, part);
  std::vector<std::uint32_t> piece(std::min(mine.size(), std::size_t{1} << 19));
  TokenCheck check;
  // If there are very many tokens, read only some pieces, spread over all tokens. The rest is checked when training reads it.
  const std::size_t pieces_left_out = ((tokens.size() + parts - 1) / parts) >> 30, step = piece.size() * (1 + pieces_left_out);
  for (std::size_t begin = mine.begin; begin < mine.end; begin += step) {
    const auto here = std::span(piece).first(std::min(piece.size(), mine.end - begin));
    tokens.read(begin, here);
    const auto most = std::max_element(here.begin(), here.end());
    if (*most >= vocab_size) refuse_token(tokens, begin + static_cast<std::size_t>(most - here.begin()), *most, vocab_size);
    check.largest = std::max(check.largest, *most);
    for (std::size_t i = 0; i < here.size(); ++i) check.sum += hash_of(begin + i, here[i]);
  }
  if (pieces_left_out > 0) check.sum = 0;
  return check;
}

std::uint64_t sample_sum(const Tokens& tokens) {
  constexpr std::uint64_t places = 64;
  RunningSum sum;
  std::vector<std::uint32_t> piece(std::min<std::uint64_t>(tokens.size(), 64));
  for (std::uint64_t k = 0; k < places && !piece.empty(); ++k) {  // the first tokens, the last ones, and some between
    const std::uint64_t last = tokens.size() - piece.size();
    tokens.read(last / (places - 1) * k + last % (places - 1) * k / (places - 1), piece);
    sum.add(piece.data(), piece.size() * sizeof piece[0]);
  }
  return sum.value();
}

std::optional<std::string> doubt_type(const Tokens& tokens, std::size_t vocab_size) {
  const std::uint64_t largest = tokens.largest_possible();
  if (largest + 1 >= vocab_size) return std::nullopt;
  const int bits = std::bit_width(largest);
  return format(
      "{} stores tokens in {}{} bits, up to {}, and the model has {} tokens (the data may be made with another model's "
      "tokenizer); if so, tokenize again with this model's tokenizer",
      tokens.name(), bits % 8 == 0 ? "" : "signed ", (bits + 7) / 8 * 8, largest, vocab_size);
}

namespace {

class JoinedTokens : public Tokens {
 public:
  explicit JoinedTokens(std::vector<std::unique_ptr<Tokens>> parts) : parts_(std::move(parts)) {
    expect(!parts_.empty(), "nothing cannot be joined");
    for (const auto& part : parts_) ends_.push_back(size() + part->size());
  }

  std::uint64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override {
    for (std::size_t p = part_of(begin); !out.empty(); ++p) {
      const auto here = out.first(std::min<std::uint64_t>(out.size(), ends_[p] - begin));
      parts_[p]->read(begin - start_of(p), here);
      begin += here.size();
      out = out.subspan(here.size());
    }
  }
  std::string name() const override {
    return parts_.size() == 2 ? format("{} and {}", parts_[0]->name(), parts_[1]->name())
                              : format("{} and {} others", parts_[0]->name(), parts_.size() - 1);
  }
  std::string place(std::uint64_t position) const override {
    const std::size_t p = part_of(position);
    return parts_[p]->place(position - start_of(p));
  }
  std::uint64_t largest_possible() const override {
    std::uint64_t largest = parts_.front()->largest_possible();
    for (const auto& part : parts_) largest = std::min(largest, part->largest_possible());
    return largest;
  }
  bool has_documents() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->has_documents(); });
  }
  std::vector<std::uint64_t> documents() const override {
    std::vector<std::uint64_t> all;
    for (std::size_t p = 0; p < parts_.size(); ++p)
      for (const std::uint64_t start : parts_[p]->documents()) all.push_back(start_of(p) + start);
    return all;
  }
  std::unique_ptr<Tokens> mask() const override {
    std::vector<std::unique_ptr<Tokens>> masks;
    for (const auto& part : parts_)
      if (auto mask = part->mask()) masks.push_back(std::move(mask));
    if (masks.empty()) return nullptr;
    if (masks.size() < parts_.size()) throw only_some_have_masks(name(), masks.size(), parts_.size() - masks.size());
    return std::make_unique<JoinedTokens>(std::move(masks));
  }
  DataCounts counts() const override {
    DataCounts all;
    for (const auto& part : parts_) all += part->counts();
    return all;
  }
  std::string unread() const override {
    std::string first;
    std::size_t others = 0;
    for (const auto& part : parts_) {
      std::string one = part->unread();
      if (!first.empty() && !one.empty()) ++others;
      if (first.empty()) first = std::move(one);
    }
    return others == 0 ? first : format("{}; the same holds for {} more files", first, others);
  }
  void check(std::size_t part, std::size_t parts) const override {
    for (const auto& each : parts_) each->check(part, parts);
  }

 private:
  /// The part that has the token at `position`; the last part for positions after the end.
  std::size_t part_of(std::uint64_t position) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end() - 1, position);
    return static_cast<std::size_t>(end - ends_.begin());
  }
  std::uint64_t start_of(std::size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  std::vector<std::unique_ptr<Tokens>> parts_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace

UserError only_some_have_masks(const std::string& data, std::size_t with, std::size_t without) {
  return UserError(
      format("of the files {}, {} have a loss mask, and {} do not (a mask is needed for all tokens or for none); give `mask`, "
             "or leave the files of one kind out",
             data, with, without));
}

std::unique_ptr<Tokens> join(std::vector<std::unique_ptr<Tokens>> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<JoinedTokens>(std::move(parts));
}

}  // namespace fsdp
