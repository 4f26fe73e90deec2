// Files of fsdp-bench --json as rates for predictions: recorded ones, files of other machines and jobs, and damaged ones.
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "device/gpu_figures.hpp"
#include "machine/measured_rates.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::filesystem::path recorded = std::filesystem::path(FSDP_TEST_DATA) / "measured" / "cpu-bf16.json";

constexpr const char* h100 = "NVIDIA H100 80GB HBM3 (compute capability 9.0, 79.2 GiB), CUDA 12.6";

nlohmann::json cpu_file() { return nlohmann::json::parse(read_file(recorded)); }
MeasuredUse on_cpus(int ranks, double threads = 1) {
  return {.type = DType::bf16, .ranks = ranks, .ranks_per_node = ranks, .threads = threads};
}
MeasuredUse on_h100(int ranks = 8) {
  return {.gpu = figures_of(h100), .type = DType::bf16, .ranks = ranks, .ranks_per_node = ranks};
}
Rates read(const nlohmann::json& content, const MeasuredUse& use) { return measured_rates(content, "a.json", use); }
std::string refusal(const nlohmann::json& content, const MeasuredUse& use) {
  return message_of([&] { read(content, use); });
}
/// A product of fsdp-bench gemm, which takes (1 + 100 / K) / rate.
nlohmann::json product(double K, double rate) { return {{"k", K}, {"gflops", rate / (1 + 100 / K) / 1e9}}; }
nlohmann::json gpu_file() {
  return {{"device", h100},
          {"precision", "bf16"},
          {"ranks", 2},
          {"products", {product(512, 1.2e15), product(1024, 1.2e15), product(4096, 1.2e15)}}};
}
nlohmann::json collectives_file() {
  return {{"device", h100},
          {"ranks", 8},
          {"collectives",
           {{{"name", "all-gather"}, {"bytes", 4096}, {"ms", 0.05}},
            {{"name", "all-gather"}, {"bytes", 800e6}, {"ms", 2}},
            {{"name", "all-reduce"}, {"bytes", 1600e6}, {"ms", 1}}}}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_share_the_cores_of_a_node) {
  const nlohmann::json content = cpu_file();
  const double cores = content["rates"]["cores"], products = content["rates"]["products"];
  BOOST_TEST(cores == 2);
  const Rates two = read(content, on_cpus(2));
  BOOST_TEST(two.products == products / 2);
  BOOST_TEST(two.products.source == "a.json, measured with gpt2: 1 of 2 cores");
  BOOST_TEST(two.attention.both(256, 64) == content["rates"]["attention"].get<double>() / 2);
  BOOST_TEST(two.attention.forward(256, 64) == two.attention.backward(256, 64));
  BOOST_TEST(two.memory == content["rates"]["memory"].get<double>() / 2);
  BOOST_TEST(two.optimizer == content["rates"]["optimizer"].get<double>() / 2);
  BOOST_TEST(two.shared_memory == content["rates"]["collectives"].get<double>() / 2);
  BOOST_TEST((two.queues == Queues::one));
  BOOST_TEST(read(content, on_cpus(4)).products == products / 4);
  BOOST_TEST(read(content, on_cpus(1)).products == products / 2);  // one thread is one core
  CHECK_CONTAINS(refusal(content, on_cpus(1, 2)), "--threads 1, but the job's ranks have 2");
  MeasuredUse run = on_cpus(4);
  run.cores = 0.5;
  BOOST_TEST(read(content, run).products == products / 4);
  run.cores = 1;
  CHECK_CONTAINS(refusal(content, run), "the 4 ranks of a node of the job would keep 4 busy");
  nlohmann::json threads = content;
  threads["rates"]["threads"] = 2;
  BOOST_TEST(read(threads, on_cpus(1, 2)).products == products);
  nlohmann::json large = content;
  large["rates"]["cores"] = 64;
  CHECK_CONTAINS(refusal(large, on_cpus(8)), "64 busy cores");
}

BOOST_AUTO_TEST_CASE(one_rank_has_no_collectives) {
  nlohmann::json content = cpu_file();
  content["rates"]["collectives"] = nullptr;
  BOOST_TEST(read(content, on_cpus(1)).shared_memory == 0);
  CHECK_CONTAINS(refusal(content, on_cpus(2)), "no rate of collectives");
}

BOOST_AUTO_TEST_CASE(products_of_a_gpu) {
  Rates before;
  before.memory = {5, "data sheet"};
  const Rates rates = measured_rates(gpu_file(), "a.json", on_h100(), before);
  BOOST_TEST(rates.products.value == 0.6e15, boost::test_tools::tolerance(1e-9));  // of each of two ranks
  BOOST_TEST(rates.product_half.value == 100, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(rates.products.source == "a.json");
  BOOST_TEST(rates.memory.source == "data sheet");
  nlohmann::json one = gpu_file();
  one["products"] = {product(512, 1.2e15)};
  BOOST_TEST(read(one, on_h100()).products.value == 0.6e15 / (1 + 100.0 / 512), boost::test_tools::tolerance(1e-9));
  BOOST_TEST(read(one, on_h100()).product_half == 0);
  nlohmann::json near = gpu_file();  // the line through them has a rate of hundreds of GPUs
  near["products"] = {{{"k", 1000}, {"gflops", 1e6}}, {{"k", 1001}, {"gflops", 1.000999e6}}};
  BOOST_TEST(read(near, on_h100()).products.value == 0.5e15, boost::test_tools::tolerance(1e-3));
  one["products"] = nlohmann::json::array();
  CHECK_CONTAINS(refusal(one, on_h100()), "lists no products");
  for (const double rate : {1e17, 2 * 1.5e15}) {  // of two ranks; the peak of each is 0.99e15
    one["products"] = {product(512, rate)};
    CHECK_CONTAINS(refusal(one, on_h100()), "impossible value");
  }
}

BOOST_AUTO_TEST_CASE(collectives_of_gpus) {
  Rates before;
  before.hop = {1e-6, ""};
  const Rates rates = measured_rates(collectives_file(), "a.json", on_h100(), before);
  BOOST_TEST(rates.ring.value == 350e9, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(rates.call.value == 43e-6, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(rates.shared_memory == 0);
  CHECK_CONTAINS(refusal(collectives_file(), on_h100(4)), "collectives of 8 ranks");
  nlohmann::json none = collectives_file();
  none["collectives"] = nlohmann::json::array();
  CHECK_CONTAINS(refusal(none, on_h100()), "no all-gather");
  nlohmann::json small = collectives_file();
  for (nlohmann::json& one : small["collectives"]) one["bytes"] = 4096;
  CHECK_CONTAINS(refusal(small, on_h100()), "the largest all-gather");
}

BOOST_AUTO_TEST_CASE(memory_that_a_collective_touches) {
  CollectiveUse use{Collective::all_gather, GroupAxis::shard, 100, 2, 2, 1};
  BOOST_TEST(touched_bytes(use, 4) == 2 * 800);
  use.kind = Collective::reduce_scatter;
  BOOST_TEST(touched_bytes(use, 4) == 800 + 200);
  use.kind = Collective::all_reduce;
  BOOST_TEST(touched_bytes(use, 4) == 200 + 50 + 2 * 150);
  BOOST_TEST(touched_bytes(use, 1) == 0);
}

BOOST_AUTO_TEST_CASE(rates_are_work_by_seconds) {
  const WorkRates rates = rates_of_work(
      {.model = {.product_flops = 10, .attention_forward_flops = 2, .attention_backward_flops = 4, .memory_bytes = 8},
       .optimizer_bytes = 9,
       .collective_bytes = 0},
      {.products = 5, .attention = 3, .memory = 2, .optimizer = 3, .collectives = 1});
  BOOST_TEST(rates.products == 2);
  BOOST_TEST(rates.attention == 2);
  BOOST_TEST(rates.memory == 4);
  BOOST_TEST(rates.optimizer == 3);
  BOOST_TEST(rates.collectives == 0);
  BOOST_TEST(to_json(rates, 1, 2, 7)["collectives"].is_null());
}

BOOST_AUTO_TEST_CASE(other_machines_and_precisions) {
  CHECK_CONTAINS(refusal(cpu_file(), on_h100()), "another machine (CPU");
  CHECK_CONTAINS(refusal(gpu_file(), on_cpus(2)), "another machine (NVIDIA H100");
  nlohmann::json other = gpu_file();
  other["device"] = "NVIDIA H200 (compute capability 9.0)";
  CHECK_CONTAINS(refusal(other, on_h100()), "another machine (NVIDIA H200 (compute capability 9.0), not NVIDIA H100");
  MeasuredUse run = on_cpus(2);
  run.device = "CPU with AVX2";
  CHECK_CONTAINS(refusal(cpu_file(), run), "not CPU with AVX2");
  MeasuredUse fp32 = on_cpus(2);
  fp32.type = DType::f32;
  CHECK_CONTAINS(refusal(cpu_file(), fp32), "measured in bf16, but the job computes in fp32");
  fp32 = on_h100();
  fp32.type = DType::f32;
  CHECK_CONTAINS(refusal(gpu_file(), fp32), "measured in bf16");
}

BOOST_AUTO_TEST_CASE(other_files) {
  for (const char* text :
       {"{}", "[]", "5", R"({"device": "CPU with AVX2", "ms": 5})", R"({"rates": {}})", R"({"device": 5, "rates": {}})"})
    CHECK_CONTAINS(refusal(nlohmann::json::parse(text), on_cpus(2)), "is no measurement of rates");
  nlohmann::json gemm = gpu_file();
  gemm["device"] = "CPU with AVX2";
  CHECK_CONTAINS(refusal(gemm, on_cpus(2)), "no rates of an update");
}

BOOST_AUTO_TEST_CASE(impossible_and_missing_rates) {
  nlohmann::json faster = cpu_file();
  faster["rates"]["products"] = 3 * faster["rates"]["peak"].get<double>();
  CHECK_CONTAINS(refusal(faster, on_cpus(2)), "times as fast as its peak");
  nlohmann::json short_sum = gpu_file();
  short_sum["products"][0]["k"] = 1e-150;
  CHECK_CONTAINS(refusal(short_sum, on_h100()), "impossible value");
  for (const char* key : {"threads", "cores", "peak", "products", "attention", "memory", "optimizer", "collectives"}) {
    for (const double wrong : {0.0, -1.0, 1e-300, 1e30}) {
      nlohmann::json content = cpu_file();
      content["rates"][key] = wrong;
      CHECK_CONTAINS(refusal(content, on_cpus(2)), "impossible value");
    }
    for (const nlohmann::json& wrong : {nlohmann::json("5"), nlohmann::json::array({5})}) {
      nlohmann::json content = cpu_file();
      content["rates"][key] = wrong;
      CHECK_CONTAINS(refusal(content, on_cpus(2)), format("no number '{}'", key));
    }
    nlohmann::json content = cpu_file();
    content["rates"].erase(key);
    BOOST_TEST(!refusal(content, on_cpus(2)).empty());
  }
  nlohmann::json content = cpu_file();
  content["rates"] = 5;
  CHECK_CONTAINS(refusal(content, on_cpus(2)), "no number 'cores'");
}

BOOST_AUTO_TEST_CASE(files_are_read_as_a_whole) {
  const TemporaryFolder folder;
  const std::string name = (folder / "a.json").string(), text = read_file(recorded);
  const std::vector<std::string> files = {name};
  const auto refused = [&](const std::string& content) {
    write_file(folder / "a.json", content);
    return message_of([&] { measured_rates(files, on_cpus(2)); });
  };
  for (const std::size_t length : {std::size_t{1}, text.size() / 2, text.rfind('}')})
    CHECK_CONTAINS(refused(text.substr(0, length)), "is no JSON");
  CHECK_CONTAINS(refused(R"({"device": "CPU", "rates": {"cores": NaN}})"), "is no JSON");
  CHECK_CONTAINS(refused(text + text), "is no JSON");
  CHECK_CONTAINS(refused(""), "is no JSON");
  write_file(folder / "a.json", text);
  BOOST_TEST(measured_rates(files, on_cpus(2)).products > 0);
  CHECK_CONTAINS(message_of([&] { measured_rates(std::vector<std::string>{name, name}, on_cpus(2)); }), "several files");
  CHECK_CONTAINS(message_of([&] { measured_rates(std::vector<std::string>{name + "x"}, on_cpus(2)); }), "a.jsonx");
  CHECK_CONTAINS(refused(R"({"device": "CPU", "device": "GPU"})"), "has 'device' twice");
  write_file(folder / "a.json", gpu_file().dump());
  CHECK_CONTAINS(message_of([&] { measured_rates(std::vector<std::string>{name, name}, on_h100()); }), "give one of the two");
}
