// Ids and texts are those of Hugging Face's tokenizers: for the parts of every family, on a sample of all kinds of text
// (golden/tokenizers, make.py). Unknown parts are refused by name.
#include <boost/test/unit_test.hpp>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "base/error.hpp"
#include "files/json.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokenizer_folders.hpp"
#include "text/end_tokens.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_files.hpp"
#include "text/utf8.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::filesystem::path data = FSDP_TEST_DATA "/tokenizers";

/// Returns the error for gpt2.json after `change`.
template <class Change>
std::string complaint(const Change& change) {
  const TemporaryFolder folder;
  nlohmann::json json = read_json_file(data / "gpt2.json");
  change(json);
  write_file(folder / "tokenizer.json", json.dump());
  return message_of([&] { open_tokenizer((folder / "tokenizer.json").string()); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(ids_and_texts_are_those_of_hugging_face) {
  const nlohmann::json expected = read_json_file(data / "expected.json");
  const std::string sample = read_file(data / "sample.txt");
  BOOST_TEST(valid_until(sample) < sample.size());
  BOOST_TEST(expected["tokenizers"].size() == 14u);
  for (const auto& [name, of_it] : expected["tokenizers"].items()) {
    BOOST_TEST_CONTEXT(name) {
      const auto tokenizer = open_tokenizer((data / (name + ".json")).string());
      const auto ids = tokenizer->encode(sample), wanted = of_it["ids"].get<std::vector<TokenId>>();
      BOOST_TEST(ids == wanted, boost::test_tools::per_element());
      BOOST_TEST(tokenizer->encode(sample) == wanted);  // now with a filled cache
      BOOST_TEST(tokenizer->vocab_size() == of_it["size"].get<std::size_t>());
      BOOST_TEST(tokenizer->decode(ids) == of_it["text"].get<std::string>());

      std::vector<TokenId> around = tokenizer->before_text();
      tokenizer->encode("x", around);
      around.insert(around.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
      BOOST_TEST(around == of_it["x"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(folders_are_read_as_autotokenizer_does) { check_tokenizer_folders(data / "folders.json", data); }

BOOST_AUTO_TEST_CASE(files_that_name_different_end_tokens_are_named) {
  const TemporaryFolder folder;
  const auto contradiction = [&](const std::string& config, const std::string& generation) {
    write_file(folder / "config.json", R"({"eos_token_id": )" + config + "}");
    write_file(folder / "generation_config.json", generation);
    const EndTokens end = find_end_tokens(folder.path(), {}, nullptr, 16);
    BOOST_TEST(std::set<TokenId>(end.ids.begin(), end.ids.end()) == (std::set<TokenId>{3, 14}),
               boost::test_tools::per_element());
    return end.contradiction;
  };
  BOOST_TEST(contradiction("3", R"({"eos_token_id": [14, 3]})") == "");
  BOOST_TEST(contradiction("[14, 3]", R"({"eos_token_id": [3, 14]})") == "");
  BOOST_TEST(contradiction("[14, 3]", R"({"temperature": 1})") == "");
  CHECK_CONTAINS(contradiction("[14, 3]", R"({"eos_token_id": 3})"), "config.json 14 and 3, generation_config.json 3");
}

BOOST_AUTO_TEST_CASE(files_of_a_folder_that_contradict_each_other_are_named) {
  const nlohmann::json endoftext = {{"content", "<|endoftext|>"}, {"special", true}};
  const auto warnings = [&](const nlohmann::json& files, const std::string& base = "gpt2",
                            const std::string& main = "tokenizer.json") {
    const TemporaryFolder folder;
    write_tokenizer_folder({{"base", base}, {"main", main}, {"files", files}}, data, folder.path());
    std::string all;
    const auto tokenizer = open_tokenizer(folder.path().string());
    for (const std::string& warning : tokenizer->warnings()) all += warning + "\n";
    return all;
  };
  BOOST_TEST(warnings({{"tokenizer_config.json",
                        {{"eos_token", "<|endoftext|>"}, {"model_max_length", 1024}, {"errors", "replace"}}}}) == "");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"fix_mistral_regex", true}, {"do_lower_case", false}}}}),
                 "has keys that are unknown here and may change tokens (fix_mistral_regex)");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"eos_token", "<|endoftext|>"}}},
                           {"special_tokens_map.json", {{"eos_token", "a"}}}}),
                 "eos_token is \"a\" in special_tokens_map.json and \"<|endoftext|>\" in tokenizer_config.json; \"a\" is used");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"eos_token", "<|end|>"}}}}),
                 "were added as new tokens, as in transformers: <|end|> 500");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"added_tokens_decoder", {{"0", endoftext}}}}},
                           {"added_tokens.json", {{"<x>", 500}}}}),
                 "in added_tokens.json token 500 is \"<x>\", but another file of the tokenizer has precedence");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"tokenizer_class", "CohereTokenizer"}}}}),
                 "tokenizer_class CohereTokenizer is unknown here");
  for (const char* const type : {"made_up", "cohere", "bart"})
    CHECK_CONTAINS(warnings({{"config.json", {{"model_type", type}}}}), " is unknown here, ");
  BOOST_TEST(warnings({{"config.json", {{"model_type", "llama"}}}}) == "");
  BOOST_TEST(warnings({{"config.json", {{"model_type", "made_up"}}},
                       {"tokenizer_config.json", {{"tokenizer_class", "PreTrainedTokenizerFast"}}}}) == "");
  CHECK_CONTAINS(warnings({{"tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"}}}}, "qwen2"),
                 "the normalizer and pre_tokenizer of the class GPT2Tokenizer (tokenizer_config.json or config.json) is used");
  const auto refusal = [&](const nlohmann::json& files, const std::string& base = "gpt2",
                           const std::string& main = "tokenizer.json") {
    return message_of([&] { warnings(files, base, main); });
  };
  CHECK_CONTAINS(refusal({{"added_tokens.json", {{"<x>", 501}}}}),
                 "\"<x>\" has the id 501 (Hugging Face's tokenizers gives it 500");
  CHECK_CONTAINS(refusal({{"added_tokens.json", {{"<x>", 0}}}}),
                 "token 0 is \"<x>\" in one of its files and \"<|endoftext|>\" in another");
  CHECK_CONTAINS(refusal({{"tokenizer_config.json", {{"added_tokens_decoder", {{"7", endoftext}}}}}}), "has the id 7");
  CHECK_CONTAINS(refusal({{"tokenizer_config.json", {{"eos_token", 5}}}}), "its eos_token is 5 (it must be a text");
  CHECK_CONTAINS(refusal({{"config.json", {{"model_type", "biogpt"}}}}, "gpt2", "vocab.json"),
                 "it is a BioGptTokenizer, which is not known here");
  CHECK_CONTAINS(refusal({{"tokenizer_config.json", {{"tokenizer_class", "T5Tokenizer"}}}}, "bpe", "tokenizer.model"),
                 "it is for the class T5Tokenizer of transformers, which is not known here");
}

BOOST_AUTO_TEST_CASE(a_copy_without_config_json_gives_the_same_tokens) {
  const TemporaryFolder folder, copy;
  const nlohmann::json config = {{"tokenizer_class", "LlamaTokenizer"}, {"eos_token", "<|end|>"}};
  for (const char* const type : {"mistral", "llama", "qwen3"}) {
    std::filesystem::remove(folder / "tokenizer.json");
    const nlohmann::json files = {{"config.json", {{"model_type", type}}}, {"tokenizer_config.json", config}};
    write_tokenizer_folder({{"base", "llama2"}, {"main", "tokenizer.json"}, {"files", files}}, data, folder.path());
    for (const TokenizerFile& file : read_files_of_tokenizer(folder.path().string())) write_file(copy / file.name, file.text);
    BOOST_TEST(!std::filesystem::exists(copy / "config.json"));
    const auto own = open_tokenizer(folder.path().string()), copied = open_tokenizer(copy.path().string());
    const std::string text = " In the</s> beginning<|end|>God";
    BOOST_TEST(own->encode(text) == copied->encode(text));
    BOOST_TEST(own->special_tokens() == copied->special_tokens());
    BOOST_TEST(sum_of_tokenizer(folder.path().string()) == sum_of_tokenizer(copy.path().string()));
  }
  // A tokenizer without these files, next to a model of any kind.
  for (const char* const name : {"smollm2.json", "bpe.model"}) {
    const TemporaryFolder other;
    write_file(other / "config.json", R"({"model_type": "gpt2"})");
    for (const TokenizerFile& file : read_files_of_tokenizer((data / name).string())) write_file(other / file.name, file.text);
    const auto own = open_tokenizer((data / name).string()), copied = open_tokenizer(other.path().string());
    const std::string text = " In 1980, the beginning \u00e9.";
    BOOST_TEST(own->encode(text) == copied->encode(text));
    BOOST_TEST(own->before_text() == copied->before_text());
  }
  const std::string before = sum_of_tokenizer(copy.path().string());
  write_file(copy / "added_tokens.json", "{}");
  BOOST_TEST(sum_of_tokenizer(copy.path().string()) != before);
}

BOOST_AUTO_TEST_CASE(new_tokens_keep_the_order_of_their_names_in_a_copy) {
  const TemporaryFolder folder, copy;
  std::filesystem::copy(data / "gpt2.json", folder / "tokenizer.json");
  write_file(folder / "config.json", R"({"model_type": "llama"})");
  write_file(folder / "tokenizer_config.json", R"({"extra_special_tokens": {"video_token": "<v>", "audio_token": "<a>"}})");
  for (const TokenizerFile& file : read_files_of_tokenizer(folder.path().string())) write_file(copy / file.name, file.text);
  for (const std::string& where : {folder.path().string(), copy.path().string()}) {
    const auto tokenizer = open_tokenizer(where);
    BOOST_TEST(tokenizer->find("<v>").value() == 500);
    BOOST_TEST(tokenizer->find("<a>").value() == 501);
  }
}

// Texts are those of transformers' decode(skip_special_tokens=True).
BOOST_AUTO_TEST_CASE(decoders_work_on_tokens_until_they_are_one_text) {
  const TemporaryFolder folder;
  const auto text_of = [&](const nlohmann::json& decoders, const std::vector<std::string>& tokens) {
    nlohmann::json json = read_json_file(data / "llama2.json");
    json["added_tokens"].push_back(
        {{"id", json["model"]["vocab"]["God"]}, {"content", "God"}, {"special", false}, {"normalized", true}});
    json["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    write_file(folder / "tokenizer.json", json.dump());
    const auto tokenizer = open_tokenizer((folder / "tokenizer.json").string());
    std::vector<TokenId> ids;
    for (const std::string& token : tokens) ids.push_back(tokenizer->find(token).value());
    return tokenizer->decode(ids);
  };
  const auto replace = [](const std::string& what) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", " "}};
  };
  const nlohmann::json bytes = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}},
                       strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const std::string sign = "\u2581";
  const nlohmann::json usual = {replace(sign), bytes, fuse, strip};
  BOOST_TEST(text_of(usual, {"<0xCC>", "<0xBC>", "<s>", "<0xA2>"}) == "\ufffd\ufffd\ufffd");
  BOOST_TEST(text_of(usual, {"<0xCC>", "<s>", "<0xBC>"}) == "\u033c");
  BOOST_TEST(text_of(usual, {sign + "the", sign + "the", "God"}) == "the the God");
  BOOST_TEST(text_of({replace(sign), bytes, strip}, {sign + "the", sign + "the", "<0x20>", "<0x41>"}) == "thetheA");
  CHECK_CONTAINS(message_of([&] { text_of({bytes, fuse, replace(sign + sign)}, {}); }), "Replace of several characters");
}

BOOST_AUTO_TEST_CASE(a_stream_hands_out_whole_characters) {
  const std::string sample = with_replacements(read_file(data / "sample.txt"));
  for (const char* const name : {"gpt2", "qwen2", "llama2", "metaspace"}) {
    const auto tokenizer = open_tokenizer((data / (std::string(name) + ".json")).string());
    const auto ids = tokenizer->encode(sample);
    const auto decoder = tokenizer->make_decoder();
    for (int again = 0; again < 2; ++again) {
      std::string all;
      std::size_t pieces = 0;
      for (const TokenId id : ids) {
        std::string piece;
        decoder->add(id, piece);
        pieces += !piece.empty();
        if (valid_until(piece) < piece.size()) BOOST_ERROR(name << " hands out a part of a character");
        all += piece;
      }
      decoder->finish(all);
      BOOST_TEST(all == tokenizer->decode(ids));
      BOOST_TEST(pieces > ids.size() / 3);
    }
    std::string none;
    decoder->add(-1, none);
    decoder->add(1 << 30, none);
    BOOST_TEST(none == "");
  }
}

BOOST_AUTO_TEST_CASE(bytes_are_their_own_tokens) {
  const auto tokenizer = open_tokenizer("bytes");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto ids = tokenizer->encode(all);
  for (std::size_t i = 0; i < 256; ++i) BOOST_TEST(ids[i] == static_cast<TokenId>(i));
  BOOST_TEST(tokenizer->decode(tokenizer->encode("\u20ac\xff!")) == "\u20ac\ufffd!");
  BOOST_TEST(tokenizer->find("A").value() == 65);
  BOOST_TEST(!tokenizer->find("AB"));
}

BOOST_AUTO_TEST_CASE(a_model_of_sentencepiece) {
  const TemporaryFolder folder;
  const std::string sample = with_replacements(read_file(data / "sample.txt"));
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += sample + "\n";
  write_file(folder / "text", lines);
  const auto trained = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + (folder / "text").string() + " --model_prefix=" + (folder / "tokenizer").string() +
      " --model_type=bpe --vocab_size=600 --byte_fallback=true --minloglevel=2 --normalization_rule_name=identity "
      "--remove_extra_whitespaces=false --hard_vocab_limit=false");
  BOOST_TEST_REQUIRE(trained.ok());
  const auto tokenizer = open_tokenizer(folder.path().string());  // the folder has a tokenizer.model
  CHECK_CONTAINS(tokenizer->description(), "character-level BPE of ");
  std::filesystem::copy(folder / "tokenizer.model", folder / "by-itself.model");
  const auto by_itself = open_tokenizer((folder / "by-itself.model").string());
  const std::string text = "In the beginning  God\n\tcreated \u9f98 \U0001f600.";
  sentencepiece::SentencePieceProcessor theirs;
  BOOST_TEST_REQUIRE(theirs.Load((folder / "by-itself.model").string()).ok());
  std::istringstream all(sample + "\n" + text);
  for (std::string line; std::getline(all, line);) BOOST_TEST_CONTEXT(line) {
      const std::vector<TokenId> wanted = theirs.EncodeAsIds(line);
      BOOST_TEST(by_itself->encode(line) == wanted, boost::test_tools::per_element());
      if (line.find('<') == line.npos) BOOST_TEST(tokenizer->encode(line) == wanted, boost::test_tools::per_element());
    }
  const auto ids = tokenizer->encode(text);
  BOOST_TEST(ids.size() > 10u);
  BOOST_TEST(ids.size() < text.size());
  BOOST_TEST(tokenizer->decode(ids) == text);
  BOOST_TEST(tokenizer->encode("a\xff") == tokenizer->encode("a\ufffd"));
  BOOST_TEST(tokenizer->find("<s>").value() == tokenizer->before_text().at(0));
  BOOST_TEST(!tokenizer->find("no such token"));

  write_file(folder / "broken.model", read_file(folder / "tokenizer.model").substr(0, 3000));
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "broken.model").string()); }), "is no model of SentencePiece (");
}

BOOST_AUTO_TEST_CASE(a_tokenizer_is_found_or_what_is_missing_is_said) {
  const TemporaryFolder folder;
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "none").string()); }), "there is no tokenizer '");
  CHECK_CONTAINS(message_of([&] { open_tokenizer(folder.path().string()); }),
                 "has no tokenizer.json, tokenizer.model or vocab.json");
  write_file(folder / "empty", "");
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "empty").string()); }), "it is empty");
  write_file(folder / "null.json", "null");
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "null.json").string()); }), "it is not a JSON object");
  write_file(folder / "other.model", "null");
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "other.model").string()); }), "(it is another file, or damaged)");
  BOOST_TEST(folder_of_tokenizer((folder / "null.json").string()) == folder.path());
  BOOST_TEST(folder_of_tokenizer("bytes").empty());
  write_file(folder / "list.json", "[1]");
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "list.json").string()); }), "it is not a JSON object");
  write_file(folder / "cut", read_file(data / "gpt2.json").substr(0, 5000));
  CHECK_CONTAINS(message_of([&] { open_tokenizer((folder / "cut").string()); }), "it is not a JSON object");
  std::filesystem::copy(data / "gpt2.json", folder / "tokenizer.json");
  BOOST_TEST(open_tokenizer(folder.path().string())->vocab_size() == 500u);
}

BOOST_AUTO_TEST_CASE(parts_that_are_not_known_are_named) {
  const auto part = [](const char* key, const nlohmann::json& with) { return [=](nlohmann::json& json) { json[key] = with; }; };
  const auto model = [](const char* key, const nlohmann::json& with) {
    return [=](nlohmann::json& json) { json["model"][key] = with; };
  };
  CHECK_CONTAINS(complaint(model("type", "WordPiece")), "the model WordPiece is not known here");
  CHECK_CONTAINS(complaint(model("dropout", 0.1)), "dropout");
  CHECK_CONTAINS(complaint(model("end_of_word_suffix", "</w>")), "end_of_word_suffix");
  CHECK_CONTAINS(complaint(model("continuing_subword_prefix", "##")), "continuing_subword_prefix");
  CHECK_CONTAINS(complaint(part("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}})),
                 "the table of its normalizer Precompiled is damaged");
  CHECK_CONTAINS(complaint(part("normalizer", {{"type", "Lowercase"}})), "the normalizer Lowercase is not known here");
  CHECK_CONTAINS(complaint(part("pre_tokenizer", {{"type", "BertPreTokenizer"}})), "the pre-tokenizer BertPreTokenizer");
  CHECK_CONTAINS(
      complaint(part("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(?<=a)"}}}, {"behavior", "Isolated"}})),
      "the regular expression (?<=a) is not supported");
  CHECK_CONTAINS(complaint(part("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Other"}})),
                 "the behavior Other");
  CHECK_CONTAINS(complaint(part("post_processor", {{"type", "Other"}})), "the post-processor Other");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) {
                   json["model"]["byte_fallback"] = true;
                   json["model"]["vocab"]["<0x41>"] = json["model"]["vocab"].size();
                 }),
                 "255 of the 256 tokens");
  // Decoders that treat the first word differently, also after skipped tokens.
  const nlohmann::json first = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  CHECK_CONTAINS(
      complaint(part("pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, first}}})),
      "Metaspace with prepend_scheme \"first\" after a step that removes text");
  for (const nlohmann::json& normalizer :
       {nlohmann::json({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}),
        nlohmann::json({{"type", "Replace"}, {"pattern", {{"String", "``"}}}, {"content", "\""}})})
    CHECK_CONTAINS(complaint([&](nlohmann::json& json) {
                     json["pre_tokenizer"] = first;
                     json["normalizer"] = normalizer;
                   }),
                   "Metaspace with prepend_scheme \"first\" after a normalizer that may change the beginning");
  CHECK_CONTAINS(complaint(part("decoder", {{"type", "WordPiece"}})), "the decoder WordPiece");
  CHECK_CONTAINS(complaint(part("decoder", nullptr)), "it has no decoder");
}

BOOST_AUTO_TEST_CASE(damaged_files_are_refused) {
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json.erase("model"); }), "it has no model");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["vocab"] = nlohmann::json::object(); }), "no vocabulary");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["vocab"]["zz"] = 5; }), "have the same id 5");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["vocab"]["zz"] = -1; }), "has the id -1");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["vocab"]["zz"] = 4000000000u; }), "has the id 4000000000");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["vocab"]["zz"] = "1"; }), "has the id \"1\"");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["merges"].push_back("a b c"); }), "a merge is \"a b c\"");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["merges"].push_back("q qqq"); }), "is no token");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["merges"] = 1; }), "\"merges\" is not a list");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["model"]["unk_token"] = "<none>"; }),
                 "its unknown token \"<none>\"");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["added_tokens"][0]["id"] = 1e30; }), "has the id");
  const auto with_added = [](const nlohmann::json& tokens) {
    return [=](nlohmann::json& json) {
      for (const auto& [content, id] : tokens.items()) {
        nlohmann::json token = json["added_tokens"][0];
        token["content"] = content;
        token["id"] = id;
        json["added_tokens"].push_back(token);
      }
    };
  };
  // A hole, one of the model's ids, a model's token with another id, and two in the wrong order.
  CHECK_CONTAINS(complaint(with_added({{"<x>", 501}})), "\"<x>\" has the id 501 (Hugging Face's tokenizers gives it 500");
  CHECK_CONTAINS(complaint(with_added({{"<x>", 3}})), "\"<x>\" has the id 3 (Hugging Face's tokenizers gives it 500");
  CHECK_CONTAINS(complaint(with_added({{"a", 500}})), "\"a\" has the id 500 (Hugging Face's tokenizers gives it ");
  CHECK_CONTAINS(complaint(with_added({{"<x>", 501}, {"<y>", 500}})), "\"<x>\" has the id 501");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["added_tokens"][0]["content"] = 1; }), "\"content\" is not a text");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["added_tokens"][0]["lstrip"] = 1; }),
                 "\"lstrip\" is not true or false");
  CHECK_CONTAINS(complaint([](nlohmann::json& json) { json["pre_tokenizer"] = 7; }), "where an object should be");
}
