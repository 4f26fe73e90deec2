// The output of fsdp-tokenize, token by token.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "files/json.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

void tokenize(const std::string& arguments) {
  BOOST_TEST_REQUIRE(std::system((FSDP_TOKENIZE " " + arguments + " > /dev/null").c_str()) == 0);
}

std::string text_of(const std::filesystem::path& path) {
  std::string text;
  for (const std::uint32_t token : tokens_of(path)) text += static_cast<char>(token);
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tokens_are_the_bytes_of_the_texts_in_order) {
  const TemporaryFolder folder;
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  write_file(folder / "a", "first\n");
  write_file(folder / "b", all_bytes);
  const std::string at = folder.path().string();
  tokenize(at + "/b " + at + "/a --out " + at + "/t.bin");
  BOOST_TEST(text_of(folder / "t.bin") == all_bytes + "first\n");
  for (const std::string& files : {at + "/[ab]", "'" + at + "/[ab]'"}) {  // the shell's pattern, and ours
    tokenize(files + " --out " + at + "/t.bin");
    BOOST_TEST(text_of(folder / "t.bin") == "first\n" + all_bytes);
  }
}

BOOST_AUTO_TEST_CASE(texts_may_be_more_files_than_a_process_may_open_unasked) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  for (int i = 100; i < 150; ++i) write_file(folder / std::to_string(i), std::to_string(i) + "\n");
  const std::string command = "ulimit -Sn 40 && " FSDP_TOKENIZE " '" + at + "/1*' --out " + at + "/t.bin > /dev/null";
  BOOST_TEST(std::system(command.c_str()) == 0);
  BOOST_TEST(text_of(folder / "t.bin").size() == 200u);
}

BOOST_AUTO_TEST_CASE(tokens_of_a_tokenizer) {
  const TemporaryFolder folder;
  const std::string data = FSDP_TEST_DATA "/tokenizers/", at = folder.path().string();
  const auto ids = read_json_file(data + "expected.json")["tokenizers"]["smollm2"]["ids"].get<std::vector<std::uint32_t>>();
  tokenize(data + "sample.txt --tokenizer " + data + "smollm2.json --out " + at + "/t.bin");
  BOOST_TEST(tokens_of(folder / "t.bin") == ids, boost::test_tools::per_element());

  // An id that does not fit into 16 bits.
  std::string json = read_file(data + "smollm2.json");
  const std::string added = "\"added_tokens\":[", vocabulary = "\"vocab\":{";
  json.insert(json.find(added) + added.size(), R"({"id":100000,"content":"QQ","special":true},)");
  json.insert(json.find(vocabulary) + vocabulary.size(), R"("QQ":100000,)");
  write_file(folder / "tokenizer.json", json);
  write_file(folder / "text", "aQQa");
  tokenize(at + "/text --tokenizer " + at + " --out " + at + "/wide.bin");
  const auto wide = tokens_of(folder / "wide.bin");
  BOOST_TEST_REQUIRE(wide.size() == 3u);
  BOOST_TEST(wide[1] == 100000u);
}

BOOST_AUTO_TEST_CASE(a_tokenizer_of_ones_own) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), sample = FSDP_TEST_DATA "/tokenizers/sample.txt";
  tokenize(sample + " --train-bpe 400 --tokenizer " + at + "/own --out " + at + "/t.bin");
  const auto tokenizer = open_tokenizer(at + "/own");
  BOOST_TEST(tokenizer->vocab_size() == 400u);
  BOOST_TEST(tokenizer->find("<|endoftext|>").value() == 0);
  std::string text = with_replacements(read_file(sample));
  const auto ids = tokenizer->encode(text);
  BOOST_TEST(tokens_of(folder / "t.bin").size() == ids.size());
  BOOST_TEST(ids.size() < text.size() * 3 / 4);
  const std::string special = "<|endoftext|>";  // it is not printed
  for (std::size_t where; (where = text.find(special)) != std::string::npos;) text.erase(where, special.size());
  BOOST_TEST(tokenizer->decode(ids) == text);
  // The file is not overwritten, and training again gives the same tokenizer.
  BOOST_TEST(std::system((FSDP_TOKENIZE " " + sample + " --train-bpe 400 --tokenizer " + at + "/own --out " + at +
                          "/t.bin 2> /dev/null")
                             .c_str()) != 0);
  tokenize(sample + " --train-bpe 400 --tokenizer " + at + "/again.json --out " + at + "/u.bin");
  BOOST_TEST(read_file(folder / "again.json") == read_file(folder / "own/tokenizer.json"));
}

BOOST_AUTO_TEST_CASE(the_held_out_part_is_the_tail_and_no_character_is_cut) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 41; ++i) text += "\u20ac";  // three bytes each
  write_file(folder / "a", text);
  const std::string at = folder.path().string();
  for (const char* fraction : {"0.1", "0.105", "0.11"}) {
    tokenize(at + "/a --out " + at + "/t.bin --valid-out " + at + "/v.bin --valid-fraction " + fraction);
    const std::string train = text_of(folder / "t.bin"), valid = text_of(folder / "v.bin");
    BOOST_TEST(train + valid == text);
    BOOST_TEST(train.size() % 3 == 0u);
    BOOST_TEST(valid.size() >= 12u);
    BOOST_TEST(valid.size() <= 15u);
  }
}

BOOST_AUTO_TEST_CASE(lines_of_json_in_every_format) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), tokenizer_file = FSDP_TEST_DATA "/tokenizers/smollm2.json";
  const auto tokenizer = open_tokenizer(tokenizer_file);
  const TokenId eos = tokenizer->find("<|endoftext|>").value();
  const std::vector<std::string> documents = {"In the beginning", "God \"created\"\n\tthe heaven", "",
                                              "\u00e9\U0001f600 and the earth", std::string(5000, 'x') + " y"};
  std::string lines;
  std::vector<std::uint32_t> expected, with_eos;
  std::vector<std::uint64_t> starts;
  for (const std::string& document : documents) {
    lines += nlohmann::json{{"id", 7}, {"text", document}, {"content", "other"}}.dump() + "\n";
    const std::vector<TokenId> ids = tokenizer->encode(document);
    starts.push_back(with_eos.size());
    for (auto* all : {&expected, &with_eos}) all->insert(all->end(), ids.begin(), ids.end());
    with_eos.push_back(static_cast<std::uint32_t>(eos));
  }
  write_file(folder / "a.jsonl", lines + "\n  \r\n");
  tokenize(at + "/a.jsonl --tokenizer " + tokenizer_file + " --out " + at + "/t.bin");
  BOOST_TEST(tokens_of(folder / "t.bin") == expected, boost::test_tools::per_element());
  for (const std::string& format :
       {"llm.c --out " + at + "/e.bin", "megatron --out " + at + "/e", "hdf5 --out " + at + "/e.h5"}) {
    tokenize(at + "/a.jsonl --append-eos --threads 3 --tokenizer " + tokenizer_file + " --format " + format);
    const auto tokens = open_token_file(format.substr(format.find(at)));
    BOOST_TEST(all_tokens(*tokens) == with_eos, boost::test_tools::per_element());
    if (!format.starts_with("llm.c")) BOOST_TEST(tokens->documents() == starts, boost::test_tools::per_element());
  }
  // A file's last line needs no end; another field; other names.
  write_file(folder / "one", R"({"content": "a b"})");
  write_file(folder / "two", R"({"content": "c"})"
                             "\n");
  tokenize(at + "/one " + at + "/two --json-field content --out " + at + "/c.bin");
  BOOST_TEST(tokens_of(folder / "c.bin") == (std::vector<std::uint32_t>{'a', ' ', 'b', 'c'}), boost::test_tools::per_element());
  BOOST_TEST_REQUIRE(
      std::system(
          ("cat " + at + "/one | " FSDP_TOKENIZE " - --json-field content --out " + at + "/p.bin > /dev/null").c_str()) == 0);
  BOOST_TEST(tokens_of(folder / "p.bin") == (std::vector<std::uint32_t>{'a', ' ', 'b'}), boost::test_tools::per_element());

  // The held-out part begins with a line, and both parts together are the whole text.
  tokenize(at + "/a.jsonl --tokenizer " + tokenizer_file + " --out " + at + "/h.bin --valid-out " + at +
           "/v.bin --valid-fraction 0.99");
  auto parts = tokens_of(folder / "h.bin");
  BOOST_TEST(parts.size() == tokenizer->encode(documents[0]).size());
  for (const std::uint32_t token : tokens_of(folder / "v.bin")) parts.push_back(token);
  BOOST_TEST(parts == expected, boost::test_tools::per_element());

  // A tokenizer is trained on the texts, not on the JSON around them.
  tokenize(at + "/a.jsonl --train-bpe 270 --tokenizer " + at + "/own.json --out " + at + "/o.bin");
  BOOST_TEST(!open_tokenizer(at + "/own.json")->find("content").has_value());
  BOOST_TEST(open_tokenizer(at + "/own.json")->find("xx").has_value());
}

BOOST_AUTO_TEST_CASE(lines_that_are_no_json) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  const auto error = [&](const std::string& arguments) {
    const std::string out = at + "/error";
    BOOST_TEST(std::system((FSDP_TOKENIZE " " + arguments + " --out " + at + "/t.bin > " + out + " 2>&1").c_str()) == 2 << 8);
    BOOST_TEST(!std::filesystem::exists(folder / "t.bin"));
    return read_file(out);
  };
  const std::string good = R"({"text": "a"})"
                           "\n";
  const auto line = [&](const std::string& bad) {
    write_file(folder / "a.jsonl", good + bad + "\n");
    return error(at + "/a.jsonl");
  };
  CHECK_CONTAINS(line("nonsense"), "line 2 of '" + at + "/a.jsonl' cannot be used (it is not JSON: ");
  CHECK_CONTAINS(line(R"({"text": "a"} x)"), "(it is not JSON: ");
  CHECK_CONTAINS(line(R"(["a"])"), "(it is no object)");
  CHECK_CONTAINS(line(R"({"txet": "a"})"),
                 "(it has no \"text\"; its fields are \"txet\"); correct it, name the field that has the text by --json-field, "
                 "or leave such "
                 "lines out by "
                 "--skip-invalid");
  CHECK_CONTAINS(line(R"({"text": 7})"), "(its \"text\" is no text; its fields are \"text\")");
  write_file(folder / "a.jsonl", "\n \r\n");
  CHECK_CONTAINS(error(at + "/a.jsonl"), "the text has no tokens");
  write_file(folder / "b.txt", "plain");
  CHECK_CONTAINS(error(at + "/a.jsonl " + at + "/b.txt"), "/b.txt' is not (texts that are read together must all be JSON");
  CHECK_CONTAINS(error(at + "/b.txt --format hdf5 --shard-size 5"), "--shard-size does not work with this --format");
}

BOOST_AUTO_TEST_CASE(what_memory_would_hold_whole_has_a_limit) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), said = at + "/said";
  const auto error = [&](const std::string& arguments) {
    const std::string command = FSDP_TOKENIZE " " + arguments + " --out " + at + "/t.bin > " + said + " 2>&1";
    BOOST_TEST(std::system(command.c_str()) == 2 << 8);
    BOOST_TEST(!std::filesystem::exists(folder / "t.bin"));
    return read_file(said);
  };
  constexpr std::uintmax_t mebibyte = std::uintmax_t{1} << 20;
  write_file(folder / "long.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b");
  std::filesystem::resize_file(folder / "long.jsonl", 260 * mebibyte);  // a sparse file
  const std::string lines = error(at + "/long.jsonl --skip-invalid");
  CHECK_CONTAINS(lines, "line 2 of '" + at + "/long.jsonl' has 256 MiB or more (a whole line is held in memory)");
  write_file(folder / "long.txt", "a b" + std::string(300, 'b'));  // longer than the beginning by which the format is
                                                                   // recognised
  std::filesystem::resize_file(folder / "long.txt", 260 * mebibyte);
  const std::string plain = error(at + "/long.txt --tokenizer " FSDP_TEST_DATA "/tokenizers/gpt2.json");
  CHECK_CONTAINS(plain, "the 256 MiB from byte 1 of '" + at +
                            "/long.txt' on cannot be cut (they have no line end and no space after a word");
  CHECK_CONTAINS(plain, "or write each document as a line of JSON");
}

BOOST_AUTO_TEST_CASE(lines_that_are_nearly_json) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), said = at + "/said";
  const auto make = [&](const std::string& text, const std::string& more) {
    write_file(folder / "a.jsonl", text);
    BOOST_TEST_REQUIRE(
        std::system((FSDP_TOKENIZE " " + at + "/a.jsonl --out " + at + "/t.bin " + more + " > " + said + " 2>&1").c_str()) ==
        0);
    return text_of(folder / "t.bin");
  };
  // A byte-order mark, invalid UTF-8, and halves of surrogate pairs next to a whole pair.
  BOOST_TEST(make("\xef\xbb\xbf{\"text\": \"a\"}\n{\"text\": \"b\xff\"}\n", "") == "ab\ufffd");
  CHECK_CONTAINS(read_file(folder / "said"), "has 1 places that are not UTF-8, or in JSON half of a surrogate pair");
  BOOST_TEST(make(R"({"text": "\ud83dx\ude00 \ud83d\ude00 \\ud83d"})", "") == "\ufffdx\ufffd \U0001f600 \\ud83d");
  BOOST_TEST(make("{\"text\": \"a\"}\nno\n{\"text\": \"b\"}\n[]\n", "--skip-invalid") == "ab");
  CHECK_CONTAINS(read_file(folder / "said"), "2 of 4 documents in");
}

// The format of a file is recognised by its content.
BOOST_AUTO_TEST_CASE(json_of_any_name_and_shape) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), said = at + "/said";
  const auto run = [&](const std::string& words) {
    return std::system((FSDP_TOKENIZE " " + words + " --out " + at + "/t.bin > " + said + " 2>&1").c_str());
  };
  const auto make = [&](const std::string& name, const std::string& text, const std::string& more = "") {
    write_file(folder / name, text);
    BOOST_TEST_REQUIRE(run(at + "/" + name + more) == 0, read_file(said));
    return text_of(folder / "t.bin");
  };
  const std::string mark = "\xef\xbb\xbf", lines = "{\"text\": \"a\", \"n\": NaN}\n{\"text\": \"b\"}\n",
                    array = "[ {\"text\": \"a\"},\n{\"text\":\n\"b\"}\n]\n",
                    objects = "{\n\"text\": \"a\"\n}\n{\n\"text\": \"b\" }";
  for (const std::string name : {"a.json", "a.ndjson", "a.JSONL", "a.txt", "a"})
    for (const std::string& text : {lines, array, objects, mark + lines, mark + array, mark + objects})
      BOOST_TEST(make(name, text) == "ab", name + ": " + text);
  write_file(folder / "b.json", array);
  write_file(folder / "c", objects);
  BOOST_TEST(make("a.jsonl", lines, " " + at + "/b.json " + at + "/c " + at + "/b.json") == "abababab");
  BOOST_TEST(std::system(("cat " + at + "/b.json | " FSDP_TOKENIZE " - --out " + at + "/t.bin > " + said + " 2>&1").c_str()) ==
             0);
  BOOST_TEST(text_of(folder / "t.bin") == "ab");
  // Of a folder, the texts are read in the order of their names; of one with splits, those for training.
  std::filesystem::create_directory(folder / "d");
  write_file(folder / "d" / "2.jsonl", "{\"text\": \"y\"}\n");
  BOOST_TEST(make("d/1.jsonl", "{\"text\": \"x\"}\n", " " + at + "/d") == "xxy");
  std::filesystem::create_directory(folder / "e");
  write_file(folder / "e" / "valid.jsonl", "{\"text\": \"y\"}\n");
  BOOST_TEST(make("e/train.jsonl", lines, " " + at + "/e") == "abab");
  write_file(folder / "d" / "t.bin", read_file(folder / "t.bin"));
  BOOST_TEST(run(at + "/d") != 0);
  BOOST_TEST(read_file(said).find("is a folder of token files") != std::string::npos, read_file(said));
  // Texts are read unchanged.
  for (const std::string text :
       {"{see} below\n", "[1] Smith\n[2] Jones\n", "{\"a\": 1}\nis JSON\n", "{'text': 'a'}\n", "[1]\na"})
    BOOST_TEST(make("a.txt", text) == text);
  BOOST_TEST(read_file(said).find("warning") == std::string::npos);
  // Texts that may be lines of JSON after something else are named.
  for (const std::string before : {"# header\n", "null\n", "\f"}) {
    BOOST_TEST(make("a.txt", before + lines + lines) == before + lines + lines);
    CHECK_CONTAINS(read_file(said), "/a.txt' is read as plain text (its beginning is not JSON), but most of its first lines");
  }
  BOOST_TEST(make("a.txt", std::string(70'000, '\n') + lines) == "ab");
  BOOST_TEST(make("a.txt", mark + "one", " " + at + "/a.txt") == "oneone");
  // Files that are neither text nor JSON are refused.
  const auto error = [&](const std::string& text, const std::string& more = "") {
    write_file(folder / "a.txt", text);
    BOOST_TEST(run(at + "/a.txt" + more) == 2 << 8);
    return read_file(said);
  };
  CHECK_CONTAINS(error("{\"content\": \"a\"}\n{\"content\": \"b\"}\n"),
                 "(it has no \"text\"; its fields are \"content\"); correct it, name the field");
  CHECK_CONTAINS(error("[\"a\", \"b\"]"), "(it is no object)");
  CHECK_CONTAINS(error("[{\"text\": \"a\"}, {\"text\": \"b\"}\n"), "(the array has no closing bracket: it was cut)");
  CHECK_CONTAINS(error("[{\"text\": \"a\"},\n{\"text\": \"b\"} {}]", " --skip-invalid"),
                 "line 2 of '" + at + "/a.txt' is not JSON");
  CHECK_CONTAINS(error("[{\"text\": \"a\"},]"), "(no value");
  CHECK_CONTAINS(error("{\"text\": \"a\"},\n{\"text\": \"b\"},\n"), "(it is not JSON: something follows the value");
  // An array of several pieces, cut between its elements.
  std::string large = "[", all;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = std::to_string(i) + std::string(1000, i % 2 ? 'x' : 'y');
    large += (i ? ",\n{\n\"text\": \"" : "{\"text\": \"") + text + "\"\n}";
    all += text;
  }
  const std::string start = make("a.json", large + "]", " --valid-out " + at + "/v.bin --valid-fraction 0.5");
  BOOST_TEST(start.size() > all.size() / 3);
  BOOST_TEST((start + text_of(folder / "v.bin") == all));
}

BOOST_AUTO_TEST_CASE(conversations_are_mended_as_texts_are) {
  const TemporaryFolder folder;
  const std::filesystem::path data = FSDP_TEST_DATA "/tokenizers";
  const std::string at = folder.path().string();
  std::filesystem::copy(data / "chat-tokenizer.json", folder / "tokenizer.json");
  write_file(folder / "tokenizer_config.json",
             nlohmann::json({{"chat_template",
                              "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                              "'<|im_end|>' + '\\n'}}"
                              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"}})
                 .dump());
  const auto make = [&](const std::string& content) {
    write_file(folder / "a.jsonl",
               R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":")" + content + "\"}]}\n");
    BOOST_TEST_REQUIRE(std::system((FSDP_TOKENIZE " " + at + "/a.jsonl --chat --tokenizer " + at + " --out " + at +
                                    "/t.bin > " + at + "/said 2>&1")
                                       .c_str()) == 0,
                       read_file(folder / "said"));
    return read_file(folder / "t.bin");
  };
  const std::string replaced = make("x\ufffdy");
  BOOST_TEST((make(R"(x\ud83dy)") == replaced));
  BOOST_TEST((make("x\xffy") == replaced));
}

BOOST_AUTO_TEST_CASE(a_closed_standard_input_is_no_file_of_ours) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  BOOST_TEST(std::system((FSDP_TOKENIZE " - --out " + at + "/t.bin <&- > " + at + "/said 2>&1").c_str()) == 2 << 8);
  CHECK_CONTAINS(read_file(folder / "said"), "cannot read '-'");
  BOOST_TEST(!std::filesystem::exists(folder / "t.bin"));
}

BOOST_AUTO_TEST_CASE(names_that_clash_and_files_of_earlier_runs) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), said = at + "/said";
  write_file(folder / "a", std::string(100, 'x'));
  const auto code = [&](const std::string& more) {
    return std::system((FSDP_TOKENIZE " " + at + "/a " + more + " > " + said + " 2>&1").c_str()) >> 8;
  };
  BOOST_TEST(code("--format megatron --out " + at + "/o.bin --valid-out " + at + "/o.idx") == 2);
  CHECK_CONTAINS(read_file(said), "--out and --valid-out are the same file");
  BOOST_TEST(code("--shard-size 30 --out " + at + "/t.bin") == 0);
  BOOST_TEST(code("--shard-size 60 --out " + at + "/t.bin") == 0);
  CHECK_CONTAINS(read_file(said), "t_000003.bin, " + at + "/t_000004.bin: a pattern for the new files would match these, too");
}
