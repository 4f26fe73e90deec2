#include "fsdp-data/survey.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "base/format.hpp"
#include "data/padding.hpp"

namespace fsdp {

namespace {

/// The number of a row among all data sets is the number of its data set, followed by the bits of its offset.
constexpr int bits_of_offset = 48;

}  // namespace

Survey::Survey(const SurveyOptions& options, const std::filesystem::path& scratch) : options_(options), duplicates_(scratch) {
  for (const BreakMode mode : {BreakMode::none, BreakMode::complete, BreakMode::eos}) {
    Way& way = all_ways_[static_cast<std::size_t>(mode)];
    Cut cut{options.cut.T, mode, {}, options.cut.positions};
    if (mode != BreakMode::none) cut.long_rows = options.cut.long_rows;
    way.cutter = std::make_unique<SequenceCutter>(cut, [this, &way](const CutSequence& sequence) {
      if (sequence.counted == 0) return;
      way.all_columns += sequence.columns;
      if (way.columns.size() < 65536) way.columns.push_back(sequence.columns);  // as many as fsdp-train looks at
    });
  }
}

void Survey::begin(const std::string& name, bool is_valid, bool has_rows, PlaceOf place_of) {
  sources_.push_back({.name = name, .is_valid = is_valid});
  places_.push_back(std::move(place_of));
  checked_ = {};
  has_rows_ = has_rows;
  cutter_ = std::make_unique<SequenceCutter>(options_.cut, [this](const CutSequence& sequence) {
    if (sequence.counted > 0) choose(sequence);
  });
}

/// Makes the sequence an example, perhaps in the place of an earlier one.
void Survey::choose(const CutSequence& sequence) {
  std::uint64_t at = seen_++;
  if (at >= options_.examples) at = random_() % seen_;
  if (at >= options_.examples) return;
  if (at == examples_.size()) examples_.emplace_back();
  Example& example = examples_[at];
  example.source = sources_.back().name;
  example.ids.assign(sequence.ids.begin(), sequence.ids.end());
  example.mask.assign(sequence.counts.begin(), sequence.counts.end());
  example.mask.front() = 0;  // no target
  example.documents.assign(sequence.documents.begin(), sequence.documents.end());
}

bool Survey::is_end(TokenId id) const {
  return std::find(options_.ends.begin(), options_.ends.end(), id) != options_.ends.end();
}

void Survey::add(std::span<const TokenId> ids, std::span<const TokenId> mask) {
  row_.has_mask |= !mask.empty();
  sources_.back().has_mask |= !mask.empty();
  for (std::size_t i = 0; i < ids.size(); ++i) look_at(ids[i], mask.empty() || mask[i] == 1);
  duplicates_.add(ids);
  cutter_->add(ids, mask);
  if (!sources_.back().is_valid)
    for (Way& way : all_ways_) way.cutter->add(ids, mask);
}

void Survey::look_at(TokenId id, bool counts) {
  if (row_.has_mask && row_.answer > 0 && !counts) end_answer();
  if (options_.vocab_size > 0) unknown_in_row_ += static_cast<std::uint32_t>(id) >= options_.vocab_size;
  if (row_.tokens < 2) row_.head[row_.tokens] = id;
  row_.tail = {row_.tail[1], id};
  if (counts) {
    if (!row_.first_target) row_.first_target = row_.tokens;
    row_.last_target = row_.tokens;
  }
  row_.answer = counts ? row_.answer + 1 : 0;
  ++row_.tokens;
}

/// Returns true if the last `tokens` tokens end with an end token, which a line end may follow.
bool Survey::ends_well(std::uint64_t tokens) const {
  return options_.ends.empty() || is_end(row_.tail[1]) || (tokens > 1 && is_end(row_.tail[0]));
}

/// The last token was the last one of an answer.
void Survey::end_answer() {
  ++checked_.answers;
  checked_.unended_answers += !ends_well(row_.answer);
}

void Survey::found(const char* check, std::uint64_t& count, std::uint64_t offset) {
  if (count++ == 0) checked_.firsts[check] = places_.back()(offset);
}

void Survey::end_row(std::uint64_t offset) {
  if (row_.has_mask && row_.answer > 0) end_answer();
  const std::size_t T = options_.cut.T;
  const bool is_dropped = options_.cut.long_rows == LongRows::drop && row_.tokens > T + 1;
  const bool is_empty = row_.tokens == 0 || (row_.tokens == 1 && is_end(row_.head[0]));
  const bool has_answers = has_rows_ && row_.has_mask && !is_dropped;
  if (is_empty) found("empty-rows", checked_.empty_rows, offset);
  if (options_.bos && row_.tokens > 1 && row_.head[0] == *options_.bos && row_.head[1] == *options_.bos)
    found("doubled-bos", checked_.doubled_bos, offset);
  if (has_rows_ && !row_.has_mask && row_.tokens > 0 && !ends_well(row_.tokens))
    found("unended-rows", checked_.unended_rows, offset);
  if (has_answers && row_.first_target.value_or(0) > T) found("long-prompts", checked_.long_prompts, offset);
  if (has_answers && options_.longest > 0 && row_.last_target.value_or(0) > options_.longest)
    found("beyond-model", checked_.beyond_model, offset);
  if (unknown_in_row_ > 0) {
    found("unknown-tokens", checked_.unknown_tokens, offset);
    checked_.unknown_tokens += unknown_in_row_ - 1;
  }
  const bool is_valid = sources_.back().is_valid;
  const auto bin = static_cast<std::size_t>(row_.tokens > 1 ? std::bit_width(row_.tokens - 1) : 0);
  if (lengths_.size() <= bin) lengths_.resize(bin + 1);
  lengths_[bin] += !is_valid;
  ++checked_.rows, checked_.tokens += row_.tokens;
  checked_.longest_row = std::max(checked_.longest_row, row_.tokens);
  duplicates_.end_row((std::uint64_t{sources_.size() - 1} << bits_of_offset) | offset);
  if (cutter_->cut_answers() > 0 && !checked_.firsts.contains("cut-answers"))
    checked_.firsts["cut-answers"] = places_.back()(offset);
  cutter_->end_row();
  if (!is_valid)
    for (Way& way : all_ways_) way.cutter->end_row();
  row_ = {};
  unknown_in_row_ = 0;
}

void Survey::end(const DataCounts& counts) {
  cutter_->finish(checked_);
  if (counts.answers > 0) checked_.answers = checked_.unended_answers = 0;  // TokenizeJob has counted them
  if (!has_rows_) checked_.rows = checked_.longest_row = checked_.cut_rows = checked_.late_targets = 0;
  DataCounts& all = sources_.back().counts;
  all = counts;
  all.rows = all.tokens = all.targets = 0;  // they are in checked_, too
  all += checked_;
}

void Survey::finish() {
  find_duplicates();
  compare_ways();
}

void Survey::find_duplicates() {
  using Number = std::uint64_t DataCounts::*;
  std::map<std::pair<std::size_t, std::string>, Duplicate> firsts;
  duplicates_.find([&](const Duplicate& found) {
    const std::size_t source = found.row >> bits_of_offset, earlier = found.earlier >> bits_of_offset;
    const bool leaks = sources_[source].is_valid && !sources_[earlier].is_valid;
    const auto [check, number] = leaks           ? found.is_same ? std::pair("in-training", Number{&DataCounts::in_training})
                                                                 : std::pair("near-training", Number{&DataCounts::near_training})
                                           : found.is_same ? std::pair("duplicates", Number{&DataCounts::duplicates})
                                                 : std::pair("near-duplicates", Number{&DataCounts::near_duplicates});
    ++(sources_[source].counts.*number);
    const auto [first, is_new] = firsts.try_emplace({source, check}, found);
    if (!is_new && found.row < first->second.row) first->second = found;
  });
  const auto place_of = [&](std::uint64_t row) {
    return places_[row >> bits_of_offset](row & ((std::uint64_t{1} << bits_of_offset) - 1));
  };
  for (const auto& [key, first] : firsts)
    sources_[key.first].counts.firsts[key.second] = format("{}, as {}", place_of(first.row), place_of(first.earlier));
}

void Survey::compare_ways() {
  const auto add = [&](const Way& way, double padding, const std::string& options) {
    ways_.push_back({options, static_cast<double>(way.all_columns) / (1 - padding), padding});
  };
  const bool has_rows = std::accumulate(lengths_.begin(), lengths_.end(), std::uint64_t{0}) > 1;
  for (const auto& [mode, name] :
       {std::pair(BreakMode::none, "none"), std::pair(BreakMode::complete, "complete"), std::pair(BreakMode::eos, "eos")}) {
    Way& way = all_ways_[static_cast<std::size_t>(mode)];
    DataCounts counts;
    way.cutter->finish(counts);
    if (way.columns.empty() || (mode != BreakMode::none && !has_rows)) continue;
    const Padding padding = padding_of(way.columns, options_.rule, 1);
    add(way, padding.as_read, format("--break-mode {}", name));
    if (mode != BreakMode::none) add(way, padding.by_length, format("--break-mode {} --group-by-length", name));
    if (mode == BreakMode::eos) add(way, padding.best_fit, "--break-mode complete --document-attention --packing best-fit");
  }
}

}  // namespace fsdp
