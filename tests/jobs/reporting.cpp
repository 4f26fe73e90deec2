// What a run leaves for its readers: its page, and event files for TensorBoard, over a crash, a preemption and a resize.
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "jobs/python.hpp"
#include "report/svg_reader.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(int updates, const std::string& more = "", const std::string& save_dir = "run") {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 24 --decoder-attention-heads 3 --tokens-per-sample "
      "16 "
      "--total-batch-size 12 --lr 3e-3 --clip-norm 1 --save-dir " +
      save_dir + " --max-update " + std::to_string(updates) + " " + more);
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}
Outcome train(const fs::path& folder, int np, int updates, const std::string& more = "",
              const std::function<void(pid_t)>& meanwhile = {}) {
  return run(folder, mpirun(np, "fsdp-train", options(updates, more)), meanwhile);
}
Outcome report(const fs::path& folder, const std::string& words) {
  auto command = split(words);
  command.insert(command.begin(), std::string(FSDP_BIN) + "/fsdp-report");
  return run(folder, command);
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}
std::size_t updates_in(const fs::path& file) {
  const std::string text = contents(file);
  std::size_t n = 0;
  for (std::size_t at = text.find("\"type\":\"train\""); at != std::string::npos; at = text.find("\"type\":\"train\"", at + 1))
    ++n;
  return n;
}
void wait_for_updates(const fs::path& file, std::size_t n) {
  for (int i = 0; i < 1200 && updates_in(file) < n; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_page_shows_a_crash_a_preemption_and_a_resize) {
  const auto folder = fresh_folder();
  const fs::path metrics_file = folder / "run/metrics.jsonl", page = folder / "run/report.html";
  const std::string saves = "--save-interval-updates 4 --tensorboard tb --trace trace.json";
  // 1. A crash: the job is killed after some updates.
  train(folder, 2, 1'000'000, saves, [&](pid_t child) {
    wait_for_updates(metrics_file, 30);
    kill(child, SIGKILL);
  });
  std::this_thread::sleep_for(std::chrono::seconds(2));  // mpirun's daemonless ranks end when they notice
  BOOST_TEST(!fs::exists(page));
  // 2. It resumes on three ranks, until it is told to stop.
  const std::size_t before = updates_in(metrics_file);
  const Outcome stopped = train(folder, 3, 1'000'000, saves, [&](pid_t child) {
    wait_for_updates(metrics_file, before + 10);
    kill(child, SIGUSR1);
  });
  BOOST_TEST(stopped.code == 75);
  BOOST_TEST(stopped.says("\nreport: run/report.html\n"), stopped.output);
  BOOST_TEST_REQUIRE(fs::exists(page));
  // 3. It ends on one rank.
  const auto lines = metrics(metrics_file, "train");
  const int last = lines.back()["step"].get<int>() + 5;
  const Outcome done = train(folder, 1, last, saves);
  BOOST_TEST_REQUIRE(done.code == 0, done.output);
  BOOST_TEST(last_line(done.output) == "report: run/report.html");

  const std::string text = contents(page);
  for (const char* words : {"killed or crashed", "stopped: SIGUSR1", "start 3 after update", "goodput", "Memory",
                            "--clip-norm 1", "changes", "3 ranks"})
    BOOST_TEST((text.find(words) != std::string::npos), words);
  const auto drawings = drawings_in(text);
  BOOST_TEST(drawings.size() >= 7u);
  for (const Picture& picture : drawings) BOOST_TEST(faults_of(picture) == "");
  BOOST_TEST(text.size() < 2'000'000u);

  // The page can be made again, with the flight records of a crash, and the other forms are made, too.
  BOOST_TEST(report(folder, "run --out again.html").code == 0);
  BOOST_TEST(report(folder, "run --csv run.csv").code == 0);
  const std::string csv = contents(folder / "run.csv");
  BOOST_TEST(std::count(csv.begin(), csv.end(), '\n') == last + 1);
  BOOST_TEST(report(folder, "run --text").says("run: update " + std::to_string(last)));
  BOOST_TEST(report(folder, "run --text --follow").says("run: update " + std::to_string(last)));  // the run is done

  // TensorBoard's files of the three starts have each update once.
  if (probe_python(script_of_jobs("tensorboard_in_python.py")).code == 0) {
    for (int twice = 0; twice < 2; ++twice) BOOST_TEST(report(folder, "run --tensorboard tb-again").code == 0);
    for (const char* name : {"tb", "tb-again"}) {
      const Outcome read = run(folder, {python(), script_of_jobs("tensorboard_in_python.py"), name});
      const json tags = json::parse(read.output.substr(read.output.find('{')));
      const json& losses = tags["loss_metrics/global_avg_loss"];
      BOOST_TEST_REQUIRE(losses.size() == static_cast<std::size_t>(last), name);
      const auto all = metrics(metrics_file, "train");
      for (std::size_t i = 0; i < losses.size(); ++i) {
        BOOST_TEST(losses[i][0].get<int>() == static_cast<int>(i) + 1);
        BOOST_TEST(losses[i][1].get<float>() == all[i]["loss"].get<float>());
        for (const char* name_there : {"mean_token_accuracy", "entropy"})
          BOOST_TEST(tags[std::string("train/") + name_there][i][1].get<float>() == all[i][name_there].get<float>());
      }
    }
  } else {
    BOOST_TEST(!std::getenv("FSDP_PYTHON"));  // tools/install --tests installs the package
  }
}

BOOST_AUTO_TEST_CASE(what_is_written_is_what_was_asked_for) {
  const auto folder = fresh_folder();
  Outcome outcome = train(folder, 1, 2, "--no-report");
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(!fs::exists(folder / "run/report.html"));
  BOOST_TEST(fs::exists(folder / "run/metrics.jsonl"));
  outcome = train(folder, 1, 4, "--log-file none");
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(!fs::exists(folder / "run/report.html"));
  BOOST_TEST(updates_in(folder / "run/metrics.jsonl") == 2u);
  outcome = train(folder, 1, 6, "--log-file own.jsonl");
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(last_line(outcome.output) == "report: run/report.html");
  BOOST_TEST(updates_in(folder / "own.jsonl") == 2u);
  outcome = train(folder, 1, 2, "--no-save");
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  BOOST_TEST(!outcome.says("report:"));

  outcome = report(folder, "nowhere");
  BOOST_TEST(outcome.code == 2);
  BOOST_TEST(outcome.says("there is no 'nowhere'"));
  fs::create_directories(folder / "empty");
  outcome = report(folder, "empty");
  BOOST_TEST(outcome.code == 2);
  BOOST_TEST(outcome.says("'empty' has no metrics of a run"));
  outcome = report(folder, "");
  BOOST_TEST(outcome.code == 2);
  BOOST_TEST(outcome.says("no run is named"));
  for (const char* words : {"--text --out x.html", "--text --csv x.csv", "--follow", "--csv x.csv --out x.html",
                            "--figure loss --text", "--figure loss --tensorboard x"}) {
    outcome = report(folder, std::string("run ") + words);
    BOOST_TEST(outcome.code == 2, words);
    BOOST_TEST(outcome.says(" changes nothing ("), outcome.output);
    BOOST_TEST(!fs::exists(folder / "x.html"));
  }
  outcome = run(folder, {"sh", "-c", FSDP_BIN "/fsdp-report run --csv /dev/stdout | cat"});
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.says("run,train,2,"), outcome.output);
  outcome = report(folder, "run --out run/metrics.jsonl");
  BOOST_TEST(outcome.code == 2, outcome.output);
  BOOST_TEST(updates_in(folder / "run/metrics.jsonl") == 2u);
  // What went into a pipe cannot be read again: there is no page, and nothing waits for it.
  BOOST_TEST_REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  run(folder, {"sh", "-c", "cat pipe > piped.jsonl"},
      [&](pid_t) { outcome = run(folder / "empty", mpirun(2, "fsdp-train", options(8, "--log-file ../pipe", "../piped"))); });
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(!outcome.says("report"), outcome.output);
  BOOST_TEST(metrics(folder / "piped.jsonl", "train").size() == 8u);

  outcome = report(folder, "run --out nowhere/page.html");
  BOOST_TEST(outcome.code == 2);
  BOOST_TEST(outcome.says("cannot write 'nowhere/page.html'"));
  BOOST_TEST(!outcome.says("terminate"));

  // A page that cannot be written does not hold up a run.
  fs::create_directories(folder / "piped-page");
  BOOST_TEST_REQUIRE(mkfifo((folder / "piped-page/report.html").c_str(), 0600) == 0);
  outcome = run(folder / "empty", mpirun(1, "fsdp-train", options(2, "", "../piped-page")));
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.says("no report is written"), outcome.output);

  // A second writer of event files is refused, on every rank.
  run(folder, mpirun(1, "fsdp-train", options(1'000'000, "--tensorboard tb", "other")), [&](pid_t child) {
    for (int i = 0; i < 1200 && !fs::exists(folder / "other/metrics.jsonl"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Outcome second = report(folder / "empty", "../run --tensorboard ../tb");
    BOOST_TEST(second.code == 2);
    BOOST_TEST(second.says("another program writes TensorBoard's files to '../tb'"));
    kill(child, SIGUSR1);
  });
}

/// Names that a user may have for other things. A run and fsdp-report leave them as they are, and say so.
BOOST_AUTO_TEST_CASE(files_of_the_user_stay) {
  const auto folder = fresh_folder(), data = golden_folder("gpt2-tied") / "train.bin";
  const std::vector<std::string> names = {"report.html.tmp", "best.tmp", "report.html"};
  fs::create_directories(folder / "run");
  for (const std::string& name : names) std::ofstream(folder / "run" / name) << "mine";
  fs::create_directory_symlink("../elsewhere", folder / "run/best");
  const std::string best = "--validate-interval-updates 1 --keep-best loss --valid " + data.string();
  const Outcome trained = train(folder, 1, 3, best);
  BOOST_TEST(trained.code == 0, trained.output);
  for (const std::string& name : names) BOOST_TEST(contents(folder / "run" / name) == "mine", name);
  BOOST_TEST(fs::read_symlink(folder / "run/best") == "../elsewhere");
  BOOST_TEST(trained.says("run/best is no link to a step of this folder"), trained.output);
  BOOST_TEST(trained.says("no report is written (run/report.html is in the way"), trained.output);

  // A link is not followed. --out names a file, which is replaced.
  std::ofstream(folder / "notes") << "mine";
  fs::create_symlink("notes", folder / "report.html");
  BOOST_TEST(report(folder, "run").says("report.html is in the way"));
  BOOST_TEST(contents(folder / "notes") == "mine");
  fs::remove(folder / "report.html");
  BOOST_TEST(report(folder, "run").code == 0);
  BOOST_TEST(report(folder, "run").code == 0);  // its own page is replaced
  BOOST_TEST(report(folder, "run --out notes").code == 0);
  BOOST_TEST(contents(folder / "notes") == contents(folder / "report.html"));
}

/// The name of a folder cannot speak to the terminal, nor print a line of its own.
BOOST_AUTO_TEST_CASE(names_are_printed_without_control_characters) {
  const auto folder = fresh_folder();
  const std::string name = "=ck\x1b]0;title\x07\u009B\u202E\xff\nfsdp-train: done";
  auto words = options(2);
  std::replace(words.begin(), words.end(), std::string("run"), name);
  std::vector<std::pair<std::string, std::vector<std::string>>> commands = {{"train", mpirun(2, "fsdp-train", words)}};
  const std::string tokens = (golden_folder("gpt2-tied") / "train.bin").string(), bin = FSDP_BIN;
  for (const auto& [program, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"inspect", {}},
           {"inspect", {"--verify"}},
           {"inspect", {"--options"}},
           {"inspect", {name}},
           {"consolidate", {"m.h5"}},
           {"consolidate", {"m.h5", "--verify", "--no-verify"}},  // refused
           {"evaluate", {"--tokens-per-sample", "16", tokens}},
           {"report", {"--text"}},
           {"report", {"--csv", "t.csv"}},
           {"report", {"--out", name + ".html"}}}) {
    std::vector<std::string> command = {bin + "/fsdp-" + program, name};
    command.insert(command.end(), more.begin(), more.end());
    commands.emplace_back(program, command);
  }
  for (const auto& [program, command] : commands) {
    const Outcome outcome = run(folder, command);
    BOOST_TEST(outcome.output != "");
    for (const char* control : {"\x1b", "\x07", "\u009B", "\u202E", "\xff", "\nfsdp-train: done"})
      BOOST_TEST(!outcome.says(control), program << " prints " << outcome.output);
  }
  BOOST_TEST(contents(folder / "t.csv").find("\n'=ck]0;title") != std::string::npos);
}
