// Adapters (LoRA) as PEFT's: 20 updates have PEFT's losses and adapter weights, at 1 and 3 ranks, and PEFT and transformers
// load what fsdp-consolidate writes. The test is skipped if Python (FSDP_PYTHON, else python3) lacks the packages.
#include <boost/test/unit_test.hpp>

#include "jobs/python.hpp"

using namespace fsdp::test;

namespace {

const std::string script = script_of_jobs("adapters_in_python.py");

struct SkipWithoutPeft {
  SkipWithoutPeft() { skip_without_python(script, "torch, transformers, safetensors and peft"); }
};
BOOST_TEST_GLOBAL_FIXTURE(SkipWithoutPeft);

}  // namespace

BOOST_AUTO_TEST_CASE(adapters_are_those_of_peft) {
  const auto folder = fresh_folder();
  const std::string bin = FSDP_BIN;
  std::ifstream document(FSDP_TEST_DATA "/../../docs/design.md");
  std::string text(4000, ' ');
  document.read(text.data(), static_cast<std::streamsize>(text.size()));
  std::ofstream(folder / "text.txt") << text;
  must(folder, {python(), script, "make"});
  for (const std::string name : {"llama", "gpt2"}) {
    for (const int ranks : {1, 3}) {
      const std::string saves = name + "-" + std::to_string(ranks);
      must(folder,
           mpirun(ranks, "fsdp-train",
                  split("text.txt --tokenizer bytes --model " + name + " --adapter " + name +
                        "-start --tokens-per-sample 32 --total-batch-size 6 --batch-size " + std::to_string(6 / ranks) +
                        " --lr 1e-2 --adam-betas (0.9,0.98) --adam-eps 1e-3 --weight-decay 0 --max-update 20 --save-dir " +
                        saves + " --log-file " + saves + ".jsonl")));
      must(folder, split(bin + "/fsdp-consolidate " + saves + " " + saves + "-peft --adapter"));
    }
    must(folder, split(bin + "/fsdp-consolidate " + name + "-3 " + name + "-peft --adapter"));
    must(folder, split(bin + "/fsdp-consolidate " + name + "-3 " + name + "-merged --merge --format safetensors"));
    const Outcome evaluated =
        run(folder, mpirun(2, "fsdp-evaluate", split(name + "-3 text.txt --tokenizer bytes --tokens-per-sample 32 --json")));
    BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
    std::ofstream(folder / (name + "-evaluated.json")) << json::parse(evaluated.output.substr(evaluated.output.find('{')));
  }
  must(folder, {python(), script, "check"});
}
