#include "train/setup.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "comm/connection.hpp"
#include "data/open_data.hpp"
#include "data/tokenize_job.hpp"
#include "files/json.hpp"
#include "fsdp/timeline.hpp"
#include "fsdp/traffic.hpp"
#include "kernels/kernels.hpp"
#include "text/end_tokens.hpp"
#include "train/compute_device.hpp"
#include "train/model_tokenizer.hpp"

namespace fsdp {

Setup::Setup(const TrainOptions& train_options, Communicator& all_ranks, SignalWatch* watch)
    : options(train_options), world(all_ranks), options_json(to_json(options)) {
  const DeviceKind kind = start();
  const bool first = world.rank() == 0;
  agree(world, [&] {
    metrics.emplace(options.dry_run ? std::filesystem::path() : options.log_file, options.log_interval, first, stderr,
                    options.log_format);
  });
  take_save_folder(watch);
  agree(world, [&] {
    if (first && !options.dry_run && !options.trace.file.empty()) trace_file.emplace(options.trace.file);
  });
  if (save_lock && !save_lock->taken_over().empty()) metrics->say(save_lock->taken_over());
  origin = find_origin(options, world);
  for (const std::string& warning : origin.warnings) warn(warning);
  if (origin.checkpoint) progress = origin.checkpoint->header().progress;
  if (origin.checkpoint) note_arithmetic(origin.checkpoint->header());
  if (options.reset_optimizer) progress.optimizer_began = progress.update;
  agree(world, [&] { check_sharding(origin.config, options.sharding, world.size()); });
  const PlanOptions& wanted = options.sharding.plan;
  if (is_host(kind) && (wanted.offload_optimizer || wanted.offload_parameters))
    metrics->say("nothing is offloaded: on CPUs all memory is the host's");
  sharded.emplace(origin.config, options_for(kind, options.sharding), world, traits_of(kind, rank.cpus.threads));
  for (const std::string& warning : sharded->warnings()) warn(warning);
  memory = memory_account(options, *sharded, world, *rank.node);
  const ShardingOptions& sharding = options.sharding;
  cut = {sharding.batch.B, sharding.batch.T, sharding.plan.micro_batches, world.rank(), world.size()};
  if (options.dry_run) return;
  agree(world, [&] {
    if (first && !origin.tokenizer.empty())
      tokenizer_files = std::make_shared<const std::vector<TokenizerFile>>(read_files_of_tokenizer(origin.tokenizer));
    if (first && tokenizer_files && origin.checkpoint && options.tokenizer.empty() && has_tokenizer(options.model))
      note_changed_files(read_tokenizer_files(options.model));
  });
  if (!done()) {
    make_tokens_of_texts(watch);
    open_data();
  }
  if (options.sample_interval_updates > 0) agree(world, [&] { open_tokenizer(); });
  announce();
}

/// Rank 0 takes the lock. An earlier start of this job ends once it has saved, or when a collective that hangs times out.
void Setup::take_save_folder(SignalWatch* watch) {
  const double timeout_s = options.comm.timeout_s;
  bool stopped = false;
  work_meanwhile(
      world, world.rank() == 0 && !options.dry_run,
      [&](const std::function<bool()>& stop) {
        try {
          save_lock.emplace(options.save.folder, 5,
                            EarlierStart{.patience_s = timeout_s > 0 ? 1.25 * timeout_s + 60 : HUGE_VAL,
                                         .say = [&](const std::string& text) { metrics->say(text); },
                                         .stop = stop});
        } catch (const RunError&) {
          stopped = stop();
          if (!stopped) throw;
        }
      },
      [&] { return watch && watch->poll().stop > 0; });
  if (!world.all(!stopped))
    throw CollectiveError("stopped on request, before it could begin; the same command continues", 0, true, exit_code::stopped);
}

/// Returns the kind of device that the plan is for.
DeviceKind Setup::start() {
  if (options.dry_run) {
    const DeviceKind kind = kind_to_plan_for(options.device);
    agree(world, [&] { check_cpu_options(kind, options.cpu); });
    rank = start_rank_to_plan(options.threads, world, options.cpu);
  } else {
    rank = start_rank(options.device, options.threads, world, options.cpu);
    // A product brings in oneDNN's code, so that it does not count as memory of the run.
    std::array<float, 5 * 64> x{};  // more rows than are few
    kernels::gemm(*make_host_stream(), kernels::Trans::no, kernels::Trans::no, 16, 8, 8, &x[0], 8, &x[128], 8, &x[192], 8,
                  kernels::Write::overwrite);
    if (!is_host(rank.device->kind())) {
      peak_flops = peak_of_gpus(*rank.device, options.sharding.types.parameter, world);
    } else {
      core_peak = peak_of_cores(options.sharding.types.parameter, rank, world);
      peak_flops = core_peak.flops;
      if (core_peak.measured) restart_process_peak();
    }
    start_bytes = process_peak_bytes();
  }
  return rank.device ? rank.device->kind() : kind_to_plan_for(options.device);
}

std::string Setup::arithmetic() const {
  if (!is_host(rank.device->kind())) return rank.device->description();
  return format("{}, {} per rank", kernels::gemm_description(), plural(rank.cpus.threads, "thread"));
}

/// An invariant run has the same bits as before if products have, and its micro-batches are the same.
void Setup::note_arithmetic(const CheckpointHeader& before) {
  if (!options.sharding.plan.invariant || !rank.device) return;
  const auto differs = [&](const std::string& how) {
    warn(format("the bits will not be those of a run that was never stopped: {}", how));
  };
  if (const std::string& products = before.arithmetic; !products.empty() && products != arithmetic())
    differs(format("products were made by {} before, and are by {} now; --threads sets the number of threads", products,
                   arithmetic()));
  const nlohmann::json then = parse_json(before.options_json), now = to_json(options);
  for (const char* const key : {"invariant", "batch-size"})
    if (then.is_object() && then.contains(key) && then[key] != now[key])
      differs(format("--{} was {} before, and is {} now", key, json_excerpt(then[key]), json_excerpt(now[key])));
}

void Setup::note_changed_files(const std::vector<TokenizerFile>& now) {
  std::set<std::string> changed;
  const auto note = [&](const std::vector<TokenizerFile>& some, const std::vector<TokenizerFile>& others) {
    for (const TokenizerFile& file : some) {
      const auto is_same = [&](const TokenizerFile& other) { return other.name == file.name && other.text == file.text; };
      if (std::none_of(others.begin(), others.end(), is_same)) changed.insert(file.name);
    }
  };
  note(*tokenizer_files, now), note(now, *tokenizer_files);
  if (!changed.empty())
    warn(format("{} of {} differ from those of {}, which are used; --tokenizer {} takes the others", fmt::join(changed, ", "),
                options.model.string(), origin.tokenizer, options.model.string()));
}

void Setup::open_tokenizer() {
  tokenizer = find_model_tokenizer(origin.tokenizer, {}, origin.config.vocab_size);
  if (!tokenizer)
    throw UserError(format(
        "--sample-interval-updates has no tokenizer (the model has {} tokens, and no folder with a tokenizer that it came from "
        "is known); give --tokenizer",
        origin.config.vocab_size));
  sample_prompt = tokenizer->before_text();
  tokenizer->encode(options.sample_prompt, sample_prompt);
  if (sample_prompt.empty())
    throw UserError("--sample-prompt has no tokens (its tokenizer leaves all of it out); give another one");
  require_tokens_of_model(sample_prompt, *tokenizer, origin.config.vocab_size, "--sample-prompt");
  const EndTokens end =
      find_end_tokens(folder_of_tokenizer(origin.tokenizer), origin.model_folder, tokenizer.get(), origin.config.vocab_size);
  sample_end = end.ids;
  if (!end.contradiction.empty()) warn(end.contradiction);
}

void Setup::warn(const std::string& text) { metrics->say("warning: " + with_option_names(text)); }

void Setup::print_plan() const {
  if (world.rank() != 0) return;
  const Layout& layout = sharded->layout();
  std::printf("units:\n");
  const auto& units = layout.units();
  const auto alike = [](const Unit& a, const Unit& b) {
    return a.parameters.size() == b.parameters.size() && a.numel == b.numel && a.padded_numel == b.padded_numel &&
           a.types == b.types;
  };
  for (std::size_t first = 0, last; first < units.size(); first = last + 1) {
    for (last = first; last + 1 < units.size() && alike(units[first], units[last + 1]);) ++last;
    const Unit& unit = units[first];
    const std::string name = last == first ? unit.name : format("{} to {} (each)", unit.name, units[last].name);
    std::printf("  %-30s %4zu tensors  %12zu elements  %12zu with padding  %s\n", name.c_str(), unit.parameters.size(),
                unit.numel, unit.padded_numel,
                format_bytes(static_cast<double>(unit.padded_numel * size_of(unit.types.parameter))).c_str());
  }
  const Transformer& model = sharded->transformer();
  std::printf("memory plan per rank:\n%s%soperations of one update:\n%s\n%s", describe_memory(sharded->plan()).c_str(),
              describe_beside_plan(memory).c_str(),
              describe_operations(sharded->plan(), sharded->plan().update, layout).c_str(),
              draw_timeline(sharded->plan().update, layout, model.block_numel()).c_str());
}

/// Collective.
std::optional<NodeTraffic> Setup::traffic_of_nodes() {
  const Mesh& mesh = sharded->mesh();
  const Communicator& node = *rank.node;
  const auto nodes = narrow<int>(world.sum(std::int64_t{node.rank() == 0}));
  if (!world.all(node.size() * nodes == world.size() && node.rank() == world.rank() % node.size())) return std::nullopt;
  const Cluster cluster = {nodes, node.size(), find_connection(options.comm.kind).between};
  const ClusterTraffic traffic =
      traffic_of_cluster(collectives_of_update(sharded->plan().update, options.sharding.plan.micro_batches),
                         {mesh.shard->size(), mesh.replicate->size()}, cluster);
  return NodeTraffic{nodes, traffic.rank.total(), mesh.device_groups ? traffic.ring_out_of_node : traffic.out_of_node};
}

namespace {

std::string describe_traffic(int shard_ranks, int node_ranks, const NodeTraffic& traffic) {
  const auto bytes = [](std::uint64_t n) { return format_bytes(static_cast<double>(n)); };
  const std::string where = traffic.nodes == 1 ? "" : node_ranks % shard_ranks == 0 ? " within a node" : " on several nodes";
  return format("shards: {}; for an update a rank sends {}{}",
                shard_ranks == 1 ? "none" : format("groups of {} ranks{}", shard_ranks, where), bytes(traffic.sent),
                traffic.nodes == 1 ? "" : format(", and a node {} to the others", bytes(traffic.out_of_node)));
}

}  // namespace

void Setup::announce() {
  const Plan& plan = sharded->plan();
  const Transformer& model = sharded->transformer();
  const bool on_cpu = is_host(rank.device->kind());
  metrics->say(format("fsdp {}: {}, {}{}", version_string(), rank.device->description(),
                      on_cpu ? format("{} per rank, {}, ",
                                      plural(rank.cpus.threads, "thread") +
                                          (options.cpu.communication_thread ? " and one for communication" : ""),
                                      kernels::gemm_description())
                             : std::string(),
                      world.description()));
  if (core_peak.measured)
    metrics->say(
        format("MFU refers to {:.0f} GFLOP/s of all ranks in {}, measured just now and kept for later runs; if other "
               "work was running, fsdp-bench gemm measures again",
               *peak_flops / 1e9, name_of(options.sharding.types.parameter)));
  if (const DType type = options.sharding.types.parameter; on_cpu && !kernels::multiplies(type))
    metrics->say(format(
        "warning: {} products convert their operands to fp32 here (this machine has no instructions for them): memory and "
        "transfers are halved, and a step takes longer than with --precision fp32",
        name_of(type)));
  std::size_t trained = 0;
  for (const Unit& unit : sharded->layout().units()) trained += unit.trainable ? unit.numel : 0;
  metrics->say(format("model: {} parameters{}, {}, width {}; strategy {} over {}; {} of {} tokens per update",
                      format_count(static_cast<double>(model.parameter_count())),
                      trained == model.parameter_count()
                          ? ""
                          : format(" ({} trained, the others frozen)", format_count(static_cast<double>(trained))),
                      plural(model.blocks(), "block"), model.config().width, sharded->placement().name,
                      plural(world.size(), "rank"), plural(cut.sequences_per_update(), "sequence"), cut.T));
  const int shard_ranks = sharded->mesh().shard->size();
  const std::optional<NodeTraffic> traffic = traffic_of_nodes();
  if (traffic && world.size() > 1) metrics->say(describe_traffic(shard_ranks, rank.node->size(), *traffic));
  metrics->say("memory plan per rank:\n" + describe_memory(plan) + describe_beside_plan(memory));
  metrics->start({.version = version_string(),
                  .world_size = world.size(),
                  .strategy = std::string(sharded->placement().name),
                  .options = &options_json,
                  .parameters = model.parameter_count(),
                  .plan_peak_bytes = plan.peak_bytes,
                  .step = progress.update,
                  .max_step = last_update(),
                  .shard_ranks = shard_ranks,
                  .traffic = traffic,
                  .sequences = progress.data.sequences});
}

bool Setup::done() const {
  return (options.max_update != 0 && progress.update >= options.max_update) ||
         (train_batches && train_batches->at_end(progress.data.sequences));
}

std::uint64_t Setup::last_update() const {
  const auto left = train_batches ? train_batches->updates_left(progress.data.sequences) : std::nullopt;
  if (!left) return options.max_update;
  const std::uint64_t of_data = progress.update + *left;
  return options.max_update == 0 ? of_data : std::min(of_data, options.max_update);
}

Schedule Setup::schedule() const {
  Schedule schedule = options.schedule;
  if (schedule.total == 0) schedule.total = last_update();
  return schedule;
}

std::optional<double> Setup::mfu(double positions_per_second) {
  if (!peak_flops) return {};
  const double share = sharded->transformer().flops_per_token(cut.T) * positions_per_second / *peak_flops;
  if (share < 1.1 || !is_host(rank.device->kind())) return share;
  if (rank.node->rank() == 0) forget_peak_per_core();
  warn(
      "the MFU is left out: the stored rate of the cores is lower than what this run reaches, so other work was running when "
      "it was measured; the next start measures it again");
  peak_flops.reset();
  return {};
}

/// By rank 0, while the others wait.
void Setup::make_tokens_of_texts(SignalWatch* watch) {
  std::vector<TextSet> all;
  agree(world, [&] {
    if (options.end_of_document && *options.end_of_document >= origin.config.vocab_size)
      throw UserError(
          format("--eos-token-id {} is no token of the model (its vocabulary is {}); give the token that ends documents",
                 *options.end_of_document, origin.config.vocab_size));
    texts_ = texts_in(options.data, Split::train);
    all = texts_;
    if (!options.valid.empty())
      for (TextSet& text : texts_in(options.valid, Split::valid)) all.push_back(std::move(text));
    // One that is named goes into checkpoints, whether training needs it or not.
    if (world.rank() == 0 && (!options.tokenizer.empty() || (!all.empty() && !origin.tokenizer.empty()))) {
      const auto opened = fsdp::open_tokenizer(origin.tokenizer);
      for (const std::string& warning : opened->warnings()) warn(warning);
      if (const auto doubt = doubt_tokenizer(*opened, origin.config.vocab_size)) warn(*doubt);
    }
    if (all.empty()) return;
    if (origin.tokenizer.empty())
      throw UserError(
          format("'{}' is text, and no tokenizer is known (the model has {} tokens, and nothing that it came from has a "
                 "tokenizer); give --tokenizer",
                 all.front().name, origin.config.vocab_size));
    try_opening(options.data, Split::train);
    if (!options.valid.empty()) try_opening(options.valid, Split::valid);
    for (const std::string& masks : {options.mask, options.valid_mask}) open_masks(masks);
  });
  if (world.max(all.size()) == 0) return;
  std::vector<std::string> said;
  std::string stopped;
  work_meanwhile(
      world, world.rank() == 0,
      [&](const std::function<bool()>& stop) {
        try {
          said = fsdp::make_tokens_of_texts(all,
                                            {.tokenizer = origin.tokenizer,
                                             .json_field = options.json_field,
                                             .skip_invalid = options.skip_invalid,
                                             .documents = needs_documents(data_cut()),
                                             .folder = text_tokens(),
                                             .vocab_size = origin.config.vocab_size},
                                            stop);
        } catch (const TokenizingStopped& request) {
          stopped = request.what();
        }
      },
      [&] { return watch && watch->poll().stop > 0; });
  for (const std::string& line : said) metrics->say(line);
  if (restart_process_peak()) {
    start_bytes = std::min(start_bytes, process_peak_bytes());
    measured_since = "its texts were tokens";
  }
  if (world.all(stopped.empty())) return;
  if (watch)
    if (const std::string problem = watch->honoured_stop(); !problem.empty()) warn(problem);
  throw CollectiveError(stopped, 0, true, exit_code::stopped);
}

/// The ranks look at parts of the data, each at its own.
void Setup::open_data() {
  std::uint32_t largest = 0;
  agree(world, [&] { largest = open_files(); });
  const std::size_t most = world.max(std::size_t{largest}), vocabulary = sharded->transformer().config().vocab_size;
  bool doubted = false;
  const auto warn_of_type = [&](const Tokens& tokens) {
    const std::optional<std::string> doubt = doubt_type(tokens, vocabulary);
    if (doubt) warn(*doubt);
    doubted |= doubt.has_value();
    if (const std::string unread = tokens.unread(); !unread.empty()) warn(unread);
  };
  const auto& ingredients = train_data->ingredients();
  for (const Ingredient& each : ingredients) {
    warn_of_type(each.samples.tokens());
    if (each.samples.documents() == 1)
      warn(format(
          "{} is one document: {} changes little (plain text has one for each file; fsdp-tokenize ends each with a token "
          "if it is told --append-eos)",
          each.samples.tokens().name(), options.break_mode != BreakMode::none ? "--break-mode" : "--document-attention"));
  }
  const auto has_mask = [](const Ingredient& each) { return each.samples.mask() != nullptr; };
  if (const auto whole = std::find_if_not(ingredients.begin(), ingredients.end(), has_mask);
      whole != ingredients.end() && std::any_of(ingredients.begin(), ingredients.end(), has_mask))
    warn(
        format("all tokens of {} count in the loss, and some of other data sets (those have masks in their files, and it has "
               "none); if it has answers and questions, too, give its mask and those files by --mask",
               whole->samples.tokens().name()));
  if (valid_data) warn_of_type(valid_data->tokens());
  agree(world, [&] {
    if (world.rank() == 0) warn_of_files();
  });
  if (!doubted && most < vocabulary / 4)
    warn(format("the largest token of {} is {}, and the model knows {} (were they made with its tokenizer?)",
                train_data->description(), most, vocabulary));
  const std::size_t per_update = cut.sequences_per_update();
  if (ingredients.size() == 1 && !options.max_epoch && train_data->sequences() < per_update)
    warn(format("an update takes {}, but {} has only {}: an update reads some of them more than once",
                plural(per_update, "sequence"), train_data->description(), train_data->sequences()));
  if (const std::uint64_t last = last_update(); last > 0 && options.schedule.warmup >= last)
    warn(format("the learning rate never reaches --lr (--warmup-updates is {}, and the run ends after update {})",
                options.schedule.warmup, last));
}

/// Warns of masks that lie next to the data and are not used, and of a file that is trained on and validated on.
void Setup::warn_of_files() {
  const bool has_valid = !options.valid.empty();
  for (const std::string& doubt :
       {options.mask.empty() ? unused_masks(options.data, Split::train, "--mask") : "",
        has_valid && options.valid_mask.empty() ? unused_masks(options.valid, Split::valid, "--valid-mask") : ""})
    if (!doubt.empty()) warn(doubt);
  const auto both = has_valid ? file_in_both(options.data, options.valid) : std::nullopt;
  if (both)
    warn(
        format("'{}' is in the training data and in --valid (the model is validated on what it was trained on); leave it out "
               "of one of them",
               both->string()));
}

/// May fail on this rank alone. Returns the largest token that it has found.
std::uint32_t Setup::open_files() {
  const std::size_t vocabulary = sharded->transformer().config().vocab_size;
  const auto me = static_cast<std::size_t>(world.rank()), ranks = static_cast<std::size_t>(world.size());
  const Cut data_cut = this->data_cut();
  train_data = open_mixture(options.data, data_cut, options.mask, text_tokens());
  std::uint32_t largest = 0;
  for (const Ingredient& each : train_data->ingredients())
    largest = std::max(largest, check_vocabulary(each.samples.tokens(), vocabulary, me, ranks));
  const DataPosition start{0,
                           cut.T,
                           train_data->tokens(),
                           options.shuffle,
                           options.seed,
                           train_data->order(),
                           checksum_of_texts(texts_, text_tokens()),
                           train_data->sample_sum(),
                           train_data->documents_sum(),
                           train_data->mask_sum()};
  std::string notice;
  const bool goes_on = origin.checkpoint && !options.reset_dataloader;
  progress.data = goes_on ? continue_data(progress.data, start, &notice) : start;
  if (!notice.empty()) warn(notice);
  if (options.shuffle && progress.data.seed != options.seed)
    warn(format("the data stay in the order of --seed {}, with which they began", progress.data.seed));
  train_batches.emplace(*train_data, cut, vocabulary,
                        DataOrder{.shuffle_seed = options.shuffle ? std::optional(progress.data.seed) : std::nullopt,
                                  .passes = options.max_epoch});
  check_schedule(schedule());
  const std::string valid = !options.valid.empty() ? options.valid : valid_data_of(options.data).value_or("");
  if (valid.empty()) return largest;
  std::unique_ptr<Tokens> tokens = open_tokens(valid, Split::valid, text_tokens());
  check_vocabulary(*tokens, vocabulary, me, ranks);
  valid_data.emplace(std::move(tokens), data_cut, open_masks(options.valid_mask));
  valid_batches.emplace(*valid_data, cut, vocabulary);
  return largest;
}

}  // namespace fsdp
