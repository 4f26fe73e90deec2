// New tokens as transformers adds them, and adapters of PEFT that have more than matrices of one rank: rows of tokens, whole
// modules, ranks and alphas by pattern. Tokens, rows, losses and weights are those of transformers and PEFT. The test is
// skipped if Python (FSDP_PYTHON, else python3) lacks the packages.
#include <boost/test/unit_test.hpp>

#include "jobs/python.hpp"

using namespace fsdp::test;

namespace {

const std::string script = script_of_jobs("words_in_python.py");
const std::string bin = FSDP_BIN;
const std::string shape = "text.txt --tokens-per-sample 16 --total-batch-size 6";
const std::string words = " --add-tokens words.txt --add-special-tokens <new>";

struct SkipWithoutPeft {
  SkipWithoutPeft() { skip_without_python(script, "torch, transformers, safetensors and peft"); }
};
BOOST_TEST_GLOBAL_FIXTURE(SkipWithoutPeft);

void train(const fs::path& folder, int ranks, const std::string& more) {
  must(folder, mpirun(ranks, "fsdp-train", split(shape + " --batch-size " + std::to_string(6 / ranks) + " " + more)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(words_and_adapters_are_those_of_transformers) {
  const auto folder = fresh_folder();
  must(folder, {python(), script, "make"});
  for (const std::string name : {"tied", "untied"}) {
    train(folder, 3,
          "--model " + name + words + " --pad-vocab-to 16 --lr 1e-30 --weight-decay 0 --max-update 1 --save-dir saves-" + name);
    must(folder, split(bin + "/fsdp-consolidate saves-" + name + " grown-" + name + " --format safetensors"));
    // Adapters have the rows of the new tokens; the base model stays as it is.
    const std::string saves = "words-" + name;
    train(folder, 2, "--model " + name + words + " --lora-rank 2 --lr 1e-2 --max-update 4 --save-dir " + saves);
    must(folder, split(bin + "/fsdp-consolidate " + saves + " " + saves + "-peft --adapter --verify"));
    must(folder, split(bin + "/fsdp-consolidate " + saves + " " + saves + "-merged --merge --format safetensors --verify"));
    std::vector<double> losses;
    for (const std::string& model :
         {saves, name + " --adapter " + saves, name + " --adapter " + saves + "-peft", saves + "-merged"}) {
      const Outcome evaluated =
          run(folder, mpirun(2, "fsdp-evaluate", split(model + " text.txt --tokens-per-sample 16 --json")));
      BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
      const json result = json::parse(evaluated.output.substr(evaluated.output.find('{')));
      losses.push_back(result["loss"]);
      BOOST_TEST(losses.back() == losses.front(), boost::test_tools::tolerance(1e-6));
      std::ofstream(folder / (saves + ".json")) << result;
    }
    const Outcome said =
        run(folder, split(bin + "/fsdp-generate " + name + " --adapter " + saves + "-peft --prompt frobnicate"));
    BOOST_TEST(said.code == 0, said.output);
  }
  for (const std::string name : {"tokens", "patterns", "tables-tied", "whole", "whole-tied"}) {
    train(folder, name == "patterns" ? 3 : 2,
          "--model " + name + "-base --adapter " + name +
              "-start --lr 1e-2 --adam-betas (0.9,0.98) --adam-eps 1e-3 --weight-decay 0 --max-update 8 --log-interval 1 "
              "--save-dir " +
              name + " --log-file " + name + ".jsonl");
    must(folder, split(bin + "/fsdp-consolidate " + name + " " + name + "-peft --adapter --verify"));
    if (name == "tables-tied") continue;  // such adapters cannot be merged
    must(folder, split(bin + "/fsdp-consolidate " + name + " " + name + "-merged --merge --format safetensors --verify"));
  }
  must(folder, {python(), script, "check"});
}
