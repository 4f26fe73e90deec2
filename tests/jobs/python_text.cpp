// Texts and tokens, in both directions, compared with Python packages. Hugging Face's tokenizers and SentencePiece give
// the same ids for a quarter of a megabyte of each kind of text, transformers' chat templates write the same texts, and
// data sets can be exchanged with Megatron. The tests are skipped if Python (FSDP_PYTHON, else python3) lacks
// tokenizers; parts that need other missing packages are left out.
#include <algorithm>
#include <map>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "jobs/python.hpp"
#include "support/files.hpp"
#include "support/tokenizer_folders.hpp"
#include "support/tokens.hpp"
#include "text/chat_template.hpp"
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

boost::test_tools::assertion_result has_trl(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result there = probe_python(script_of_jobs("rows_in_python.py")).code == 0;
  there.message() << "this Python has no TRL and datasets";
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

/// The bytes of a text before its character `at`, for each of its characters, and for its end.
std::vector<std::size_t> bytes_of_characters(const std::string& text) {
  std::vector<std::size_t> bytes;
  for (std::size_t i = 0; i <= text.size(); ++i)
    if (i == text.size() || (text[i] & 0xc0) != 0x80) bytes.push_back(i);
  return bytes;
}

BOOST_AUTO_TEST_CASE(chat_templates_are_run_as_by_transformers, *boost::unit_test::precondition(has_transformers)) {
  const auto folder = fresh_folder();
  must(folder, {python(), script_of_jobs("chats_in_python.py"), "60", FSDP_TEST_DATA "/chat_templates"});
  const auto chats = nlohmann::ordered_json::parse(std::ifstream(folder / "chats.json"));
  std::map<std::string, fsdp::ChatTemplate> templates;
  for (const auto& [name, source] : chats["templates"].items())
    templates.emplace(name, fsdp::ChatTemplate(name, source, chats["tokens"].get<std::map<std::string, std::string>>()));
  // TRL brings the templates of many models.
  const auto of_trl =
      std::count_if(templates.begin(), templates.end(), [](const auto& one) { return one.first.starts_with("trl/"); });
  BOOST_TEST((of_trl == 0 || of_trl >= 40), of_trl << " templates of TRL");
  std::size_t written = 0, refused = 0, generated = 0;
  for (const auto& one : chats["cases"]) BOOST_TEST_CONTEXT(one["template"] << ", conversation " << one["conversation"]) {
      const auto& theirs = chats["conversations"][one["conversation"].get<std::size_t>()];
      const fsdp::ChatTemplate& chat = templates.at(one["template"]);
      fsdp::Conversation conversation{
          .messages = theirs["messages"], .tools = theirs["tools"], .more = theirs["chat_template_kwargs"]};
      const bool asks = one["asks"].get<bool>(), has_spans = !one.contains("error") && !one["spans"].empty() && !asks;
      conversation.is_answer.assign(conversation.messages.size(), has_spans);
      std::string ours, problem;
      nlohmann::ordered_json spans = nlohmann::ordered_json::array();
      try {
        const fsdp::ChatText text =
            asks ? fsdp::ChatText{chat.render(conversation), {}, false} : chat.render_whole(conversation);
        ours = text.text;
        for (const auto& [begin, end] : text.answers) spans.push_back({begin, end});
      } catch (const fsdp::UserError& error) {
        problem = error.what();
      }
      BOOST_TEST(problem.empty() == !one.contains("error"), "ours: " << problem << "; theirs: " << one.value("error", ""));
      if (one.contains("error") || !problem.empty()) {
        ++refused;
        continue;
      }
      BOOST_TEST(ours == one["text"].get<std::string>());
      ++written;
      if (!has_spans) continue;
      const std::vector<std::size_t> bytes = bytes_of_characters(ours);
      nlohmann::ordered_json wanted = nlohmann::ordered_json::array();
      for (const auto& span : one["spans"])
        if (span[0] != span[1]) wanted.push_back({bytes[span[0].get<std::size_t>()], bytes[span[1].get<std::size_t>()]});
      BOOST_TEST(spans == wanted);
      ++generated;
    }
  BOOST_TEST(
      (templates.size() >= 16u && written >= templates.size() * 30 && refused > 0u && generated > 0u),
      templates.size() << " templates, " << written << " texts, " << refused << " refused, " << generated << " with masks");
}

BOOST_AUTO_TEST_CASE(other_forms_of_conversations_have_the_tokens_of_trl, *boost::unit_test::precondition(has_trl)) {
  const auto folder = fresh_folder();
  must(folder, {python(), script_of_jobs("rows_in_python.py"), tokenizers + "chat-tokenizer.json"});
  const json wanted = json::parse(std::ifstream(folder / "wanted.json"));
  for (const auto& [name, form] :
       {std::pair<std::string, std::string>("sharegpt", "sharegpt"),
        {"alpaca", "alpaca"},
        {"dialog", "sharegpt --json-names conversations=dialog,from=who,value=what,human=student,gpt=teacher"}})
    for (const std::string ending : {".jsonl", ".jsonl.gz", ".parquet"}) {
      const std::string file = name + ending;
      must(folder,
           split(FSDP_BIN "/fsdp-tokenize " + file + " --chat --json-format " + form + " --tokenizer model --out out.bin"));
      BOOST_TEST((tokens_of(folder / "out.bin") == wanted[name]["ids"].get<std::vector<std::uint32_t>>()), file);
      BOOST_TEST((tokens_of(folder / "out.mask.bin") == wanted[name]["mask"].get<std::vector<std::uint32_t>>()), file);
    }
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
