#include "text/sentencepiece_file.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "files/input_file.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

using Json = nlohmann::json;

/// A field of a protocol buffer.
struct ProtoField {
  std::uint64_t number = 0;
  std::uint64_t value = 0;  // an integer, or the bits of a float
  std::string_view bytes;   // a text or a message
};

/// Takes the next field from `message`. Throws UserError if there is none.
ProtoField take_field(std::string_view& message) {
  const auto broken = [] {
    return UserError("it is no model of SentencePiece (it is another file, or damaged); fetch it again");
  };
  const auto take_integer = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (message.empty()) throw broken();
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    throw broken();
  };
  const auto take_bytes = [&](std::uint64_t size) {
    if (size > message.size()) throw broken();
    const std::string_view bytes = message.substr(0, size);
    message.remove_prefix(size);
    return bytes;
  };
  const std::uint64_t tag = take_integer();
  ProtoField field;
  field.number = tag >> 3;
  switch (tag & 7) {
    case 0:
      field.value = take_integer();
      break;
    case 1:
    case 5: {
      const std::string_view bytes = take_bytes((tag & 7) == 1 ? 8 : 4);
      for (std::size_t i = bytes.size(); i-- > 0;) field.value = field.value << 8 | static_cast<unsigned char>(bytes[i]);
      break;
    }
    case 2:
      field.bytes = take_bytes(take_integer());
      break;
    default:
      throw broken();
  }
  return field;
}

/// Calls do_it(left, right) for each way to cut a text between two characters.
template <class Do>
void for_each_cut(std::string_view text, const Do& do_it) {
  for (std::size_t at = 0; at < text.size();) {
    next_character(text, at);
    if (at < text.size()) do_it(text.substr(0, at), text.substr(at));
  }
}

Json replace(const char* kind, const char* what, const char* with) {
  return {{"type", "Replace"}, {"pattern", {{kind, what}}}, {"content", with}};
}

}  // namespace

SentencePieceFile read_sentencepiece_file(const std::filesystem::path& file) {
  constexpr std::size_t longest_model = std::size_t{64} << 20;
  const std::string text = read_text_file(file, longest_model);
  SentencePieceFile model;
  std::uint64_t kind = 1;
  for (std::string_view rest = text; !rest.empty();) {
    const ProtoField part = take_field(rest);
    std::string_view inside = part.bytes;
    if (part.number == 1) {
      SentencePieceFile::Piece piece;
      while (!inside.empty()) {
        const ProtoField field = take_field(inside);
        if (field.number == 1) piece.text = field.bytes;
        if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
        if (field.number == 3) piece.kind = static_cast<SentencePieceFile::Kind>(field.value);
      }
      model.pieces.push_back(std::move(piece));
    } else if (part.number == 2) {
      while (!inside.empty()) {
        const ProtoField field = take_field(inside);
        const auto id = static_cast<TokenId>(field.value);
        if (field.number == 3) kind = field.value;
        if (field.number == 35) model.byte_fallback = field.value != 0;
        if (field.number == 40) model.unknown = id;
        if (field.number == 41) model.bos = id;
        if (field.number == 42) model.eos = id;
      }
    } else if (part.number == 3) {
      while (!inside.empty()) {
        const ProtoField field = take_field(inside);
        if (field.number == 2) model.charsmap = field.bytes;
        if (field.number == 3) model.adds_prefix = field.value != 0;
        if (field.number == 4) model.removes_spaces = field.value != 0;
        if (field.number == 5) model.escapes_spaces = field.value != 0;
      }
    }
  }
  if (model.pieces.empty()) throw UserError("it is no model of SentencePiece (it has no pieces); fetch it again");
  if (kind != 1 && kind != 2)
    throw UserError("it is a model of words or characters (Unigram and byte-pair encoding are known); use another tokenizer");
  model.is_bpe = kind == 2;
  for (TokenId* const id : {&model.unknown, &model.bos, &model.eos})
    if (*id >= narrow<TokenId>(model.pieces.size())) *id = -1;
  for (const SentencePieceFile::Piece& piece : model.pieces)
    if (valid_until(piece.text) < piece.text.size())
      throw UserError("one of its pieces is not UTF-8 (the file is damaged); fetch it again");
  return model;
}

Json describe_sentencepiece(const SentencePieceFile& model, const std::map<TokenId, std::string>& names, bool legacy) {
  const auto id_of = [](std::size_t i) { return narrow<TokenId>(i); };
  std::unordered_map<std::string_view, std::size_t> kept;  // pieces that `names` does not rename
  for (std::size_t i = 0; i < model.pieces.size(); ++i)
    if (!names.contains(id_of(i))) kept.emplace(model.pieces[i].text, i);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const auto name = names.find(id_of(i));
    const bool is_renamed = model.is_bpe && name != names.end() && !kept.contains(name->second);
    texts.push_back(is_renamed ? name->second : model.pieces[i].text);
  }
  std::vector<std::string> user_defined;
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (model.pieces[i].kind == SentencePieceFile::Kind::user_defined) user_defined.push_back(texts[i]);

  Json described = {{"type", model.is_bpe ? "BPE" : "Unigram"}, {"byte_fallback", model.byte_fallback}};
  if (model.is_bpe) {
    std::unordered_map<std::string_view, std::size_t> normal;
    Json vocabulary = Json::object();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      vocabulary[texts[i]] = i;
      if (model.pieces[i].kind == SentencePieceFile::Kind::normal) normal[texts[i]] = i;
    }
    std::vector<std::tuple<float, std::size_t, std::string_view, std::string_view>> ranked;
    for (const auto& [token, i] : normal)
      for_each_cut(token, [&, i = i](std::string_view left, std::string_view right) {
        if (normal.contains(left) && normal.contains(right)) ranked.emplace_back(-model.pieces[i].score, i, left, right);
      });
    std::sort(ranked.begin(), ranked.end());
    Json merges = Json::array();
    for (const auto& [score, i, left, right] : ranked) merges.push_back(Json::array({std::string(left), std::string(right)}));
    described["vocab"] = std::move(vocabulary);
    described["merges"] = std::move(merges);
    described["fuse_unk"] = true;
    described["ignore_merges"] = !user_defined.empty();
    if (model.unknown >= 0) described["unk_token"] = texts[static_cast<std::size_t>(model.unknown)];
  } else {
    Json vocabulary = Json::array();
    for (std::size_t i = 0; i < texts.size(); ++i) vocabulary.push_back(Json::array({texts[i], model.pieces[i].score}));
    described["vocab"] = std::move(vocabulary);
    described["unk_id"] = model.unknown;
  }

  Json normalizers = Json::array(), pre_tokenizers = Json::array();
  if (!model.charsmap.empty()) normalizers.push_back({{"type", "Precompiled"}, {"bytes", model.charsmap}});
  if (model.removes_spaces) {
    normalizers.push_back(replace("Regex", R"(\A +| +\z)", ""));
    normalizers.push_back(replace("Regex", " {2,}", " "));
  }
  if (model.escapes_spaces) normalizers.push_back(replace("String", " ", "\u2581"));
  if (model.adds_prefix && legacy) normalizers.push_back(replace("Regex", "\\A\u2581", "\u2581\u2581"));
  if (model.adds_prefix)
    pre_tokenizers.push_back(
        {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", legacy ? "always" : "first"}, {"split", false}});
  if (!user_defined.empty()) {
    std::stable_sort(user_defined.begin(), user_defined.end(),
                     [](const std::string& a, const std::string& b) { return characters_in(a) > characters_in(b); });
    std::string expression;
    for (const std::string& text : user_defined) {
      if (!expression.empty()) expression += '|';
      for (const char c : text) {
        if (std::string_view("\\^$.|?*+()[]{}-&~# \t\n\r\v\f").find(c) != std::string_view::npos) expression += '\\';
        expression += c;
      }
    }
    pre_tokenizers.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  Json decoders = Json::array({replace("String", "\u2581", " ")});
  if (model.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  if (model.adds_prefix || model.byte_fallback) decoders.push_back({{"type", "Fuse"}});
  if (model.adds_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"model", std::move(described)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pre_tokenizers}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

Json merges_by_id(const Json& vocabulary) {
  struct Merge {
    TokenId id;
    std::size_t left_size, right_size;
    TokenId left_id, right_id;
    std::string_view left, right;
    auto key() const { return std::tuple(id, left_size, right_size, left_id, right_id); }
  };
  std::unordered_map<std::string_view, TokenId> ids;
  for (const auto& [token, id] : vocabulary.items()) ids.emplace(token, id.get<TokenId>());
  std::vector<Merge> merges;
  for (const auto& [token, id] : ids)
    for_each_cut(token, [&, id = id](std::string_view left, std::string_view right) {
      const auto a = ids.find(left), b = ids.find(right);
      if (a != ids.end() && b != ids.end())
        merges.push_back({id, characters_in(left), characters_in(right), a->second, b->second, left, right});
    });
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.key() < b.key(); });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back(Json::array({std::string(merge.left), std::string(merge.right)}));
  return list;
}

}  // namespace fsdp
