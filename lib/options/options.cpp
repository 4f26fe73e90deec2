#include "options/options.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/number_in.hpp"
#include "checkpoint/stored.hpp"
#include "data/open_data.hpp"
#include "files/json.hpp"
#include "files/lustre.hpp"
#include "options/common_options.hpp"
#include "options/other_programs.hpp"
#include "plan/placement.hpp"
#include "record/metrics_file.hpp"

namespace fsdp {

namespace {

bool not_negative(double x) { return x >= 0; }
bool above_0(double x) { return x > 0; }
bool below_1(double x) { return x >= 0 && x < 1; }

/// Throws UserError if `option` is changed (or given) and `other`, the option or setting that `option` needs, is not there.
void require(bool changed, const char* option, bool there, const char* other) {
  if (changed && !there)
    throw UserError(format("--{} changes nothing (it goes with {}); give both, or neither", option, other));
}

/// TRL's names for what --chat does.
void add_loss_spellings(OptionTable& table, const bool& chat) {
  const auto answers = std::make_shared<bool>(false), completions = std::make_shared<bool>(false);  // the step keeps them alive
  table
      .flag("assistant-only-loss", *answers,
            "TRL's name for what --chat does with \"messages\": only the tokens of answers count in the loss.")
      .follows("as --chat")
      .spelling();
  table
      .flag("completion-only-loss", *completions,
            "TRL's name for what --chat does with \"prompt\" and \"completion\": only the tokens of the completion count.")
      .follows("as --chat")
      .spelling();
  table.then([&chat, answers, completions](const OptionTable& read) {
    for (const auto& [name, value] : {std::pair("assistant-only-loss", *answers), {"completion-only-loss", *completions}}) {
      if (read.given(name) && !value)
        throw UserError(
            format("--{}=false is not supported (with --chat only answers count in the loss); to train on all "
                   "tokens, make tokens with fsdp-tokenize --chat, and leave out --mask",
                   name));
      require(value, name, chat, "--chat");
    }
  });
}

void add_data_options(OptionTable& table, TrainOptions& o) {
  table.group("Data");
  table
      .text(
          "data", "DATA", o.data,
          "Training data. Token files: llm.c's format (which fsdp-tokenize writes), a memory-mapped data set of Megatron or "
          "fairseq (.bin with .idx), or HDF5. Texts: plain or lines of JSON, also packed by gzip or zstd, and Parquet files. "
          "Several files: a data-bin folder of fairseq-preprocess, another folder of such files (of which the split train is "
          "read, if their names are those of splits), or a pattern ('data/*.bin'). Several data sets: 'a.bin,b.bin' reads one "
          "after the other, 'a.bin:0.7,b.bin:0.3' mixes them with these shares of the sequences.")
      .positional()
      .required()
      .common();
  table.text("valid", "DATA", o.valid, "Validation data, in the same forms as DATA, but without shares.")
      .unset("the split for validation, if DATA is a folder that has it; else no validation")
      .common();
  add_document_options(table, o.break_mode, o.sharding.plan.documents, o.end_of_document);
  table
      .choice<LongRows>(
          "long-rows", o.long_rows, {{"split", LongRows::split}, {"truncate", LongRows::truncate}, {"drop", LongRows::drop}},
          "With --break-mode complete or eos: what becomes of a document that is longer than a sequence. split: it "
          "takes several sequences; truncate: only its beginning is used; drop: it is left out.")
      .sets("long rows");
  table.choice<Packing>(
      "packing", o.packing, {{"first-come", Packing::first_come}, {"best-fit", Packing::best_fit}},
      "With --break-mode complete: which documents share a sequence. first-come: neighbours in the file, as many as fit; "
      "best-fit: those that leave the least padding (with --document-attention).");
  table.flag("group-by-length", o.group_by_length,
             "With --break-mode complete or eos: read sequences of similar lengths together, so that a micro-batch has little "
             "padding. The order depends on --seed.");
  table.then([&o](const OptionTable&) {
    const bool by_documents = o.break_mode != BreakMode::none, packs = o.packing == Packing::best_fit;
    require(o.long_rows != LongRows::split, "long-rows", by_documents, "--break-mode complete or eos");
    if (packs && (o.break_mode != BreakMode::complete || !o.sharding.plan.documents))
      throw UserError(
          "--packing best-fit is for --break-mode complete with --document-attention (the documents of a packed sequence have "
          "nothing to do with each other); give both, or leave out --packing");
    if (o.group_by_length && (!by_documents || packs))
      throw UserError(format("--group-by-length changes nothing (with {}, all sequences are full); {}",
                             packs ? "--packing best-fit" : "--break-mode none",
                             packs ? "leave it out" : "give --break-mode complete or eos, or leave it out"));
  });
  table
      .text("mask", "FILES", o.mask,
            "Which tokens of DATA count in the loss: a token file with 1 for each token that counts and 0 for each other "
            "token. For several data sets, give their masks in the same order, without shares; for an HDF5 file with a dataset "
            "loss_mask, give that file. Sequences in which no token counts are left out.")
      .unset("the dataset loss_mask of an HDF5 file; else all tokens count");
  table.text("valid-mask", "FILES", o.valid_mask, "The mask of --valid, in the same form as --mask.").unset("as for --mask");
  table
      .text(
          "tokenizer", "NAME", o.tokenizer,
          "The tokenizer of texts and of the model: a folder with tokenizer.json, tokenizer.model or vocab.json, one of "
          "these files, or bytes. Texts are tokenized once, into the folder 'tokens' of --save-dir. Each checkpoint has a copy "
          "of the tokenizer's files. With --arch, the model has the tokenizer's vocabulary unless --vocab-size is given.")
      .alias("sample-tokenizer")
      .unset("that of the checkpoint, of --model or of --finetune-from; bytes with --arch, or for a vocabulary of 256")
      .sets("tokenizer")
      .common();
  add_text_options(table, o.json_field, o.chat, o.form, o.skip_invalid, "Only the tokens of answers count in the loss.");
  add_chat_template_option(table, o.chat_template, " Checkpoints have it as chat_template.jinja.");
  add_loss_spellings(table, o.chat);
  table.flag("shuffle", o.shuffle,
             "Read the sequences in a random order, which depends on --seed and on the pass over the data, instead of the "
             "file's order.");
}

/// Returns the first given option that changes a model; null if none is given.
const char* given_override(const OptionTable& table) {
  for (const char* name :
       {"decoder-layers", "decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads", "decoder-kv-heads",
        "vocab-size", "share-decoder-input-output-embed", "decoder-learned-pos", "no-scale-embedding", "activation-fn"})
    if (table.given(name)) return name;
  return nullptr;
}

void settle_model(const OptionTable& table, TrainOptions& o) {
  if (!o.arch.empty() && !o.model.empty())
    throw UserError("--arch and --model are both given (each decides the model); give one of them");
  const bool chosen = !o.arch.empty() || !o.model.empty();
  const bool asked = table.given("init");
  if (!o.finetune_from.empty() && asked && o.init == InitFrom::pretrained)
    throw UserError(
        "--finetune-from and --init pretrained are both given (each is a source of the first weights); leave one out");
  if (!o.arch.empty()) arch_config(o.arch);  // throws for unknown names
  if (!asked)
    o.init = o.model.empty() ? InitFrom::random : InitFrom::pretrained;
  else if (o.init == InitFrom::pretrained && o.model.empty())
    throw UserError("--init pretrained needs --model (an --arch has no weights); give --model DIR, or --init random");
  if (!o.ignore_missing.empty() && o.finetune_from.empty() && o.init != InitFrom::pretrained)
    throw UserError(
        "--ignore-missing changes nothing (the run loads no weights); give --finetune-from PATH or --model DIR, too, or leave "
        "it out");
  if (const char* given = given_override(table)) {
    if (!chosen && o.finetune_from.empty())
      throw UserError(format(
          "--{} changes nothing (a checkpoint that is resumed has its own configuration); give --arch or --model too, or "
          "leave it out",
          given));
    if (o.init == InitFrom::pretrained && o.ignore_missing.empty())
      throw UserError(
          format("--{} does not go with pretrained weights (they were trained with the model's own configuration); leave it "
                 "out, name the tensors that may differ with --ignore-missing, or add --init random",
                 given));
  }
}

/// Options of new tokens, as transformers' add_tokens() and resize_token_embeddings() have them.
void add_vocabulary_options(OptionTable& table, TrainOptions& o) {
  table
      .text("add-tokens", "FILE|LIST", o.add_tokens,
            "Add these tokens to the tokenizer, and rows for them to the embedding and the head: words with commas between "
            "them, or a file with one per line or with a JSON list of texts or {\"content\": ..., \"special\": ...}. A "
            "resumed run has them already.")
      .unset("none")
      .sets("new tokens");
  table
      .text("add-special-tokens", "FILE|LIST", o.add_special_tokens,
            "The same for control tokens, which are left out of generated text.")
      .unset("none");
  table.choice<NewTokenInit>(
      "new-token-init", o.new_token_init,
      {{"mean-of-pieces", NewTokenInit::mean_of_pieces}, {"mean", NewTokenInit::mean}, {"zeros", NewTokenInit::zeros}},
      "How the row of a new token begins: as the mean of the rows of the tokens into which the old tokenizer splits the word, "
      "as the mean of all rows, or as zeros. Padding begins as the mean of all rows, or as zeros.");
  table.integer("pad-vocab-to", "N", o.pad_vocab_to, {1, 1e6}, "Add rows until the vocabulary of the model is a multiple of N.")
      .unset("no rows without a token are added")
      .sets("multiple for the vocabulary");
  table.then([&o](const OptionTable& read) {
    require(read.changed("new-token-init"), "new-token-init", o.grows_vocabulary(), "--add-tokens");
    if (o.grows_vocabulary() && read.given("vocab-size"))
      throw UserError(
          "--vocab-size does not go with --add-tokens, --add-special-tokens and --pad-vocab-to (the vocabulary follows from "
          "the tokenizer); leave it out");
  });
}

/// Checks the options of adapters.
void settle_adapters(const OptionTable& table, const TrainOptions& o) {
  const bool has_rank = o.lora.rank > 0;
  if (!o.adapter.empty() && o.grows_vocabulary())
    throw UserError(
        "--adapter does not go with --add-tokens, --add-special-tokens and --pad-vocab-to (its rows are for the tokens that it "
        "was trained with); leave them out, or merge the adapter first");
  for (const char* name : {"lora-alpha", "lora-targets", "use-rslora", "lora-rank-pattern", "lora-alpha-pattern", "lora-layers",
                           "modules-to-save"}) {
    if (!table.changed(name)) continue;
    if (!o.adapter.empty())
      throw UserError(format(
          "--{} does not go with --adapter (its adapter_config.json, or its checkpoint, has this value); leave it out", name));
    require(true, name, has_rank, "--lora-rank");
  }
  require(table.changed("lora-dropout"), "lora-dropout", has_rank || !o.adapter.empty(), "--lora-rank or --adapter");
  if (o.base_type && !has_rank && o.adapter.empty())
    throw UserError(
        "--base-dtype needs --lora-rank or --adapter (quantized matrices cannot be trained, only adapters); give "
        "one, or leave out --base-dtype");
  if (has_rank && !o.adapter.empty())
    throw UserError(
        "--lora-rank and --adapter are both given (one makes new adapters, the other continues with trained ones); leave one "
        "out");
  if (has_rank && !o.ignore_missing.empty())
    throw UserError(
        "--ignore-missing does not go with --lora-rank (checkpoints of adapters leave out the base model, which must exist as "
        "a whole); train and consolidate that model first");
}

/// The options of adapters, as in PEFT's LoraConfig and TRL's ModelConfig.
void add_adapter_options(OptionTable& table, TrainOptions& o) {
  table
      .integer("lora-rank", "R", o.lora.rank, {1, 65536},
               "Train adapters of this rank (LoRA), and freeze the model, the base. Checkpoints have the adapters and "
               "the name and checksum of the base.")
      .alias("lora-r")
      .unset("no adapters: all of the model is trained")
      .sets("rank of adapters")
      .common();
  table.number("lora-alpha", "A", o.lora.alpha, "Scale of adapters: their outputs are multiplied by A / R.", "above 0",
               above_0);
  table.number("lora-dropout", "P", o.lora.dropout, "Drop elements of the inputs of adapters.", "from 0 to below 1", below_1);
  table
      .list("lora-targets", "NAMES", o.lora.targets,
            "Modules that get adapters: names, as in 'q_proj,v_proj' or 'embed_tokens,lm_head', or shell globs over names of "
            "projections of the blocks; all-linear: all of these projections.")
      .alias("lora-target-modules")
      .alias("target-modules")
      .unset("as in PEFT, those to queries and values")
      .sets("targets of adapters");
  table
      .numbers_by_name(
          "lora-rank-pattern", "NAME=R,...", o.lora.ranks, "Adapters of these modules have another rank.", "from 1 to 65536",
          [](double rank) { return rank >= 1 && rank <= 65536 && rank == static_cast<double>(static_cast<int>(rank)); })
      .alias("rank-pattern")
      .unset("all adapters have --lora-rank")
      .sets("ranks of adapters");
  table
      .numbers_by_name("lora-alpha-pattern", "NAME=A,...", o.lora.alphas, "Adapters of these modules have another alpha.",
                       "above 0", above_0)
      .alias("alpha-pattern")
      .unset("all adapters have --lora-alpha")
      .sets("alphas of adapters");
  table.list("lora-layers", "N,...", o.lora_layers, "Only these blocks get adapters; the first is 0.")
      .alias("layers-to-transform")
      .unset("all blocks get adapters")
      .sets("layers with adapters");
  table
      .list("modules-to-save", "NAMES", o.lora.modules_to_save,
            "Also train these modules as a whole, and store them with the adapters: ends of names of modules, as in "
            "'embed_tokens,lm_head'.")
      .alias("lora-modules-to-save")
      .unset("only adapters are trained, and the rows of new tokens")
      .sets("modules to save");
  table.flag("use-rslora", o.lora.rank_stabilized, "Scale adapters by A / sqrt(R) instead of A / R (rank-stabilized LoRA).");
  table
      .path("adapter", "DIR", o.adapter,
            "Train these adapters further: a folder of PEFT (adapter_config.json and adapter_model.safetensors), or a "
            "checkpoint of adapters. The optimizer starts anew.")
      .unset("--lora-rank makes new adapters")
      .sets("adapter");
  add_base_type_option(table, o.base_type,
                       "Keep the matrices of the base model's blocks quantized, and expand them for each product (QLoRA).");
  table.then([&o](const OptionTable& read) {
    o.lora.layers.clear();
    for (const std::string& text : o.lora_layers) {
      const auto layer = number_in<std::size_t>(text);
      if (!layer)
        throw UserError(format("--lora-layers has '{}' (it is no number of a block); give numbers such as 0,1,5", text));
      o.lora.layers.push_back(*layer);
    }
    settle_adapters(read, o);
  });
}

void add_model_options(OptionTable& table, TrainOptions& o) {
  table.group("Model");
  table
      .text("arch", "NAME", o.arch,
            "Model by name; --list-archs prints the names. A new model has --tokens-per-sample positions, even if the "
            "architecture allows more.")
      .unset("as --model, or as the checkpoint that is resumed")
      .common();
  table.flag("list-archs", o.list_archs, "Print the names that --arch knows and exit.").command_line_only().common();
  table
      .path("model", "DIR", o.model,
            "Hugging Face folder: config.json, and model.safetensors or the files that model.safetensors.index.json names.")
      .unset("as --arch")
      .sets("base model")
      .common();
  table
      .choice<InitFrom>("init", o.init, {{"random", InitFrom::random}, {"pretrained", InitFrom::pretrained}},
                        "Where the first weights come from.")
      .follows("pretrained with --model, random with --arch");
  add_size_options(table, o.sizes);
  table.row("vocab-size")
      .unset(
          "with --arch: that of the tokenizer if DATA is text or --tokenizer is given, or that of a data-bin folder's "
          "dict.txt; else as the model says");
  table.number("dropout", "P", o.dropout,
               "Drop elements of the embeddings and of the outputs of attention and feed-forward layers.", "from 0 to below 1",
               below_1);
  table.number("attention-dropout", "P", o.attention_dropout, "Drop attention probabilities.", "from 0 to below 1", below_1);
  add_vocabulary_options(table, o);
  add_adapter_options(table, o);
  table
      .number("label-smoothing", "S", o.label_smoothing,
              "Train on (1 - S) x cross-entropy + S x the mean over the vocabulary of -log p, as "
              "torch.nn.CrossEntropyLoss(label_smoothing=S). The loss that is logged is the one that is trained; validation "
              "has the plain cross-entropy.",
              "from 0 to below 1", below_1)
      .alias("label-smoothing-factor");
  table.number("z-loss", "C", o.z_loss,
               "Add C x (log Z)^2 to the loss of each target, where Z is the sum of exp(logit) over the vocabulary (PaLM uses "
               "1e-4), also to the loss that is logged.",
               "0 or more", not_negative);
  table
      .number("neftune-alpha", "A", o.neftune_alpha,
              "NEFTune: in training, add uniform noise from -A to A, divided by the root of --tokens-per-sample x width, to "
              "the embeddings (the paper uses 5 to 15). The noise follows --seed.",
              "0 or more", not_negative)
      .alias("neftune-noise-alpha");
  table.then([&o](const OptionTable& read) { settle_model(read, o); });
}

/// Checks that --total-batch-size = --batch-size x --update-freq x ranks, and computes --update-freq or --total-batch-size if
/// one of them is missing. `max_tokens` is the batch size in tokens, as in fairseq; 0 if not given.
void settle_batch(const OptionTable& table, TrainOptions& o, std::size_t max_tokens, int ranks) {
  expect(ranks > 0, "a job has ranks");
  if (max_tokens > 0) {
    const std::size_t most = max_tokens / o.sharding.batch.T;
    if (most == 0)
      throw UserError(
          format("--max-tokens {} does not hold one sequence of {} tokens (every sequence has --tokens-per-sample); "
                 "raise --max-tokens or lower --tokens-per-sample",
                 max_tokens, o.sharding.batch.T));
    o.sharding.batch.B = table.given("batch-size") ? std::min(o.sharding.batch.B, most) : most;
  }
  constexpr std::size_t most_tokens = std::size_t{1} << 30;
  if (o.sharding.batch.B > most_tokens / o.sharding.batch.T)
    throw UserError(format(
        "--batch-size {} with --tokens-per-sample {} is too large (a micro-batch has {} tokens at most); lower one of them",
        o.sharding.batch.B, o.sharding.batch.T, most_tokens));
  const std::size_t B = o.sharding.batch.B, per_step = B * static_cast<std::size_t>(ranks);
  std::size_t& K = o.sharding.plan.micro_batches;
  if (table.given("total-batch-size")) {
    if (!table.given("update-freq")) {
      if (o.total_batch_size % per_step != 0)
        throw UserError(format(
            "--total-batch-size {} is not a multiple of --batch-size {} x {} ranks = {} (every rank does the same number of "
            "micro-batches); choose another batch size or number of ranks",
            o.total_batch_size, B, ranks, per_step));
      K = o.total_batch_size / per_step;
    } else if (K * per_step != o.total_batch_size) {
      throw UserError(
          format("--total-batch-size {} is not --batch-size {} x --update-freq {} x {} ranks = {} (they must agree); leave out "
                 "--update-freq or --total-batch-size, or change one of them",
                 o.total_batch_size, B, K, ranks, K * per_step));
    }
  }
  o.total_batch_size = K * per_step;
}

void add_batch_options(OptionTable& table, TrainOptions& o, const std::function<int()>& ranks) {
  table.group("Batch");
  add_batch_options(table, o.sharding);
  table.row("batch-size").alias("max-sentences");
  table.row("update-freq").follows("1, or as --total-batch-size requires");
  table
      .integer("total-batch-size", "G", o.total_batch_size, {1, 1e12},
               "Sequences per update over all ranks; must equal B x K x ranks.")
      .follows("B x K x ranks");
  table
      .integer("pad-to-multiple-of", "N", o.execution.pad_to_multiple_of, {1, 1e9},
               "A micro-batch is computed up to its last target that counts: its number of columns is rounded up to a multiple "
               "of N. With N = --tokens-per-sample, all columns are computed.")
      .unset("few numbers of columns, with little padding: see docs/running.md");
  const auto max_tokens = std::make_shared<std::size_t>(0);  // the step of the table keeps `max_tokens` alive
  table
      .integer("max-tokens", "N", *max_tokens, {1, 1e12},
               "fairseq's spelling of --batch-size: as many sequences as fit into N tokens, but at most --batch-size if that "
               "is given, too.")
      .unset("as --batch-size")
      .spelling();
  table.then([&o, ranks, max_tokens](const OptionTable& read) { settle_batch(read, o, *max_tokens, ranks()); });
}

std::string number_text(double x) {
  std::string text = format("{}", x);
  if (const std::size_t zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);  // 1e-08 becomes 1e-8
  return text;
}

/// Returns "a", "a and b" or "a, b and c".
std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  return text;
}

using OptimizerFlag = std::function<bool(const Optimizer&)>;

std::vector<std::string_view> optimizers_where(const OptimizerFlag& is) {
  std::vector<std::string_view> names;
  for (const Optimizer* optimizer : optimizers())
    if (is(*optimizer)) names.push_back(optimizer->name);
  return names;
}

/// The optimizers that read an option, for the help of the option: "sgd and muon", or "all but sgd" if that is shorter.
std::string readers(const OptimizerFlag& reads) {
  const auto those = optimizers_where(reads), others = optimizers_where(std::not_fn(reads));
  return those.size() <= others.size() ? listed(those) : "all but " + listed(others);
}

/// The defaults that an option has with the optimizers that read it, as in "1e-8; lamb 1e-6". The default of the first
/// optimizer comes first, then the names and defaults of optimizers with another default.
std::string defaults_text(const OptimizerFlag& reads, const std::function<std::string(const Optimizer&)>& value) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> by_value;
  for (const Optimizer* optimizer : optimizers()) {
    if (!reads(*optimizer)) continue;
    const std::string text = value(*optimizer);
    auto same = std::find_if(by_value.begin(), by_value.end(), [&](const auto& one) { return one.first == text; });
    if (same == by_value.end()) same = by_value.insert(same, {text, {}});
    same->second.push_back(optimizer->name);
  }
  std::string all;
  for (std::size_t i = 0; i < by_value.size(); ++i)
    all += i == 0 ? by_value[i].first : format("{}{} {}", i == 1 ? "; " : ", ", listed(by_value[i].second), by_value[i].first);
  return all;
}

bool reads_betas(const Optimizer& optimizer) { return optimizer.reads.betas; }
bool reads_eps(const Optimizer& optimizer) { return optimizer.reads.eps; }
bool reads_momentum(const Optimizer& optimizer) { return optimizer.reads.momentum; }
bool reads_nesterov(const Optimizer& optimizer) { return optimizer.reads.nesterov; }
bool reads_amsgrad(const Optimizer& optimizer) { return optimizer.reads.amsgrad; }

std::string optimizer_help() {
  std::string help = format("Optimizer. {} have L2 decay, the others decoupled weight decay.",
                            listed(optimizers_where([](const Optimizer& optimizer) { return optimizer.l2_decay; })));
  for (const Optimizer* optimizer : optimizers())
    if (!optimizer->about.empty()) help += format(" {}", optimizer->about);
  return help;
}

/// Sets the defaults of the chosen optimizer, and refuses options that this optimizer does not read.
void settle_optimizer(const OptionTable& table, TrainOptions& o) {
  OptimizerOptions& optimizer = o.sharding.optimizer;
  const Optimizer& row = *optimizer.kind;
  const auto does_not_read = [&](bool given, bool (*reads)(const Optimizer&), const char* option) {
    if (given && !reads(row))
      throw UserError(
          format("--{} changes nothing (--optimizer {} does not read it; {} do); leave it out, or choose another optimizer",
                 option, row.name, listed(optimizers_where(reads))));
  };
  does_not_read(table.given("momentum"), reads_momentum, "momentum");
  does_not_read(optimizer.nesterov, reads_nesterov, "nesterov");
  does_not_read(optimizer.amsgrad, reads_amsgrad, "amsgrad");
  if (!table.given("adam-betas")) optimizer.beta1 = row.beta1, optimizer.beta2 = row.beta2;
  if (!table.given("adam-eps")) optimizer.eps = row.eps;
  if (!table.given("momentum")) optimizer.momentum = row.momentum;
  if (!table.given("weight-decay")) optimizer.weight_decay = row.weight_decay;
  if (optimizer.nesterov && optimizer.momentum == 0)
    throw UserError("--nesterov changes nothing (there is no momentum); give --momentum, too, or leave it out");
  optimizer.seed = static_cast<std::uint32_t>(o.seed);
}

/// Turns the options of a stable run into those of a branch with a decay, apart from its save folder.
void settle_branch(const OptionTable& table, TrainOptions& o) {
  if (o.decay_from == 0) return;
  Schedule& s = o.schedule;
  if (s.decay != Decay::wsd && s.decay != Decay::fixed)
    throw UserError(
        "--decay-from does not go with this --lr-scheduler (its rate has fallen before the branch); choose wsd or fixed");
  if (table.given("restore") || !o.finetune_from.empty())
    throw UserError(
        "--decay-from and --restore or --finetune-from are both given (each names what to start from); leave one out");
  require(true, "decay-from", s.decay_updates > 0, "--decay-updates");
  s.decay = Decay::wsd;
  s.total = o.max_update = o.decay_from + s.decay_updates;
  o.max_epoch = 0;
}

void settle_schedule(const OptionTable& table, TrainOptions& o) {
  settle_branch(table, o);
  Schedule& s = o.schedule;
  if (!table.given("total-num-update") || o.decay_from > 0) s.total = o.max_update;
  if (o.max_update == 0 && o.max_epoch == 0) o.max_update = s.total;
  if (o.warmup_ratio > 0) {
    const std::uint64_t warmup = warmup_of(o.warmup_ratio, s.total);  // 0 if only the data tell the number of updates
    if (table.given("warmup-updates") && s.warmup != warmup)
      throw UserError(
          format("--warmup-ratio {} contradicts --warmup-updates {} (it is a share of the planned updates{}); leave one out",
                 o.warmup_ratio, s.warmup, s.total > 0 ? format(", which makes {} of {}", warmup, s.total) : ""));
    s.warmup = warmup;
  }
  require(o.min_lr_ratio > 0, "min-lr-ratio", has_end(s), "an --lr-scheduler that falls to a rate");
  if (o.min_lr_ratio > 0) {
    const double end = o.min_lr_ratio * s.learning_rate;
    if (table.given("end-learning-rate") && s.end != end)
      throw UserError(format("--min-lr-ratio {} contradicts --end-learning-rate {} (it makes {} of --lr {}); leave one out",
                             o.min_lr_ratio, s.end, end, s.learning_rate));
    s.end = end;
  }
  const bool wsd = s.decay == Decay::wsd;
  require(table.given("decay-updates"), "decay-updates", wsd, "--lr-scheduler wsd");
  if (wsd && s.decay_updates == 0)
    throw UserError("--lr-scheduler wsd needs the length of the decay (it has no default); give --decay-updates N");
  const bool fixed = s.decay == Decay::fixed || s.decay == Decay::inverse_sqrt;
  if (fixed && s.end != 0)
    throw UserError(
        "--end-learning-rate changes nothing (--lr-scheduler fixed and inverse_sqrt do not end); leave it out, or choose "
        "another schedule");
  require(table.changed("power"), "power", s.decay == Decay::polynomial, "--lr-scheduler polynomial_decay");
  require(table.changed("num-cycles"), "num-cycles", s.decay == Decay::cosine_with_restarts,
          "--lr-scheduler cosine_with_restarts");
  check_schedule(s);
}

void add_optimizer_options(OptionTable& table, TrainOptions& o) {
  OptimizerOptions& optimizer = o.sharding.optimizer;
  table.group("Optimizer");
  std::vector<std::pair<std::string, const Optimizer*>> names;
  for (const Optimizer* row : optimizers()) names.emplace_back(row->name, row);
  table.choice<const Optimizer*>("optimizer", optimizer.kind, std::move(names), optimizer_help()).common();
  table.number("lr", "RATE", o.schedule.learning_rate, "Learning rate after the warm-up.", "0 or more", not_negative).common();
  table
      .pair("adam-betas", "\"(B1,B2)\"", optimizer.beta1, optimizer.beta2,
            format("Decay rates of the first and second moment; {} read them.", readers(reads_betas)), "from 0 to below 1",
            below_1)
      .follows(defaults_text(reads_betas, [](const Optimizer& row) { return format("({},{})", row.beta1, row.beta2); }));
  table
      .number("adam-eps", "EPS", optimizer.eps,
              format("Added to the root of the second moment; {} read it.", readers(reads_eps)), "above 0", above_0)
      .follows(defaults_text(reads_eps, [](const Optimizer& row) { return number_text(row.eps); }));
  table.flag("amsgrad", optimizer.amsgrad, "With Adam optimizers: divide by the largest second moment so far.");
  table
      .number("momentum", "M", optimizer.momentum,
              format("With {}: how much of the last step is kept.", readers(reads_momentum)), "from 0 to below 1", below_1)
      .follows(defaults_text(reads_momentum, [](const Optimizer& row) { return number_text(row.momentum); }));
  table.flag("nesterov", optimizer.nesterov, "With sgd and --momentum: Nesterov's form. muon always has it.");
  table
      .number("weight-decay", "DECAY", optimizer.weight_decay,
              "Weight decay of tensors of two or more dimensions; vectors (biases, gains of norms) have none.", "0 or more",
              not_negative)
      .alias("wd")
      .follows(defaults_text([](const Optimizer&) { return true; },
                             [](const Optimizer& row) { return number_text(row.weight_decay); }));
  table.list("no-decay", "PATTERNS", optimizer.no_decay,
             "Parameters without weight decay, in addition to the vectors: shell globs over names.");
  table.numbers_by_name(
      "lr-scale", "PATTERN=X,...", optimizer.learning_rate_scales,
      "Multiply the learning rate of the parameters that match, as in 'h.0.*=0.1,*wte*=0.5'; the last match counts.",
      "PATTERN=X with numbers of 0 or more, as in 'h.0.*=0.1'", not_negative);
  add_state_type_option(table, optimizer.state_type);
  table
      .number("clip-norm", "NORM", o.clip_norm, "Scale gradients down to this norm; 0: do not clip.", "0 or more", not_negative)
      .common();
  table.number("clip-value", "VALUE", o.clip_value,
               "Limit each element of the gradient to the range from -VALUE to VALUE; 0: do not. The reported norm is the norm "
               "before that.",
               "0 or more", not_negative);
  table.then([&o](const OptionTable&) {
    if (o.clip_norm > 0 && o.clip_value > 0)
      throw UserError(
          "--clip-norm and --clip-value are both given (it is not defined which one is applied first); leave one out");
    if (o.log_group_norms && o.clip_value > 0)
      throw UserError(
          "--log-group-norms does not go with --clip-value (the norms would be those of the clipped gradient); leave one out");
    o.sharding.plan.clip_values = o.clip_value > 0;
  });
  table.number(
      "ema-decay", "D", o.ema_decay,
      "Keep a moving average of the trained weights, in fp32: after each update it is D x average + (1 - D) x weights. "
      "It is saved in checkpoints, and read with --use-ema. 0: keep none.",
      "from 0 to below 1", below_1);
  table.integer("ema-start-update", "N", o.ema_start_update, {0},
                "With --ema-decay: until update N, the average is a copy of the weights.");
  table.flag("use-ema", o.use_ema, "With --ema-decay: validate, and print samples, with the average instead of the weights.");
  table.then([&o](const OptionTable&) {
    require(o.ema_start_update > 0, "ema-start-update", o.ema_decay > 0, "--ema-decay");
    require(o.use_ema, "use-ema", o.ema_decay > 0, "--ema-decay");
    if (o.use_ema && o.sharding.types.master != DType::f32)
      throw UserError(
          "--use-ema does not go with --master-dtype bf16 (the average would be rounded to bf16); leave "
          "one out, or evaluate checkpoints with fsdp-evaluate --use-ema");
    o.sharding.plan.average_weights = o.ema_decay > 0;
  });
  table.number(
      "skip-spikes", "SIGMA", o.skip_spikes,
      "Leave out an update if its loss or gradient norm is more than SIGMA standard deviations above the mean of about 128 "
      "updates (OLMo-core uses 6); its batch is used up. The first 64 updates are never left out. 0: leave out none.",
      "0, or 1 or more", [](double x) { return x == 0 || x >= 1; });
  table
      .choice<Decay>(
          "lr-scheduler", o.schedule.decay,
          {{"fixed", Decay::fixed},
           {"polynomial_decay", Decay::polynomial},
           {"cosine", Decay::cosine},
           {"inverse_sqrt", Decay::inverse_sqrt},
           {"wsd", Decay::wsd},
           {"linear", Decay::linear},
           {"cosine_with_restarts", Decay::cosine_with_restarts},
           {"constant_with_warmup", Decay::fixed},
           {"cosine_with_min_lr", Decay::cosine}},
          "Schedule of the learning rate after the warm-up. fixed (Trainer's constant_with_warmup): --lr; linear, "
          "polynomial_decay and cosine (cosine_with_min_lr): from --lr to --end-learning-rate at --total-num-update; "
          "cosine_with_restarts: --num-cycles times in that range, each time from --lr; inverse_sqrt: --lr times the square "
          "root of W / update; wsd: --lr, then linearly to --end-learning-rate in the last --decay-updates.")
      .alias("lr-scheduler-type")
      .common();
  table.integer("warmup-updates", "W", o.schedule.warmup, {0}, "Updates in which the rate rises from 0 to --lr.").common();
  table.number(
      "warmup-ratio", "R", o.warmup_ratio,
      "Warm up in this share of the planned updates, --total-num-update, rounded up, as transformers' Trainer does; 0: as "
      "--warmup-updates.",
      "from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
  table.integer("total-num-update", "U", o.schedule.total, {1}, "Update at which the decay ends.")
      .unset("--max-update, or the updates of --max-epoch");
  table
      .integer(
          "decay-from", "STEP", o.decay_from, {1, 1e12},
          "With the options of a run whose rate is --lr after the warm-up (wsd or fixed): take its step STEP from --save-dir, "
          "let the rate fall as wsd does in the next --decay-updates, and stop then, whatever --max-update says. This branch "
          "saves to the folder decay-from-STEP in --save-dir, and the run's own steps remain.")
      .unset("no branch");
  table.integer("decay-updates", "D", o.schedule.decay_updates, {1}, "With wsd: updates at the end in which the rate falls.")
      .unset("none; wsd needs it");
  table.number("end-learning-rate", "RATE", o.schedule.end, "Learning rate at the end of the decay.", "0 or more",
               not_negative);
  table
      .number("min-lr-ratio", "R", o.min_lr_ratio, "--end-learning-rate as a share of --lr; 0: as --end-learning-rate.",
              "from 0 to 1", [](double x) { return x >= 0 && x <= 1; })
      .alias("min-lr-rate");
  table.integer("num-cycles", "N", o.schedule.cycles, {1, 1e6},
                "With cosine_with_restarts: how often the rate falls from --lr.");
  table.number("power", "P", o.schedule.power, "Power of polynomial_decay.", "above 0", above_0);
  table.integer("max-update", "N", o.max_update, {1}, "Updates in total, including those before the run was resumed.")
      .unset("as --max-epoch, else as --total-num-update; one of the three is needed")
      .common();
  table.integer("max-epoch", "N", o.max_epoch, {1}, "Passes over the data in total; the last update may have a smaller batch.")
      .unset("as --max-update")
      .common();
  table.then([&o](const OptionTable& read) {
    settle_optimizer(read, o);
    settle_schedule(read, o);
  });
}

/// fairseq's options for the sharding strategy.
struct StrategySpellings {
  std::string ddp_backend;  // the sharding strategy that the given --ddp-backend stands for
  bool no_reshard_after_forward = false;
};

void settle_strategy(const OptionTable& table, const StrategySpellings& spelled, std::string& strategy) {
  if (!spelled.ddp_backend.empty()) {
    if (!table.given("sharding-strategy")) strategy = spelled.ddp_backend;
    if ((strategy == "none") != (spelled.ddp_backend == "none"))
      throw UserError(
          format("--ddp-backend {} contradicts --sharding-strategy {} (each decides what is sharded); leave one out",
                 spelled.ddp_backend == "none" ? "pytorch_ddp" : "fully_sharded", strategy));
  }
  if (!spelled.no_reshard_after_forward) return;
  if (strategy == "full" || strategy == "hybrid")
    strategy = strategy == "full" ? "grad-op" : "hybrid-grad-op";
  else if (strategy != "grad-op" && strategy != "hybrid-grad-op")
    throw UserError(
        format("--no-reshard-after-forward does not go with --sharding-strategy {} (it always keeps parameters whole); leave "
               "it out, or choose full or hybrid",
               strategy));
}

void check_wrap(const OptionTable& table, const WrapPolicy& wrap) {
  using Kind = WrapPolicy::Kind;
  require(table.changed("wrap-layers"), "wrap-layers", wrap.kind == Kind::transformer, "--wrap-policy transformer");
  require(table.changed("min-num-params"), "min-num-params", wrap.kind == Kind::size, "--wrap-policy size");
  require(!wrap.patterns.empty(), "wrap-units", wrap.kind == Kind::custom, "--wrap-policy custom");
  if (wrap.kind == Kind::custom && wrap.patterns.empty())
    throw UserError("--wrap-policy custom has no units (patterns define its units); give --wrap-units 'PATTERN,...'");
}

void add_sharding_options(OptionTable& table, ShardingOptions& sharding, const CommOptions& comm) {
  const auto spelled = std::make_shared<StrategySpellings>();  // the steps of the table keep `spelled` alive
  table.group("Sharding");
  add_strategy_option(table, sharding.strategy);
  table.row("sharding-strategy").follows("full");  // printed as a comment only, so that --ddp-backend can set it
  table
      .choice<std::string>(
          "ddp-backend", spelled->ddp_backend,
          {{"fully_sharded", "full"}, {"pytorch_ddp", "none"}, {"c10d", "none"}, {"legacy_ddp", "none"}, {"no_c10d", "none"}},
          "fairseq's spelling of --sharding-strategy full (fully_sharded) and none (pytorch_ddp, its old name "
          "c10d, legacy_ddp and its old name no_c10d).")
      .unset("as --sharding-strategy")
      .spelling();
  table
      .flag("no-reshard-after-forward", spelled->no_reshard_after_forward,
            "fairseq's spelling of --sharding-strategy grad-op instead of full, and of hybrid-grad-op instead of hybrid.")
      .spelling();
  add_group_option(table, sharding.shard_group_size);
  using Kind = WrapPolicy::Kind;
  table.choice<Kind>(
      "wrap-policy", sharding.wrap.kind,
      {{"transformer", Kind::transformer},
       {"size", Kind::size},
       {"none", Kind::none},
       {"custom", Kind::custom},
       {"layer", Kind::transformer},
       {"transformer_auto_wrap_policy", Kind::transformer},
       {"size_based_auto_wrap_policy", Kind::size},
       {"TRANSFORMER_BASED_WRAP", Kind::transformer},
       {"SIZE_BASED_WRAP", Kind::size},
       {"NO_WRAP", Kind::none}},
      "What is gathered together. transformer: --wrap-layers blocks; size: modules of --min-num-params (PyTorch's "
      "size_based_auto_wrap_policy); custom: --wrap-units; none: everything. The rest is the root unit.");
  table.integer("wrap-layers", "N", sharding.wrap.blocks_per_unit, {1, 1e4}, "Blocks per unit.");
  table.size("min-num-params", "N", sharding.wrap.min_num_params,
             "With --wrap-policy size: parameters that a module must have to be a unit.");
  table.list("wrap-units", "PATTERNS", sharding.wrap.patterns,
             "Units of --wrap-policy custom: one shell glob over module names per unit, as in 'h.[0-3],h.[4-7]'.");
  table.choice<BackwardPrefetch>("backward-prefetch", sharding.plan.backward_prefetch,
                                 {{"pre", BackwardPrefetch::pre},
                                  {"post", BackwardPrefetch::post},
                                  {"none", BackwardPrefetch::none},
                                  {"BACKWARD_PRE", BackwardPrefetch::pre},
                                  {"BACKWARD_POST", BackwardPrefetch::post},
                                  {"NO_PREFETCH", BackwardPrefetch::none}},
                                 "When the next unit is gathered in backward. pre: before the computation of the current unit; "
                                 "post: after it; none: when the next unit is needed.");
  table.flag("forward-prefetch", sharding.plan.forward_prefetch,
             "Gather the next unit before the computation of the current one in forward; --forward-prefetch=false: when it is "
             "needed.");
  table.integer("limit-all-gathers", "N", sharding.plan.parameter_slots, {1, 1e4},
                "Units that can be gathered at the same time, not counting units that stay gathered. All but one of them can "
                "be gathered ahead.");
  table.flag(
      "accumulate-unsharded", sharding.plan.accumulate_unsharded,
      "Add up unsharded gradients over the micro-batches and reduce them once (PyTorch's no_sync): less traffic, more memory.");
  add_invariance_option(table, sharding, comm);
  table.list("ignore-params", "PATTERNS", sharding.patterns.ignore,
             "Parameters to keep whole on every rank: shell globs over names.");
  table.list("freeze", "PATTERNS", sharding.patterns.freeze,
             "Parameters not to train: no gradient, no optimizer state. '*' crosses dots.");
  table.list("train-only", "PATTERNS", sharding.patterns.train_only, "Parameters to train; all others are frozen.");
  table.then([&sharding, spelled](const OptionTable& read) {
    settle_strategy(read, *spelled, sharding.strategy);
    check_wrap(read, sharding.wrap);
  });
}

/// Sets and checks the options of the loss scale, which need fp16.
void settle_loss_scale(const OptionTable& table, TrainOptions& o, int ranks) {
  LossScalerOptions& scaler = o.loss_scaler;
  const DType precision = o.sharding.types.parameter;
  const bool changed = table.changed("fp16-init-scale") || table.given("fp16-scale-window") ||
                       table.changed("fp16-scale-tolerance") || table.changed("min-loss-scale") || scaler.threshold.has_value();
  if (changed && precision != DType::f16)
    throw UserError(
        format("a loss scale changes nothing (it needs --fp16, but the precision is {}); leave out --fp16-init-scale and the "
               "other options of the loss scale",
               name_of(precision)));
  if (scaler.init_scale <= scaler.min_scale)
    throw UserError(
        format("--fp16-init-scale {} is not above --min-loss-scale {} (the first overflow would end the run); raise "
               "--fp16-init-scale or lower --min-loss-scale",
               scaler.init_scale, scaler.min_scale));
  if (scaler.threshold && *scaler.threshold > scaler.init_scale)
    throw UserError(
        format("--threshold-loss-scale {} is above --fp16-init-scale {} (an overflow would raise the scale); lower "
               "--threshold-loss-scale or raise --fp16-init-scale",
               *scaler.threshold, scaler.init_scale));
  if (!table.given("fp16-scale-window"))
    scaler.scale_window =
        std::max<std::size_t>(1, (std::size_t{1} << 14) / static_cast<std::size_t>(ranks) / o.sharding.plan.micro_batches);
}

void add_precision_options(OptionTable& table, TrainOptions& o, const std::function<int()>& ranks) {
  ShardingOptions& sharding = o.sharding;
  LossScalerOptions& scaler = o.loss_scaler;
  table.group("Precision");
  add_precision_options(table, sharding.types.parameter);
  const auto dtypes = dtype_names();
  table.choice<DType>(
      "reduce-dtype", sharding.types.reduce, dtypes,
      "Type in which gradients are sent to the ranks that sum them. Each rank rounds its gradient once; the sums are computed "
      "and sent in fp32. In fp16, gradients (times the loss scale of --fp16) become 0 below 6e-8 and infinite above 65504.");
  add_kept_type_options(table, sharding.types);
  table.choice<DType>("buffer-dtype", o.execution.table_type, dtypes,
                      "Type to which the model's buffers, the tables of rotary positions, are rounded.");
  table.number("fp16-init-scale", "S", scaler.init_scale, "With fp16: loss scale of the first update.", "above 0", above_0);
  table
      .integer("fp16-scale-window", "N", scaler.scale_window, {1},
               "With fp16: updates without overflow after which the scale doubles.")
      .follows("2^14 / ranks / --update-freq");
  table.number("fp16-scale-tolerance", "PART", scaler.tolerance,
               "With fp16: share of updates since the last change of the scale that may overflow before it is halved.",
               "from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
  table.number("min-loss-scale", "S", scaler.min_scale,
               "With fp16: stop the run instead of lowering the loss scale to this or less.", "above 0", above_0);
  table
      .number("threshold-loss-scale", "S", scaler.threshold, "With fp16: do not halve the scale below this.", "0 or more",
              not_negative)
      .unset("none");
  table.then([&o, ranks](const OptionTable& read) { settle_loss_scale(read, o, ranks()); });
}

/// Reads the value of --recompute-num-layers, which the user typed as `name`, if it is not "auto".
std::size_t read_blocks(const std::string& name, const std::string& value) {
  const auto blocks = number_in<std::size_t>(value);
  if (!blocks)
    throw UserError(format("{} '{}' is neither a number of blocks nor auto; give a whole number from 0, or auto", name, value));
  return *blocks;
}

void add_memory_options(OptionTable& table, TrainOptions& o) {
  ShardingOptions& sharding = o.sharding;
  table.group("Memory");
  add_recomputation_option(table, sharding.plan.checkpoint_activations);
  table.choice<CheckpointPolicy>(
      "checkpoint-policy", sharding.plan.checkpoint_policy,
      {{"block", CheckpointPolicy::block}, {"selective", CheckpointPolicy::selective}},
      "With --checkpoint-activations: what is kept. block: only the blocks' inputs; selective: also the results of attention "
      "and of the large matrix products, so that only cheap work is recomputed.");
  table.integer("checkpoint-every", "N", sharding.plan.checkpoint_every, {1, 1e4},
                "With --checkpoint-activations: blocks per segment; only the input of its first block is kept.");
  table
      .text("recompute-num-layers", "N", o.recompute_num_layers,
            "Instead of --checkpoint-activations: recompute the first N blocks, and keep the activations of the others. auto: "
            "the fewest blocks with which a rank needs no more memory than is free, or than --memory-limit; on a GPU, if "
            "recomputing all blocks is not enough, also with inputs of the first blocks in the host's memory, as with "
            "--offload-activations.")
      .sets("number of recomputed blocks");
  table
      .flag("offload-activations", o.offload_activations,
            "On GPUs: keep the inputs of recomputed blocks in the host's memory until backward. Results are the same. "
            "Implies --checkpoint-activations, unless --recompute-num-layers is given.")
      .sets("inputs of blocks on the host");
  table
      .integer("cpu-offloading-num-layers", "N", o.offloaded_layers, {1, 1e6},
               "With --offload-activations: only the inputs of the first N blocks.")
      .unset("all blocks that are recomputed")
      .sets("number of offloaded inputs");
  table
      .size("memory-limit", "SIZE", o.memory_limit,
            "Memory of a rank, on a GPU or a CPU. If a rank needs more, pieces of logits and MLPs get smaller (not with "
            "--invariant, because the bits then differ). Then, unless --checkpoint-activations or --recompute-num-layers is "
            "given, blocks are recomputed, as with --recompute-num-layers auto. If that is not enough, the program ends before "
            "it trains. fsdp-plan marks the strategies that fit, and names the one of them that communicates least.",
            std::size_t{1} << 20)
      .unset("no limit")
      .sets("memory limit");
  add_offload_options(table, sharding, &o.execution.nvme_path);
  table.then([&o, &sharding](const OptionTable& read) {
    PlanOptions& plan = sharding.plan;
    plan.recomputed_blocks =
        o.recompute_num_layers == "auto" ? 0 : read_blocks(read.typed("recompute-num-layers"), o.recompute_num_layers);
    const bool is_numbered = read.changed("recompute-num-layers");
    if (o.offload_activations && plan.checkpoint_policy == CheckpointPolicy::selective)
      throw UserError(
          "--offload-activations contradicts --checkpoint-policy selective (only inputs of blocks are kept on the host); leave "
          "out one of them");
    require(read.changed("cpu-offloading-num-layers"), "cpu-offloading-num-layers", o.offload_activations,
            "--offload-activations");
    if (o.offload_activations && !is_numbered) plan.checkpoint_activations = true;
    plan.offloaded_inputs = !o.offload_activations ? 0 : o.offloaded_layers > 0 ? o.offloaded_layers : all_inputs;
    o.chooses_blocks = o.recompute_num_layers == "auto" || (o.memory_limit > 0 && !is_numbered && !plan.checkpoint_activations);
    if (plan.checkpoint_activations && is_numbered)
      throw UserError(
          "--recompute-num-layers contradicts --checkpoint-activations (one recomputes the first blocks, the other all but the "
          "last segment); leave out one of them");
    require(read.changed("checkpoint-policy"), "checkpoint-policy", plan.checkpoint_activations, "--checkpoint-activations");
    require(read.changed("checkpoint-every"), "checkpoint-every",
            plan.checkpoint_activations && plan.checkpoint_policy == CheckpointPolicy::block,
            "--checkpoint-activations and --checkpoint-policy block");
  });
}

/// Reads the value of --files-per-checkpoint if it is a number.
void read_files(SaveOptions& save) {
  const std::string& text = save.files_per_checkpoint;
  if (text.empty() || text == "node") return;
  save.files = number_in<decltype(save.files)>(text).value_or(0);
  if (save.files < 1)
    throw UserError(
        format("--files-per-checkpoint is '{}' (expected a whole number, at least 1, or node); leave it out for a file "
               "for each rank",
               excerpt(text)));
}

void add_checkpoint_options(OptionTable& table, TrainOptions& o) {
  table.group("Checkpoint");
  table
      .path("save-dir", "DIR", o.save.folder,
            "Folder of checkpoints. A file 'save' in it requests a checkpoint, a file 'stop' a checkpoint and the end of the "
            "run.")
      .common();
  table.flag("no-save", o.save.none,
             "Write no checkpoints: the run cannot be resumed. Tokens of texts are kept in --save-dir all the same.");
  table
      .integer("save-interval-updates", "N", o.save.interval_updates, {0},
               "Save every N updates; 0: at the end and on request only.")
      .common();
  table.integer("save-interval-epochs", "N", o.save.interval_epochs, {0, 1e9},
                "Save after the update in which each N-th pass over the data ends; 0: do not.");
  table
      .duration(
          "save-interval", "TIME", o.save.interval_s,
          "Save when this long has passed since the last save; 0: do not. auto: first after the fifth update of each start, "
          "then every sqrt(2 C M) (Young 1974), where C is how long the last save stopped training, and M is --mtbf.",
          "it has no unit, and other programs count epochs or updates, as --save-interval-updates does", &o.save.interval_auto)
      .common();
  table
      .duration("mtbf", "TIME", o.save.mtbf_s,
                "With --save-interval auto: the mean time between failures of the whole job, which is that of one node divided "
                "by the number of nodes.",
                "it has no unit, and sites give hours or days")
      .unset("unknown");
  table.duration("stop-before", "TIME", o.stop_before_s,
                 "In a job of Slurm, PBS, LSF or Flux: save and stop, with exit code 75, after the first update that ends less "
                 "than TIME before the end of the job, which the scheduler reports; 0: do not. TIME must be enough for an "
                 "update and a save.");
  table.flag("no-async-save", o.save.training_waits,
             "Let training wait for each save. Otherwise saves by interval are copied to memory, and written from there while "
             "training continues.");
  table.choice<h5::Compression>(
      "compress", o.save.compression, {{"none", h5::Compression::none}, {"gzip", h5::Compression::gzip}},
      "gzip: HDF5's shuffle and deflate filters, which any HDF5 tool can read. Files are about a seventh "
      "smaller, and saves are much slower: docs/performance.md.");
  table
      .text(
          "files-per-checkpoint", "N|node", o.save.files_per_checkpoint,
          "Write each checkpoint's tensors into N files, or into one for each node, which consecutive ranks share. Any number "
          "of ranks reads any number of files. Shared files are read back once to compute their checksums.")
      .unset("a file for each rank")
      .sets("with a file per rank", "without --files-per-checkpoint");
  table
      .text(
          "stripe", "COUNT[:SIZE]", o.stripe,
          "If --save-dir is on Lustre: set the striping of its new files with lfs setstripe -c COUNT -S SIZE before the first "
          "save. COUNT is the number of storage targets of a file, -1 for all; SIZE is a multiple of 64K, such as 4M.")
      .unset("the folder's own striping");
  table.integer("keep-last", "N", o.save.keep_last, {1, 1e6}, "Remove all but the newest N steps after each save.")
      .unset("keep all")
      .common();
  table.integer("keep-every", "N", o.save.keep_every, {1, 1e12}, "With --keep-last: also keep the steps of every N-th update.")
      .unset("none");
  table
      .choice<std::string>("keep-best", o.save.keep_best, {{"loss", "loss"}, {"valid_loss", "loss"}, {"eval_loss", "loss"}},
                           "Save the step of a validation with the smallest loss so far, let the link 'best' in --save-dir "
                           "name it, and never remove it by --keep-last. The loss is in the checkpoint.")
      .alias("best-checkpoint-metric")
      .alias("metric-for-best-model")
      .unset("none");
  table.text(
      "restore", "latest|best|none|PATH", o.restore,
      "Continue from the latest complete checkpoint in --save-dir, from the best one (--keep-best), from none, or from the "
      "one at PATH. If the latest is damaged, it is renamed, and the one before is used. The model comes from the "
      "checkpoint, all other options from the command.");
  table
      .path("finetune-from", "PATH", o.finetune_from,
            "Begin with the weights of a checkpoint, a consolidated file or a Hugging Face folder, and nothing else of it. If "
            "there is a checkpoint to continue from, the run continues from that instead.")
      .unset("--init")
      .common();
  table
      .list("ignore-missing", "PATTERN,...", o.ignore_missing,
            "With --finetune-from or pretrained weights: names of tensors that may be missing there or have another shape, for "
            "example with another --vocab-size; they start from --seed, as in a new model. Tensors that the model does not "
            "have may be named, too; they are not read. '*' crosses dots.")
      .unset("none: all must fit");
  table.flag("reset-optimizer", o.reset_optimizer,
             "Take the weights, the update and the data position from the checkpoint, and start the optimizer's state at zero: "
             "needed if the checkpoint has the state of another optimizer.");

  table.flag("reset-dataloader", o.reset_dataloader, "Read the data from the start, not from the checkpoint's position.");
  add_no_verify_option(table, o.no_verify);
  table.then([&o](const OptionTable& read) {
    read_files(o.save);
    if (!o.stripe.empty() && !parse_stripe(o.stripe))
      throw UserError(format(
          "--stripe is '{}' (expected COUNT or COUNT:SIZE, with a COUNT from 1, or -1 for all targets, and a SIZE that is a "
          "multiple of 64K, such as 4M); give for example --stripe 4:4M",
          excerpt(o.stripe)));
    if (!o.save.files_per_checkpoint.empty() && o.save.compression != h5::Compression::none)
      throw UserError(
          "--files-per-checkpoint contradicts --compress gzip (ranks write into a shared file at offsets that compressed "
          "tensors do not have); leave out one of them");
    if (o.save.interval_auto && o.save.mtbf_s <= 0)
      throw UserError(
          format("--save-interval auto needs the mean time between failures of the job ({}); give --mtbf TIME, such as 24h",
                 read.given("mtbf") ? "--mtbf is 0" : "there is no --mtbf"));
    if (o.save.mtbf_s > 0 && (o.save.mtbf_s < 1 || o.save.mtbf_s > 1e10))
      throw UserError(
          "--mtbf is not between a second and 300 years; give the mean time between failures of the job, such as 24h");
    require(read.given("mtbf"), "mtbf", o.save.interval_auto, "--save-interval auto");
    if (o.save.keep_every != 0 && o.save.keep_last == 0)
      throw UserError("--keep-every changes nothing (all steps are kept); give --keep-last, too, or leave it out");
  });
}

void add_run_options(OptionTable& table, TrainOptions& o) {
  table.group("Run");
  table.choice<std::string>(
      "task", o.task, {{"language_modeling", "language_modeling"}},
      "fairseq's word for what is trained: language_modeling, the prediction of the next token, is the only choice.");
  table.choice<std::string>(
      "criterion", o.criterion, {{"cross_entropy", "cross_entropy"}},
      "fairseq's word for the loss; the only choice is cross_entropy, the cross-entropy of the next token.");
  add_device_option(table, o.device,
                    " With --dry-run and in fsdp-plan, auto is the CPU, and cuda shows what a rank would hold on a GPU, even "
                    "if there is no GPU.");
  add_attention_option(table, o.attention_backend);
  add_bias_gelu_option(table, o.bias_gelu_fusion);
  add_comm_options(table, o.comm);
  add_comm_thread_option(table, o.cpu.communication_thread);
  add_gemm_algorithms_option(table, o.execution.gemm_algorithms);
  table.integer("seed", "N", o.seed, {0, 4294967295.0},
                "Seed of the random initial weights, of --shuffle, of dropout, and of stochastic rounding.");
  table.integer("log-interval", "N", o.log_interval, {1}, "Print a line every N updates.");
  table.choice<LogFormat>("log-format", o.log_format,
                          {{"auto", LogFormat::automatic},
                           {"tqdm", LogFormat::automatic},
                           {"simple", LogFormat::simple},
                           {"json", LogFormat::json},
                           {"none", LogFormat::none}},
                          "How updates and validations are printed, on standard error. auto: a bar on a terminal, and lines; "
                          "simple: lines; json: the metrics as lines of JSON, as in --log-file; none: nothing.");
  table.path("log-file", "FILE", o.log_file, "Append metrics to FILE, one JSON object per line; none: to no file.")
      .unset("metrics.jsonl in --save-dir; none with --no-save");
  table
      .path("tensorboard", "DIR", o.tensorboard,
            "Also write the metrics into DIR as event files for TensorBoard, with the tags of torchtitan.")
      .unset("no event files");
  table.flag("no-report", o.no_report,
             "Do not write report.html, the page that shows how the run went, into --save-dir when the run ends or stops.");
  table.flag("log-group-norms", o.log_group_norms,
             "Also write to --log-file the gradient's norm of each group of parameters that the optimizer treats alike.");
  table
      .integer("validate-interval-updates", "N", o.validate_interval_updates, {0},
               "Validate every N updates; 0: at the end only.")
      .common();
  table
      .integer("validate-interval-epochs", "N", o.validate_interval_epochs, {0, 1e9},
               "Validate after the update in which each N-th pass over the data ends; 0: do not.")
      .alias("validate-interval");
  table
      .integer("max-valid-steps", "N", o.max_valid_steps, {1},
               "Validate with at most N batches of --batch-size sequences on each rank, the first ones of the data.")
      .unset("all of the data");
  table.flag("eval-on-start", o.eval_on_start,
             "Validate before the first update, too. A run that resumes does not do this again.");
  table
      .integer("early-stopping", "N", o.early_stopping, {1, 1e6},
               "Save and stop when N validations in a row had no smaller loss than the best one before.")
      .alias("patience")
      .alias("early-stopping-patience")
      .unset("do not stop early");
  table.then([&o](const OptionTable&) {
    constexpr const char* often = "--validate-interval-updates or --validate-interval-epochs";
    require(!o.save.keep_best.empty(), "keep-best", o.validates_often(), often);
    require(o.early_stopping > 0, "early-stopping", o.validates_often(), often);
  });
  table.integer("sample-interval-updates", "N", o.sample_interval_updates, {0},
                "Print a text that the model generates every N updates: 64 tokens at temperature 0.8; 0: never.");
  table.text("sample-prompt", "TEXT", o.sample_prompt, "Text that the generated text continues.").unset("a line break");
  table.then([&o](const OptionTable& read) {
    require(read.given("sample-prompt"), "sample-prompt", o.sample_interval_updates > 0, "--sample-interval-updates");
    if (o.sample_interval_updates > 0) o.sharding.plan.cache = {1, o.sharding.batch.T};
  });
  add_trace_options(table, o.trace);
  table
      .flag("dry-run", o.dry_run,
            "Print memory plan and schedule of a step, and do not train. DATA and --valid, if given, are opened and counted. "
            "Checkpoints are neither needed nor written.")
      .common();
  table
      .list(
          "measured", "FILE", o.measured,
          "Predict the time of an update with rates that were measured on this machine. FILE is the output of fsdp-bench step "
          "--json on CPUs; on GPUs of fsdp-bench gemm --json, collectives --json, or both, separated by a comma.")
      .unset("on GPUs, figures of data sheets");
  add_threads_option(table, o.threads);
}

/// The options of a rehearsal. --nodes, --ranks-per-node and --gpu are those of fsdp-plan.
void add_rehearsal_options(OptionTable& table, RehearsalOptions& o) {
  table.group("Rehearsal");
  table
      .flag("rehearse", o.asked,
            "With fsdp-train only: check this job before it queues, without mpirun: plan it for its nodes, run it with at most "
            "8 ranks on this machine with a narrow model for a few updates, and print what it needs and what would fail. The "
            "exit code is 0 if nothing would fail, else 1.")
      .of_this_start();
  table.integer("nodes", "N", o.nodes, {1, 1 << 20}, "With --rehearse: nodes of the job.").of_this_start();
  table.integer("ranks-per-node", "N", o.ranks_per_node, {1, 1 << 20}, "With --rehearse: ranks on each node of the job.")
      .unset("needed with --rehearse")
      .of_this_start();
  std::vector<std::pair<std::string, const GpuFigures*>> gpus;
  for (const GpuFigures& gpu : known_gpus()) gpus.emplace_back(gpu.name, &gpu);
  table
      .choice<const GpuFigures*>("gpu", o.gpu, std::move(gpus),
                                 "With --rehearse: plan for one such GPU per rank, and predict the time of an update.")
      .unset("no prediction")
      .of_this_start();
  table
      .text("network", "NAME", o.network,
            "With --rehearse --gpu: the network between nodes, as for fsdp-plan: a name, PORTSxGBIT such as 4x200, or a file.")
      .unset("that of NVIDIA's own system with the GPU")
      .of_this_start();
  table
      .text("time", "TIME", o.time,
            "With --rehearse: the job's time limit as sbatch takes it: MINUTES, HH:MM:SS, D-HH:MM:SS and so on.")
      .unset("not checked")
      .of_this_start();
  table.integer("rehearse-width", "N", o.width, {16, 1 << 20}, "With --rehearse: the width of the narrow model.")
      .of_this_start();
  table
      .duration("rehearse-limit", "TIME", o.limit_s,
                "With --rehearse: a run of the narrow model that takes longer is ended, and counts as failed.")
      .of_this_start();
  table.then([&o](const OptionTable& read) {
    if (o.limit_s <= 0)
      throw UserError("--rehearse-limit is 0 (stand-ins that hang would never be ended); give a time, such as 5min");
    for (const char* name : {"nodes", "ranks-per-node", "gpu", "network", "time", "rehearse-width", "rehearse-limit"})
      require(read.given(name), name, o.asked, "--rehearse");
    require(read.given("network"), "network", o.gpu != nullptr, "--gpu");
    if (read.given("network") && o.nodes == 1)
      throw UserError("--network changes nothing on one node (it connects nodes); give --nodes, or leave it out");
  });
}

/// Throws UserError if two files of the run have the same path, or if one has the path of a file that the save folder needs.
void require_apart(const TrainOptions& o) {
  const std::filesystem::path page = o.save.folder / "report.html";
  const auto same = [](const std::filesystem::path& a, const std::filesystem::path& b) {
    return !a.empty() && whole_path(a) == whole_path(b);
  };
  const auto refuse = [](const char* option, const std::filesystem::path& path, std::string_view what) {
    throw UserError(format("--{} is '{}' ({}); give another name", option, path.string(), what));
  };
  const bool has_page = !o.no_report && !o.save.none;
  if (has_page && same(o.log_file, page)) refuse("log-file", o.log_file, "the run writes its page there");
  if (has_page && same(o.trace.file, page)) refuse("trace", o.trace.file, "the run writes its page there");
  if (same(o.trace.file, o.log_file)) refuse("trace", o.trace.file, "the run writes its metrics there");
  for (const auto& [option, path] : {std::pair("log-file", o.log_file), std::pair("trace", o.trace.file),
                                     std::pair("tensorboard", std::filesystem::path(o.tensorboard))}) {
    const auto below = std::filesystem::path(whole_path(path)).lexically_relative(whole_path(o.save.folder));
    if (path.empty() || below.empty() || *below.begin() == "..") continue;
    const std::string first = below.begin()->string();
    if (first.starts_with("step-") || first == "best" || first == "lock" || first == "save" || first == "stop" ||
        first.starts_with("flight"))
      refuse(option, path, format("the run uses '{}' in its save folder for other files", first));
  }
}

}  // namespace

std::string list_of_archs() {
  std::size_t width = 0;
  for (const auto& [name, description] : list_archs()) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, description] : list_archs()) out += format("{:<{}}  {}\n", name, width, description);
  return out;
}

void add_train_options(OptionTable& table, TrainOptions& options, std::function<int()> ranks) {
  add_data_options(table, options);
  add_model_options(table, options);
  add_batch_options(table, options, ranks);
  add_optimizer_options(table, options);
  add_sharding_options(table, options.sharding, options.comm);
  add_precision_options(table, options, ranks);
  add_memory_options(table, options);
  add_checkpoint_options(table, options);
  add_run_options(table, options);
  add_options_of_other_programs(table);
  // The options that set the quantities which the library names in its messages; common_options.cpp has the others.
  const std::pair<const char*, const char*> quantities[] = {{"arch", "architecture"},
                                                            {"list-archs", "list of architectures"},
                                                            {"model", "model folder"},
                                                            {"optimizer", "optimizer"},
                                                            {"ema-decay", "decay of the average"},
                                                            {"ema-start-update", "start of the average"},
                                                            {"no-decay", "parameters without decay"},
                                                            {"lr-scale", "scales of the learning rate"},
                                                            {"min-num-params", "least parameters of a unit"},
                                                            {"wrap-units", "custom units"},
                                                            {"freeze", "frozen parameters"},
                                                            {"train-only", "trained parameters"},
                                                            {"ignore-params", "ignored parameters"},
                                                            {"mask", "mask"},
                                                            {"save-dir", "save folder"},
                                                            {"restore", "checkpoint to restore"}};
  for (const auto& [option, quantity] : quantities) table.row(option).sets(quantity);
  table.row("restore").sets("restoring the latest", "--restore latest");
}

OptionTable train_option_table(TrainOptions& o, int ranks) {
  OptionTable table("fsdp-train", "[DATA] [options]",
                    "Trains a transformer with fully sharded data parallelism. Start one process per rank.");
  table.examples({"mpirun -np 4 fsdp-train book.txt --arch gpt2 --batch-size 4 --lr 6e-4 --max-update 1000",
                  "mpirun -np 4 fsdp-train chat.jsonl --chat --model DIR --bf16 --lr 1e-5 --max-epoch 3",
                  "fsdp-train data.bin --arch llama-3.2-1b --max-epoch 1 --rehearse --nodes 4 --ranks-per-node 8"});
  const auto of_job = [&o, ranks] {
    return o.rehearsal.asked ? o.rehearsal.nodes * std::max(1, o.rehearsal.ranks_per_node) : ranks;
  };
  add_train_options(table, o, of_job);
  add_rehearsal_options(table, o.rehearsal);
  table.then([&o](const OptionTable& read) {
    require(read.given("shard-group-size"), "shard-group-size", find_placement(o.sharding.strategy).axis == ShardAxis::group,
            "--sharding-strategy hybrid or hybrid-grad-op");
  });
  return table;
}

void require_data(const TrainOptions& o) {
  if (o.data.empty() && !o.dry_run)
    throw UserError(
        "no data are given (the first argument names the training data); give a text, or a token file, as made by "
        "fsdp-tokenize TEXT... --out train.bin");
  if (o.end_of_document && o.break_mode == BreakMode::none && !o.sharding.plan.documents)
    throw UserError(
        "--eos-token-id changes nothing (it goes with --break-mode complete or eos, or with --document-attention); give one of "
        "these, too, or leave out --eos-token-id");
  require(!o.valid_mask.empty(), "valid-mask", !o.valid.empty(), "--valid");
}

void require_complete(const TrainOptions& o) {
  require_data(o);
  if (o.arch.empty() && o.model.empty() && o.finetune_from.empty() && o.restore == "none")
    throw UserError(
        "no model is given (with --restore none it does not come from a checkpoint); give --arch NAME or --model DIR");
  if (o.max_update == 0 && o.max_epoch == 0 && !o.dry_run)
    throw UserError("no stopping point is set; give --max-update N or --max-epoch N");
  if (o.save.none && (o.save.interval_updates > 0 || o.save.interval_epochs > 0 || o.save.interval_s > 0 ||
                      o.save.interval_auto || o.save.keep_last > 0 || o.save.keep_every > 0 || !o.save.keep_best.empty() ||
                      !o.stripe.empty() || !o.save.files_per_checkpoint.empty()))
    throw UserError(
        "--no-save contradicts other options for saves (it forbids all saves); leave out --no-save, or "
        "--save-interval-updates, --save-interval-epochs, --save-interval, --keep-last, --keep-every, --keep-best, "
        "--files-per-checkpoint and --stripe");
  if (o.log_file != "none" && !o.log_file.empty() && o.log_file.lexically_normal() == o.save.folder.lexically_normal())
    throw UserError(format("--log-file and --save-dir are both '{}' (one is a file, the other a folder); give two names",
                           o.log_file.string()));
  if (o.log_group_norms && (o.log_file == "none" || (o.log_file.empty() && o.save.none)))
    throw UserError("--log-group-norms has no file to write to (there is no --log-file); give --log-file FILE or leave it out");
  if (o.valid.empty() && o.validates_often() && !valid_data_of(o.data))
    throw UserError(format("--validate-interval-{} has no data (there is no --valid); give --valid FILE or leave it out",
                           o.validate_interval_updates > 0 ? "updates" : "epochs"));
  if (o.valid.empty() && o.eval_on_start && !valid_data_of(o.data))
    throw UserError("--eval-on-start has no data (there is no --valid); give --valid FILE or leave it out");
}

TrainCommand parse_train_command(int argc, const char* const* argv, int world_size, std::vector<std::string>* problems) {
  TrainCommand command;
  OptionTable table = train_option_table(command.options, world_size);
  const Request request = table.parse(argc, argv, problems);
  const auto check = [&](void (*step)(const TrainOptions&)) {
    try {
      step(command.options);
    } catch (const UserError& error) {
      if (!problems) throw;
      problems->emplace_back(error.what());
    }
  };
  command.answer = answer(table, request);
  if (request == Request::markdown) *command.answer += names_of_other_programs();
  if (command.options.list_archs && !command.answer) command.answer = list_of_archs();
  if (!command.answer) check(require_complete);
  if (TrainOptions& o = command.options; o.decay_from > 0) {
    o.stable = o.save.folder / stored::step_name(o.decay_from);
    o.save.folder /= format("decay-from-{}", o.decay_from);
  }
  if (TrainOptions& o = command.options; o.log_file == "none")
    o.log_file.clear();
  else if (o.log_file.empty() && !o.save.none)
    o.log_file = o.save.folder / "metrics.jsonl";
  if (!command.answer) check(require_apart);
  return command;
}

std::vector<std::string> words_of(const TrainOptions& options, int ranks) {
  TrainOptions copy = options, read;
  const bool has_loss_scale = options.sharding.types.parameter == DType::f16;
  const auto values = train_option_table(copy, ranks).values();
  OptionTable table = train_option_table(read, ranks);
  std::vector<std::string> words;
  const auto add_those_that_differ = [&] {
    const auto there = table.values();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i] != there[i] && (has_loss_scale || values[i].first != "fp16-scale-window"))
        words.push_back(format("--{}={}", values[i].first, values[i].second));
  };
  add_those_that_differ();
  std::vector<const char*> arguments = {"fsdp-train"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  std::vector<std::string> problems;  // the caller has them from its own command line
  table.parse(static_cast<int>(arguments.size()), arguments.data(), &problems);
  add_those_that_differ();  // these follow from others, but have other values
  return words;
}

std::string with_option_names(const std::string& message) {
  TrainOptions unused;
  return train_option_table(unused, 1).name_options(message);
}

MeasuredUse measured_use(const TrainOptions& o, const Cluster& cluster, const GpuFigures* gpu) {
  return {.gpu = gpu,
          .type = o.sharding.types.parameter,
          .ranks = cluster.ranks(),
          .ranks_per_node = cluster.ranks_per_node,
          .threads = static_cast<double>(std::max<std::size_t>(1, o.threads)),
          .queues = o.cpu.communication_thread ? Queues::thread : Queues::one};
}

void check_schedule(const Schedule& s) {
  if (has_end(s) && s.total != 0 && s.warmup + s.decay_updates > s.total)
    throw UserError(format(
        "--warmup-updates {}{} is more than the {} updates of the schedule (the decay would end before it starts); lower "
        "the one or raise --total-num-update",
        s.warmup, s.decay == Decay::wsd ? format(" and --decay-updates {}", s.decay_updates) : "", s.total));
}

nlohmann::json to_json(const TrainOptions& options) {
  TrainOptions copy = options;
  nlohmann::json out;
  for (const auto& [name, value] : train_option_table(copy, 1).values()) {
    // Numbers and booleans become JSON numbers and booleans, everything else text.
    const auto parsed = parse_json(value);
    out[name] = value.empty() ? nlohmann::json() : parsed.is_number() || parsed.is_boolean() ? parsed : nlohmann::json(value);
  }
  return out;
}

}  // namespace fsdp
