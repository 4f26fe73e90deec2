// Flight records of jobs that ended because of one rank, and the report of fsdp-inspect about them.
#include <boost/test/unit_test.hpp>

#include "jobs/fault.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(int np, const std::string& more = "") {
  return split(
      "data/train.bin --arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 "
      "--tokens-per-sample 32 --total-batch-size 12 --collective-timeout 3s --save-dir saves --log-file saves.jsonl "
      "--batch-size " +
      std::to_string(12 / np) + (more.find("--lr ") == std::string::npos ? " --lr 3e-3" : "") +
      (more.find("--max-update") == std::string::npos ? " --max-update 100000 " : " ") + more);
}

/// The data are in a separate folder, so that a fault can count their reads.
fs::path folder_with_data() {
  const fs::path folder = fresh_folder();
  fs::create_directories(folder / "data");
  fs::copy_file(golden_folder("gpt2-tied") / "train.bin", folder / "data/train.bin");
  return folder;
}

Outcome train(const fs::path& folder, int np, const Fault& fault, const std::string& more = "") {
  return run(folder, mpirun(np, "fsdp-train", options(np, more), with(fault, folder, "data")));
}

json records(const fs::path& folder, const std::string& where = "saves") {
  const Outcome outcome = run(folder, {std::string(FSDP_BIN) + "/fsdp-inspect", "--flight", where, "--json"});
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return json::parse(outcome.output);
}

std::string described(const fs::path& folder, const std::string& where = "saves") {
  const Outcome outcome = run(folder, {std::string(FSDP_BIN) + "/fsdp-inspect", "--flight", where});
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return outcome.output;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(a_rank_that_is_killed_is_named_with_what_it_did) {
  for (const int np : {2, 4}) {
    const auto folder = folder_with_data();
    const Outcome outcome = train(folder, np, {.calls = "product", .what = "kill", .at = 200, .rank = np - 1});
    BOOST_TEST(outcome.code != 0);
    const json said = records(folder);
    BOOST_TEST_INFO_SCOPE(described(folder));
    BOOST_TEST(said["ranks"].size() == static_cast<std::size_t>(np));
    BOOST_TEST(said["ranks_to_look_at"] == json::array({np - 1}));
    // The rank died during a computation: the last entry of that lane has begun and is not done.
    const json lane = said["ranks"].back()["lanes"]["compute"];
    BOOST_TEST(lane["done"] == lane["begun"].get<int>() - 1);
    const json& last = lane["entries"].back();
    BOOST_TEST(
        contains(said["verdict"], "is behind: at " + last["what"].get<std::string>() + " of update " + last["update"].dump()));

    if (np > 2) continue;
    // The next run sets the records aside. A run that ends well leaves no records.
    const Outcome next = train(folder, np, {}, "--max-update 3");
    BOOST_TEST(next.code == 0, next.output);
    BOOST_TEST(next.says("fsdp-inspect --flight saves/flight.old"), next.output);
    BOOST_TEST(!fs::exists(folder / "saves/flight"));
    BOOST_TEST(records(folder)["verdict"] == said["verdict"]);
    const Outcome good = train(folder, np, {}, "--max-update 4");
    BOOST_TEST(!good.says("flight"), good.output);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_stopped_is_named_with_what_it_did) {
  for (const std::string comm : {"shm", "mpi"}) {
    const auto folder = folder_with_data();
    const Outcome outcome =
        train(folder, 3, {.calls = "product", .what = "stop", .at = 200, .rank = 1}, "--sharding-strategy full --comm " + comm);
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.says("fsdp-inspect --flight saves shows what each rank did last"), outcome.output);
    const json said = records(folder);
    BOOST_TEST_INFO_SCOPE(described(folder));
    BOOST_TEST(said["ranks_to_look_at"] == json::array({1}));
    BOOST_TEST(contains(said["verdict"], "rank 1 on "));
    BOOST_TEST(said["ranks"][0]["end"] == "waited");
    BOOST_TEST(contains(said["ranks"][0]["message"], "rank 1 on "));
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_fails_says_why_in_its_record) {
  const auto folder = folder_with_data();
  if (run(folder, {std::string(FSDP_BIN) + "/fsdp-train", "--version"}).says("OpenBLAS"))
    return;  // its products return no errors
  const Outcome outcome = train(folder, 3, {.calls = "product", .what = "EIO", .at = 200, .rank = 2});
  BOOST_TEST(outcome.code == 1, outcome.output);
  const json said = records(folder);
  BOOST_TEST_INFO_SCOPE(described(folder));
  BOOST_TEST(said["ranks_to_look_at"] == json::array({2}));
  BOOST_TEST(contains(said["verdict"], "failed in "));
  BOOST_TEST(contains(said["verdict"], "dnnl_sgemm"));
  BOOST_TEST(said["ranks"][2]["end"] == "failed");
}

BOOST_AUTO_TEST_CASE(damaged_and_missing_records_are_said) {
  const auto folder = folder_with_data();
  train(folder, 4, {.calls = "read", .what = "kill", .at = 104, .rank = 0, .name = "train.bin"});
  const fs::path flight = folder / "saves/flight";
  fs::remove(flight / "rank-00003-of-00004.flight");
  fs::resize_file(flight / "rank-00001-of-00004.flight", 1000);
  const json said = records(folder, "saves/flight");
  BOOST_TEST(said["missing"] == json::array({1, 3}));
  BOOST_TEST(said["ranks_to_look_at"] == json::array({1, 3}));
  BOOST_TEST(contains(said["problems"].at(0), "it has 1000 bytes"));
  const std::string text = described(folder, "saves/flight");
  BOOST_TEST(contains(text, "no record of ranks 1, 3"), text);

  for (const int rank : {0, 2}) std::ofstream(flight / ("rank-0000" + std::to_string(rank) + "-of-00004.flight")) << "x";
  const Outcome none = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect --flight saves"));
  BOOST_TEST(none.code == 1, none.output);
  BOOST_TEST(none.says("none of the 3 flight records"), none.output);
  const Outcome empty = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect --flight data"));
  BOOST_TEST(empty.code == 2, empty.output);
  BOOST_TEST(empty.says("data has no flight records (a run that ends normally removes them)"), empty.output);
}

BOOST_AUTO_TEST_CASE(an_end_in_good_order_leaves_nothing) {
  const auto folder = folder_with_data();
  const Outcome refused = train(folder, 2, {}, "--optimizer sgd --lr 1e30 --max-update 9");
  BOOST_TEST(refused.code == 1, refused.output);
  BOOST_TEST(refused.says("is not finite"), refused.output);
  BOOST_TEST(!fs::exists(folder / "saves/flight"));
  // If a record cannot be created, training continues.
  fs::remove_all(folder / "saves");
  Fault full{.calls = "create", .what = "ENOSPC", .at = 1, .times = 9, .rank = -1, .name = ".flight"};
  const Outcome warned = run(folder, mpirun(2, "fsdp-train", options(2, "--max-update 3"), with(full, folder, "saves")));
  BOOST_TEST(warned.code == 0, warned.output);
  BOOST_TEST(warned.says("warning: 2 ranks without a flight record (could not make saves/flight/rank-00000-of-00002.flight: No "
                         "space left on device)"),
             warned.output);
}
