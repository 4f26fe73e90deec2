// Tokenizes a text into files, and resumes what a killed process has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "data/formats.hpp"
#include "data/json_records.hpp"
#include "data/text_source.hpp"
#include "data/token_writer.hpp"
#include "text/chat_template.hpp"
#include "text/parallel_encoder.hpp"
#include "text/text_cuts.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// A text in pieces.
class TextPieces {
 public:
  virtual ~TextPieces() = default;
  /// False at the end. `piece` is then what it was.
  virtual bool next(TextPiece& piece) = 0;
};

/// Pieces of about a megabyte, each cut where the rules allow it; longer where there is no such place, up to 256 MiB.
class PlainPieces : public TextPieces {
 public:
  /// The part [begin, end) of the text, which was cut at `begin` by the rules if `behind_cut`; `end` is empty for all that
  /// follows. With `documents` a piece ends with each text.
  PlainPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const CutRules& rules, bool documents,
              bool behind_cut = false);
  /// Throws UserError where there is no such place for longer.
  bool next(TextPiece& piece) override;

 private:
  void fill(std::size_t bytes);

  TextSource& text_;
  std::optional<std::uint64_t> end_;
  CutRules rules_;
  bool documents_, at_end_ = false, document_ends_ = false;
  std::string buffer_;      // what was read, behind the character before it
  std::size_t before_ = 0;  // bytes of that character
  std::uint64_t at_;        // where the rest of the buffer begins in the text
};

/// Reads the conversation in a record of JSON, or says why there is none.
using ConversationReader = std::function<ChatText(const nlohmann::json& record, std::string& problem)>;

/// Records of JSON: the text of a field in each is a document, and a piece.
class JsonPieces : public TextPieces {
 public:
  /// Reads the part [begin, end), which begins and ends between records. With `conversations` each record is a conversation
  /// instead of a text. `skip_invalid`: records without a text are left out.
  JsonPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const std::string& field,
             ConversationReader conversations = nullptr, bool skip_invalid = false);
  /// Throws what JsonRecords throws; and UserError for a record without a text, unless those are left out.
  bool next(TextPiece& piece) override;

 private:
  std::optional<std::string> read(TextPiece& piece);
  [[noreturn]] void fail() const;

  JsonRecords records_;
  std::string field_;
  ConversationReader conversations_;
  bool skip_invalid_;
  std::string problem_;
};

/// What is known of a job on the disk, in a file beside its output.
class JobNotes {
 public:
  /// `same` is what a job must have in common with this one to be resumed. Nothing is written if `interval_s` is 0. Says
  /// on stderr why what is there is of no use.
  JobNotes(std::filesystem::path path, nlohmann::ordered_json same, double interval_s);

  /// The progress written last. Null (by begin_with_tokenizer()) or nothing: the job begins anew.
  const std::optional<nlohmann::json>& found() const { return found_; }
  /// Notes that the job is about to write its tokenizer's file, which will have this text: a job that is killed after that
  /// finds the file and knows it. Not for texts from pipes.
  void begin_with_tokenizer(std::string_view text);
  /// Returns true if this file is the tokenizer of what was found.
  bool know_tokenizer(const std::filesystem::path& file) const;
  /// Begins anew if the checksum of the tokenizer, sum_of_tokenizer(), differs from the one in the notes.
  void compare_tokenizer(const std::string& sum);
  /// Begins anew for this reason, and says so.
  void start_anew(const std::string& why);
  /// Whether a killed job can be resumed.
  bool are_kept() const { return interval_s_ > 0; }
  bool due() const { return interval_s_ > 0 && timer_.seconds() >= interval_s_; }
  void write(const nlohmann::json& progress);
  void remove();

 private:
  void read();
  void put(const nlohmann::json& progress);

  std::filesystem::path path_;
  nlohmann::ordered_json same_;
  double interval_s_;
  std::optional<nlohmann::json> found_;
  std::string tokenizer_found_;
  Timer timer_;
};

struct TokenizeJobOptions {
  std::filesystem::path out, valid_out;
  const TokenFormat* format = token_formats().front();
  std::uint64_t shard_tokens = most_llmc_tokens;  // of llm.c's files
  std::optional<TokenId> end_of_text = {};        // follows each document
  bool documents = false;                         // each plain text is one, also without that token; else all are one
  std::string json_field = {};                    // of texts that are lines of JSON; else empty
  ConversationReader conversations = nullptr;     // lines of JSON are conversations: then masks are written, too
  std::size_t threads = 1;
  bool own_tokenizer = false;       // its tokenizer was learned for it: going on needs the notes from then on
  bool skip_invalid = false;        // leave out lines of JSON without a text
  bool is_text = false;             // bytes of 0 are refused: a file that has them was taken for text and is none
  std::function<bool()> stop = {};  // asked between pieces
};

/// Somebody has asked the job to stop, and what is done is noted.
struct TokenizingStopped : RunError {
  using RunError::RunError;
};

struct TokenizeResult {
  std::vector<WrittenFile> train, valid, train_mask, valid_mask;
};

/// Where the mask of a token file is written that has no place for it: beside it, NAME.mask.bin for NAME.bin.
std::filesystem::path mask_path(const std::filesystem::path& tokens);

class TokenizeJob {
 public:
  /// From `tail` on the text is held out. The references must outlive this.
  TokenizeJob(const Tokenizer& tokenizer, TextSource& text, std::optional<std::uint64_t> tail, JobNotes& notes,
              const TokenizeJobOptions& output);
  /// Throws UserError for texts without a token, RunError if the disk fails or is full, and TokenizingStopped.
  TokenizeResult run();

 private:
  TokenizeResult run_parts();
  void open_writers();
  std::unique_ptr<TextPieces> open_pieces(std::uint64_t from, bool behind_cut, std::optional<std::uint64_t> end);
  void run_part(TokenWriter& writer, TokenWriter* mask, std::uint64_t begin, std::optional<std::uint64_t> end);
  void save();
  bool texts_are_documents() const { return output_.documents || output_.end_of_text; }
  void warn_of_text() const;

  const Tokenizer& tokenizer_;
  TextSource& text_;
  std::optional<std::uint64_t> tail_;
  JobNotes& notes_;
  TokenizeJobOptions output_;
  std::unique_ptr<TokenWriter> train_, valid_, train_mask_, valid_mask_;  // those that there are; masks go away first
  std::uint64_t at_ = 0;                                                  // all before it is tokenized and with the writers
  std::uint64_t tokens_ = 0;
  std::uint64_t replaced_ = 0, first_replaced_ = 0;
  std::uint64_t skipped_ = 0, first_skipped_ = 0;  // lines of JSON
};

}  // namespace fsdp
