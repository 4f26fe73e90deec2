#include "api/fully_sharded.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "api/chain.hpp"
#include "api/job_parts.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "fsdp/sharded_model.hpp"
#include "nn/transformer.hpp"
#include "optim/loss_scaler.hpp"

namespace fsdp {

namespace {

template <class T>
T find_choice(const char* what, const std::string& wanted, const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> known;
  for (const auto& [name, value] : choices) {
    if (name == wanted) return value;
    known.push_back(name);
  }
  throw UserError(format("there is no {} '{}' (known are {}); choose one of them", what, wanted, fmt::join(known, ", ")));
}

DType dtype_of_name(const char* what, const std::string& name) {
  return find_choice<DType>(what, name, {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}});
}

ShardingOptions sharding_of(const FsdpOptions& o, DeviceKind kind) {
  using Kind = WrapPolicy::Kind;
  ShardingOptions sharding;
  sharding.strategy = o.sharding_strategy;
  sharding.shard_group_size = o.shard_group_size;
  sharding.wrap.kind = find_choice<Kind>("auto_wrap_policy", o.auto_wrap_policy,
                                         {{"layer", Kind::transformer}, {"size", Kind::size}, {"none", Kind::none}});
  sharding.wrap.min_num_params = o.min_num_params;
  sharding.patterns.freeze = o.freeze;
  sharding.batch = {o.batch_size, o.sequence_length};
  sharding.types.parameter = dtype_of_name("param_dtype", o.param_dtype);
  sharding.types.reduce = dtype_of_name("reduce_dtype", o.reduce_dtype);
  if (o.gradient_accumulation_steps == 0)
    throw UserError("an update has no micro-batches; gradient_accumulation_steps is 1 or more");
  if (o.limit_all_gathers == 0) throw UserError("no unit can be whole; limit_all_gathers is 1 or more");
  sharding.plan.micro_batches = o.gradient_accumulation_steps;
  sharding.plan.checkpoint_activations = o.activation_checkpointing;
  sharding.plan.parameter_slots = o.limit_all_gathers;
  sharding.plan.backward_prefetch = find_choice<BackwardPrefetch>(
      "backward_prefetch", o.backward_prefetch,
      {{"pre", BackwardPrefetch::pre}, {"post", BackwardPrefetch::post}, {"none", BackwardPrefetch::none}});
  sharding.plan.forward_prefetch = o.forward_prefetch;
  sharding.plan.offload_parameters = o.offload_parameters;
  sharding.plan.offload_optimizer = o.offload_parameters || o.offload_optimizer;
  OptimizerOptions& optimizer = sharding.optimizer;
  const Optimizer& row = find_optimizer(o.optimizer);
  optimizer.kind = &row;
  optimizer.beta1 = o.beta1 > 0 ? o.beta1 : row.beta1;
  optimizer.beta2 = o.beta2 > 0 ? o.beta2 : row.beta2;
  optimizer.eps = o.eps > 0 ? o.eps : row.eps;
  optimizer.weight_decay = o.weight_decay >= 0 ? o.weight_decay : row.weight_decay;
  optimizer.momentum = o.momentum >= 0 ? o.momentum : row.momentum;
  optimizer.seed = static_cast<std::uint32_t>(o.seed);
  return options_for(kind, std::move(sharding));
}

MemoryUse memory_of(const Plan& plan) {
  MemoryUse use;
  const auto bytes = memory_by_role(plan);
  for (std::size_t role = 0; role < role_count; ++role)
    if (bytes[role] > 0) use.parts.emplace_back(name_of(static_cast<BufferRole>(role)), bytes[role]);
  use.total = plan.peak_bytes;
  return use;
}

/// What a model is given, in elements of a row.
struct RowSizes {
  std::size_t inputs = 1, targets = 1;
  bool tokens = true, labels = true;
  std::size_t vocabulary = 0, classes = 0;  // 0: unknown
};
RowSizes row_sizes(const Model& model) {
  const auto* const chain = dynamic_cast<const Chain*>(&model);
  if (const auto* const transformer = dynamic_cast<const Transformer*>(&model))
    return {.vocabulary = transformer->config().vocab_size, .classes = transformer->config().vocab_size};
  expect(chain != nullptr, "a model is a chain or a transformer");
  return {chain->input_width(),         chain->loss().targets(), chain->takes_tokens(),
          chain->loss().takes_labels(), chain->vocabulary(),     chain->loss().classes()};
}

}  // namespace

Sequential& Sequential::add(std::string name, LayerPtr layer) {
  expect(layer != nullptr, "a layer is added that is there");
  layers_.emplace_back(std::move(name), std::move(layer));
  return *this;
}

Sequential& Sequential::loss(LossPtr loss, std::string name) {
  loss_ = std::move(loss), loss_name_ = std::move(name);
  return *this;
}

std::shared_ptr<const Model> Sequential::build(const DeviceTraits& device) const {
  std::vector<NamedLayer> layers;
  for (const auto& [name, layer] : layers_) layers.push_back({name, layer});
  auto chain = std::make_shared<Chain>(std::move(layers), loss_name_, loss_, device);
  if (chain->parameters().empty())
    throw UserError("the model has no parameters (there is nothing to train); add a layer that has some");
  return chain;
}

TransformerDescription::TransformerDescription(std::string arch) : arch_(std::move(arch)) {}
TransformerDescription& TransformerDescription::layers(std::size_t n) { return layers_ = n, *this; }
TransformerDescription& TransformerDescription::width(std::size_t n) { return width_ = n, *this; }
TransformerDescription& TransformerDescription::heads(std::size_t n) { return heads_ = n, *this; }
TransformerDescription& TransformerDescription::vocabulary(std::size_t n) { return vocabulary_ = n, *this; }
TransformerDescription& TransformerDescription::longest_sequence(std::size_t n) { return longest_sequence_ = n, *this; }

std::shared_ptr<const Model> TransformerDescription::build(const DeviceTraits& device) const {
  const auto unless_zero = [](std::size_t n) { return n > 0 ? std::optional(n) : std::nullopt; };
  ConfigOverrides sizes;
  sizes.layers = unless_zero(layers_), sizes.width = unless_zero(width_), sizes.heads = unless_zero(heads_);
  sizes.vocab_size = unless_zero(vocabulary_), sizes.max_positions = unless_zero(longest_sequence_);
  return std::make_shared<Transformer>(override_config(arch_config(arch_), sizes), device);
}

std::span<std::int32_t> Batch::tokens() const {
  expect(tokens_, "this model is given numbers: write Batch::inputs()");
  return inputs_;
}
std::span<float> Batch::inputs() const {
  expect(!tokens_, "this model is given tokens: write Batch::tokens()");
  return {reinterpret_cast<float*>(inputs_.data()), inputs_.size()};
}
std::span<std::int32_t> Batch::labels() const {
  expect(labels_, "this loss is given numbers: write Batch::targets()");
  return targets_;
}
std::span<float> Batch::targets() const {
  expect(!labels_, "this loss is given labels: write Batch::labels()");
  return {reinterpret_cast<float*>(targets_.data()), targets_.size()};
}

MemoryUse estimate_memory(const ModelDescription& model, const FsdpOptions& options, int ranks, const std::string& device) {
  const auto kind = find_choice<DeviceKind>("device", device, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}});
  const ShardingOptions sharding = sharding_of(options, kind);
  const auto built = model.build(traits_of(kind, 1));
  check_sharding(*built, sharding, ranks);
  const int group = options.shard_group_size > 0 ? options.shard_group_size : ranks;
  return memory_of(plan_sharding(*built, sharding, mesh_shape(find_placement(sharding.strategy), ranks, group)).plan);
}

namespace {
/// All ranks were told the same, or find out here.
ShardingOptions agreed_sharding(const FsdpOptions& options, Job::Parts& job) {
  ShardingOptions sharding;
  agree(*job.world, [&] { sharding = sharding_of(options, job.kind); });
  return sharding;
}
}  // namespace

struct FullyShardedDataParallel::Parts {
  Parts(Job::Parts& of_job, const ModelDescription& description, const FsdpOptions& user_options)
      : job(of_job), world(*job.world), options(user_options), sharding(agreed_sharding(options, job)) {
    std::shared_ptr<const Model> model;
    agree(world, [&] { model = description.build(traits_of(job.kind, job.threads)); });
    rows = row_sizes(*model);
    require_same_everywhere(*model);
    agree(world, [&] { check_sharding(*model, sharding, world.size()); });
    sharded.emplace(model, sharding, world);
    sharded->allocate(*job.device, {.table_type = sharding.types.parameter}, job.comm);
    batch.resize(sharding.plan.micro_batches * numbers_of_batch());
    executor().initialize_parameters(options.seed);
    executor().publish_parameters();
    if (sharding.types.parameter == DType::f16) scaler.emplace(LossScalerOptions{});
  }

  /// The ranks make one model together, which each was told about by itself.
  void require_same_everywhere(const Model& model) {
    const FsdpOptions& o = options;
    std::string told =
        format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.sequence_length,
               o.gradient_accumulation_steps, o.sharding_strategy, o.shard_group_size, o.auto_wrap_policy, o.min_num_params,
               o.backward_prefetch, o.forward_prefetch, o.limit_all_gathers, o.param_dtype, o.reduce_dtype,
               o.activation_checkpointing, o.offload_parameters, o.offload_optimizer, o.optimizer, o.beta1, o.beta2, o.eps,
               o.weight_decay, o.momentum, o.clip_norm, fmt::join(o.freeze, ","), o.seed, o.batch_size);
    for (const Parameter& parameter : model.parameters())
      told += format(" {} {} {} {}", parameter.name, to_string(parameter.shape), static_cast<int>(parameter.init.kind),
                     parameter.init.value);
    std::uint64_t length = told.size();
    std::string first = told;
    world.broadcast(&length, sizeof length, 0);
    first.resize(length);
    world.broadcast(first.data(), length, 0);
    agree(world, [&] {
      if (first != told)
        throw UserError(
            "the options or the model are others here than on rank 0 (all ranks train one model); give all of them "
            "the same");
    });
  }

  Executor& executor() { return sharded->executor(); }
  const std::vector<Parameter>& parameters() const { return sharded->model().parameters(); }
  std::size_t inputs_of_batch() const { return sharding.batch.rows() * rows.inputs; }
  std::size_t numbers_of_batch() const { return inputs_of_batch() + sharding.batch.rows() * rows.targets; }

  /// Lets the user write `count` batches, and returns how many rows of them count, on all ranks together. Collective.
  double fill_batches(std::size_t count, const FillBatch& fill) {
    std::size_t counted = 0;
    agree(world, [&] {
      for (std::size_t k = 0; k < count; ++k) {
        std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
        const std::span inputs(numbers, inputs_of_batch()),
            targets(numbers + inputs.size(), numbers_of_batch() - inputs.size());
        fill(Batch(k, inputs, targets, rows.tokens, rows.labels));
        counted += rows.labels ? rows_that_count(targets) : sharding.batch.rows();
        if (rows.tokens) require_below(inputs, rows.vocabulary, 0, "token");
        if (rows.labels) require_below(targets, rows.classes, -1, "label");
      }
    });
    const std::int64_t all = world.sum(narrow<std::int64_t>(counted));
    agree(world, [&] {
      if (all == 0)
        throw UserError("no row of this batch counts (all its labels are negative, on all ranks); give it some that do");
    });
    return static_cast<double>(all);
  }

  std::size_t rows_that_count(std::span<const std::int32_t> labels) const {
    std::size_t count = 0;
    for (std::size_t r = 0; r < labels.size(); r += rows.targets) count += labels[r] >= 0;
    return count;
  }

  /// `least`: a number below it is none, unless it is -1, which stands for all that do not count. `limit` 0: unknown.
  static void require_below(std::span<const std::int32_t> numbers, std::size_t limit, std::int32_t least, const char* what) {
    if (limit == 0) return;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if ((least == 0 && numbers[i] < 0) || (numbers[i] >= 0 && static_cast<std::size_t>(numbers[i]) >= limit))
        throw UserError(format("{} {} of a batch, its number {}, is none of the model's (there are {}); correct the data", what,
                               numbers[i], i, limit));
  }

  void copy_batch(std::size_t k, std::int32_t* inputs, std::int32_t* targets) const {
    const std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
    std::copy_n(numbers, inputs_of_batch(), inputs);
    std::copy_n(numbers + inputs_of_batch(), numbers_of_batch() - inputs_of_batch(), targets);
  }

  std::vector<ShardState> states() {
    std::vector<ShardState> all = {executor().parameters()};
    for (ShardState& state : executor().optimizer_states()) all.push_back(std::move(state));
    return all;
  }

  CheckpointHeader header() const {
    return {.model = StoredModel(sharded->model()),
            .progress = progress,
            .strategy = std::string(sharded->placement().name),
            .world_size = world.size(),
            .shards = sharded->layout().shards(),
            .units = {sharded->layout().units().begin(), sharded->layout().units().end()},
            .optimizer = std::string(sharding.optimizer.kind->name),
            .options_json = "{}",
            .version = version_string()};
  }

  std::unique_ptr<Job> own_job;  // outlives the others
  Job::Parts& job;
  Communicator& world;
  const FsdpOptions options;
  const ShardingOptions sharding;
  RowSizes rows;
  std::vector<std::int32_t> batch;  // of each micro-batch inputs, then targets
  const BatchReader reader = [this](std::size_t k, std::int32_t* inputs, std::int32_t* targets) {
    copy_batch(k, inputs, targets);
  };
  Progress progress;
  std::optional<LossScaler> scaler;  // of fp16
  std::optional<ShardedModel> sharded;
};

FullyShardedDataParallel::FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options)
    : parts_(std::make_unique<Parts>(job.parts(), model, options)) {}
FullyShardedDataParallel::FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options) {
  auto job = std::make_unique<Job>();
  parts_ = std::make_unique<Parts>(job->parts(), model, options);
  parts_->own_job = std::move(job);
}
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

StepResult FullyShardedDataParallel::step(double learning_rate, const FillBatch& fill) {
  Parts& p = *parts_;
  const double counted = p.fill_batches(p.sharding.plan.micro_batches, fill);
  const std::size_t sequences = p.sharding.batch.B;
  const UpdateScalars scalars = {.update = p.progress.update + 1,
                                 .learning_rate = learning_rate,
                                 .clip_norm = p.options.clip_norm,
                                 .state_began = p.progress.optimizer_began,
                                 .dropout = {.seed = static_cast<std::uint32_t>(p.options.seed),
                                             .update = p.progress.update + 1,
                                             .first_sequence = static_cast<std::uint64_t>(p.world.rank()) * sequences},
                                 .tokens = counted,
                                 .loss_scale = p.scaler ? p.scaler->scale() : 1};
  const UpdateResult result = p.executor().run_update(p.reader, scalars);
  const bool goes_on = !p.scaler || p.scaler->update(result.finite());
  if (!result.finite() && (!p.scaler || !goes_on))
    agree(p.world, [&] {
      throw RunError(
          format("update {} has loss {} and gradient norm {} (nothing was changed by it); lower the learning rate, or "
                 "look for numbers in the data that are not finite",
                 scalars.update, result.loss, result.gradient_norm));
    });
  if (p.scaler) p.progress.loss_scaler = p.scaler->state();
  if (!result.finite()) return {.loss = result.loss, .gradient_norm = result.gradient_norm, .skipped = true};
  ++p.progress.update;
  p.progress.tokens += static_cast<std::uint64_t>(counted);
  return {.loss = result.loss, .gradient_norm = result.gradient_norm};
}

double FullyShardedDataParallel::evaluate(const FillBatch& fill) {
  Parts& p = *parts_;
  const double counted = p.fill_batches(1, fill);
  kernels::LossSum sum = p.executor().evaluate(p.reader);
  std::array words = {sum.units, sum.fractions, sum.non_finite};
  p.world.sum(words);
  sum = {words[0], words[1], words[2]};
  return sum.value() / counted;
}

std::uint64_t FullyShardedDataParallel::updates() const { return parts_->progress.update; }

std::filesystem::path FullyShardedDataParallel::save(const std::filesystem::path& folder) {
  Parts& p = *parts_;
  const std::vector<ShardState> states = p.states();
  return save_checkpoint(folder, p.header(), p.sharded->layout(), states, p.world);
}

void FullyShardedDataParallel::load(const std::filesystem::path& folder) {
  Parts& p = *parts_;
  std::unique_ptr<CheckpointReader> reader;
  agree(p.world, [&] {
    reader = open_checkpoint(folder);
    const std::string& there = reader->header().optimizer;
    const Optimizer &mine = *p.sharding.optimizer.kind, &theirs = find_optimizer(there);
    const auto algorithm = [](const Optimizer& o) { return o.same_as.empty() ? o.name : o.same_as; };
    if (algorithm(mine) != algorithm(theirs))
      throw UserError(
          format("{} holds the state of {} (this model has {}); choose that optimizer, or take the parameters alone "
                 "by load_full()",
                 reader->description(), there, mine.name));
    load_states(*reader, p.parameters(), p.sharded->layout(), p.sharded->shard(), p.states());
  });
  p.progress = reader->header().progress;
  if (p.scaler && p.progress.loss_scaler) p.scaler->restore(*p.progress.loss_scaler);
  p.executor().publish_parameters();
}

bool FullyShardedDataParallel::can_load(const std::filesystem::path& folder) { return latest_checkpoint(folder).has_value(); }

void FullyShardedDataParallel::save_full(const std::filesystem::path& path) {
  Parts& p = *parts_;
  const bool is_hdf5 = path.extension() == ".h5" || path.extension() == ".hdf5";
  // The shards first, in a folder beside it, which one process then joins as fsdp-consolidate does.
  const std::filesystem::path folder = path.string() + ".shards";
  agree(p.world, [&] {
    if (!is_hdf5 && !(path.extension().empty() && StoredModel(p.sharded->model()).is_transformer()))
      throw UserError(
          format("'{}' names no format of whole models (NAME.h5 is an HDF5 file; a transformer may be a folder, "
                 "without an ending); choose another name",
                 path.string()));
    if (p.world.rank() != 0) return;
    if (std::filesystem::exists(path))
      throw UserError(format("'{}' is there already; remove it, or choose another name", path.string()));
    std::filesystem::remove_all(folder);  // of a call that was killed
  });
  const std::vector<ShardState> parameters = {p.executor().parameters()};
  const std::filesystem::path step = save_checkpoint(folder, p.header(), p.sharded->layout(), parameters, p.world);
  agree(p.world, [&] {
    if (p.world.rank() != 0) return;
    const auto reader = CheckpointReader::open(step);
    ConsolidateOptions options;
    if (!is_hdf5) options.format = &safetensors_format();
    consolidate(*reader, path, options);
    std::filesystem::remove_all(folder);
  });
}

void FullyShardedDataParallel::load_full(const std::filesystem::path& path) {
  Parts& p = *parts_;
  agree(p.world, [&] {
    const auto source = open_tensor_source(path);
    load_parameters(*source, p.parameters(), p.sharded->layout(), p.sharded->shard(), p.executor().parameters());
  });
  p.executor().publish_parameters();
}

void FullyShardedDataParallel::for_each_parameter(
    const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take) {
  Parts& p = *parts_;
  const Layout& layout = p.sharded->layout();
  const ShardState mine = p.executor().parameters();
  const bool is_first_copy = p.sharded->mesh().replicate->rank() == 0;
  const auto stream = make_host_stream();
  for (std::size_t parameter = 0; parameter < p.parameters().size(); ++parameter) {
    // Zeros but for what this rank alone gives, so that the sum over the ranks is the whole.
    std::vector<float> whole(numel(p.parameters()[parameter].shape));
    for (std::size_t u = 0; u < layout.units().size() && is_first_copy; ++u) {
      if (!layout.units()[u].sharded && p.sharded->shard() != 0) continue;
      for (const Slice& slice : layout.slices(u, p.sharded->shard()))
        if (slice.parameter == parameter)
          mine.read(u, slice.shard_offset, std::span(whole).subspan(slice.range.begin, slice.range.size()));
    }
    p.world.all_reduce(*stream, whole.data(), whole.size(), DType::f32);
    agree(p.world, [&] {
      if (p.world.rank() == 0) take(p.parameters()[parameter].name, p.parameters()[parameter].shape, whole);
    });
  }
}

MemoryUse FullyShardedDataParallel::memory() const { return memory_of(parts_->sharded->plan()); }
std::size_t FullyShardedDataParallel::peak_bytes() const { return parts_->executor().peak_bytes(); }
std::string FullyShardedDataParallel::plan() const {
  return describe_operations(parts_->sharded->plan(), parts_->sharded->plan().update, parts_->sharded->layout());
}

}  // namespace fsdp
