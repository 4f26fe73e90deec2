// --skip-spikes skips only the update with the bad batch, with any strategy, and also after a resume.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <random>

#include "jobs/job.hpp"

using namespace fsdp::test;

namespace {

constexpr int T = 16, sequences_per_update = 4, bad_update = 80, last_update = 90;

/// Writes a sequence with a period of 13 tokens, which is learned quickly. The batch of `bad_update` has random tokens.
void write_data(const fs::path& path) {
  std::minstd_rand dice(5);
  const int of_update = T * sequences_per_update;
  std::vector<std::uint16_t> tokens(of_update * (last_update + 10));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % 13);
  for (int i = 0; i < of_update; ++i) tokens[(bad_update - 1) * of_update + i] = static_cast<std::uint16_t>(dice() % 61);
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = static_cast<std::int32_t>(tokens.size());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), static_cast<std::streamsize>(4 * header.size()));
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
}

Outcome train(const fs::path& folder, int np, const std::string& name, int updates, const std::string& more) {
  auto words = split(
      "train.bin --arch gpt2 --vocab-size 61 --decoder-layers 1 --decoder-embed-dim 32 --decoder-attention-heads 2 "
      "--tokens-per-sample 16 --lr 2e-3 --clip-norm 1 --save-dir " +
      name + " --log-file " + name + ".jsonl --batch-size " + std::to_string(sequences_per_update / np) + " --max-update " +
      std::to_string(updates) + " " + more);
  const Outcome outcome = run(folder, mpirun(np, "fsdp-train", words));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return outcome;
}

/// Returns the fields that do not depend on time.
std::vector<json> updates(const fs::path& folder, const std::string& name) {
  std::vector<json> all;
  for (const json& line : metrics(folder / (name + ".jsonl")))
    if (line["type"] == "train" || line["type"] == "skip")
      all.push_back({{"type", line["type"]}, {"step", line["step"]}, {"loss", line["loss"]}, {"gnorm", line["gnorm"]}});
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_bad_batch_is_left_out_and_nothing_else) {
  const auto folder = fresh_folder();
  write_data(folder / "train.bin");
  const std::string skip = "--skip-spikes 2 ";  // the loss still falls, so its standard deviation is large
  const Outcome whole = train(folder, 2, "whole", last_update, skip);
  const auto skipped = metrics(folder / "whole.jsonl", "skip");
  BOOST_TEST_REQUIRE(skipped.size() == 1u, whole.output);
  const json line = skipped.front();
  BOOST_TEST(line["step"] == bad_update);
  BOOST_TEST(line["reason"] == "spike");
  BOOST_TEST(line["loss"].get<double>() > line["most_loss"].get<double>());
  BOOST_TEST(line["sequences"] == bad_update * sequences_per_update);  // the batch counts as read
  BOOST_TEST(whole.says("step 80 is a spike and is left out"), whole.output);
  BOOST_TEST(metrics(folder / "whole.jsonl", "train").size() == static_cast<std::size_t>(last_update));

  // A run that is stopped and resumed skips the same update, because the statistics are in the checkpoint.
  train(folder, 2, "parts", 72, skip);
  train(folder, 2, "parts", last_update, skip);
  BOOST_CHECK(updates(folder, "parts") == updates(folder, "whole"));
  // Each strategy, and a communication thread, skips the same update.
  for (const std::string strategy : {"none", "grad-op", "full --comm-thread"}) {
    const std::string name = strategy.substr(0, 4);
    train(folder, 2, name, last_update, skip + "--sharding-strategy " + strategy);
    BOOST_CHECK(updates(folder, name) == updates(folder, "whole"));
  }
  // Without the option the bad update is not skipped.
  train(folder, 2, "all", bad_update, "");
  BOOST_TEST(metrics(folder / "all.jsonl", "skip").empty());
}
