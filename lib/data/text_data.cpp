#include "data/text_data.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "base/version.hpp"
#include "data/text_source.hpp"
#include "data/token_writer.hpp"
#include "data/tokenize_job.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "text/chat_template.hpp"
#include "text/end_tokens.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

/// The path of the token file without .bin, .idx or .json, such as checkpoints/tokens/corpus-0123abcd. It depends only on the
/// data's name.
fs::path stem_of(const TextSet& text, const fs::path& folder) {
  const std::string whole = fs::absolute(text.name).lexically_normal().string();
  std::string shown = fs::path(text.files.front()).stem().string();
  return folder / format("{}-{}", shown, checksum_text(checksum(whole.data(), whole.size())).substr(0, 8));
}

fs::path with(const fs::path& stem, const char* extension) { return stem.string() + extension; }

/// Reads the note next to a complete token file: the sources of the file, and the number and checksum of its tokens. Null if
/// there is no valid note.
nlohmann::json read_note(const fs::path& stem) {
  const fs::path path = with(stem, ".json");
  if (kind_of(path) != PathKind::file) return nullptr;
  const std::string text = read_text_file(path);
  const nlohmann::json note = check_seal(text) == Seal::right ? parse_json(text) : nlohmann::json();
  const auto has = [&](const char* key) { return note.is_object() && note.contains(key) && note[key].is_number_unsigned(); };
  return has("tokens") && has("bytes") && has("checksum") && note.contains("made_of") ? note : nlohmann::json();
}

/// The files next to the token file, and the keys of their checksums in the note: its index and, if the tokens have a mask, the
/// two files of the mask.
constexpr std::pair<const char*, const char*> further_files[] = {
    {".idx", "index_checksum"}, {".mask.bin", "mask_checksum"}, {".mask.idx", "mask_index_checksum"}};

/// Returns true if the files next to the token file are what was written, and its size is.
bool is_whole(const fs::path& stem, const nlohmann::json& note) {
  for (const auto& [extension, key] : further_files)  // notes of older releases have fewer checksums
    if (note.contains(key) && (!size_of_file(with(stem, extension)) || sum_file(with(stem, extension)).checksum != note[key]))
      return false;
  return size_of_file(with(stem, ".bin")) == note["bytes"].get<std::uint64_t>() && size_of_file(with(stem, ".idx")).has_value();
}

/// How one text is read: the parts of TokenizeJobOptions that do not concern the output.
class ReadingOfText {
 public:
  ReadingOfText(const TextReading& reading, TextSource& source)
      : reading_(reading),
        source_(source),
        field_(reading.chat ? "" : source.json_field(reading.json_field, "text", reading.warn)) {}

  const std::string& field() const { return field_; }
  bool documents() const { return reading_.documents && field_.empty() && !reading_.chat; }
  /// The folder or file with the chat template.
  fs::path templates() const {
    return reading_.chat_template.empty() ? folder_of_tokenizer(reading_.tokenizer) : reading_.chat_template;
  }
  /// The options refer to this object and to the tokenizer.
  TokenizeJobOptions options(const Tokenizer& tokenizer) {
    TokenizeJobOptions options;
    if (documents() || !field_.empty()) options.end_of_text = find_end_of_text(tokenizer);
    options.documents = documents();
    if (const fs::path folder = folder_of_tokenizer(reading_.tokenizer); options.end_of_text && !folder.empty())
      if (const std::string contradiction = contradiction_of_end(folder, tokenizer, *options.end_of_text);
          !contradiction.empty())
        reading_.warn(contradiction);
    if (reading_.chat) {
      chat_.emplace(templates(), tokenizer, reading_.form);
      options.end_tokens = end_tokens_beside(folder_of_tokenizer(reading_.tokenizer), tokenizer, reading_.chat_template);
      options.conversations = [&](const nlohmann::ordered_json& record, std::string& problem) {
        return with_end(chat_->read(record, problem), tokenizer);
      };
    }
    options.json_field = field_;
    options.threads = reading_.threads > 0 ? reading_.threads : std::max(1u, std::thread::hardware_concurrency());
    options.skip_invalid = reading_.skip_invalid;
    options.is_text = true;
    options.warn = reading_.warn;
    return options;
  }
  /// Runs the job, and adds the warnings of the conversations.
  TokenizeResult run(const Tokenizer& tokenizer, JobNotes& notes, const TokenizeJobOptions& options) {
    TokenizeResult made = TokenizeJob(tokenizer, source_, std::nullopt, notes, options).run();
    if (chat_) made.train.counts.warnings = chat_->warnings();
    return made;
  }

 private:
  /// Ends an open answer with the tokenizer's end-of-text token.
  static ChatText with_end(ChatText text, const Tokenizer& tokenizer) {
    if (const auto end = find_end_of_text(tokenizer); end && text.ends_open && !text.answers.empty()) {
      text.text += tokenizer.spelling(*end);
      text.answers.back().end = text.answer_ends.back() = text.text.size();
      text.ends_open = false;
    }
    return text;
  }

  const TextReading& reading_;
  TextSource& source_;
  std::string field_;
  std::optional<ChatReader> chat_;
};

/// Makes the token files of texts with one tokenizer, which is opened when it is first needed.
class TokenMaker {
 public:
  TokenMaker(const TextReading& reading, const std::function<bool()>& stop)
      : reading_(reading), stop_(stop), tokenizer_sum_(sum_of_tokenizer(reading.tokenizer)) {}

  std::string make(const TextSet& text) {
    const fs::path stem = stem_of(text, reading_.folder);
    TextSource source(text.files);
    if (!source.is_of_files())
      throw UserError(
          format("'{}' is a pipe or a device (text is read again at the next start); copy it into a file", text.name));
    ReadingOfText how(reading_, source);
    nlohmann::ordered_json made_of = {{"texts", source.identity()},
                                      {"tokenizer", tokenizer_sum_},
                                      {"json_field", how.field()},
                                      {"skip_invalid", reading_.skip_invalid}};
    if (reading_.chat) made_of["chat"] = sum_of_chat_templates(how.templates());
    if (reading_.form != RecordForm()) made_of["form"] = {reading_.form.name, reading_.form.names};
    if (how.documents()) made_of["documents"] = true;  // not `false`, because notes of older releases have no such entry
    const std::string size = format_bytes(static_cast<double>(source.size_of_files()));
    std::string why;
    if (const nlohmann::json note = read_note(stem); note.is_object()) {
      const bool same_text = note["made_of"] == nlohmann::json(made_of);
      if (same_text && is_whole(stem, note) && is_what_was_written(text, stem, note)) {
        require_tokens_of_model(text, stem);
        return format("text: {} of '{}' are {} tokens of {}, already in {}.bin", size, text.name,
                      note["tokens"].get<std::uint64_t>(), name_of_tokenizer(), stem.string());
      }
      why = same_text ? " anew, because that file is damaged"
                      : " anew, because the text, its tokenizer or the way to read it has changed";
      if (::unlink(with(stem, ".json").c_str()) != 0)
        throw UserError(
            format("{} cannot be removed (its folder: {}); make the folder writable, or choose another `save folder`",
                   with(stem, ".json").string(), why_not_opened(reading_.folder, errno)));
    }
    open();
    TokenizeJobOptions output = how.options(*tokenizer_);
    output.out = with(stem, ".bin");
    output.format = &find_token_format("megatron");
    output.stop = stop_;
    nlohmann::ordered_json same = made_of;
    same["version"] = version_string();
    JobNotes notes(with(stem, ".bin.resume"), same, reading_.save_interval_s, reading_.warn);
    notes.compare_tokenizer(tokenizer_sum_);
    const std::string line =
        format("text: tokenizing {} of '{}' with {} into {}.bin{}", size, text.name, name_of_tokenizer(), stem.string(), why);
    print_raw(stderr, wrapped(printable(line)) + "\n");
    const TokenizeResult made = how.run(*tokenizer_, notes, output);
    const std::uint64_t tokens = made.train.files.front().tokens;
    FileSum sum;
    with_progress("checksum of the tokens", [&](const auto& progress) {
      const std::size_t all = size_of_file(with(stem, ".bin")).value_or(0);
      std::size_t done = 0;
      sum = sum_file(with(stem, ".bin"), [&](std::size_t bytes) { progress(done += bytes, all); });
    });
    nlohmann::ordered_json note = {{"made_of", made_of},       {"tokenizer", reading_.tokenizer},
                                   {"tokens", tokens},         {"bytes", sum.bytes},
                                   {"checksum", sum.checksum}, {"counts", to_json(made.train.counts)}};
    for (const auto& [extension, key] : std::span(further_files).first(reading_.chat ? 3 : 1))
      note[key] = sum_file(with(stem, extension)).checksum;
    write_text_file_durably(with(stem, ".json"), seal_json(note));
    require_tokens_of_model(text, stem);
    return format("text: '{}' has {} tokens", text.name, tokens);
  }

 private:
  /// Reads the token file once, and returns true if its checksum is that in the note. Throws TokenizingStopped.
  bool is_what_was_written(const TextSet& text, const fs::path& stem, const nlohmann::json& note) const {
    ProgressBar bar("comparing tokens with their checksum", ProgressBar::Unit::bytes);
    const FileSum expected = {note["bytes"].get<std::uint64_t>(), note["checksum"].get<std::uint64_t>()};
    std::uint64_t done = 0;
    const auto piece_done = [&](std::size_t bytes) {
      done = std::min(done + bytes, expected.bytes);
      bar.update(static_cast<double>(done), static_cast<double>(expected.bytes));
      if (stop_ && stop_())
        throw TokenizingStopped(
            format("stopped on request while the tokens of '{}' are compared with their checksum; the same command repeats the "
                   "comparison",
                   text.name));
    };
    const bool same = sum_file(with(stem, ".bin"), piece_done) == expected;
    bar.finish();
    return same;
  }
  void open() {
    if (!tokenizer_) tokenizer_ = open_tokenizer(reading_.tokenizer);
  }
  /// Throws UserError for the first token that the model does not have.
  void require_tokens_of_model(const TextSet& text, const fs::path& stem) {
    open();
    if (reading_.vocab_size == 0 || tokenizer_->vocab_size() <= reading_.vocab_size) return;
    const auto tokens = open_token_file(with(stem, ".bin"));
    std::vector<std::uint32_t> piece(std::min<std::uint64_t>(tokens->size(), std::size_t{1} << 19));
    for (std::uint64_t at = 0; at < tokens->size(); at += piece.size()) {
      const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), tokens->size() - at));
      tokens->read(at, here);
      const auto other = std::find_if(here.begin(), here.end(), [&](std::uint32_t id) { return id >= reading_.vocab_size; });
      if (other == here.end()) continue;
      throw UserError(
          format("'{}' holds the token '{}' ({}, at position {}), which the model does not have (its tokens are 0 to {}); "
                 "leave the text out, or give the model's own `tokenizer`",
                 text.name, excerpt(tokenizer_->spelling(static_cast<TokenId>(*other))), *other,
                 at + static_cast<std::uint64_t>(other - here.begin()), reading_.vocab_size - 1));
    }
  }
  std::string name_of_tokenizer() const { return reading_.tokenizer == "bytes" ? "bytes" : format("'{}'", reading_.tokenizer); }

  const TextReading& reading_;
  const std::function<bool()>& stop_;
  std::string tokenizer_sum_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

/// The tokens of a file that this program has made. name() is the name of the text, because users know only the text.
class TokensOfText : public Tokens {
 public:
  /// `mask` is the path of the mask; empty if there is none.
  TokensOfText(const std::string& text, std::unique_ptr<const Tokens> tokens, fs::path mask, DataCounts counts)
      : text_(text), tokens_(std::move(tokens)), mask_(std::move(mask)), counts_(std::move(counts)) {}

  std::uint64_t size() const override { return tokens_->size(); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override { tokens_->read(begin, out); }
  std::string name() const override { return format("'{}'", text_); }
  std::uint64_t largest_possible() const override { return tokens_->largest_possible(); }
  bool has_documents() const override { return tokens_->has_documents(); }
  std::vector<std::uint64_t> documents() const override { return tokens_->documents(); }
  std::unique_ptr<Tokens> mask() const override {
    if (mask_.empty()) return nullptr;
    return std::make_unique<TokensOfText>(text_, open_token_file(mask_), "", DataCounts());
  }
  DataCounts counts() const override { return counts_; }
  void check(std::size_t part, std::size_t parts) const override { tokens_->check(part, parts); }

 private:
  std::string text_;
  std::unique_ptr<const Tokens> tokens_;
  fs::path mask_;
  DataCounts counts_;
};

}  // namespace

std::vector<std::string> make_tokens_of_texts(const std::vector<TextSet>& texts, const TextReading& reading,
                                              const std::function<bool()>& stop) {
  std::vector<std::string> said;
  if (texts.empty()) return said;
  require_no_link(reading.folder);
  std::error_code problem;
  fs::create_directories(reading.folder, problem);
  if (problem)
    throw UserError(format("the folder {} for the tokens of text cannot be made ({}); choose another `save folder`",
                           reading.folder.string(), problem.message()));
  TokenMaker maker(reading, stop);
  for (const TextSet& text : texts) said.push_back(maker.make(text));
  return said;
}

DataCounts look_at_text(const TextSet& text, const TextReading& reading, const Tokenizer& tokenizer,
                        const std::function<void(const EncodedPiece&, bool)>& look) {
  TextSource source(text.files);
  ReadingOfText how(reading, source);
  TokenizeJobOptions options = how.options(tokenizer);
  options.look = look;
  JobNotes none({}, {}, 0, reading.warn);
  return how.run(tokenizer, none, options).train.counts;
}

std::unique_ptr<Tokens> open_tokens_of_text(const TextSet& text, const fs::path& folder) {
  const fs::path stem = stem_of(text, folder);
  const nlohmann::json note = read_note(stem);
  return std::make_unique<TokensOfText>(
      text.name, open_token_file(with(stem, ".bin")),
      note.is_object() && note.contains("mask_checksum") ? with(stem, ".mask.bin") : "",
      note.is_object() ? counts_of_json(note.value("counts", nlohmann::json())) : DataCounts());
}

std::vector<fs::path> files_of_tokens(const TextSet& text, const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* const extension : {".json", ".bin", ".idx", ".mask.bin", ".mask.idx"})
    files.push_back(with(stem_of(text, folder), extension));
  return files;
}

std::uint64_t checksum_of_texts(const std::vector<TextSet>& texts, const fs::path& folder) {
  RunningSum sum;
  for (const TextSet& text : texts) {
    const nlohmann::json note = read_note(stem_of(text, folder));
    const std::uint64_t one = note.is_object() ? note["checksum"].get<std::uint64_t>() : 0;
    sum.add(&one, sizeof one);
  }
  return texts.empty() ? 0 : sum.value() | 1;
}

}  // namespace fsdp
