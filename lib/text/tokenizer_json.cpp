// tokenizer.json of Hugging Face's tokenizers (https://huggingface.co/docs/tokenizers), with byte-pair encoding or Unigram. Its
// parts are applied to a text in this order: added tokens, normalizer, normalized added tokens, pre-tokenizer, model. Its
// entries on truncation and padding are for batches of model inputs and are ignored here.
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <variant>

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
#include "text/tokenizer_folder.hpp"
#include "text/unigram.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

using Json = nlohmann::json;

/// What a decoder needs to write tokens as text: the text of each token, and what is removed from the joined text.
struct Spelling {
  static constexpr std::int16_t is_text = -1, is_hidden = -2;
  std::vector<std::string> texts;      // by id
  std::vector<std::int16_t> fallback;  // by id: the byte that a token such as <0x0A> stands for, or `is_text` or `is_hidden`
  std::string first_loses,
      bytes_lose;  // removed once from the beginning of the whole text, and of each run of byte tokens
};

/// Joins the texts of tokens as the file's decoder does.
class JsonDecoder : public TokenDecoder {
 public:
  explicit JsonDecoder(const Spelling& spelling) : spelling_(spelling) {}
  void add(TokenId id, std::string& text) override {
    const auto i = static_cast<std::size_t>(id);
    if (id < 0 || i >= spelling_.texts.size() || spelling_.fallback[i] == Spelling::is_hidden) return;
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
  /// Ends a run of byte tokens. If the bytes together are not valid UTF-8, each of them becomes U+FFFD.
  void end_bytes() {
    if (bytes_.starts_with(spelling_.bytes_lose) && valid_until(bytes_) == bytes_.size())
      bytes_.erase(0, spelling_.bytes_lose.size());
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
  explicit JsonTokenizer(const TokenizerDescription& description)
      : normalizer_(entry(description.json, "normalizer")),
        pre_tokenizer_(entry(description.json, "pre_tokenizer")),
        model_(read_model(entry(description.json, "model"))) {
    if (pre_tokenizer_.marks_beginning() && !normalizer_.keeps_beginning())
      throw unknown_part(
          "pre-tokenizer",
          "Metaspace with prepend_scheme \"first\" after a normalizer that may change the beginning of the text");
    special_tokens_ = description.special_tokens;
    warnings_ = description.warnings;
    add_tokens(description);
    find_cuts();
    read_post_processor(entry(description.json, "post_processor"));
    for (const auto& [texts, ids] :
         {std::pair(&description.before_text, &before_), std::pair(&description.after_text, &after_)})
      for (const std::string& text : *texts) ids->push_back(find(text).value());
    check_claims(description);
    read_decoder(entry(description.json, "decoder"));
    for (const AddedToken& token : added_)  // a special token is hidden, unless normalizing changes it
      if (token.special && !(token.is_normalized() && normalizer_(token.content) != token.content))
        spelling_.fallback[static_cast<std::size_t>(token.id)] = Spelling::is_hidden;
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
  std::size_t vocab_size() const override { return names_.size(); }
  std::optional<TokenId> find(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string spelling(TokenId id) const override {
    return id < 0 || static_cast<std::size_t>(id) >= names_.size() ? "" : names_[static_cast<std::size_t>(id)];
  }
  std::string description() const override {
    if (std::holds_alternative<Unigram>(model_)) return format("Unigram of {} tokens", vocab_size());
    return format("{} BPE of {} tokens", pre_tokenizer_.to_bytes() ? "byte-level" : "character-level", vocab_size());
  }

 private:
  using Model = std::variant<Bpe, Unigram>;

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
        std::visit(
            [&](const auto& model) {
              model.encode(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), ids);
            },
            model_);
    }
  }

  /// Stores the text of an id, from the model or from an added token.
  void name(TokenId id, const std::string& text) {
    const auto i = static_cast<std::size_t>(id);
    if (i >= names_.size()) names_.resize(i + 1);
    names_[i] = text;
  }
  Model read_model(const Json& model) {
    if (!model.is_object()) throw UserError("it has no model; fetch the file again");
    const std::string type = model.contains("type") ? part_type(model, "model") : "BPE";
    if (type == "Unigram") return read_unigram(model);
    if (type != "BPE") throw unknown_part("model", type);
    if (const Json& dropout = entry(model, "dropout"); dropout.is_number() && dropout.get<double>() > 0)
      throw unknown_part("model with", "dropout");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& text = entry(model, affix); text.is_string() && !text.get<std::string>().empty())
        throw unknown_part("model with", affix);
    const Json& vocabulary = entry(model, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty()) throw UserError("its model has no vocabulary; fetch the file again");
    std::vector<bool> is_there;
    for (const auto& [token, number] : vocabulary.items()) {
      const TokenId id = part_id(number, token);
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
    for (std::size_t id = 0; id < names_.size(); ++id)
      if (is_there[id]) model_ids_.emplace(names_[id], narrow<TokenId>(id));
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
        throw UserError(format(
            "it has byte_fallback, but {} of the 256 tokens \"<0x00>\" to \"<0xFF>\" are not in its vocabulary; fetch the "
            "file again",
            missing));
    }
    if (const Json& unknown = entry(model, "unk_token"); unknown.is_string()) {
      const TokenId id = id_named(unknown.get<std::string>());
      if (id < 0)
        throw UserError(format("its unknown token {} is not in its vocabulary; fetch the file again", json_excerpt(unknown)));
      rules.unknown = id;
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const Json& merge : part_list(model, "merges")) {
      const std::string text = merge.is_string() ? merge.get<std::string>() : "";
      const std::size_t space = text.find(' ');
      if (space != text.npos && space == text.rfind(' ')) {
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

  Unigram read_unigram(const Json& model) {
    if (pre_tokenizer_.to_bytes()) throw unknown_part("model", "Unigram of bytes");
    std::vector<double> scores;
    for (const Json& piece : part_list(model, "vocab")) {
      if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number())
        throw UserError(format("a token is {} and not a text and its score; fetch the file again", json_excerpt(piece)));
      name(part_id(scores.size(), piece[0].get<std::string>()), piece[0].get<std::string>());
      model_ids_[names_.back()] = narrow<TokenId>(scores.size());
      scores.push_back(piece[1].get<double>());
    }
    if (scores.empty()) throw UserError("its model has no vocabulary; fetch the file again");
    std::optional<TokenId> unknown;
    if (const Json& id = entry(model, "unk_id"); !id.is_null() && id != -1) unknown = part_id(id, "unk_id");
    if (unknown && static_cast<std::size_t>(*unknown) >= scores.size())
      throw UserError(format("its unk_id {} is not in its vocabulary; fetch the file again", *unknown));
    return {names_, std::move(scores), unknown, part_flag(model, "byte_fallback", false)};
  }

  /// Gives added tokens their ids, as Hugging Face's tokenizers does: a token of the model, or one that was added before, keeps
  /// its id. Any other token gets the id after all ids so far, which is at least the number of the model's tokens.
  void add_tokens(const TokenizerDescription& description) {
    const auto size = narrow<TokenId>(model_ids_.size());
    TokenId next = size;
    std::unordered_map<std::string, std::size_t> before;  // indices in added_
    std::vector<std::string> new_ones;
    for (AddedToken token : description.added) {
      const auto again = before.find(token.content);
      const auto in_model = model_ids_.find(token.content);
      const TokenId claimed = token.id;
      token.id = again != before.end() ? added_[again->second].id : in_model != model_ids_.end() ? in_model->second : next;
      if (claimed >= 0 && claimed != token.id)
        throw UserError(
            format("its added token \"{}\" has the id {} (Hugging Face's tokenizers gives it {} in any case); save the file "
                   "with Hugging Face's tokenizers",
                   excerpt(token.content), claimed, token.id));
      if (again != before.end()) {
        AddedToken& known = added_[again->second];
        token.normalized = token.is_normalized();
        token.special = token.special || known.special;
        known = token;
        continue;
      }
      if (claimed < 0 && in_model == model_ids_.end()) new_ones.push_back(format("{} {}", excerpt(token.content), token.id));
      next = std::max(next, token.id + 1);
      before.emplace(token.content, added_.size());
      name(token.id, token.content);
      added_.push_back(token);
    }
    if (!new_ones.empty())
      warnings_.push_back(format("special tokens that are in no vocabulary were added as new tokens, as in transformers: {}",
                                 fmt::to_string(fmt::join(new_ones, ", "))));
    for (AddedToken token : added_) {
      if (token.special && description.splits_special) continue;
      if (token.is_normalized()) {
        token.content = normalizer_(token.content);
        if (!token.content.empty()) when_normalized_.add(token);
      } else {
        as_they_are_.add(token);
      }
    }
    for (std::size_t id = 0; id < names_.size(); ++id) ids_.emplace(names_[id], narrow<TokenId>(id));
  }

  void check_claims(const TokenizerDescription& description) {
    for (const TokenClaim& claim : description.claims)
      if (const auto id = find(claim.content); id != claim.id)
        warnings_.push_back(
            format("in {} token {} is \"{}\", but another file of the tokenizer has precedence, as in transformers: {}",
                   claim.file, claim.id, excerpt(claim.content), id ? format("it is token {}", *id) : "it is no token"));
  }

  /// Sets cuts_. The text between added tokens may be cut if the normalizer and the pre-tokenizer allow it, and if either a
  /// piece ends at the cut or no token of the model spans it. The prefix of a text does not matter, because the part after a
  /// cut is tokenized with the character before the cut.
  void find_cuts() {
    if (!normalizer_.keeps_cuts() || !pre_tokenizer_.keeps_cuts()) return;
    if (pre_tokenizer_.joins_spaces() && !normalizer_.removes_spaces()) return;
    constexpr std::string_view sign = "\xE2\x96\x81";
    const CutRules any = {.after_any_letter = true};
    for (const AddedToken& token : added_) {
      const std::string& text = token.content;
      const auto is_there = [&](std::string_view space) { return reaches_across(text, space, any); };
      if (is_there(" ") || is_there("\n") || (token.is_normalized() && is_there(sign))) return;
      if (token.single_word && is_space(static_cast<unsigned char>(text[0]))) return;  // a match depends on earlier text
      // No cut after an added token: a section begins there, and some added tokens include the spaces after them.
      cuts_.not_after[static_cast<unsigned char>(text.back())] = true;
      const std::string normal = token.is_normalized() ? normalizer_(text) : "";
      if (!normal.empty()) cuts_.not_after[static_cast<unsigned char>(normal.back())] = true;
    }
    cuts_.at_space = cuts_.at_line_end = true;
    const bool pieces_end = pre_tokenizer_.ends_words() && !normalizer_.changes_spaces() && !normalizer_.changes_line_ends();
    const Bpe* const bpe = std::get_if<Bpe>(&model_);
    cuts_.after_any_letter = normalizer_.keeps_letters() && (pieces_end || (bpe && bpe->has_all_bytes() && !joins_bytes_));
    if (!pieces_end) {
      for (const std::string& token : bpe ? bpe->tokens() : std::get<Unigram>(model_).tokens()) {
        if (reaches_across(token, " ", cuts_) || reaches_across(token, sign, cuts_)) cuts_.at_space = false;
        if (reaches_across(token, "\n", cuts_)) cuts_.at_line_end = false;
      }
      // No cut after a character without a token, because it is dropped, or joined with unknown characters next to it.
      for (int c = 0; c < 128; ++c)
        if (const std::string text(1, static_cast<char>(c));
            !std::visit([&](const auto& model) { return model.find(text); }, model_))
          cuts_.not_after[static_cast<std::size_t>(c)] = true;
    }
    if (normalizer_.changes_line_ends()) cuts_.at_line_end = cuts_.at_line_end && cuts_.at_space;  // line feeds become spaces
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
          const Json& known = entry(entry(part, "special_tokens"), token);
          for (const Json& id : part_list(known, "ids")) (before ? before_ : after_).push_back(part_id(id, token));
        } else {
          throw unknown_part("piece of a template", json_excerpt(piece));
        }
      }
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      for (const auto& [key, ids] : {std::pair("cls", &before_), std::pair("sep", &after_)}) {
        const Json& token = part_list(part, key);
        if (token.size() != 2) throw unknown_part("post-processor", type);
        ids->push_back(part_id(token[1], key));
      }
    } else if (type != "ByteLevel") {
      throw unknown_part("post-processor", type);
    }
  }

  void read_decoder(const Json& part) {
    spelling_.texts = names_;
    for (const AddedToken& token : added_)
      if (token.is_normalized()) spelling_.texts[static_cast<std::size_t>(token.id)] = normalizer_(token.content);
    spelling_.fallback.assign(names_.size(), Spelling::is_text);
    add_decoder(part);
    if (part.is_null()) throw UserError("it has no decoder (its tokens cannot be converted to text); use a tokenizer with one");
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
      is_fused_ = true;
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
      const std::string what = part_text(part["pattern"], "String");
      if (std::size_t end = 0; is_fused_ && !what.empty() && (next_character(what, end), end < what.size()))
        throw unknown_part("decoder", "Replace of several characters, which may be those of two tokens");
      replace(what, part_text(part, "content"));
    } else if (type == "Metaspace") {
      replace(part_text(part, "replacement"), " ");
      const bool prepends = part.contains("prepend_scheme") ? part_text(part, "prepend_scheme") != "never"
                                                            : part_flag(part, "add_prefix_space", true);
      if (prepends) spelling_.first_loses = " ";
    } else if (type == "Strip") {
      const Json &start = entry(part, "start"), &stop = entry(part, "stop");
      if (start != 1 || stop != 0)
        throw unknown_part("decoder", format("Strip with start {} and stop {}", json_excerpt(start), json_excerpt(stop)));
      const std::string content = part_text(part, "content");
      if (is_fused_) {
        spelling_.first_loses = content;
      } else {
        const auto is_byte = [](std::int16_t byte) { return byte >= 0; };
        if (std::any_of(spelling_.fallback.begin(), spelling_.fallback.end(), is_byte)) spelling_.bytes_lose = content;
        for (std::string& text : spelling_.texts)
          if (text.starts_with(content)) text.erase(0, content.size());
      }
    } else if (type == "Fuse") {
      is_fused_ = true;
    } else {
      throw unknown_part("decoder", type);
    }
  }

  const ByteAlphabet alphabet_;
  const Normalizer normalizer_;
  const PreTokenizer pre_tokenizer_;
  std::vector<std::string> names_;                      // by id
  std::unordered_map<std::string, TokenId> model_ids_;  // ids of the model's own tokens, by text
  bool joins_bytes_ = false;                            // merges join byte tokens to other tokens
  const Model model_;
  std::vector<AddedToken> added_;
  AddedTokens as_they_are_, when_normalized_;
  Spelling spelling_;
  bool is_fused_ = false;  // the decoders that follow get all tokens joined to one text
  Vocabulary ids_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& file, bool is_json) {
  try {
    return std::make_unique<JsonTokenizer>(describe_tokenizer(file, is_json));
  } catch (const RunError&) {
    throw;
  } catch (const UserError& error) {
    throw UserError(format("'{}' is no tokenizer that can be used: {}", file.string(), error.what()));
  }
}

}  // namespace fsdp
