#include "data/tokenize_job.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "text/json_reader.hpp"
#include "text/shown_tokens.hpp"
#include "text/utf8.hpp"

namespace fsdp {

PlainPieces::PlainPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const CutRules& rules,
                         bool documents, bool after_cut)
    : text_(text), end_(end), rules_(rules), documents_(documents), at_(begin) {
  if (!text.is_of_files()) return;  // streams are read once, from the beginning
  text_.seek(begin);
  if (!after_cut || rules.anywhere || begin == 0) return;
  const std::size_t most = std::min<std::uint64_t>(begin, 4);
  const std::string around = text_.read_at(begin - most, most);
  before_ = character_before(around, around.size());
  buffer_ = around.substr(around.size() - before_);
}

void PlainPieces::fill(std::size_t bytes) {
  while (!at_end_ && !document_ends_ && buffer_.size() - before_ < bytes) {
    std::size_t more = bytes - (buffer_.size() - before_);
    const std::uint64_t read_to = at_ + buffer_.size() - before_;
    if (end_) more = std::min<std::uint64_t>(more, *end_ - read_to);
    if (more == 0) {
      at_end_ = true;
    } else if (text_.read(buffer_, more) == 0) {
      at_end_ = !text_.next();
      document_ends_ = documents_;
      if (!at_end_) text_.require_plain();
    }
  }
}

bool PlainPieces::next(TextPiece& piece) {
  for (std::size_t bytes = piece_bytes;; bytes *= 2) {
    fill(bytes);
    const bool is_last = at_end_ || document_ends_;
    const std::size_t cut = is_last ? buffer_.size() : last_cut(buffer_, before_, rules_);
    if (cut == 0 && !is_last) {
      if (bytes < longest_piece) continue;
      throw UserError(format(
          "the {} from {} on cannot be cut (they have no line end and no space after a word, and text is held in memory up to "
          "the next cut); put line ends into the text, or write each document as a line of JSON in a file named *.jsonl",
          format_bytes(static_cast<double>(longest_piece)), text_.place(at_)));
    }
    if (cut == before_ && !document_ends_) return false;
    piece.cut = before_;
    piece.end = at_ + cut - before_;
    // If another text begins at the end of the part, the current text ends there.
    piece.ends_document = documents_ && (document_ends_ || (end_ && piece.end == *end_ && text_.begins_at(*end_)));
    piece.text = buffer_.substr(0, cut);
    at_ = piece.end;
    before_ = is_last || rules_.anywhere ? 0 : character_before(buffer_, cut);
    buffer_.erase(0, cut - before_);
    document_ends_ = false;
    return true;
  }
}

JsonPieces::JsonPieces(TextSource& text, std::uint64_t begin, std::optional<std::uint64_t> end, const std::string& field,
                       ConversationReader conversations, bool skip_invalid)
    : records_(text, begin, end), field_(field), conversations_(std::move(conversations)), skip_invalid_(skip_invalid) {}

/// Reads a list of tokens in place of a text. Returns false if there is none.
bool JsonPieces::read_tokens(std::vector<TokenId>& tokens) const {
  std::string none;
  const nlohmann::json object = read_json(records_.record(), none);
  if (!object.is_object() || !object.contains(field_) || !object[field_].is_array()) return false;
  tokens.clear();
  for (const nlohmann::json& id : object[field_]) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<TokenId>::max()) return false;
    tokens.push_back(id.get<TokenId>());
  }
  return true;
}

/// Reads the text of the record. If there is none, returns false and sets `problem_` to the reason.
bool JsonPieces::read(TextPiece& piece) {
  piece.replaced = 0;
  if (!conversations_) {
    std::optional<std::string> text = read_json_field(records_.record(), field_, problem_, &piece.replaced);
    piece.is_tokens = !text && read_tokens(piece.tokens);
    piece.text = text ? std::move(*text) : "";
    return text || piece.is_tokens;
  }
  const nlohmann::ordered_json object = read_json_in_order(records_.record(), problem_, &piece.replaced);
  if (!problem_.empty()) return false;
  ChatText chat = conversations_(object, problem_);
  if (!problem_.empty()) return false;
  chat.counts += piece.counts;
  static_cast<ChatText&>(piece) = std::move(chat);
  piece.is_conversation = true;
  return true;
}

/// If the record has a common form that is not read, returns what it is and how to write it.
std::string JsonPieces::form() const {
  std::string none;
  return known_form(read_json_in_order(records_.record(), none));
}

void JsonPieces::fail() const {
  if (const std::string known = form(); !known.empty())
    throw UserError(
        format("{} is {}{}", records_.place(), known,
               conversations_ ? "" : ", and read it by `conversations`; or name the field of a text by `field of JSON`"));
  if (conversations_)
    throw UserError(format("{} is no conversation ({}); correct it, or leave such lines out by `skipping of lines`",
                           records_.place(), problem_));
  std::string none, fields;
  const nlohmann::json object = read_json(records_.record(), none);
  if (object.is_object())
    for (const auto& [key, value] : object.items())
      fields += format("{}\"{}\"{}", fields.empty() ? "; its fields are " : ", ", excerpt(key),
                       value.is_object()  ? " (an object)"
                       : value.is_array() ? " (a list)"
                                          : "");
  const std::string why = format("{} cannot be used ({}{}", records_.place(), problem_, fields);
  if (object.is_object() && (object.contains("messages") || (object.contains("prompt") && object.contains("completion"))))
    throw UserError(
        format("{}; it is a conversation); read such lines by `conversations`, or name the field that has the "
               "text by `field of JSON`",
               why));
  throw UserError(
      format("{}); correct it, name the field that has the text by `field of JSON`, or leave such lines out by "
             "`skipping of lines`",
             why));
}

bool JsonPieces::next(TextPiece& piece) {
  piece.counts = {};
  while (records_.next()) {
    const bool has_text = read(piece);
    if (!has_text && !skip_invalid_) fail();
    if (!has_text) {
      ++piece.counts.skipped;
      if (!std::exchange(has_skipped_, true)) {
        const std::string known = form();
        piece.counts.firsts["invalid-rows"] =
            known.empty() ? format("{}: {}", records_.place(), problem_) : format("{}, which is {}", records_.place(), known);
      }
      continue;
    }
    piece.begin = records_.begin();
    piece.end = records_.end();
    piece.ends_document = true;
    return true;
  }
  if (piece.counts.skipped == 0) return false;
  TextPiece last;  // an empty piece reports the records that were skipped at the end of the text
  last.counts = std::move(piece.counts);
  last.end = records_.end();
  piece = std::move(last);
  return true;
}

JobNotes::JobNotes(std::filesystem::path path, nlohmann::ordered_json same, double interval_s, Warn warn)
    : path_(std::move(path)), same_(std::move(same)), interval_s_(interval_s), warn_(std::move(warn)) {
  if (kind_of(path_) == PathKind::file) read();
}

void JobNotes::read() {
  const std::string text = read_text_file(path_);
  nlohmann::json notes = check_seal(text) == Seal::right ? parse_json(text) : nlohmann::json();
  if (!notes.is_object() || !notes.contains("same") || !notes.contains("progress") || !notes.contains("tokenizer_sum"))
    return start_anew("its notes are damaged");
  for (const auto& [key, value] : same_.items())
    if (!notes["same"].contains(key) || notes["same"][key] != nlohmann::json(value))
      return start_anew(format("it differs in {}", key));
  if (!same_.contains("texts")) return start_anew("its text came from a pipe");
  tokenizer_found_ = notes["tokenizer_sum"].is_string() ? notes["tokenizer_sum"].get<std::string>() : "";
  found_ = notes["progress"];
}

bool JobNotes::know_tokenizer(const std::filesystem::path& file) const {
  return found_ && kind_of(file) == PathKind::file && tokenizer_found_.starts_with(checksum_text(sum_file(file).checksum));
}

void JobNotes::compare_tokenizer(const std::string& sum) {
  // begin_with_tokenizer() stores only the checksum of the tokenizer's own file.
  if (found_ && !(found_->is_null() ? sum.starts_with(tokenizer_found_) : sum == tokenizer_found_))
    start_anew("it had another tokenizer");
  tokenizer_found_ = sum;
}

void JobNotes::begin_with_tokenizer(std::string_view text) {
  if (!same_.contains("texts")) return;
  tokenizer_found_ = checksum_text(checksum(text.data(), text.size()));
  put(nullptr);
}

void JobNotes::start_anew(const std::string& why) {
  found_.reset();
  warn_(format("{} belongs to a run that cannot be resumed ({}); the whole text is tokenized again", path_.string(), why));
}

void JobNotes::write(const nlohmann::json& progress) {
  if (interval_s_ > 0) put(progress);
}

void JobNotes::put(const nlohmann::json& progress) {
  write_text_file_durably(path_, seal_json({{"same", same_}, {"tokenizer_sum", tokenizer_found_}, {"progress", progress}}));
  timer_.restart();
}

void JobNotes::remove() {
  if (path_.empty()) return;
  check_errno(::unlink(path_.c_str()) == 0 || errno == ENOENT, "remove " + path_.string());
  ::unlink((path_.string() + temporary_suffix).c_str());  // left by a run that was killed while it wrote its notes
}

TokenizeJob::TokenizeJob(const Tokenizer& tokenizer, TextSource& text, std::optional<std::uint64_t> tail, JobNotes& notes,
                         const TokenizeJobOptions& output)
    : tokenizer_(tokenizer), text_(text), tail_(tail), notes_(notes), output_(output) {}

/// The numbers that the notes store, with their keys.
std::array<std::pair<const char*, std::uint64_t*>, 5> TokenizeJob::numbers() {
  return {{{"at", &at_}, {"tokens", &tokens_}, {"replaced", &replaced_}, {"first_replaced", &first_replaced_}, {"row", &row_}}};
}

void TokenizeJob::open_writers() {
  const auto goes_on = [&] { return notes_.found() && !notes_.found()->is_null(); };
  const auto open_one = [&](const std::filesystem::path& path, std::size_t vocab_size, const std::string& state) {
    const nlohmann::json found = goes_on() ? notes_.found()->at(state) : nlohmann::json();
    return output_.format->make_writer(path, vocab_size, found, output_.shard_tokens);
  };
  const auto open = [&](Part& part, const std::filesystem::path& path, const std::string& name) {
    if (output_.look) return;
    if (goes_on()) part.counts = counts_of_json(notes_.found()->at(name + "_counts"));
    part.tokens = open_one(path, tokenizer_.vocab_size(), name);
    if (!output_.conversations) return;
    part.mask = part.tokens->make_mask_writer();
    if (!part.mask) part.mask = open_one(mask_path(path), 2, name + "_mask");
  };
  const auto open_all = [&] {
    open(train_, output_.out, "train");
    if (tail_) open(valid_, output_.valid_out, "valid");
  };
  if (goes_on()) {
    try {
      for (const auto& [key, number] : numbers()) *number = notes_.found()->at(key).get<std::uint64_t>();
      open_all();
      print_to(stderr, "resuming after {} of {}, {} tokens\n", format_bytes(static_cast<double>(at_)),
               format_bytes(static_cast<double>(text_.size())), tokens_);
      return;
    } catch (const DamagedError& error) {
      notes_.start_anew(error.what());
    } catch (const nlohmann::json::exception&) {
      notes_.start_anew("its notes are damaged");
    }
    for (const auto& [key, number] : numbers()) *number = 0;
    for (Part* const part : {&train_, &valid_}) {
      part->mask.reset();  // before the writer of the tokens
      *part = {};
    }
  }
  open_all();
  // The writers hold locks, so no other process uses these notes now.
  if (!output_.own_tokenizer)
    notes_.remove();
  else if (notes_.are_kept())
    save();
}

TokenizeResult TokenizeJob::run() {
  try {
    return run_parts();
  } catch (const CallError& error) {
    if (output_.look) throw;
    throw RunError(format("{} could not be written ({}); free some space or check the disk, and give the same command again{}",
                          output_.out.string(), error.what(),
                          notes_.are_kept() ? ", which resumes after the part that is safe on the disk" : ""));
  }
}

TokenizeResult::Part TokenizeJob::Part::finish() {
  TokenizeResult::Part done = {{}, {}, counts};
  if (mask) done.masks = mask->finish();
  if (tokens) done.files = tokens->finish();
  return done;
}

TokenizeResult TokenizeJob::run_parts() {
  open_writers();
  const auto require_tokens = [&](std::uint64_t before, const char* what, const DataCounts& counts) {
    const auto first = counts.firsts.find("invalid-rows");  // missing in notes of a job of an older build
    if (tokens_ == before && counts.skipped > 0)
      throw UserError(format("{} has no row that can be used (all {} are left out{}); correct them", what, counts.skipped,
                             first == counts.firsts.end() ? "" : "; the first is " + first->second));
    if (tokens_ == before)
      throw UserError(format("{} has no tokens (it is empty, or has only empty lines and documents); use more text", what));
  };
  if (!tail_ || at_ < *tail_) {
    run_part(train_, 0, tail_);
    require_tokens(0, tail_ ? "the text without its held-out part" : "the text", train_.counts);
  }
  if (tail_) {
    const bool is_begun = at_ > *tail_;
    const std::uint64_t before = tokens_;
    run_part(valid_, *tail_, std::nullopt);
    if (!is_begun) require_tokens(before, "the held-out part of the text", valid_.counts);
  }
  TokenizeResult done = {train_.finish(), valid_.finish()};
  notes_.remove();
  warn_of_text();
  return done;
}

std::unique_ptr<TextPieces> TokenizeJob::open_pieces(std::uint64_t from, bool after_cut, std::optional<std::uint64_t> end) {
  if (!output_.json_field.empty() || output_.conversations)
    return std::make_unique<JsonPieces>(text_, from, end, output_.json_field, output_.conversations, output_.skip_invalid);
  return std::make_unique<PlainPieces>(text_, from, end, tokenizer_.cuts(), texts_are_documents(), after_cut);
}

std::filesystem::path mask_path(const std::filesystem::path& tokens) {
  return tokens.parent_path() / (tokens.stem().string() + ".mask" + tokens.extension().string());
}

/// Ends the targets of each answer with a token at which generation ends, if one follows the answer. Counts other answers that
/// do not end with such a token.
void TokenizeJob::end_answers(EncodedPiece& piece) const {
  const auto ends = [&](TokenId id) {
    return id == output_.end_of_text ||
           std::find(output_.end_tokens.begin(), output_.end_tokens.end(), id) != output_.end_tokens.end();
  };
  const auto is_blank = [&](TokenId id) {
    const std::string text = tokenizer_.decode({id});
    return !text.empty() && text.find_first_not_of(" \t\r\n") == text.npos;
  };
  for (const std::size_t end : piece.answer_ends) {
    if (end > 0 && piece.mask[end - 1] == 1 && ends(piece.ids[end - 1])) continue;
    std::size_t next = end;
    while (next < piece.ids.size() && is_blank(piece.ids[next])) ++next;
    if (next < piece.ids.size() && ends(piece.ids[next])) {
      for (std::size_t i = end; i <= next; ++i) piece.mask[i] = 1;
    } else if (piece.counts.unended_answers++ == 0) {
      const std::size_t first = end - std::min<std::size_t>(end, 8);
      const auto part = [](const std::vector<TokenId>& all, std::size_t at, std::size_t n) {
        return std::span(all).subspan(at, std::min(n, all.size() - at));
      };
      piece.counts.firsts["no-end-token"] =
          format("'{}'", marked(shown_tokens(tokenizer_, part(piece.ids, first, end - first + 2),
                                             part(piece.mask, first, end - first + 2), {})));
    }
  }
}

/// Counts a piece that was tokenized. Returns false for a conversation without a target that is left out. Throws UserError for
/// one that is not left out.
bool TokenizeJob::count(EncodedPiece& piece, DataCounts& counts) {
  if (!piece.answer_ends.empty()) end_answers(piece);
  const auto targets = std::count(piece.mask.begin(), piece.mask.end(), TokenId{1});
  if (output_.conversations && piece.ends_document && targets == 0) {
    const std::string why = why_no_target(piece.counts);
    if (!output_.skip_invalid)
      throw UserError(format("{} has no target ({}); correct it, or leave such lines out by `skipping of lines`",
                             text_.place_of_line(piece.begin), why));
    if (!counts.firsts.contains("invalid-rows") && piece.counts.skipped == 0)
      piece.counts.firsts["invalid-rows"] = format("{}: {}", text_.place_of_line(piece.begin), why);
    ++piece.counts.skipped, ++piece.counts.without_target;
    piece.counts.answers = piece.counts.empty_answers = piece.counts.unended_answers = 0;
    piece.counts.firsts.erase("no-end-token");
    counts += piece.counts;
    return false;
  }
  if (counts.first_row.empty() && !piece.ids.empty())
    counts.first_row = marked(shown_tokens(tokenizer_, piece.ids, piece.mask, {}));
  row_ += piece.ids.size();
  if (piece.ends_document) {
    piece.counts.rows = 1;
    piece.counts.conversations = output_.conversations ? 1 : 0;
    piece.counts.longest_row = std::exchange(row_, 0);
  }
  piece.counts.tokens = piece.ids.size();
  piece.counts.targets = output_.conversations ? static_cast<std::uint64_t>(targets) : piece.ids.size();
  counts += piece.counts;
  return true;
}

void TokenizeJob::require_known_tokens(const EncodedPiece& piece) const {
  for (const TokenId id : piece.ids)
    if (static_cast<std::size_t>(id) >= tokenizer_.vocab_size())
      throw UserError(
          format("{} has the token {}, which is not one of the tokenizer's (0 to {}); give the `tokenizer` that the "
                 "tokens were made with",
                 text_.place_of_line(piece.begin), id, tokenizer_.vocab_size() - 1));
}

void TokenizeJob::run_part(Part& part, std::uint64_t begin, std::optional<std::uint64_t> end) {
  const bool documents = texts_are_documents();
  const std::uint64_t from = std::max(begin, at_);
  std::optional<double> all;
  if (text_.is_of_files()) all = static_cast<double>(text_.size());
  ProgressBar bar("tokenizing", ProgressBar::Unit::bytes);
  const auto show = [&](double done) {
    if (all) bar.update(done, *all);
  };
  ParallelEncoder encoder(tokenizer_, output_.threads, [&](EncodedPiece piece) {
    if (piece.replaced > 0 && replaced_ == 0) first_replaced_ = at_ + piece.first_replaced;
    replaced_ += piece.replaced;
    if (piece.is_tokens) require_known_tokens(piece);
    if (piece.ends_document && output_.end_of_text && !piece.is_tokens) {
      piece.ids.push_back(*output_.end_of_text);
      if (piece.is_conversation) piece.mask.push_back(piece.ends_open ? 1 : 0);
    }
    const bool is_kept = count(piece, part.counts);
    if (is_kept) tokens_ += piece.ids.size();
    if (output_.look) output_.look(piece, !is_kept);
    if (is_kept && part.tokens) {
      part.tokens->add(piece.ids);
      if (part.mask) part.mask->add(piece.mask);
      if (piece.ends_document) part.tokens->end_document();
      if (piece.ends_document && part.mask) part.mask->end_document();
    }
    at_ = piece.end;
    show(static_cast<double>(at_));
    if (notes_.due()) save();
  });
  const bool after_cut = from > begin && !(documents && text_.begins_at(from));
  const std::unique_ptr<TextPieces> pieces = open_pieces(from, after_cut, end);
  show(static_cast<double>(from));
  TextPiece piece;
  const auto next = [&] {
    try {
      return pieces->next(piece);
    } catch (const UserError&) {
      encoder.finish();  // an error of an earlier row comes first, with any number of threads
      throw;
    }
  };
  while (next()) {
    if (output_.is_text)
      if (const std::size_t zero = piece.text.find('\0', piece.cut);
          zero != std::string::npos && output_.json_field.empty() && !output_.conversations)
        throw UserError(
            format("'{}' is no text (it has a byte of 0 at {}); give text in UTF-8, or make a token file with fsdp-tokenize, "
                   "which accepts any bytes",
                   text_.name_at(piece.end - 1), text_.place(piece.end - (piece.text.size() - zero))));
    encoder.add(std::move(piece));
    if (!output_.stop || !output_.stop()) continue;
    encoder.finish();
    if (notes_.are_kept()) save();
    throw TokenizingStopped(format("stopped on request after {} of {} of text; the same command continues from there",
                                   format_bytes(static_cast<double>(at_)), format_bytes(static_cast<double>(text_.size()))));
  }
  encoder.finish();
  bar.finish();
  if (!documents && part.tokens) part.tokens->end_document();
}

void TokenizeJob::save() {
  nlohmann::json progress;
  for (const auto& [key, number] : numbers()) progress[key] = *number;
  for (const auto& [name, part] : {std::pair(std::string("train"), &train_), std::pair(std::string("valid"), &valid_)}) {
    progress[name + "_counts"] = to_json(part->counts);
    for (const auto& [key, writer] : {std::pair(name, part->tokens.get()), std::pair(name + "_mask", part->mask.get())}) {
      if (writer) writer->sync();
      progress[key] = writer ? writer->state() : nlohmann::json();
    }
  }
  notes_.write(progress);
}

void TokenizeJob::warn_of_text() const {
  if (replaced_ > 0)
    output_.warn(format(
        "the text has {} places that are not UTF-8, or in JSON half of a surrogate pair such as \\ud800 (the first is after "
        "{} bytes); each is read as U+FFFD, as in other programs; check if the text is damaged or in another encoding",
        replaced_, first_replaced_));
}

}  // namespace fsdp
