// Large texts with fsdp-tokenize: it needs little memory, gives the tokens of the whole text, and writes the same files
// after it was killed.
#include <boost/test/unit_test.hpp>

#include <random>

#include <sys/resource.h>

#include "jobs/fault.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp::test;

namespace {

const std::string tokenizers = FSDP_TEST_DATA "/tokenizers/";

Outcome tokenize(const fs::path& folder, const std::string& arguments, const std::function<void(pid_t)>& meanwhile = {}) {
  std::vector<std::string> words = {FSDP_BIN "/fsdp-tokenize"};
  for (std::string& word : split(arguments)) words.push_back(std::move(word));
  return run(folder, words, meanwhile);
}

/// Writes about `bytes` bytes of the sample's lines in random order.
void write_text(const fs::path& path, std::size_t bytes, unsigned seed) {
  const std::string sample = read_file(tokenizers + "sample.txt");
  std::vector<std::string> lines;
  std::istringstream all(sample);
  for (std::string line; std::getline(all, line);) lines.push_back(line + "\n");
  std::mt19937 random(seed);
  std::ofstream out(path, std::ios::binary);
  for (std::size_t size = 0; size < bytes;) {
    const std::string& line = lines[random() % lines.size()];
    out << line;
    size += line.size();
  }
}

std::vector<fsdp::TokenId> ids_of(const fs::path& path) {
  const std::vector<std::uint32_t> tokens = fsdp::test::tokens_of(path);
  return {tokens.begin(), tokens.end()};
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

BOOST_AUTO_TEST_CASE(memory_does_not_grow_with_the_text) {
  const auto folder = fresh_folder();
  {
    std::ofstream out(folder / "text", std::ios::binary);
    const std::string words = "In the beginning God created the heaven and the earth and all that was in it was good\n";
    for (int i = 0; i < 700'000; ++i) out << words;  // 60 MB
  }
  for (const std::string& with : {std::string("text --tokenizer bytes"), "text --tokenizer " + tokenizers + "gpt2.json"}) {
    const Outcome done = tokenize(folder, with + " --out t.bin --valid-out v.bin --threads 2");
    BOOST_TEST(done.code == 0, done.output);
    rusage children{};
    getrusage(RUSAGE_CHILDREN, &children);
    BOOST_TEST(children.ru_maxrss < 120 << 10);  // KiB; the text and a list of its words are 60 MB each
  }
}

BOOST_AUTO_TEST_CASE(the_tokens_are_those_of_the_whole_text) {
  const auto folder = fresh_folder();
  write_text(folder / "a", 1'500'000, 1);
  {
    std::ofstream out(folder / "b", std::ios::binary);  // no place where it may be cut
    for (int i = 0; i < 60'000; ++i) out << "\u5929\u5730\u7384\u9ec4\uff0c\u5b87\u5b99\u3002";
  }
  const std::string a = read_file(folder / "a"), b = read_file(folder / "b");
  for (const std::string name : {"llama3", "llama2"}) {
    const auto tokenizer = fsdp::open_tokenizer(tokenizers + name + ".json");
    const std::string with = " --tokenizer " + tokenizers + name + ".json";
    BOOST_TEST_REQUIRE(tokenize(folder, "a b --out t.bin --threads 3" + with).code == 0);
    const auto whole = tokenizer->encode(a + b);
    const bool same = ids_of(folder / "t.bin") == whole;
    BOOST_TEST(same);
    // A pipe gives the same tokens. So does a pipe with a held-out part (below), although its size is not known in
    // advance.
    BOOST_TEST_REQUIRE(
        run(folder, {"bash", "-c", "cat a b | " FSDP_BIN "/fsdp-tokenize - --out p.bin --threads 1" + with}).code == 0);
    const bool same_by_pipe = read_file(folder / "p.bin") == read_file(folder / "t.bin");
    BOOST_TEST(same_by_pipe);
  }
  const std::string tail = " --valid-fraction 0.3 --valid-out ";
  BOOST_TEST_REQUIRE(tokenize(folder, "a b --out t.bin" + tail + "tv.bin").code == 0);
  BOOST_TEST_REQUIRE(run(folder, {"bash", "-c", "cat b | " FSDP_BIN "/fsdp-tokenize a - --out p.bin" + tail + "pv.bin"}).code ==
                     0);
  BOOST_TEST((read_file(folder / "p.bin") == read_file(folder / "t.bin")));
  BOOST_TEST((read_file(folder / "pv.bin") == read_file(folder / "tv.bin")));
  BOOST_TEST(files_in(folder) ==
                 (std::vector<std::string>{"a", "b", "errors.txt", "output.txt", "p.bin", "pv.bin", "t.bin", "tv.bin"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_text_can_be_a_document) {
  const auto folder = fresh_folder();
  write_text(folder / "a", 1'200'000, 1);
  write_file(folder / "b", "short");
  const auto tokenizer = fsdp::open_tokenizer(tokenizers + "mistral.json");
  fs::copy(tokenizers + "mistral.json", folder / "tokenizer.json");
  const auto wanted = [&](fsdp::TokenId end) {
    std::vector<fsdp::TokenId> ids;
    for (const char* const name : {"a", "b"}) {
      tokenizer->encode(read_file(folder / name), ids);
      ids.push_back(end);
    }
    return ids;
  };
  const std::string command = "a b --append-eos --tokenizer . --out t.bin";
  BOOST_TEST_REQUIRE(tokenize(folder, command).code == 0);
  BOOST_TEST((ids_of(folder / "t.bin") == wanted(tokenizer->find("</s>").value())));
  BOOST_TEST_REQUIRE(tokenize(folder, command + " --eos-token <unk>").code == 0);
  BOOST_TEST((ids_of(folder / "t.bin") == wanted(tokenizer->find("<unk>").value())));
  write_file(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<s>"}})");
  BOOST_TEST_REQUIRE(tokenize(folder, command).code == 0);
  BOOST_TEST((ids_of(folder / "t.bin") == wanted(tokenizer->find("<s>").value())));
  const Outcome none = tokenize(folder, command + " --eos-token nothing");
  BOOST_TEST(none.code == 2);
  BOOST_TEST(none.says("has no token nothing for the end of a text"), none.output);
  const Outcome bytes = tokenize(folder, "a --append-eos --out t.bin");
  BOOST_TEST(bytes.code == 2);
  BOOST_TEST(bytes.says("--append-eos does not go with bytes"), bytes.output);
}

BOOST_AUTO_TEST_CASE(a_killed_run_goes_on) {
  const auto folder = fresh_folder();
  write_text(folder / "a", 6'000'000, 1);
  write_text(folder / "b", 2'000'000, 2);
  write_text(folder / "c", 2'000'000, 3);
  BOOST_TEST_REQUIRE(run(folder, {"gzip", "b"}).code == 0);
  for (const std::string more : {"", " --append-eos --shard-size 1000000", " --append-eos --format megatron"}) {
    const std::string command =
        "a b.gz c --tokenizer " + tokenizers + "smollm2.json --valid-fraction 0.3 --threads 2 --save-interval 10ms" + more;
    const Outcome once = tokenize(folder, command + " --out once.bin --valid-out oncev.bin");
    BOOST_TEST_REQUIRE(once.code == 0, once.output);
    std::size_t killed = 0, gone_on = 0;
    Outcome last;
    for (int delay_ms = 40; killed < 40; delay_ms += 20 + delay_ms / 10) {
      last = tokenize(folder, command + " --out t.bin --valid-out tv.bin", [&](pid_t pid) {
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        kill(pid, SIGKILL);
      });
      gone_on += last.says("resuming after ");
      if (last.code == 0) break;
      BOOST_TEST_REQUIRE(last.code == 128 + SIGKILL, last.output);
      BOOST_TEST(!fs::exists(folder / "tv.bin"));
      ++killed;
    }
    BOOST_TEST(last.code == 0);
    BOOST_TEST(killed > 1u);
    BOOST_TEST(gone_on > 0u);
    for (const std::string& name : files_in(folder)) {
      BOOST_TEST(name.find("tmp") == std::string::npos);
      BOOST_TEST(name.find(".resume") == std::string::npos);
      if (!name.starts_with("once")) continue;
      const bool same = read_file(folder / name) == read_file(folder / ("t" + name.substr(4)));
      BOOST_TEST(same, name << " is not the same");
      fs::remove(folder / name);
      fs::remove(folder / ("t" + name.substr(4)));
    }
    BOOST_TEST(files_in(folder).size() == 5u);  // the texts and the program's output
  }
}

/// Kills a run at each of its renames. The same command then completes it.
BOOST_AUTO_TEST_CASE(a_run_that_is_killed_while_it_learns_a_tokenizer_completes) {
  const auto folder = fresh_folder();
  write_text(folder / "a", 20'000, 1);
  fs::create_directory(folder / "out");
  std::string learned;
  for (const std::string more : {"", " --format megatron", " --format hdf5", " --save-interval 0"}) {
    const std::string command = "a --train-bpe 300 --tokenizer out/own --out out/t.bin" + more;
    bool killed = true;
    for (int at = 1; killed && at < 10; ++at) {
      fs::remove_all(folder / "out" / "own");
      std::vector<std::string> words = with({.calls = "rename", .at = at}, folder, "out");
      words.push_back(FSDP_BIN "/fsdp-tokenize");
      for (std::string& word : split(command)) words.push_back(std::move(word));
      killed = run(folder, words).code != 0;
      if (killed) {
        const Outcome again = tokenize(folder, command);
        BOOST_TEST(again.code == 0, again.output << at << more);
      }
      const std::string tokenizer = read_file(folder / "out" / "own" / "tokenizer.json");
      if (learned.empty()) learned = tokenizer;
      BOOST_TEST((tokenizer == learned));
      BOOST_TEST(!fs::exists(folder / "out" / "t.bin.resume"));
    }
    BOOST_TEST(!killed);
  }
  // An existing tokenizer is not overwritten.
  const Outcome there = tokenize(folder, "a --train-bpe 300 --tokenizer out/own --out out/t.bin");
  BOOST_TEST(there.code == 2);
  BOOST_TEST(there.says("tokenizer.json' exists already"), there.output);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_not_gone_on_with) {
  const auto folder = fresh_folder();
  write_text(folder / "a", 6'000'000, 1);
  fs::copy(tokenizers + "smollm2.json", folder / "t.json");
  const std::string command = "a --tokenizer t.json --save-interval 1ms --out t.bin";
  const auto kill_one = [&] {
    const Outcome killed = tokenize(folder, command, [&](pid_t pid) {
      wait_until([&] { return fs::exists(folder / "t.bin.resume"); });
      kill(pid, SIGKILL);
    });
    BOOST_TEST_REQUIRE(killed.code == 128 + SIGKILL, killed.output);
  };
  const auto check = [&](const std::string& arguments, const std::string& why) {
    const Outcome anew = tokenize(folder, arguments);
    BOOST_TEST(anew.code == 0, anew.output);
    BOOST_TEST(anew.says("t.bin.resume belongs to a run that cannot be resumed (" + why), anew.output);
    BOOST_TEST(anew.says("the whole text is tokenized again"), anew.output);
    BOOST_TEST(files_in(folder) == (std::vector<std::string>{"a", "errors.txt", "output.txt", "t.bin", "t.json"}),
               boost::test_tools::per_element());
  };
  kill_one();
  check("a --out t.bin", "it differs in tokenizer");
  kill_one();
  write_file(folder / "t.bin.resume", "{\n \"same\": {}}");
  check(command, "its notes are damaged");
  kill_one();
  fs::resize_file(folder / "t.bin.fsdp-tmp-1", 2000);
  check(command, "the temporary file t.bin.fsdp-tmp-1 has changed since it was written");
  kill_one();
  write_file(folder / "t.json", read_file(folder / "t.json") + " ");
  check(command, "it had another tokenizer");
  kill_one();
  write_text(folder / "a", 6'000'000, 2);
  check(command, "it differs in texts");
  // If the first process is still alive, a second one leaves its files alone.
  tokenize(folder, command, [&](pid_t pid) {
    wait_until([&] { return fs::exists(folder / "t.bin.resume"); });
    kill(pid, SIGSTOP);
    const pid_t second = fork();
    if (second == 0) {
      const int code =
          std::system(("cd " + folder.string() + " && " FSDP_BIN "/fsdp-tokenize " + command + " > second 2>&1").c_str());
      _exit(WEXITSTATUS(code));
    }
    int status = 0;
    waitpid(second, &status, 0);
    BOOST_TEST(WEXITSTATUS(status) == 2);
    BOOST_TEST(contains(read_file(folder / "second"), "is being written by another process"));
    kill(pid, SIGCONT);
  });
  BOOST_TEST(fs::exists(folder / "t.bin"));
}
