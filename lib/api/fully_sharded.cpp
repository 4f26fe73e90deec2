#include "api/fully_sharded.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <typeinfo>
#include <utility>

#include <boost/core/demangle.hpp>
#include <nlohmann/json.hpp>

#include "api/chain.hpp"
#include "api/data.hpp"
#include "api/job_parts.hpp"
#include "api/model_inside.hpp"
#include "api/own_optimizer.hpp"
#include "api/place.hpp"
#include "api/proof.hpp"
#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/version.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_format.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/scratch_folder.hpp"
#include "fsdp/host_states.hpp"
#include "fsdp/sharded_model.hpp"
#include "nn/patterns.hpp"
#include "nn/transformer.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "train/mean_loss.hpp"
#include "train/memory.hpp"
#include "train/options.hpp"
#include "train/origin.hpp"
#include "train/same_files.hpp"
#include "train/train_data.hpp"

namespace fsdp {

namespace {

void require_user(bool ok, const char* problem) {
  if (!ok) throw UserError(problem);
}

std::vector<Field> fields_of(const FsdpOptions& o) {
  const auto text = []<class T>(const T& value) {
    if constexpr (std::is_same_v<T, std::size_t>)
      return format("{}", as_given(value));
    else
      return format("{}", value);
  };
  const auto if_given = [](const auto& value) { return value ? std::optional(format("{}", *value)) : std::nullopt; };
  const auto on_host = [](bool is) { return is ? std::optional<std::string>("cpu") : std::nullopt; };
  std::optional<std::string> betas;
  if (o.beta1 || o.beta2) {
    const Optimizer& own = find_optimizer(o.optimizer);
    betas = format("({},{})", o.beta1.value_or(own.beta1), o.beta2.value_or(own.beta2));
  }
  std::string units;
  for (const std::string& pattern : o.wrap_patterns) units += (units.empty() ? "" : ",") + pattern;
  return {{"batch-size", "batch_size", text(o.batch_size)},
          {"tokens-per-sample", "sequence_length", text(o.sequence_length)},
          {"update-freq", "gradient_accumulation_steps", text(o.gradient_accumulation_steps)},
          {"sharding-strategy", "sharding_strategy", o.sharding_strategy},
          {"shard-group-size", "shard_group_size",
           o.shard_group_size == 0 ? std::nullopt : std::optional(text(o.shard_group_size))},
          {"wrap-policy", "auto_wrap_policy", o.auto_wrap_policy},
          {"wrap-layers", "wrap_layers", text(o.wrap_layers)},
          {"min-num-params", "min_num_params", if_given(o.min_num_params)},
          {"wrap-units", "wrap_patterns", o.wrap_patterns.empty() ? std::nullopt : std::optional(units)},
          {"backward-prefetch", "backward_prefetch", o.backward_prefetch},
          {"forward-prefetch", "forward_prefetch", text(o.forward_prefetch)},
          {"limit-all-gathers", "limit_all_gathers", text(o.limit_all_gathers)},
          {"accumulate-unsharded", "accumulate_unsharded", text(o.accumulate_unsharded)},
          {"invariant", "invariant", text(o.invariant)},
          {"sum-order", "JobOptions::sum_order", {}},  // named in messages
          {"ignore-params", "ignored_params", {}},     // lists are set in train_options_of(): patterns may contain commas
          {"precision", "param_dtype", o.param_dtype},
          {"reduce-dtype", "reduce_dtype", o.reduce_dtype},
          {"master-dtype", "master_dtype", o.master_dtype},
          {"grad-dtype", "grad_dtype", o.grad_dtype},
          {"buffer-dtype", "buffer_dtype", o.buffer_dtype},
          {"fp16", "param_dtype \"fp16\"", {}},  // named in messages
          {"fp16-init-scale", "fp16_init_scale", if_given(o.fp16_init_scale)},
          {"fp16-scale-window", "fp16_scale_window", if_given(o.fp16_scale_window)},
          {"fp16-scale-tolerance", "fp16_scale_tolerance", if_given(o.fp16_scale_tolerance)},
          {"min-loss-scale", "min_loss_scale", if_given(o.min_loss_scale)},
          {"threshold-loss-scale", "threshold_loss_scale", if_given(o.threshold_loss_scale)},
          {"checkpoint-activations", "activation_checkpointing", text(o.activation_checkpointing)},
          {"checkpoint-policy", "checkpoint_policy", o.checkpoint_policy},
          {"checkpoint-every", "checkpoint_every", text(o.checkpoint_every)},
          {"offload-params", "offload_parameters", on_host(o.offload_parameters)},
          {"offload-optimizer", "offload_optimizer", on_host(o.offload_optimizer)},
          {"optimizer", "optimizer", o.optimizer},
          {"adam-betas", "beta1 and beta2", betas},
          {"adam-eps", "eps", if_given(o.eps)},
          {"weight-decay", "weight_decay", if_given(o.weight_decay)},
          {"momentum", "momentum", if_given(o.momentum)},
          {"amsgrad", "amsgrad", text(o.amsgrad)},
          {"nesterov", "nesterov", text(o.nesterov)},
          {"optimizer-state-dtype", "optimizer_state_dtype", o.optimizer_state_dtype},
          {"clip-norm", "clip_norm", text(o.clip_norm)},
          {"clip-value", "clip_value", text(o.clip_value)},
          {"skip-spikes", "skip_spikes", text(o.skip_spikes)},
          {"ema-decay", "ema_decay", text(o.ema_decay)},
          {"ema-start-update", "ema_start_update", text(o.ema_start_update)},
          {"label-smoothing", "label_smoothing", text(o.label_smoothing)},
          {"z-loss", "z_loss", text(o.z_loss)},
          {"neftune-alpha", "neftune_alpha", text(o.neftune_alpha)},
          {"dropout", "dropout", text(o.dropout)},
          {"attention-dropout", "attention_dropout", text(o.attention_dropout)},
          {"freeze", "freeze", {}},
          {"train-only", "train_only", {}},
          {"seed", "seed", text(o.seed)}};
}

/// Describes the groups, to compare those of all ranks. Throws UserError.
std::string text_of(const std::vector<ParameterGroup>& groups) {
  std::string all;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto number = [&](const char* name, const std::optional<double>& value) {
      if (value && !(*value >= 0 && std::isfinite(*value)))
        throw UserError(format("param_groups[{}].{} is {} (it must be at least 0); correct it", i, name, *value));
      return value ? format("{}", *value) : "none";
    };
    const ParameterGroup& group = groups[i];
    if (group.patterns.empty() || !(group.weight_decay || group.learning_rate_scale))
      throw UserError(format(
          "param_groups[{}] changes nothing (it needs patterns, and a weight_decay or a learning_rate_scale); give both, "
          "or leave out the group",
          i));
    all += format("param_groups[{}] {} with weight_decay {} and learning_rate_scale {}\n", i, fmt::join(group.patterns, " "),
                  number("weight_decay", group.weight_decay), number("learning_rate_scale", group.learning_rate_scale));
  }
  return all;
}

TrainOptions train_options_of(const FsdpOptions& o, DeviceKind kind, int ranks, const CommOptions& comm = TrainOptions().comm) {
  TrainOptions options;
  options.comm = comm;
  OptionTable table = train_option_table(options, std::max(ranks, 1));
  set_fields(table, fields_of(o));
  // fsdp-train ignores betas and eps that the optimizer does not use, because one configuration file may serve several
  // optimizers. A program chooses its optimizer, so here they are an error.
  const OptimizerReads& reads = options.sharding.optimizer.kind->reads;
  const bool unread_betas = (o.beta1 || o.beta2) && !reads.betas;
  if (unread_betas || (o.eps && !reads.eps))
    throw UserError(format("{} changes nothing (optimizer {} does not read it); leave it out, or choose another optimizer",
                           unread_betas ? "beta1 or beta2" : "eps", o.optimizer));
  if (!is_host(kind) && is_own_optimizer(*options.sharding.optimizer.kind))
    throw UserError(format(
        "optimizer {} runs on CPUs only (add_optimizer() added it); choose an optimizer of fsdp-train, or device \"cpu\"",
        o.optimizer));
  text_of(o.param_groups);
  options.sharding.optimizer.groups = o.param_groups;
  options.sharding.wrap.unit_per_match = true;
  options.sharding.patterns.freeze = o.freeze;
  options.sharding.patterns.train_only = o.train_only;
  options.sharding.patterns.ignore = o.ignored_params;
  options.sharding = options_for(kind, std::move(options.sharding));
  if (o.generate_positions > 0) options.sharding.plan.cache = {o.batch_size, o.generate_positions};
  return options;
}

/// Throws UserError for options that only a transformer has.
void require_transformer(const Model& model, const TrainOptions& o) {
  require_user(
      model.transformer_config() || (o.label_smoothing == 0 && o.z_loss == 0 && o.neftune_alpha == 0),
      "label_smoothing, z_loss and neftune_alpha are for a TransformerDescription (this model is a Sequential); give the first "
      "two to cross_entropy(), and leave them out here");
  const auto refuse = [&](bool given, const char* what, const char* instead) {
    if (given && !model.transformer_config())
      throw UserError(format("{} is for a TransformerDescription (this model is a Sequential); {}", what, instead));
  };
  refuse(o.dropout > 0, "dropout", "leave it out");
  refuse(o.attention_dropout > 0, "attention_dropout", "leave it out");
  refuse(o.execution.table_type != DType::f32, "buffer_dtype", "leave it out");
  refuse(o.sharding.plan.checkpoint_policy == CheckpointPolicy::selective, "checkpoint_policy \"selective\"",
         "choose \"block\", which computes whole layers again");
  refuse(o.sharding.plan.cache.positions > 0, "generate_positions", "leave it out, because a Sequential generates no texts");
}

/// Returns how many numbers (integers or fp32) the inputs and targets of a micro-batch have.
std::size_t numbers_of_batch(const RowSizes& rows, BatchShape shape) { return shape.rows() * (rows.inputs + rows.targets); }

/// The size of the copy from which a rank saves in the background; 0 without FsdpOptions::background_saves.
std::size_t snapshot_of(bool saves_in_background, const Plan& plan, const Layout& layout, const ShardingOptions& sharding,
                        int rank, int ranks) {
  return saves_in_background ? snapshot_bytes(layout, sharding.optimizer.state_type, rank, ranks, !plan.averages.empty()) : 0;
}

/// Adds to `account` the memory into which the program writes batches, and `snapshot`.
MemoryUse memory_of(MemoryAccount account, const RowSizes& rows, const ShardingOptions& sharding, std::size_t snapshot) {
  account.batch += sharding.plan.micro_batches * numbers_of_batch(rows, sharding.batch) * sizeof(std::int32_t);
  account.snapshot = snapshot;
  MemoryUse use;
  const auto add = [&](std::string_view name, std::size_t bytes, bool on_host = false) {
    if (bytes > 0)
      use.parts.emplace_back(format("{}{}", name, on_host && !is_host(account.device) ? ", on the host" : ""), bytes);
  };
  for (std::size_t role = 0; role < role_count; ++role) add(name_of(static_cast<BufferRole>(role)), account.by_role[role]);
  add("staging of collectives", account.staging);
  add("workspace of matrix products", account.gemm);
  add("driver and libraries", account.context);
  add("offloaded state", account.offloaded, true);
  add("staging of collectives", account.through_host, true);
  add("batches of an update", account.batch, true);
  add("copy that a save writes", account.snapshot, true);
  use.total = account.total();
  return use;
}

}  // namespace

Sequential& Sequential::add(std::string name, LayerPtr layer) {
  if (!layer) throw UserError(format("layer '{}' is a null pointer (there is no layer); give one", name));
  layers_.emplace_back(std::move(name), std::move(layer));
  return *this;
}

Sequential& Sequential::loss(LossPtr loss, std::string name) {
  if (loss_) throw UserError("loss() is called twice (a model has one loss); leave one out");
  loss_ = std::move(loss), loss_name_ = std::move(name);
  return *this;
}

Sequential& Sequential::tie(std::string parameter, std::string same_as) {
  return tied_.emplace_back(std::move(parameter), std::move(same_as)), *this;
}

std::shared_ptr<const Model> Sequential::build(const DeviceTraits& device) const {
  std::vector<TiedParameters> tied;
  for (const auto& [name, same_as] : tied_) tied.push_back({name, same_as});
  auto chain = std::make_shared<Chain>(without_repeats(layers_), loss_name_, loss_, device, tied);
  if (chain->parameters().empty())
    throw UserError("the model has no parameters (there is nothing to train); add a layer that has some");
  return chain;
}

std::string Sequential::text() const {
  std::string all;
  const auto add = [&](const std::string& name, const std::type_info& type) {
    all += format("{} of {}\n", name, boost::core::demangle(type.name()));
  };
  const std::function<void(const std::string&, const Layer&)> add_layer = [&](const std::string& name, const Layer& layer) {
    add("layer " + name, typeid(layer));
    if (const auto* const whole = dynamic_cast<const Composition*>(&layer))
      for (const auto& [inner, part] : whole->layers()) add_layer(inner.empty() ? name : name + "." + inner, *part);
  };
  for (const auto& [name, layer] : layers_) add_layer(name, *layer);
  for (const auto& [name, same_as] : tied_) all += format("{} is {}\n", name, same_as);
  if (!loss_) return all;
  const Loss& loss = *loss_;
  add("loss", typeid(loss));
  return all;
}

TransformerDescription::TransformerDescription(std::string arch) : arch_(std::move(arch)) {}
TransformerDescription& TransformerDescription::layers(std::size_t n) { return layers_ = n, *this; }
TransformerDescription& TransformerDescription::width(std::size_t n) { return width_ = n, *this; }
TransformerDescription& TransformerDescription::heads(std::size_t n) { return heads_ = n, *this; }
TransformerDescription& TransformerDescription::vocabulary(std::size_t n) { return vocabulary_ = n, *this; }
TransformerDescription& TransformerDescription::longest_sequence(std::size_t n) { return longest_sequence_ = n, *this; }

TransformerDescription TransformerDescription::from_config(std::filesystem::path folder) {
  TransformerDescription description("");
  description.folder_ = std::move(folder);
  return description;
}
TransformerDescription& TransformerDescription::lora(Lora adapters) {
  return lora_ = std::move(adapters), adapter_.clear(), *this;
}
TransformerDescription& TransformerDescription::lora(std::filesystem::path folder, double dropout) {
  require_user(!folder.empty(), "the folder of lora() is empty; give a name");
  return lora_ = {.dropout = dropout}, adapter_ = std::move(folder), *this;
}
TransformerDescription& TransformerDescription::base_dtype(std::string type) { return base_dtype_ = std::move(type), *this; }

std::shared_ptr<const Model> TransformerDescription::build(const DeviceTraits& device) const {
  // The table of fsdp-train checks the adapters.
  TrainOptions adapters;
  OptionTable table = train_option_table(adapters, 1);
  std::vector<Field> fields = {
      {"base-dtype", "base_dtype()", base_dtype_}, {"lora-rank", "lora().rank", {}}, {"adapter", "lora(folder)", {}}};
  if (lora_) {
    fields.push_back({"lora-dropout", "lora().dropout", format("{}", lora_->dropout)});
    fields.push_back({"lora-alpha", "lora().alpha", format("{}", lora_->alpha)});
    fields.push_back({"use-rslora", "lora().rank_stabilized", format("{}", lora_->rank_stabilized)});
    fields[adapter_.empty() ? 1 : 2].value = adapter_.empty() ? format("{}", lora_->rank) : adapter_.string();
  }
  set_fields(table, fields);
  if (lora_) adapters.lora.targets = lora_->targets;  // not set in the table: patterns may contain commas
  const auto unless_zero = [](std::size_t n) {
    if (n > 0) require_size("TransformerDescription", "a size of", n);
    return n > 0 ? std::optional(n) : std::nullopt;
  };
  ConfigOverrides sizes;
  sizes.layers = unless_zero(layers_), sizes.width = unless_zero(width_), sizes.heads = unless_zero(heads_);
  sizes.vocab_size = unless_zero(vocabulary_), sizes.max_positions = unless_zero(longest_sequence_);
  const TransformerConfig base = override_config(folder_.empty() ? arch_config(arch_) : read_config(folder_), sizes);
  base.validate();
  return std::make_shared<Transformer>(with_adapters(base, adapters), device);
}

std::string TransformerDescription::text() const {
  if (!folder_.empty()) return "";  // require_same_everywhere() compares the configuration
  return format("architecture {} with layers {}, width {}, heads {}, vocabulary {} and longest sequence {}\n", arch_, layers_,
                width_, heads_, vocabulary_, longest_sequence_);
}

std::span<std::int32_t> Batch::tokens() const {
  require_user(tokens_, "tokens() is called on a batch without tokens (the model takes numbers); write inputs()");
  return inputs_;
}
std::span<float> Batch::inputs() const {
  require_user(!tokens_, "inputs() is called on a batch without numbers (the model takes tokens); write tokens()");
  return {reinterpret_cast<float*>(inputs_.data()), inputs_.size()};
}
std::span<std::int32_t> Batch::labels() const {
  require_user(labels_, "labels() is called on a batch without labels (the loss takes numbers); write targets()");
  return targets_;
}
std::span<float> Batch::targets() const {
  require_user(!labels_, "targets() is called on a batch without numeric targets (the loss takes labels); write labels()");
  return {reinterpret_cast<float*>(targets_.data()), targets_.size()};
}

double accuracy(std::span<const float> outputs, const Batch& batch) {
  const std::span<const std::int32_t> labels = batch.labels();
  const std::size_t columns = outputs.size() / labels.size();
  double right = 0;
  for (std::size_t r = 0; r < labels.size(); ++r) {
    const auto row = outputs.subspan(r * columns, columns);
    if (labels[r] >= 0 && static_cast<std::size_t>(labels[r]) >= columns)
      throw UserError(
          format("accuracy() has {} outputs for a label {} (it needs one for each class); give a metric of your own", columns,
                 labels[r]));
    const auto best = std::max_element(row.begin(), row.end());
    if (labels[r] >= 0 && !std::isnan(*best)) right += best - row.begin() == labels[r] ? 1 : 0;
  }
  return right;
}

MemoryUse estimate_memory(const ModelDescription& model, const FsdpOptions& options, int ranks, const std::string& device,
                          int threads) {
  try {
    const DeviceKind kind = kind_to_plan_for(device_choice(device));
    const TrainOptions trained = train_options_of(options, kind, ranks);
    const ShardingOptions& sharding = trained.sharding;
    if (ranks < 1) throw UserError(format("{} ranks cannot hold a model; ask for at least 1", ranks));
    if (threads < 1) throw UserError(format("{} threads cannot compute; ask for at least 1", threads));
    const auto built = model.build(traits_of(kind, static_cast<std::size_t>(threads)));
    require_transformer(*built, trained);
    check_sharding(*built, sharding, ranks);
    const Placement& placement = find_placement(sharding.strategy);
    if (placement.axis == ShardAxis::group && options.shard_group_size == 0)
      throw UserError(
          format("the shard groups of {} are the ranks of a node (shard_group_size is 0), which are known only in a job; give "
                 "shard_group_size",
                 options.sharding_strategy));
    const MeshShape mesh = mesh_shape(placement, ranks, options.shard_group_size);
    const ShardedPlan planned = plan_sharding(*built, sharding, mesh);
    return memory_of(memory_account(trained, *built, planned, mesh, {.nodes = 1, .ranks_per_node = ranks}), built->row_sizes(),
                     sharding, snapshot_of(options.background_saves, planned.plan, planned.layout, sharding, 0, ranks));
  } catch (const UserError& error) {
    throw UserError(in_words_of_api(error.what()));
  }
}

namespace {

/// Returns true if `folder` is the folder of a step that is, or was, complete.
bool is_step(const std::filesystem::path& folder) { return kind_of(folder / stored::marker_name) == PathKind::file; }

/// Throws RunError if `folder` has damaged steps, so that a program does not start over unnoticed.
void require_nothing_damaged(const std::filesystem::path& folder) {
  if (kind_of(folder) != PathKind::folder) return;
  std::vector<std::filesystem::path> damaged = damaged_checkpoints(folder, 0);
  for (const std::filesystem::path& aside : steps_set_aside(folder)) damaged.push_back(aside);
  if (!damaged.empty())
    throw RunError(
        format("{} is damaged, and no other checkpoint is left in {} (nothing was removed); restore it from a copy, or move it "
               "away to start anew",
               damaged.back().string(), folder.string()));
}

TrainOptions agreed_options(const FsdpOptions& options, Job::Parts& job) {
  return agree(*job.world, [&] { return train_options_of(options, job.rank.device->kind(), job.world->size(), job.comm); });
}

}  // namespace

struct FullyShardedDataParallel::Parts {
  enum class Function {
    step,
    evaluate,
    predict,
    predict_layer,
    measure,
    save,
    finish_save,
    load,
    restore,
    save_full,
    load_full,
    load_adapter,
    for_each_parameter,
    generate,
    freeze,
    unfreeze
  };
  static const char* name_of(Function function) {
    constexpr std::array names = {
        "step",      "evaluate",  "predict",      "predict_layer",      "measure",  "save",   "finish_save", "load", "restore",
        "save_full", "load_full", "load_adapter", "for_each_parameter", "generate", "freeze", "unfreeze"};
    return names.at(static_cast<std::size_t>(function));
  }

  Parts(std::shared_ptr<Job::Parts> of_job, const ModelDescription& description, const FsdpOptions& user_options)
      : job(std::move(of_job)), world(*job->world), options(agreed_options(user_options, *job)) {
    agree(world, [&] {
      built = description.build(traits_of(job->rank.device->kind(), job->rank.cpus.threads));
      require_transformer(*built, options);
    });
    rows = built->row_sizes();
    if (const auto* const chain = dynamic_cast<const Chain*>(built.get())) loss_of_layers = &chain->loss();
    if (const TransformerConfig* const config = built->transformer_config(); config && config->lora.rank > 0) adapted = config;
    require_same_everywhere(*built, fields_of(user_options),
                            format("{}{}generate_positions {}\nbackground_saves {}\n", text_of(user_options.param_groups),
                                   description.text(), user_options.generate_positions, user_options.background_saves));
    agree(world, [&] { check_sharding(*built, sharding, world.size()); });
    make_sharded();
    batch.resize(sharding.plan.micro_batches * numbers_of_batch());
    saves_in_background = user_options.background_saves;
    make_snapshot();
    if (!adapted) {  // else the base model and initial adapters come from load_full() or load()
      executor().initialize_parameters(options.seed);
      executor().publish_parameters();
      if (keeps_average()) executor().begin_average();
    }
    if (sharding.types.parameter == DType::f16) scaler.emplace(options.loss_scaler);
    if (options.skip_spikes > 0) spikes.emplace(options.skip_spikes);
  }

  /// Throws UserError unless all ranks pass the same options and the same model.
  void require_same_everywhere(const Model& model, const std::vector<Field>& fields, const std::string& description) {
    std::string told;  // one line for each option and parameter
    const auto add = [&](const std::string& name, const auto& value) { told += format("{} {}\n", name, value); };
    TrainOptions copy = options;
    for (const auto& [option, value] : train_option_table(copy, 1).values())
      for (const Field& field : fields)
        if (field.option == option) add(field.name, value);
    told += description;
    if (model.transformer_config()) {
      const nlohmann::json config = StoredModel(model).to_json();
      for (const auto& [key, value] : config.items()) add(key, json_text(value));
    }
    for (const Parameter& parameter : model.parameters())
      add(parameter.name,
          format("{} {} {}", to_string(parameter.shape), static_cast<int>(parameter.init.kind), parameter.init.value));
    require_same_lines(world, told, "have different options or models", "they train one model");
  }
  void require_same_path(const std::filesystem::path& path) {
    agree(world, [&] { require_user(!path.empty(), "the path is empty; give a name"); });
    require_same(world, path.string(), [&](const std::string& first) {
      throw UserError(
          format("the path is '{}' here and '{}' on rank 0 (the ranks read and write one model together); give "
                 "all of them the same",
                 path.string(), first));
    });
  }

  /// Every public function passes its work to this function, which runs it. Throws UserError if a public function is called
  /// within another one, or if not all ranks call the same function. Collective.
  void call(Function function, const std::function<void()>& work) {
    if (under_way)
      throw UserError(format("{}() is called during {}() (it would change that function's data); call it before or after",
                             name_of(function), name_of(*under_way)));
    under_way = function;
    try {
      job->together([&] {
        job->require_same_call(name_of(function), number * Job::Parts::most_functions + static_cast<std::int64_t>(function));
        if (is_lost)
          agree(world, [&] {
            throw UserError(
                "freeze() or unfreeze() failed, and there was too little memory to undo it; make a new object, and load() a "
                "checkpoint");
          });
        if (adapted && !base && function != Function::load && function != Function::restore && function != Function::load_full)
          agree(world, [&] {
            throw UserError(
                "adapters have no base model (they change a model that is trained already); call load_full() with it, or "
                "load() "
                "with a checkpoint of adapters");
          });
        try {
          work();
        } catch (const CollectiveTimeout& late) {
          throw CollectiveTimeout(format("during {}(): {}", name_of(function), late.what()), late.who, late.ranks,
                                  late.timeout_s);
        }
      });
    } catch (...) {
      under_way.reset();
      throw;
    }
    under_way.reset();
  }

  void make_sharded() {
    ++plans;
    sharded.emplace(built, sharding, world);
    sharded->allocate(*job->rank.device, options.execution, job->comm);
  }

  /// The size of the state, and so of its copy, follows from the plan.
  void make_snapshot() {
    snapshot_bytes = snapshot_of(saves_in_background, sharded->plan(), sharded->layout(), sharding, world.rank(), world.size());
    saver.set_snapshot(agree(world, [&] { return job->rank.device->allocate_staging(snapshot_bytes); }));
  }

  StepResult step(double learning_rate, const FillBatch& fill);
  double evaluate(const FillBatch& fill, bool use_ema);
  void freeze(const std::vector<std::string>& patterns, bool frozen);
  void freeze_as(const std::map<std::string, bool>& frozen);
  void warn_of_new_states(const CheckpointReader& checkpoint);
  double evaluate(const Samples& samples, bool use_ema);
  std::vector<float> predict(const std::string& layer, const FillBatch& fill, bool use_ema);
  double measure(const Metric& metric, const FillBatch& fill, bool use_ema);
  /// Runs `work`, which is collective, with the average of the parameters in their place.
  void with_parameters(bool use_ema, const std::function<void()>& work);
  void require_evaluation(bool use_ema, bool of_outputs);
  std::vector<float> outputs_of(const std::string& layer, bool use_ema);
  void load(const std::filesystem::path& folder);
  bool restore(const std::filesystem::path& folder);
  void save_full(const std::filesystem::path& path, bool use_ema);
  void load_full(const std::filesystem::path& path, const CheckpointReader* adapters = nullptr);
  void load_adapter(const std::filesystem::path& folder);
  void for_each_parameter(const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take);

  Executor& executor() { return sharded->executor(); }
  void swap_average_if(bool use_ema) {
    if (!use_ema) return;
    executor().swap_average();
    executor().publish_parameters();
  }
  bool keeps_average() const { return sharding.plan.average_weights; }
  void require_average(bool use_ema) {
    const std::int64_t users = world.sum(std::int64_t{use_ema});
    agree(world, [&] {
      require_user(users == 0 || users == world.size(),
                   "use_ema is true on some ranks only (all ranks use one model); give all ranks the same");
      require_user(!use_ema || keeps_average(),
                   "there is no average of the parameters (ema_decay is 0); set ema_decay, or leave out use_ema");
    });
  }
  const std::vector<Parameter>& parameters() const { return sharded->model().parameters(); }
  struct Selected {
    std::vector<Parameter> parameters;
    std::vector<bool> others;  // by parameter of the model: true if it is not among `parameters`
  };
  /// The parameters of the adapters, or all others.
  Selected select(bool adapters) const {
    Selected selected;
    for (const Parameter& parameter : parameters()) {
      selected.others.push_back(parameter.is_adapter != adapters);
      if (!selected.others.back()) selected.parameters.push_back(parameter);
    }
    return selected;
  }
  std::size_t inputs_of_batch() const { return sharding.batch.rows() * rows.inputs; }
  std::size_t numbers_of_batch() const { return fsdp::numbers_of_batch(rows, sharding.batch); }

  std::pair<std::span<std::int32_t>, std::span<std::int32_t>> halves_of_batch(std::size_t k) {
    std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
    return {{numbers, inputs_of_batch()}, {numbers + inputs_of_batch(), numbers_of_batch() - inputs_of_batch()}};
  }
  Batch batch_at(std::size_t k) {
    const auto [inputs, targets] = halves_of_batch(k);
    return {k, inputs, targets, rows.tokens, rows.labels};
  }

  /// The rows of a batch that count in the loss, on all ranks: their number, and the sum of their weights (Loss::weight()).
  struct Counted {
    double rows, weight;
  };
  enum class Labels { used, unused };
  /// Calls `fill` for `count` micro-batches. Returns what counts in the loss. Checks that `learning_rate` is the same on all
  /// ranks. Collective.
  Counted fill_batches(std::size_t count, const FillBatch& fill, double learning_rate = 0, Labels labels = Labels::used) {
    std::int64_t counted = 0;
    kernels::LossSum weights;
    agree(world, [&] {
      if (!fill) throw UserError("the function that writes the batch is null; give one");
      if (!(learning_rate >= 0 && std::isfinite(learning_rate)))
        throw UserError(format("the learning rate is {} (it must be at least 0); correct it", learning_rate));
      for (std::size_t k = 0; k < count; ++k) {
        const auto [inputs, targets] = halves_of_batch(k);
        if (labels == Labels::unused) std::fill(targets.begin(), targets.end(), rows.labels ? -1 : 0);
        const bool is_new = k >= filled;  // no function has written this memory yet
        const auto tensor = [&](std::span<std::int32_t> numbers, std::size_t columns) {
          return Tensor{numbers.data(), sharding.batch.rows(), columns, columns};
        };
        if (is_new) make_unwritten(tensor(inputs, rows.inputs));
        if (is_new && labels == Labels::used) make_unwritten(tensor(targets, rows.targets));
        fill(batch_at(k));
        if (is_new) {
          const std::string who = format("the function that fills micro-batch {}", k);
          if (!clear_unwritten(tensor(inputs, rows.inputs)))
            throw UserError(format("{} writes nothing to {}; write them", who, rows.tokens ? "tokens()" : "inputs()"));
          if (rows.labels)
            require_written(tensor(targets, rows.targets), "labels()", who);
          else if (labels == Labels::used && !clear_unwritten(tensor(targets, rows.targets))) {
            has_targets = false;  // a loss need not use them; if it does, they make it NaN
            std::fill(targets.begin(), targets.end(), std::bit_cast<std::int32_t>(std::nanf("")));
          }
          if (labels == Labels::used) filled = k + 1;
        }
        if (rows.tokens) require_below(inputs, rows.vocabulary, false, "token");
        if (rows.labels) {
          if (loss_of_layers) std::replace(targets.begin(), targets.end(), loss_of_layers->ignore_index(), -1);
          require_below(targets, rows.classes, true, "label");
          counted += count_rows(targets, weights);
        } else {
          counted += narrow<std::int64_t>(sharding.batch.rows());
        }
      }
    });
    // Compares the learning rates by integer sums of the two halves of their bits: if all ranks have the same bits, each sum is
    // size() times this rank's value.
    const auto bits = std::bit_cast<std::uint64_t>(learning_rate);
    const std::array mine = {narrow<std::int64_t>(bits >> 32), narrow<std::int64_t>(bits & 0xffffffff)};
    std::array sums = {counted, mine[0], mine[1], weights.units, weights.fractions};
    world.sum(sums);
    const kernels::LossSum all = {sums[3], sums[4], 0};
    const Counted result = {static_cast<double>(sums[0]), rows.labels ? all.value() : static_cast<double>(sums[0])};
    agree(world, [&] {
      if (sums[1] != mine[0] * world.size() || sums[2] != mine[1] * world.size())
        throw UserError(
            format("the learning rate is {} on rank {}, and another one on other ranks (all ranks run the same update); give "
                   "all ranks the same rate",
                   learning_rate, world.rank()));
      if (result.weight == 0 && labels == Labels::used)
        throw UserError(
            format("no row of this batch counts in the loss (all labels are {}, on all ranks); give some rows other labels",
                   result.rows == 0 ? "negative, or ignored" : "of classes with weight 0"));
    });
    return result;
  }

  /// Returns the number of rows that count, and adds their weights to `weights`.
  std::int64_t count_rows(std::span<const std::int32_t> labels, kernels::LossSum& weights) const {
    std::int64_t count = 0;
    for (std::size_t r = 0; r < labels.size(); r += rows.targets) {
      if (labels[r] < 0) continue;
      ++count;
      const double weight = loss_of_layers ? loss_of_layers->weight(labels[r]) : 1;
      if (!(weight >= 0 && weight <= 0x1p20))
        throw UserError(
            format("the loss gives label {} the weight {} (it is from 0 to {}); correct weight()", labels[r], weight, 0x1p20));
      const double units = weight * 0x1p20, whole = std::floor(units);
      weights += {static_cast<std::int64_t>(whole), static_cast<std::int64_t>((units - whole) * 0x1p32), 0};
    }
    return count;
  }

  /// Throws UserError if a number is not below `limit` (0: no limit), or is negative and `may_be_negative` is false.
  static void require_below(std::span<const std::int32_t> numbers, std::size_t limit, bool may_be_negative, const char* what) {
    if (limit == 0) return;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers[i] < 0 ? !may_be_negative : static_cast<std::size_t>(numbers[i]) >= limit)
        throw UserError(
            format("{} {} at position {} of a batch is out of the model's range (values must be below {}); correct the data",
                   what, numbers[i], i, limit));
  }

  void copy_batch(std::size_t k, std::int32_t* inputs, std::int32_t* targets) const {
    const std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
    std::copy_n(numbers, inputs_of_batch(), inputs);
    std::copy_n(numbers + inputs_of_batch(), numbers_of_batch() - inputs_of_batch(), targets);
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
            .model_folder = model_folder,
            .base = base,
            .version = version_string()};
  }

  const std::shared_ptr<Job::Parts> job;  // must outlive the other members
  const std::int64_t number = ++job->models;
  Communicator& world;
  TrainOptions options;
  const ShardingOptions& sharding = options.sharding;
  std::shared_ptr<const Model> built;
  RowSizes rows;
  const Loss* loss_of_layers = nullptr;  // of a Sequential; else null
  std::vector<std::int32_t> batch;       // for each micro-batch the inputs, then the targets
  std::size_t filled = 0;                // the micro-batches whose memory a function has written once
  bool has_targets = true;               // false: it has not written their numeric targets
  const BatchReader reader = [this](std::size_t k, std::int32_t* inputs, std::int32_t* targets) {
    copy_batch(k, inputs, targets);
  };
  Progress progress;
  std::string model_folder;                    // the Hugging Face folder of the last load_full(); else empty
  const TransformerConfig* adapted = nullptr;  // the configuration of a model with adapters; else null
  std::optional<BaseModel> base;               // of adapters, once it is loaded
  std::optional<Function> under_way;
  bool is_lost = false;               // freeze() could not allocate any plan
  std::optional<LossScaler> scaler;   // with fp16
  std::optional<SpikeFilter> spikes;  // with skip_spikes
  UserData loaded_data;
  double last_step_s = 0, last_tokens = 0;
  std::optional<ShardedModel> sharded;
  std::uint64_t plans = 0;  // how many there were: freeze() and unfreeze() make a new one
  bool saves_in_background = false;
  std::size_t snapshot_bytes = 0;
  CheckpointSaver saver{world, job->comm.timeout_s};
};

StepResult FullyShardedDataParallel::Parts::step(double learning_rate, const FillBatch& fill) {
  const Timer timer;
  const Counted counted = fill_batches(sharding.plan.micro_batches, fill, learning_rate);
  const std::size_t sequences = sharding.batch.B;
  UpdateScalars scalars = {.update = progress.update + 1,
                           .learning_rate = learning_rate,
                           .clip_norm = options.clip_norm,
                           .clip_value = options.clip_value,
                           .state_began = progress.optimizer_began,
                           .dropout = {.residual = static_cast<float>(options.dropout),
                                       .attention = static_cast<float>(options.attention_dropout),
                                       .adapters = adapted ? static_cast<float>(adapted->lora.dropout) : 0,
                                       .neftune_alpha = static_cast<float>(options.neftune_alpha),
                                       .seed = sharding.optimizer.seed,
                                       .update = progress.update + 1,
                                       .first_sequence = static_cast<std::uint64_t>(world.rank()) * sequences},
                           .loss_terms = {.label_smoothing = static_cast<float>(options.label_smoothing),
                                          .z_loss = static_cast<float>(options.z_loss)},
                           .ema_decay = progress.update + 1 > options.ema_start_update ? options.ema_decay : 0,
                           .tokens = counted.weight,
                           .loss_scale = scaler ? scaler->scale() : 1};
  if (spikes) scalars.most_loss = spikes->limits().loss, scalars.most_norm = spikes->limits().norm;
  const UpdateResult result = executor().run_update(reader, scalars);
  const bool goes_on = !scaler || scaler->update(result.finite());
  if (!result.finite() && (!scaler || !goes_on))
    agree(world, [&] {
      throw RunError(
          format("update {} has loss {} and gradient norm {} (the update was not applied{}); lower the learning rate, or look "
                 "for numbers in the data that are not finite",
                 scalars.update, result.loss, result.gradient_norm, has_targets ? "" : "; no function has written targets()"));
    });
  last_step_s = timer.seconds(), last_tokens = counted.rows;
  if (scaler) progress.loss_scaler = scaler->state();
  if (spikes && result.finite()) {
    spikes->update(result.loss, result.gradient_norm);
    progress.spikes = spikes->state();
  }
  if (!result.finite() || result.is_spike) return {.loss = result.loss, .gradient_norm = result.gradient_norm, .skipped = true};
  ++progress.update;
  progress.tokens += static_cast<std::uint64_t>(counted.rows);
  return {.loss = result.loss, .gradient_norm = result.gradient_norm};
}

void FullyShardedDataParallel::Parts::with_parameters(bool use_ema, const std::function<void()>& work) {
  swap_average_if(use_ema);
  try {
    work();
  } catch (const CollectiveError&) {  // all ranks throw it, and training may continue
    swap_average_if(use_ema);
    throw;
  } catch (...) {  // ends a job of several ranks, but is thrown to the program of one
    if (world.size() == 1) swap_average_if(use_ema);
    throw;
  }
  swap_average_if(use_ema);
}

/// Runs forward over the batch that was filled. Returns the outputs of a layer, or of the last one if `layer` is empty.
std::vector<float> FullyShardedDataParallel::Parts::outputs_of(const std::string& layer, bool use_ema) {
  const auto& chain = static_cast<const Chain&>(sharded->model());
  std::size_t stage = chain.blocks();
  if (!layer.empty()) {
    require_same_lines(world, layer, "name different layers", "they run one forward pass");
    agree(world, [&] { stage = chain.stage_of(layer); });
  }
  std::vector<float> outputs;
  outputs.reserve(sharding.batch.rows() * chain.outputs_of(stage));
  with_parameters(use_ema, [&] {
    executor().evaluate_stage(reader, stage, [&](const MemoryView& view) {
      with_element(sharding.types.parameter, [&]<class E>() {
        view.visit<E>(0, view.bytes() / sizeof(E), [&](const E* values, std::size_t n) {
          std::transform(values, values + n, std::back_inserter(outputs), [](E value) { return static_cast<float>(value); });
        });
      });
    });
  });
  return outputs;
}

void FullyShardedDataParallel::Parts::require_evaluation(bool use_ema, bool of_outputs) {
  require_average(use_ema);
  agree(world, [&] {
    require_user(!use_ema || sharding.types.master == DType::f32, "the average is evaluated only with fp32 parameters");
    require_user(!of_outputs || !sharded->model().transformer_config(),
                 "a TransformerDescription gives no outputs (the logits of all tokens are more than its plan holds); use "
                 "evaluate(), or fsdp-generate");
  });
}

std::vector<float> FullyShardedDataParallel::Parts::predict(const std::string& layer, const FillBatch& fill, bool use_ema) {
  require_evaluation(use_ema, true);
  fill_batches(1, fill, 0, Labels::unused);
  return outputs_of(layer, use_ema);
}

double FullyShardedDataParallel::Parts::measure(const Metric& metric, const FillBatch& fill, bool use_ema) {
  require_evaluation(use_ema, true);
  agree(world, [&] { require_user(metric != nullptr, "the metric is null; give a function"); });
  const double counted = fill_batches(1, fill).rows;
  const std::vector<float> outputs = outputs_of("", use_ema);
  double sum = 0;
  agree(world, [&] { sum = metric(outputs, batch_at(0)); });
  return world.sum(sum) / counted;
}

double FullyShardedDataParallel::Parts::evaluate(const FillBatch& fill, bool use_ema) {
  require_evaluation(use_ema, false);
  const double counted = fill_batches(1, fill).weight;
  kernels::LossSum sum;
  with_parameters(use_ema, [&] { sum = executor().evaluate(reader); });
  std::array words = {sum.units, sum.fractions, sum.non_finite};
  world.sum(words);
  sum = {words[0], words[1], words[2]};
  return sum.value() / counted;
}

double FullyShardedDataParallel::Parts::evaluate(const Samples& samples, bool use_ema) {
  require_evaluation(use_ema, false);
  const ValidBatches batches = agree(world, [&] {
    require_user(rows.tokens && rows.labels && rows.targets == 1 && samples.T() == sharding.batch.T,
                 "the token data do not fit the model (they are for one of tokens with this sequence_length, and one label for "
                 "each token); make a TokenData with this model");
    for (std::size_t label = 0; loss_of_layers && label < rows.classes; ++label)
      require_user(
          loss_of_layers->weight(narrow<std::int32_t>(label)) == 1,
          "evaluate() over token data does not know the weights of classes; call evaluate() with a function that fills "
          "batches");
    require_user(!loss_of_layers || loss_of_layers->ignore_index() < 0,
                 "evaluate() over token data does not know ignore_index; call evaluate() with a function that fills batches");
    const std::size_t vocabulary = vocabulary_of(rows);  // each token is a label, too
    return ValidBatches(samples, batch_cut(options, world), rows.classes > 0 ? std::min(vocabulary, rows.classes) : vocabulary);
  });
  double loss = 0;
  with_parameters(use_ema, [&] { loss = *mean_loss(executor(), batches, world); });
  return loss;
}

void FullyShardedDataParallel::Parts::load(const std::filesystem::path& folder) {
  require_same_path(folder);
  saver.finish();  // the save under way may be the latest step of the folder
  std::unique_ptr<CheckpointReader> checkpoint;
  try {
    agree(world, [&] { checkpoint = open_checkpoint(folder); });
  } catch (const CollectiveError& e) {  // all ranks read the same index: if only some fail, it is not damaged
    throw CollectiveError(e.what(), e.speaker, e.all, e.exit_code, e.damage && e.all);
  }
  const std::string update = format("{}", checkpoint->header().progress.update);
  require_same(world, update, [&](const std::string& first) {
    throw RunError(
        format("{} is of update {} here, but of update {} on rank 0 (the ranks see different folders, or another program "
               "writes to the folder); give the folder of a step that all ranks can read",
               checkpoint->description(), update, first));
  });
  require_same_files(world, [&] { return FileLists{checkpoint->files()}; });
  agree(world, [&] {
    if (const TransformerConfig* const config = sharded->model().transformer_config())
      if (const std::string how = describe_differences(*config, checkpoint->config(), "the checkpoint"); !how.empty())
        throw UserError(
            format("{} holds another model ({}); describe the model as it was saved", checkpoint->description(), how));
    const std::string& there = checkpoint->header().optimizer;
    const Optimizer& mine = *sharding.optimizer.kind;
    if (algorithm_of(mine.name) != algorithm_of(there))
      throw UserError(
          format("{} holds the state of optimizer {} (this model uses {}); choose that optimizer, or load only the parameters "
                 "with load_full()",
                 checkpoint->description(), there, mine.name));
  });
  if (adapted && !base) load_full(agree(world, [&] { return base_of(*checkpoint); }), checkpoint.get());
  std::map<std::string, bool> frozen = checkpoint->header().progress.frozen;
  frozen.insert(progress.frozen.begin(), progress.frozen.end());
  freeze_as(frozen);
  UserData user_data;
  agree(world, [&] {
    for (const auto& [name, bytes] : checkpoint->user_data_sizes()) user_data[name] = checkpoint->read_user_data(name);
    if (adapted) require_base(*checkpoint, checkpoint->header().base->sum, base->sum, base->path);
    std::vector<ShardState> wanted = executor().states();
    wanted.front() = only_units(wanted.front(), sharded->layout(), true);
    if (keeps_average() && !has_average(*checkpoint)) {
      if (checkpoint->header().progress.update > options.ema_start_update)
        throw UserError(
            format("{} has no average of the parameters for ema_decay (it was saved without one); leave out ema_decay, or set "
                   "ema_start_update to {} to begin an average with its parameters",
                   checkpoint->description(), update));
      wanted.pop_back();
    }
    load_states(*checkpoint, parameters(), sharded->layout(), sharded->shard(), wanted);
    if (keeps_average() && !has_average(*checkpoint)) executor().begin_average();
  });
  loaded_data = std::move(user_data);
  progress = checkpoint->header().progress;
  progress.frozen = std::move(frozen);
  note_states(progress, parameters(), sharded->layout().trained(),
              [&](std::size_t p) { return checkpoint->was_trained(parameters()[p].name); });
  executor().count_from(missed_updates(progress, parameters()));
  progress.data = {}, progress.schedule_end = 0;  // of a run of fsdp-train; those of the user's program are unknown
  warn_of_new_states(*checkpoint);
  model_folder = checkpoint->header().model_folder;
  if (scaler && progress.loss_scaler) scaler->restore(*progress.loss_scaler);
  if (spikes && progress.spikes) spikes->restore(*progress.spikes);
  progress.spikes = spikes ? std::optional(spikes->state()) : std::nullopt;
  executor().publish_parameters();
}

/// Sets whether the parameters that match are frozen.
void FullyShardedDataParallel::Parts::freeze(const std::vector<std::string>& patterns, bool frozen) {
  require_same(world, format("{}", fmt::join(patterns, " ")), [&](const std::string& first) {
    throw UserError(format("the patterns are '{}' here and '{}' on rank 0 (the ranks train one model); give all ranks the same",
                           fmt::join(patterns, " "), first));
  });
  std::map<std::string, bool> all = progress.frozen;
  agree(world, [&] {
    const std::vector<bool> named = named_by(patterns, frozen ? "frozen parameters" : "unfrozen parameters", parameters());
    for (std::size_t p = 0; p < named.size(); ++p)
      if (named[p]) all[parameters()[p].name] = frozen;
  });
  freeze_as(all);
  progress.frozen = std::move(all);
}

/// Freezes those parameters whose value is true, and unfreezes those whose value is false.
void FullyShardedDataParallel::Parts::freeze_as(const std::map<std::string, bool>& frozen) {
  if (frozen.empty()) return;
  const std::vector<bool> trained = sharded->layout().trained();
  ShardingOptions after = sharding;
  after.patterns.frozen = trained;
  after.patterns.frozen.flip();
  for (std::size_t p = 0; p < trained.size(); ++p)
    if (const auto found = frozen.find(parameters()[p].name); found != frozen.end()) after.patterns.frozen[p] = found->second;
  agree(world, [&] { check_sharding(*built, after, world.size()); });
  auto trains = after.patterns.frozen;
  trains.flip();
  if (trains == trained) return;
  saver.finish();
  const HostStates states = agree(world, [&] { return HostStates(*sharded); });
  const ShardingOptions before = std::exchange(options.sharding, std::move(after));
  saver.set_snapshot({});
  is_lost = true;
  try {
    make_sharded();
    make_snapshot();
    is_lost = false;
  } catch (const CollectiveError&) {
    options.sharding = before;
    make_sharded();
    make_snapshot();
    is_lost = false;
    states.copy_to(*sharded);
    executor().count_from(missed_updates(progress, parameters()));
    executor().publish_parameters();
    throw;
  }
  states.move_to(*sharded, world);
  note_states(progress, parameters(), sharded->layout().trained(), [&](std::size_t p) { return trained[p]; });
  executor().count_from(missed_updates(progress, parameters()));
  executor().publish_parameters();
}

/// Warns of parameters that were frozen when the checkpoint was written, and are trained now.
void FullyShardedDataParallel::Parts::warn_of_new_states(const CheckpointReader& checkpoint) {
  const std::vector<bool> trained = sharded->layout().trained();
  std::vector<std::string> names;
  for (std::size_t p = 0; p < trained.size(); ++p)
    if (const std::string& name = parameters()[p].name; trained[p] && !checkpoint.was_trained(name)) names.push_back(name);
  if (!names.empty() && world.rank() == 0)
    print_warnings({format("{}{} not trained when {} was saved; the optimizer state starts at zero", names.front(),
                           names.size() == 1 ? " was" : format(" and {} other parameters were", names.size() - 1),
                           checkpoint.description())});
}

bool FullyShardedDataParallel::Parts::restore(const std::filesystem::path& folder) {
  require_same_path(folder);
  agree(world, [&] {
    if (kind_of(folder) == PathKind::file)
      throw UserError(format("'{}' is a file (checkpoints are in a folder); give their folder", folder.string()));
  });
  saver.finish();  // as in load()
  for (;;) {
    const auto there = static_cast<std::int64_t>(agree(world, [&] { return can_load(folder) || is_step(folder); }));
    const std::int64_t all = world.sum(there);
    agree(world, [&] {
      if (all > 0 && there == 0)
        throw RunError(
            format("{} has no checkpoint on rank {}, but one on other ranks (the ranks see different folders); give a folder "
                   "that all ranks can read",
                   folder.string(), world.rank()));
      if (all == 0 && world.rank() == 0) require_nothing_damaged(folder);
    });
    if (all == 0) return false;
    try {
      load(folder);
    } catch (const CollectiveError& damage) {
      if (!damage.damage || is_step(folder)) throw;
      agree(world, [&] {
        if (world.rank() != 0) return;
        const auto latest = latest_checkpoint(folder);
        if (!latest) throw damage;
        print_warnings({format("{}. It was renamed to {}", damage.what(), set_aside(*latest).string())});
      });
      continue;
    }
    agree(world, [&] {  // later saves will use the names of these steps
      if (world.rank() != 0 || is_step(folder)) return;
      for (const std::filesystem::path& step : damaged_checkpoints(folder, progress.update))
        print_warnings({format("{} is damaged, and was renamed to {}", step.string(), set_aside(step).string())});
    });
    return true;
  }
}

void FullyShardedDataParallel::Parts::save_full(const std::filesystem::path& path, bool use_ema) {
  require_average(use_ema);
  const bool is_hdf5 = path.extension() == ".h5" || path.extension() == ".hdf5";
  constexpr std::array other_files = {".bin", ".ckpt", ".pt", ".pth", ".safetensors"};
  const bool is_other = std::find(other_files.begin(), other_files.end(), path.extension()) != other_files.end();
  require_same_path(path);
  // All ranks first write their shards into a temporary folder next to `path`. Then rank 0 joins them, as fsdp-consolidate
  // does.
  std::optional<ScratchFolder> shards;
  std::string folder;
  agree(world, [&] {
    if (adapted && (is_hdf5 || is_other))
      throw UserError(
          format("'{}' is no name for adapters (they are written as a folder of PEFT); choose a name without such an ending",
                 path.string()));
    if (!is_hdf5 && (is_other || !StoredModel(sharded->model()).is_transformer()))
      throw UserError(
          format("'{}' is no name for a full model (NAME.h5 is an HDF5 file; the folder of a transformer has a name without "
                 "such an ending); choose another name",
                 path.string()));
    if (world.rank() != 0) return;
    if (std::filesystem::exists(path))
      throw UserError(format("'{}' already exists; remove it, or choose another name", path.string()));
    folder = shards.emplace(path.parent_path(), path.filename().string() + ".shards").path();
  });
  folder = world.broadcast(folder, 0);
  std::vector<ShardState> states = {executor().parameters()};
  if (use_ema) states.push_back(executor().average().value());
  const std::filesystem::path step = save_checkpoint(folder, header(), sharded->layout(), states, world);
  agree(world, [&] {
    if (world.rank() != 0) return;
    ConsolidateOptions to;
    if (!is_hdf5) to.format = adapted ? &peft_format() : &safetensors_format();
    consolidate(*CheckpointReader::open(step, Verify::yes, use_ema ? Weights::average : Weights::trained), path, to);
  });
}

/// `adapters`: the checkpoint that will be loaded over this base model; null if there is none.
void FullyShardedDataParallel::Parts::load_full(const std::filesystem::path& path, const CheckpointReader* adapters) {
  const Selected of_base = select(false);
  const auto source = agree(world, [&] {
    const bool is_plain = loss_of_layers && kind_of(path) == PathKind::file && hdf5_format().is(path);
    auto opened = is_plain ? open_plain(path, StoredModel(*built)) : open_model(path);
    if (adapted)
      if (const std::string how = describe_differences(without_adapters(*adapted), opened->config(), "that model");
          !how.empty())
        throw UserError(
            format("{} is another model than the adapters' base model ({}); give that model, or describe this one by "
                   "TransformerDescription::from_config()",
                   opened->description(), how));
    find_mismatch(*opened, of_base.parameters);
    return opened;
  });
  require_same_files(world, [&] { return FileLists{source->files()}; });
  std::optional<BaseModel> found;
  if (adapted) found = {path_to_record(*source, path), content_sum(*source, world)};
  agree(world, [&] {
    if (adapters) require_base(*adapters, adapters->header().base->sum, found->sum, source->description());
    load_parameters(*source, parameters(), sharded->layout(), sharded->shard(), executor().parameters(), of_base.others);
    executor().initialize_parameters(options.seed, of_base.others);
    if (keeps_average()) executor().begin_average();
  });
  base = std::move(found);
  const bool is_hugging_face = kind_of(path / "config.json") == PathKind::file;
  model_folder = is_hugging_face ? std::filesystem::absolute(path).string() : "";
  executor().publish_parameters();
}

void FullyShardedDataParallel::Parts::load_adapter(const std::filesystem::path& folder) {
  require_same_path(folder);
  std::optional<Adapter> opened;
  agree(world, [&] {
    require_user(adapted != nullptr,
                 "load_adapter() needs a model with adapters (this one has none); describe them with lora()");
    opened = open_adapter(folder, without_adapters(*adapted));
  });
  require_same_files(world, [&] { return FileLists{opened->tensors->files()}; });
  agree(world, [&] {
    const Adapter& adapter = *opened;
    const Selected adapters = select(true);
    find_mismatch(*adapter.tensors, adapters.parameters, {},
                  "give lora() the rank and targets of these adapters, or their folder");
    if (adapter.lora.scale() != adapted->lora.scale())
      throw UserError(
          format("{} has adapters with scale {} (those of the model have scale {}); give lora() their alpha, or their folder",
                 adapter.tensors->description(), adapter.lora.scale(), adapted->lora.scale()));
    require_base(*adapter.tensors, adapter.base_sum, base->sum, base->path);
    std::vector<std::string> warnings;
    adapter.compare_base_type(adapted->base_type, &warnings);
    if (world.rank() == 0) print_warnings(warnings);
    load_parameters(*adapter.tensors, parameters(), sharded->layout(), sharded->shard(),
                    only_units(executor().parameters(), sharded->layout(), true), adapters.others);
    if (keeps_average()) executor().begin_average();
  });
  executor().publish_parameters();
}

void FullyShardedDataParallel::Parts::for_each_parameter(
    const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take) {
  const Layout& layout = sharded->layout();
  const ShardState mine = executor().parameters();
  const bool is_first_copy = sharded->mesh().replicate->rank() == 0;
  const auto stream = make_host_stream();
  for (std::size_t parameter = 0; parameter < parameters().size(); ++parameter) {
    if (adapted && !parameters()[parameter].is_adapter) continue;
    // Each element is set on exactly one rank and zero on all others, so that the sum over the ranks is the whole parameter.
    std::vector<float> whole(numel(parameters()[parameter].shape));
    for (std::size_t u = 0; u < layout.units().size() && is_first_copy; ++u) {
      if (!layout.units()[u].sharded && sharded->shard() != 0) continue;
      for (const Slice& slice : layout.slices(u, sharded->shard()))
        if (slice.parameter == parameter)
          mine.read(u, slice.shard_offset, std::span(whole).subspan(slice.range.begin, slice.range.size()));
    }
    world.all_reduce(*stream, whole.data(), whole.size(), DType::f32);
    agree(world, [&] {
      if (world.rank() == 0) take(parameters()[parameter].name, parameters()[parameter].shape, whole);
    });
  }
}

FullyShardedDataParallel::FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options) {
  const std::shared_ptr<Job::Parts> parts = job.parts();
  parts->together([&] { parts_ = std::make_unique<Parts>(parts, model, options); });
}
FullyShardedDataParallel::FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options)
    : FullyShardedDataParallel(*std::make_unique<Job>(), model, options) {}
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

StepResult FullyShardedDataParallel::step(double learning_rate, const FillBatch& fill) {
  StepResult result;
  parts_->call(Parts::Function::step, [&] { result = parts_->step(learning_rate, fill); });
  return result;
}

double FullyShardedDataParallel::evaluate(const TokenData& data, bool use_ema) {
  double loss = 0;
  parts_->call(Parts::Function::evaluate, [&] {
    const Samples* samples = nullptr;
    agree(parts_->world, [&] { samples = &data.samples(); });
    loss = parts_->evaluate(*samples, use_ema);
  });
  return loss;
}

double FullyShardedDataParallel::evaluate(const FillBatch& fill, bool use_ema) {
  double loss = 0;
  parts_->call(Parts::Function::evaluate, [&] { loss = parts_->evaluate(fill, use_ema); });
  return loss;
}

std::vector<float> FullyShardedDataParallel::predict(const FillBatch& fill, bool use_ema) {
  std::vector<float> outputs;
  parts_->call(Parts::Function::predict, [&] { outputs = parts_->predict("", fill, use_ema); });
  return outputs;
}

std::vector<float> FullyShardedDataParallel::predict_layer(const std::string& layer, const FillBatch& fill, bool use_ema) {
  std::vector<float> outputs;
  parts_->call(Parts::Function::predict_layer, [&] {
    agree(parts_->world, [&] { require_user(!layer.empty(), "the name of the layer is empty; give a name"); });
    outputs = parts_->predict(layer, fill, use_ema);
  });
  return outputs;
}

double FullyShardedDataParallel::measure(const Metric& metric, const FillBatch& fill, bool use_ema) {
  double result = 0;
  parts_->call(Parts::Function::measure, [&] { result = parts_->measure(metric, fill, use_ema); });
  return result;
}

std::uint64_t FullyShardedDataParallel::updates() const { return parts_->progress.update; }

std::filesystem::path FullyShardedDataParallel::save(const std::filesystem::path& folder) { return save(folder, {}); }

std::filesystem::path FullyShardedDataParallel::save(const std::filesystem::path& folder, const CheckpointOptions& options) {
  Parts& p = *parts_;
  std::filesystem::path step;
  p.call(Parts::Function::save, [&] {
    p.require_same_path(folder);
    step = p.saver.save(folder, options, p.header(), p.progress, p.sharded->layout(), p.executor().states());
  });
  return step;
}

void FullyShardedDataParallel::finish_save() {
  parts_->call(Parts::Function::finish_save, [&] { parts_->saver.finish(); });
}

bool FullyShardedDataParallel::restore(const std::filesystem::path& folder) {
  bool is_restored = false;
  parts_->call(Parts::Function::restore, [&] { is_restored = parts_->restore(folder); });
  return is_restored;
}

std::optional<std::string> FullyShardedDataParallel::data(const std::string& name) const {
  const auto found = parts_->loaded_data.find(name);
  return found == parts_->loaded_data.end() ? std::nullopt : std::optional(found->second);
}

void FullyShardedDataParallel::load(const std::filesystem::path& folder) {
  parts_->call(Parts::Function::load, [&] { parts_->load(folder); });
}

bool FullyShardedDataParallel::can_load(const std::filesystem::path& folder) {
  return kind_of(folder) == PathKind::folder && latest_checkpoint(folder).has_value();
}

void FullyShardedDataParallel::save_full(const std::filesystem::path& path, bool use_ema) {
  parts_->call(Parts::Function::save_full,
               [&] { parts_->save_full(path.has_filename() ? path : path.parent_path(), use_ema); });
}

void FullyShardedDataParallel::load_full(const std::filesystem::path& path) {
  Parts& p = *parts_;
  p.call(Parts::Function::load_full, [&] {
    p.require_same_path(path);
    p.load_full(path);
  });
}

void FullyShardedDataParallel::load_adapter(const std::filesystem::path& folder) {
  parts_->call(Parts::Function::load_adapter, [&] { parts_->load_adapter(folder); });
}

void FullyShardedDataParallel::for_each_parameter(
    const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take) {
  Parts& p = *parts_;
  p.call(Parts::Function::for_each_parameter, [&] {
    agree(p.world, [&] { require_user(take != nullptr, "the function that receives the parameters is null; give one"); });
    p.for_each_parameter(take);
  });
}

void FullyShardedDataParallel::decode(bool use_ema, const std::function<void(const Inside&)>& work) {
  Parts& p = *parts_;
  p.call(Parts::Function::generate, [&] {
    p.require_evaluation(use_ema, false);
    agree(p.world, [&] {
      require_user(p.sharding.plan.cache.positions > 0,
                   "the model has no memory for generation (generate_positions is 0, or this is a Sequential); set it");
    });
    p.with_parameters(use_ema, [&] { work(inside()); });
  });
}

void FullyShardedDataParallel::freeze(const std::vector<std::string>& patterns) {
  parts_->call(Parts::Function::freeze, [&] { parts_->freeze(patterns, true); });
}

void FullyShardedDataParallel::unfreeze(const std::vector<std::string>& patterns) {
  parts_->call(Parts::Function::unfreeze, [&] { parts_->freeze(patterns, false); });
}

MemoryUse FullyShardedDataParallel::memory() const {
  const Parts& p = *parts_;
  return memory_of(memory_account(p.options, *p.sharded, p.world, *p.job->rank.node), p.rows, p.sharding, p.snapshot_bytes);
}
std::size_t FullyShardedDataParallel::peak_bytes() const {
  return parts_->executor().peak_bytes() + memory().total - parts_->sharded->plan().peak_bytes;
}
FullyShardedDataParallel::Inside FullyShardedDataParallel::inside() const {
  Parts& p = *parts_;
  return {*p.job, p.options, p.rows, *p.sharded, p.plans, p.progress, p.saver, p.model_folder, p.last_step_s, p.last_tokens};
}
std::string FullyShardedDataParallel::plan() const {
  return describe_operations(parts_->sharded->plan(), parts_->sharded->plan().update, parts_->sharded->layout());
}

}  // namespace fsdp
