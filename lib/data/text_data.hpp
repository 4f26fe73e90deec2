// Training on text files. Each data set of text is tokenized into one token file, with the code of fsdp-tokenize, and the run
// then reads the token file. One rank makes this file once, and all ranks read it. If the job was killed, the next one resumes
// the file. It is made anew only if the text, the tokenizer or the settings for reading the text have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/program.hpp"
#include "data/tokens.hpp"
#include "text/parallel_encoder.hpp"
#include "text/record_form.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// The text files of one data set. A name of data such as "a:0.7,b:0.3" has a part for each data set (open_data.hpp).
struct TextSet {
  std::string name;  // the part of the name for this data set, such as "dir/*.txt"
  std::vector<std::string> files;
};

/// The settings for tokenizing texts. Each JSON record is a document, and so is each plain text if `documents` is true. A
/// document is followed by the tokenizer's end-of-text token, if the tokenizer has one. If `documents` is false, plain texts
/// are joined without tokens between them. A conversation is followed by that token only if nothing else ends its last answer.
struct TextReading {
  std::string tokenizer = "bytes";           // a name that open_tokenizer() accepts
  std::string json_field = {};               // the field with the text; see TextSource::json_field()
  bool skip_invalid = false;                 // leave out JSON records without a text
  bool chat = false;                         // JSON records are conversations; the tokens have a mask of their answers
  RecordForm form = {};                      // of conversations
  std::filesystem::path chat_template = {};  // a file with their template; empty: the one next to the tokenizer
  bool documents = false;                    // each plain text is a document
  std::filesystem::path folder = {};         // the folder for the token files; created if missing
  std::size_t vocab_size = 0;                // of the model; a text with a token id not below it is refused; 0: no limit
  std::size_t threads = 0;                   // 0: one for each core that this process may use
  double save_interval_s = 30;
  Warn warn = print_warning;
};

/// Makes the token files of these texts, unless they exist. Returns a line for each text that says what was done. Only one
/// process may call this function at a time. `stop` is called now and then. Throws UserError (an unreadable, empty or binary
/// text, an invalid tokenizer, a token that the model does not have), RunError (a full disk), and TokenizingStopped if `stop`
/// returns true.
std::vector<std::string> make_tokens_of_texts(const std::vector<TextSet>& texts, const TextReading& reading,
                                              const std::function<bool()>& stop);
/// Tokenizes a text as make_tokens_of_texts() does, but writes nothing. Calls `look` for each piece in order, also for those
/// that are left out. Returns what was counted. Throws UserError.
DataCounts look_at_text(const TextSet& text, const TextReading& reading, const Tokenizer& tokenizer,
                        const std::function<void(const EncodedPiece& piece, bool is_left_out)>& look);
/// Opens the tokens that make_tokens_of_texts() has made in this folder. name() of these tokens is the name of the text.
std::unique_ptr<Tokens> open_tokens_of_text(const TextSet& text, const std::filesystem::path& folder);
/// The files that open_tokens_of_text() opens; those of the mask may be missing.
std::vector<std::filesystem::path> files_of_tokens(const TextSet& text, const std::filesystem::path& folder);
/// A checksum of the tokens of all these texts, in order; 0 if there are no texts.
std::uint64_t checksum_of_texts(const std::vector<TextSet>& texts, const std::filesystem::path& folder);

}  // namespace fsdp
