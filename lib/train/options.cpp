#include "train/options.hpp"

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "comm/mpi_session.hpp"
#include "files/json.hpp"
#include "fsdp/placement.hpp"
#include "h5/h5.hpp"
#include "kernels/kernels.hpp"

namespace fsdp {

namespace {

/// The first override that is given, by option name; else null.
const char* first_override(const TrainOptions& o) {
  const std::pair<const char*, std::size_t> all[] = {{"decoder-layers", o.decoder_layers},
                                                     {"decoder-embed-dim", o.decoder_embed_dim},
                                                     {"decoder-ffn-embed-dim", o.decoder_ffn_embed_dim},
                                                     {"decoder-attention-heads", o.decoder_attention_heads},
                                                     {"decoder-kv-heads", o.decoder_kv_heads},
                                                     {"vocab-size", o.vocab_size}};
  for (const auto& [name, value] : all)
    if (value != 0) return name;
  return nullptr;
}

}  // namespace

std::string list_of_archs() {
  std::size_t width = 0;
  for (const auto& [name, description] : list_archs()) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, description] : list_archs()) out += format("{:<{}}  {}\n", name, width, description);
  return out;
}

void add_no_verify_option(OptionTable& table, bool& no_verify) {
  table.flag("no-verify", no_verify,
             "Do not compare what is read of checkpoints and models with its checksums: faster where the disk is not what "
             "takes the time, and damaged numbers are taken as they are.");
}

Option& add_threads_option(OptionTable& table, std::size_t& threads) {
  return table.integer("threads", "N", threads, {0, 4096},
                       "OpenMP threads per rank; 0: OMP_NUM_THREADS, or else this rank's share of the node's cores.");
}

void add_comm_options(OptionTable& table, CommOptions& comm) {
  table.choice<CommKind>(
      "comm", comm.kind, {{"auto", CommKind::automatic}, {"shm", CommKind::shm}, {"mpi", CommKind::mpi}},
      "How ranks communicate: shm through shared memory within a node and by MPI between nodes, mpi by MPI alone; auto is shm "
      "where ranks can share memory.");
  table.duration("collective-timeout", "TIME", comm.timeout_s,
                 "End the job when a rank lets the others wait this long in a collective, and name it; 0: wait for ever.");
}

void add_comm_thread_option(OptionTable& table, bool& comm_thread) {
  table.flag(
      "comm-thread", comm_thread,
      "Gather and reduce on a thread of its own while the model computes, on the CPU. It needs a core: unless --threads or "
      "OMP_NUM_THREADS say otherwise, the computation leaves it one. The option changes no bit of the results, at the same "
      "number of threads.");
}

OptionTable train_option_table(TrainOptions& o) {
  OptionTable table("fsdp-train", "[DATA] [options]",
                    "Trains a GPT or Llama model with fully sharded data parallelism. Start one process per rank, for example: "
                    "mpirun -np 2 fsdp-train train.bin --arch gpt2 --max-update 100");
  add_train_options(table, o);
  return table;
}

void add_train_options(OptionTable& table, TrainOptions& o) {
  const auto not_negative = [](double x) { return x >= 0; };

  table.group("Data");
  table.path("data", "DATA", o.data, "Token file to train on, as fsdp-tokenize writes it (llm.c's format, 16-bit tokens).")
      .positional()
      .required();
  table.path("valid", "FILE", o.valid, "Token file to validate on.").unset("no validation");
  table.integer("tokens-per-sample", "T", o.tokens_per_sample, {1, 1e8}, "Tokens per sequence.").alias("block-size");
  table.flag("shuffle", o.shuffle,
             "Read the sequences in an order that --seed and the pass over the data give, instead of the file's.");

  table.group("Model");
  table
      .text("arch", "NAME", o.arch,
            "Model by name; --list-archs shows them. Learned positions are as many as --tokens-per-sample, where the model has "
            "more.")
      .unset("as --model, or as the checkpoint that is resumed");
  table.flag("list-archs", o.list_archs, "Print the names that --arch knows and exit.").command_line_only();
  table
      .path("model", "DIR", o.model,
            "Hugging Face folder: config.json, and model.safetensors or the files that model.safetensors.index.json names.")
      .unset("as --arch");
  table
      .choice<InitFrom>("init", o.init, {{"random", InitFrom::random}, {"pretrained", InitFrom::pretrained}},
                        "Where the first weights come from.")
      .unset("pretrained with --model, random with --arch");
  const auto override_option = [&](const char* name, const char* letter, std::size_t& field, double most, const char* help) {
    table.integer(name, letter, field, {1, most}, help).unset("as the model says");
  };
  override_option("decoder-layers", "L", o.decoder_layers, 1e4, "Number of blocks.");
  override_option("decoder-embed-dim", "C", o.decoder_embed_dim, 1e6, "Width.");
  override_option("decoder-ffn-embed-dim", "F", o.decoder_ffn_embed_dim, 1e7, "Inner width of the feed-forward layers.");
  override_option("decoder-attention-heads", "H", o.decoder_attention_heads, 1e5, "Query heads.");
  override_option("decoder-kv-heads", "K", o.decoder_kv_heads, 1e5, "Key/value heads.");
  override_option("vocab-size", "V", o.vocab_size, 1e8, "Size of the vocabulary.");

  const auto rate = [](double x) { return x >= 0 && x < 1; };
  table.number("dropout", "P", o.dropout, "Drop elements of the embeddings and of what attention and feed-forward layers add.",
               "from 0 to below 1", rate);
  table.number("attention-dropout", "P", o.attention_dropout, "Drop attention probabilities.", "from 0 to below 1", rate);

  table.group("Batch");
  table.integer("batch-size", "B", o.batch_size, {1, 1e6}, "Sequences per rank per micro-batch.")
      .alias("batch-size-per-device");
  table.integer("update-freq", "K", o.update_freq, {1, 1e5}, "Micro-batches per update.")
      .alias("gradient-accumulation-steps")
      .unset("1, or what --total-batch-size asks for");
  table
      .integer("total-batch-size", "G", o.total_batch_size, {1, 1e12},
               "Sequences per update over all ranks; must equal B x K x ranks.")
      .unset("B x K x ranks");

  table.group("Optimizer");
  std::vector<std::pair<std::string, OptimizerKind>> optimizers;
  for (const KindInfo& info : optimizer_kinds()) optimizers.emplace_back(info.name, info.kind);
  table.choice<OptimizerKind>(
      "optimizer", o.optimizer, std::move(optimizers),
      "Optimizer. adam, sgd and adagrad have L2 decay, the others decay weights beside the gradient. cpu_adam is "
      "adamw, fairseq's name for the one on the host. muon updates the matrices of the blocks, adamw the rest.");
  table.number("lr", "RATE", o.lr, "Learning rate after the warm-up.", "0 or more", not_negative);
  table
      .pair("adam-betas", "\"(B1,B2)\"", o.adam_betas,
            "Decay rates of the first and second moment; all but sgd, adagrad and adafactor read them.", "from 0 to below 1",
            [](double x) { return x >= 0 && x < 1; })
      .unset("(0.9,0.999); lion (0.9,0.99)");
  table
      .number("adam-eps", "EPS", o.adam_eps, "Added to the root of the second moment; all but sgd, adafactor and lion read it.",
              "above 0", [](double x) { return x > 0; })
      .unset("1e-8; adagrad 1e-10, lamb 1e-6");
  table.flag("amsgrad", o.amsgrad, "With an Adam: divide by the largest second moment so far.");
  table.number("momentum", "M", o.momentum, "With sgd and muon: how much of the last step is kept.", "from 0 to below 1", rate)
      .unset("sgd 0, muon 0.95");
  table.flag("nesterov", o.nesterov, "With sgd and --momentum: Nesterov's form. muon always has it.");
  table
      .number("weight-decay", "DECAY", o.weight_decay,
              "Weight decay of tensors of two or more dimensions; vectors (biases, gains of norms) have none.", "0 or more",
              not_negative)
      .unset("0.01 with adamw, cpu_adam and lamb, 0.1 with muon, else 0");
  table.list("no-decay", "PATTERNS", o.no_decay,
             "Parameters without weight decay, beside the vectors: shell globs over names.");
  table.list("lr-scale", "PATTERN=X,...", o.lr_scale,
             "Multiply the learning rate of the parameters that match, as in 'h.0.*=0.1,*wte*=0.5'; the last match counts.");
  table.choice<DType>(
      "optimizer-state-dtype", o.optimizer_state_dtype, {{"fp32", DType::f32}, {"bf16", DType::bf16}},
      "Type of the optimizer's moments. bf16 takes half the memory and is rounded at random (by --seed), so that "
      "small changes add up.");
  table.number("clip-norm", "NORM", o.clip_norm, "Scale gradients down to this norm; 0: do not clip.", "0 or more",
               not_negative);
  table.choice<Decay>("lr-scheduler", o.lr_scheduler,
                      {{"fixed", Decay::fixed},
                       {"polynomial_decay", Decay::polynomial},
                       {"cosine", Decay::cosine},
                       {"inverse_sqrt", Decay::inverse_sqrt},
                       {"wsd", Decay::wsd}},
                      "Learning rate after the warm-up: constant; from --lr to --end-learning-rate at --total-num-update; "
                      "inverse_sqrt: --lr times the root of W / update; wsd: constant, then linear over --decay-updates.");
  table.integer("warmup-updates", "W", o.warmup_updates, {0}, "Updates in which the rate rises from 0 to --lr.");
  table.integer("total-num-update", "U", o.total_num_update, {1}, "Update at which the decay ends.")
      .unset("--max-update, or the updates of --max-epoch");
  table.integer("decay-updates", "D", o.decay_updates, {1}, "With wsd: updates at the end in which the rate falls.")
      .unset("none; wsd needs one");
  table.number("end-learning-rate", "RATE", o.end_learning_rate, "Learning rate at the end of the decay.", "0 or more",
               not_negative);
  table.number("power", "P", o.power, "Power of polynomial_decay.", "above 0", [](double x) { return x > 0; });
  table.integer("max-update", "N", o.max_update, {1}, "Updates in all, those of a resumed run included.")
      .unset("as --max-epoch; one of the two is needed");
  table
      .integer("max-epoch", "N", o.max_epoch, {1},
               "Passes over the data in all; what is left for the last update is a smaller batch.")
      .unset("as --max-update");

  table.group("Sharding");
  table
      .choice<std::string>(
          "sharding-strategy", o.sharding_strategy, placement_names(),
          "What is sharded over the ranks. full: parameters, gradients, optimizer state (ZeRO-3); grad-op: parameters "
          "stay gathered from forward to backward (ZeRO-2); optim: the optimizer state alone (ZeRO-1); none: nothing (DDP); "
          "hybrid, hybrid-grad-op: full and grad-op inside groups that hold a copy each. PyTorch's names mean the same.")
      .unset("full");
  table
      .choice<std::string>("ddp-backend", o.ddp_backend, {{"fully_sharded", "fully_sharded"}, {"pytorch_ddp", "pytorch_ddp"}},
                           "fairseq's spelling of --sharding-strategy full and none.")
      .unset("as --sharding-strategy");
  table.flag("no-reshard-after-forward", o.no_reshard_after_forward,
             "fairseq's spelling of grad-op for full, of hybrid-grad-op for hybrid.");
  table.integer("shard-group-size", "N", o.shard_group_size, {1, 1e6}, "Ranks of a group of the hybrid strategies.")
      .unset("the ranks of a node");
  using Kind = WrapPolicy::Kind;
  table.choice<Kind>(
      "wrap-policy", o.wrap_policy,
      {{"transformer", Kind::transformer}, {"size", Kind::size}, {"none", Kind::none}, {"custom", Kind::custom}},
      "What is gathered together. transformer: --wrap-layers blocks; size: modules of --min-num-params (PyTorch's "
      "size_based_auto_wrap_policy); custom: --wrap-units; none: everything. The rest is the root unit.");
  table.integer("wrap-layers", "N", o.wrap_layers, {1, 1e4}, "Blocks per unit.");
  table.size("min-num-params", "N", o.min_num_params, "Parameters from which on --wrap-policy size makes a module a unit.");
  table.list("wrap-units", "PATTERNS", o.wrap_units,
             "Units of --wrap-policy custom: a shell glob over module names each, as in 'h.[0-3],h.[4-7]'.");
  table.choice<BackwardPrefetch>(
      "backward-prefetch", o.backward_prefetch,
      {{"pre", BackwardPrefetch::pre}, {"post", BackwardPrefetch::post}, {"none", BackwardPrefetch::none}},
      "When the next unit is gathered in backward: before the computation of the current one, after it, or when it is needed.");
  table.flag("forward-prefetch", o.forward_prefetch,
             "Gather the next unit before the computation of the current one in forward; --forward-prefetch=false: when it is "
             "needed.");
  table.integer("limit-all-gathers", "N", o.limit_all_gathers, {1, 1e4},
                "Gathered units at a time, beside those that stay: slots, of which all but one are filled ahead.");
  table.flag("accumulate-unsharded", o.accumulate_unsharded,
             "Add up whole gradients over the micro-batches and reduce once (PyTorch's no_sync): less traffic, more memory.");
  table.list("ignore-params", "PATTERNS", o.ignore_params, "Parameters to keep whole on every rank: shell globs over names.");
  table.list("freeze", "PATTERNS", o.freeze, "Parameters not to train: no gradient, no optimizer state. '*' crosses dots.");
  table.list("train-only", "PATTERNS", o.train_only, "Parameters to train; all others are frozen.");

  const std::vector<std::pair<std::string, std::string>> types = {{"fp32", "fp32"}, {"bf16", "bf16"}, {"fp16", "fp16"}};
  table.group("Precision");
  table
      .choice<std::string>(
          "precision", o.precision, types,
          "Type of the numbers that are gathered, computed with and kept as activations. The optimizer works on "
          "an fp32 copy; sums, gradients of parameters, softmax and loss are fp32 in any case, but see --reduce-dtype.")
      .unset("fp32");
  table.flag("bf16", o.bf16, "fairseq's spelling of --precision bf16.");
  table.flag("fp16", o.fp16, "fairseq's spelling of --precision fp16: with a dynamic loss scale.");
  table.choice<std::string>("param-dtype", o.param_dtype, types, "PyTorch's spelling of --precision (MixedPrecision).")
      .unset("as --precision");
  const std::vector<std::pair<std::string, DType>> dtypes = {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};
  table.choice<DType>(
      "reduce-dtype", o.reduce_dtype, dtypes,
      "Type in which gradients travel to where they are added up. Each rank's own is rounded once; the sums are "
      "fp32, and travel so. fp16 has no gradients below 6e-8 or above 65504 (times the loss scale of --fp16).");
  table.choice<DType>("buffer-dtype", o.buffer_dtype, dtypes,
                      "Type to which the model's buffers, the rotary tables of Llama, are rounded.");
  const auto above_0 = [](double x) { return x > 0; };
  table.number("fp16-init-scale", "S", o.fp16_init_scale, "With fp16: loss scale of the first update.", "above 0", above_0);
  table
      .integer("fp16-scale-window", "N", o.fp16_scale_window, {1},
               "With fp16: updates without overflow after which the scale doubles.")
      .unset("2^14 / ranks / --update-freq");
  table.number("fp16-scale-tolerance", "PART", o.fp16_scale_tolerance,
               "With fp16: share of updates since the last change of the scale that may overflow before it is halved.",
               "from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
  table.number("min-loss-scale", "S", o.min_loss_scale, "With fp16: stop instead of scaling by this or less.", "above 0",
               above_0);
  table
      .number("threshold-loss-scale", "S", o.threshold_loss_scale, "With fp16: do not halve the scale below this.", "0 or more",
              not_negative)
      .unset("none");

  table.group("Memory");
  table
      .flag("checkpoint-activations", o.checkpoint_activations,
            "Keep the blocks' inputs only and compute the rest again in backward.")
      .alias("gradient-checkpointing");

  table.choice<CheckpointPolicy>(
      "checkpoint-policy", o.checkpoint_policy,
      {{"block", CheckpointPolicy::block}, {"selective", CheckpointPolicy::selective}},
      "With --checkpoint-activations: keep the blocks' inputs alone, or also what attention and the large "
      "products gave, so that only cheap work is done again.");
  table.integer("checkpoint-every", "N", o.checkpoint_every, {1, 1e4},
                "With --checkpoint-activations: blocks per segment, of which only the first one's input is kept.");

  table.group("Checkpoint");
  table.path("save-dir", "DIR", o.save_dir,
             "Folder of checkpoints. A file 'save' in it asks for one, a file 'stop' for one and the end.");
  table.integer("save-interval-updates", "N", o.save_interval_updates, {0},
                "Save every N updates; 0: at the end and on request only.");
  table.duration("save-interval", "TIME", o.save_interval_s, "Save when this long has passed since the last save; 0: do not.");
  table.flag(
      "no-async-save", o.no_async_save,
      "Let training wait for each save. Else those by interval are copied to memory, and written from there while training "
      "goes on.");
  table.choice<h5::Compression>("compress", o.compress, {{"none", h5::Compression::none}, {"gzip", h5::Compression::gzip}},
                                "gzip: shuffle and deflate what is saved, as any HDF5 tool reads it. Files get smaller by a "
                                "seventh or so, and saves slower "
                                "by far: docs/performance.md.");
  table.integer("keep-last", "N", o.keep_last, {1, 1e6}, "Remove all but the newest N steps after each save.")
      .unset("keep all");
  table.integer("keep-every", "N", o.keep_every, {1, 1e12}, "With --keep-last: also keep the steps of every N-th update.")
      .unset("none");
  table.text("restore", "latest|none|PATH", o.restore,
             "Continue from the latest complete checkpoint in --save-dir, from none, or from the one at PATH. If the latest is "
             "damaged, it is renamed, and the one before is used. The model is the checkpoint's, all other options are the "
             "command's.");
  table
      .path(
          "finetune-from", "PATH", o.finetune_from,
          "Begin with the weights of a checkpoint, a consolidated file or a Hugging Face folder, and nothing else of it; where "
          "there is a checkpoint to continue from, that is continued.")
      .unset("--init");
  table
      .list(
          "ignore-missing", "PATTERN,...", o.ignore_missing,
          "With --finetune-from or pretrained weights: tensors by name that may be missing there, or have another shape, as "
          "with "
          "another --vocab-size; these start from --seed, as in a new model. Those that the model does not have may be named, "
          "too, and are left out. '*' crosses dots.")
      .unset("none: all must fit");
  table.flag("reset-optimizer", o.reset_optimizer,
             "Take the weights, the update and the data position from the checkpoint, and start the optimizer's state at zero: "
             "needed where the checkpoint has another optimizer's.");

  table.flag("reset-dataloader", o.reset_dataloader, "Read the data from the start, whatever the checkpoint says.");
  add_no_verify_option(table, o.no_verify);

  table.group("Run");
  table.choice<std::string>("device", o.device, {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
                            "Device to compute on. This program has no CUDA device: auto is cpu.");
  add_comm_options(table, o.comm);
  add_comm_thread_option(table, o.comm_thread);
  table.integer("seed", "N", o.seed, {0, 4294967295.0},
                "Seed of the random initial weights, of --shuffle, of dropout, and of what is rounded at random.");
  table.integer("log-interval", "N", o.log_interval, {1}, "Print a line every N updates.");
  table.path("log-file", "FILE", o.log_file, "Append metrics to FILE, one JSON object per line.").unset("no metrics file");
  table.flag("log-group-norms", o.log_group_norms,
             "Also write the gradient's norm by group of parameters that the optimizer treats alike.");
  table.integer("validate-interval-updates", "N", o.validate_interval_updates, {0},
                "Validate every N updates; 0: at the end only.");
  add_trace_options(table, o.trace);
  table.flag("dry-run", o.dry_run,
             "Print the memory plan and the schedule of a step, and do not train. Checkpoints are neither needed nor written.");
  add_threads_option(table, o.threads);
}

namespace {

/// The type of the numbers from its spellings, and options that go with fp16 only.
void resolve_precision(TrainOptions& o, int ranks) {
  const auto agree_on = [&](const std::string& named, const char* option) {
    if (o.precision.empty()) o.precision = named;
    if (o.precision != named)
      throw UserError(
          format("{} contradicts --precision {}, or another spelling of it (each says what is computed with) leave one "
                 "out",
                 option, o.precision));
  };
  if (o.bf16) agree_on("bf16", "--bf16");
  if (o.fp16) agree_on("fp16", "--fp16");
  if (!o.param_dtype.empty()) agree_on(o.param_dtype, "--param-dtype");
  if (o.precision.empty()) o.precision = "fp32";
  o.param_dtype = o.precision;
  const TrainOptions defaults;
  const bool given = o.fp16_init_scale != defaults.fp16_init_scale || o.fp16_scale_window != 0 ||
                     o.fp16_scale_tolerance != defaults.fp16_scale_tolerance || o.min_loss_scale != defaults.min_loss_scale ||
                     o.threshold_loss_scale != 0;
  if (given && o.precision != "fp16")
    throw UserError(
        format("a loss scale changes nothing (it goes with --fp16, and the precision is {}) leave out --fp16-init-scale "
               "and the like",
               o.precision));
  if (o.fp16_init_scale <= o.min_loss_scale)
    throw UserError(
        format("--fp16-init-scale {} is not above --min-loss-scale {} (the first overflow would end the run) raise the one "
               "or lower the other",
               o.fp16_init_scale, o.min_loss_scale));
  if (o.threshold_loss_scale > o.fp16_init_scale)
    throw UserError(
        format("--threshold-loss-scale {} is above --fp16-init-scale {} (an overflow would raise the scale) lower the one or "
               "raise the "
               "other",
               o.threshold_loss_scale, o.fp16_init_scale));
  if (o.precision == "fp16" && o.fp16_scale_window == 0)
    o.fp16_scale_window = std::max<std::size_t>(1, (std::size_t{1} << 14) / static_cast<std::size_t>(ranks) / o.update_freq);
}

/// One strategy from its spellings, and options that go with some policies only.
void resolve_sharding(TrainOptions& o) {
  if (!o.ddp_backend.empty()) {
    const std::string named = o.ddp_backend == "fully_sharded" ? "full" : "none";
    if (o.sharding_strategy.empty()) o.sharding_strategy = named;
    if ((o.sharding_strategy == "none") != (named == "none"))
      throw UserError(format("--ddp-backend {} contradicts --sharding-strategy {} (each says what is sharded) leave one out",
                             o.ddp_backend, o.sharding_strategy));
  }
  if (o.sharding_strategy.empty()) o.sharding_strategy = "full";
  if (o.no_reshard_after_forward) {
    const std::string& s = o.sharding_strategy;
    if (s == "full" || s == "hybrid")
      o.sharding_strategy = s == "full" ? "grad-op" : "hybrid-grad-op";
    else if (s != "grad-op" && s != "hybrid-grad-op")
      throw UserError(
          format("--no-reshard-after-forward does not go with --sharding-strategy {} (its parameters are whole "
                 "always) leave it out, or choose full or hybrid",
                 s));
  }
  const auto needs = [](bool given, const char* option, bool there, const char* other) {
    if (given && !there)
      throw UserError(format("--{} changes nothing (it goes with {}) give that, too, or leave it out", option, other));
  };
  const bool hybrid = find_placement(o.sharding_strategy).axis == ShardAxis::group;
  needs(o.shard_group_size != 0, "shard-group-size", hybrid, "--sharding-strategy hybrid or hybrid-grad-op");
  using Kind = WrapPolicy::Kind;
  const TrainOptions defaults;
  needs(o.wrap_layers != defaults.wrap_layers, "wrap-layers", o.wrap_policy == Kind::transformer, "--wrap-policy transformer");
  needs(o.min_num_params != defaults.min_num_params, "min-num-params", o.wrap_policy == Kind::size, "--wrap-policy size");
  needs(!o.wrap_units.empty(), "wrap-units", o.wrap_policy == Kind::custom, "--wrap-policy custom");
  if (o.wrap_policy == Kind::custom && o.wrap_units.empty())
    throw UserError("--wrap-policy custom has no units (patterns say what they are) give --wrap-units 'PATTERN,...'");
  needs(o.checkpoint_policy != defaults.checkpoint_policy, "checkpoint-policy", o.checkpoint_activations,
        "--checkpoint-activations");
  needs(o.checkpoint_every != defaults.checkpoint_every, "checkpoint-every",
        o.checkpoint_activations && o.checkpoint_policy == CheckpointPolicy::block,
        "--checkpoint-activations and --checkpoint-policy block");
}

/// "pattern=0.1". Throws UserError.
std::pair<std::string, double> parse_scale(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  char* end = nullptr;
  const double scale = equals == std::string::npos ? -1 : std::strtod(text.c_str() + equals + 1, &end);
  if (equals == std::string::npos || equals == 0 || end == text.c_str() + equals + 1 || *end != 0 || !(scale >= 0) ||
      !std::isfinite(scale))
    throw UserError(format(
        "--lr-scale '{}' is not accepted (it is PATTERN=X with a number of 0 or more) correct it, as in 'h.0.*=0.1'", text));
  return {text.substr(0, equals), scale};
}

/// The optimizer's own defaults, and options that it does not read.
void resolve_optimizer(TrainOptions& o) {
  const KindInfo& info = info_of(o.optimizer);
  const auto does_not_read = [&](bool given, bool read, const char* option, const char* who) {
    if (given && !read)
      throw UserError(
          format("--{} changes nothing (--optimizer {} does not read it; {}) leave it out, or choose another optimizer", option,
                 info.name, who));
  };
  does_not_read(o.momentum >= 0, info.reads_momentum, "momentum", "sgd and muon do");
  does_not_read(o.nesterov, info.reads_nesterov, "nesterov", "sgd and muon do");
  does_not_read(o.amsgrad, info.reads_amsgrad, "amsgrad", "adam, adamw and cpu_adam do");
  if (o.adam_betas[0] < 0) o.adam_betas = {info.beta1, info.beta2};
  if (o.adam_eps < 0) o.adam_eps = info.eps;
  if (o.momentum < 0) o.momentum = info.momentum;
  if (o.weight_decay < 0) o.weight_decay = info.weight_decay;
  if (o.nesterov && o.momentum == 0)
    throw UserError("--nesterov changes nothing (there is no momentum) give --momentum, too, or leave it out");
  for (const std::string& scale : o.lr_scale) parse_scale(scale);
}

/// Throws UserError.
void resolve_schedule(TrainOptions& o) {
  if (o.total_num_update == 0) o.total_num_update = o.max_update;
  const bool wsd = o.lr_scheduler == Decay::wsd;
  if (o.decay_updates != 0 && !wsd)
    throw UserError("--decay-updates changes nothing (it goes with --lr-scheduler wsd) give that, too, or leave it out");
  if (wsd && o.decay_updates == 0)
    throw UserError(
        "--lr-scheduler wsd does not know when to decay (nothing says over how many updates) give --decay-updates N");
  const bool fixed = o.lr_scheduler == Decay::fixed || o.lr_scheduler == Decay::inverse_sqrt;
  if (fixed && o.end_learning_rate != 0)
    throw UserError(
        "--end-learning-rate changes nothing (--lr-scheduler fixed and inverse_sqrt do not end) leave it out, or choose "
        "another "
        "schedule");
  if (o.power != 1 && o.lr_scheduler != Decay::polynomial)
    throw UserError("--power changes nothing (it goes with --lr-scheduler polynomial_decay) give that, too, or leave it out");
  check_schedule(schedule_of(o));
}

}  // namespace

void resolve(TrainOptions& o, int world_size) {
  expect(world_size > 0, "a job has ranks");
  const auto ranks = static_cast<std::size_t>(world_size);

  // Model.
  if (!o.arch.empty() && !o.model.empty())
    throw UserError("--arch and --model are both given (each decides the model) give one of them");
  const bool chosen = !o.arch.empty() || !o.model.empty();
  if (!o.finetune_from.empty() && o.init == InitFrom::pretrained)
    throw UserError(
        "--finetune-from and --init pretrained are both given (each says where the first weights come from) leave one out");
  if (!o.arch.empty()) arch_config(o.arch);  // unknown names are told now
  if (o.init == InitFrom::automatic)
    o.init = o.model.empty() ? InitFrom::random : InitFrom::pretrained;
  else if (o.init == InitFrom::pretrained && o.model.empty())
    throw UserError("--init pretrained needs --model (an --arch has no weights) give --model DIR, or --init random");
  if (!o.ignore_missing.empty() && o.finetune_from.empty() && o.init != InitFrom::pretrained)
    throw UserError(
        "--ignore-missing changes nothing (no weights are taken from elsewhere) give --finetune-from PATH or --model DIR, too, "
        "or leave it out");
  if (const char* given = first_override(o)) {
    if (!chosen && o.finetune_from.empty())
      throw UserError(
          format("--{} changes nothing (a checkpoint that is resumed has its own configuration) give --arch or --model too, or "
                 "leave it out",
                 given));
    if (o.init == InitFrom::pretrained && o.ignore_missing.empty())
      throw UserError(
          format("--{} does not go with pretrained weights (their shapes are fixed) leave it out, name with "
                 "--ignore-missing what may differ, or add --init random",
                 given));
  }

  // Batch: G = B K ranks.
  const std::size_t per_step = o.batch_size * ranks;
  if (o.total_batch_size != 0) {
    if (o.update_freq == 0) {
      if (o.total_batch_size % per_step != 0)
        throw UserError(format(
            "--total-batch-size {} is not a multiple of --batch-size {} x {} ranks = {} (every rank does the same number of "
            "micro-batches) choose another batch size or number of ranks",
            o.total_batch_size, o.batch_size, ranks, per_step));
      o.update_freq = o.total_batch_size / per_step;
    } else if (o.update_freq * per_step != o.total_batch_size) {
      throw UserError(
          format("--total-batch-size {} is not --batch-size {} x --update-freq {} x {} ranks = {} (they must agree) leave out "
                 "--update-freq or --total-batch-size, or change one of them",
                 o.total_batch_size, o.batch_size, o.update_freq, ranks, o.update_freq * per_step));
    }
  }
  if (o.update_freq == 0) o.update_freq = 1;
  o.total_batch_size = o.update_freq * per_step;

  if (o.keep_every != 0 && o.keep_last == 0)
    throw UserError("--keep-every changes nothing (all steps are kept) give --keep-last, too, or leave it out");
  resolve_optimizer(o);
  resolve_schedule(o);
  resolve_precision(o, world_size);
  resolve_sharding(o);

  // Run.
  check(o.trace);
  if (o.device == "cuda")
    throw UserError("--device cuda is not there (this program was built without a CUDA device) use --device cpu or auto");
}

void require_complete(const TrainOptions& o) {
  if (o.data.empty() && !o.dry_run)
    throw UserError(
        "no data (the first argument is the token file to train on) give one, as made by fsdp-tokenize TEXT... --out "
        "train.bin");
  if (o.arch.empty() && o.model.empty() && o.finetune_from.empty() && o.restore == "none")
    throw UserError(
        "no model (--restore none leaves nothing to take it from) give --arch NAME, see --list-archs, or --model DIR");
  if (o.max_update == 0 && o.max_epoch == 0 && !o.dry_run)
    throw UserError("no end (nothing says how many updates to do) give --max-update N or --max-epoch N");
  if (o.log_group_norms && o.log_file.empty())
    throw UserError("--log-group-norms has nowhere to go (there is no --log-file) give --log-file FILE or leave it out");
  if (o.valid.empty() && o.validate_interval_updates != 0)
    throw UserError("--validate-interval-updates has no data (there is no --valid) give --valid FILE or leave it out");
}

std::optional<std::string> answer(const OptionTable& table, Request request) {
  switch (request) {
    case Request::help:
      return table.help();
    case Request::markdown:
      return table.markdown();
    case Request::version:
      return full_version_text(table.program());
    case Request::print_config:
      return table.config();
    case Request::run:
      break;
  }
  return {};
}

TrainCommand parse_train_command(int argc, const char* const* argv, int world_size) {
  TrainCommand command;
  OptionTable table = train_option_table(command.options);
  const Request request = table.parse(argc, argv);
  const bool print_config = request == Request::print_config;  // wants what follows from the options, too
  if (!print_config) command.answer = answer(table, request);
  if (command.options.list_archs && !command.answer) command.answer = list_of_archs();
  if (command.answer) return command;
  resolve(command.options, world_size);
  if (print_config)
    command.answer = table.config();
  else
    require_complete(command.options);
  return command;
}

bool saves_meanwhile(const TrainOptions& o) {
  return !o.no_async_save && (o.save_interval_updates > 0 || o.save_interval_s > 0);
}

DType parameter_type(const TrainOptions& o) {
  return o.param_dtype == "bf16" ? DType::bf16 : o.param_dtype == "fp16" ? DType::f16 : DType::f32;
}

Schedule schedule_of(const TrainOptions& o) {
  return {o.lr_scheduler, o.lr, o.warmup_updates, o.total_num_update, o.end_learning_rate, o.power, o.decay_updates};
}

void check_schedule(const Schedule& s) {
  const bool ends = s.decay != Decay::fixed && s.decay != Decay::inverse_sqrt;
  if (ends && s.total != 0 && s.warmup + s.decay_updates > s.total)
    throw UserError(
        format("--warmup-updates {}{} is more than the {} updates of the schedule (the decay would end before it starts) lower "
               "the one or raise --total-num-update",
               s.warmup, s.decay == Decay::wsd ? format(" and --decay-updates {}", s.decay_updates) : "", s.total));
}

OptimizerOptions optimizer_of(const TrainOptions& o) {
  OptimizerOptions optimizer = {.kind = o.optimizer,
                                .beta1 = o.adam_betas[0],
                                .beta2 = o.adam_betas[1],
                                .eps = o.adam_eps,
                                .weight_decay = o.weight_decay,
                                .momentum = o.momentum,
                                .amsgrad = o.amsgrad,
                                .nesterov = o.nesterov,
                                .state_type = o.optimizer_state_dtype,
                                .seed = static_cast<std::uint32_t>(o.seed),
                                .no_decay = o.no_decay};
  for (const std::string& scale : o.lr_scale) optimizer.learning_rate_scales.push_back(parse_scale(scale));
  return optimizer;
}

nlohmann::json to_json(const TrainOptions& options) {
  TrainOptions copy = options;
  nlohmann::json out;
  for (const auto& [name, value] : train_option_table(copy).values()) {
    // Numbers and truth values as such, all else as text.
    const auto parsed = parse_json(value);
    out[name] = value.empty() ? nlohmann::json() : parsed.is_number() || parsed.is_boolean() ? parsed : nlohmann::json(value);
  }
  return out;
}

ConfigOverrides overrides_of(const TrainOptions& o) {
  const auto given = [](std::size_t value) { return value != 0 ? std::optional(value) : std::nullopt; };
  return {.layers = given(o.decoder_layers),
          .width = given(o.decoder_embed_dim),
          .ffn_width = given(o.decoder_ffn_embed_dim),
          .heads = given(o.decoder_attention_heads),
          .kv_heads = given(o.decoder_kv_heads),
          .vocab_size = given(o.vocab_size),
          .max_positions = {}};
}

std::string full_version_text(std::string_view program) {
  return version_text(program, {{"MPI", MpiSession::library_version()},
                                {"HDF5", h5::library_version()},
                                {"GEMM", kernels::gemm_description()},
                                {"JSON", format("nlohmann {}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                                NLOHMANN_JSON_VERSION_PATCH)},
                                {"CUDA", "off (no CUDA device in this program)"}});
}

}  // namespace fsdp
