// Repeats a golden run of PyTorch on the threads communicator with any number of ranks and strategy.
#pragma once

#include <cmath>
#include <mutex>
#include <stdexcept>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/golden.hpp"
#include "support/threaded_device.hpp"

namespace fsdp::test {

struct Case {
  int ranks = 1;
  std::string strategy = "full";
  std::size_t micro_batches = 1;  // per rank
  int group = 2;                  // group size of the hybrid strategies
  WrapPolicy wrap = {};
  ParameterPatterns patterns = {};
  PlanOptions plan = {};  // micro_batches is filled in
  float dropout = 0;
  json run = {};  // null: the folder's run.json
  DType state_type = DType::f32, precision = DType::f32, reduce = DType::f32, tables = DType::f32;
  DType master = DType::f32, gradient = DType::f32;
  double clip_value = 0;          // if plan.clip_values
  std::uint64_t state_began = 0;  // as in UpdateScalars, after this update
  Threads threads = Threads::one;
  CommOptions comm = {};       // of GPUs
  std::size_t piece_rows = 0;  // of logits and of recomputed MLPs; 0: as in a run
  bool short_rows = false;     // targets of each sequence do not count after a column that differs
  std::size_t pad_to_multiple_of = 1;
};

struct History {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> final_weights;  // by parameter
  std::vector<std::vector<float>> first_gradients;
  bool operator==(const History&) const = default;
};

/// Returns the first `updates` of a golden run. A few are enough to compare bits, because a difference remains in the weights.
inline json beginning(const std::string& name, std::size_t updates) {
  json run = read_json(golden_folder(name) / "run.json");
  run["updates"] = updates;
  return run;
}

/// Returns the optimizer options of a run; its optimizer is a name such as "adamw", or has a variant, such as "sgd-nesterov".
inline OptimizerOptions optimizer_of_run(const json& run, DType state_type) {
  const std::string name = run["optimizer"], kind = name.substr(0, name.find('-'));
  OptimizerOptions options = {.beta1 = run["betas"][0],
                              .beta2 = run["betas"][1],
                              .eps = run["eps"],
                              .weight_decay = run["weight_decay"],
                              .momentum = run.value("momentum", 0.0),
                              .amsgrad = run.value("amsgrad", false),
                              .nesterov = run.value("nesterov", false),
                              .state_type = state_type,
                              .seed = 5};
  options.kind = &find_optimizer(kind);
  return options;
}

/// Each rank copies its slices of a state into the whole tensors.
inline void collect(std::vector<std::vector<float>>& whole, const ShardedModel& sharded, const ShardState& state) {
  static std::mutex one_rank;  // several ranks may write the same replicated elements
  const std::lock_guard lock(one_rank);
  for (std::size_t u = 0; u < state.units.size(); ++u)
    for (const Slice& slice : sharded.layout().slices(u, sharded.shard()))
      if (!state.units[u].empty())
        state.read(u, slice.shard_offset, std::span(whole[slice.parameter]).subspan(slice.range.begin, slice.range.size()));
}

inline History train_golden(const std::string& name, const Case& c) {
  const auto folder = golden_folder(name);
  const json run = c.run.is_null() ? read_json(folder / "run.json") : c.run;
  const auto initial = read_tensors(folder / "model.safetensors");
  const auto tokens = read_tokens(folder / "train.bin");
  const std::size_t T = run["tokens_per_sample"], G = run["global_batch"],
                    updates = under_thread_sanitizer ? 1 : run["updates"].get<std::size_t>(),
                    N = static_cast<std::size_t>(c.ranks);
  const std::size_t B = G / N / c.micro_batches;
  BOOST_TEST_REQUIRE(B * N * c.micro_batches == G);
  History history;
  run_ranks(c.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(c.threads, static_cast<std::uint64_t>(world.rank()));
    PlanOptions plan = c.plan;
    plan.micro_batches = c.micro_batches;
    ShardedModel sharded(read_config(folder),
                         {.strategy = c.strategy,
                          .shard_group_size = c.group,
                          .wrap = c.wrap,
                          .patterns = c.patterns,
                          .batch = {B, T},
                          .types = {c.precision, c.reduce, c.master, c.gradient},
                          .plan = plan,
                          .optimizer = optimizer_of_run(run, c.state_type)},
                         world, traits_for(device->kind(), c.piece_rows));
    Executor& executor = sharded.allocate(
        *device,
        {.nvme_path = std::filesystem::current_path(), .table_type = c.tables, .pad_to_multiple_of = c.pad_to_multiple_of},
        c.comm);
    const auto& parameters = sharded.model().parameters();
    for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
      for (const Slice& slice : sharded.layout().slices(u, sharded.shard()))
        executor.parameters().write(
            u, slice.shard_offset,
            std::span(initial.at(parameters[slice.parameter].name)).subspan(slice.range.begin, slice.range.size()));
    executor.publish_parameters();
    if (world.rank() == 0)
      for (const Parameter& p : parameters) {
        history.final_weights.emplace_back(numel(p.shape));
        history.first_gradients.emplace_back(numel(p.shape));
      }
    world.barrier();
    for (std::size_t u = 1; u <= updates; ++u) {
      const auto read = [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
        for (std::size_t s = 0; s < B; ++s) {
          const std::size_t first = ((u - 1) * G + (micro * N + static_cast<std::size_t>(world.rank())) * B + s) * T;
          std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first), T, inputs + s * T);
          std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first) + 1, T, targets + s * T);
          if (c.short_rows) std::fill(targets + s * T + 1 + first / T * 7919 % (T - 2), targets + (s + 1) * T, -1);
        }
      };
      const UpdateResult result =
          executor.run_update(read, {.update = u,
                                     .learning_rate = run["steps"][u - 1]["lr"],
                                     .clip_norm = run["clip_norm"],
                                     .clip_value = c.clip_value,
                                     .state_began = u > c.state_began ? c.state_began : 0,
                                     .dropout = {.residual = c.dropout,
                                                 .attention = c.dropout,
                                                 .seed = 11,
                                                 .update = u,
                                                 .first_sequence = static_cast<std::uint64_t>(world.rank()) * B},
                                     .tokens = static_cast<double>(G * T),
                                     .loss_scale = c.precision == DType::f16 ? 1024.0 : 1.0});
      expect(result.finite(), "every update is finite");  // Boost.Test is not thread-safe
      if (u == 1) collect(history.first_gradients, sharded, executor.gradients());
      if (world.rank() == 0) history.losses.push_back(result.loss), history.norms.push_back(result.gradient_norm);
    }
    collect(history.final_weights, sharded, executor.parameters());
    expect(executor.peak_bytes() == sharded.plan().peak_bytes, "the arena held what was planned");
    world.barrier();
  });
  return history;
}

/// Checks the largest differences from PyTorch against the bounds in docs/numerics.md.
inline void compare_with_pytorch(const std::string& name, const History& mine) {
  const auto folder = golden_folder(name);
  const json run = read_json(folder / "run.json");
  const auto gradients = read_tensors(folder / "grads.safetensors"), final_weights = read_tensors(folder / "final.safetensors");
  double loss = 0, norm = 0, weight = 0, gradient = 0;
  for (std::size_t u = 0; u < mine.losses.size(); ++u) {
    loss = std::max(loss, std::abs(mine.losses[u] - run["steps"][u]["loss"].get<double>()));
    norm = std::max(norm, std::abs(mine.norms[u] / run["steps"][u]["gnorm"].get<double>() - 1));
  }
  const Transformer model(read_config(folder));
  const std::size_t C = model.config().width;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const std::string& tensor = model.parameters()[p].name;
    const auto &theirs = final_weights.at(tensor), &their_gradient = gradients.at(tensor);
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      // The true gradient of the key third of c_attn.bias is zero; Adam amplifies its noise.
      if (!(tensor.ends_with("c_attn.bias") && i >= C && i < 2 * C))
        weight = std::max(weight, std::abs(double(theirs[i]) - mine.final_weights[p][i]));
      gradient = std::max(gradient, std::abs(double(their_gradient[i]) - mine.first_gradients[p][i]) /
                                        (1e-5 + 1e-4 * std::abs(their_gradient[i])));
    }
  }
  BOOST_TEST_MESSAGE(name << ": loss " << loss << ", norm " << norm << " relative, gradient " << gradient
                          << " of its bound, weights " << weight);
  BOOST_TEST(loss < 5e-6);
  BOOST_TEST(norm < 1e-5);
  BOOST_TEST(gradient < 0.05);
  BOOST_TEST((weight < 1e-3 || mine.losses.size() < run["updates"]));
}

inline const std::string strategies[] = {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"};
/// Returns the group size: 2 if it divides the number of ranks.
inline int group_for(int ranks) { return ranks % 2 == 0 ? 2 : ranks; }

}  // namespace fsdp::test
