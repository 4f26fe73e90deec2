#include "data/samples.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"

namespace fsdp {

namespace {

/// The beginnings of documents, if each document ends with the token `end`.
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
  if (starts.size() == 1 && !begins) throw has_no_end(tokens.name(), end);
  return starts;
}

}  // namespace

void require_documents(const Tokens& tokens, const Cut& cut) {
  if (needs_documents(cut) && !tokens.has_documents())
    throw UserError(
        format("{} does not store where documents begin (an index of Megatron or fairseq does, and \"document_lengths\" of "
               "HDF5); name the token that ends them by `end of document`, or leave out {}",
               tokens.name(), cut.mode != BreakMode::none ? "`break mode`" : "`attention within documents`"));
}

void require_same_size(const Tokens& tokens, const Tokens& mask) {
  if (mask.size() != tokens.size())
    throw UserError(
        format("{} has {} numbers, and {} has {} tokens (a mask has one number for each token); give the mask that was made "
               "with these tokens",
               mask.name(), mask.size(), tokens.name(), tokens.size()));
}

UserError is_no_mask(const Tokens& mask, std::uint64_t at, std::uint32_t number) {
  return UserError(format("{} is {} (a mask has 1 for tokens that count in the loss, and 0 for others); give another mask",
                          mask.place(at), number == no_token ? "no valid number" : std::to_string(number)));
}

UserError has_no_end(const std::string& tokens, std::size_t end_of_document) {
  return UserError(
      format("{} has no token {} (documents should end with it); name the token that ends them by `end of document`", tokens,
             end_of_document));
}

Samples::Samples(std::unique_ptr<const Tokens> tokens, const Cut& cut, std::unique_ptr<const Tokens> mask)
    : tokens_(std::move(tokens)), mask_(mask ? std::move(mask) : tokens_->mask()), cut_(cut) {
  expect(cut.T > 0 && cut.T < std::numeric_limits<std::uint32_t>::max(), "a sequence has tokens");
  const bool by_documents = cut.mode != BreakMode::none;
  expect(!is_packed() || (cut.mode == BreakMode::complete && cut.positions), "packed documents do not attend to each other");
  expect(cut.long_rows == LongRows::split || by_documents, "only documents are cut or left out");
  require_documents(*tokens_, cut);
  if (by_documents || cut.positions)
    documents_ = cut.end_of_document ? documents_ended_by(*tokens_, *cut.end_of_document) : tokens_->documents();
  document_count_ = documents_.size();
  if (cut.end_of_document && document_count_ > 0)
    if (const auto stored = tokens_->documents(); stored.size() > 1 && stored != documents_)
      doubt_ = format(
          "{} stores where {} documents begin, but token {} ends {}, and the latter are used; to use the stored ones, do not "
          "name a token that ends documents",
          tokens_->name(), stored.size(), *cut.end_of_document, document_count_);
  if (!documents_.empty()) documents_sum_ = checksum(documents_.data(), 8 * documents_.size()) | 1;
  if (mask_) require_same_size(*tokens_, *mask_);
  targets_ = tokens_->size() == 0 ? 0 : tokens_->size() - 1;
  if (by_documents)
    find_places_by_documents();
  else if (has_places())
    for (std::uint64_t begin = 0; begin < targets_; begin += cut_.T)
      places_.push_back({begin, static_cast<std::uint32_t>(std::min<std::uint64_t>(cut_.T, targets_ - begin)), 0, 0});
  if (mask_ || cut.positions) count_targets();
  count_rows();
  if (is_packed()) pack();
  count_sequences();
  if (!cut.positions || cut.end_of_document) documents_ = {};
}

/// If documents are packed, each part of a document is a place of its own at first.
void Samples::find_places_by_documents() {
  const std::uint64_t T = cut_.T;
  std::uint64_t begin = 0, end = 0;  // tokens [begin, end) are the documents of the next sequence
  const auto close = [&] {
    const bool is_long = end - begin > T + 1, truncates = cut_.long_rows == LongRows::truncate;
    if (is_long && cut_.long_rows != LongRows::split) {
      const std::uint64_t used = truncates ? begin + T + 1 : begin;
      ++(truncates ? counts_.truncated_rows : counts_.dropped_rows);
      counts_.lost_targets += counted_between(std::max(used, begin + 1), end);
      end = used;
    }
    for (; begin + 1 < end; begin += T) {
      const auto targets = static_cast<std::uint32_t>(std::min(T, end - begin - 1));
      places_.push_back({begin, targets, targets, targets});
    }
  };
  for (std::size_t d = 0; d < documents_.size(); ++d) {
    const std::uint64_t next = d + 1 < documents_.size() ? documents_[d + 1] : tokens_->size();
    const bool joins = cut_.mode == BreakMode::complete && !is_packed() && next - begin <= T + 1;
    if (!joins) close(), begin = documents_[d];
    end = next;
  }
  close();
  targets_ = 0;
  for (const Place& place : places_) targets_ += place.targets;
  if (places_.empty() && counts_.dropped_rows > 0)
    throw UserError(
        format("{} has no document that fits a sequence (all {} have more than {} tokens, and `long rows` drops them); give a "
               "larger `sequence length`, or truncate",
               tokens_->name(), counts_.dropped_rows, T + 1));
}

/// Finds, for each sequence, how many of its targets count in the loss. Removes sequences in which none counts.
void Samples::count_targets() {
  for (Place& place : places_) place.counted = place.columns = 0;
  std::vector<std::uint32_t> piece(std::min<std::uint64_t>(tokens_->size(), std::uint64_t{1} << 19));
  RunningSum sum;
  auto place = places_.begin();
  for (std::uint64_t at = 0; at < tokens_->size(); at += piece.size()) {
    const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), tokens_->size() - at));
    read_counts(at, here);
    sum.add(here.data(), here.size_bytes());
    for (std::size_t i = 0; i < here.size(); ++i) {
      while (place != places_.end() && at + i > place->begin + place->targets) ++place;
      if (place == places_.end() || at + i <= place->begin || here[i] == 0) continue;
      ++place->counted;
      place->columns = static_cast<std::uint32_t>(at + i - place->begin);
    }
  }
  if (mask_) mask_sum_ = sum.value() | 1;
  leaves_out_ = std::erase_if(places_, [](const Place& each) { return each.counted == 0; }) > 0;
  targets_ = 0;
  for (const Place& each : places_) targets_ += each.counted;
  if (mask_ && places_.empty())
    throw UserError(
        format("{} lets no token count in the loss (it is 0 for every target); give another mask, or none", mask_->name()));
}

/// Counts rows, and the targets that are predicted without the beginning of their row.
void Samples::count_rows() {
  counts_ += tokens_->counts();
  counts_.tokens = tokens_->size(), counts_.targets = targets_;
  const std::vector<std::uint64_t> rows =
      documents_.empty() && mask_ && tokens_->has_documents() ? tokens_->documents() : documents_;
  if (counts_.rows == 0) counts_.rows = rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t end = i + 1 < rows.size() ? rows[i + 1] : tokens_->size(), length = end - rows[i];
    counts_.longest_row = std::max(counts_.longest_row, length);
    const std::uint64_t next_sequence = cut_.mode == BreakMode::none ? (rows[i] / cut_.T + 1) * cut_.T : rows[i] + cut_.T;
    counts_.cut_rows += next_sequence + 1 < end && cut_.long_rows == LongRows::split;
  }
  std::vector<std::uint32_t> counted(std::min<std::uint64_t>(cut_.T, tokens_->size()));
  for (const Place& place : places_) {
    const auto next = std::lower_bound(rows.begin(), rows.end(), place.begin);
    if (rows.empty() || (next != rows.end() && *next == place.begin)) continue;
    const std::uint64_t end = std::min(next == rows.end() ? tokens_->size() : *next, place.begin + place.targets + 1);
    const auto here = std::span(counted).first(end - place.begin - 1);
    read_counts(place.begin + 1, here);
    counts_.late_targets += std::accumulate(here.begin(), here.end(), std::uint64_t{0});
  }
}

void Samples::count_sequences() {
  counts_.sequences = count(), counts_.positions = counts_.sequences * cut_.T;
  counts_.padding = counts_.positions - (has_places() ? 0 : targets_);
  for (const Place& place : places_) counts_.padding -= place.targets;
}

/// Replaces the places, which are parts of documents, by packed sequences of them.
void Samples::pack() {
  const std::vector<Place> parts = std::move(places_);
  places_.clear();
  std::vector<Piece> window;
  for (auto first = parts.begin(); first != parts.end();) {
    const auto last = first + static_cast<std::ptrdiff_t>(
                                  std::min<std::size_t>(packing_window, static_cast<std::size_t>(parts.end() - first)));
    window.clear();
    for (auto part = first; part != last; ++part) window.push_back({part->begin, part->columns, 0});
    for (const std::vector<Piece>& sequence : best_fit(window, cut_.T)) {
      Place place{sequence.front().begin, 0, 0, 0};
      first_piece_.push_back(pieces_.size());
      for (const Piece& piece : sequence) {
        const auto part = std::lower_bound(first, last, piece.begin,
                                           [](const Place& each, std::uint64_t begin) { return each.begin < begin; });
        place.targets += piece.targets, place.counted += part->counted;
        pieces_.push_back(piece);
      }
      place.columns = place.targets;
      places_.push_back(place);
    }
    first = last;
  }
  first_piece_.push_back(pieces_.size());
}

/// The number of tokens in [begin, end) that count as targets.
std::uint64_t Samples::counted_between(std::uint64_t begin, std::uint64_t end) const {
  std::array<std::uint32_t, 4096> piece;
  std::uint64_t counted = 0;
  for (; begin < end; begin = std::min(end, begin + piece.size())) {
    const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), end - begin));
    read_counts(begin, here);
    counted += std::accumulate(here.begin(), here.end(), std::uint64_t{0});
  }
  return counted;
}

void Samples::read_counts(std::uint64_t begin, std::span<std::uint32_t> out) const {
  std::fill(out.begin(), out.end(), 1);
  if (cut_.positions && !documents_.empty()) {
    auto first = std::lower_bound(documents_.begin(), documents_.end(), begin);
    for (; first != documents_.end() && *first < begin + out.size(); ++first) out[*first - begin] = 0;
  } else if (cut_.positions) {
    const auto after_another = out.subspan(begin == 0 && !out.empty() ? 1 : 0);
    tokens_->read(begin + out.size() - after_another.size() - 1, after_another);
    for (std::uint32_t& token : after_another) token = token == *cut_.end_of_document ? 0 : 1;
  }
  std::array<std::uint32_t, 4096> piece;
  for (std::size_t done = 0; mask_ && done < out.size(); done += piece.size()) {
    const auto mask = std::span(piece).first(std::min(piece.size(), out.size() - done));
    mask_->read(begin + done, mask);
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] > 1) throw is_no_mask(*mask_, begin + done + i, mask[i]);
      out[done + i] &= mask[i];
    }
  }
}

std::uint64_t Samples::count() const { return has_places() ? places_.size() : (targets_ + cut_.T - 1) / cut_.T; }

Samples::Place Samples::place_of(std::uint64_t k) const {
  if (k >= count()) return {tokens_->size(), 0, 0, 0};
  if (has_places()) return places_[k];
  const std::uint64_t begin = k * cut_.T;
  const auto targets = static_cast<std::uint32_t>(std::min<std::uint64_t>(cut_.T, targets_ - begin));
  return {begin, targets, targets, targets};
}

/// Sets the position of each input in its document. After the end of the sequence each input is a document of its own.
void Samples::find_positions(const Place& place, const std::int32_t* inputs, std::int32_t* positions) const {
  const auto ends = [&](std::int32_t token) { return static_cast<std::size_t>(token) == *cut_.end_of_document; };
  auto next = std::upper_bound(documents_.begin(), documents_.end(), place.begin);  // the next document in the sequence
  for (std::size_t t = 0; t < cut_.T; ++t) {
    bool begins = t == 0 || t >= place.targets || (cut_.end_of_document && ends(inputs[t - 1]));
    for (; next != documents_.end() && *next == place.begin + t; ++next) begins = true;
    positions[t] = begins ? 0 : positions[t - 1] + 1;
  }
}

void Samples::read(std::uint64_t k, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets,
                   std::int32_t* positions) const {
  const Place place = place_of(k);
  std::fill(inputs + place.targets, inputs + cut_.T, 0);
  std::fill(targets + place.targets, targets + cut_.T, -1);
  if (!is_packed() || k >= count()) {
    read_piece({place.begin, place.targets, 0}, vocab_size, inputs, targets);
    if (cut_.positions) find_positions(place, inputs, positions);
    return;
  }
  std::fill_n(positions, cut_.T, 0);
  for (std::uint64_t i = first_piece_[k]; i < first_piece_[k + 1]; ++i) {
    const Piece& piece = pieces_[i];
    read_piece(piece, vocab_size, inputs + piece.at, targets + piece.at);
    std::iota(positions + piece.at, positions + piece.at + piece.targets, 0);
  }
}

/// Reads inputs and targets of a piece, to its first column.
void Samples::read_piece(const Piece& piece, std::size_t vocab_size, std::int32_t* inputs, std::int32_t* targets) const {
  const std::size_t present = piece.targets == 0 ? 0 : std::size_t{piece.targets} + 1;
  std::array<std::uint32_t, 4096> some;
  for (std::size_t first = 0; first < present; first += some.size()) {
    const auto tokens = std::span(some).first(std::min(some.size(), present - first));
    tokens_->read(piece.begin + first, tokens);
    for (std::size_t i = 0, t = first; i < tokens.size(); ++i, ++t) {
      if (tokens[i] >= vocab_size) [[unlikely]]
        refuse_token(*tokens_, piece.begin + t, tokens[i], vocab_size);
      const auto token = static_cast<std::int32_t>(tokens[i]);
      if (t < piece.targets) inputs[t] = token;
      if (t > 0) targets[t - 1] = token;
    }
  }
  for (std::size_t first = 0; (mask_ || cut_.positions) && first < piece.targets; first += some.size()) {
    const auto counts = std::span(some).first(std::min<std::size_t>(some.size(), piece.targets - first));
    read_counts(piece.begin + 1 + first, counts);
    for (std::size_t i = 0; i < counts.size(); ++i)
      if (counts[i] == 0) targets[first + i] = -1;
  }
}

}  // namespace fsdp
