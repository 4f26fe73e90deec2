// Tokenizes a text into token files. A job can be resumed after its process was killed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/program.hpp"
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

/// Divides a text into pieces.
class TextPieces {
 public:
  virtual ~TextPieces() = default;
  /// Reads the next piece. Returns false at the end and leaves `piece` unchanged.
  virtual bool next(TextPiece& piece) = 0;
};

/// Divides plain text into pieces of about 1 MiB, at places where CutRules allow a cut. If there is no such place, a piece is
/// longer, up to 256 MiB.
class PlainPieces : public TextPieces {
 public:
  /// Reads the part [begin, end) of the text; if `end` is not set, to the end of the text. `after_cut` is true if an earlier
  /// job stopped at a cut at `begin`. If `documents` is true, a piece ends at the end of each text.
  PlainPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const CutRules& rules, bool documents,
              bool after_cut = false);
  /// Throws UserError if the text cannot be cut anywhere within 256 MiB.
  bool next(TextPiece& piece) override;

 private:
  void fill(std::size_t bytes);

  TextSource& text_;
  std::optional<std::uint64_t> end_;
  CutRules rules_;
  bool documents_, at_end_ = false, document_ends_ = false;
  std::string buffer_;      // the character before the next piece, then bytes that were read
  std::size_t before_ = 0;  // number of bytes of this character
  std::uint64_t at_;        // position in the text of the bytes after this character
};

/// Reads the conversation of a JSON record, or sets `problem` if there is none.
using ConversationReader = std::function<ChatText(const nlohmann::ordered_json& record, std::string& problem)>;

/// Makes a piece of each JSON record. The text in a field of the record is a document, and one piece.
class JsonPieces : public TextPieces {
 public:
  /// Reads the part [begin, end) of the text; `begin` and `end` must be between records. If `conversations` is set, each record
  /// is a conversation instead of a text. If `skip_invalid` is true, records without a text are left out.
  JsonPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const std::string& field,
             ConversationReader conversations = nullptr, bool skip_invalid = false);
  /// Throws what JsonRecords throws, and UserError for a record without a text unless `skip_invalid` is true.
  bool next(TextPiece& piece) override;

 private:
  bool read(TextPiece& piece);
  bool read_tokens(std::vector<TokenId>& tokens) const;
  std::string form() const;
  [[noreturn]] void fail() const;

  JsonRecords records_;
  std::string field_;
  ConversationReader conversations_;
  bool skip_invalid_, has_skipped_ = false;
  std::string problem_;
};

/// The first bytes of the notes.
inline constexpr std::string_view notes_beginning = "{\n \"same\":";
/// The notes about a job's progress, in a file next to its output.
class JobNotes {
 public:
  /// `same` has the settings that an earlier job must share with this one to be resumed. If `interval_s` is 0, write() does
  /// nothing. Calls `warn` if notes exist and cannot be used.
  JobNotes(std::filesystem::path path, nlohmann::ordered_json same, double interval_s, Warn warn = print_warning);

  /// The progress of the earlier job. It is JSON's null if that job only wrote its tokenizer (begin_with_tokenizer()), and
  /// nullopt if there are no usable notes. Tokenizing then starts from the beginning.
  const std::optional<nlohmann::json>& found() const { return found_; }
  /// Stores the checksum of the tokenizer file that the job is about to write, and whose content is `text`. If the job is
  /// killed, a later job recognises the file by this checksum. Does nothing if the training texts are pipes.
  void begin_with_tokenizer(std::string_view text);
  /// Returns true if this file is the tokenizer that the earlier job wrote.
  bool know_tokenizer(const std::filesystem::path& file) const;
  /// Calls start_anew() if the checksum of the tokenizer, sum_of_tokenizer(), differs from the one in the notes.
  void compare_tokenizer(const std::string& sum);
  /// Drops the earlier progress and warns with this reason.
  void start_anew(const std::string& why);
  /// Returns true if a killed job can be resumed.
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
  Warn warn_;
  std::optional<nlohmann::json> found_;
  std::string tokenizer_found_;
  Timer timer_;
};

struct TokenizeJobOptions {
  std::filesystem::path out, valid_out;
  const TokenFormat* format = token_formats().front();
  std::uint64_t shard_tokens = most_llmc_tokens;  // largest number of tokens per file, for llm.c's format
  std::optional<TokenId> end_of_text = {};        // appended to each document
  std::vector<TokenId> end_tokens = {};           // the tokens at which generation ends, besides end_of_text
  bool documents = false;       // if true, or if end_of_text is set, each plain text is a document; else all texts are one
  std::string json_field = {};  // the field with the text, for JSON; empty for plain text
  ConversationReader conversations = nullptr;  // set if JSON records are conversations; masks are then written, too
  std::size_t threads = 1;
  bool own_tokenizer = false;       // the job has trained its own tokenizer, so it writes notes from the start
  bool skip_invalid = false;        // leave out JSON records without a text
  bool is_text = false;             // refuse texts with zero bytes
  std::function<bool()> stop = {};  // called between pieces; if it returns true, the job stops
  /// If set, nothing is written, and this is called for each piece in order, also for those that are left out.
  std::function<void(const EncodedPiece& piece, bool is_left_out)> look = {};
  Warn warn = print_warning;
};

/// The job was stopped on request. If notes are kept, its progress is saved.
struct TokenizingStopped : RunError {
  using RunError::RunError;
};

struct TokenizeResult {
  struct Part {
    std::vector<WrittenFile> files, masks;  // no masks if there are none, or if they are in `files`
    DataCounts counts;
  };
  Part train, valid;
};

/// The path of a separate mask file: NAME.mask.bin for NAME.bin.
std::filesystem::path mask_path(const std::filesystem::path& tokens);

class TokenizeJob {
 public:
  /// If `tail` is set, the text from this offset on is held out for validation. The references must outlive this object.
  TokenizeJob(const Tokenizer& tokenizer, TextSource& text, std::optional<std::uint64_t> tail, JobNotes& notes,
              const TokenizeJobOptions& output);
  /// Throws UserError for texts without a token, RunError if the disk fails or is full, and TokenizingStopped.
  TokenizeResult run();

 private:
  /// What is written of a part of the text. The mask's writer is declared after that of the tokens, and so is destroyed first.
  struct Part {
    std::unique_ptr<TokenWriter> tokens, mask;  // null if not used
    DataCounts counts;
    TokenizeResult::Part finish();
  };
  TokenizeResult run_parts();
  std::array<std::pair<const char*, std::uint64_t*>, 5> numbers();
  void open_writers();
  std::unique_ptr<TextPieces> open_pieces(std::uint64_t from, bool after_cut, std::optional<std::uint64_t> end);
  void run_part(Part& part, std::uint64_t begin, std::optional<std::uint64_t> end);
  bool count(EncodedPiece& piece, DataCounts& counts);
  void end_answers(EncodedPiece& piece) const;
  void require_known_tokens(const EncodedPiece& piece) const;
  void save();
  bool texts_are_documents() const { return output_.documents || output_.end_of_text; }
  void warn_of_text() const;

  const Tokenizer& tokenizer_;
  TextSource& text_;
  std::optional<std::uint64_t> tail_;
  JobNotes& notes_;
  TokenizeJobOptions output_;
  Part train_, valid_;
  std::uint64_t at_ = 0;  // the text up to this offset is tokenized, and the writers have its tokens
  std::uint64_t tokens_ = 0;
  std::uint64_t replaced_ = 0, first_replaced_ = 0;
  std::uint64_t row_ = 0;  // tokens of the document that has begun
};

}  // namespace fsdp
