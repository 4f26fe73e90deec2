#include "fsdp-data/data.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/progress.hpp"
#include "checkpoint/tensor_source.hpp"
#include "data/open_data.hpp"
#include "data/output_place.hpp"
#include "data/text_source.hpp"
#include "files/output_file.hpp"
#include "files/scratch_folder.hpp"
#include "options/model_options.hpp"
#include "options/model_tokenizer.hpp"
#include "options/new_vocabulary.hpp"
#include "report/run_report.hpp"
#include "text/end_tokens.hpp"
#include "text/tokenizer_files.hpp"
#include "train/train_data.hpp"

namespace fsdp {

OptionTable data_option_table(DataOptions& o) {
  OptionTable table(
      "fsdp-data", "DATA [options of fsdp-train] [options]",
      "Checks the data of a run of fsdp-train before it starts: reads them once, without a model, and reports "
      "what the run would train on and what is wrong. It takes the options of fsdp-train (see fsdp-train --help); "
      "those that do not concern data are accepted without effect. The exit code is 1 if a check fails. Hashes of "
      "rows take 168 bytes for each row in the folder of TMPDIR.");
  table.examples({"fsdp-data chat.jsonl --chat --model DIR --tokens-per-sample 2048 --break-mode eos",
                  "fsdp-data train.jsonl --valid valid.jsonl --tokenizer DIR --html data.html",
                  "fsdp-data chat.jsonl --chat --model DIR --break-mode complete --allow cut-answers"});
  table.group("Report");
  table.flag("json", o.json, "Print one JSON object.").common();
  table.path("html", "FILE", o.html, "Also write a page that needs no network.").unset("no page").common();
  std::string about = "Checks that do not make the exit code 1:";
  for (const DataCheck& check : data_checks())
    if (check.costs_a_run)
      about += format("{} {} ({} that {})", about.ends_with(':') ? "" : ",", check.name, check.things, check.what);
  table.list("allow", "CHECKS", o.allow, about + ".").unset("none").common();
  table.integer("examples", "N", o.examples, {0, 1000}, "Sequences that are shown, chosen at random.").common();
  table.then([&o](const OptionTable&) {
    o.train.dry_run = false;  // which needs no data
    for (const std::string& name : o.allow)
      if (std::ranges::none_of(data_checks(), [&](const DataCheck& check) { return check.costs_a_run && name == check.name; }))
        throw UserError(format("--allow '{}' is no check that makes the exit code 1; see fsdp-data --help", name));
  });
  table.rows_of("fsdp-train");
  // A configuration for several ranks is read as it is.
  add_train_options(table, o.train, [&o] {
    const ShardingOptions& sharding = o.train.sharding;
    const std::size_t of_a_rank = sharding.batch.B * std::max<std::size_t>(sharding.plan.micro_batches, 1);
    return static_cast<int>(std::max<std::size_t>(o.train.total_batch_size / std::max<std::size_t>(of_a_rank, 1), 1));
  });
  for (const char* name : {"max-update", "max-epoch"}) table.row(name).unset("not needed here");
  table.row("arch").unset("as --model");
  return table;
}

bool DataReport::is_bad() const {
  return std::ranges::any_of(findings, [](const Finding& each) { return each.check->costs_a_run && !each.is_allowed; });
}

namespace {

std::filesystem::path scratch_place() {
  std::error_code problem;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(problem);
  if (problem) throw UserError(format("TMPDIR names no folder ({}); correct it", problem.message()));
  return folder;
}

/// The tokenizer of a run, and what is known of its model.
struct Reader {
  std::string name;  // for open_tokenizer(); empty if there is none
  std::unique_ptr<ScratchFolder> grown = nullptr;
  std::unique_ptr<Tokenizer> tokenizer = nullptr;
  std::size_t vocab_size = 0, longest = 0;  // 0: not known
};

Reader open_reader(const TrainOptions& options) {
  Reader reader{options.tokenizer};
  const std::unique_ptr<TensorSource> source =
      options.finetune_from.empty() ? nullptr : open_tensor_source(options.finetune_from);
  if (source || !options.arch.empty() || !options.model.empty()) {
    const TransformerConfig of_source = source ? source->config() : TransformerConfig();
    TransformerConfig config = named_config(options, source ? &of_source : nullptr);
    // `config` of a new model has only as many positions as a sequence has tokens.
    const TransformerConfig whole = source                  ? of_source
                                    : options.model.empty() ? arch_config(options.arch)
                                                            : read_config(options.model);
    reader.longest = whole.longest_sequence();
    reader.name = name_of_model_tokenizer(
        options.tokenizer, source ? folder_beside(*source, options.finetune_from) : options.model, config.vocab_size);
    if (reader.name.empty() && !options.arch.empty()) reader.name = "bytes";
    if (const auto grown = grow_vocabulary(options, reader.name, false, config); grown && !grown->files.empty()) {
      reader.grown = std::make_unique<ScratchFolder>(scratch_place(), "fsdp-data");
      for (const TokenizerFile& file : grown->files) write_text_file_durably(reader.grown->path() / file.name, file.text);
      reader.name = reader.grown->path().string();
    }
    reader.vocab_size = config.vocab_size;
  }
  if (!reader.name.empty()) reader.tokenizer = open_tokenizer(reader.name);
  return reader;
}

SurveyOptions survey_options(const DataOptions& options, const Reader& reader) {
  SurveyOptions survey{.cut = data_cut(options.train),
                       .rule = column_rule(options.train),
                       .vocab_size = reader.vocab_size,
                       .longest = reader.longest,
                       .examples = options.examples};
  if (survey.cut.end_of_document) survey.ends.push_back(static_cast<TokenId>(*survey.cut.end_of_document));
  if (!reader.tokenizer || reader.name == "bytes") return survey;
  const Tokenizer& tokenizer = *reader.tokenizer;
  for (const TokenId id : end_tokens_beside(folder_of_tokenizer(reader.name), tokenizer, options.train.chat_template))
    survey.ends.push_back(id);
  if (const auto end = find_end_of_text(tokenizer)) survey.ends.push_back(*end);
  survey.bos = tokenizer.special_token("bos_token");
  if (survey.bos && std::ranges::find(survey.ends, *survey.bos) != survey.ends.end()) survey.bos.reset();
  return survey;
}

/// Gives the survey tokens. A row ends with its document or, if the user has named a token that ends documents, after this.
class Rows {
 public:
  Rows(Survey& survey, std::optional<std::size_t> end) : survey_(survey), end_(end) {}

  /// Adds tokens, of which token i is at `offset` + i * `step`.
  void add(std::span<const TokenId> ids, std::span<const TokenId> mask, std::uint64_t offset, std::uint64_t step) {
    while (!ids.empty()) {
      if (!std::exchange(is_open_, true)) offset_ = offset;
      const auto at = end_ ? std::ranges::find(ids, static_cast<TokenId>(*end_)) : ids.end();
      const bool ends = at != ids.end();
      const std::size_t n = static_cast<std::size_t>(at - ids.begin()) + ends;
      survey_.add(ids.first(n), mask.empty() ? mask : mask.first(n));
      ids = ids.subspan(n), offset += n * step;
      if (!mask.empty()) mask = mask.subspan(n);
      if (ends) finish(), has_ended_ = true;
    }
  }
  void end_document(std::uint64_t offset) {
    if (end_) return;
    if (!is_open_) offset_ = offset;  // the row is empty
    is_open_ = true;
    finish();
  }
  /// Ends the last row.
  void finish() {
    if (std::exchange(is_open_, false)) survey_.end_row(offset_);
  }
  /// Throws UserError if the token that the user has named ends no document of the data `name`.
  void require_ends(const std::string& name) const {
    if (end_ && !has_ended_) throw has_no_end(name, *end_);
  }

 private:
  Survey& survey_;
  std::optional<std::size_t> end_;
  std::uint64_t offset_ = 0;  // of the current row
  bool is_open_ = false, has_ended_ = false;
};

void look_at_tokens(Survey& survey, const std::string& name, bool is_valid, const std::string& masks, const Cut& cut) {
  const std::shared_ptr<Tokens> tokens = open_tokens(name, is_valid ? Split::valid : Split::train);
  const std::unique_ptr<Tokens> mask = masks.empty() ? tokens->mask() : open_masks(masks);
  if (mask) require_same_size(*tokens, *mask);
  require_documents(*tokens, cut);
  if (const std::string unread = tokens->unread(); !unread.empty()) print_warning(unread);
  survey.begin(tokens->name(), is_valid, cut.end_of_document || tokens->has_documents(),
               [tokens](std::uint64_t offset) { return tokens->place(offset); });
  std::vector<std::uint64_t> ends = cut.end_of_document ? std::vector<std::uint64_t>() : tokens->documents();
  if (!ends.empty() && ends.front() == 0) ends.erase(ends.begin());
  ends.push_back(tokens->size());
  Rows rows(survey, cut.end_of_document);
  std::vector<TokenId> ids(std::size_t{1} << 16), counts(mask ? ids.size() : 0);
  const auto read = [](const Tokens& from, std::uint64_t at, std::span<TokenId> to) {
    std::vector<std::uint32_t> piece(to.size());
    from.read(at, piece);
    std::ranges::transform(piece, to.begin(), [](std::uint32_t id) { return static_cast<TokenId>(id); });
  };
  ProgressBar bar("reading tokens");
  auto end = ends.begin();
  for (std::uint64_t at = 0; at < tokens->size();) {
    const std::size_t n = std::min<std::uint64_t>(ids.size(), *end - at);
    read(*tokens, at, std::span(ids).first(n));
    if (mask) read(*mask, at, std::span(counts).first(n));
    const auto here = std::span(counts).first(mask ? n : 0);
    if (const auto other = std::ranges::find_if(here, [](TokenId count) { return count != 0 && count != 1; });
        other != here.end())
      throw is_no_mask(*mask, at + static_cast<std::uint64_t>(other - here.begin()), static_cast<std::uint32_t>(*other));
    rows.add(std::span(ids).first(n), here, at, 1);
    at += n;
    for (; end != ends.end() && *end == at; ++end) rows.end_document(at);
    bar.update(static_cast<double>(at), static_cast<double>(tokens->size()));
  }
  rows.finish();
  rows.require_ends(tokens->name());
  bar.finish();
  survey.end(tokens->counts());
}

void look_at_texts(Survey& survey, const TextSet& text, bool is_valid, const TextReading& reading, const Reader& reader,
                   const Cut& cut) {
  const auto source = std::make_shared<TextSource>(text.files);
  const bool has_rows = reading.documents || reading.chat || cut.end_of_document ||
                        !source->json_field(reading.json_field, "text", [](const std::string&) {}).empty();
  survey.begin(format("'{}'", text.name), is_valid, has_rows,
               [source](std::uint64_t offset) { return source->place_of_line(offset); });
  Rows rows(survey, cut.end_of_document);
  std::uint64_t begin = 0;  // of the row in the text
  bool has_used_row = false;
  const auto take = [&](const EncodedPiece& piece, bool is_left_out) {
    if (piece.begin > 0) begin = piece.begin;  // of a JSON record
    if (!is_left_out) {
      has_used_row |= !piece.ids.empty();
      rows.add(piece.ids, piece.mask, begin, 0);
      if (piece.ends_document) rows.end_document(begin);
    }
    if (piece.ends_document) begin = piece.end;
  };
  try {
    TextReading all = reading;
    all.skip_invalid = true;  // the report has their number
    const DataCounts counts = look_at_text(text, all, *reader.tokenizer, take);
    rows.finish();
    rows.require_ends(format("'{}'", text.name));
    survey.end(counts);
  } catch (const UserError&) {  // if no row is left, what is wrong with the first one says more
    if (!has_used_row && !reading.skip_invalid)
      look_at_text(text, reading, *reader.tokenizer, [](const EncodedPiece&, bool) {});
    throw;
  }
}

/// Looks at the training or the validation data `name`.
void look_at_sets(Survey& survey, const DataOptions& options, const OptionTable& table, const std::string& name, bool is_valid,
                  const Reader& reader) {
  const TrainOptions& train = options.train;
  const Split split = is_valid ? Split::valid : Split::train;
  const std::string& all_masks = is_valid ? train.valid_mask : train.mask;
  const std::vector<std::string> sets = sets_in(name), masks = all_masks.empty() ? sets : sets_in(all_masks);
  if (masks.size() != sets.size())
    throw UserError(
        format("'{}' has {} data sets, but '{}' has {} masks (fsdp-data reads each data set with its own mask); give "
               "one mask for each",
               name, sets.size(), all_masks, masks.size()));
  const Cut cut = data_cut(train);
  const TextReading reading = text_reading(train, reader.name, reader.vocab_size,
                                           [&](const std::string& text) { print_warning(table.name_options(text)); });
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const std::vector<TextSet> texts = texts_in(sets[i], split);
    if (texts.empty()) {
      look_at_tokens(survey, sets[i], is_valid, all_masks.empty() ? "" : masks[i], cut);
    } else if (!all_masks.empty()) {
      throw UserError(format(
          "'{}' is text, which has no mask of its own; tokenize it by fsdp-tokenize first, or leave the mask out", sets[i]));
    } else {
      look_at_texts(survey, texts.front(), is_valid, reading, reader, cut);
    }
  }
}

/// Throws UserError if the data sets are not joined or mixed as fsdp-train needs them.
void require_sequences(const std::vector<SurveyedSource>& sources, const TrainOptions& train) {
  const Cut cut = data_cut(train);
  for (const bool is_valid : {false, true}) {
    const bool is_mixture = !is_valid && has_weights(train.data);
    const std::string name = format("'{}'", is_valid ? valid_name(train) : train.data);
    std::uint64_t tokens = 0, sets = 0, masks = 0;
    const auto require = [&](const std::string& data) {
      if (masks > 0 && masks < sets) throw only_some_have_masks(data, masks, sets - masks);
      if (!is_valid && cut.mode == BreakMode::none && sets > 0 && masks == 0 && tokens <= cut.T)
        throw has_no_sequence(data, tokens, cut.T);
    };
    for (const SurveyedSource& source : sources) {
      if (source.is_valid != is_valid) continue;
      if (is_mixture) tokens = sets = masks = 0;
      tokens += source.counts.tokens, ++sets, masks += source.has_mask;
      if (is_mixture) require(source.name);
    }
    require(name);
  }
}

/// Returns true if a data set without targets is joined with others that have some.
bool is_joined_with_targets(const SurveyedSource& source, const std::vector<SurveyedSource>& sources,
                            const TrainOptions& train) {
  return (source.is_valid || !has_weights(train.data)) && std::ranges::any_of(sources, [&](const SurveyedSource& other) {
           return other.is_valid == source.is_valid && other.counts.targets > 0;
         });
}

}  // namespace

DataReport look_at_data(const DataOptions& options, const OptionTable& table) {
  const TrainOptions& train = options.train;
  require_data(train);
  const Reader reader = open_reader(train);
  find_texts(train, reader.name, reader.vocab_size);
  if (reader.longest > 0 && train.sharding.batch.T > reader.longest)
    throw UserError(format("--tokens-per-sample {} is more than the model's longest sequence ({}); give at most {}",
                           train.sharding.batch.T, reader.longest, reader.longest));
  if (!options.html.empty()) {
    for (const auto& [name, split] : {std::pair(train.data, Split::train),
                                      {valid_name(train), Split::valid},
                                      {train.mask, Split::train},
                                      {train.valid_mask, Split::train}})
      require_no_input(options.html, files_of_data(name, split));
    if (kind_of(options.html) != PathKind::other) require_place(options.html);  // such as /dev/stdout
  }
  report_files(
      train, [](const std::string& line) { print_text(stderr, line + "\n"); },
      [](const std::string& text) { print_warning(text); });
  Survey survey(survey_options(options, reader), scratch_place());
  look_at_sets(survey, options, table, train.data, false, reader);
  if (const std::string valid = valid_name(train); !valid.empty()) look_at_sets(survey, options, table, valid, true, reader);
  survey.finish();
  require_sequences(survey.sources(), train);

  const auto is_allowed = [&](const DataCheck& check) {
    return std::ranges::find(options.allow, check.name) != options.allow.end() ||
           (train.skip_invalid && std::string_view(check.name) == "invalid-rows");
  };
  DataReport report{survey.sources(), {}, survey.lengths(), survey.ways(), {}};
  for (const SurveyedSource& source : report.sources)
    for (const DataCheck& check : data_checks())
      if (std::string found = check.message(source.counts, source.name);
          !found.empty() &&
          (std::string_view(check.name) != "no-targets" || !is_joined_with_targets(source, report.sources, train)))
        report.findings.push_back({&check, source.name, table.name_options(found), is_allowed(check)});
  for (const Example& example : survey.examples())
    if (reader.tokenizer)  // without one, tokens have no text
      report.examples.push_back(
          {example.source, shown_sequence(*reader.tokenizer, example.ids, example.mask, example.documents)});
  return report;
}

}  // namespace fsdp
