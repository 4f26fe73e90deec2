// docs/examples/from-pytorch: the program and the PyTorch script have the same losses, beginning with the same weights, at 2
// ranks. The test is skipped if Python (FSDP_PYTHON, else python3) lacks the packages.
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "jobs/python.hpp"

using namespace fsdp::test;

namespace {

const fs::path docs = fs::path(FSDP_TEST_DATA) / "../../docs";

struct SkipWithoutTorch {
  SkipWithoutTorch() {
    const fs::path folder = fs::temp_directory_path();
    const Outcome outcome = run(folder, {python(), "-c", "import h5py, torch.distributed.fsdp as f; f.fully_shard"});
    if (outcome.code == 0) return;
    BOOST_TEST_REQUIRE((outcome.code == 1 || (outcome.code == 127 && !std::getenv("FSDP_PYTHON"))), outcome.output);
    std::printf("skipped: no Python with h5py and torch (FSDP_PYTHON=FILE names one)\n");
    std::fflush(stdout);
    std::exit(77);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(SkipWithoutTorch);

/// The losses in lines like "step 3  loss 4.3689294".
std::vector<double> losses(const Outcome& outcome) {
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  std::vector<double> all;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find("  loss "); at != std::string::npos) all.push_back(std::stod(line.substr(at + 7)));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_losses_are_those_of_the_script) {
  const auto folder = fresh_folder();
  fs::copy_file(docs / "design.md", folder / "text.txt");
  const std::vector<double> ours = losses(run(folder, mpirun(2, "test_api_from_pytorch_program", {"initial.h5"})));
  const std::vector<double> theirs =
      losses(run(folder, {python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                          (docs / "examples/from-pytorch/train.py").string(), "initial.h5"}));
  BOOST_TEST_REQUIRE(ours.size() == 21u);  // 20 updates and the evaluation
  BOOST_TEST_REQUIRE(theirs.size() == 21u);
  BOOST_TEST(ours[19] < ours[0] - 1);
  for (std::size_t i = 0; i < ours.size(); ++i) BOOST_TEST(std::abs(ours[i] - theirs[i]) < 1e-5, ours[i] << " " << theirs[i]);
}
