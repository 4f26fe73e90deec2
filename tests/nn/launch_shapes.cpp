// Checks that the kernels of a model launch at least two blocks per multiprocessor of a GPU, for 4,096 rows, and that blocks
// whose threads depend on the width of rows fill a multiprocessor. Nothing is computed here. run.launch_shapes checks the other
// launches of an update.
#include <boost/test/unit_test.hpp>

#include "nn/model_run.hpp"
#include "support/launch_recorder.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the launches of forward, backward and recomputation, for batches of long and of short sequences.
Launches launches_of(TransformerConfig config, std::initializer_list<BatchShape> batches = {{1, 4096}, {8, 512}}) {
  config.vocab_size = 1000, config.layers = 1, config.max_positions = 4096;
  Launches launches;
  for (const BatchShape shape : batches) {
    const LaunchRecorder recorder(launches);
    ModelRun run(config, shape.T, std::make_shared<RecordingStream>(recorder), cuda_traits());
    const std::vector<std::int32_t> tokens(shape.rows(), 5);
    for (const float rate : {0.0f, 0.1f}) {
      run.dropout.residual = rate;
      run.loss_and_gradients(tokens.data(), tokens.data(), shape, 1, kernels::Write::add, Keep::selected);
    }
  }
  return launches;
}

TransformerConfig sized(TransformerConfig config, std::size_t width, std::size_t ffn_width, std::size_t heads,
                        std::size_t kv_heads) {
  config.width = width, config.ffn_width = ffn_width, config.heads = heads, config.kv_heads = kv_heads;
  config.head_size = width / heads;
  return config;
}

/// Returns true for kernels with few blocks because they have few results: sums over losses and predictions, and, in models
/// with norms and biases of queries and keys, the gains of these norms and the biases.
bool makes_few_numbers(const TransformerConfig& config, const std::string& kernel) {
  return kernel == "AddLosses" || kernel == "AddPredictions" ||
         (config.qk_norm && (kernel == "ColumnFinish" || kernel == "Fill<float>" || kernel == "AddBias<float>"));
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_multiprocessor_has_two_blocks_at_4096_rows) {
  TransformerConfig gpt2, llama = find_family("llama").defaults, qwen3 = llama;
  qwen3.family = "qwen3", qwen3.qk_norm = qwen3.qkv_bias = qwen3.attention_out_bias = true;
  for (const TransformerConfig& config :
       {sized(gpt2, 768, 3072, 12, 12), sized(gpt2, 1600, 6400, 25, 25), sized(llama, 2048, 5632, 16, 4),
        sized(llama, 576, 1536, 9, 3), sized(qwen3, 1024, 3072, 16, 8)}) {
    const Launches launches = launches_of(config);
    BOOST_TEST(launches.size() >= 13u);
    for (const auto& [name, blocks] : launches) {
      BOOST_TEST_MESSAGE("width " << config.width << ": " << name << " " << blocks.fewest);
      if (!makes_few_numbers(config, name))
        BOOST_TEST(blocks.fewest >= enough_blocks, "width " << config.width << ": " << name << " has " << blocks.fewest);
    }
  }
}

// A multiprocessor runs at most 32 blocks at a time, so blocks of one warp need a batch of 32 rows for each multiprocessor.
BOOST_AUTO_TEST_CASE(a_multiprocessor_runs_32_warps_for_rows_of_each_width) {
  const TransformerConfig gpt2, llama = find_family("llama").defaults;
  for (const std::size_t width : {768, 1088, 2112}) {
    std::size_t kinds = 0;
    for (const TransformerConfig& config :
         {sized(gpt2, width, 4 * width, width / 64, width / 64), sized(llama, width, 3 * width, width / 64, width / 64)})
      for (const auto& [name, blocks] : launches_of(config, {{4, 2048}})) {
        if (blocks.fewest_warps > most_resident_warps) continue;  // its number of threads is fixed
        BOOST_TEST(blocks.fewest_warps >= 32u, "width " << width << ": " << name << " has " << blocks.fewest_warps);
        ++kinds;
      }
    BOOST_TEST(kinds == 6u);  // two norms, biases, residuals (in both models), and an activation
  }
}

// The limits of the classes of widths. A lane of a class has at most 32 elements.
BOOST_AUTO_TEST_CASE(threads_depend_on_the_width) {
  for (const auto& [width, threads] :
       {std::pair{1, 32}, {1024, 32}, {1025, 64}, {2048, 64}, {2049, 128}, {4096, 128}, {4097, 256}, {20000, 256}})
    BOOST_TEST(kernels::threads_of_width(static_cast<std::size_t>(width)) == static_cast<unsigned>(threads));
}

// A block of attention computes a tile of one head, and smaller tiles would read keys and values, or queries, more often. So
// the number of blocks depends on the number of query heads, and for gradients of keys and values on the key/value heads.
BOOST_AUTO_TEST_CASE(attention_has_enough_blocks_from_so_many_heads_on) {
  struct {
    DType type;
    std::size_t forward, keys, queries;  // the smallest number of heads with enough blocks
  } const kinds[] = {{DType::bf16, 12, 6, 6}, {DType::f16, 12, 6, 6}, {DType::f32, 3, 3, 3}};
  for (const auto& [type, forward, keys, queries] : kinds)
    for (const BatchShape batch : {BatchShape{1, 4096}, BatchShape{8, 512}})
      for (const std::size_t D : {std::size_t{64}, std::size_t{128}})
        for (std::size_t heads = 1; heads <= 32; ++heads) {
          const kernels::AttentionBlocks blocks =
              kernels::attention_blocks(type, {batch.B, batch.T, heads, heads, D, 3 * heads * D, 3 * heads * D});
          BOOST_TEST((blocks.forward >= enough_blocks) == (heads >= forward));
          BOOST_TEST((blocks.keys >= enough_blocks) == (heads >= keys));
          BOOST_TEST((blocks.queries >= enough_blocks) == (heads >= queries));
        }
}
