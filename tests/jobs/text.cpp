// From text to text: a tokenizer's tokens, a model that learns them, its text and its bits per byte.
#define BOOST_TEST_MODULE jobs.text
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "jobs/job.hpp"
#include "support/files.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

using namespace fsdp::test;

namespace {

const std::string tokenizers = FSDP_TEST_DATA "/tokenizers/";

Outcome tool(const fs::path& folder, const std::string& line) {
  std::vector<std::string> words = split(line);
  words[0] = FSDP_BIN "/" + words[0];
  return run(folder, words);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_model_learns_the_tokens_of_a_tokenizer_and_speaks_with_it) {
  const auto folder = fresh_folder();
  std::string text;
  for (int i = 0; i < 400; ++i) text += "In the beginning God cr\u00e9ated the heaven and the earth \U0001f600. ";
  write_file(folder / "text.txt", text);
  const std::string with = " --tokenizer " + tokenizers + "smollm2.json";
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-tokenize text.txt --out train.bin" + with).code == 0);
  const Outcome trained = run(
      folder, mpirun(2, "fsdp-train",
                     split("train.bin --arch llama-7b --vocab-size 500 --decoder-layers 2 --decoder-embed-dim 64 "
                           "--decoder-ffn-embed-dim 128 --decoder-attention-heads 4 --tokens-per-sample 64 --batch-size 4 --lr "
                           "3e-3 --max-update 60 --save-dir saves")));
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  BOOST_TEST_REQUIRE(tool(folder, "fsdp-consolidate saves out --format safetensors").code == 0);

  // It has learned its text by heart, and goes on with whole characters.
  const std::string ask = " --prompt In --temperature 0 --max-new-tokens 60";
  const Outcome spoken = tool(folder, "fsdp-generate saves" + ask + with);
  BOOST_TEST_REQUIRE(spoken.code == 0, spoken.output);
  BOOST_TEST(spoken.output.starts_with("In the beginning God cr\u00e9ated the heaven and the earth \U0001f600. In the"),
             spoken.output);
  BOOST_TEST(fsdp::valid_until(spoken.output) == spoken.output.size());
  // The tokenizer that lies in a model's folder is the model's.
  const Outcome unknown = tool(folder, "fsdp-generate out" + ask);
  BOOST_TEST(unknown.code == 2);
  BOOST_TEST(unknown.says("no tokenizer lies beside it"), unknown.output);
  fs::copy(tokenizers + "smollm2.json", folder / "out" / "tokenizer.json");
  BOOST_TEST(tool(folder, "fsdp-generate out" + ask).output == spoken.output);
  const Outcome other = tool(folder, "fsdp-generate out" + ask + " --tokenizer " + tokenizers + "llama2.json");
  BOOST_TEST(other.code == 2);
  BOOST_TEST(other.says("it is that of another model"), other.output);

  // Bits per byte are those of the text: all targets, so without the first token's bytes.
  const Outcome evaluated = run(folder, mpirun(2, "fsdp-evaluate", split("out train.bin --json --tokens-per-sample 64")));
  BOOST_TEST_REQUIRE(evaluated.code == 0, evaluated.output);
  const json result = json::parse(evaluated.output);
  const auto tokenizer = fsdp::open_tokenizer((folder / "out").string());
  const auto ids = tokenizer->encode(text);
  BOOST_TEST(result["tokens"].get<std::size_t>() == ids.size() - 1);
  const double bytes = static_cast<double>(text.size() - tokenizer->decode({ids[0]}).size());
  BOOST_TEST(result["bits_per_byte"].get<double>() ==
                 result["loss"].get<double>() / std::log(2.0) * static_cast<double>(ids.size() - 1) / bytes,
             boost::test_tools::tolerance(1e-12));
  const Outcome shown = run(folder, mpirun(2, "fsdp-evaluate", split("out train.bin --tokens-per-sample 64")));
  BOOST_TEST(shown.says("bits per token"), shown.output);
  BOOST_TEST(shown.says("bits per byte"), shown.output);
}
