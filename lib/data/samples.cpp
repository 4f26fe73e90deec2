#include "data/samples.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// Where documents begin that each end with a token.
std::vector<std::uint64_t> documents_ended_by(const Tokens& tokens, std::size_t end) {
  std::vector<std::uint64_t> starts;
  std::vector<std::uint32_t> piece(std::size_t{1} << 19);
  bool begins = true;
  for (std::uint64_t at = 0; at < tokens.size();) {
    const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), tokens.size() - at));
    tokens.read(at, here);
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (begins) starts.push_back(at + i);
      begins = here[i] == end;
    }
    at += here.size();
  }
  if (starts.size() == 1 && !begins)
    throw UserError(
        format("{} has no token {} (documents are to end with it); name the token that ends them by `end of document`",
               tokens.name(), end));
  return starts;
}

}  // namespace

Samples::Samples(std::unique_ptr<const Tokens> tokens, const Cut& cut) : tokens_(std::move(tokens)), cut_(cut) {
  expect(cut.T > 0, "a sequence has tokens");
  if (cut.mode == BreakMode::none) {
    targets_ = tokens_->size() == 0 ? 0 : tokens_->size() - 1;
    return;
  }
  if (cut.end_of_document) {
    find_places(documents_ended_by(*tokens_, *cut.end_of_document));
  } else if (tokens_->has_documents()) {
    find_places(tokens_->documents());
  } else {
    throw UserError(
        format("{} does not say where documents begin (an index of Megatron or fairseq does, and \"document_lengths\" of "
               "HDF5); name the token that ends "
               "them by `end of document`, or leave out `break mode`",
               tokens_->name()));
  }
}

void Samples::find_places(const std::vector<std::uint64_t>& documents) {
  const std::uint64_t T = cut_.T;
  std::uint64_t begin = 0, end = 0;  // of documents that one sequence is to have
  const auto close = [&] {
    for (; begin + 1 < end; begin += T) places_.push_back({begin, std::min(T, end - begin - 1)});
    begin = end;
  };
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::uint64_t next = d + 1 < documents.size() ? documents[d + 1] : tokens_->size();
    const bool joins = cut_.mode == BreakMode::complete && next - begin <= T + 1;
    if (!joins) close();
    end = next;
  }
  close();
  for (const Place& place : places_) targets_ += place.targets;
}

std::uint64_t Samples::count() const {
  return cut_.mode == BreakMode::none ? (targets_ + cut_.T - 1) / cut_.T : places_.size();
}

Samples::Place Samples::place_of(std::uint64_t k) const {
  if (k >= count()) return {tokens_->size(), 0};
  if (cut_.mode != BreakMode::none) return places_[k];
  const std::uint64_t begin = k * cut_.T;
  return {begin, std::min<std::uint64_t>(cut_.T, targets_ - begin)};
}

void Samples::read(std::uint64_t k, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const {
  const Place place = place_of(k);
  const std::size_t present = place.targets == 0 ? 0 : place.targets + 1;
  std::array<std::uint32_t, 4096> piece;
  for (std::size_t first = 0; first < present; first += piece.size()) {
    const auto tokens = std::span(piece).first(std::min(piece.size(), present - first));
    tokens_->read(place.begin + first, tokens);
    for (std::size_t i = 0, t = first; i < tokens.size(); ++i, ++t) {
      if (tokens[i] >= vocab_size) [[unlikely]]
        refuse_token(*tokens_, place.begin + t, tokens[i], vocab_size);
      const auto token = static_cast<std::int32_t>(tokens[i]);
      if (t < place.targets) inputs[t] = token;
      if (t > 0) targets[t - 1] = token;
    }
  }
  std::fill(inputs + place.targets, inputs + cut_.T, 0);
  std::fill(targets + place.targets, targets + cut_.T, -1);
}

}  // namespace fsdp
