#include "fsdp-evaluate/evaluate.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "base/timer.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "data/questions.hpp"
#include "engine/mean_loss.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "files/scratch_folder.hpp"
#include "h5/h5.hpp"
#include "job/program.hpp"
#include "machine/machine.hpp"
#include "options/common_options.hpp"
#include "options/model_tokenizer.hpp"
#include "run/sharded_model.hpp"
#include "train/train_data.hpp"

namespace fsdp {

OptionTable evaluate_option_table(EvaluateOptions& options) {
  OptionTable table("fsdp-evaluate", "MODEL DATA [options]",
                    "Measures loss, perplexity and bits per token and byte of a model on tokens, or the share of questions "
                    "that it answers correctly.");
  table.examples({"mpirun -np 4 fsdp-evaluate checkpoints valid.bin",
                  "fsdp-evaluate DIR valid.txt --tokens-per-sample 512 --json",
                  "fsdp-evaluate DIR --multiple-choice questions.jsonl"});
  table.group("What");
  table
      .path("model", "MODEL", options.model,
            "Hugging Face folder, checkpoint (step folder or save folder) or consolidated file")
      .positional()
      .sets("base model", "MODEL, with --adapter")
      .common();
  table.text("data", "DATA", options.data, "tokens or text, of any format that fsdp-train reads").positional().common();
  table
      .path("multiple-choice", "FILE", options.multiple_choice,
            "instead of DATA, questions to answer: JSON, objects with \"context\", \"choices\" and \"answer\" (the "
            "number of the right choice, from 0), or a file of llm.c's for HellaSwag or MMLU")
      .common();
  table
      .text("mask", "FILES", options.mask,
            "which tokens of DATA count: a token file with 1 for each token that counts and 0 for the others")
      .unset("the dataset loss_mask of an HDF5 file; else all count")
      .sets("mask");
  add_document_options(table, options.break_mode, options.document_attention, options.end_of_document);
  table.group("How");
  table.integer("batch-size", "B", options.batch_size, {1, 1e6}, "sequences per rank at a time").common();
  table.integer("tokens-per-sample", "T", options.tokens_per_sample, {0, 1e9}, "tokens per sequence")
      .alias("block-size")
      .sets("sequence length")
      .unset("the model's longest sequence; for DATA at most 1024")
      .common();
  add_precision_options(table, options.precision);
  add_model_tokenizer_option(table, options.tokenizer);
  add_text_options(table, options.json_field, options.chat, options.form, options.skip_invalid,
                   "Only the tokens of answers count in the loss.");
  add_chat_template_option(table, options.chat_template);
  add_adapter_option(table, options.adapter);
  add_base_type_option(table, options.base_type, "Keep the matrices of the blocks quantized; adapters are not.");
  add_average_option(table, options.use_ema);
  add_no_verify_option(table, options.no_verify);
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  table.flag("json", options.json, "print one JSON object").common();
  table
      .path(
          "per-token", "FILE", options.per_token,
          "Write the log-probability of each target of DATA into this new file, in the order of DATA: a line of JSON for each "
          "sequence, or HDF5 if the name ends in .h5 or .hdf5.")
      .unset("no file");
  return table;
}

void require_complete(const EvaluateOptions& options) {
  if (options.model.empty() || (options.data.empty() && options.multiple_choice.empty()))
    throw UserError(
        "MODEL and DATA, or MODEL and --multiple-choice FILE, are needed (what to evaluate, and on which tokens or questions); "
        "see fsdp-evaluate --help");
  if (!options.data.empty() && !options.multiple_choice.empty())
    throw UserError("DATA and --multiple-choice are both given (only one can be evaluated at a time); leave out one of them");
  const bool by_documents = options.break_mode != BreakMode::none || options.document_attention;
  if (options.data.empty() && (!options.mask.empty() || by_documents))
    throw UserError("--mask, --break-mode and --document-attention change nothing (they are only for DATA); leave them out");
  if (!options.chat_template.empty() && !options.chat)
    throw UserError("--chat-template changes nothing (it is only for --chat); give --chat, or leave it out");
  if (options.data.empty() && !options.per_token.empty())
    throw UserError("--per-token changes nothing (it is only for DATA); leave it out");
  if (options.end_of_document && !by_documents)
    throw UserError(
        "--eos-token-id changes nothing (it is only for --break-mode complete, --break-mode eos and --document-attention); "
        "give one of these, or leave it out");
}

namespace {

/// Returns the size of the text, in bytes, that the counted target tokens stand for.
std::size_t text_bytes(const Samples& samples, const Tokenizer& tokenizer) {
  const Tokens& tokens = samples.tokens();
  std::vector<std::uint32_t> piece(std::min<std::uint64_t>(tokens.size(), 4096)), counts(piece.size());
  const auto decoder = tokenizer.make_decoder();
  std::string text;
  std::size_t bytes = 0;
  std::uint64_t k = 0;  // the first sequence whose last target is this token or a later one
  Samples::Place sequence = samples.place_of(k);
  for (std::uint64_t at = 0; at < tokens.size(); at += piece.size()) {
    const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), tokens.size() - at));
    tokens.read(at, here);
    samples.read_counts(at, std::span(counts).first(here.size()));
    for (std::size_t i = 0; i < here.size(); ++i) {
      decoder->add(static_cast<TokenId>(here[i]), text);
      while (at + i > sequence.begin + sequence.targets) sequence = samples.place_of(++k);
      if (at + i > sequence.begin && counts[i] == 1) bytes += text.size();  // the first token of a sequence is no target
      text.clear();
    }
  }
  decoder->finish(text);
  return bytes + text.size();
}

/// The token files made from texts in DATA. On each node the first rank makes them, in the folder for temporary files. The
/// destructor removes them; ranks that have opened them can still read them.
class NodeTexts {
 public:
  /// Collective over world.
  NodeTexts(const EvaluateOptions& options, const TensorSource& source, Group& world, Group& node) {
    std::vector<TextSet> texts;
    TextReading reading = {
        .tokenizer = {},
        .json_field = options.json_field,
        .skip_invalid = options.skip_invalid,
        .chat = options.chat,
        .form = options.form,
        .chat_template = options.chat_template,
        .documents = needs_documents({1, options.break_mode, options.end_of_document, options.document_attention}),
        .save_interval_s = 0};
    agree(world, [&] {
      texts = texts_in(options.data, Split::valid);
      try_opening(options.data, Split::valid);
      if (texts.empty() && options.chat)
        throw UserError(
            "--chat changes nothing (the data are tokens already); leave it out, or give the conversations as JSON");
      if (texts.empty()) return;
      const std::size_t vocab_size = reading.vocab_size = source.config().vocab_size;
      reading.tokenizer = name_of_model_tokenizer(options.tokenizer, folder_beside(source, options.model), vocab_size);
      if (reading.tokenizer.empty())
        throw UserError(format(
            "'{}' is text, but {}, a model with {} tokens, has no tokenizer next to it (text needs one); give --tokenizer",
            texts.front().name, source.description(), vocab_size));
      open_masks(options.mask);
    });
    if (world.max(texts.size()) == 0) return;
    std::string name;
    agree(world, [&] {
      if (node.rank() == 0) name = mine_.emplace(std::filesystem::temp_directory_path(), "fsdp-evaluate").path();
    });
    reading.folder = node.broadcast(name, 0);
    work_meanwhile(world, node.rank() == 0,
                   [&](const std::function<bool()>& stop) { make_tokens_of_texts(texts, reading, stop); });
    folder_ = reading.folder;
  }
  /// The folder of the token files; empty if DATA has no texts.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::optional<ScratchFolder> mine_;  // on the first rank of a node
  std::filesystem::path folder_;
};

/// Returns the number of rows in a batch: --batch-size, or `rows`, the number of all rows, if that is smaller.
std::size_t most_rows(const EvaluateOptions& options, std::uint64_t rows) {
  return std::min<std::uint64_t>(options.batch_size, std::max<std::uint64_t>(rows, 1));
}

/// A new file with the log-probabilities of targets. The file has its name once it is complete.
class TargetFile {
 public:
  /// `targets` is the number of all targets. Throws UserError if the file exists, or cannot be made.
  TargetFile(std::filesystem::path path, std::uint64_t targets)
      : path_(std::move(path)), temporary_(path_.string() + temporary_suffix) {
    require_absent(path_);
    std::error_code unused;
    std::filesystem::remove(temporary_, unused);
    if (!is_hdf5(path_)) {
      text_.emplace(temporary_);
      return;
    }
    h5_.emplace(h5::File::create(temporary_));
    values_.emplace(h5_->create_dataset("logprobs", {targets}));
    for (const char* const name : {"tokens", "sequences", "positions"})
      integers_.push_back(h5_->create_integers(name, sizeof(std::uint32_t), h5::Compression::none));
  }
  static void require_absent(const std::filesystem::path& path) {
    if (kind_of(path) != PathKind::missing)
      throw UserError(format("--per-token {} exists (it is not overwritten); give another name, or remove it", path.string()));
    if (kind_of(folder_of(path)) != PathKind::folder)
      throw UserError(format("--per-token {} is in no folder ({} does not exist); make the folder", path.string(),
                             folder_of(path).string()));
  }

  /// Appends the targets of a sequence, those that are not below 0.
  void add(std::uint64_t sequence, std::span<const std::int32_t> targets, std::span<const float> losses) {
    std::vector<std::uint32_t> positions, tokens;
    std::vector<float> values;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] < 0) continue;
      positions.push_back(static_cast<std::uint32_t>(t + 1));  // the target of input t is the token after it
      tokens.push_back(static_cast<std::uint32_t>(targets[t]));
      values.push_back(0 - losses[t]);
    }
    if (values.empty()) return;
    if (text_) {
      const std::string line = format("{{\"sequence\":{},\"positions\":[{}],\"tokens\":[{}],\"logprobs\":[{}]}}\n", sequence,
                                      fmt::join(positions, ","), fmt::join(tokens, ","), fmt::join(values, ","));
      text_->write(text_->size(), line.data(), line.size());
      return;
    }
    values_->write({written_, written_ + values.size()}, values.data());
    written_ += values.size();
    integers_[0].append(tokens);
    integers_[1].append(std::vector(values.size(), narrow<std::uint32_t>(sequence)));
    integers_[2].append(positions);
  }
  void finish() {
    if (text_) {
      text_->finish();
    } else {
      values_.reset(), integers_.clear();
      h5_->close();
    }
    rename_durably(temporary_, path_);
  }

 private:
  static bool is_hdf5(const std::filesystem::path& path) { return path.extension() == ".h5" || path.extension() == ".hdf5"; }

  std::filesystem::path path_, temporary_;
  std::optional<OutputFile> text_;
  std::optional<h5::File> h5_;
  std::optional<h5::Dataset> values_;
  std::vector<h5::Integers> integers_;
  std::size_t written_ = 0;
};

/// Measures the loss on DATA.
class LossReport {
 public:
  LossReport(const EvaluateOptions& options, const TensorSource& source, const Tokenizer* tokenizer, Communicator& world,
             Group& node)
      : options_(options), source_(source), tokenizer_(tokenizer), world_(world) {
    const std::size_t vocab_size = source.config().vocab_size;
    const NodeTexts texts(options, source, world, node);
    std::unique_ptr<Tokens> tokens;
    agree(world, [&] { tokens = open_tokens(options.data, Split::valid, texts.folder()); });
    check_tokens(world, *tokens, vocab_size);
    if (const auto doubt = doubt_type(*tokens, vocab_size); doubt && world.rank() == 0) print_warnings({*doubt});
    if (const std::string unread = tokens->unread(); !unread.empty() && world.rank() == 0) print_warnings({unread});
    agree(world, [&] {
      if (world.rank() == 0 && options.mask.empty())
        if (const std::string unused = unused_masks(options.data, Split::valid, "--mask"); !unused.empty())
          print_warnings({unused});
      const std::size_t T = options.tokens_per_sample > 0 ? options.tokens_per_sample : default_length(tokens->size());
      samples_.emplace(std::move(tokens), Cut{T, options.break_mode, options.end_of_document, options.document_attention},
                       open_masks(options.mask));
      EvaluateOptions unused;
      const OptionTable names = evaluate_option_table(unused);
      if (world.rank() == 0)
        report_counts(
            samples_->counts(), samples_->tokens().name(),
            [&](const std::string& line) {  // with --json, the result has the counts
              if (!options.json) print_text(stderr, wrapped(line) + "\n");
            },
            [&](const std::string& text) { print_warning(names.name_options(text)); });
      if (world.rank() == 0 && !samples_->doubt().empty()) print_warnings({samples_->doubt()});
      batches_.emplace(*samples_, BatchCut{batch_size(), T, 1, world.rank(), world.size()}, vocab_size);
    });
  }

  // The sequence length and the batch size do not depend on the number of ranks, nor does any bit of a sequence's loss.
  std::size_t tokens_per_sample() const { return samples_->T(); }
  std::size_t batch_size() const { return most_rows(options_, samples_->count()); }

  std::string measure(Executor& executor, const std::function<void(double)>& progress) const {
    const Timer timer;
    const auto batch_done = [&](std::size_t done) {
      progress(static_cast<double>(done) / static_cast<double>(batches_->batches()));
    };
    std::optional<TargetFile> file;
    std::uint64_t next = 0;  // the first sequence of the next batch
    agree(world_, [&] {
      if (!options_.per_token.empty() && world_.rank() == 0) file.emplace(options_.per_token, batches_->targets());
    });
    const TakeLosses take = [&](std::span<const std::int32_t> targets, std::span<const float> losses) {
      write_batch(file, next, targets, losses);
      next += batch_size() * static_cast<std::size_t>(world_.size());
    };
    const MeanLoss mean =
        *mean_loss(executor, *batches_, world_, batch_done, {}, options_.per_token.empty() ? TakeLosses() : take);
    const double loss = mean.loss, seconds = timer.seconds();
    agree(world_, [&] {
      require_finite_loss(loss);
      if (file) file->finish();
    });
    const double bits = loss / std::numbers::ln2;
    // True if each token is one byte of text.
    const bool is_bytes = source_.config().vocab_size == 256 && tokenizer_ && tokenizer_->vocab_size() == 256;
    std::optional<double> bits_per_byte;
    agree(world_, [&] {
      if (!tokenizer_) return;
      const std::size_t targets = batches_->targets(), bytes = is_bytes ? targets : text_bytes(*samples_, *tokenizer_);
      // Special tokens stand for no bytes.
      if (bytes > 0) bits_per_byte = bits * (static_cast<double>(targets) / static_cast<double>(bytes));
    });
    if (options_.json) {
      nlohmann::json json = {{"loss", loss},
                             {"ppl", std::exp(loss)},
                             {"bits_per_token", bits},
                             {"mean_token_accuracy", mean.accuracy},
                             {"entropy", mean.entropy},
                             {"tokens", batches_->targets()},
                             {"seconds", seconds},
                             {"model", source_.description()},
                             {"precision", name_of(options_.precision)},
                             {"data", to_json(samples_->counts())}};
      if (bits_per_byte) json["bits_per_byte"] = *bits_per_byte;
      return json_text(json) + "\n";
    }
    std::string in_bits = is_bytes ? "" : format("  bits per token {:.6g}", bits);
    if (bits_per_byte) in_bits += format("  bits per byte {:.6g}", *bits_per_byte);
    return format("{}\nloss {:.17g}  ppl {:.6g}{}  accuracy {:.6g}  entropy {:.6g}  ({} tokens, in {}, {})\n",
                  one_line(source_.description()), loss, std::exp(loss), in_bits, mean.accuracy, mean.entropy,
                  batches_->targets(), name_of(options_.precision), format_duration(seconds));
  }

 private:
  /// Appends a batch of all ranks to rank 0's file. The ranks have its sequences in order, the first of them sequence `first`.
  /// Collective.
  void write_batch(std::optional<TargetFile>& file, std::uint64_t first, std::span<const std::int32_t> targets,
                   std::span<const float> losses) const {
    const std::size_t rows = targets.size(), T = rows / batch_size();
    std::vector<std::int64_t> all(rows * static_cast<std::size_t>(world_.size()));  // both numbers of a row in one
    const auto mine = std::span(all).subspan(rows * static_cast<std::size_t>(world_.rank()), rows);
    for (std::size_t i = 0; i < rows; ++i) mine[i] = (std::int64_t{targets[i]} << 32) | std::bit_cast<std::uint32_t>(losses[i]);
    world_.sum(std::span(all));
    agree(world_, [&] {
      if (!file) return;
      std::vector<std::int32_t> of_targets(T);
      std::vector<float> of_losses(T);
      for (std::size_t b = 0; b * T < all.size(); ++b) {
        for (std::size_t t = 0; t < T; ++t) {
          of_targets[t] = static_cast<std::int32_t>(all[b * T + t] >> 32);
          of_losses[t] = std::bit_cast<float>(static_cast<std::uint32_t>(all[b * T + t]));
        }
        file->add(first + b, of_targets, of_losses);
      }
    });
  }

  /// Returns the default length of sequences: a short text is one sequence without padding.
  std::size_t default_length(std::uint64_t tokens) const {
    const std::uint64_t targets = std::max<std::uint64_t>(tokens, 2) - 1;
    return std::min<std::uint64_t>({targets, static_cast<std::uint64_t>(source_.config().longest_sequence()), 1024});
  }

  const EvaluateOptions& options_;
  const TensorSource& source_;
  const Tokenizer* tokenizer_;
  Communicator& world_;
  std::optional<Samples> samples_;
  std::optional<ValidBatches> batches_;
};

/// A context with one of its choices.
struct Row {
  const Question* question;
  const Choice* choice;
  /// The number of inputs: the last token is a target but no input.
  std::size_t length() const { return question->context.size() + choice->tokens.size() - 1; }
};

/// Writes T inputs and T targets. Only the tokens of the choice are targets; all other targets are -1, which do not count.
void fill_row(const Row& row, std::size_t T, std::int32_t* inputs, std::int32_t* targets) {
  const auto &context = row.question->context, &choice = row.choice->tokens;
  const std::size_t all = context.size() + choice.size(), left_out = all > T + 1 ? all - (T + 1) : 0;
  const auto token = [&](std::size_t i) { return i < context.size() ? context[i] : choice[i - context.size()]; };
  std::fill_n(inputs, T, 0);
  std::fill_n(targets, T, -1);
  for (std::size_t i = left_out; i + 1 < all; ++i) {
    inputs[i - left_out] = token(i);
    if (i + 1 >= context.size()) targets[i - left_out] = token(i + 1);
  }
}

/// Counts the questions of --multiple-choice for which the right choice has the smallest loss. The loss of a choice is the
/// negative logarithm of its probability after the context.
class ChoiceReport {
 public:
  ChoiceReport(const EvaluateOptions& options, const TensorSource& source, const Tokenizer* tokenizer, Communicator& world)
      : options_(options), source_(source), world_(world) {
    agree(world, [&] { questions_ = read_questions(options.multiple_choice, tokenizer, source.config().vocab_size); });
    for (const Question& question : questions_)
      for (const Choice& choice : question.choices) rows_.push_back({&question, &choice});
  }
  ChoiceReport(const ChoiceReport&) = delete;

  std::size_t tokens_per_sample() const {
    std::size_t longest = 1;
    for (const Row& row : rows_) longest = std::max(longest, row.length());
    return std::min(longest, options_.tokens_per_sample > 0 ? options_.tokens_per_sample
                                                            : static_cast<std::size_t>(source_.config().longest_sequence()));
  }
  std::size_t batch_size() const { return most_rows(options_, rows_.size()); }

  std::string measure(Executor& executor, const std::function<void(double)>& progress) const {
    const Timer timer;
    const std::vector<double> losses = losses_of_rows(executor, progress);
    const double n = static_cast<double>(questions_.size()), seconds = timer.seconds();
    nlohmann::json json = {{"questions", questions_.size()},
                           {"seconds", seconds},
                           {"model", source_.description()},
                           {"precision", name_of(options_.precision)}};
    std::string text = format("{}\n{} questions of {} (in {}, {})\n", one_line(source_.description()), questions_.size(),
                              options_.multiple_choice.string(), name_of(options_.precision), format_duration(seconds));
    // The loss of a choice is divided by a length: 1, as in lm-evaluation-harness ("acc"), its tokens, as in llm.c and GPT-3,
    // or its characters ("acc_norm" of lm-evaluation-harness), unless they are not known.
    using LengthOf = std::size_t (*)(const Choice&);
    const std::tuple<const char*, const char*, LengthOf> ways[] = {
        {"acc", "likeliest choice", [](const Choice&) { return std::size_t{1}; }},
        {"acc_per_token", "likeliest per token", [](const Choice& choice) { return choice.tokens.size(); }},
        {"acc_norm", "likeliest per character", [](const Choice& choice) { return choice.characters; }}};
    for (const auto& [key, name, length_of] : ways) {
      if (length_of(questions_.front().choices.front()) == 0) continue;
      double right = 0;
      const double* loss = losses.data();
      for (const Question& question : questions_) {
        std::vector<double> scaled;  // by choice; the first choice wins if several are equal
        for (const Choice& choice : question.choices) scaled.push_back(*loss++ / static_cast<double>(length_of(choice)));
        right += std::min_element(scaled.begin(), scaled.end()) - scaled.begin() == std::ptrdiff_t(question.answer);
      }
      const double part = right / n;
      // The standard error of a mean of n trials, as in lm-evaluation-harness.
      const double error = n > 1 ? std::sqrt(part * (1 - part) / (n - 1)) : 0;
      json[key] = part, json[std::string(key) + "_stderr"] = error;
      text += format("{:<13}  {:<23}  {:6.2f} %  +- {:.2f}\n", key, name, 100 * part, 100 * error);
    }
    return options_.json ? json_text(json) + "\n" : text;
  }

 private:
  /// Evaluates all rows in batches. A row that is too long loses the beginning of its context. Collective over world; all ranks
  /// return the same losses.
  std::vector<double> losses_of_rows(Executor& executor, const std::function<void(double)>& progress) const {
    const std::size_t B = batch_size(), T = tokens_per_sample(), at_once = B * static_cast<std::size_t>(world_.size());
    agree(world_, [&] {
      for (const Row& row : rows_) {
        if (row.choice->tokens.size() > T)
          throw UserError(
              format("question {} of the file has a choice of {} tokens (a sequence has {}); leave out the question, or raise "
                     "`sequence length` if the model's longest sequence allows it",
                     row.question - questions_.data() + 1, row.choice->tokens.size(), T));
        if (executor.table_class(std::min(T, row.length())) != executor.table_class(T))
          throw UserError(format(
              "questions of {} and {} tokens do not go together (the model's rotary frequencies depend on the length); split "
              "the file by the length of its questions",
              row.length(), T));
      }
    });
    std::vector<float> of_tokens(B * T);
    std::vector<double> losses(rows_.size(), 0);  // by row: of this rank's rows, later of all rows
    for (std::size_t begin = 0; begin < rows_.size(); begin += at_once) {
      const std::size_t first = std::min(rows_.size(), begin + B * static_cast<std::size_t>(world_.rank()));
      const std::size_t mine = std::min(B, rows_.size() - first);
      executor.evaluate(
          [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
            for (std::size_t b = 0; b < mine; ++b) fill_row(rows_[first + b], T, inputs + b * T, targets + b * T);
            std::fill_n(inputs + mine * T, (B - mine) * T, 0);
            std::fill_n(targets + mine * T, (B - mine) * T, -1);
          },
          of_tokens.data());
      for (std::size_t b = 0; b < mine; ++b)
        for (std::size_t t = 0; t < T; ++t) losses[first + b] += static_cast<double>(of_tokens[b * T + t]);
      progress(static_cast<double>(std::min(rows_.size(), begin + at_once)) / static_cast<double>(rows_.size()));
    }
    world_.sum(losses);
    agree(world_, [&] { std::for_each(losses.begin(), losses.end(), require_finite_loss); });
    return losses;
  }

  const EvaluateOptions& options_;
  const TensorSource& source_;
  Communicator& world_;
  std::vector<Question> questions_;
  std::vector<Row> rows_;
};

/// Loads the model with the batch size and the sequence length of `report`, and runs the measurement.
template <class Report>
std::string run(const Report& report, const EvaluateOptions& options, const TensorSource& source, const ComputingRank& rank,
                Communicator& world) {
  std::optional<ShardedModel> sharded;
  with_progress("loading the model", [&](const ByteProgress& progress) {
    load_model(sharded, source,
               {.batch = {report.batch_size(), report.tokens_per_sample()},
                .types = {.parameter = options.precision,
                          .master = options.precision == DType::bf16 ? DType::bf16 : DType::f32},  // bf16 needs no fp32 copy
                .plan = {.training = false, .documents = options.document_attention}},
               options.base_type, rank, world, {}, {}, world.rank() == 0 ? progress : nullptr);
  });
  ProgressBar bar("evaluating");
  const Timer timer;
  const std::string result = report.measure(sharded->executor(), [&](double done) {
    if (world.rank() == 0) bar.update(done, 1, format("{} left", format_duration(timer.seconds() * (1 - done) / done)));
  });
  bar.clear();
  return result;
}

/// Prints a note if training used another precision: its validation losses then differ from the loss measured here.
void note_precision(const TensorSource& source, DType precision) {
  const CheckpointReader* const checkpoint = source.checkpoint();
  if (!checkpoint) return;
  const nlohmann::json trained = parse_json(checkpoint->header().options_json);
  if (!trained.is_object() || !trained.contains("precision") || !trained["precision"].is_string()) return;
  const auto theirs = trained["precision"].get<std::string>();
  if (theirs != name_of(precision))
    print_to(stderr,
             "{} was trained in {}, and is evaluated in {}; --precision {} gives the same losses as validation in training\n",
             source.description(), theirs, name_of(precision), theirs);
}

}  // namespace

std::string evaluate(const EvaluateOptions& options, Communicator& world) {
  const ComputingRank rank = start_rank(options.device, options.threads, world);
  std::unique_ptr<TensorSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  agree(world, [&] {
    if (!options.per_token.empty() && world.rank() == 0) TargetFile::require_absent(options.per_token);
    std::vector<std::string> warnings;
    source =
        open_adapted_model(options.model, options.adapter, options.base_type, &warnings,
                           options.no_verify ? Verify::no : Verify::yes, options.use_ema ? Weights::average : Weights::trained);
    if (world.rank() == 0) print_warnings(warnings), note_precision(*source, options.precision);
    const std::filesystem::path folder = folder_beside(*source, options.model);
    if (world.rank() == 0 || options.data.empty())  // only rank 0 reports bits per byte
      tokenizer = find_model_tokenizer(options.tokenizer, folder, source->config().vocab_size);
    if (!tokenizer || world.rank() != 0) return;
    print_warnings(tokenizer->warnings());
    if (const auto doubt = doubt_tokenizer(*tokenizer, options.tokenizer, source->config().vocab_size, folder))
      print_warnings({*doubt});
  });
  require_same_files(
      world,
      [&] {
        return files_of_model(*source, options.model, options.tokenizer,
                              {files_of_data(options.data, Split::valid),
                               files_of_data(options.mask, Split::train),
                               {options.multiple_choice},
                               {options.chat_template}});
      },
      options.no_verify);
  const auto report = [&]<class Report>(const Report& made) { return run(made, options, *source, rank, world); };
  return options.data.empty() ? report(ChoiceReport(options, *source, tokenizer.get(), world))
                              : report(LossReport(options, *source, tokenizer.get(), world, *rank.node));
}

}  // namespace fsdp
