#include "train/origin.hpp"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "comm/agree.hpp"
#include "data/open_data.hpp"
#include "engine/find_step.hpp"
#include "engine/fit.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/families/config_keys.hpp"
#include "options/changed_options.hpp"
#include "options/model_options.hpp"
#include "options/new_vocabulary.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace {

void require_same_model(const TransformerConfig& wanted, const CheckpointReader& checkpoint) {
  const std::string differences = describe_differences(wanted, checkpoint.config(), "the checkpoint");
  if (differences.empty()) return;
  std::string given;  // the options of the run that set its vocabulary
  const nlohmann::json then = parse_json(checkpoint.header().options_json);
  for (const char* option : {"add-tokens", "add-special-tokens", "pad-vocab-to"})
    if (const auto value = then.find(option); value != then.end() && !value->is_null() && *value != 0)
      given += format("{}--{} {}", given.empty() ? "; the run had " : " ", option,
                      value->is_string() ? value->get<std::string>() : json_text(*value));
  throw UserError(format(
      "{} holds another model ({}{}); choose another --save-dir or --restore, or leave out the options that name the model",
      checkpoint.description(), differences, given));
}

Verify verify_of(const TrainOptions& options) { return options.no_verify ? Verify::no : Verify::yes; }

/// Warns of dropout rates in the model's config.json, because these rates are not used.
void note_dropout(const TrainOptions& options, std::vector<std::string>& warnings) {
  if (options.model.empty() || options.dropout > 0 || options.attention_dropout > 0) return;
  const nlohmann::json config = read_json_object(options.model / "config.json");
  std::vector<std::string> rates;
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop", "attention_dropout", "dropout", "hidden_dropout_prob",
                          "attention_probs_dropout_prob", "activation_dropout", "layerdrop"})
    if (config.is_object() && config.contains(key) && config[key].is_number() && config[key] > 0)
      rates.push_back(format("{} {}", key, json_excerpt(config[key])));
  if (!rates.empty())
    warnings.push_back(
        format("config.json asks for dropout ({}), which is not used; set dropout with --dropout and --attention-dropout",
               fmt::join(rates, ", ")));
}

/// The folder that the model came from. Options of this run take precedence over the folder that a checkpoint recorded.
std::string model_folder_of(const TrainOptions& options, const Origin& origin) {
  for (const std::filesystem::path& path : {options.model, options.finetune_from})
    if (!path.empty() && kind_of(path / "config.json") == PathKind::file) return std::filesystem::absolute(path).string();
  if (origin.pretrained && origin.pretrained->checkpoint()) return origin.pretrained->checkpoint()->header().model_folder;
  return origin.checkpoint ? origin.checkpoint->header().model_folder : "";
}

/// The folder with the tokenizer of the checkpoint or model that the run starts from; empty if there is none. Sets `vocab_size`
/// to the vocabulary size of that checkpoint or model.
std::string own_tokenizer_of(const TrainOptions& options, const Origin& origin, std::size_t& vocab_size) {
  const CheckpointReader* const resumed = origin.checkpoint.get();
  const CheckpointReader* const tuned = origin.pretrained ? origin.pretrained->checkpoint() : nullptr;
  for (const CheckpointReader* checkpoint : {resumed, tuned}) {
    if (!checkpoint) continue;
    for (const std::filesystem::path& folder :
         {checkpoint->folder(), std::filesystem::path(checkpoint->header().model_folder)}) {
      if (folder.empty() || !has_tokenizer(folder)) continue;
      vocab_size = checkpoint->config().vocab_size;
      return std::filesystem::absolute(folder).string();
    }
  }
  for (const std::filesystem::path& folder : {options.model, options.finetune_from}) {
    if (folder.empty() || !has_tokenizer(folder) || kind_of(folder / "config.json") != PathKind::file) continue;
    vocab_size = read_config(folder).vocab_size;
    return std::filesystem::absolute(folder).string();
  }
  return "";
}

/// Opens the checkpoint from which the run resumes; returns null if there is none. Only reads files; the result may differ
/// between ranks.
std::unique_ptr<CheckpointReader> look_for_checkpoint(const TrainOptions& options, std::vector<std::string>& warnings) {
  if (options.restore == "none") return nullptr;
  const std::filesystem::path best = options.save.folder / best_name;
  if (options.restore == "best" && kind_of(best) == PathKind::missing)
    throw UserError(
        format("{} does not exist (no run with --keep-best has saved there); check --save-dir, or leave out "
               "--restore best",
               best.string()));
  if (options.restore != "latest")
    return open_checkpoint(options.restore == "best" ? best : std::filesystem::path(options.restore), &warnings,
                           verify_of(options));
  const auto folder = latest_checkpoint(options.save.folder, &warnings);
  if (!folder && options.decay_from > 0) return open_checkpoint(options.stable, &warnings, verify_of(options));
  return folder ? CheckpointReader::open(*folder, verify_of(options)) : nullptr;
}

/// Warns of adapters that have more parameters than the matrices that they change, without being able to change them more.
void note_rank(const TransformerConfig& config, std::vector<std::string>& warnings) {
  std::size_t smallest = config.lora.rank;
  for (const Parameter& parameter : list_parameters(config).parameters)
    if (parameter.name.find(".lora_") != std::string::npos)
      smallest = std::min({smallest, parameter.shape[0], parameter.shape[1]});
  if (smallest < config.lora.rank)
    warnings.push_back(
        format("--lora-rank {} is more than the {} rows or columns of an adapted matrix (a rank of {} can change "
               "it in every way)",
               config.lora.rank, smallest, smallest));
}

/// Opens the base model and --adapter of a model with adapters.
void open_base(const TrainOptions& options, Origin& origin) {
  std::filesystem::path path = options.finetune_from.empty() ? options.model : options.finetune_from;
  if (origin.checkpoint) {
    path = base_of(*origin.checkpoint, path);
    std::vector<std::string> warnings;
    origin.pretrained = open_model(path, &warnings, verify_of(options));
    for (std::string& text : warnings)  // those about config.json are there already
      if (std::find(origin.warnings.begin(), origin.warnings.end(), text) == origin.warnings.end())
        origin.warnings.push_back(std::move(text));
  }
  if (!origin.pretrained) {
    if (options.dry_run) return;
    throw UserError(
        "adapters have no base model (they change a model that is trained already); give --model DIR or --finetune-from PATH");
  }
  origin.base = {path_to_record(*origin.pretrained, path), 0};
  if (options.adapter.empty() || origin.checkpoint) return;
  origin.adapter = open_adapter(options.adapter, origin.pretrained->config(), &origin.warnings, verify_of(options));
  origin.adapter->compare_base_type(origin.config.base_type, &origin.warnings);
  if (const double rate = origin.adapter->lora.dropout; rate > 0 && options.lora.dropout == 0)
    origin.warnings.push_back(
        format("the adapters were trained with lora_dropout {}, which is not used; set dropout with --lora-dropout", rate));
}

/// Computes the checksum of the base model, and compares it with that of the adapters. Collective over world.
void check_base(const TrainOptions& options, Origin& origin, Group& world) {
  if (origin.checkpoint && options.no_verify) {
    origin.base->sum = origin.checkpoint->header().base->sum;
    return;
  }
  origin.base->sum = content_sum(*origin.pretrained, world);
  agree(world, [&] {
    const auto require = [&](const TensorSource& adapters, std::optional<std::uint64_t> trained_on) {
      require_base(adapters, trained_on, origin.base->sum, origin.pretrained->description());
    };
    if (origin.adapter) require(*origin.adapter->tensors, origin.adapter->base_sum);
    if (origin.checkpoint) require(*origin.checkpoint, origin.checkpoint->header().base->sum);
  });
}

/// Grows the vocabulary of the model and the tokenizer as the options ask. The grown tokenizer is in a folder of this process,
/// from which it is copied into checkpoints as any other tokenizer.
std::optional<NewRows> grow(const TrainOptions& options, Origin& origin) {
  auto grown = grow_vocabulary(options, origin.tokenizer, origin.checkpoint && options.tokenizer.empty(), origin.config);
  if (!grown) return std::nullopt;
  if (!origin.checkpoint) origin.new_tokens = std::move(grown->description);
  if (grown->files.empty()) return std::move(grown->rows);
  auto folder = std::make_shared<const ScratchFolder>(std::filesystem::temp_directory_path(), "fsdp-tokenizer");
  for (const TokenizerFile& file : grown->files) write_text_file_durably(folder->path() / file.name, file.text);
  const auto tokenizer = open_tokenizer(folder->path().string());
  for (const auto& [id, pieces] : grown->rows.pieces)
    if (tokenizer->spelling(narrow<TokenId>(id)).empty())
      throw UserError(
          format("the tokenizer {} does not take new tokens (id {} is no token of it afterwards); add them with transformers",
                 origin.tokenizer, id));
  origin.grown_tokenizer = std::move(folder);
  return std::move(grown->rows);
}

/// Fills the fields of `origin` except `checkpoint`, which is already opened, or is null if there is none. Only reads files;
/// the result may differ between ranks.
void complete_origin(const TrainOptions& options, Origin& origin) {
  const bool named = !options.arch.empty() || !options.model.empty(), tuned = !options.finetune_from.empty();
  const bool of_adapters = origin.checkpoint && origin.checkpoint->header().base;  // then --finetune-from is the base model
  if (tuned && origin.checkpoint && !of_adapters)
    origin.warnings.push_back(format(
        "--finetune-from is not used, because the run resumes from step {} of {}; choose another --save-dir to start a new run",
        origin.update(), origin.checkpoint->folder().parent_path().string()));
  if (tuned && !origin.checkpoint) origin.pretrained = open_model(options.finetune_from, &origin.warnings, verify_of(options));
  if (!named && !origin.checkpoint && !tuned)
    throw UserError(format("there is nothing to train (no complete checkpoint in {}); name a model with --arch or --model",
                           options.save.folder.string()));
  std::size_t vocabulary = 0;  // vocabulary size of the model to which the tokenizer belongs
  std::optional<TransformerConfig> source;
  if (origin.checkpoint) source = origin.checkpoint->config();
  if (!origin.checkpoint && tuned) source = origin.pretrained->config();
  origin.own_tokenizer = own_tokenizer_of(options, origin, vocabulary);
  origin.tokenizer = options.tokenizer.empty() ? origin.own_tokenizer : options.tokenizer;
  origin.config = named_config(options, source ? &*source : nullptr, origin.tokenizer);
  note_dropout(options, origin.warnings);
  if (!options.model.empty())
    if (auto doubt = keys::doubt_config(options.model)) origin.warnings.push_back(std::move(*doubt));
  const bool has_new_tokens = origin.checkpoint && options.grows_vocabulary();  // then its vocabulary is larger than --model's
  if (options.tokenizer.empty() && vocabulary > origin.config.vocab_size && !has_new_tokens)
    origin.tokenizer.clear();  // the tokenizer is another model's
  const bool is_new = !source && options.model.empty();
  if (origin.tokenizer.empty() && (origin.config.vocab_size == 256 || (is_new && has_text(options))))
    origin.tokenizer = "bytes";
  origin.new_rows = grow(options, origin);
  if (origin.checkpoint) {
    if (const auto there = origin.checkpoint->config().padding_token; origin.config.padding_token != there) {
      origin.warnings.push_back(
          format("pad_token_id is {} in {}, but {} now; the run uses the former (the embedding of this token gets no gradient)",
                 json_text(keys::written(there)), origin.checkpoint->description(),
                 json_text(keys::written(origin.config.padding_token))));
      origin.config.padding_token = there;
    }
    try {
      require_same_model(origin.config, *origin.checkpoint);
      if (!options.reset_optimizer)
        require_same_optimizer(options.sharding.optimizer, *origin.checkpoint,
                               "--reset-optimizer to continue with its weights and a new optimizer state");
      if (std::string left = require_average(options, *origin.checkpoint); !left.empty())
        origin.warnings.push_back(std::move(left));
    } catch (const UserError& refusal) {
      if (!options.dry_run || options.restore != "latest") throw;
      origin = Origin();
      origin.warnings.push_back(format("a run would not start: {}. This is the plan of a new run instead", refusal.what()));
      TrainOptions anew = options;
      anew.restore = "none";
      return complete_origin(anew, origin);
    }
    const std::string& told = origin.checkpoint->header().options_json;
    if (std::string changed = describe_changed_options(parse_json(told), options, origin.update()); !changed.empty())
      origin.warnings.push_back(std::move(changed));
    if (options.reset_optimizer) origin.warnings.push_back("the optimizer's state starts at zero (--reset-optimizer)");
  } else if (!tuned && options.init == InitFrom::pretrained) {
    origin.pretrained = open_hugging_face(options.model, verify_of(options));
    for (std::string& text : origin.pretrained->warnings()) origin.warnings.push_back(std::move(text));
  }
  const bool adapts = origin.config.lora.rank > 0;
  if (adapts) open_base(options, origin);
  if (adapts && !origin.checkpoint) note_rank(origin.config, origin.warnings);
  if (const std::size_t before = origin.config.lora.base_vocab; before > 0 && !origin.new_rows)  // others have the new rows
    origin.new_rows = {.init = NewTokenInit::zeros, .known = before, .first_unused = before};
  if (origin.pretrained) {
    TransformerConfig there = without_adapters(origin.config);
    if (origin.new_rows) there.vocab_size = origin.new_rows->first_unused;
    Mismatch mismatch =
        find_mismatch(*origin.pretrained, list_parameters(there).parameters, {options.ignore_missing, options.ignore_missing},
                      "check the model options, or name the tensors that may differ with --ignore-missing "
                      "PATTERN,...: they start with new values");
    origin.fresh = std::move(mismatch.fresh);
    const std::vector<Parameter> all = list_parameters(origin.config).parameters;
    for (std::size_t p = origin.fresh.size(); p < all.size(); ++p)
      origin.fresh.push_back(!origin.new_rows || !all[p].name.ends_with(token_rows_suffix));
    for (const std::string& line : mismatch.said) origin.warnings.push_back("--ignore-missing: " + line);
  }
  origin.model_folder = model_folder_of(options, origin);
  // A run that begins before the newest step could not save that step, whose folder exists, and would lose work.
  if (const auto newest = latest_update(options.save.folder);
      newest > origin.update() && !options.dry_run && !options.save.none)
    throw UserError(
        format("{} has steps up to {}, but the run would start from step {} (later steps are not overwritten); "
               "choose another --save-dir{} or move them away",
               options.save.folder.string(), *newest, origin.update(),
               options.restore == "best" ? format(" with --restore {},", (options.save.folder / best_name).string()) : ""));
}

/// The files that decide what the run starts from; some may be missing.
FileLists files_of(const TrainOptions& options, const Origin& origin, const CheckpointReader* checkpoint) {
  FileLists all = {tokenizer_files_at(options.model), tokenizer_files_at(origin.tokenizer), {options.chat_template}};
  for (const std::string& tokens : {options.add_tokens, options.add_special_tokens})
    if (kind_of(tokens) == PathKind::file) all.push_back({tokens});
  for (const TensorSource* source :
       {static_cast<const TensorSource*>(checkpoint), static_cast<const TensorSource*>(origin.pretrained.get()),
        static_cast<const TensorSource*>(origin.adapter ? origin.adapter->tensors.get() : nullptr)})
    if (source) all.push_back(source->files());
  return all;
}

/// Throws RunError if there are damaged checkpoints and no complete one, so that a run does not start over unnoticed. Called on
/// rank 0.
void require_nothing_to_lose(const TrainOptions& options, std::vector<std::string> damaged) {
  set_damaged_aside(options.save.folder, 0, damaged);
  const auto aside = steps_set_aside(options.save.folder);
  if (damaged.empty() && !aside.empty()) damaged.push_back(format("{} is damaged", aside.back().string()));
  if (!damaged.empty())
    throw RunError(
        format("{}; no other checkpoint is left in {} to resume from (nothing was removed); start with --restore none, or name "
               "one with --restore PATH",
               fmt::join(damaged, "; "), options.save.folder.string()));
}

}  // namespace

Origin find_origin(const TrainOptions& options, Group& world) {
  Origin origin;
  const bool resumes_latest = options.restore == "latest" && !options.dry_run;
  StepSearch search = {.open =
                           [&] {
                             origin = Origin();
                             return look_for_checkpoint(options, origin.warnings);
                           },
                       .accept =
                           [&](std::unique_ptr<CheckpointReader>& checkpoint) {
                             origin.checkpoint = std::move(checkpoint);
                             complete_origin(options, origin);
                             checkpoint = std::move(origin.checkpoint);
                           },
                       .folder = resumes_latest ? options.save.folder : std::filesystem::path(),
                       .none =
                           [&](const std::vector<std::string>& passed_over) {
                             if (resumes_latest) require_nothing_to_lose(options, passed_over);
                           },
                       .verify = !options.no_verify};
  if (options.dry_run)
    search.verify = false;
  else
    search.files = [&](const CheckpointReader* checkpoint) { return files_of(options, origin, checkpoint); };
  FoundStep found = find_step(world, search);
  origin.checkpoint = std::move(found.checkpoint);
  if (origin.grown_tokenizer) origin.tokenizer = origin.grown_tokenizer->path().string();
  if (origin.base && !options.dry_run) check_base(options, origin, world);
  if (origin.pretrained && origin.new_rows) {
    TransformerConfig grown = origin.config;  // with adapters, the new rows are theirs
    if (grown.lora.rank == 0) grown = origin.pretrained->config(), grown.vocab_size = origin.config.vocab_size;
    origin.pretrained = std::make_unique<GrownModel>(std::move(origin.pretrained), std::move(grown), *origin.new_rows);
  }
  // Renames damaged steps whose names later saves will use. Throws if there are other steps whose names later saves will use.
  if (!options.dry_run && !options.save.none)
    agree(world, [&] {
      if (world.rank() != 0) return;
      set_damaged_aside(options.save.folder, origin.update(), origin.warnings);
      if (const auto step = step_in_the_way(options.save.folder, origin.update()))
        throw UserError(text_of_step_in_the_way(*step));
    });
  origin.warnings.insert(origin.warnings.begin(), found.passed_over.begin(), found.passed_over.end());
  return origin;
}

}  // namespace fsdp
