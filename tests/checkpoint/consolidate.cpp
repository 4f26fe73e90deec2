// Consolidation: both formats have the saved state, bit for bit, and are read back like any model; also by the program.
#include <boost/test/unit_test.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <map>

#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/support.hpp"
#include "h5/h5.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

void check_model(const fs::path& path, const Run& run, Verify verify = Verify::yes) {
  const auto source = open_tensor_source(path, nullptr, verify);
  BOOST_CHECK(source->config() == run.config);
  const auto parameters = list_parameters(run.config).parameters;
  BOOST_TEST(source->names().size() == parameters.size());
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    BOOST_CHECK(source->shape(parameters[p].name) == parameters[p].shape);
    std::vector<float> values(numel(parameters[p].shape));
    source->read(parameters[p].name, {0, values.size()}, values.data());
    BOOST_CHECK(same_bits(values, whole(0, p, parameters[p].shape, run.update)));
  }
  BOOST_TEST(source->bytes_read() == parameter_count(run.config) * 4);
}

/// Returns the program's output (both streams) and its exit code.
std::pair<std::string, int> run_program(const std::string& arguments) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  BOOST_REQUIRE_MESSAGE(suite.argc > 1, "needs the path of fsdp-consolidate");
  std::string text;
  std::FILE* pipe = popen((std::string(suite.argv[suite.argc - 1]) + " " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), n);
  const int status = pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

}  // namespace

BOOST_AUTO_TEST_CASE(both_formats_hold_what_was_saved) {
  for (const Run& run : {Run{gpt2_config(), "full", 3, 1, 7}, Run{llama_config(), "none", 2, 1, 8}}) {
    const TemporaryFolder folder;
    const auto reader = CheckpointReader::open(save(folder / "saves", run));
    std::size_t last = 0, all = 0;
    const auto progress = [&](std::size_t done, std::size_t total) {
      BOOST_TEST(done > last);
      last = done, all = total;
    };
    consolidate(*reader, folder / "model.h5", {.format = &hdf5_format()}, progress);
    BOOST_TEST(last == parameter_count(run.config) * 4);
    BOOST_TEST(all == last);
    consolidate(*reader, folder / "deep" / "model", {.format = &safetensors_format()});
    check_model(folder / "model.h5", run);
    check_model(folder / "deep" / "model", run);
    BOOST_CHECK((list(folder / "deep" / "model") ==
                 std::vector<std::string>{"config.json", "model.safetensors", "model.safetensors.xxh3"}));
    BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"deep", "model.h5", "saves"}));
    BOOST_TEST(h5::File::open(folder / "model.h5").read_integer("update") == run.update);
    compare_sources(*reader, *open_tensor_source(folder / "model.h5"));
    compare_sources(*reader, *open_tensor_source(folder / "deep" / "model"));
  }
}

BOOST_AUTO_TEST_CASE(sixteen_bits_and_several_files_read_back) {
  const TemporaryFolder folder;
  const Run run;
  const auto reader = CheckpointReader::open(save(folder / "saves", run));
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [format, largest] : std::vector<std::pair<const ModelFormat*, std::size_t>>{
             {&hdf5_format(), 0}, {&safetensors_format(), 0}, {&safetensors_format(), 3000}}) {
      const fs::path out = folder / ("model-" + std::string(name_of(type)) + std::to_string(largest));
      fs::remove_all(out);
      consolidate(*reader, out, {.format = format, .type = type, .max_shard_bytes = largest});
      const auto result = open_tensor_source(out);
      compare_sources(*reader, *result, type);
      if (type != DType::f32) CHECK_CONTAINS(message_of([&] { compare_sources(*reader, *result); }), "differs from that of");
      if (largest == 0) continue;
      std::size_t files = 0;
      for (const auto& entry : fs::directory_iterator(out)) files += entry.path().extension() == ".safetensors";
      BOOST_TEST(files > 2u);
      BOOST_TEST(fs::exists(out / "model.safetensors.index.json"));
      const auto config = nlohmann::json::parse(read_text_file(out / "config.json"));
      for (const char* key : {"dtype", "torch_dtype"})
        BOOST_TEST(config[key] == (type == DType::f32 ? "float32" : type == DType::bf16 ? "bfloat16" : "float16"));
      BOOST_TEST(config["bos_token_id"].is_null());
    }
}

namespace {

/// Returns the contents of every file below a folder, or of the file itself.
std::map<std::string, std::string> contents(const fs::path& path) {
  std::map<std::string, std::string> all;
  if (fs::is_regular_file(path)) return {{"", read_file(path)}};
  for (const auto& entry : fs::recursive_directory_iterator(path))
    all[fs::relative(entry.path(), path).string()] = read_file(entry.path());
  return all;
}

/// Consolidates in a child process, which kills itself when the fraction `part` of the bytes is reported.
void consolidate_and_die(const fs::path& step, const fs::path& out, const ConsolidateOptions& options, double part) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      consolidate(*CheckpointReader::open(step), out, options, [&](std::size_t done, std::size_t all) {
        if (static_cast<double>(done) >= part * static_cast<double>(all)) raise(SIGKILL);
      });
    } catch (...) {
    }
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_run_that_was_killed_is_repeated) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "saves", {gpt2_config(), "full", 3, 1, 7});
  const auto reader = CheckpointReader::open(step);
  const std::vector<ConsolidateOptions> all = {
      {.format = &hdf5_format(), .type = DType::bf16, .with_optimizer = true},
      {.format = &safetensors_format(), .max_shard_bytes = 20000, .with_optimizer = true}};
  for (const ConsolidateOptions& options : all) {
    consolidate(*reader, folder / "whole", options);
    for (const double part : {0.0, 0.8, 1.0})
      for (const ConsolidateOptions& other : all) {  // also after a call with another format
        consolidate_and_die(step, folder / "out", other, part);
        BOOST_TEST(!fs::exists(folder / "out"));
        BOOST_CHECK_THROW(open_tensor_source(folder / "out.tmp" / "unfinished-model"), UserError);
        consolidate(*reader, folder / "out", options);
        BOOST_CHECK(contents(folder / "out") == contents(folder / "whole"));
        BOOST_TEST(!fs::exists(folder / "out.tmp"));
        fs::remove_all(folder / "out");
      }
    fs::remove_all(folder / "whole");
  }
}

BOOST_AUTO_TEST_CASE(two_at_once_are_refused) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  const SaveLock lock(folder / "out.tmp");
  CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {}); }), "out.tmp is in use");
}

BOOST_AUTO_TEST_CASE(tokenizer_files_come_along) {
  const TemporaryFolder folder;
  Run run;
  run.model_folder = folder / "origin";
  const auto reader = CheckpointReader::open(save(folder / "saves", run));
  const ConsolidateOptions options = {.format = &safetensors_format()};
  const auto warning = [&] {
    fs::remove_all(folder / "model");
    const Consolidated done = consolidate(*reader, folder / "model", options);
    BOOST_TEST(done.copied.empty());
    BOOST_CHECK(
        (list(folder / "model") == std::vector<std::string>{"config.json", "model.safetensors", "model.safetensors.xxh3"}));
    BOOST_TEST_REQUIRE(done.warnings.size() == 1u);
    return done.warnings.front();
  };
  CHECK_CONTAINS(warning(), "it no longer exists");
  fs::create_directories(run.model_folder);
  nlohmann::json config = config_to_json(run.config);
  config["vocab_size"] = 36;
  write_file(run.model_folder / "config.json", config.dump());
  write_file(run.model_folder / "tokenizer.json", "{}");
  CHECK_CONTAINS(warning(), "its vocabulary has 36 tokens, but this model's has 37");
  write_file(run.model_folder / "config.json", "no JSON");
  CHECK_CONTAINS(warning(), "is not a JSON object");

  config["vocab_size"] = 37, config["eos_token_id"] = 5;
  write_file(run.model_folder / "config.json", config.dump());
  for (const char* name : {"merges.txt", "generation_config.json", "README.md", "pytorch_model.bin"})
    write_file(run.model_folder / name, name);
  write_file(run.model_folder / "generation_config.json", R"({"eos_token_id": [7, 900], "do_sample": true})");
  fs::remove_all(folder / "model");
  const Consolidated done = consolidate(*reader, folder / "model", options);
  // Texts end at every end-of-text token in any of the files.
  BOOST_TEST_REQUIRE(done.warnings.size() == 1u);
  CHECK_CONTAINS(
      done.warnings.front(),
      "files of the model name different special tokens (eos: config.json 5, generation_config.json 7); a text ends");
  BOOST_CHECK((list(folder / "model") == std::vector<std::string>{"config.json", "generation_config.json", "merges.txt",
                                                                  "model.safetensors", "model.safetensors.xxh3",
                                                                  "tokenizer.json", "tokenizer_config.json"}));
  BOOST_TEST(read_file(folder / "model" / "merges.txt") == "merges.txt");
  BOOST_TEST(nlohmann::json::parse(read_file(folder / "model" / "config.json"))["eos_token_id"] == (nlohmann::json{5, 7}));
  BOOST_TEST(nlohmann::json::parse(read_file(folder / "model" / "generation_config.json")) ==
             (nlohmann::json{{"eos_token_id", {5, 7}}, {"do_sample", true}}));
  compare_sources(*reader, *open_tensor_source(folder / "model"));
}

BOOST_AUTO_TEST_CASE(a_difference_is_named) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  consolidate(*reader, folder / "model", {.format = &safetensors_format()});
  const fs::path file = folder / "model" / "model.safetensors";
  std::uint64_t offset = 0;
  {
    const SafetensorsFile tensors(file);
    offset = tensors.find("transformer.h.1.mlp.c_fc.bias")->offset;
  }
  flip(file, offset + 4 * 17 + 2);
  CHECK_CONTAINS(message_of([&] { compare_sources(*reader, *open_tensor_source(folder / "model")); }),
                 "model.safetensors is damaged (bytes ");
  const std::string message =
      message_of([&] { compare_sources(*reader, *open_tensor_source(folder / "model", nullptr, Verify::no)); });
  CHECK_CONTAINS(message, "transformer.h.1.mlp.c_fc.bias");
  CHECK_CONTAINS(message, "element 17 is");
}

BOOST_AUTO_TEST_CASE(what_exists_is_not_overwritten) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  for (const auto format : {&hdf5_format(), &safetensors_format()}) {
    write_file(folder / "out", "mine");
    CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {.format = format}); }), "out exists");
    BOOST_TEST(read_file(folder / "out") == "mine");
    fs::remove(folder / "out");
    write_file(folder / "out.tmp", "mine");
    CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {.format = format}); }), "out.tmp is in the way");
    BOOST_TEST(read_file(folder / "out.tmp") == "mine");
    fs::remove(folder / "out.tmp");
    consolidate(*reader, folder.path().string() + (format == &hdf5_format() ? "/out" : "/out/"), {.format = format});
    BOOST_TEST(!fs::exists(folder / "out.tmp"));
    check_model(folder / "out", Run{});
    fs::remove_all(folder / "out");
  }
}

BOOST_AUTO_TEST_CASE(a_truncated_or_foreign_file_is_refused) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  consolidate(*reader, folder / "model.h5", {.format = &hdf5_format()});
  fs::resize_file(folder / "model.h5", fs::file_size(folder / "model.h5") - 100);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "model.h5"); }), "model.h5 has lost its checksums");
  check_model(folder / "model.h5", Run{}, Verify::no);
  fs::resize_file(folder / "model.h5", fs::file_size(folder / "model.h5") / 2);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "model.h5"); }), "truncated file");
  h5::File::create(folder / "other.h5").write_text("title", "weather");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "other.h5"); }), "HDF5 file of another kind");
}

BOOST_AUTO_TEST_CASE(the_program) {
  const TemporaryFolder folder;
  const Run run{llama_config(), "full", 3, 1, 9};
  const fs::path step = save(folder / "saves", run);
  const std::string saves = (folder / "saves").string(), out = (folder / "out").string();
  auto [text, code] = run_program(saves + " " + out + ".h5 --format hdf5 --verify");
  BOOST_TEST(code == 0);
  CHECK_CONTAINS(text, "step-00000009");
  CHECK_CONTAINS(text, "verified");
  check_model(out + ".h5", run);
  std::tie(text, code) = run_program(step.string() + " " + out + " --format=safetensors --verify");
  BOOST_TEST(code == 0);
  check_model(out, run);
  std::tie(text, code) = run_program(step.string() + " " + out + "-all.h5 --with-optimizer --dtype fp16 --verify");
  BOOST_TEST(code == 0);
  CHECK_CONTAINS(text, "states: parameters, exp_avg, exp_avg_sq, verified");
  std::tie(text, code) = run_program(step.string() + " " + out);
  BOOST_TEST(code == 2);
  CHECK_CONTAINS(text, "exists");
  std::tie(text, code) = run_program(step.string());
  BOOST_TEST(code == 2);
  std::tie(text, code) = run_program((folder / "absent").string() + " " + out + "2");
  BOOST_TEST(code == 2);
  CHECK_CONTAINS(text, "absent does not exist");
  std::tie(text, code) = run_program(step.string() + " " + out + "2 --format onnx");
  BOOST_TEST(code == 2);
  std::tie(text, code) = run_program(step.string() + " " + out + "2 --max-shard-size 1MB");
  BOOST_TEST(code == 2);
  CHECK_CONTAINS(text, "give --format safetensors");
  flip(step / "rank-00001-of-00003.h5", 4000);
  std::tie(text, code) = run_program(step.string() + " " + out + "2 --verify");
  BOOST_TEST(code == 1);
  CHECK_CONTAINS(text, "rank-00001-of-00003.h5 is damaged");
  BOOST_TEST(!fs::exists(out + "2"));
}
