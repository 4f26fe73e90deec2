#include "api/fully_sharded.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <boost/core/demangle.hpp>
#include <nlohmann/json.hpp>

#include "api/data.hpp"
#include "api/job_parts.hpp"
#include "api/model_inside.hpp"
#include "api/own_optimizer.hpp"
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
#include "engine/engine.hpp"
#include "engine/find_step.hpp"
#include "engine/fit.hpp"
#include "engine/mean_loss.hpp"
#include "engine/memory.hpp"
#include "engine/rank_data.hpp"
#include "engine/same_files.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/scratch_folder.hpp"
#include "layers/chain.hpp"
#include "layers/place.hpp"
#include "layers/proof.hpp"
#include "layers/tape.hpp"
#include "nn/patterns.hpp"
#include "nn/transformer.hpp"
#include "options/model_options.hpp"
#include "options/options.hpp"
#include "record/group_norms.hpp"
#include "run/gemm_algorithms.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

namespace {

void require_user(bool ok, const char* problem) {
  if (!ok) throw UserError(problem);
}
void require_user(bool ok, const std::string& problem) { require_user(ok, problem.c_str()); }

/// The lines of a recording with the name of the layer or loss before each.
std::string lines_of(const std::string& name, const std::string& recording) {
  std::string all;
  std::istringstream lines(recording);
  for (std::string line; std::getline(lines, line);) all += format("{}, {}\n", name, line);
  return all;
}

std::vector<Field> fields_of(const FsdpOptions& o) {
  const auto text = []<class T>(const T& value) {
    if constexpr (std::is_same_v<T, std::size_t>)
      return format("{}", as_given(value));
    else
      return format("{}", value);
  };
  const auto if_given = [](const auto& value) { return value ? std::optional(format("{}", *value)) : std::nullopt; };
  const auto if_any = [](const std::string& value) { return value.empty() ? std::nullopt : std::optional(value); };
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
          {"attention-backend", "attention_backend", o.attention_backend},
          {"checkpoint-activations", "activation_checkpointing", text(o.activation_checkpointing)},
          {"checkpoint-policy", "checkpoint_policy", o.checkpoint_policy},
          {"checkpoint-every", "checkpoint_every", text(o.checkpoint_every)},
          {"recompute-num-layers", "recompute_num_layers", o.recompute_num_layers},
          {"memory-limit", "memory_limit", o.memory_limit == 0 ? std::nullopt : std::optional(text(o.memory_limit))},
          {"offload-activations", "offload_activations", text(o.offload_activations)},
          {"offload-params", "offload_parameters", o.offload_parameters},
          {"offload-optimizer", "offload_optimizer", if_any(o.offload_optimizer)},
          {"nvme-path", "nvme_path", if_any(o.nvme_path)},
          {"gemm-algorithms", "gemm_algorithms", if_any(o.gemm_algorithms)},
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
  if (options.chooses_blocks) options.recompute_to_fit = options.memory_limit;
  if (o.generate_positions > 0) options.sharding.plan.cache = {o.batch_size, o.generate_positions};
  if (o.eval_batch_size > (std::size_t{1} << 30) / options.sharding.batch.T)
    throw UserError(
        format("eval_batch_size {} with sequence_length {} is too large (a batch has 2^30 rows at most); lower one of them",
               as_given(o.eval_batch_size), options.sharding.batch.T));
  options.sharding.evaluated_sequences = o.eval_batch_size;
  return options;
}

/// Throws UserError for options that only a transformer has.
void require_transformer(const Model& model, const TrainOptions& o) {
  require_user(
      model.transformer_config || (o.label_smoothing == 0 && o.z_loss == 0 && o.neftune_alpha == 0),
      "label_smoothing, z_loss and neftune_alpha are for a TransformerDescription (this model is a Sequential); give the first "
      "two to cross_entropy(), and leave them out here");
  const auto refuse = [&](bool given, const char* what, const char* instead) {
    if (given && !model.transformer_config)
      throw UserError(format("{} is for a TransformerDescription (this model is a Sequential); {}", what, instead));
  };
  refuse(o.dropout > 0, "dropout", "leave it out");
  refuse(o.attention_dropout > 0, "attention_dropout", "leave it out");
  refuse(o.attention_backend != AttentionBackend::own, "attention_backend", "leave it out");
  refuse(o.execution.table_type != DType::f32, "buffer_dtype", "leave it out");
  refuse(o.sharding.plan.checkpoint_policy == CheckpointPolicy::selective, "checkpoint_policy \"selective\"",
         "choose \"block\", which computes whole layers again");
  refuse(o.sharding.plan.cache.positions > 0, "generate_positions", "leave it out, because a Sequential generates no texts");
}

/// check_sharding(), also for the batches of evaluations.
void check_batches(const Model& model, const ShardingOptions& sharding, int ranks) {
  check_sharding(model, sharding, ranks);
  const BatchShape evaluated = sharding.evaluated();
  for (const BatchShape& shape : {sharding.batch, evaluated})  // recorded layers are recorded, which may fail
    if (!model.transformer_config) model.sizes(shape, sharding.types.parameter, sharding.plan.cache);
  if (evaluated.B == sharding.batch.B) return;
  try {
    model.check_batch(evaluated, sharding.types.parameter, sharding.plan.cache);
  } catch (const UserError& error) {
    throw UserError(format("with eval_batch_size {}: {}", evaluated.B, error.what()));
  }
}

/// Returns how many numbers (integers or fp32) the inputs and targets of a micro-batch have.
std::size_t numbers_of_batch(const RowSizes& rows, BatchShape shape) {
  return rows.inputs_of(shape) + shape.rows() * rows.targets;
}
/// Returns the same for all micro-batches of an update, or for the batch of an evaluation if that has more.
std::size_t numbers_of_batches(const RowSizes& rows, const ShardingOptions& sharding) {
  return std::max(sharding.plan.micro_batches * numbers_of_batch(rows, sharding.batch),
                  numbers_of_batch(rows, sharding.evaluated()));
}

/// Adds to `account` the memory into which the program writes batches.
MemoryUse memory_of(MemoryAccount account, const RowSizes& rows, const ShardingOptions& sharding) {
  account.batch += numbers_of_batches(rows, sharding) * sizeof(std::int32_t);
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
  add("staging of the file for state", account.file, true);
  add("staging of collectives", account.through_host, true);
  add("batches of an update", account.batch, true);
  add("copy that a save writes", account.snapshot, true);
  if (account.on_disk > 0) use.parts.emplace_back("state in a file, on the disk", account.on_disk);
  use.total = account.total();
  return use;
}

}  // namespace

Sequential& Sequential::add(std::string name, LayerPtr layer) {
  if (!layer) throw UserError(format("layer '{}' is a null pointer (there is no layer); give one", name));
  layers_.emplace_back(std::move(name), std::move(layer));
  return *this;
}

Sequential& Sequential::towers(NamedTowers towers) {
  require_user(towers_.empty(), "towers() is called twice (a model has one list of towers); give all towers in one call");
  require_user(layers_.empty(), "towers() is called after add() (towers come first); call it before");
  require_user(!towers.empty(), "towers() has no towers; give at least one");
  for (auto tower = towers.begin(); tower != towers.end(); ++tower) {
    const std::string &name = tower->first, &input = tower->second.input_.name;
    require_user(!name.empty(), format("the tower of input '{}' has no name (names of parameters need it); give one", input));
    require_user(
        !tower->second.input_.kind.integers || !tower->second.parts_.empty(),
        format("the tower '{}' has no layers (its input '{}' is integers); add a layer that takes tokens", name, input));
    for (auto other = towers.begin(); other != tower; ++other) {
      require_user(other->first != name, format("two towers have the name '{}'; give each a unique name", name));
      require_user(other->second.input_.name != input,
                   format("two towers have the input '{}' (a tower has its own); give each a unique name", input));
    }
  }
  towers_ = std::move(towers);
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
  auto chain = std::make_shared<Chain>(without_repeats(layers_), loss_name_, loss_, device, tied, towers_);
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
    if (layer.gathers() > 0) all += format("layer {} gathers {} numbers\n", name, layer.gathers());
    all += lines_of("layer " + name, recorded_text(layer));
    if (const auto* const whole = dynamic_cast<const Composition*>(&layer))
      for (const auto& [inner, part] : whole->layers()) add_layer(inner.empty() ? name : name + "." + inner, *part);
  };
  for (const auto& [name, tower] : towers_) {
    const auto& [input, kind, length] = tower.input_;
    all += format("tower {} of input '{}', {} rows of {} {}{}\n", name, input, length, kind.columns,
                  kind.integers ? "integers" : "numbers", kind.limit > 0 ? format(" below {}", kind.limit) : "");
    for (const Tower::Part& part : tower.parts_) {
      add_layer(name + "." + part.name, *part.layer);
      all += format("layer {}.{} with {} rows for an example\n", name, part.name, part.rows);
    }
  }
  for (const auto& [name, layer] : layers_) add_layer(name, *layer);
  for (const auto& [name, same_as] : tied_) all += format("{} is {}\n", name, same_as);
  if (!loss_) return all;
  const Loss& loss = *loss_;
  add("loss", typeid(loss));
  all += lines_of("loss", recorded_text(loss));
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
  require_user(
      adapters.modules_to_save.empty() && adapters.tokens.empty() && adapters.head_tokens.empty() && adapters.vocab == 0,
      "lora() has modules_to_save or tokens (only fsdp-train trains them); leave them out");
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
  if (lora_) {  // not set in the table: patterns may contain commas
    adapters.lora.targets = lora_->targets, adapters.lora.layers = lora_->layers;
    adapters.lora.ranks = lora_->ranks, adapters.lora.alphas = lora_->alphas;
  }
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

std::span<std::int32_t> Batch::find(std::string_view input, bool integers) const {
  const char* const function = integers ? "tokens" : "inputs";
  const bool has_names = !of_model_.front().name.empty();
  std::size_t begin = 0;
  for (const NamedInput& one : of_model_) {
    const std::size_t n = sequences_ * one.numbers();
    if (one.name == input && one.kind.integers == integers) return inputs_.subspan(begin, n);
    if (one.name == input && has_names)
      throw UserError(
          format("'{0}' are {1}; call {2}(\"{0}\")", input, integers ? "numbers" : "tokens", integers ? "inputs" : "tokens"));
    if (one.name == input)
      throw UserError(format("{}() is called on a batch without {} (the model takes {}); write {}()", function,
                             integers ? "tokens" : "numbers", integers ? "numbers" : "tokens", integers ? "inputs" : "tokens"));
    begin += n;
  }
  if (input.empty())
    throw UserError(
        format("{}() is called without a name (the batch has the inputs {}); name one", function, names_of(of_model_)));
  throw UserError(format("the batch has no input '{}' (it has {}); call {}() with {} name", input,
                         has_names ? names_of(of_model_) : "one without a name", function, has_names ? "another" : "no"));
}
std::span<std::int32_t> Batch::tokens(std::string_view input) const { return find(input, true); }
std::span<float> Batch::inputs(std::string_view input) const {
  const std::span<std::int32_t> found = find(input, false);
  return {reinterpret_cast<float*>(found.data()), found.size()};
}
std::span<std::int32_t> Batch::tokens() const { return tokens(""); }
std::span<float> Batch::inputs() const { return inputs(""); }
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
    DeviceTraits traits = traits_of(kind, threads);
    traits.ranks = static_cast<std::size_t>(ranks);
    auto built = model.build(traits);
    require_transformer(*built, trained);
    if (const TransformerConfig* const config = built->transformer_config) {
      traits.cudnn_head_size =
          plan_attention(trained.attention_backend, *config, sharding, trained.attention_dropout, kind).cudnn_head_size;
      if (traits.cudnn_head_size > 0) built = model.build(traits);
    }
    check_batches(*built, sharding, ranks);
    if (trained.recompute_num_layers == "auto" && trained.memory_limit == 0)
      throw UserError(
          "recompute_num_layers \"auto\" takes the memory that is free in a job (here is none); give memory_limit, or a "
          "number");
    const Placement& placement = find_placement(sharding.strategy);
    if (placement.axis == ShardAxis::group && options.shard_group_size == 0)
      throw UserError(
          format("the shard groups of {} are the ranks of a node (shard_group_size is 0), which are known only in a job; give "
                 "shard_group_size",
                 options.sharding_strategy));
    const MeshShape mesh = mesh_shape(placement, ranks, options.shard_group_size);
    return memory_of(
        fit_plan(built, trained, mesh, {.nodes = 1, .ranks_per_node = ranks}, {.snapshot = options.background_saves}).memory,
        built->row_sizes, sharding);
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

/// Returns the options of fsdp-train that keep steps, checked by its table.
SaveOptions kept_steps(const std::filesystem::path& folder, const CheckpointOptions& o) {
  const auto unless_zero = [](std::size_t n) { return n > 0 ? std::optional(format("{}", n)) : std::nullopt; };
  TrainOptions options;
  OptionTable table = train_option_table(options, 1);
  set_fields(table, {{"keep-last", "keep_last", unless_zero(o.keep_last)},
                     {"keep-every", "keep_every", unless_zero(o.keep_every)},
                     {"files-per-checkpoint", "files_per_checkpoint",
                      o.files_per_checkpoint.empty() ? std::nullopt : std::optional(o.files_per_checkpoint)}});
  options.save.keep_best = "loss";
  options.save.folder = folder;
  return options.save;
}

/// One line for each option.
std::string text_of_saved(const CheckpointOptions& o) {
  std::string text =
      format("keep_last {}\nkeep_every {}\nfiles_per_checkpoint {}\n", o.keep_last, o.keep_every, o.files_per_checkpoint);
  text += o.validation_loss ? format("validation_loss {}\n", *o.validation_loss) : "no validation_loss\n";
  for (const auto& [name, bytes] : o.data)
    text += format("data '{}' of {} bytes with checksum {}\n", name, bytes.size(),
                   checksum_text(checksum(bytes.data(), bytes.size())));
  return text;
}

Weights weights_of(bool use_ema) { return use_ema ? Weights::average : Weights::trained; }

/// The files that all ranks must have to load a checkpoint.
FileLists files_of(const CheckpointReader* checkpoint) { return checkpoint ? FileLists{checkpoint->files()} : FileLists(); }

TrainOptions agreed_options(const FsdpOptions& options, Job::Parts& job) {
  TrainOptions agreed =
      agree(*job.world, [&] { return train_options_of(options, job.rank.device->kind(), job.world->size(), job.comm); });
  const std::size_t free = free_memory_of_a_rank(job.rank, *job.world);
  if (agreed.recompute_num_layers == "auto" && agreed.memory_limit == 0) agreed.recompute_to_fit = free;
  return agreed;
}

}  // namespace

struct FullyShardedDataParallel::Parts {
  /// What a public function needs of a model with adapters.
  enum class Needs { base_model, nothing };

  Parts(std::shared_ptr<Job::Parts> of_job, const ModelDescription& description, const FsdpOptions& user_options)
      : job(std::move(of_job)),
        world(*job->world),
        options(agreed_options(user_options, *job)),
        checks_first(user_options.check_first_update),
        engine(checked_model(description, user_options), options, world, user_options.background_saves,
               {.warn = [](const std::string& text) { print_warnings({text}); }}) {
    engine.attention = library_of_attention;
    rows = engine.model().model().row_sizes;
    model_inputs = rows.named;
    if (model_inputs.empty()) model_inputs = {{"", {rows.inputs, rows.tokens, rows.vocabulary}, sharding.batch.T}};
    if (const auto* const chain = dynamic_cast<const Chain*>(&engine.model().model())) {
      loss_of_layers = &chain->user_loss();
      if (user_options.check_first_update) proof = &chain->proof();
    }
    if (const TransformerConfig* const config = engine.model().model().transformer_config; config && config->lora.rank > 0)
      adapted = config;
    if (!user_options.norm_patterns.empty()) agree(world, [&] { set_norms(user_options); });
    engine.allocate(*job->rank.device);
    batch.resize(numbers_of_batches(rows, sharding));
    if (adapted) return;  // the base model and initial adapters come from load_full() or load()
    executor().initialize_parameters(options.seed);
    if (engine.keeps_average()) executor().begin_average();
    engine.start();
  }

  std::shared_ptr<const Model> checked_model(const ModelDescription& description, const FsdpOptions& user_options) {
    DeviceTraits traits = traits_of(job->rank.device->kind(), job->rank.cpus.threads);
    traits.ranks = static_cast<std::size_t>(world.size());
    auto model = agree(world, [&] {
      auto built = description.build(traits);
      require_transformer(*built, options);
      return built;
    });
    require_same_everywhere(
        *model, fields_of(user_options),
        format("{}{}eval_batch_size {}\ngenerate_positions {}\nbackground_saves {}\nnorm_patterns {}\ncheck_first_update {}\n",
               text_of(user_options.param_groups), description.text(), user_options.eval_batch_size,
               user_options.generate_positions, user_options.background_saves, fmt::join(user_options.norm_patterns, " "),
               user_options.check_first_update));
    agree(world, [&] { check_batches(*model, options.sharding, world.size()); });
    if (!model->transformer_config) return model;
    const AttentionChoice attention = choose_attention(options.attention_backend, *model->transformer_config, options.sharding,
                                                       options.attention_dropout, *job->rank.device, world);
    if (!attention.why.empty() && world.rank() == 0) print_warnings({"attention by the kernels of fsdp: " + attention.why});
    library_of_attention = attention.library;
    traits.cudnn_head_size = attention.cudnn_head_size;
    if (traits.cudnn_head_size > 0) model = agree(world, [&] { return description.build(traits); });
    return model;
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
    if (model.transformer_config) {
      const nlohmann::json config = StoredModel(model).to_json();
      for (const auto& [key, value] : config.items()) add(key, json_text(value));
    }
    for (const Parameter& parameter : model.parameters())
      add(parameter.name,
          format("{} {} {}{}", to_string(parameter.shape), static_cast<int>(parameter.init.kind), parameter.init.value,
                 parameter.momentum      ? format(" state {}", *parameter.momentum)
                 : parameter.is_constant ? " constant"
                                         : ""));
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

  /// Every public function passes its name and its work to this function, which runs the work and returns its result. Throws
  /// UserError if a public function is called within another one, or if not all ranks call the same function. Collective.
  template <class Work>
  std::invoke_result_t<Work, Parts&> call(const char* function, const Work& work, Needs needs = Needs::base_model) {
    if constexpr (std::is_void_v<std::invoke_result_t<Work, Parts&>>) {
      run(function, needs, [&] { work(*this); });
    } else {
      std::optional<std::invoke_result_t<Work, Parts&>> result;
      run(function, needs, [&] { result.emplace(work(*this)); });
      return *std::move(result);
    }
  }
  void run(const char* function, Needs needs, const std::function<void()>& work) {
    if (under_way)
      throw UserError(format("{}() is called during {}() (it would change that function's data); call it before or after",
                             function, under_way));
    under_way = function;
    try {
      job->together([&] {
        job->require_same_call(function, number * Job::Parts::most_functions + Job::Parts::code_of(function));
        if (engine.is_lost())
          agree(world, [&] {
            throw UserError(
                "freeze(), unfreeze() or input_gradients() failed, and there was too little memory to undo it; make a new "
                "object, and load() a checkpoint");
          });
        if (adapted && !engine.base && needs == Needs::base_model)
          agree(world, [&] {
            throw UserError(
                "adapters have no base model (they change a model that is trained already); call load_full() with it, or "
                "load() "
                "with a checkpoint of adapters");
          });
        try {
          work();
        } catch (const CollectiveTimeout& late) {
          throw CollectiveTimeout(format("during {}(): {}", function, late.what()), late.who, late.ranks, late.timeout_s);
        }
      });
    } catch (...) {
      under_way = nullptr;
      throw;
    }
    under_way = nullptr;
  }

  /// Throws CollectiveError if the average is asked for and cannot be used. Collective.
  void require_evaluation(bool use_ema, bool of_outputs);
  std::vector<float> outputs_of(const FoundLayer& found, bool use_ema, const std::string& layer = "");
  FoundLayer last_layer() const { return {engine.model().model().blocks.size()}; }
  std::vector<float> floats_of(const MemoryView& view) const;
  std::vector<float> input_gradients(const FillBatch& fill, const std::string& input);
  void load(std::unique_ptr<CheckpointReader> checkpoint);
  /// `adapters`: the checkpoint that will be loaded over this base model; null if there is none.
  LoadResult load_full(const std::filesystem::path& path, const LoadOptions& how, const CheckpointReader* adapters = nullptr);
  void set_norms(const FsdpOptions& of_user) {
    require_user(of_user.clip_value == 0,
                 "norm_patterns do not go with clip_value (an update limits gradients in place); leave out one of them");
    named_norms.resize(parameters().size());
    const std::vector<bool> named = named_by(of_user.norm_patterns, "norm_patterns", parameters());
    for (std::size_t p = 0; p < named.size(); ++p)
      if (named[p] && !parameters()[p].is_state()) named_norms[p] = parameters()[p].name;
  }
  void require_same_options(const LoadOptions& how);
  void set_parameter(const std::string& name, std::span<const float> values);
  /// Sets whether the parameters that match are frozen.
  void freeze(const std::vector<std::string>& patterns, bool frozen);

  Executor& executor() { return engine.executor(); }
  void require_average(bool use_ema) {
    const std::int64_t users = world.sum(std::int64_t{use_ema});
    agree(world, [&] {
      require_user(users == 0 || users == world.size(),
                   "use_ema is true on some ranks only (all ranks use one model); give all ranks the same");
      require_user(!use_ema || engine.keeps_average(),
                   "there is no average of the parameters (ema_decay is 0); set ema_decay, or leave out use_ema");
    });
  }
  const std::vector<Parameter>& parameters() const { return engine.parameters(); }
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
  std::size_t inputs_of_batch() const { return rows.inputs_of(shape); }
  std::size_t numbers_of_batch() const { return fsdp::numbers_of_batch(rows, shape); }

  std::pair<std::span<std::int32_t>, std::span<std::int32_t>> halves_of_batch(std::size_t k) {
    std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
    return {{numbers, inputs_of_batch()}, {numbers + inputs_of_batch(), numbers_of_batch() - inputs_of_batch()}};
  }
  /// Calls `work(input, numbers)` for each input and its numbers among those of a batch.
  template <class Work>
  void for_each_input(std::span<std::int32_t> all, const Work& work) const {
    for (const NamedInput& input : model_inputs) {
      work(input, all.first(shape.B * input.numbers()));
      all = all.subspan(shape.B * input.numbers());
    }
  }
  Batch batch_at(std::size_t k) {
    const auto [numbers, targets] = halves_of_batch(k);
    return {k, shape.B, model_inputs, numbers, targets, rows.labels};
  }

  /// The rows of a batch that count in the loss, on all ranks: their number, and the sum of their weights (Loss::weight()).
  struct Counted {
    double rows, weight;
  };
  enum class Labels { used, unused };
  /// Calls `fill` for the batch of an evaluation, as fill_batches() does.
  Counted fill_evaluated(const FillBatch& fill, Labels labels = Labels::used, std::optional<std::size_t> only = {}) {
    return fill_batches(1, sharding.evaluated(), fill, {}, labels, only);
  }
  /// Calls `fill` for `count` batches of this shape. Returns what counts in the loss. `rate`: the learning rate, if it is for
  /// an update; it must be the same on all ranks. `only`: the number of the input that is used; the others are 0 if `fill` does
  /// not write them. Collective.
  Counted fill_batches(std::size_t count, BatchShape of_each, const FillBatch& fill, std::optional<double> rate = {},
                       Labels labels = Labels::used, std::optional<std::size_t> only = {}) {
    const double learning_rate = rate.value_or(0);
    shape = of_each;
    std::size_t& filled = shape.B == sharding.batch.B ? filled_for_updates : filled_for_evaluations;
    std::int64_t counted = 0;
    kernels::LossSum weights;
    agree(world, [&] {
      if (!fill) throw UserError("the function that writes the batch is null; give one");
      if (!(learning_rate >= 0 && std::isfinite(learning_rate)))
        throw UserError(format("the learning rate is {} (it must be at least 0); correct it", learning_rate));
      for (std::size_t k = 0; k < count; ++k) {
        const auto [numbers, targets] = halves_of_batch(k);
        if (labels == Labels::unused) std::fill(targets.begin(), targets.end(), rows.labels ? -1 : 0);
        // No function has written this memory yet, or only one that was for evaluations.
        const bool checks = checks_first && (k >= filled || (rate && !has_updated));
        const auto is_used = [&](const NamedInput& input) { return !only || &input == &model_inputs[*only]; };
        const auto tensor = [](std::span<std::int32_t> all, std::size_t columns) {
          return Tensor{all.data(), all.size() / std::max<std::size_t>(columns, 1), columns, columns};
        };
        for_each_input(numbers, [&](const NamedInput& input, std::span<std::int32_t> own) {
          if (!is_used(input))
            std::ranges::fill(own, 0);
          else if (checks)
            fill_unwritten(tensor(own, input.kind.columns), Unwritten::batch);
        });
        if (checks && labels == Labels::used) fill_unwritten(tensor(targets, rows.targets), Unwritten::batch);
        fill(batch_at(k));
        const auto require_written = [&](const Tensor& part, const std::string& name, bool may_be_unused) {
          const Remaining left = find_unwritten(part, Unwritten::batch);
          if (left.count == 0 || (may_be_unused && left.count == part.numel())) return left.count == 0;
          throw UserError(format("the function that fills micro-batch {} {}", k, describe(left, part, name.c_str())));
        };
        for_each_input(numbers, [&](const NamedInput& input, std::span<std::int32_t> own) {
          if (!is_used(input)) return;
          const std::string name = input.name.empty() ? "" : format("\"{}\"", input.name);
          if (checks)
            require_written(tensor(own, input.kind.columns), format("{}({})", input.kind.integers ? "tokens" : "inputs", name),
                            false);
          if (input.kind.integers)
            require_below(own, input.kind.limit, false, "token",
                          input.name.empty() ? "a batch" : format("input '{}'", input.name));
        });
        if (checks && labels == Labels::used &&
            !require_written(tensor(targets, rows.targets), rows.labels ? "labels()" : "targets()", !rows.labels)) {
          has_targets = false;  // a loss need not use numeric targets; if it does, they make it NaN
          std::fill(targets.begin(), targets.end(), std::bit_cast<std::int32_t>(std::nanf("")));
        }
        if (labels == Labels::used) filled = std::max(filled, k + 1);
        if (rows.labels) {
          if (loss_of_layers) std::replace(targets.begin(), targets.end(), loss_of_layers->ignore_index(), -1);
          require_below(targets, rows.classes, true, "label", "a batch");
          counted += count_rows(targets, weights);
        } else {
          counted += narrow<std::int64_t>(shape.rows());
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
  static void require_below(std::span<const std::int32_t> numbers, std::size_t limit, bool may_be_negative, const char* what,
                            const std::string& of) {
    if (limit == 0) return;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers[i] < 0 ? !may_be_negative : static_cast<std::size_t>(numbers[i]) >= limit)
        throw UserError(
            format("{} {} at position {} of {} is out of the model's range (values must be below {}); correct the data", what,
                   numbers[i], i, of, limit));
  }

  void copy_batch(std::size_t k, std::int32_t* inputs, std::int32_t* targets) const {
    const std::int32_t* const numbers = batch.data() + k * numbers_of_batch();
    std::copy_n(numbers, inputs_of_batch(), inputs);
    std::copy_n(numbers + inputs_of_batch(), numbers_of_batch() - inputs_of_batch(), targets);
  }

  /// Runs an update. The first one is checked: see Proof. Collective.
  UpdateResult run_update(const UpdateScalars& scalars);
  void require_same_function();
  /// Runs an evaluation of stages from `first` to `last`, in which each stage is checked once. Collective.
  template <class Work>
  void evaluate(std::size_t first, std::size_t last, const Work& work) {
    const auto begin = proven_stages.begin() + narrow<std::ptrdiff_t>(first),
               end = proven_stages.begin() + narrow<std::ptrdiff_t>(last) + 1;
    if (!proof || update_is_proven || std::all_of(begin, end, std::identity())) return work();
    proof->begin(Proof::Of::evaluation);
    work();
    end_proof();
    std::fill(begin, end, true);
  }
  template <class Work>
  void evaluate(const Work& work) {
    evaluate(0, proven_stages.size() - 1, work);
  }
  void end_proof() {
    proof->end();
    agree(world, [&] {
      if (const std::string problems = proof->problems(); !problems.empty()) throw UserError(problems);
    });
  }

  [[noreturn]] void refuse(const UpdateScalars& scalars, const UpdateResult& result) {
    const std::string problem = describe_refused(engine.model(), world, scalars, result);
    agree(world, [&] {
      throw RunError(format("{}{}; lower the learning rate, or look for numbers in the data that are not finite", problem,
                            has_targets ? "" : " (no function has written targets())"));
    });
    throw InternalError("agree() throws on all ranks");
  }

  const std::shared_ptr<Job::Parts> job;  // must outlive the other members
  const std::int64_t number = ++job->models;
  Communicator& world;
  const TrainOptions options;
  const bool checks_first;           // FsdpOptions::check_first_update
  std::string library_of_attention;  // set by checked_model(), which makes the model of `engine`
  Engine engine;
  const ShardingOptions& sharding = engine.options().sharding;
  RowSizes rows;
  std::vector<NamedInput> model_inputs;  // if there is only one without a name, its length is T
  const Loss* loss_of_layers = nullptr;  // of a Sequential; else null
  Proof* proof = nullptr;                // of its layers, if the first update is checked
  bool has_updated = false, update_is_proven = false;
  std::vector<bool> proven_stages = std::vector<bool>(engine.model().model().blocks.size() + 2);  // by an evaluation
  std::vector<std::int32_t> batch;  // for each micro-batch the inputs, then the targets
  BatchShape shape;                 // of each of them
  // The batches whose memory a function has written once. Evaluations with another shape have a number of their own.
  std::size_t filled_for_updates = 0, filled_for_evaluations = 0;
  bool has_targets = true;  // false: it has not written their numeric targets
  const BatchReader reader = [this](std::size_t k, std::int32_t* inputs, std::int32_t* targets) {
    copy_batch(k, inputs, targets);
  };
  const TransformerConfig* adapted = nullptr;     // the configuration of a model with adapters; else null
  const char* under_way = nullptr;                // the public function that runs
  std::optional<Validations> validations_before;  // those before the last save()
  UserData loaded_data;
  std::vector<std::string> named_norms;  // by parameter, its name if its norm is asked for; empty if there are no patterns
  std::optional<GroupNorms> norms;       // of the current plan
  double last_step_s = 0, last_tokens = 0;
  std::size_t last_positions = 0;
};

UpdateResult FullyShardedDataParallel::Parts::run_update(const UpdateScalars& scalars) {
  if (!proof || update_is_proven) return executor().run_update(reader, scalars);
  require_same_function();
  proof->begin(Proof::Of::update, parameters().size());
  const UpdateResult result = executor().run_update(reader, scalars, [&] {
    std::vector<std::int64_t> untouched = proof->untouched();
    world.sum(untouched);
    proof->note_untouched(untouched, world.size());
    end_proof();
  });
  update_is_proven = true;
  return result;
}

/// Throws CollectiveError if some layers or the loss give other numbers on some rank, for the first micro-batch of rank 0.
void FullyShardedDataParallel::Parts::require_same_function() {
  if (world.size() == 1) return;
  std::vector<std::int32_t> first(batch.begin(), batch.begin() + narrow<std::ptrdiff_t>(numbers_of_batch()));
  world.broadcast(first.data(), first.size() * sizeof(std::int32_t), 0);
  proof->begin(Proof::Of::comparison);
  executor().evaluate([&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
    // As often as the batch of an evaluation has room for it.
    const auto repeat = [&](std::span<const std::int32_t> numbers, std::int32_t* to, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) to[i] = numbers[i % numbers.size()];
    };
    const BatchShape evaluated = sharding.evaluated();
    for_each_input(std::span(first).first(inputs_of_batch()), [&](const NamedInput& input, std::span<std::int32_t> own) {
      repeat(own, inputs, evaluated.B * input.numbers());
      inputs += evaluated.B * input.numbers();
    });
    repeat(std::span(first).subspan(inputs_of_batch()), targets, evaluated.rows() * rows.targets);
  });
  std::vector<double> of_first = proof->samples();
  world.broadcast(of_first.data(), of_first.size() * sizeof(double), 0);
  end_proof();
  agree(world, [&] {
    if (const std::string problem = proof->describe_difference(of_first); !problem.empty()) throw UserError(problem);
  });
}

/// Runs forward over the batch that was filled. Returns the outputs of a layer.
std::vector<float> FullyShardedDataParallel::Parts::outputs_of(const FoundLayer& found, bool use_ema,
                                                               const std::string& layer) {
  std::vector<float> outputs;
  InnerOutput inner{found.place.value_or(0)};
  engine.with(weights_of(use_ema), [&] {
    evaluate(found.first, found.stage, [&] {
      executor().evaluate_stage(
          reader, found.stage, [&](const MemoryView& view) { outputs = found.place ? outputs : floats_of(view); },
          found.place ? &inner : nullptr, found.first);
    });
  });
  if (!found.place) {
    outputs.resize(outputs.size() - shape.B * found.carried);
    return outputs;
  }
  agree(world, [&] {
    require_user(!inner.numbers.empty(),
                 format("the layer '{}' has no outputs (the layer around it has not run it); name another layer", layer));
  });
  return floats_of(MemoryView(inner.numbers));
}

/// Converts activations to fp32.
std::vector<float> FullyShardedDataParallel::Parts::floats_of(const MemoryView& view) const {
  std::vector<float> numbers;
  with_element(sharding.types.parameter, [&]<class E>() {
    numbers.reserve(view.bytes() / sizeof(E));
    view.visit<E>(0, view.bytes() / sizeof(E), [&](const E* values, std::size_t n) {
      std::transform(values, values + n, std::back_inserter(numbers), [](E value) { return static_cast<float>(value); });
    });
  });
  return numbers;
}

std::vector<float> FullyShardedDataParallel::Parts::input_gradients(const FillBatch& fill, const std::string& input) {
  require_same_lines(world, input, "name different inputs", "they run one backward pass");
  const FoundLayer found = agree(world, [&] {
    require_user(loss_of_layers && !rows.tokens,
                 "input_gradients() is for models of numbers (tokens have no gradient); leave it out");
    return static_cast<const Chain&>(engine.model().model()).find_input(input);
  });
  const double counted = fill_batches(1, sharding.batch, fill).weight;
  norms.reset();
  engine.plan_input_gradients();
  const double loss_scale = engine.next_update(0, counted).loss_scale;
  std::vector<float> gradients;
  evaluate([&] {
    executor().input_gradients(
        reader, counted, loss_scale, [&](const MemoryView& view) { gradients = floats_of(view); }, found.stage);
  });
  gradients.resize(gradients.size() - shape.B * found.carried);
  for (float& gradient : gradients) gradient = static_cast<float>(gradient / loss_scale);
  return gradients;
}

void FullyShardedDataParallel::Parts::require_evaluation(bool use_ema, bool of_outputs) {
  require_average(use_ema);
  agree(world, [&] {
    if (use_ema && sharding.types.master != DType::f32)
      throw UserError(
          format("the average can be evaluated only with fp32 parameters (master_dtype is {}); leave out use_ema, or "
                 "set master_dtype to fp32",
                 name_of(sharding.types.master)));
    require_user(!of_outputs || !engine.model().model().transformer_config,
                 "a TransformerDescription gives no outputs (the logits of all tokens are more than its plan holds); use "
                 "evaluate(), or fsdp-generate");
  });
}

void FullyShardedDataParallel::Parts::load(std::unique_ptr<CheckpointReader> checkpoint) {
  std::vector<std::string> warnings(1);
  agree(world, [&] {
    if (const TransformerConfig* const config = engine.model().model().transformer_config)
      if (const std::string how = describe_differences(*config, checkpoint->config(), "the checkpoint"); !how.empty())
        throw UserError(
            format("{} holds another model ({}); describe the model as it was saved", checkpoint->description(), how));
    require_same_optimizer(sharding.optimizer, *checkpoint, "load only the parameters with load_full()");
    warnings.front() = fsdp::require_average(options, *checkpoint);
  });
  if (adapted && !engine.base) load_full(agree(world, [&] { return base_of(*checkpoint); }), {}, checkpoint.get());
  std::map<std::string, bool> frozen = checkpoint->header().progress.frozen;
  frozen.insert(engine.progress().frozen.begin(), engine.progress().frozen.end());
  norms.reset();
  if (!frozen.empty()) engine.freeze(frozen);
  UserData user_data;
  agree(world, [&] {
    for (const auto& [name, bytes] : checkpoint->user_data_sizes()) user_data[name] = checkpoint->read_user_data(name);
    if (adapted) require_base(*checkpoint, checkpoint->header().base->sum, engine.base->sum, engine.base->path);
    engine.load_states(*checkpoint, true);
  });
  loaded_data = std::move(user_data);
  Progress& progress = engine.progress();
  progress = checkpoint->header().progress;
  progress.frozen = std::move(frozen);
  progress.data = {}, progress.schedule_end = 0;  // of a run of fsdp-train; those of the user's program are unknown
  validations_before = progress.validations;
  engine.model_folder = checkpoint->header().model_folder;
  engine.restore_policy();
  engine.start([&](std::size_t p) { return checkpoint->was_trained(parameters()[p].name); });
  warnings.push_back(describe_changed_algorithms(checkpoint->header().gemm_algorithms, engine.model().gemm_algorithms()));
  if (!is_host(job->rank.device->kind()))
    if (const std::string changed = describe_changed_attention(checkpoint->header().attention, engine.attention);
        !changed.empty())
      warnings.push_back(changed + "; attention_backend sets it");
  warnings.push_back(describe_new_states(engine.model().layout(), parameters(), *checkpoint));
  std::erase(warnings, "");
  for (std::string& warning : warnings) warning = in_words_of_api(std::move(warning));
  if (world.rank() == 0) print_warnings(warnings);
}

LoadResult FullyShardedDataParallel::Parts::load_full(const std::filesystem::path& path, const LoadOptions& how,
                                                      const CheckpointReader* adapters) {
  require_same_options(how);
  const Selected of_base = select(false);
  Mismatch mismatch;
  const auto source = agree(world, [&] {
    const Verify verify = how.verify ? Verify::yes : Verify::no;
    const bool is_plain = loss_of_layers && has_plain_tensors(path);
    std::vector<RenamedTensor> rules;
    for (const auto& [theirs, ours] : how.names) rules.push_back({theirs, ours});
    require_user(!adapted || (rules.empty() && how.ignore_missing.empty() && how.ignore_unexpected.empty()),
                 "the base model of adapters is loaded as a whole (a checkpoint has only its path and checksum); leave out "
                 "LoadOptions::names, ignore_missing and ignore_unexpected");
    auto opened = rename_tensors(is_plain ? open_plain(path, verify) : open_model(path, nullptr, verify), rules);
    if (adapted)
      if (const std::string differences = describe_differences(without_adapters(*adapted), opened->config(), "that model");
          !differences.empty())
        throw UserError(
            format("{} is another model than the adapters' base model ({}); give that model, or describe this one by "
                   "TransformerDescription::from_config()",
                   opened->description(), differences));
    mismatch = find_mismatch(*opened, of_base.parameters, {how.ignore_missing, how.ignore_unexpected},
                             "correct the model, or LoadOptions::names, ignore_missing and ignore_unexpected");
    return opened;
  });
  require_same_files(world, [&] { return FileLists{source->files()}; });
  std::optional<BaseModel> found;
  if (adapted) found = {path_to_record(*source, path), content_sum(*source, world)};
  agree(world, [&] {
    if (adapters) require_base(*adapters, adapters->header().base->sum, found->sum, source->description());
    load_parameters(*source, parameters(), engine.model().layout(), engine.model().shard(), executor().parameters(),
                    adapted ? of_base.others : mismatch.fresh);
    if (adapted) executor().initialize_parameters(options.seed, of_base.others);
    if (engine.keeps_average()) executor().begin_average();
  });
  engine.base = std::move(found);
  const bool is_hugging_face = kind_of(path / "config.json") == PathKind::file;
  engine.model_folder = is_hugging_face ? std::filesystem::absolute(path).string() : "";
  executor().publish_parameters();
  LoadResult result = {{}, {}, std::move(mismatch.unexpected)};
  for (std::size_t p = 0; p < of_base.parameters.size(); ++p)
    (mismatch.fresh[p] ? result.missing : result.loaded).push_back(of_base.parameters[p].name);
  for (auto* const names : {&result.loaded, &result.missing, &result.unexpected}) std::ranges::sort(*names);
  return result;
}

void FullyShardedDataParallel::Parts::require_same_options(const LoadOptions& how) {
  std::string told = format("verify {}\n", how.verify);
  for (const auto& [theirs, ours] : how.names) told += format("names {} {}\n", theirs, ours);
  for (const std::string& glob : how.ignore_missing) told += format("ignore_missing {}\n", glob);
  for (const std::string& glob : how.ignore_unexpected) told += format("ignore_unexpected {}\n", glob);
  require_same_lines(world, told, "have different LoadOptions", "they load one model");
}

void FullyShardedDataParallel::Parts::set_parameter(const std::string& name, std::span<const float> values) {
  require_same(world, name, [&](const std::string& first) {
    throw UserError(format("the parameter is '{}' here and '{}' on rank 0 (the ranks train one model); give all ranks the same",
                           name, first));
  });
  const auto found = std::ranges::find(parameters(), name, &Parameter::name);
  const std::size_t index = static_cast<std::size_t>(found - parameters().begin());
  agree(world, [&] {
    require_user(found != parameters().end(),
                 format("the model has no parameter '{}' (its first one is '{}'); for_each_parameter() names them", name,
                        parameters().front().name));
    require_user(!adapted || found->is_adapter,
                 format("'{}' is a parameter of the base model, which adapters do not change; name one of an adapter", name));
    if (world.rank() != 0) return;
    require_user(values.size() == numel(found->shape),
                 format("'{}' has {} numbers ({}), and {} are given; give all, row-major", name, numel(found->shape),
                        to_string(found->shape), values.size()));
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    require_user(bad == values.end(),
                 format("element {} of the values for '{}' is not finite; give finite numbers", bad - values.begin(), name));
  });
  std::vector<float> whole(numel(found->shape));
  if (world.rank() == 0) std::ranges::copy(values, whole.begin());
  world.broadcast(whole.data(), whole.size() * sizeof(float), 0);
  const Layout& layout = engine.model().layout();
  const ShardState mine = executor().parameters();
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const Slice& slice : layout.slices(u, engine.model().shard()))
      if (slice.parameter == index)
        mine.write(u, slice.shard_offset, std::span(whole).subspan(slice.range.begin, slice.range.size()));
  executor().publish_parameters();
}

void FullyShardedDataParallel::Parts::freeze(const std::vector<std::string>& patterns, bool frozen) {
  require_same(world, format("{}", fmt::join(patterns, " ")), [&](const std::string& first) {
    throw UserError(format("the patterns are '{}' here and '{}' on rank 0 (the ranks train one model); give all ranks the same",
                           fmt::join(patterns, " "), first));
  });
  std::map<std::string, bool> all = engine.progress().frozen;
  agree(world, [&] {
    const std::vector<bool> named = named_by(patterns, frozen ? "frozen parameters" : "unfrozen parameters", parameters());
    for (std::size_t p = 0; p < named.size(); ++p) {
      if (!named[p]) continue;
      const Parameter& parameter = parameters()[p];
      if (!frozen && parameter.is_constant && std::ranges::find(patterns, parameter.name) != patterns.end())
        throw UserError(format("'{}' is a constant of its layer (it is never trained); leave it out", parameter.name));
      if (!parameter.is_constant) all[parameter.name] = frozen;
    }
  });
  norms.reset();
  if (!all.empty()) engine.freeze(all);
  engine.progress().frozen = std::move(all);
}

FullyShardedDataParallel::FullyShardedDataParallel(Job& job, const ModelDescription& model, const FsdpOptions& options) {
  const std::shared_ptr<Job::Parts> parts = job.parts();
  parts->together([&] { parts_ = std::make_unique<Parts>(parts, model, options); });
}
FullyShardedDataParallel::FullyShardedDataParallel(const ModelDescription& model, const FsdpOptions& options)
    : FullyShardedDataParallel(*std::make_unique<Job>(), model, options) {}
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

StepResult FullyShardedDataParallel::step(double learning_rate, const FillBatch& fill) {
  return parts_->call(__func__, [&](Parts& p) {
    const Timer timer;
    const Parts::Counted counted = p.fill_batches(p.sharding.plan.micro_batches, p.sharding.batch, fill, learning_rate);
    const UpdateScalars scalars = p.engine.next_update(learning_rate, counted.weight);
    const UpdateResult result = p.run_update(scalars);
    p.has_updated = true;
    const Verdict verdict = p.engine.judge(result, counted.rows);
    if (verdict == Verdict::refused) p.refuse(scalars, result);
    p.last_step_s = timer.seconds(), p.last_tokens = counted.rows, p.last_positions = p.executor().positions();
    StepResult done{.loss = result.loss, .gradient_norm = result.gradient_norm, .skipped = verdict == Verdict::left_out};
    if (!p.named_norms.empty()) {
      if (!p.norms) p.norms.emplace(p.engine.model(), p.named_norms);
      done.gradient_norms = p.norms->measure(scalars.loss_scale);
    }
    return done;
  });
}

double FullyShardedDataParallel::evaluate(const TokenData& data, bool use_ema) {
  return parts_->call(__func__, [&](Parts& p) {
    p.require_evaluation(use_ema, false);
    const ValidBatches batches = agree(p.world, [&] {
      const Samples& samples = data.samples();
      require_user(
          p.rows.tokens && p.rows.inputs == 1 && p.rows.labels && p.rows.targets == 1 && samples.T() == p.sharding.batch.T,
          "the token data do not fit the model (they are for one of tokens with this sequence_length, and one label for "
          "each token); make a TokenData with this model");
      for (std::size_t label = 0; p.loss_of_layers && label < p.rows.classes; ++label)
        require_user(
            p.loss_of_layers->weight(narrow<std::int32_t>(label)) == 1,
            "evaluate() over token data does not know the weights of classes; call evaluate() with a function that fills "
            "batches");
      require_user(!p.loss_of_layers || p.loss_of_layers->ignore_index() < 0,
                   "evaluate() over token data does not know ignore_index; call evaluate() with a function that fills batches");
      const std::size_t vocabulary = vocabulary_of(p.rows);  // each token is a label, too
      BatchCut cut = batch_cut(p.sharding, p.world);
      cut.B = p.sharding.evaluated().B;
      return ValidBatches(samples, cut, p.rows.classes > 0 ? std::min(vocabulary, p.rows.classes) : vocabulary);
    });
    double loss = 0;
    p.engine.with(weights_of(use_ema), [&] { p.evaluate([&] { loss = mean_loss(p.executor(), batches, p.world)->loss; }); });
    return loss;
  });
}

double FullyShardedDataParallel::evaluate(const FillBatch& fill, bool use_ema) {
  return parts_->call(__func__, [&](Parts& p) {
    p.require_evaluation(use_ema, false);
    const double counted = p.fill_evaluated(fill).weight;
    kernels::LossSum sum;
    p.engine.with(weights_of(use_ema), [&] { p.evaluate([&] { sum = p.executor().evaluate(p.reader); }); });
    const double loss = all_ranks(sum, p.world).value() / counted;
    if (std::isnan(loss))  // on all ranks
      agree(p.world, [&] {
        require_user(p.has_targets, "the loss is not a number (no function has written targets()); write targets()");
      });
    return loss;
  });
}

std::vector<float> FullyShardedDataParallel::predict(const FillBatch& fill, bool use_ema) {
  return parts_->call(__func__, [&](Parts& p) {
    p.require_evaluation(use_ema, true);
    p.fill_evaluated(fill, Parts::Labels::unused);
    return p.outputs_of(p.last_layer(), use_ema);
  });
}

std::vector<float> FullyShardedDataParallel::predict_layer(const std::string& layer, const FillBatch& fill, bool use_ema) {
  return parts_->call(__func__, [&](Parts& p) {
    agree(p.world, [&] { require_user(!layer.empty(), "the name of the layer is empty; give a name"); });
    p.require_evaluation(use_ema, true);
    require_same_lines(p.world, layer, "name different layers", "they run one forward pass");
    const FoundLayer found =
        agree(p.world, [&] { return static_cast<const Chain&>(p.engine.model().model()).find_layer(layer); });
    p.fill_evaluated(fill, Parts::Labels::unused, found.input);
    return p.outputs_of(found, use_ema, layer);
  });
}

std::vector<float> FullyShardedDataParallel::input_gradients(const FillBatch& fill, const std::string& input) {
  return parts_->call(__func__, [&](Parts& p) { return p.input_gradients(fill, input); });
}

double FullyShardedDataParallel::measure(const Metric& metric, const FillBatch& fill, bool use_ema) {
  return parts_->call(__func__, [&](Parts& p) {
    p.require_evaluation(use_ema, true);
    agree(p.world, [&] { require_user(metric != nullptr, "the metric is null; give a function"); });
    const double counted = p.fill_evaluated(fill).rows;
    const std::vector<float> outputs = p.outputs_of(p.last_layer(), use_ema);
    double sum = 0;
    agree(p.world, [&] { sum = metric(outputs, p.batch_at(0)); });
    return p.world.sum(sum) / counted;
  });
}

std::uint64_t FullyShardedDataParallel::updates() const { return parts_->engine.progress().update; }

std::filesystem::path FullyShardedDataParallel::save(const std::filesystem::path& folder) { return save(folder, {}); }

std::filesystem::path FullyShardedDataParallel::save(const std::filesystem::path& folder, const CheckpointOptions& options) {
  return parts_->call(__func__, [&](Parts& p) {
    p.require_same_path(folder);
    p.engine.saver().finish();
    require_same_lines(p.world, text_of_saved(options), "save different things",
                       "a checkpoint has one copy of them for any number of ranks");
    SaveOptions kept = agree(p.world, [&] {
      check(options.data);
      if (options.validation_loss && std::isinf(*options.validation_loss) && *options.validation_loss < 0)
        throw UserError("validation_loss is -inf (it would be the smallest loss for ever); give a finite loss, or none");
      return kept_steps(folder, options);
    });
    count_files(kept, p.world, *p.job->rank.node);
    if (!p.engine.saver().is_saved(kept, p.engine.progress().update)) {
      std::optional<Validations>& validations = p.engine.progress().validations;
      if (p.engine.saver().has_failed()) validations = p.validations_before;  // that step does not exist
      p.validations_before = validations;
      if (options.validation_loss) note_validation(validations, p.engine.progress().update, *options.validation_loss);
    }
    CheckpointHeader header = p.engine.header();
    if (!options.data.empty() && p.world.rank() == 0) header.user_data = std::make_shared<const UserData>(options.data);
    return p.engine.save(kept, header, false);
  });
}

void FullyShardedDataParallel::finish_save() {
  parts_->call(__func__, [](Parts& p) { p.engine.saver().finish(); });
}

bool FullyShardedDataParallel::restore(const std::filesystem::path& folder) {
  return parts_->call(
      __func__,
      [&](Parts& p) {
        p.require_same_path(folder);
        agree(p.world, [&] {
          if (kind_of(folder) == PathKind::file)
            throw UserError(format("'{}' is a file (checkpoints are in a folder); give their folder", folder.string()));
        });
        p.engine.saver().finish();  // the save under way may be the latest step of the folder
        const bool names_step = is_step(folder);
        const auto open = [&] {
          return names_step || can_load(folder) ? open_checkpoint(folder, nullptr, Verify::no) : nullptr;
        };
        const auto none = [&](const std::vector<std::string>& passed_over) {
          print_warnings(passed_over);
          require_nothing_damaged(folder);
        };
        FoundStep found = find_step(
            p.world, {.open = open, .folder = names_step ? std::filesystem::path() : folder, .none = none, .files = files_of});
        if (!found.checkpoint) return false;
        const std::uint64_t update = found.checkpoint->header().progress.update;
        p.load(std::move(found.checkpoint));
        agree(p.world, [&] {
          if (p.world.rank() != 0) return;
          if (!names_step) set_damaged_aside(folder, update, found.passed_over);  // later saves will use these names
          print_warnings(found.passed_over);
        });
        return true;
      },
      Parts::Needs::nothing);
}

std::optional<std::string> FullyShardedDataParallel::data(const std::string& name) const {
  const auto found = parts_->loaded_data.find(name);
  return found == parts_->loaded_data.end() ? std::nullopt : std::optional(found->second);
}

void FullyShardedDataParallel::load(const std::filesystem::path& folder) {
  parts_->call(
      __func__,
      [&](Parts& p) {
        p.require_same_path(folder);
        p.engine.saver().finish();
        p.load(find_step(p.world, {.open = [&] { return open_checkpoint(folder, nullptr, Verify::no); }, .files = files_of})
                   .checkpoint);
      },
      Parts::Needs::nothing);
}

bool FullyShardedDataParallel::can_load(const std::filesystem::path& folder) {
  return kind_of(folder) == PathKind::folder && latest_checkpoint(folder).has_value();
}

void FullyShardedDataParallel::save_full(const std::filesystem::path& given, bool use_ema) {
  parts_->call(__func__, [&](Parts& p) {
    const std::filesystem::path path = given.has_filename() ? given : given.parent_path();
    p.require_average(use_ema);
    const bool is_hdf5 = path.extension() == ".h5" || path.extension() == ".hdf5";
    constexpr std::array other_files = {".bin", ".ckpt", ".pt", ".pth", ".safetensors"};
    const bool is_other = std::find(other_files.begin(), other_files.end(), path.extension()) != other_files.end();
    p.require_same_path(path);
    // All ranks first write their shards into a temporary folder next to `path`. Then rank 0 joins them, as fsdp-consolidate
    // does.
    std::optional<ScratchFolder> shards;
    std::string folder;
    agree(p.world, [&] {
      if (p.adapted && (is_hdf5 || is_other))
        throw UserError(format(
            "save_full() cannot write adapters to '{}' (they become a folder of PEFT); choose a name without such an ending",
            path.string()));
      if (!is_hdf5 && (is_other || !StoredModel(p.engine.model().model()).is_transformer()))
        throw UserError(format(
            "save_full() cannot write '{}' (NAME.h5 becomes an HDF5 file; a transformer can also become a folder, with a "
            "name without such an ending); choose another name",
            path.string()));
      if (p.world.rank() != 0) return;
      if (std::filesystem::exists(path))
        throw UserError(format("'{}' already exists; remove it, or choose another name", path.string()));
      folder = shards.emplace(path.parent_path(), path.filename().string() + ".shards").path();
    });
    folder = p.world.broadcast(folder, 0);
    std::vector<ShardState> states = {p.executor().parameters()};
    if (use_ema) states.push_back(p.executor().average().value());
    const std::filesystem::path step = save_checkpoint(folder, p.engine.header(), p.engine.model().layout(), states, p.world);
    agree(p.world, [&] {
      if (p.world.rank() != 0) return;
      ConsolidateOptions to;
      if (!is_hdf5) to.format = p.adapted ? &peft_format() : &safetensors_format();
      consolidate(*CheckpointReader::open(step, Verify::yes, use_ema ? Weights::average : Weights::trained), path, to);
    });
  });
}

void FullyShardedDataParallel::set_parameter(const std::string& name, std::span<const float> values) {
  parts_->call(__func__, [&](Parts& p) { p.set_parameter(name, values); });
}

LoadResult FullyShardedDataParallel::load_full(const std::filesystem::path& path, const LoadOptions& how) {
  return parts_->call(
      __func__,
      [&](Parts& p) {
        p.require_same_path(path);
        return p.load_full(path, how);
      },
      Parts::Needs::nothing);
}

void FullyShardedDataParallel::load_adapter(const std::filesystem::path& folder) {
  parts_->call(__func__, [&](Parts& p) {
    p.require_same_path(folder);
    std::optional<Adapter> opened;
    agree(p.world, [&] {
      require_user(p.adapted != nullptr,
                   "load_adapter() needs a model with adapters (this one has none); describe them with lora()");
      opened = open_adapter(folder, without_adapters(*p.adapted));
    });
    require_same_files(p.world, [&] { return FileLists{opened->tensors->files()}; });
    agree(p.world, [&] {
      const Adapter& adapter = *opened;
      const Parts::Selected adapters = p.select(true);
      find_mismatch(*adapter.tensors, adapters.parameters, {},
                    "give lora() the rank and targets of these adapters, or their folder");
      for (const Parameter& parameter : adapters.parameters) {
        const std::string module = parameter.name.substr(0, parameter.name.find(".lora_"));
        const double there = adapter.lora.scale_of(module), here = p.adapted->lora.scale_of(module);
        if (there != here)
          throw UserError(format(
              "{} has adapters with scale {} (those of the model have scale {}); give lora() their alpha, or their folder",
              adapter.tensors->description(), there, here));
      }
      require_base(*adapter.tensors, adapter.base_sum, p.engine.base->sum, p.engine.base->path);
      std::vector<std::string> warnings;
      adapter.compare_base_type(p.adapted->base_type, &warnings);
      if (p.world.rank() == 0) print_warnings(warnings);
      load_parameters(*adapter.tensors, p.parameters(), p.engine.model().layout(), p.engine.model().shard(),
                      only_units(p.executor().parameters(), p.engine.model().layout(), true), adapters.others);
      if (p.engine.keeps_average()) p.executor().begin_average();
    });
    p.executor().publish_parameters();
  });
}

void FullyShardedDataParallel::for_each_parameter(
    const std::function<void(const std::string&, const Shape&, std::span<const float>)>& take) {
  parts_->call(__func__, [&](Parts& p) {
    agree(p.world, [&] { require_user(take != nullptr, "the function that receives the parameters is null; give one"); });
    const Layout& layout = p.engine.model().layout();
    const ShardState mine = p.executor().parameters();
    const bool is_first_copy = p.engine.model().mesh().replicate().rank() == 0;
    const auto stream = make_host_stream();
    for (std::size_t parameter = 0; parameter < p.parameters().size(); ++parameter) {
      if (p.adapted && !p.parameters()[parameter].is_adapter) continue;
      // Each element is set on exactly one rank and zero on all others, so that the sum over the ranks is the whole parameter.
      std::vector<float> whole(numel(p.parameters()[parameter].shape));
      for (std::size_t u = 0; u < layout.units().size() && is_first_copy; ++u) {
        if (!layout.units()[u].sharded && p.engine.model().shard() != 0) continue;
        for (const Slice& slice : layout.slices(u, p.engine.model().shard()))
          if (slice.parameter == parameter)
            mine.read(u, slice.shard_offset, std::span(whole).subspan(slice.range.begin, slice.range.size()));
      }
      p.world.all_reduce(*stream, whole.data(), whole.size(), DType::f32);
      agree(p.world, [&] {
        if (p.world.rank() == 0) take(p.parameters()[parameter].name, p.parameters()[parameter].shape, whole);
      });
    }
  });
}

void FullyShardedDataParallel::decode(bool use_ema, const std::function<void(const Inside&)>& work) {
  parts_->call("generate", [&](Parts& p) {
    p.require_evaluation(use_ema, false);
    agree(p.world, [&] {
      require_user(p.sharding.plan.cache.positions > 0,
                   "the model has no memory for generation (generate_positions is 0, or this is a Sequential); set it");
    });
    p.engine.with(weights_of(use_ema), [&] { work(inside()); });
  });
}

void FullyShardedDataParallel::freeze(const std::vector<std::string>& patterns) {
  parts_->call(__func__, [&](Parts& p) { p.freeze(patterns, true); });
}

void FullyShardedDataParallel::unfreeze(const std::vector<std::string>& patterns) {
  parts_->call(__func__, [&](Parts& p) { p.freeze(patterns, false); });
}

MemoryUse FullyShardedDataParallel::memory() const {
  const Parts& p = *parts_;
  const MemoryAccount account = memory_account(p.engine.options(), p.engine.model(), p.world, *p.job->rank.node,
                                               {.snapshot = p.engine.saves_meanwhile()});
  return memory_of(account, p.rows, p.sharding);
}
std::size_t FullyShardedDataParallel::peak_bytes() const {
  return parts_->executor().peak_bytes() + memory().total - parts_->engine.model().plan().peak_bytes;
}
FullyShardedDataParallel::Inside FullyShardedDataParallel::inside() const {
  Parts& p = *parts_;
  return {*p.job, p.options, p.rows, p.engine, p.last_step_s, p.last_tokens, p.last_positions};
}
std::string FullyShardedDataParallel::plan() const {
  const ShardedModel& model = parts_->engine.model();
  return describe_operations(model.plan(), model.plan().update, model.layout());
}

}  // namespace fsdp
