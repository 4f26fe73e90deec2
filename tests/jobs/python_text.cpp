// Texts and tokens, in both directions, compared with Python packages. Hugging Face's tokenizers and SentencePiece give
// the same ids for a quarter of a megabyte of each kind of text, and data sets can be exchanged with Megatron. The
// tests are skipped if Python (FSDP_PYTHON, else python3) lacks tokenizers; parts that need other missing packages are
// left out.
#include <algorithm>

#include <boost/test/unit_test.hpp>

#include "jobs/python.hpp"
#include "support/files.hpp"
#include "support/tokenizer_folders.hpp"
#include "support/tokens.hpp"
#include "text/tokenizer.hpp"

using namespace fsdp::test;

namespace {

const std::string tokenizers = FSDP_TEST_DATA "/tokenizers/";

const std::string script = script_of_jobs("text_in_python.py");

boost::test_tools::assertion_result has_megatron(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result there = probe_python(script).says("megatron");
  there.message() << "this Python has no megatron-core";
  return there;
}

boost::test_tools::assertion_result has_transformers(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result there = probe_python(script).says("transformers");
  there.message() << "this Python has no transformers";
  return there;
}

struct SkipWithoutPython {
  SkipWithoutPython() { skip_without_python(script, "numpy and Hugging Face's tokenizers"); }
};
BOOST_TEST_GLOBAL_FIXTURE(SkipWithoutPython);

std::vector<fsdp::TokenId> ids_in(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::vector<fsdp::TokenId> ids(bytes.size() / sizeof(fsdp::TokenId));
  std::copy_n(bytes.data(), ids.size() * sizeof(fsdp::TokenId), reinterpret_cast<char*>(ids.data()));
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(ids_are_those_of_others_on_each_kind_of_text) {
  const auto folder = fresh_folder();
  must(folder, {python(), script, "ids", tokenizers});
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(folder / "ids")) {
    const std::string name = entry.path().stem().string(), tokenizer = name.substr(0, name.rfind('-')),
                      text = "texts/" + name.substr(name.rfind('-') + 1) + ".txt";
    const auto wanted = ids_in(entry.path());
    must(folder,
         split(FSDP_BIN "/fsdp-tokenize " + text + " --tokenizer " + tokenizers + tokenizer + " --threads 2 --out out.bin"));
    const std::vector<std::uint32_t> ours = tokens_of(folder / "out.bin");
    const auto apart = std::mismatch(ours.begin(), ours.end(), wanted.begin(), wanted.end(),
                                     [](std::uint32_t a, fsdp::TokenId b) { return static_cast<fsdp::TokenId>(a) == b; });
    BOOST_TEST((apart.first == ours.end() && apart.second == wanted.end()), name << ": " << ours.size() << " ids, theirs "
                                                                                 << wanted.size() << ", equal until "
                                                                                 << apart.first - ours.begin());
    compared += wanted.size() > 25000;
  }
  BOOST_TEST(compared >= 15u * 7);
}

BOOST_AUTO_TEST_CASE(folders_are_read_as_autotokenizer_does, *boost::unit_test::precondition(has_transformers)) {
  const auto folder = fresh_folder();
  must(folder, {python(), script, "folders", tokenizers});
  check_tokenizer_folders(folder / "folders.json", tokenizers);
}

BOOST_AUTO_TEST_CASE(megatron_reads_and_writes_the_same_data_sets, *boost::unit_test::precondition(has_megatron)) {
  const auto folder = fresh_folder();
  must(folder, {python(), script, "megatron-write"});
  for (const std::string name : {"theirs", "theirs-wide"}) {
    const json documents = json::parse(std::ifstream(folder / (name + ".json")));
    const auto tokens = fsdp::open_token_file(folder / name);
    std::vector<std::uint32_t> all;
    std::vector<std::uint64_t> begins;
    for (const json& document : documents) {
      begins.push_back(all.size());
      for (const json& id : document) all.push_back(id);
    }
    BOOST_TEST((all_tokens(*tokens) == all), name);
    BOOST_TEST((tokens->documents() == begins), name);
  }

  json documents = json::array();
  std::string lines;
  const auto tokenizer = fsdp::open_tokenizer(tokenizers + "gpt2.json");
  for (int i = 0; i < 100; ++i) {
    const std::string text = "Document " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 7), '!');
    lines += json({{"text", text}}).dump() + "\n";
    documents.push_back(tokenizer->encode(text));
    documents.back().push_back(*tokenizer->find("<|endoftext|>"));
  }
  write_file(folder / "text.jsonl", lines);
  write_file(folder / "ours.json", documents.dump());
  must(folder, split(FSDP_BIN "/fsdp-tokenize text.jsonl --append-eos --format megatron --out ours --tokenizer " + tokenizers +
                     "gpt2.json"));
  const Outcome read = run(folder, {python(), script, "megatron-read"});
  BOOST_TEST(read.code == 0, read.output);
  BOOST_TEST(read.says("100 documents of ours, uint16"), read.output);
}
