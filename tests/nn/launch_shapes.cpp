// How many blocks of threads the row kernels of a model give a GPU: on 4,096 rows enough that each of its multiprocessors has
// two. Nothing is computed here. The stages run on a stream whose device writes down what it is asked for; a GPU starts a block
// for each row of such a call (lib/kernels/rows/cuda.cu).
#define BOOST_TEST_MODULE nn.launch_shapes
#include <cxxabi.h>

#include <map>
#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/device_kernels.hpp"
#include "nn/model_run.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// The fewest rows of all calls of each body, by its name.
using FewestRows = std::map<std::string, std::size_t>;

std::string name_of(const std::type_info& type) {
  char* const name = abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr);
  std::string text = name;
  std::free(name);
  return text.substr(std::string("fsdp::kernels::").size());
}

class Recorder final : public kernels::DeviceKernels {
 public:
  explicit Recorder(FewestRows& fewest) : fewest_(&fewest) {}
  void rows(Stream&, const std::type_info& type, const void*, std::size_t rows) const override {
    const auto [entry, is_new] = fewest_->emplace(name_of(type), rows);
    if (!is_new) entry->second = std::min(entry->second, rows);
  }
  void gemm(Stream&, const kernels::Product&) const override {}
  void attention_forward(Stream&, const kernels::AttentionForwardCall&) const override {}
  void attention_backward(Stream&, const kernels::AttentionBackwardCall&) const override {}
  std::string gemm_description() const override { return "none"; }

 private:
  FewestRows* fewest_;
};

class RecordingStream final : public Stream {
 public:
  explicit RecordingStream(FewestRows& fewest) : kernels_(fewest) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  const kernels::DeviceKernels* kernels() const override { return &kernels_; }
  void submit(Work work) override { work.run(work.context, work.index); }
  Event record() override { return {this, 0}; }
  void wait(Event) override {}
  void synchronize() override {}
  void synchronize(std::uint64_t) override {}
  void cancel() noexcept override {}
  bool is_asynchronous() const override { return false; }

 private:
  Recorder kernels_;
};

/// Of forward, backward and recomputation, of batches whose sequences are long and whose sequences are short.
FewestRows fewest_rows(TransformerConfig config) {
  config.vocab_size = 1000, config.layers = 1, config.max_positions = 4096;
  FewestRows fewest;
  for (const BatchShape shape : {BatchShape{1, 4096}, BatchShape{8, 512}}) {
    ModelRun run(config, shape.T, std::make_shared<RecordingStream>(fewest), cuda_traits());
    const std::vector<std::int32_t> tokens(shape.rows(), 5);
    for (const float rate : {0.0f, 0.1f}) {
      run.dropout.residual = rate;
      run.loss_and_gradients(tokens.data(), tokens.data(), shape, 1, kernels::Write::add, Keep::selected);
    }
  }
  return fewest;
}

TransformerConfig sized(TransformerConfig config, std::size_t width, std::size_t ffn_width, std::size_t heads,
                        std::size_t kv_heads) {
  config.width = width, config.ffn_width = ffn_width, config.heads = heads, config.kv_heads = kv_heads;
  config.head_size = width / heads;
  return config;
}

/// What has few blocks, since it makes few numbers: a loss, and in models whose queries and keys have norms and biases, the
/// gain of a norm of heads and the biases side by side.
bool makes_few_numbers(const TransformerConfig& config, const std::string& body) {
  return body == "AddLosses" ||
         (config.qk_norm && (body == "ColumnFinish" || body == "Fill<float>" || body == "AddBias<float>"));
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_multiprocessor_has_two_blocks_at_4096_rows) {
  const std::size_t enough = 2 * 188;  // multiprocessors of the largest GPU that lib/device/traits.hpp knows
  TransformerConfig gpt2, llama = find_family("llama").defaults, qwen3 = llama;
  qwen3.family = "qwen3", qwen3.qk_norm = qwen3.qkv_bias = qwen3.attention_out_bias = true;
  for (const TransformerConfig& config :
       {sized(gpt2, 768, 3072, 12, 12), sized(gpt2, 1600, 6400, 25, 25), sized(llama, 2048, 5632, 16, 4),
        sized(llama, 576, 1536, 9, 3), sized(qwen3, 1024, 3072, 16, 8)}) {
    const FewestRows fewest = fewest_rows(config);
    BOOST_TEST(fewest.size() >= 10u);
    for (const auto& [name, rows] : fewest) {
      BOOST_TEST_MESSAGE("width " << config.width << ": " << name << " " << rows);
      if (!makes_few_numbers(config, name))
        BOOST_TEST(rows >= enough, "width " << config.width << ": " << name << " has " << rows);
    }
  }
}
