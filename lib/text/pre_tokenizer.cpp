#include "text/pre_tokenizer.hpp"

#include <memory>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "text/json_parts.hpp"
#include "text/text_cuts.hpp"

namespace fsdp {

namespace {

/// What a Split does with the matches of its pattern.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const nlohmann::json& part) {
  constexpr std::pair<std::string_view, Behavior> names[] = {{"Removed", Behavior::removed},
                                                             {"Isolated", Behavior::isolated},
                                                             {"MergedWithPrevious", Behavior::merged_with_previous},
                                                             {"MergedWithNext", Behavior::merged_with_next},
                                                             {"Contiguous", Behavior::contiguous}};
  const std::string name = part_text(part, "behavior");
  for (const auto& [known, behavior] : names)
    if (name == known) return behavior;
  throw unknown_part("behavior", name);
}

/// Divides `piece` into the matches and the parts between matches, joins or removes parts as `behavior` requires, and appends
/// the result to `out`. If `invert` is true, the parts between matches are treated as the matches, and the matches as the rest.
void cut(const TextRange& piece, const std::vector<TextRange>& matches, bool invert, Behavior behavior,
         std::vector<TextRange>& out) {
  const std::size_t first = out.size();
  bool was_match = false;
  const auto add = [&](std::size_t begin, std::size_t end, bool is_match) {
    if (begin == end) return;
    is_match = is_match != invert;
    const bool has_last = out.size() > first;
    bool joins = false;
    switch (behavior) {
      case Behavior::removed:
        if (is_match) return;
        break;
      case Behavior::isolated:
        break;
      case Behavior::contiguous:
        joins = has_last && is_match == was_match;
        break;
      case Behavior::merged_with_previous:
        joins = has_last && is_match && !was_match;
        break;
      case Behavior::merged_with_next:
        joins = has_last && !is_match && was_match;
        break;
    }
    was_match = is_match;
    if (joins) {
      out.back().end = end;
    } else {
      out.push_back({begin, end});
    }
  };
  std::size_t from = piece.begin;
  for (const TextRange& match : matches) {
    add(from, piece.begin + match.begin, false);
    add(piece.begin + match.begin, piece.begin + match.end, true);
    from = piece.begin + match.end;
  }
  add(from, piece.end, false);
}

PreTokenizer::Step split(Pattern pattern, Behavior behavior, bool invert = false) {
  return [pattern = std::make_shared<Pattern>(std::move(pattern)), behavior, invert](Pieces& pieces) {
    std::vector<TextRange> ranges, matches;
    ranges.reserve(2 * pieces.ranges.size() + pieces.text.size() / 4);
    for (const TextRange& piece : pieces.ranges) {
      matches.clear();
      pattern->find_all(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), matches);
      cut(piece, matches, invert, behavior, ranges);
    }
    pieces.ranges = std::move(ranges);
  };
}

/// Writes `prefix` before each piece for which wanted(piece, index) is true.
template <class Wanted>
void prepend(Pieces& pieces, std::string_view prefix, const Wanted& wanted) {
  std::string text;
  for (std::size_t i = 0; i < pieces.ranges.size(); ++i) {
    TextRange& range = pieces.ranges[i];
    const std::string_view piece = std::string_view(pieces.text).substr(range.begin, range.end - range.begin);
    const std::size_t begin = text.size();
    if (wanted(piece, i)) text += prefix;
    text += piece;
    range = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

void prepend_space(Pieces& pieces) {
  prepend(pieces, " ", [](std::string_view piece, std::size_t) { return !piece.starts_with(' '); });
}

/// Replaces spaces by `sign`. If `splits` is true, a piece begins at each sign.
PreTokenizer::Step metaspace(const std::string& sign, const std::string& scheme, bool splits) {
  if (scheme != "always" && scheme != "first" && scheme != "never") throw unknown_part("prepend_scheme", scheme);
  const auto at_signs = std::make_shared<PreTokenizer::Step>(split(Pattern::literal(sign), Behavior::merged_with_next));
  return [sign, scheme, splits, at_signs](Pieces& pieces) {
    const bool begins_text = pieces.begins_text;
    std::string text;
    for (TextRange& range : pieces.ranges) {
      const std::size_t begin = text.size();
      for (std::size_t i = range.begin; i < range.end; ++i)
        if (pieces.text[i] == ' ') {
          text += sign;
        } else {
          text += pieces.text[i];
        }
      range = {begin, text.size()};
    }
    pieces.text = std::move(text);
    if (scheme != "never")
      prepend(pieces, sign, [&](std::string_view piece, std::size_t i) {
        return !piece.starts_with(sign) && (scheme == "always" || (i == 0 && begins_text));
      });
    if (splits) (*at_signs)(pieces);
  };
}

constexpr std::string_view gpt2_words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& description) { add(description); }

Pieces PreTokenizer::operator()(std::string text, bool begins_text) const {
  Pieces pieces{std::move(text), {}, begins_text};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  const std::size_t size = pieces.text.size();
  for (const Step& step : steps_) {
    step(pieces);
    require_sane_growth(size, pieces.text.size());
  }
  return pieces;
}

/// A regular expression that DeepSeek's tokenizers split with.
constexpr std::string_view chinese_and_kana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";

void PreTokenizer::note_cuts(const nlohmann::json& pattern, bool isolates, bool keeps_matches) {
  const bool is_regex = pattern.contains("Regex");
  const std::string what = part_text(pattern, is_regex ? "Regex" : "String");
  if (is_regex && (isolates || keeps_matches) && fsdp::ends_words(what)) {
    ends_words_ = true;
  } else if (is_regex) {  // of other expressions, only these are known to keep cuts
    keeps_cuts_ =
        keeps_cuts_ && isolates &&
        (what == R"(\p{N})" || what == R"(\p{N}{1,3})" || what == R"(\d)" || what == "[0-9]" || what == chinese_and_kana);
  } else if (what == " ") {  // in Gemma's tokenizer, whose normalizer leaves no spaces
    joins_spaces_ = true;
  } else {
    keeps_cuts_ = keeps_cuts_ && isolates && what.find_first_of(" \n") == std::string::npos;
  }
}

void PreTokenizer::add(const nlohmann::json& description) {
  if (description.is_null()) return;
  const std::string type = part_type(description, "pre-tokenizer");
  if (to_bytes_) throw unknown_part("pre-tokenizer after ByteLevel", type);
  if (type == "Sequence") {
    for (const auto& part : part_list(description, "pretokenizers")) add(part);
  } else if (type == "ByteLevel") {
    if (part_flag(description, "add_prefix_space", true)) steps_.push_back(prepend_space);
    if (part_flag(description, "use_regex", true)) {
      steps_.push_back(split(Pattern(gpt2_words), Behavior::isolated));
      ends_words_ = true;
    }
    to_bytes_ = true;
  } else if (type == "Split") {
    const Behavior behavior = behavior_of(description);
    const bool invert = part_flag(description, "invert", false);
    steps_.push_back(split(part_pattern(description), behavior, invert));
    leaves_out_ = leaves_out_ || behavior == Behavior::removed;
    note_cuts(description.at("pattern"), behavior == Behavior::isolated && !invert, behavior == Behavior::removed && invert);
  } else if (type == "Digits") {
    steps_.push_back(split(Pattern(R"(\p{N})"),
                           part_flag(description, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(split(Pattern(R"(\s)"), Behavior::removed));
    leaves_out_ = true;
    ends_words_ = true;
  } else if (type == "Metaspace") {
    const std::string sign = part_text(description, "replacement");
    if (sign.empty() || sign.size() > 4) throw unknown_part("replacement", sign);  // must be one character
    const std::string scheme = description.contains("prepend_scheme")             ? part_text(description, "prepend_scheme")
                               : part_flag(description, "add_prefix_space", true) ? "always"
                                                                                  : "never";
    const bool splits = part_flag(description, "split", true);
    steps_.push_back(metaspace(sign, scheme, splits));
    marks_beginning_ = marks_beginning_ || scheme == "first";
    // If text was removed before this step, the first piece need not be at the beginning of the text.
    if (scheme == "first" && leaves_out_)
      throw unknown_part("pre-tokenizer", "Metaspace with prepend_scheme \"first\" after a step that removes text");
    keeps_cuts_ = keeps_cuts_ && sign == "\xE2\x96\x81";
  } else {
    throw unknown_part("pre-tokenizer", type);
  }
}

}  // namespace fsdp
