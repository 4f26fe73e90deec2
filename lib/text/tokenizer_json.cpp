// tokenizer.json of Hugging Face's tokenizers (https://huggingface.co/docs/tokenizers), with byte-pair encoding. A text goes
// through its parts in this order: added tokens, normalizer, added tokens that are normalized, pre-tokenizer, model. What it
// says of truncation and padding is for batches of a model's inputs, and is not done here.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "files/json.hpp"
#include "text/added_tokens.hpp"
#include "text/byte_alphabet.hpp"
#include "text/json_parts.hpp"
#include "text/normalizer.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

using Json = nlohmann::json;

constexpr std::size_t longest_tokenizer = std::size_t{128} << 20;
constexpr std::size_t most_tokens = std::size_t{1} << 24;

/// What a decoder makes of each token, and of their sequence.
struct Spelling {
  std::vector<std::string> texts;      // by id; empty: nothing is shown
  std::vector<std::int16_t> fallback;  // by id: the byte that a token such as <0x0A> stands for, or -1
  std::string first_loses;             // is taken away once where the text begins with it
};

/// Joins tokens as their decoder does.
class JsonDecoder : public TokenDecoder {
 public:
  explicit JsonDecoder(const Spelling& spelling) : spelling_(spelling) {}
  void add(TokenId id, std::string& text) override {
    const auto i = static_cast<std::size_t>(id);
    if (id < 0 || i >= spelling_.texts.size()) return;
    if (spelling_.fallback[i] >= 0) {
      bytes_ += static_cast<char>(spelling_.fallback[i]);
      return;
    }
    end_bytes();
    open_ += spelling_.texts[i];
    hand_out(without_open_end(open_), text);
  }
  void finish(std::string& text) override {
    end_bytes();
    hand_out(open_.size(), text);
    begins_ = true;
  }

 private:
  /// Bytes one after the other are characters together, or each is none.
  void end_bytes() {
    if (valid_until(bytes_) == bytes_.size()) {
      open_ += bytes_;
    } else {
      for (std::size_t i = 0; i < bytes_.size(); ++i) append_utf8(open_, replacement_character);
    }
    bytes_.clear();
  }
  void hand_out(std::size_t size, std::string& text) {
    if (size == 0) return;
    std::string_view whole = std::string_view(open_).substr(0, size);
    if (std::exchange(begins_, false) && whole.starts_with(spelling_.first_loses))
      whole.remove_prefix(spelling_.first_loses.size());
    text += with_replacements(whole);
    open_.erase(0, size);
  }

  const Spelling& spelling_;
  std::string bytes_, open_;
  bool begins_ = true;
};

class JsonTokenizer : public Tokenizer {
 public:
  explicit JsonTokenizer(const Json& file)
      : normalizer_(value(file, "normalizer")),
        pre_tokenizer_(value(file, "pre_tokenizer")),
        bpe_(read_model(value(file, "model"))) {
    if (pre_tokenizer_.marks_beginning() && !normalizer_.keeps_beginning())
      throw unknown_part("pre-tokenizer", "Metaspace, for the first word, behind a normalizer that may change the beginning,");
    read_added_tokens(value(file, "added_tokens"), value(value(file, "model"), "vocab"));
    find_cuts();
    read_post_processor(value(file, "post_processor"));
    read_decoder(value(file, "decoder"));
    for (const AddedToken& token : added_)
      if (token.special) spelling_.texts[static_cast<std::size_t>(token.id)].clear();
  }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    if (valid_until(text) < text.size()) return encode(with_replacements(text), ids);
    for (const TextSection& section : as_they_are_.find_all(text)) {
      if (section.id >= 0) {
        ids.push_back(section.id);
      } else {
        encode_section(text.substr(section.range.begin, section.range.end - section.range.begin), section.range.begin == 0,
                       ids);
      }
    }
  }
  std::unique_ptr<TokenDecoder> make_decoder() const override { return std::make_unique<JsonDecoder>(spelling_); }
  const CutRules& cuts() const override { return cuts_; }
  std::size_t vocab_size() const override { return names_.size(); }
  std::optional<TokenId> find(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string spelling(TokenId id) const override {
    return id < 0 || static_cast<std::size_t>(id) >= names_.size() ? "" : names_[static_cast<std::size_t>(id)];
  }
  const std::vector<TokenId>& before_text() const override { return before_; }
  const std::vector<TokenId>& behind_text() const override { return behind_; }
  std::string description() const override {
    return format("{} BPE of {} tokens", pre_tokenizer_.to_bytes() ? "byte-level" : "character-level", vocab_size());
  }

 private:
  static const Json& value(const Json& object, const char* key) {
    static const Json none;
    const auto found = object.find(key);
    return found == object.end() ? none : *found;
  }

  void encode_section(std::string_view text, bool begins_text, std::vector<TokenId>& ids) const {
    const std::string normalized = normalizer_(std::string(text));
    for (const TextSection& section : when_normalized_.find_all(normalized)) {
      if (section.id >= 0) {
        ids.push_back(section.id);
        continue;
      }
      const auto [begin, end] = section.range;
      const Pieces pieces = pre_tokenizer_(normalized.substr(begin, end - begin), begins_text && begin == 0);
      for (const TextRange& piece : pieces.ranges)
        bpe_.encode(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), ids);
    }
  }

  /// Names each id, from the model or from an added token.
  void name(TokenId id, const std::string& text) {
    const auto i = static_cast<std::size_t>(id);
    if (i >= names_.size()) names_.resize(i + 1);
    names_[i] = text;
  }
  static TokenId id_of(const Json& number, std::string_view token) {
    if (!number.is_number_integer() || number.get<std::int64_t>() < 0 ||
        number.get<std::int64_t>() >= static_cast<std::int64_t>(most_tokens))
      throw UserError(format("token \"{}\" has the id {} (ids are 0 to {}); fetch the file again", excerpt(token),
                             json_excerpt(number), most_tokens - 1));
    return number.get<TokenId>();
  }

  Bpe read_model(const Json& model) {
    if (!model.is_object()) throw UserError("it has no model; fetch the file again");
    const std::string type = model.contains("type") ? part_type(model, "model") : "BPE";
    if (type != "BPE") throw unknown_part("model", type);
    if (const Json& dropout = value(model, "dropout"); dropout.is_number() && dropout.get<double>() > 0)
      throw unknown_part("model with", "dropout");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& text = value(model, affix); text.is_string() && !text.get<std::string>().empty())
        throw unknown_part("model with", affix);
    const Json& vocabulary = value(model, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty()) throw UserError("its model has no vocabulary; fetch the file again");
    std::vector<bool> is_there;
    for (const auto& [token, number] : vocabulary.items()) {
      const TokenId id = id_of(number, token);
      const auto i = static_cast<std::size_t>(id);
      if (i >= is_there.size()) is_there.resize(i + 1);
      if (is_there[i])
        throw UserError(format("tokens \"{}\" and \"{}\" have the same id {}; fetch the file again", excerpt(names_[i]),
                               excerpt(token), id));
      is_there[i] = true;
      name(id, token);
    }
    const bool bytes = pre_tokenizer_.to_bytes();
    const auto units_of = [&](const std::string& token) {
      return bytes ? alphabet_.bytes_of(token).value_or(std::string()) : token;
    };
    std::vector<std::string> tokens;
    for (const std::string& token : names_) tokens.push_back(units_of(token));
    BpeRules rules;
    rules.units = bytes ? BpeRules::Units::bytes : BpeRules::Units::characters;
    rules.ignores_merges = part_flag(model, "ignore_merges", false);
    rules.fuses_unknown = part_flag(model, "fuse_unk", false);
    rules.of_byte.fill(-1);
    const auto id_named = [&](const std::string& token) -> TokenId {
      const auto found = vocabulary.find(token);
      return found == vocabulary.end() ? -1 : found->get<TokenId>();
    };
    if (part_flag(model, "byte_fallback", false)) {
      for (std::size_t byte = 0; byte < 256; ++byte) rules.of_byte[byte] = id_named(format("<0x{:02X}>", byte));
      if (const auto missing = std::count(rules.of_byte.begin(), rules.of_byte.end(), -1); missing > 0 && missing < 256)
        throw UserError(
            format("it falls back to bytes, and {} of the 256 are not in its vocabulary (\"<0x00>\" to \"<0xFF>\"); fetch the "
                   "file again",
                   missing));
    }
    if (const Json& unknown = value(model, "unk_token"); unknown.is_string()) {
      const TokenId id = id_named(unknown.get<std::string>());
      if (id < 0)
        throw UserError(format("its unknown token {} is not in its vocabulary; fetch the file again", json_excerpt(unknown)));
      rules.unknown = id;
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const Json& merge : part_list(model, "merges")) {
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
          throw UserError(format("a merge is {} and not two tokens; fetch the file again", json_excerpt(merge)));
        merges.emplace_back(units_of(text.substr(0, space)), units_of(text.substr(space + 1)));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        merges.emplace_back(units_of(merge[0].get<std::string>()), units_of(merge[1].get<std::string>()));
      } else {
        throw UserError(format("a merge is {} and not two tokens; fetch the file again", json_excerpt(merge)));
      }
    }
    const auto is_byte = [](const std::string& token) { return token.size() == 6 && token.starts_with("<0x"); };
    for (const auto& [left, right] : merges) joins_bytes_ = joins_bytes_ || is_byte(left) || is_byte(right);
    return Bpe(std::move(tokens), merges, rules);
  }

  void read_added_tokens(const Json& list, const Json& model) {
    // Hugging Face's tokenizers leaves the model's own token its id, and one that was added before; another gets the next id
    // behind all that were added, and behind as many as the model has tokens.
    std::unordered_map<std::string, TokenId> before;
    auto next = narrow<TokenId>(model.size());
    const auto given_to = [&](const std::string& content) {
      const auto in_model = model.find(content);
      const TokenId id = in_model == model.end() ? before.emplace(content, next).first->second : in_model->get<TokenId>();
      next = std::max(next, id + 1);
      return id;
    };
    if (list.is_null()) return;
    if (!list.is_array()) throw UserError("its added tokens are no list; fetch the file again");
    for (const Json& part : list) {
      AddedToken token;
      token.content = part_text(part, "content");
      if (token.content.empty()) continue;
      token.id = id_of(value(part, "id"), token.content);
      token.single_word = part_flag(part, "single_word", false);
      token.takes_left = part_flag(part, "lstrip", false);
      token.takes_right = part_flag(part, "rstrip", false);
      token.special = part_flag(part, "special", false);
      token.normalized = part_flag(part, "normalized", !token.special);
      if (const TokenId own = given_to(token.content); token.id != own)
        throw UserError(
            format("its added token \"{}\" has the id {} (Hugging Face's tokenizers gives it {}, whatever the file "
                   "says); use a file that this library has saved",
                   excerpt(token.content), token.id, own));
      name(token.id, token.content);
      added_.push_back(token);
      if (token.normalized) {
        token.content = normalizer_(token.content);
        if (!token.content.empty()) when_normalized_.add(token);
      } else {
        as_they_are_.add(token);
      }
    }
    for (std::size_t id = 0; id < names_.size(); ++id) ids_.emplace(names_[id], narrow<TokenId>(id));
  }

  /// A section of the text, between added tokens, may be cut where all its steps allow that, and a piece ends there or no token
  /// of the model reaches across. What is put before a section is no matter: there is a character before the cut.
  void find_cuts() {
    if (!normalizer_.keeps_cuts() || !pre_tokenizer_.keeps_cuts()) return;
    if (pre_tokenizer_.joins_spaces() && !normalizer_.removes_spaces()) return;
    constexpr std::string_view sign = "\xE2\x96\x81";
    cuts_.before_signs = normalizer_.replaces_spaces_alone() && pre_tokenizer_.keeps_signs() ? all_signs : 0;
    const CutRules any = {.behind_any_letter = true};
    for (const AddedToken& token : added_) {
      const std::string& text = token.content;
      const auto is_there = [&](std::string_view space) { return reaches_across(text, space, any); };
      if (is_there(" ") || is_there("\n") || (token.normalized && is_there(sign))) return;
      if (token.single_word && is_space(static_cast<unsigned char>(text[0]))) return;  // it looks at what stands before it
      // Behind a token a section begins, and some take the spaces that follow.
      cuts_.not_behind[static_cast<unsigned char>(text.back())] = true;
      const std::string normal = token.normalized ? normalizer_(text) : "";
      if (!normal.empty()) cuts_.not_behind[static_cast<unsigned char>(normal.back())] = true;
      cuts_.before_signs &= ~(signs_reached_across(text, any) | signs_reached_across(normal, any));
      if (token.single_word) cuts_.before_signs &= ~sign_at_beginning(text);
    }
    cuts_.at_space = cuts_.at_line_end = true;
    const bool pieces_end = pre_tokenizer_.cuts_at_space() && pre_tokenizer_.cuts_at_line_end() &&
                            !normalizer_.changes_spaces() && !normalizer_.changes_line_ends();
    cuts_.behind_any_letter = normalizer_.empty() && pieces_end;
    cuts_.behind_ideograph = normalizer_.replaces_spaces_alone() && (pieces_end || bpe_.has_all_bytes());
    if (!pieces_end || !pre_tokenizer_.cuts_before_sign()) {
      if (!bpe_.has_all_bytes() || joins_bytes_) cuts_.before_signs = 0;
      for (const std::string& token : bpe_.tokens()) cuts_.before_signs &= ~signs_reached_across(token, cuts_);
    }
    if (!pieces_end) {
      for (const std::string& token : bpe_.tokens()) {
        if (reaches_across(token, " ", cuts_) || reaches_across(token, sign, cuts_)) cuts_.at_space = false;
        if (reaches_across(token, "\n", cuts_)) cuts_.at_line_end = false;
      }
      // Characters that are no tokens vanish, or join those beside them.
      for (int c = 0; c < 128; ++c)
        if (!bpe_.find(std::string(1, static_cast<char>(c)))) cuts_.not_behind[static_cast<std::size_t>(c)] = true;
    }
    if (normalizer_.changes_line_ends()) cuts_.at_line_end = cuts_.at_line_end && cuts_.at_space;  // they become spaces
    cuts_.behind_line_end = cuts_.behind_any_letter && pre_tokenizer_.to_bytes() && !pre_tokenizer_.prepends();
  }

  void read_post_processor(const Json& part) {
    if (part.is_null()) return;
    const std::string type = part_type(part, "post-processor");
    if (type == "Sequence") {
      for (const Json& one : part_list(part, "processors")) read_post_processor(one);
    } else if (type == "TemplateProcessing") {
      bool before = true;
      for (const Json& piece : part_list(part, "single")) {
        if (piece.is_object() && piece.contains("Sequence")) {
          before = false;
        } else if (piece.is_object() && piece.contains("SpecialToken")) {
          const std::string token = part_text(piece["SpecialToken"], "id");
          const Json& known = value(value(part, "special_tokens"), token.c_str());
          for (const Json& id : part_list(known, "ids")) (before ? before_ : behind_).push_back(id_of(id, token));
        } else {
          throw unknown_part("piece of a template", json_excerpt(piece));
        }
      }
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      for (const auto& [key, ids] : {std::pair("cls", &before_), std::pair("sep", &behind_)}) {
        const Json& token = part_list(part, key);
        if (token.size() != 2) throw unknown_part("post-processor", type);
        ids->push_back(id_of(token[1], key));
      }
    } else if (type != "ByteLevel") {
      throw unknown_part("post-processor", type);
    }
  }

  void read_decoder(const Json& part) {
    spelling_.texts = names_;
    spelling_.fallback.assign(names_.size(), -1);
    add_decoder(part);
    if (part.is_null()) throw UserError("it has no decoder (tokens cannot become text again); use a tokenizer with one");
  }
  void add_decoder(const Json& part) {
    if (part.is_null()) return;
    const std::string type = part_type(part, "decoder");
    const auto replace = [&](const std::string& what, const std::string& with) {
      for (std::string& text : spelling_.texts)
        for (std::size_t at = 0; !what.empty() && (at = text.find(what, at)) != std::string::npos; at += with.size())
          text.replace(at, what.size(), with);
    };
    if (type == "Sequence") {
      for (const Json& one : part_list(part, "decoders")) add_decoder(one);
    } else if (type == "ByteLevel") {
      for (std::string& text : spelling_.texts) text = alphabet_.bytes_of(text).value_or(text);
    } else if (type == "ByteFallback") {
      for (std::size_t id = 0; id < names_.size(); ++id)
        if (const std::string& token = names_[id]; token.size() == 6 && token.starts_with("<0x") && token.ends_with(">")) {
          constexpr std::string_view digits = "0123456789ABCDEF";
          const std::size_t high = digits.find(token[3]), low = digits.find(token[4]);
          if (high != digits.npos && low != digits.npos) spelling_.fallback[id] = static_cast<std::int16_t>(16 * high + low);
        }
    } else if (type == "Replace") {
      if (!part.contains("pattern") || !part["pattern"].contains("String"))
        throw unknown_part("decoder", "Replace by expression");
      replace(part_text(part["pattern"], "String"), part_text(part, "content"));
    } else if (type == "Metaspace") {
      replace(part_text(part, "replacement"), " ");
      const bool prepends = part.contains("prepend_scheme") ? part_text(part, "prepend_scheme") != "never"
                                                            : part_flag(part, "add_prefix_space", true);
      if (prepends) spelling_.first_loses = " ";
    } else if (type == "Strip") {
      const Json &start = value(part, "start"), &stop = value(part, "stop");
      if (start != 1 || stop != 0)
        throw unknown_part("decoder", format("Strip of {} and {}", json_excerpt(start), json_excerpt(stop)));
      spelling_.first_loses = part_text(part, "content");
    } else if (type != "Fuse") {
      throw unknown_part("decoder", type);
    }
  }

  const ByteAlphabet alphabet_;
  const Normalizer normalizer_;
  const PreTokenizer pre_tokenizer_;
  std::vector<std::string> names_;  // by id
  bool joins_bytes_ = false;        // whether bytes of characters that are no tokens join what is beside them
  const Bpe bpe_;
  std::vector<AddedToken> added_;
  AddedTokens as_they_are_, when_normalized_;
  std::vector<TokenId> before_, behind_;
  Spelling spelling_;
  CutRules cuts_;
  Vocabulary ids_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& file) {
  const Json json = read_json_file(file, longest_tokenizer);
  try {
    if (!json.is_object()) throw UserError("it is not JSON, or no object; give a tokenizer.json");
    return std::make_unique<JsonTokenizer>(json);
  } catch (const RunError&) {
    throw;
  } catch (const UserError& error) {
    throw UserError(format("'{}' is no tokenizer that can be used: {}", file.string(), error.what()));
  }
}

}  // namespace fsdp
