// fsdp-tokenize: converts texts to token files. The texts are joined in the given order. The held-out part, for validation, is
// the tail of the joined text, and is not in the training file. Texts are read, tokenized and written in pieces, so that memory
// does not grow with their size.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "base/version.hpp"
#include "data/indexed_format.hpp"
#include "data/open_data.hpp"
#include "data/output_place.hpp"
#include "data/text_data.hpp"
#include "data/text_source.hpp"
#include "data/token_writer.hpp"
#include "data/tokenize_job.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "job/program.hpp"
#include "options/common_options.hpp"
#include "text/end_tokens.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_files.hpp"
#include "text/train_bpe.hpp"

using namespace fsdp;

namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string tokenizer = "bytes";
  std::filesystem::path out, valid_out;
  double valid_fraction = 0.05;
  std::size_t train_bpe = 0;
  std::string json_field;
  bool chat = false;
  RecordForm form;                      // of conversations
  std::filesystem::path chat_template;  // empty: the one next to the tokenizer
  bool skip_invalid = false;
  bool append_eos = false;
  std::string eos_token;
  const TokenFormat* format = token_formats().front();
  std::size_t shard_size = most_llmc_tokens;
  std::size_t threads = 0;
  double save_interval_s = 30;
};

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  return std::filesystem::equivalent(a, b, none) ||
         std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, none);
}

/// Checks the options that can be checked without the texts.
void check(const TokenizeOptions& options, const OptionTable& table) {
  if (options.texts.empty())
    throw UserError("no text is given (there is nothing to tokenize); give at least one file, or - for standard input");
  if (options.out.empty()) throw UserError("--out is missing (the token file to write); give --out FILE");
  if (table.given("valid-fraction") && options.valid_out.empty())
    throw UserError("--valid-fraction changes nothing (without --valid-out nothing is held out); give --valid-out FILE");
  if (options.append_eos && options.tokenizer == "bytes")
    throw UserError(
        "--append-eos does not go with bytes as tokens (none of the 256 tokens marks the end of a text); give a --tokenizer");
  if (options.chat && options.tokenizer == "bytes")
    throw UserError(
        "--chat does not go with bytes as tokens (they have no chat template); give the tokenizer of a chat model by "
        "--tokenizer");
  if (options.chat && (!options.json_field.empty() || options.train_bpe > 0))
    throw UserError(
        "--chat works neither with --json-field nor with --train-bpe (conversations have fields of their own, and need the "
        "chat template of an existing tokenizer); leave out these two");
  if (!options.chat_template.empty() && !options.chat)
    throw UserError("--chat-template changes nothing (it is only for --chat); give --chat, or leave it out");
  if (!options.eos_token.empty() && !options.append_eos)
    throw UserError("--eos-token changes nothing (it is only for --append-eos); give --append-eos");
  if (options.train_bpe > 0 && table.given("tokenizer") && options.tokenizer == "bytes")
    throw UserError(
        "--train-bpe does not go with --tokenizer bytes (that name means that bytes are the tokens); give another --tokenizer "
        "FILE");
  if (options.train_bpe > 0 && !table.given("tokenizer"))
    throw UserError(
        "--train-bpe needs --tokenizer (the file to which the learned tokenizer is written); give --tokenizer FILE");
  if (table.given("shard-size") && !options.format->has_shards)
    throw UserError("--shard-size does not work with this --format (its files are not numbered); leave it out");
  for (const std::filesystem::path& out : {options.out, options.valid_out})
    for (const TokenFormat* other : token_formats())
      if (other != options.format &&
          std::find(other->endings.begin(), other->endings.end(), out.extension()) != other->endings.end())
        throw UserError(format("'{}' has the ending of another format; give --format {}, or a name that ends in .bin",
                               out.string(), other->name));
  const auto target = [&](const std::filesystem::path& path) {
    return options.format->file_of ? options.format->file_of(path) : path;
  };
  if (!options.valid_out.empty() && same_file(target(options.out), target(options.valid_out)))
    throw UserError("--out and --valid-out are the same file (one would replace the other); give two names");
}

/// Returns the names of all text files, with patterns and folders replaced by their files, as in training.
std::vector<std::string> find_texts(const TokenizeOptions& options) {
  std::vector<std::string> texts;
  for (const std::string& name : options.texts)
    if (kind_of(name) == PathKind::folder) {
      const std::vector<TextSet> sets = texts_in(name, Split::train);
      if (sets.empty()) throw UserError(format("'{}' is a folder of token files, not of texts; name texts", name));
      texts.insert(texts.end(), sets.front().files.begin(), sets.front().files.end());
    } else {
      for (const std::filesystem::path& file : files_of_pattern(name)) texts.push_back(file.string());
    }
  bool stdin_used = false;
  for (const std::string& text : texts) {
    if (text == "-") {
      if (stdin_used) throw UserError("standard input is given twice (it can be read once); give '-' once");
      stdin_used = true;
      continue;
    }
    for (const auto& out : {options.out, options.valid_out})
      if (!out.empty() && same_file(text, out))
        throw UserError(
            format("'{}' is both an input and the output (the text would be lost); give another name for the output", text));
  }
  return texts;
}

OptionTable tokenize_option_table(TokenizeOptions& o) {
  OptionTable table(
      "fsdp-tokenize", "TEXT... --out FILE [options]",
      "Makes token files for fsdp-train, or for Megatron-LM and llm.c, from texts. Several texts are joined in the order "
      "given, with nothing between them. Memory does not grow with the texts. A killed run continues if the same command is "
      "given again.");
  table.examples({"fsdp-tokenize book.txt --out train.bin",
                  "fsdp-tokenize 'web/*.jsonl' --tokenizer DIR --append-eos --out train.bin --valid-out valid.bin",
                  "fsdp-tokenize book.txt --train-bpe 4096 --tokenizer own --out train.bin"});
  table.group("Input");
  table
      .list("text", "TEXT", o.texts,
            "Files to read, patterns ('web/*.jsonl') or folders, of which texts are read as in training; also packed by gzip "
            "or zstd, "
            "and Parquet files; '-' is standard input.")
      .positional()
      .required()
      .common();
  table
      .text(
          "tokenizer", "NAME", o.tokenizer,
          "A model's folder, or the file in it that has the vocabulary: tokenizer.json, tokenizer.model (of SentencePiece), or "
          "vocab.json with merges.txt. With the files next to it, ids are those of transformers' AutoTokenizer. Or bytes: "
          "every byte is a token, 0 to 255. Train with the --vocab-size that is printed, or with that of the tokenizer's "
          "model.")
      .common();
  table
      .integer(
          "train-bpe", "N", o.train_bpe, {0, 1e6},
          "Learn a tokenizer of N tokens from the texts (without the part that is held out), write it to --tokenizer NAME, a "
          "new tokenizer.json or a folder for it, and use it: byte-level byte-pair encoding over GPT-2's words, with "
          "<|endoftext|> as token 0, which Hugging Face's tokenizers read. 0: learn none.")
      .common();
  add_text_options(
      table, o.json_field, o.chat, o.form, o.skip_invalid,
      "NAME.mask.bin next to --out NAME.bin marks the tokens of answers, for --mask of fsdp-train; an HDF5 file has "
      "the mask in its dataset loss_mask.");
  add_chat_template_option(table, o.chat_template);
  table
      .flag("append-eos", o.append_eos,
            "Append an end-of-text token to each document, a file or a line of JSON. Its tokens do not depend on other "
            "documents.")
      .common();
  table.text("eos-token", "TEXT", o.eos_token, "The token that --append-eos appends.")
      .unset(
          "eos_token of the tokenizer_config.json next to the tokenizer, or the first of <|endoftext|>, <|end_of_text|> and "
          "</s> that it has");
  table.integer("threads", "N", o.threads, {0, 1024},
                "Threads that tokenize; 0: as many as the cores that this process may use.");
  table.group("Output");
  table.path("out", "FILE", o.out, "Token file to write.").required().common();
  std::vector<std::pair<std::string, const TokenFormat*>> formats;
  std::string about = "Format of the token files.";
  for (const TokenFormat* row : token_formats()) {
    formats.emplace_back(row->name, row);
    about += format(" {}: {}", row->name, row->about);
  }
  table.choice<const TokenFormat*>("format", o.format, formats, about).common();
  table.path("valid-out", "FILE", o.valid_out, "Token file for a held-out part: the tail of the text.")
      .unset("nothing is held out")
      .common();
  table
      .number("valid-fraction", "PART", o.valid_fraction, "Part of the text that is held out with --valid-out.",
              "between 0 and 1", [](double x) { return x > 0 && x < 1; })
      .common();
  table.integer("shard-size", "N", o.shard_size, {1, static_cast<double>(most_llmc_tokens)},
                "Write at most N tokens per file. If there are more, --out train.bin becomes train_000001.bin, "
                "train_000002.bin and so on. Only for --format llm.c, which allows at most 2147483647.");
  table.duration("save-interval", "TIME", o.save_interval_s,
                 "How often progress is synced to the disk, so that the same command resumes a killed run; 0: never. "
                 "Runs on standard input and pipes cannot be resumed.");
  table.then([&o](const OptionTable& read) { check(o, read); });
  return table;
}

/// Returns the position at which the held-out tail starts. The tail is about `fraction` of the text, and does not start within
/// a UTF-8 character or a JSON record.
std::uint64_t start_of_tail(TextSource& text, double fraction, bool is_json) {
  const std::uint64_t size = text.size();
  const auto start = size - static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(size)));
  if (is_json) return next_record(text, start);
  const std::uint64_t first = start - std::min<std::uint64_t>(start, 3);
  const std::string around = text.read_at(first, 4);
  std::size_t at = start - first;
  const auto continues = [&](std::size_t i) { return i < around.size() && (around[i] & 0xC0) == 0x80; };
  while (at > 0 && continues(at)) --at;
  return first + at;
}

/// Returns the end-of-text token for --append-eos; empty without it.
std::optional<TokenId> end_of_text(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  std::vector<std::string> names = {options.eos_token};
  const auto found = options.eos_token.empty() ? find_end_of_text(tokenizer, &names) : tokenizer.find(options.eos_token);
  if (found && options.eos_token.empty())
    if (std::string text = contradiction_of_end(folder_of_tokenizer(options.tokenizer), tokenizer, *found); !text.empty())
      print_warnings({std::move(text) + ", and name it by --eos-token"});
  if (found) return found;
  throw UserError(format("the tokenizer '{}' has no token {} for the end of a text (--append-eos needs one); give --eos-token",
                         options.tokenizer, excerpt(fmt::to_string(fmt::join(names, ", ")))));
}

/// The path of the tokenizer that --train-bpe writes.
std::filesystem::path learned_tokenizer(const TokenizeOptions& options) {
  std::filesystem::path path = options.tokenizer;
  if (path.extension() != ".json") path /= "tokenizer.json";
  return path;
}

std::filesystem::path new_tokenizer(const TokenizeOptions& options) {
  const std::filesystem::path path = learned_tokenizer(options);
  if (kind_of(path) != PathKind::missing)
    throw UserError(
        format("'{}' exists already (token files made with it would lose their tokenizer); give another --tokenizer, or leave "
               "out --train-bpe to use this one",
               path.string()));
  std::error_code problem;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), problem);
  if (problem)
    throw UserError(
        format("cannot write '{}' ({}); give a --tokenizer in a folder that can be written", path.string(), problem.message()));
  require_place(path);
  return path;
}

/// Trains a tokenizer on the first `bytes` bytes of the text and writes it.
void train_tokenizer(const std::filesystem::path& path, std::size_t vocab_size, TextSource& text, std::uint64_t bytes,
                     const std::string& json_field, bool skip_invalid, JobNotes& notes) {
  BpeTrainer trainer(vocab_size, {"<|endoftext|>"});
  std::unique_ptr<TextPieces> pieces;
  if (json_field.empty())
    pieces = std::make_unique<PlainPieces>(text, 0, bytes, BpeTrainer::cuts(), false);
  else
    pieces = std::make_unique<JsonPieces>(text, 0, bytes, json_field, nullptr, skip_invalid);
  ProgressBar counting("counting words", ProgressBar::Unit::bytes);
  counting.update(0, static_cast<double>(bytes));
  TextPiece piece;
  while (pieces->next(piece)) {
    trainer.add(std::string_view(piece.text).substr(piece.cut));
    counting.update(static_cast<double>(piece.end), static_cast<double>(bytes));
  }
  counting.finish();
  ProgressBar learning("learning tokens");
  const nlohmann::ordered_json learned =
      trainer.train([&](std::size_t tokens) { learning.update(static_cast<double>(tokens), static_cast<double>(vocab_size)); });
  learning.finish();
  const auto text_of = [](const nlohmann::ordered_json& what) { return json_text(what, 1) + "\n"; };
  const std::filesystem::path config = path.parent_path() / "tokenizer_config.json";
  try {
    // The tokenizer is written last, after `notes` (for resuming) contains it. So a run that is killed here can be repeated.
    if (path.filename() == "tokenizer.json" && kind_of(config) == PathKind::missing)  // transformers' AutoTokenizer needs it
      write_text_file_durably(config,
                              text_of({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<|endoftext|>"}}));
    notes.begin_with_tokenizer(text_of(learned));
    write_text_file_durably(path, text_of(learned));
  } catch (const CallError& error) {
    throw RunError(format("'{}' could not be written ({}); free some space or check the disk, and give the same command again",
                          path.string(), error.what()));
  }
  const std::size_t tokens = learned["model"]["vocab"].size();
  print_to(
      stdout, "{}: {} tokens{}\n", path.string(), tokens,
      tokens < vocab_size ? format(" (not {}, because no other pair of tokens occurs twice in the text)", vocab_size) : "");
}

/// Warns of files of other runs that a pattern for the new files would match: train_000003.bin if this run has made two files.
void warn_of_earlier_files(const TokenizeOptions& options, const TokenizeResult& done) {
  std::string others;
  for (const auto& [path, count] :
       {std::pair(options.out, done.train.files.size()), std::pair(options.valid_out, done.valid.files.size())}) {
    if (path.empty()) continue;
    for (const std::filesystem::path& other : llmc_files_of_earlier_runs(path, count))
      others += (others.empty() ? "" : ", ") + other.string();
  }
  if (others.empty()) return;
  print_warnings(
      {format("files of other runs are next to the new files ({}: a pattern for the new files would match these, too); remove "
              "the old files if they are not wanted",
              others)});
}

int tokenize(const TokenizeOptions& options) {
  TextSource text(find_texts(options), /*any_bytes=*/options.tokenizer == "bytes");
  const std::string json_field = options.chat ? "" : text.json_field(options.json_field);
  std::unique_ptr<Tokenizer> tokenizer = options.train_bpe > 0 ? nullptr : open_tokenizer(options.tokenizer);
  const bool of_files = text.is_of_files(), can_go_on = of_files && options.format->resumes;
  const bool holds_out = !options.valid_out.empty();
  if (holds_out || options.train_bpe > 0)  // both read the whole text before tokenization
    text.copy_streams(folder_of(options.out));
  std::optional<std::uint64_t> tail;
  if (holds_out) {
    tail = start_of_tail(text, options.valid_fraction, options.chat || !json_field.empty());
    if (*tail < 2 || text.size() - *tail < 2)
      throw UserError(
          format("a text of {} bytes cannot be divided into a part of {:g} and the rest (each needs at least two tokens); use "
                 "more text or another --valid-fraction",
                 text.size(), options.valid_fraction));
  }

  const auto templates = [&] {  // a new tokenizer has no folder yet
    return options.chat_template.empty() ? folder_of_tokenizer(options.tokenizer) : options.chat_template;
  };
  // A killed run is resumed only if it had the same settings and the same tokenizer.
  nlohmann::ordered_json same = {{"version", version_string()},
                                 {"tokenizer", options.tokenizer},
                                 {"train_bpe", options.train_bpe},
                                 {"append_eos", options.append_eos ? options.eos_token : "no"},
                                 {"json_field", json_field},
                                 {"chat", options.chat ? sum_of_chat_templates(templates()) : "no"},
                                 {"form", {options.form.name, options.form.names}},
                                 {"skip_invalid", options.skip_invalid},
                                 {"format", options.format->name},
                                 {"shard_tokens", options.shard_size},
                                 {"valid_out", holds_out ? std::filesystem::absolute(options.valid_out).string() : ""},
                                 {"tail", tail ? nlohmann::ordered_json(*tail) : nlohmann::ordered_json()}};
  if (of_files) same["texts"] = text.identity();
  const std::string notes_path = options.out.string() + ".resume";
  require_own_file(notes_path, notes_beginning);
  JobNotes notes(notes_path, same, can_go_on ? options.save_interval_s : 0);
  if (options.train_bpe > 0 && !notes.know_tokenizer(learned_tokenizer(options)))
    train_tokenizer(new_tokenizer(options), options.train_bpe, text, tail.value_or(text.size()), json_field,
                    options.skip_invalid, notes);
  if (!tokenizer) tokenizer = open_tokenizer(options.tokenizer);
  notes.compare_tokenizer(sum_of_tokenizer(options.tokenizer));
  print_warnings(tokenizer->warnings());

  ChatReader chat(templates(), *tokenizer, options.form);
  const std::size_t threads = options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  TokenizeJob job(
      *tokenizer, text, tail, notes,
      {.out = options.out,
       .valid_out = options.valid_out,
       .format = options.format,
       .shard_tokens = options.shard_size,
       .end_of_text = options.append_eos ? end_of_text(*tokenizer, options) : std::nullopt,
       .end_tokens = options.chat ? end_tokens_beside(folder_of_tokenizer(options.tokenizer), *tokenizer, options.chat_template)
                                  : std::vector<TokenId>(),
       .json_field = json_field,
       .conversations = options.chat ? ConversationReader([&](const nlohmann::ordered_json& record, std::string& problem) {
         return chat.read(record, problem);
       })
                                     : nullptr,
       .threads = threads,
       .own_tokenizer = options.train_bpe > 0,
       .skip_invalid = options.skip_invalid,
       .is_text = tokenizer->needs_utf8()});
  TokenizeResult done = job.run();
  for (const WrittenFile& file : done.train.files)
    print_to(stdout, "{}: {} tokens (vocabulary {})\n", file.path.string(), file.tokens, tokenizer->vocab_size());
  for (const WrittenFile& file : done.valid.files)
    print_to(stdout, "{}: {} tokens, the last {:.2f} % of the text\n", file.path.string(), file.tokens,
             100.0 * static_cast<double>(text.size() - *tail) / static_cast<double>(text.size()));
  for (const auto* part : {&done.train, &done.valid})
    for (const WrittenFile& file : part->masks)
      print_to(stdout, "{}: 1 for tokens of answers, 0 for others\n", file.path.string());
  for (const auto* part : {&done.train, &done.valid})
    for (const WrittenFile& file : part->files)
      if (options.chat && part->masks.empty())
        print_to(stdout, "{}: its dataset loss_mask has 1 for tokens of answers, 0 for others\n", file.path.string());
  if (options.format->has_shards) warn_of_earlier_files(options, done);
  done.train.counts.warnings = chat.warnings();
  const auto say = [](const std::string& line) { print_text(stdout, wrapped(line) + "\n"); };
  std::fflush(stdout);  // the files come before warnings
  report_counts(done.train.counts, options.out.string(), say, print_warning);
  if (holds_out) report_counts(done.valid.counts, options.valid_out.string(), say, print_warning);
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  TokenizeOptions options;
  OptionTable table = tokenize_option_table(options);
  return run_program(argc, argv, table, [&] { return tokenize(options); });
}
