#include "text/normalizer.hpp"

#include <algorithm>
#include <cctype>
#include <memory>

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "text/charsmap.hpp"
#include "text/json_parts.hpp"
#include "text/pattern.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

void check_icu(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) throw CallError("ICU", format("{}: {}", what, u_errorName(status)));
}

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// The characters that Hugging Face's tokenizers normalize, which are those of Unicode 9 (unicode-normalization-alignments).
/// All other characters stay unchanged and in their places.
const icu::UnicodeSet& normalized_characters() {
  static const icu::UnicodeSet set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet known(icu::UnicodeString("[:age=9.0:]"), status);
    check_icu(status, "the characters of Unicode 9");
    known.freeze();
    return known;
  }();
  return set;
}

Normalizer::Step normal_form(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const newest = form == NormalForm::nfc    ? icu::Normalizer2::getNFCInstance(status)
                                         : form == NormalForm::nfd  ? icu::Normalizer2::getNFDInstance(status)
                                         : form == NormalForm::nfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                                    : icu::Normalizer2::getNFKDInstance(status);
  check_icu(status, "a normal form");
  const auto normalizer = std::make_shared<icu::FilteredNormalizer2>(*newest, normalized_characters());
  return [normalizer](const std::string& text) {
    std::string out;
    out.reserve(text.size());
    // ICU's indices have 32 bits, so a long text is normalized in pieces. A piece ends before a line feed, because no normal
    // form joins a line feed with other characters.
    constexpr std::size_t most = std::size_t{1} << 28;
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = text.size();
      if (end - begin > most) {
        end = text.rfind('\n', begin + most);
        if (end == std::string::npos || end <= begin)
          throw RunError("a line of more than 256 MiB cannot be normalized; cut it");
      }
      icu::StringByteSink<std::string> sink(&out);
      UErrorCode failed = U_ZERO_ERROR;
      normalizer->normalizeUTF8(0, icu::StringPiece(text.data() + begin, static_cast<std::int32_t>(end - begin)), sink, nullptr,
                                failed);
      check_icu(failed, "a normal form");
      begin = end;
    }
    return out;
  };
}

}  // namespace

Normalizer::Normalizer(const nlohmann::json& description) { add(description); }

std::string Normalizer::operator()(std::string text) const {
  const std::size_t size = text.size();
  for (const Step& step : steps_) {
    text = step(text);
    require_sane_growth(size, text.size());
  }
  return text;
}

void Normalizer::note_replacement(const nlohmann::json& pattern, const std::string& with) {
  const bool becomes_space = with == " " || with == "\xE2\x96\x81";
  if (with.find(' ') != std::string::npos) removes_spaces_ = false;
  if (pattern.contains("Regex")) {
    const std::string expression = part_text(pattern, "Regex");
    const bool is_of_spaces = expression == R"(\s+)" || expression == R"(\s)" || expression == " +" || expression == " {2,}";
    // The expressions that describe_sentencepiece() writes for the beginning and the end of a text.
    const bool is_of_ends =
        (expression == R"(\A +| +\z)" && with.empty()) || (expression == "\\A\u2581" && with == "\u2581\u2581");
    keeps_cuts_ = keeps_cuts_ && ((is_of_spaces && becomes_space) || is_of_ends);
    changes_spaces_ = changes_line_ends_ = true;
    return;
  }
  const std::string what = part_text(pattern, "String");
  const bool has_spaces = what.find(' ') != std::string::npos, has_line_ends = what.find('\n') != std::string::npos;
  keeps_cuts_ =
      keeps_cuts_ && (has_spaces || has_line_ends
                          ? what.find_first_not_of(" \n") == std::string::npos && becomes_space
                          : std::none_of(what.begin(), what.end(), [](unsigned char c) { return std::isalnum(c) != 0; }));
  if (what == " " && with.find(' ') == std::string::npos) removes_spaces_ = true;
  keeps_letters_ = keeps_letters_ && (has_spaces || has_line_ends);
  changes_spaces_ = changes_spaces_ || has_spaces;
  changes_line_ends_ = changes_line_ends_ || has_line_ends;
}

void Normalizer::add(const nlohmann::json& description) {
  if (description.is_null()) return;
  const std::string type = part_type(description, "normalizer");
  if (type == "Sequence") {
    for (const auto& part : part_list(description, "normalizers")) add(part);
    return;
  }
  if (type != "Replace") removes_spaces_ = false;  // NFKC and NFKD may produce spaces, and a prefix may have one
  keeps_letters_ = keeps_letters_ && (type == "Replace" || type == "NFC" || type == "Strip" || type == "Prepend");
  if (type == "NFC") {
    steps_.push_back(normal_form(NormalForm::nfc));
  } else if (type == "NFD") {
    steps_.push_back(normal_form(NormalForm::nfd));
  } else if (type == "NFKC") {
    steps_.push_back(normal_form(NormalForm::nfkc));
  } else if (type == "NFKD") {
    steps_.push_back(normal_form(NormalForm::nfkd));
  } else if (type == "Strip") {
    const bool left = part_flag(description, "strip_left", true), right = part_flag(description, "strip_right", true);
    steps_.push_back([left, right](const std::string& text) { return std::string(strip(text, left, right)); });
    keeps_beginning_ = keeps_beginning_ && !left;
  } else if (type == "Prepend") {
    steps_.push_back(
        [what = part_text(description, "prepend")](const std::string& text) { return text.empty() ? text : what + text; });
  } else if (type == "Precompiled") {
    // The table is base64 in tokenizer.json, and bytes in a tokenizer.model.
    const auto map = std::make_shared<Charsmap>(description.contains("bytes")
                                                    ? part_text(description, "bytes")
                                                    : Charsmap::from_base64(part_text(description, "precompiled_charsmap")));
    steps_.push_back([map](const std::string& text) { return (*map)(text); });
    changes_spaces_ = changes_line_ends_ = true;
    keeps_beginning_ = false;
  } else if (type == "Replace") {
    const auto pattern = std::make_shared<Pattern>(part_pattern(description));
    const std::string with = part_text(description, "content");
    note_replacement(description["pattern"], with);
    keeps_beginning_ = keeps_beginning_ && !with.empty() && description["pattern"].contains("String") &&
                       description["pattern"]["String"] == " ";
    steps_.push_back([pattern, with](const std::string& text) {
      std::vector<TextRange> matches;
      pattern->find_all(text, matches);
      require_sane_growth(text.size(), text.size() + matches.size() * with.size());
      std::string out;
      std::size_t from = 0;
      for (const TextRange& match : matches) {
        out.append(text, from, match.begin - from).append(with);
        from = match.end;
      }
      return out.append(text, from);
    });
  } else {
    throw unknown_part("normalizer", type);
  }
}

}  // namespace fsdp
