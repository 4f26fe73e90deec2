// fsdp-doctor --pack: what is in the archive, and what must not be.
#include "fsdp-doctor/pack.hpp"

#include <stdlib.h>

#include <set>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "base/system.hpp"
#include "record/flight.hpp"
#include "support/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace fs = std::filesystem;

namespace {

// A word of the data and of secrets, which no file of an archive may have.
const std::string marker = "sekrit-marker";
const std::string start = R"({"type":"start","step":0,"time":1,"world_size":2,"nodes":1,"slurm_job":"12","version":"0.1.0",)"
                          R"("save_folder":"/x/run","options":{"arch":"gpt2","decoder-layers":2,"lr":0.001},)"
                          R"("data":[{"name":"a","first_row":"sekrit-marker"}],)"
                          R"("first_sequences":[{"text":[{"text":"sekrit-marker"}]}]})";
const std::string update = R"({"type":"train","step":1,"time":2,"loss":3.5})",
                  sample = R"({"type":"sample","step":1,"prompt":"sekrit-marker","text":"sekrit-marker"})";

/// A run with more metrics and output than an archive takes, weights, data and flight records.
struct MadeRun {
  TemporaryFolder top;
  fs::path folder = top / "run", archive = top / "out.tar.gz";

  MadeRun() {
    fs::create_directories(folder / "step-00000010");
    fs::create_directories(folder / "tokens");
    write_file(folder / "step-00000010" / "rank-00000-of-00001.h5", marker);
    write_file(folder / "tokens" / "text.bin", marker);
    write_file(folder / "report.html", marker);
    std::string metrics = start + "\n", output = "data: 'a' begins: " + marker + "\n  " + marker + "\nfsdp 0.1.0\n";
    for (int i = 0; i < 30000; ++i) metrics += update + "\n" + sample + "\n", output += "step 1\nsample 1: " + marker + "\n";
    write_file(folder / "metrics.jsonl", metrics + R"({"type":"start","data":[{"first_row":"sekrit-marker)");  // killed
    write_file(top / "job-12.out", output + "the last line\n");
    write_file(top / "job-13.out", marker);  // of another job
    for (int rank = 0; rank < 2; ++rank) FlightFile(folder / "flight", rank, 2, DeviceKind::cpu, FlightMemory::mapped);
  }
};

std::string output_of(const std::vector<std::string>& words) {
  const auto answer = ask_program(words, 20);
  BOOST_TEST_REQUIRE(answer.has_value());
  BOOST_TEST_REQUIRE(answer->exit_code == 0, answer->text);
  return answer->text;
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) names.insert(entry.path().lexically_relative(folder).string());
  return names;
}

}  // namespace

BOOST_AUTO_TEST_CASE(variables_that_may_hold_secrets) {
  for (const char* const name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "wandb_api_key", "PGPASSWORD", "MYSQL_PWD", "SLURM_JWT",
                                 "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "XAUTHORITY", "SESSION_COOKIE"})
    BOOST_TEST(may_be_secret(name, "x"), name);
  for (const char* const name : {"PATH", "PWD", "OLDPWD", "SLURM_JOB_ID", "LOADEDMODULES", "NCCL_NET", "FI_CXI_RDZV_PROTO"})
    BOOST_TEST(!may_be_secret(name, "/a/b:/c"), name);
  for (const char* const value :
       {"host=h;Password=word", "Bearer ey", "-----BEGIN OPENSSH PRIVATE KEY-----", "hf_abc", "https://x/?sig=a"})
    BOOST_TEST(may_be_secret("CONNECTION", value), value);
  BOOST_TEST(may_be_secret("http_proxy", "http://me:word@proxy:3128"));
  BOOST_TEST(!may_be_secret("http_proxy", "http://proxy:3128"));
}

BOOST_AUTO_TEST_CASE(long_files_lose_their_middle) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += std::to_string(i) + "\n";
  write_file(folder / "long", lines);
  BOOST_TEST(ends_of_file(folder / "long", lines.size()) == lines);
  const std::string ends = ends_of_file(folder / "long", 40);
  BOOST_TEST(ends == "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n{\"type\":\"left_out\",\"bytes\":3854}\n996\n997\n998\n999\n");
  write_file(folder / "one line", std::string(1000, 'x'));
  BOOST_TEST(ends_of_file(folder / "one line", 40).starts_with("{\"type\":\"left_out\",\"bytes\":980}\nxxx"));
}

BOOST_AUTO_TEST_CASE(lines_lose_the_text_of_the_data_and_of_samples) {
  BOOST_TEST(without_data(update) == R"({"loss":3.5,"step":1,"time":2,"type":"train"})"
                                     "\n");
  for (const std::string& line : {start, sample, start.substr(0, start.size() - 9)})
    BOOST_TEST(!contains(without_data(line), marker), line);
  BOOST_TEST(
      without_data("a\ndata: 'x': 5 tokens\ndata: 'x' begins: The\n  quick\n fox\nb\nsample 20: Who?\n  Me\nsample: x\n") ==
      "a\ndata: 'x': 5 tokens\n(left out)\nb\n"
      "(left out)\nsample: x\n");
  BOOST_TEST(without_data("0: sample 1: Who?\n0:   Me\n0: step 2\n") == "0: (left out)\n0: step 2\n");
  BOOST_TEST(without_data("{\"type\":\"left_out\"}\n  of a sample\nb") == "{\"type\":\"left_out\"}\nb");  // cut in a sample
}

BOOST_AUTO_TEST_CASE(an_archive_has_no_data_no_weights_and_no_secrets) {
  const MadeRun run;
  BOOST_TEST(::setenv("MY_TOKEN", marker.c_str(), 1) == 0);
  BOOST_TEST(::setenv("MY_SETTING", "yes", 1) == 0);
  const Pack pack(run.folder, run.archive);
  BOOST_TEST(pack.folder() == run.folder);
  const std::string list = pack.write("all 7 checks are ok\n");
  output_of({"tar", "-xf", run.archive, "-C", run.top.path()});
  const fs::path out = run.top / "out";
  const std::set<std::string> wanted = {"doctor.txt",
                                        "checkpoint.json",
                                        "options.json",
                                        "plan.txt",
                                        "versions.txt",
                                        "environment.txt",
                                        "files.txt",
                                        "metrics.jsonl",
                                        "job-12.out",
                                        "flight.txt",
                                        "flight/rank-00000-of-00002.flight",
                                        "flight/rank-00001-of-00002.flight"};
  BOOST_TEST(files_in(out) == wanted, boost::test_tools::per_element());
  for (const std::string& name : wanted) {
    BOOST_TEST_CONTEXT(name) {
      const std::string text = read_file(out / name);
      BOOST_TEST(contains(list, std::to_string(text.size()) + "  " + name));
      BOOST_TEST(text.size() <= most_of_a_file);
      BOOST_TEST(text.find(marker) == text.npos);
    }
  }
  BOOST_TEST(fs::file_size(run.archive) < (1u << 20));
  CHECK_CONTAINS(read_file(out / "environment.txt"), "MY_SETTING=yes\n");
  CHECK_CONTAINS(read_file(out / "environment.txt"), "MY_TOKEN");
  CHECK_CONTAINS(read_file(out / "options.json"), "\"decoder-layers\": 2");
  CHECK_CONTAINS(read_file(out / "plan.txt"), "2 blocks");
  CHECK_CONTAINS(read_file(out / "files.txt"), "13 tokens/text.bin");
  CHECK_CONTAINS(read_file(out / "metrics.jsonl"), "left_out");
  CHECK_CONTAINS(read_file(out / "job-12.out"), "the last line");
  CHECK_CONTAINS(read_file(out / "flight.txt"), "rank");
  CHECK_CONTAINS(read_file(out / "checkpoint.json"), "not available: ");
  CHECK_CONTAINS(message_of([&] { Pack(run.folder, run.archive); }), "already exists");
}

BOOST_AUTO_TEST_CASE(the_output_of_other_schedulers_is_found) {
  const MadeRun run;
  write_file(run.folder / "metrics.jsonl", R"({"type":"start","batch_job":"PBS job 14.server","save_folder":"/x/run"})");
  write_file(run.top / "train.o14", "the last line\n");
  const std::string list = Pack(run.folder, run.archive).write("");
  CHECK_CONTAINS(list, "14  train.o14\n");
  BOOST_TEST(!contains(list, "job-12.out"));
}

BOOST_AUTO_TEST_CASE(a_run_without_metrics_is_packed_if_it_has_flight_records) {
  const MadeRun run;
  fs::remove(run.folder / "metrics.jsonl");
  const std::string list = Pack(run.folder, run.archive).write("");
  CHECK_CONTAINS(list, "flight.txt");
}

BOOST_AUTO_TEST_CASE(a_full_disk_leaves_nothing) {
  const MadeRun run;
  const std::set<std::string> before = files_in(run.top.path());
  const Pack pack(run.folder, run.archive);
  const FileSizeLimit limit(1000);
  CHECK_CONTAINS(message_of<RunError>([&] { pack.write("x"); }), "or make room");
  BOOST_TEST(files_in(run.top.path()) == before, boost::test_tools::per_element());
}
