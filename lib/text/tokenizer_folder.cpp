#include "text/tokenizer_folder.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "text/json_parts.hpp"
#include "text/json_reader.hpp"
#include "text/sentencepiece_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;  // keeps the order of the keys, which may determine the order of new tokens

/// A tokenizer class of transformers. Its normalizer, pre-tokenizer and decoder (parts_of()) replace those of tokenizer.json,
/// except for `of_file`, which uses those of the file.
struct Class {
  enum class Kind { of_file, gpt2, qwen2, llama, gemma, xglm, gpt_neox };
  std::string_view name;
  Kind kind;
  /// Special tokens, by name, that the class has if tokenizer_config.json does not name them.
  std::initializer_list<std::pair<const char*, const char*>> tokens = {};
};
using Kind = Class::Kind;

constexpr std::string_view vocabulary_files[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
constexpr const char* end_of_text = "<|endoftext|>";

const Class classes[] = {
    {"TokenizersBackend", Kind::of_file},
    {"PreTrainedTokenizer", Kind::of_file},  // also PreTrainedTokenizerFast, because class_name() removes "Fast"
    {"BloomTokenizer", Kind::of_file},
    {"GPT2Tokenizer", Kind::gpt2, {{"bos_token", end_of_text}, {"eos_token", end_of_text}, {"unk_token", end_of_text}}},
    {"Qwen2Tokenizer", Kind::qwen2, {{"eos_token", end_of_text}, {"unk_token", end_of_text}, {"pad_token", end_of_text}}},
    {"LlamaTokenizer", Kind::llama, {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
    {"GemmaTokenizer",
     Kind::gemma,
     {{"bos_token", "<bos>"},
      {"eos_token", "<eos>"},
      {"unk_token", "<unk>"},
      {"pad_token", "<pad>"},
      {"mask_token", "<mask>"}}},
    {"XGLMTokenizer",
     Kind::xglm,
     {{"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"unk_token", "<unk>"},
      {"sep_token", "</s>"},
      {"pad_token", "<pad>"},
      {"cls_token", "<s>"}}},
    {"GPTNeoXTokenizer",
     Kind::gpt_neox,
     {{"bos_token", end_of_text}, {"eos_token", end_of_text}, {"unk_token", end_of_text}, {"pad_token", "<|padding|>"}}}};
const Class& of_file = classes[0];

/// The tokenizer classes that transformers has for model types. For the types in the last row transformers has none, and uses
/// the class that the files name.
constexpr std::pair<std::string_view, std::string_view> models_of_class[] = {
    {"GPT2Tokenizer", "gpt2 opt gpt_neo gptj phi codegen starcoder2 dbrx jais2 emu3"},
    {"Qwen2Tokenizer", "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe"},
    {"GPTNeoXTokenizer", "gpt_neox olmo olmoe mpt mamba mamba2 falcon_mamba rwkv xlstm"},
    {"GemmaTokenizer", "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma"},
    {"XGLMTokenizer", "xglm"},
    {"BioGptTokenizer", "biogpt"},
    {"CohereTokenizer", "cohere cohere2"},
    {"RobertaTokenizer", "roberta bart"},
    {"TokenizersBackend",
     "mistral mistral3 mixtral ministral ministral3 gpt_bigcode granite granitemoe olmo2 olmo3 phi3 phimoe stablelm persimmon "
     "glm glm4 nemotron jamba internlm2 internlm3 minicpm3 ernie4_5"},
    {"",
     "llama llama4 llama4_text falcon bloom deepseek_v2 deepseek_v3 exaone exaone4 gemma4 gemma4_text gpt_oss helium smollm3 "
     "apertus arcee bitnet nanochat seed_oss"}};

/// Returns nullopt for an unknown model type.
std::optional<std::string> class_of_model(const std::string& type) {
  for (const auto& [name, types] : models_of_class)
    if (format(" {} ", types).find(format(" {} ", type)) != std::string::npos) return std::string(name);
  return std::nullopt;
}

const Class* find_class(std::string_view name) {
  const auto found = std::find_if(std::begin(classes), std::end(classes), [&](const Class& one) { return one.name == name; });
  return found == std::end(classes) ? nullptr : found;
}

template <class List>
bool has(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}
bool is_named(const std::string& key) { return has(named_tokens, key); }

/// The keys of tokenizer_config.json that this program reads, and keys that do not change the tokens of a text.
constexpr std::string_view keys_used[] = {"added_tokens_decoder", "additional_special_tokens",
                                          "extra_special_tokens", "model_specific_special_tokens",
                                          "add_bos_token",        "add_eos_token",
                                          "add_prefix_space",     "legacy",
                                          "split_special_tokens", "tokenizer_class",
                                          "chat_template"};
constexpr std::string_view keys_of_no_effect[] = {"model_max_length",
                                                  "max_len",
                                                  "padding_side",
                                                  "truncation_side",
                                                  "padding",
                                                  "truncation",
                                                  "pad_to_multiple_of",
                                                  "pad_token_type_id",
                                                  "max_length",
                                                  "stride",
                                                  "truncation_strategy",
                                                  "model_input_names",
                                                  "return_token_type_ids",
                                                  "clean_up_tokenization_spaces",
                                                  "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                                                  "spaces_between_special_tokens",
                                                  "use_default_system_prompt",
                                                  "errors",
                                                  "trim_offsets",
                                                  "name_or_path",
                                                  "processor_class",
                                                  "special_tokens_map_file",
                                                  "tokenizer_file",
                                                  "vocab_file",
                                                  "merges_file",
                                                  "backend",
                                                  "files_loaded",
                                                  "is_local",
                                                  "local_files_only",
                                                  "use_fast",
                                                  "from_slow",
                                                  "verbose",
                                                  "device_map",
                                                  "response_schema",
                                                  "response_template",
                                                  "chat_control_tokens",
                                                  "transformers_version",
                                                  "_commit_hash"};

/// Returns true for null, false, and empty texts, lists and objects.
bool says_nothing(const Json& value) {
  return value.is_null() || value == false || ((value.is_string() || value.is_structured()) && value.empty()) || value == "";
}

/// The files next to a tokenizer's vocabulary. A missing file is {}. A vocabulary with a name of its own has none.
struct Folder {
  explicit Folder(const fs::path& vocabulary) : path(folder_of(vocabulary)) {
    if (!is_vocabulary_name(vocabulary.filename())) return;
    config = read_object_if_there<Ordered>(path / "tokenizer_config.json");
    map = read_object_if_there<Ordered>(path / "special_tokens_map.json");
    added = read_object_if_there(path / "added_tokens.json");
    model = read_object_if_there(path / "config.json");
  }
  fs::path path;
  Ordered config = Ordered::object(), map = Ordered::object();
  Json added = Json::object(), model = Json::object();
};

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

/// The tokenizer_class in tokenizer_config.json, or in config.json if the first has none.
std::string class_said(const Ordered& config, const Json& model) {
  const std::string named = text_of(entry(config, "tokenizer_class"));
  return named.empty() ? text_of(entry(model, "tokenizer_class")) : named;
}

/// The name of the class that transformers uses. `text` is the text of tokenizer.json, or empty.
std::string class_name(const Ordered& config, const Json& model, std::string_view text) {
  std::string named = class_said(config, model);
  if (named.ends_with("Fast")) named.resize(named.size() - 4);
  const std::string type = text_of(entry(model, "model_type"));
  const std::string registered = class_of_model(type).value_or("");
  if (named == "LlamaTokenizer" && registered != of_file.name && type != "qwen2" && text.find("\"ByteLevel\"") != text.npos)
    return std::string(of_file.name);
  if (named.empty()) return registered.empty() ? std::string(of_file.name) : registered;
  if (registered == of_file.name) return registered;
  return type == "qwen2" ? registered : named;  // transformers uses no other class for qwen2
}

/// Returns the text of a tokenizer_config.json with its tokenizer_class set. `is_alone` is true for a tokenizer.model without
/// tokenizer_config.json.
std::string config_with_class(Ordered config, std::string_view name, bool is_alone) {
  config["tokenizer_class"] = name == of_file.name ? "PreTrainedTokenizerFast" : std::string(name);
  if (is_alone) config["add_bos_token"] = true;  // with such a tokenizer.model <s> is put before texts
  return json_text(config, 2) + "\n";
}

AddedToken token_of(const Json& part) {
  AddedToken token{.content = part_text(part, "content"),
                   .single_word = part_flag(part, "single_word", false),
                   .takes_left = part_flag(part, "lstrip", false),
                   .takes_right = part_flag(part, "rstrip", false),
                   .special = part_flag(part, "special", false)};
  if (!entry(part, "normalized").is_null()) token.normalized = part_flag(part, "normalized", false);
  return token;
}

AddedToken special_token(std::string content) { return {.content = std::move(content), .special = true}; }

bool same_but_id(const AddedToken& a, const AddedToken& b) {
  return a.content == b.content && a.single_word == b.single_word && a.takes_left == b.takes_left &&
         a.takes_right == b.takes_right && a.is_normalized() == b.is_normalized() && a.special == b.special;
}

/// Reads an id that is a number or a text of digits.
TokenId claimed_id(const Json& id, std::string_view content) {
  if (!id.is_string()) return part_id(id, content);
  const auto& digits = id.get_ref<const std::string&>();
  const bool is_number = !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == digits.npos;
  return part_id(is_number ? Json(std::stoll(digits)) : id, content);
}

std::vector<AddedToken> tokens_of_file(const Json& file) {
  std::vector<AddedToken> tokens;
  const Json& list = entry(file, "added_tokens");
  if (list.is_null()) return tokens;
  if (!list.is_array()) throw UserError("its added tokens are no list; fetch the file again");
  for (const Json& part : list) {
    AddedToken token = token_of(part);
    if (token.content.empty()) continue;
    token.id = claimed_id(entry(part, "id"), token.content);
    tokens.push_back(token);
  }
  return tokens;
}

/// The normalizer, pre-tokenizer and decoder of a class.
Json parts_of(Kind kind, const Json& config) {
  const auto flag = [&](const char* key, bool missing) { return part_flag(config, key, missing); };
  const auto byte_level = [](bool prefix, bool words) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", words}};
  };
  const auto replace = [](const char* what, const char* with) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
  };
  const auto metaspace = [](const char* scheme, bool split) {
    return Json{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
  };
  Json parts = {{"normalizer", nullptr}, {"pre_tokenizer", nullptr}, {"decoder", {{"type", "ByteLevel"}}}};
  Json decoders = Json::array({replace("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  switch (kind) {
    case Kind::of_file:
      break;
    case Kind::gpt_neox:
    case Kind::gpt2:
      if (kind == Kind::gpt_neox) parts["normalizer"] = {{"type", "NFC"}};
      parts["pre_tokenizer"] = byte_level(flag("add_prefix_space", false), true);
      break;
    case Kind::qwen2:
      parts["normalizer"] = {{"type", "NFC"}};
      parts["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern",
              {{"Regex",
                R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            byte_level(flag("add_prefix_space", false), false)}}};
      break;
    case Kind::llama: {
      const bool prefix = flag("add_prefix_space", true);
      parts["pre_tokenizer"] = metaspace(!prefix ? "never" : flag("legacy", false) ? "always" : "first", false);
      if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
      parts["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
      break;
    }
    case Kind::gemma:
      parts["normalizer"] = replace(" ", "\u2581");
      parts["pre_tokenizer"] = {
          {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
      parts["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
      break;
    case Kind::xglm:
      parts["normalizer"] = {
          {"type", "Sequence"},
          {"normalizers", Json::array({{{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}})}};
      parts["pre_tokenizer"] = parts["decoder"] = metaspace(flag("add_prefix_space", true) ? "always" : "never", true);
      break;
  }
  return parts;
}

/// Sets the fields of the model that the class determines.
void set_model(Kind kind, Json& model, const std::string& unknown) {
  const bool falls_back = kind == Kind::llama || kind == Kind::gemma;
  if (kind == Kind::xglm) {
    if (entry(model, "type") != "Unigram")
      throw UserError("the model of an XGLMTokenizer must be Unigram; fetch the file again");
    model["unk_id"] = 3;
    model["byte_fallback"] = false;
    return;
  }
  if (model.contains("type") && model["type"] != "BPE") throw unknown_part("model", json_excerpt(model["type"]));
  model["type"] = "BPE";
  for (const char* const key : {"unk_token", "dropout", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"})
    model.erase(key);
  model["fuse_unk"] = model["byte_fallback"] = falls_back;
  if (kind == Kind::gemma) model["unk_token"] = unknown;
}

/// Rewrites a part so that parts with the same effect compare equal.
Json plain(Json part) {
  if (part.is_object() && part.contains("type")) {
    for (const char* const list : {"normalizers", "pretokenizers"})
      if (part.contains(list) && part[list].is_array()) {
        for (Json& one : part[list]) one = plain(one);
        if (part[list].size() == 1) return part[list][0];
      }
    part.erase("trim_offsets");
    if (part["type"] == "ByteLevel" && !part.contains("use_regex")) part["use_regex"] = true;
    if (part["type"] == "Metaspace") {
      if (!part.contains("prepend_scheme"))
        part["prepend_scheme"] = entry(part, "add_prefix_space") == false ? "never" : "always";
      if (!part.contains("split")) part["split"] = true;
      part.erase("add_prefix_space");
      part.erase("str_rep");
    }
  }
  return part;
}

class Description {
 public:
  explicit Description(const fs::path& file) : folder_(file), file_(file) {}

  TokenizerDescription make(bool is_json) {
    read_class(is_json);
    if (is_json) {
      read_tokenizer_json();
    } else if (file_.filename() == "vocab.json") {
      read_vocabulary();
    } else {
      read_sentencepiece_model();
    }
    read_added(is_json);
    add_tokens();
    set_texts_ends(is_json);
    // In texts for a model of SentencePiece with a name of its own, special tokens are text, as for its library.
    const bool is_of_library = !is_json && !is_vocabulary_name(file_.filename());
    made_.splits_special = part_flag(folder_.config, "split_special_tokens", is_of_library);
    warn_of_keys();
    return std::move(made_);
  }

 private:
  static UserError refuse(const std::string& what, const std::string& why) {
    return UserError(
        format("{} ({}); load the folder with transformers and save it with save_pretrained(), which makes a tokenizer.json",
               what, why));
  }
  void warn(std::string text) { made_.warnings.push_back(format("{}: {}", folder_.path.string(), text)); }

  static AddedToken token_said(const Json& value, const std::string& key) {
    if (value.is_string()) return special_token(value.get<std::string>());
    if (!value.is_object() || !value.contains("content"))
      throw UserError(
          format("its {} is {} (it must be a text, or an object with \"content\"); correct it", key, json_excerpt(value)));
    return token_of(value);
  }

  /// A token that a file names by its text, or by an object (`is_text` is false). transformers adds a text and an object with
  /// the same content as two tokens.
  struct Said {
    AddedToken token;
    bool is_text = true;
  };
  using SaidTokens = std::vector<Said>;
  static Said said(const Json& value, const std::string& key) { return {token_said(value, key), value.is_string()}; }
  static Said said_special(const Json& value, const std::string& key) {
    Said one = said(value, key);
    one.token.special = true;
    return one;
  }
  static SaidTokens said_in(const Json& list, const char* key) {
    if (!list.is_array()) throw UserError(format("its {} is {} and no list; correct it", key, json_excerpt(list)));
    SaidTokens tokens;
    for (const Json& one : list) tokens.push_back(said(one, key));
    return tokens;
  }
  static bool has_content(const SaidTokens& tokens, const std::string& content) {
    return std::any_of(tokens.begin(), tokens.end(), [&](const Said& one) { return one.token.content == content; });
  }

  void read_class(bool is_json) {
    if (is_json) text_ = read_text_file(file_, longest_tokenizer_json);
    const std::string name = class_name(folder_.config, folder_.model, text_);
    class_ = find_class(name);
    const std::string type = text_of(entry(folder_.model, "model_type"));
    if (!type.empty() && !class_of_model(type) && class_said(folder_.config, folder_.model).empty())
      warn(
          format("model_type {} of config.json is unknown here, and transformers may not use the tokenizer class {} for it; "
                 "compare the tokens, or name the right tokenizer_class in tokenizer_config.json",
                 excerpt(type), name));
    if (class_) return;
    if (!is_json && folder_.config.contains("tokenizer_class"))
      throw refuse(format("it is for the class {} of transformers, which is not known here", excerpt(name)),
                   format("'{}' does not have the rules of that class", file_.filename().string()));
    if (!is_json) throw refuse(format("it is a {}, which is not known here", excerpt(name)), "there is no tokenizer.json");
    warn(
        format("tokenizer_class {} is unknown here, so tokenizer.json is used, which transformers may not follow; compare the "
               "tokens with those of transformers",
               excerpt(name)));
    class_ = &of_file;
  }

  void read_tokenizer_json() {
    Json file = parse_json(text_);
    if (!file.is_object()) throw UserError("it is not a JSON object; give a tokenizer.json");
    file_tokens_ = tokens_of_file(file);
    made_.json = std::move(file);
    if (class_->kind == Kind::of_file) {
      backend_ = file_tokens_;
      return;
    }
    Json parts = parts_of(class_->kind, folder_.config);
    if (class_->kind == Kind::xglm)
      if (const Json map = charsmap_of(entry(made_.json, "normalizer")); !map.is_null())
        parts["normalizer"]["normalizers"].insert(parts["normalizer"]["normalizers"].begin(), map);
    std::string differ;
    for (const char* const key : {"normalizer", "pre_tokenizer"})
      if (plain(entry(made_.json, key)) != plain(parts[key])) differ += std::string(differ.empty() ? "" : " and ") + key;
    if (!differ.empty())
      warn(
          format("the {} of the class {} (tokenizer_config.json or config.json) is used instead of that of tokenizer.json, as "
                 "in transformers 5",
                 differ, class_->name));
    made_.json.update(parts);
    if (!entry(made_.json, "model").is_object()) throw UserError("it has no model; fetch the file again");
    set_model(class_->kind, made_.json["model"], unknown_token());
  }

  static Json charsmap_of(const Json& normalizer) {
    if (!normalizer.is_object()) return {};
    if (entry(normalizer, "type") == "Precompiled") return normalizer;
    if (entry(normalizer, "type") == "Sequence")
      for (const Json& one : part_list(normalizer, "normalizers"))
        if (entry(one, "type") == "Precompiled") return one;
    return {};
  }

  void read_vocabulary() {
    if (class_->kind != Kind::gpt2 && class_->kind != Kind::qwen2 && class_->kind != Kind::of_file)
      throw refuse(format("{} does not read vocab.json", class_->name), "it needs another file");
    const fs::path merges = folder_.path / "merges.txt";
    if (kind_of(merges) != PathKind::file)
      throw UserError("there is no merges.txt next to it (byte-pair encoding needs both files); fetch merges.txt, too");
    // If no file names a class, use GPT-2's. (transformers refuses these folders.)
    if (class_->kind == Kind::of_file) class_ = find_class("GPT2Tokenizer");
    Json model = {{"vocab", read_json_file(file_, longest_tokenizer_json)}, {"merges", merges_of_file(merges)}};
    for (const auto& [token, id] : model["vocab"].items())
      if (token.ends_with("</w>"))
        throw refuse("its tokens end words with </w>", "tokenizers of this kind, such as BioGPT's, split texts by other rules");
    set_model(class_->kind, model, "");
    made_.json = parts_of(class_->kind, folder_.config);
    made_.json["model"] = std::move(model);
  }

  /// Reads merges.txt: two tokens per line, except lines that begin with "#version".
  static Json merges_of_file(const fs::path& file) {
    Json merges = Json::array();
    std::istringstream lines(read_text_file(file, longest_tokenizer_json));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    }
    return merges;
  }

  void read_sentencepiece_model() {
    const SentencePieceFile model = read_sentencepiece_file(file_);
    if (class_->kind == Kind::of_file) {
      std::map<TokenId, std::string> names;
      for (const auto& [id, token] : entry(folder_.config, "added_tokens_decoder").items())
        names[claimed_id(id, part_text(token, "content"))] = part_text(token, "content");
      made_.json = describe_sentencepiece(model, names, part_flag(folder_.config, "legacy", true));
      if (model.bos >= 0) defaults_["bos_token"] = model.pieces[static_cast<std::size_t>(model.bos)].text;
      if (model.eos >= 0) defaults_["eos_token"] = model.pieces[static_cast<std::size_t>(model.eos)].text;
      if (model.unknown >= 0) defaults_["unk_token"] = model.pieces[static_cast<std::size_t>(model.unknown)].text;
      matches_before_prefix_ = model.adds_prefix;
    } else if (class_->kind == Kind::llama || class_->kind == Kind::gemma) {
      if (!model.is_bpe) throw refuse("it is no model of byte-pair encoding", format("{} needs one", class_->name));
      Json vocabulary = Json::object();
      for (std::size_t id = 0; id < model.pieces.size(); ++id) vocabulary[model.pieces[id].text] = id;
      Json description = {{"merges", merges_by_id(vocabulary)}, {"vocab", std::move(vocabulary)}};
      set_model(class_->kind, description, unknown_token());
      made_.json = parts_of(class_->kind, folder_.config);
      made_.json["model"] = std::move(description);
    } else {
      throw refuse(format("{} does not read tokenizer.model", class_->name), "it needs other files");
    }
    for (const SentencePieceFile::Piece& piece : model.pieces)
      if (piece.kind == SentencePieceFile::Kind::control || piece.kind == SentencePieceFile::Kind::user_defined) {
        AddedToken token = special_token(piece.text);
        token.special = piece.kind == SentencePieceFile::Kind::control;
        if (class_->kind == Kind::of_file && !token.special) continue;  // the described pre-tokenizer finds these pieces
        pieces_.push_back(token);
      }
  }

  /// Returns true if special_tokens_map.json determines this token.
  bool by_map(const std::string& key) const {
    return !folder_.config.contains("added_tokens_decoder") && folder_.map.contains(key);
  }
  /// The special token with this name, from special_tokens_map.json if by_map() is true, otherwise from tokenizer_config.json
  /// or the defaults.
  std::optional<Said> named(const std::string& key) const {
    const Json& value = entry(by_map(key) ? folder_.map : folder_.config, key);
    if (!by_map(key) && !folder_.config.contains(key)) {
      if (const auto found = defaults_.find(key); found != defaults_.end()) return Said{special_token(found->second)};
      for (const auto& [name, token] : class_->tokens)
        if (name == key) return Said{special_token(token)};
    }
    if (value.is_null()) return std::nullopt;
    return said_special(value, key);
  }
  std::string unknown_token() const {
    const auto one = named("unk_token");
    return one ? one->token.content : "<unk>";
  }

  /// Collects the tokens that files add to the vocabulary, in the order of their ids.
  void read_added(bool is_json) {
    std::map<TokenId, AddedToken> by_id;
    const Json& decoder = entry(folder_.config, "added_tokens_decoder");
    if (!decoder.is_null()) {
      if (!decoder.is_object()) throw UserError("its added_tokens_decoder is no object; fetch the file again");
      for (const auto& [id, part] : decoder.items()) {
        AddedToken token = token_of(part);
        token.id = claimed_id(id, token.content);
        by_id[token.id] = token;
      }
      for (const auto& [content, id] : folder_.added.items())
        made_.claims.push_back({"added_tokens.json", content, claimed_id(id, content)});
      if (is_json)
        for (const AddedToken& token : file_tokens_) made_.claims.push_back({"tokenizer.json", token.content, token.id});
    } else {
      std::set<std::string> special;
      for (const char* const key : named_tokens)
        if (const auto one = named(key); one && (by_map(key) || !entry(folder_.config, key).is_object()))
          special.insert(one->token.content);  // here transformers ignores objects in tokenizer_config.json
      for (const Said& one : extra())
        if (one.is_text) special.insert(one.token.content);  // and here objects in the lists of extra tokens
      for (const auto& [content, number] : folder_.added.items()) {
        AddedToken token = special_token(content);
        token.special = special.contains(content);
        token.normalized = !token.special;
        token.id = claimed_id(number, content);
        add_by_id(by_id, token);
      }
      for (const AddedToken& token : file_tokens_) add_by_id(by_id, token, true);
    }
    for (auto& [id, token] : by_id) {
      if (matches_before_prefix_) token.normalized = false;
      by_text_.emplace(token.content, token);
      to_add_.push_back(token);
    }
  }
  static void add_by_id(std::map<TokenId, AddedToken>& by_id, const AddedToken& token, bool replaces = false) {
    const auto [at, is_new] = by_id.emplace(token.id, token);
    if (!is_new && at->second.content != token.content)
      throw UserError(
          format("token {} is \"{}\" in one of its files and \"{}\" in another (added_tokens.json and tokenizer.json); "
                 "correct the wrong file",
                 token.id, excerpt(at->second.content), excerpt(token.content)));
    if (replaces) at->second = token;
  }

  /// The list additional_special_tokens, which transformers 5 calls extra_special_tokens. If both lists exist, the files and
  /// keys determine which one counts.
  SaidTokens extra() const {
    constexpr const char *new_key = "extra_special_tokens", *old_key = "additional_special_tokens";
    std::optional<SaidTokens> by_new, by_old;
    const Json &new_list = entry(folder_.config, new_key), &old_list = entry(folder_.config, old_key);
    const auto list_of = [](const Json& value, const char* key) {
      return value.is_null() ? SaidTokens() : said_in(value, key);
    };
    if (folder_.config.contains(new_key) && !new_list.is_object()) by_new = list_of(new_list, new_key);
    if (folder_.config.contains(old_key)) {
      by_old = list_of(old_list, old_key);
      if (says_nothing(new_list)) by_new = std::exchange(by_old, std::nullopt);
    }
    if (!folder_.config.contains("added_tokens_decoder")) {
      if (folder_.map.contains(old_key)) by_old = list_of(entry(folder_.map, old_key), old_key);
      if (const Json& more = entry(folder_.map, new_key); more.is_array()) {
        if (!by_new) by_new.emplace();
        for (const Json& one : more)
          if (const Said token = said_special(one, new_key); !has_content(*by_new, token.token.content))
            by_new->push_back(token);
      } else if (folder_.map.contains(new_key)) {
        by_new.reset();
      }
    }
    if (!pieces_.empty()) {
      by_old.emplace();
      for (const AddedToken& token : pieces_) by_old->push_back({token, false});
    }
    if (class_->kind == Kind::xglm) {
      if (!by_old) by_old.emplace();
      for (int i = 0; i < 7; ++i)
        if (const std::string word = format("<madeupword{}>", i); !has_content(*by_old, word))
          by_old->push_back({special_token(word)});
    }
    return by_new ? *by_new : by_old.value_or(SaidTokens());
  }

  /// Tokens by name, in the order in which the names were first set.
  class NamedTokens : public std::vector<std::pair<std::string, Said>> {
   public:
    const_iterator find(const std::string& key) const {
      return std::find_if(begin(), end(), [&](const auto& one) { return one.first == key; });
    }
    void set(const std::string& key, const Said& token) {
      if (const auto known = find(key); known != end())
        at(static_cast<std::size_t>(known - begin())).second = token;
      else
        emplace_back(key, token);
    }
  };

  /// Tokens with names that are not in `named_tokens`, such as image_token. As in transformers, objects in
  /// tokenizer_config.json and the tokens of special_tokens_map.json come first. Texts in tokenizer_config.json and the tokens
  /// of extra_special_tokens are added to them, or replace those of the same name. model_specific_special_tokens of
  /// tokenizer_config.json counts only if that file has neither of these.
  NamedTokens specific() const {
    NamedTokens tokens, listed;
    const auto add = [&](const Ordered& object, bool is_map) {
      for (const auto& [key, value] : object.items()) {
        if (!key.ends_with("_token") || is_named(key)) continue;
        if (value.is_object() && (is_map || value.contains("__type"))) tokens.set(key, said_special(value, key));
        if (value.is_string()) (is_map ? tokens : listed).set(key, said_special(value, key));
      }
    };
    const auto add_list = [&](const Ordered& list) {
      if (list.is_object())
        for (const auto& [key, value] : list.items()) listed.set(key, said_special(value, key));
    };
    add(folder_.config, false);
    add_list(entry(folder_.config, "extra_special_tokens"));
    if (listed.empty()) add_list(entry(folder_.config, "model_specific_special_tokens"));
    if (!folder_.config.contains("added_tokens_decoder")) {
      add(folder_.map, true);
      add_list(entry(folder_.map, "extra_special_tokens"));
    }
    for (const auto& [key, token] : listed) tokens.set(key, token);
    return tokens;
  }

  /// Adds tokens in transformers' order: tokens with ids, tokens with names, other tokens.
  void add_tokens() {
    NamedTokens special;
    const NamedTokens own_names = specific();
    for (const char* const key : named_tokens)
      if (const auto other = own_names.find(key); other != own_names.end())
        special.push_back(*other);
      else if (const auto token = named(key))
        special.emplace_back(key, *token);
    for (const auto& one : own_names)
      if (!is_named(one.first)) special.push_back(one);
    std::set<std::string> with_names;
    for (auto& [key, one] : special) {
      made_.special_tokens[key] = one.token.content;
      with_names.insert(one.token.content);
      if (const auto known = by_text_.find(one.token.content); known != by_text_.end() && is_named(key))
        one = {known->second, false};
    }
    for (AddedToken& token : to_add_) token.special = token.special || with_names.contains(token.content);
    for (Said& one : extra()) {
      one.token.special = one.token.special || with_names.contains(one.token.content);
      special.emplace_back("", std::move(one));
    }
    made_.added = backend_;
    std::set<std::string> there;
    for (const std::vector<AddedToken>* const tokens : {&backend_, &to_add_})
      for (const AddedToken& token : *tokens) there.insert(token.content);
    made_.added.insert(made_.added.end(), to_add_.begin(), to_add_.end());
    SaidTokens more;
    for (const auto& [key, one] : special) {
      const auto is_same = [&, &now = one](const Said& other) {
        return other.is_text == now.is_text && same_but_id(other.token, now.token);
      };
      if (!there.contains(one.token.content) && std::none_of(more.begin(), more.end(), is_same)) more.push_back(one);
    }
    for (const Said& one : more) made_.added.push_back(one.token);
    if (class_->kind == Kind::qwen2)
      for (const auto& [key, one] : special) made_.added.push_back(special_token(one.token.content));
    std::erase_if(made_.added, [](const AddedToken& token) { return token.content.empty(); });
    for (const auto& [key, value] : folder_.map.items())
      if (const auto found = made_.special_tokens.find(key); is_named(key) && !value.is_null()) {
        const std::string here = token_said(value, key).content;
        const Json& other = entry(folder_.config, key);
        const std::string there_said = other.is_null() ? "" : token_said(other, key).content;
        if (!there_said.empty() && there_said != here)
          warn(
              format("{} is \"{}\" in special_tokens_map.json and \"{}\" in tokenizer_config.json; \"{}\" is used, as in "
                     "transformers",
                     key, excerpt(here), excerpt(there_said), excerpt(found->second)));
      }
  }

  void set_texts_ends(bool is_json) {
    const auto add = [&](std::vector<std::string>& to, const char* name) {
      if (const auto found = made_.special_tokens.find(name); found != made_.special_tokens.end()) to = {found->second};
    };
    if (class_->kind == Kind::xglm || class_->kind == Kind::gpt_neox) made_.json.erase("post_processor");
    if (class_->kind == Kind::xglm) add(made_.before_text, "eos_token");
    if (is_json) return;  // the post-processor of tokenizer.json does this
    // A model of SentencePiece without tokenizer_config.json puts <s> before texts, as its users expect.
    const bool is_alone = class_->kind == Kind::of_file && folder_.config.empty();
    if (part_flag(folder_.config, "add_bos_token", is_alone)) add(made_.before_text, "bos_token");
    if (part_flag(folder_.config, "add_eos_token", false)) add(made_.after_text, "eos_token");
  }

  void warn_of_keys() {
    std::string unknown;
    for (const auto& [key, value] : folder_.config.items()) {
      if (has(keys_used, key) || has(keys_of_no_effect, key) || key.ends_with("_token") || says_nothing(value)) continue;
      unknown += (unknown.empty() ? "" : ", ") + excerpt(key);
    }
    if (!unknown.empty())
      warn(
          format("tokenizer_config.json has keys that are unknown here and may change tokens ({}); compare the tokens with "
                 "those of transformers",
                 unknown));
  }

  const Folder folder_;
  const fs::path& file_;
  std::string text_;  // contents of tokenizer.json
  const Class* class_ = nullptr;
  std::vector<AddedToken> file_tokens_;  // added tokens of tokenizer.json
  std::vector<AddedToken> backend_;      // tokens of tokenizer.json that get their ids before all others
  std::vector<AddedToken> to_add_;       // in the order of their ids
  std::vector<AddedToken> pieces_;       // control symbols and user-defined symbols of tokenizer.model
  std::map<std::string, AddedToken> by_text_;
  std::map<std::string, std::string> defaults_;  // special tokens of tokenizer.model, by name
  bool matches_before_prefix_ = false;
  TokenizerDescription made_;
};

}  // namespace

bool is_vocabulary_name(const std::string& name) { return has(vocabulary_files, name); }

fs::path vocabulary_in(const fs::path& folder) {
  const auto found = std::find_if(std::begin(vocabulary_files), std::end(vocabulary_files),
                                  [&](std::string_view name) { return kind_of(folder / name) == PathKind::file; });
  return found == std::end(vocabulary_files) ? fs::path() : folder / *found;
}

TokenizerDescription describe_tokenizer(const fs::path& file, bool is_json) { return Description(file).make(is_json); }

std::string config_that_travels(const fs::path& folder) {
  const fs::path config_file = folder / "tokenizer_config.json", vocabulary = vocabulary_in(folder);
  const std::string own = kind_of(config_file) == PathKind::file ? read_text_file(config_file) : std::string();
  std::string problem;
  const Ordered config = own.empty() ? Ordered::object() : read_json_in_order(own, problem);
  if (!config.is_object() || vocabulary.empty()) return own;
  const bool is_json = vocabulary.filename() == "tokenizer.json";
  const std::string text = is_json ? read_text_file(vocabulary, longest_tokenizer_json) : std::string();
  std::string name = class_name(config, read_object_if_there(folder / "config.json"), text);
  if (config.contains("tokenizer_class") && class_name(config, Json::object(), text) == name) return own;
  if (name == of_file.name && vocabulary.filename() == "vocab.json") name = "GPT2Tokenizer";
  return config_with_class(config, name, own.empty() && vocabulary.filename() == "tokenizer.model");
}

std::string config_that_travels_alone(bool is_json) { return config_with_class(Ordered::object(), of_file.name, !is_json); }

}  // namespace fsdp
