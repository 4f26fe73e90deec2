// Checks the number of blocks that the kernels of an update launch on a GPU: casts, the norm's sums, clipping, statistics and
// the optimizer. (nn.launch_shapes checks the model's stages.) These kernels work on parameters, and small parameters have few
// blocks, so the launch with the most blocks counts for each kernel. Nothing is computed here.
#include <set>

#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "optim/optimizer.hpp"
#include "run/sharded_model.hpp"
#include "support/launch_recorder.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the launches of an update on one rank with two micro-batches of 4,096 tokens.
Launches launches_of(const Optimizer& optimizer, const UnitTypes& types, DType state_type, bool clips_values) {
  TransformerConfig config = find_family("llama").defaults;
  config.vocab_size = 2000, config.max_positions = 4096, config.layers = 1;
  config.width = 1024, config.ffn_width = 3072, config.heads = config.kv_heads = 16, config.head_size = 64;
  Launches launches;
  run_ranks(1, [&](Communicator& world) {
    RecordingDevice device(launches);
    ShardedModel sharded(config,
                         {.strategy = "full",
                          .batch = {1, 4096},
                          .types = types,
                          .plan = {.micro_batches = 2,
                                   .checkpoint_activations = true,
                                   .checkpoint_policy = CheckpointPolicy::selective,
                                   .clip_values = clips_values},
                          .optimizer = {.kind = &optimizer, .state_type = state_type}},
                         world, cuda_traits());
    Executor& executor = sharded.allocate(device, {}, {.kind = "mpi"});
    executor.initialize_parameters(1);
    executor.publish_parameters();
    const BatchReader read = [](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      std::fill_n(inputs, 4096, 1), std::fill_n(targets, 4096, 2);
    };
    const UpdateResult result = executor.run_update(read, {.update = 1,
                                                           .learning_rate = 1e-3,
                                                           .clip_norm = 1,
                                                           .clip_value = 1,
                                                           .dropout = {.residual = 0.1f, .attention = 0.1f},
                                                           .tokens = 8192});
    expect(result.finite(), "an update is made");
  });
  return launches;
}

/// Returns true for kernels with a single result, with one for each row or column of a matrix, or only for vectors.
bool makes_few_numbers(const std::string& kernel) {
  for (const char* name : {"AddLosses", "AddPredictions", "FactorUpdate", "FinishNorm", "InverseMean", "NormalizeSums",
                           "VarianceStatistics", "ElementUpdate<AdafactorVectorRule"})
    if (kernel.starts_with(name)) return true;
  return false;
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_multiprocessor_has_two_blocks) {
  const UnitTypes all_bf16 = {.parameter = DType::bf16, .reduce = DType::bf16, .master = DType::bf16, .gradient = DType::bf16};
  std::set<std::string> seen;
  for (const Optimizer* optimizer : optimizers())
    for (const UnitTypes& types : {UnitTypes{}, UnitTypes{.parameter = DType::bf16}, all_bf16})
      for (const auto& [state_type, clips_values] : {std::pair(DType::f32, true), {DType::bf16, true}, {DType::bf16, false}})
        for (const auto& [name, blocks] : launches_of(*optimizer, types, state_type, clips_values)) {
          if (makes_few_numbers(name)) continue;
          BOOST_TEST(blocks.most >= enough_blocks, optimizer->name << ": " << name << " has " << blocks.most << " at most");
          if (seen.insert(name).second) BOOST_TEST_MESSAGE(name << " " << blocks.fewest << " to " << blocks.most);
        }
  for (const char* kernel : {"ElementUpdate<AdamRule<false>, float>", "ElementUpdate<AdamRule<false>, unsigned short>",
                             "NarrowUpdate<LionRule>", "Squares", "ClipValues", "DropoutBody<bf16>", "Convert<bf16, float>",
                             "LambStatistics<float>", "ColumnSquaresOfRows", "RowSquares", "SquarePolynomial"})
    BOOST_TEST(seen.contains(kernel), "an update launches " << kernel);
}
