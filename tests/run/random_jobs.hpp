// Random models, meshes, strategies, wrap policies, schedules, dtypes and frozen sets, trained for a few updates. Two numbers
// determine a job.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/before_operation.hpp"
#include "support/places.hpp"
#include "support/threaded_device.hpp"

namespace fsdp::test {

struct Job {
  std::uint64_t seed = 0;  // for the delays of a threaded device
  TransformerConfig config;
  ShardingOptions sharding;
  int ranks = 1;
  float dropout = 0, neftune_alpha = 0;
  kernels::LossTerms loss_terms = {};
  /// Only 1 in 16 bits: after the first update, weights that differ by rounding may be rounded to different 16-bit numbers.
  std::uint64_t updates = 3;
  std::size_t piece_rows = 0;  // of logits and of recomputed MLPs; 0: as in a run
  bool short_rows = false;     // the targets of a sequence that count end at a random column
  std::size_t pad_to_multiple_of = 1;
  std::string description;
};

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> initial, weights, gradients;  // by parameter; gradients of the last update, before clipping
};

/// Returns true if the bits are the same; NaN marks elements that are not trained.
inline bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}
inline bool same_bits(const Outcome& a, const Outcome& b) {
  return a.losses == b.losses && a.norms == b.norms && same_bits(a.weights, b.weights) && same_bits(a.gradients, b.gradients);
}

/// One rank's elements; the others are NaN.
using Part = std::vector<std::vector<float>>;

inline Part part_of(const ShardedModel& sharded, const ShardState& owned) {
  Part part;
  for (const Parameter& p : sharded.model().parameters()) part.emplace_back(numel(p.shape), std::nanf(""));
  for (std::size_t unit = 0; unit < owned.units.size(); ++unit)
    for (const Slice& slice : sharded.layout().slices(unit, sharded.shard()))
      if (!owned.units[unit].empty())
        owned.read(unit, slice.shard_offset, std::span(part[slice.parameter]).subspan(slice.range.begin, slice.range.size()));
  return part;
}

/// Merges all ranks' parts; ranks that own the same element must have the same bits.
inline std::vector<std::vector<float>> merged(const std::vector<Part>& parts) {
  Part whole = parts.front();
  for (const Part& part : parts)
    for (std::size_t p = 0; p < part.size(); ++p)
      for (std::size_t i = 0; i < part[p].size(); ++i) {
        if (std::isnan(part[p][i])) continue;
        expect(std::isnan(whole[p][i]) || whole[p][i] == part[p][i], "ranks that own the same element have the same bits");
        whole[p][i] = part[p][i];
      }
  return whole;
}

/// The moving average of a rank's parameters, computed in double.
class PlainAverage {
 public:
  explicit PlainAverage(Executor& executor) : executor_(executor), is_kept_(executor.average().has_value()) {
    if (is_kept_) executor.begin_average();
    for (std::size_t u = 0; is_kept_ && u < executor.parameters().units.size(); ++u) {
      const std::vector<float> values = executor.parameters().values(u);
      average_.emplace_back(values.begin(), values.end());
    }
  }
  /// Moves the average after an update, and compares it with the executor's: fp32 numbers of at most a few units.
  void follow(double decay) {
    for (std::size_t u = 0; u < average_.size(); ++u) {
      const std::vector<float> values = executor_.parameters().values(u);
      for (std::size_t i = 0; i < values.size(); ++i)
        average_[u][i] = decay * average_[u][i] + (1 - decay) * static_cast<double>(values[i]);
      if (executor_.average()->units[u].empty()) continue;
      const std::vector<float> found = executor_.average()->values(u);
      for (std::size_t i = 0; i < found.size(); ++i)
        expect(std::abs(static_cast<double>(found[i]) - average_[u][i]) < 1e-6, "the average is that of a plain computation");
    }
  }

 private:
  Executor& executor_;
  const bool is_kept_;
  std::vector<std::vector<double>> average_;  // by unit
};

/// The number of columns with targets that count in sequence `s` of an update.
inline std::size_t counted_columns(const Job& job, std::uint64_t update, std::size_t s) {
  const std::size_t T = job.sharding.batch.T;
  return job.short_rows ? 1 + (update * 31 + s * 17) * 7919 % T : T;
}

/// Delays every eighth operation by up to 0.1 ms.
inline void dawdle(const Operation&) {
  thread_local std::minstd_rand dice(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  if (dice() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 100));
}

inline Outcome train(const Job& job, Threads threads = Threads::one) {
  Outcome outcome;
  const std::size_t B = job.sharding.batch.B, T = job.sharding.batch.T, K = job.sharding.plan.micro_batches,
                    N = static_cast<std::size_t>(job.ranks), V = job.config.vocab_size;
  const double loss_scale = job.sharding.types.parameter == DType::f16 ? 1024 : 1;
  std::vector<Part> initial(N), weights(N), gradients(N);
  run_ranks(job.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device =
        make_device(threads, (threads == Threads::of_own_gpu ? 0 : job.seed) + static_cast<std::uint64_t>(world.rank()));
    ShardedModel sharded(job.config, job.sharding, world, traits_for(device->kind(), job.piece_rows));  // this checks the plan
    Executor& executor = sharded.allocate(*device, {.pad_to_multiple_of = job.pad_to_multiple_of},
                                          {.kind = threads == Threads::of_own_gpu ? "nccl" : "mpi"});
    BeforeOperation delays(dawdle);
    if (threads == Threads::communication) executor.observe(delays);
    executor.initialize_parameters(5);
    executor.publish_parameters();
    PlainAverage average(executor);
    initial[static_cast<std::size_t>(world.rank())] = part_of(sharded, executor.parameters());
    const std::size_t first = static_cast<std::size_t>(world.rank()) * B;
    for (std::uint64_t u = 1; u <= job.updates; ++u) {
      const auto read = [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
        for (std::size_t i = 0; i < B * T; ++i) {
          const std::size_t token = (u * 1000 + first + micro * N * B) * T + i;
          inputs[i] = static_cast<std::int32_t>(token * token % 1009 % V);
          targets[i] = static_cast<std::int32_t>((token + 1) * (token + 1) % 1009 % V);
          if (i % T >= counted_columns(job, u, first + micro * N * B + i / T)) targets[i] = -1;
          if (!job.sharding.plan.documents) continue;
          std::int32_t* const positions = targets + B * T;
          positions[i] = i % T == 0 || token % 3 == 0 ? 0 : positions[i - 1] + 1;
        }
      };
      std::size_t counted = 0;
      for (std::size_t s = 0; s < B * K * N; ++s) counted += counted_columns(job, u, s);
      const UpdateResult result =
          executor.run_update(read, {.update = u,
                                     .learning_rate = 1e-3,
                                     .clip_norm = 0.7,
                                     .dropout = {.residual = job.dropout,
                                                 .attention = job.dropout,
                                                 .adapters = static_cast<float>(job.config.lora.dropout),
                                                 .neftune_alpha = job.neftune_alpha,
                                                 .seed = 3,
                                                 .update = u,
                                                 .first_sequence = first},
                                     .loss_terms = job.loss_terms,
                                     .ema_decay = u == 1 ? 0 : 0.75,
                                     .tokens = static_cast<double>(counted),
                                     .loss_scale = loss_scale});
      expect(result.finite(), "every update is finite");
      average.follow(u == 1 ? 0 : 0.75);
      if (world.rank() == 0) outcome.losses.push_back(result.loss), outcome.norms.push_back(result.gradient_norm);
    }
    expect(executor.peak_bytes() == sharded.plan().peak_bytes, "the arena held what was planned");
    weights[static_cast<std::size_t>(world.rank())] = part_of(sharded, executor.parameters());
    Part& mine = gradients[static_cast<std::size_t>(world.rank())] = part_of(sharded, executor.gradients());
    for (std::vector<float>& tensor : mine)
      for (float& value : tensor) value /= static_cast<float>(loss_scale);
  });
  outcome.initial = merged(initial);
  outcome.weights = merged(weights);
  outcome.gradients = merged(gradients);
  return outcome;
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return engine_() % n; }
  bool once_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + static_cast<std::ptrdiff_t>(below(all.size())));
  }

 private:
  std::mt19937_64 engine_;  // the same on every platform
};

inline TransformerConfig random_config(Dice& dice) {
  TransformerConfig c = find_family(dice.one_of({"gpt2", "llama", "qwen2", "qwen3", "opt", "biogpt", "xglm"})).defaults;
  const bool llama = c.positions == Positions::rotary;
  c.layers = 1 + dice.below(5);
  c.kv_heads = 1 + dice.below(2);
  c.heads = llama ? c.kv_heads * (1 + dice.below(3)) : c.kv_heads;
  c.head_size = 2 * (1 + dice.below(5));
  if (c.positions == Positions::sinusoidal) c.head_size += 2;  // for two frequencies
  c.width = c.heads * c.head_size;
  c.ffn_width = 5 + dice.below(40);
  c.vocab_size = 3 + dice.below(60);
  c.max_positions = 16;
  if (c.family == "gpt2") c.activation = dice.one_of({Activation::gelu_tanh, Activation::gelu_erf});
  c.tied_embeddings = dice.once_in(2);
  if (c.family == "llama" || c.family == "qwen3") c.qkv_bias = c.attention_out_bias = dice.once_in(3);
  if (c.family == "llama") c.mlp_bias = dice.once_in(3);
  return c;
}

inline WrapPolicy random_wrap(Dice& dice) {
  using Kind = WrapPolicy::Kind;
  switch (dice.below(5)) {
    case 0:
      return {.kind = Kind::none};
    case 1:
      return {.kind = Kind::size, .min_num_params = 1 + dice.below(3000)};
    case 2:
      return {.kind = Kind::custom, .patterns = {"*.0"}};
    case 3:
      return {.kind = Kind::custom,
              .patterns = {dice.one_of({"*.mlp", "*.*attn"}), dice.one_of({"*wte*", "*embed*", "*norm", "*ln_f"})}};
    default:
      return {.blocks_per_unit = 1 + dice.below(3)};
  }
}

/// Returns patterns for parameters of either family, without those that match nothing.
inline std::vector<std::string> random_patterns(Dice& dice, const TransformerConfig& config) {
  const std::string pattern =
      dice.one_of({"*.0.*", "*bias", "*.mlp.*", "*norm*", "*ln_*", "*wte*", "*embed*", "*attn*", "lm_head*"});
  for (const Parameter& p : list_parameters(config).parameters)
    if (matches(pattern, p.name)) return {pattern};
  return {};
}

inline std::string text_of(const Space* place, const Space* other) {
  return place ? std::string(place->name) + (other ? format(" and {}", other->name) : "") : "false";
}

inline std::string describe(const Job& j, std::uint64_t seed, std::uint64_t number) {
  const PlanOptions& p = j.sharding.plan;
  return format(
      "case {} of seed {}: {} L{} H{}/{} D{} V{} tied {}, {} ranks, {} (group {}), wrap {} {}, {} x {} micro-batches, "
      "recompute {} "
      "(policy {}, every {}), slots {}/{}, prefetch {}/{}, unsharded {}, freeze {}, only {}, ignore {}, dropout {}, {} in {}, "
      "computed in {}, reduced in {}, master {}, gradient {}, offloaded {}/{}, documents {}, average {}, label smoothing {}, "
      "neftune {}, pieces of {}, short rows {}",
      number, seed, j.config.family, j.config.layers, j.config.heads, j.config.kv_heads, j.config.head_size,
      j.config.vocab_size, j.config.tied_embeddings, j.ranks, j.sharding.strategy, j.sharding.shard_group_size,
      static_cast<int>(j.sharding.wrap.kind), fmt::join(j.sharding.wrap.patterns, ","), j.sharding.batch.B, p.micro_batches,
      p.checkpoint_activations, static_cast<int>(p.checkpoint_policy), p.checkpoint_every, p.parameter_slots, p.gradient_slots,
      static_cast<int>(p.backward_prefetch), p.forward_prefetch, p.accumulate_unsharded,
      fmt::join(j.sharding.patterns.freeze, ","), fmt::join(j.sharding.patterns.train_only, ","),
      fmt::join(j.sharding.patterns.ignore, ","), j.dropout, j.sharding.optimizer.kind->name,
      name_of(j.sharding.optimizer.state_type), name_of(j.sharding.types.parameter), name_of(j.sharding.types.reduce),
      name_of(j.sharding.types.master), name_of(j.sharding.types.gradient), text_of(p.places.optimizer, p.places.gradients),
      text_of(p.places.parameters, nullptr), p.documents, p.average_weights, j.loss_terms.label_smoothing, j.neftune_alpha,
      j.piece_rows, j.short_rows);
}

/// A place without an address, as in a user's program. Copies go through memory of the host.
inline const Space& space_of_a_user() {
  class Copies final : public Storage {
   public:
    explicit Copies(Buffer memory) : memory_(std::move(memory)) {}
    void read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) override {
      memory_.read(stream, begin, to, bytes);
    }
    void write(Stream& stream, std::size_t begin, const void* from, std::size_t bytes) override {
      memory_.write(stream, begin, from, bytes);
    }

   private:
    MemoryStorage memory_;
  };
  static const Space space = {
      .name = "a user's", .tier = Tier::disk, .collective = false, .open = [](const Means& means, std::size_t bytes) {
        return std::unique_ptr<Storage>(new Copies(means.device.allocate_staging(bytes)));
      }};
  return space;
}

/// Returns random places for the state that a job offloads.
inline StatePlaces random_places(std::uint64_t seed, bool optimizer, bool parameters) {
  Dice dice(seed);
  const auto any = [&] { return dice.one_of({&spaces::host, &space_of_a_user()}); };
  if (parameters) return {any(), any(), any()};
  if (!optimizer) return {};
  return dice.once_in(3) ? StatePlaces{.optimizer = any()} : StatePlaces{.optimizer = any(), .gradients = any()};
}

/// Returns a random optimizer with small momenta, so that rounding errors do not grow in three updates.
inline OptimizerOptions random_optimizer(Dice& dice) {
  OptimizerOptions o;
  o.kind = optimizers()[dice.below(optimizers().size())];
  o.eps = 1e-3;  // otherwise the step of a nearly zero gradient is the sign of rounding noise
  o.weight_decay = dice.once_in(2) ? 0.1 : 0;
  o.amsgrad = dice.once_in(2);
  o.momentum = o.kind == &muon_optimizer() ? 0.9 : dice.one_of({0.0, 0.8});
  o.nesterov = dice.once_in(2);
  o.state_type = dice.once_in(3) ? DType::bf16 : DType::f32;
  if (dice.once_in(3)) o.no_decay = {"*"};
  if (dice.once_in(3)) o.learning_rate_scales = {{"*", 2.0}, {"*w*", 0.5}};
  return o;
}

inline Job random_job(std::uint64_t seed, std::uint64_t number) {
  Dice dice(seed * 1000003 + number);
  Job job;
  job.config = random_config(dice);
  job.ranks = static_cast<int>(1 + dice.below(6));
  ShardingOptions& s = job.sharding;
  s.strategy = dice.one_of({"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"});
  do s.shard_group_size = static_cast<int>(1 + dice.below(static_cast<std::size_t>(job.ranks)));
  while (job.ranks % s.shard_group_size != 0);
  s.wrap = random_wrap(dice);
  if (dice.once_in(4)) s.patterns.freeze = random_patterns(dice, job.config);
  if (dice.once_in(5)) s.patterns.train_only = random_patterns(dice, job.config);
  if (dice.once_in(4)) s.patterns.ignore = random_patterns(dice, job.config);
  s.batch = {1 + dice.below(2), 2 + dice.below(10)};
  s.plan = {.micro_batches = 1 + dice.below(3),
            .checkpoint_activations = dice.once_in(2),
            .checkpoint_policy = dice.one_of({CheckpointPolicy::block, CheckpointPolicy::selective}),
            .checkpoint_every = 1 + dice.below(3),
            .parameter_slots = 1 + dice.below(4),
            .gradient_slots = 1 + dice.below(3),
            .backward_prefetch = dice.one_of({BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none}),
            .forward_prefetch = dice.once_in(2),
            .accumulate_unsharded = dice.once_in(3)};
  if (dice.once_in(4)) job.dropout = 0.2f;
  s.optimizer = random_optimizer(dice);
  if (dice.once_in(3)) s.types.parameter = dice.one_of({DType::bf16, DType::f16});
  if (dice.once_in(3)) s.types.reduce = dice.one_of({DType::bf16, DType::f16});
  if (s.types.parameter == DType::bf16 && dice.once_in(2)) s.types.master = DType::bf16;
  if (dice.once_in(3)) s.types.gradient = DType::bf16;
  if (s.types.parameter != DType::f32 || s.types.reduce != DType::f32 || s.types.gradient != DType::f32) job.updates = 1;
  const bool optimizer = dice.once_in(3), parameters = dice.once_in(4);
  s.plan.places = random_places(seed * 1000003 + number, optimizer, parameters);
  s.plan.documents = dice.once_in(4);
  s.plan.average_weights = dice.once_in(4);
  if (dice.once_in(4)) job.loss_terms = {.label_smoothing = 0.1f, .z_loss = 1e-3f};
  if (dice.once_in(4)) job.neftune_alpha = 5;
  if (dice.once_in(3)) job.piece_rows = 1 + dice.below(7);
  job.short_rows = dice.once_in(3);
  job.seed = seed * 1000003 + number;
  job.description = describe(job, seed, number);
  return job;
}

/// Changes a random job to `micro_batches` per update in total, on `ranks` ranks.
inline Job invariant_job(Job job, std::size_t micro_batches, std::size_t ranks) {
  ShardingOptions& s = job.sharding;
  job.ranks = static_cast<int>(ranks);
  s.shard_group_size = ranks == 1 ? 1 : 2;
  s.plan.micro_batches = micro_batches / ranks;
  s.plan.invariant = true;
  s.plan.accumulate_unsharded = false;
  s.types.gradient = DType::f32;
  s.batch.B = 1;
  job.updates = 3;
  job.description = format("{} micro-batches of {} ranks: {}", s.plan.micro_batches, ranks, describe(job, 0, job.seed));
  return job;
}

/// Changes a random job to train adapters.
inline Job adapted_job(Job job) {
  Dice dice(job.seed);
  job.config.lora = {.rank = 1 + dice.below(6),
                     .alpha = dice.one_of({1.0, 5.0}),
                     .dropout = dice.one_of({0.0, 0.2}),
                     .rank_stabilized = dice.once_in(2)};
  if (dice.once_in(2)) job.config.lora.targets = {"all-linear"};
  job.sharding.patterns.freeze = job.sharding.patterns.train_only = {};
  const Lora& lora = job.config.lora;
  job.description = format("adapters of rank {}, alpha {}, dropout {}, stabilized {}, targets {}: {}", lora.rank, lora.alpha,
                           lora.dropout, lora.rank_stabilized, lora.targets.size(), describe(job, 0, job.seed));
  return job;
}

/// Returns the same job with all sequences in one batch on one rank, without prefetch and recomputation.
inline Job reference(const Job& job) {
  Job one = job;
  one.ranks = 1;
  one.sharding = {.strategy = "full",
                  .patterns = {job.sharding.patterns.freeze, job.sharding.patterns.train_only, {}},
                  .batch = job.sharding.batch,
                  .types = {.parameter = job.sharding.types.parameter, .master = job.sharding.types.master},
                  .plan = {.documents = job.sharding.plan.documents},
                  .optimizer = job.sharding.optimizer};
  one.sharding.batch.B *= job.sharding.plan.micro_batches * static_cast<std::size_t>(job.ranks);
  return one;
}

/// Returns a description of the difference, or "". Gradients sent in bf16 have a relative rounding error of 2^-9, and a rank's
/// gradient may be many times the sum. In 16 bits, a sum in another order may be rounded in the other direction.
inline std::string difference(const Job& job, const Outcome& a, const Outcome& b) {
  const DType reduce_dtype = job.sharding.types.reduce, kept = job.sharding.types.gradient;
  const float rounding = reduce_dtype == DType::bf16 || kept == DType::bf16 ? 0.05f : reduce_dtype == DType::f16 ? 0.01f : 0;
  // Lion and Muon turn rounding noise into full steps, which also change the next gradient.
  const Optimizer* const kind = job.sharding.optimizer.kind;
  const bool noisy = kind == &lion_optimizer() || kind == &muon_optimizer();
  const DType computed = job.sharding.types.parameter;
  const bool in_bf16 = computed == DType::bf16;  // products by AMX differ most from those of the double of a GPU
  const float flips = in_bf16 ? 0.015f : noisy && job.updates > 1 ? 0.01f : computed == DType::f16 ? 0.002f : 0;
  const double loss_bound = (rounding == 0 ? 2e-5 : 1e-3) + (in_bf16 ? 1e-3 : 0.01 * flips),
               norm_bound = 2e-4 + rounding + (in_bf16 ? 2e-3 : 0);
  float largest_of_all = 0;
  for (const auto& gradient : b.gradients)
    for (const float g : gradient) largest_of_all = std::max(largest_of_all, std::abs(g));
  for (std::size_t u = 0; u < job.updates; ++u) {
    if (!(std::abs(a.losses[u] - b.losses[u]) < loss_bound))
      return format("loss of update {}: {} and {}", u + 1, a.losses[u], b.losses[u]);
    if (!(std::abs(a.norms[u] - b.norms[u]) < norm_bound * b.norms[u] + 1e-6))
      return format("norm of update {}: {} and {}", u + 1, a.norms[u], b.norms[u]);
  }
  const auto parameters = list_parameters(job.config).parameters;
  for (const UnitSpec& unit : wrap_parameters(parameters, {}, job.sharding.patterns))
    for (const std::size_t p : unit.parameters) {
      if (!unit.trainable) {
        if (a.weights[p] != b.weights[p]) return parameters[p].name + " is frozen and has changed";
        continue;
      }
      float largest = 0;
      for (const float g : b.gradients[p]) largest = std::max(largest, std::abs(g));
      for (std::size_t i = 0; i < a.gradients[p].size(); ++i)
        if (!(std::abs(a.gradients[p][i] - b.gradients[p][i]) <=
              (2e-3f + rounding + flips) * largest + 0.1f * rounding * largest_of_all + (in_bf16 ? 1e-4f : 2e-5f)))
          return format("gradient {}[{}]: {} and {}, of up to {}", parameters[p].name, i, a.gradients[p][i], b.gradients[p][i],
                        largest);
      // A wrong optimizer moves a whole tensor to other values.
      if (noisy || rounding != 0 || job.sharding.types.master != DType::f32) continue;
      // Without rotary positions softmax does not depend on the bias of the keys: its gradient is only rounding noise, which
      // LAMB and Adafactor scale by the size of the weights.
      if (job.config.positions != Positions::rotary && parameters[p].name.ends_with("k_proj.bias")) continue;
      double apart = 0, moved = 0;
      for (std::size_t i = 0; i < a.weights[p].size(); ++i) {
        apart += std::pow(a.weights[p][i] - b.weights[p][i], 2);
        moved += std::pow(b.weights[p][i] - b.initial[p][i], 2);
      }
      if (!(std::sqrt(apart) <= 0.1 * std::sqrt(moved) + 1e-6))
        return format("weights of {}: {} apart, having moved {}", parameters[p].name, std::sqrt(apart), std::sqrt(moved));
    }
  return "";
}

/// Calls check(job, number) for CASES random jobs (the test program's first argument) of seed SEED, from number FIRST on. Jobs
/// with nothing to train are skipped. Returns the numbers of jobs that ran and that were skipped.
template <class Check>
std::pair<std::size_t, std::size_t> each_random_job(std::uint64_t cases, std::uint64_t seed, const Check& check) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  if (suite.argc > 1) cases = std::stoull(suite.argv[1]);
  if (suite.argc > 2) seed = std::stoull(suite.argv[2]);
  std::size_t run = 0, passed_over = 0;
  for (std::uint64_t number = suite.argc > 3 ? std::stoull(suite.argv[3]) : 0; run < cases; ++number) {
    const Job job = random_job(seed, number);
    try {
      wrap_parameters(list_parameters(job.config).parameters, job.sharding.wrap, job.sharding.patterns);
    } catch (const UserError&) {  // everything is frozen, or a pattern of one family meets the other
      ++passed_over;
      continue;
    }
    ++run;
    BOOST_TEST_CONTEXT(job.description) { check(job, number); }
  }
  return {run, passed_over};
}

}  // namespace fsdp::test
