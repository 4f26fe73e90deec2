// Training on text files. Each data set of text is tokenized into one token file, with the code of fsdp-tokenize, and the run
// then reads that file. The file is made once, resumed after a kill, and made anew only if the text, the tokenizer or the way
// to read the text has changed. One rank makes it; all ranks read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/tokens.hpp"

namespace fsdp {

/// The text files of one data set. The name of data has a part for each data set (open_data.hpp).
struct TextSet {
  std::string name;  // that part, such as "dir/*.txt"
  std::vector<std::string> files;
};

/// The settings for tokenizing texts. Each JSON record is a document, and so is each plain text if `documents` is true. A
/// document is followed by the tokenizer's end-of-text token, if it has one. If `documents` is false, plain texts are joined
/// without tokens between them.
struct TextReading {
  std::string tokenizer = "bytes";    // a name for open_tokenizer()
  std::string json_field = {};        // the field with the text; see TextSource::json_field()
  bool skip_invalid = false;          // leave out JSON records without a text
  bool documents = false;             // each plain text is a document
  std::filesystem::path folder = {};  // the folder for the token files; created if missing
  std::size_t vocab_size = 0;         // of the model; a text with a token of this value or more is refused; 0: no limit
  std::size_t threads = 0;            // 0: one for each core that this process may use
  double save_interval_s = 30;
};

/// Makes the token files of these texts, or finds them. Returns a line for each text, with what was done. Only one process
/// may call this at a time. `stop` is called now and then. Throws UserError (an unreadable, empty or binary text, an invalid
/// tokenizer, a token that the model does not have), RunError (a full disk), and TokenizingStopped if `stop` returns true.
std::vector<std::string> make_tokens_of_texts(const std::vector<TextSet>& texts, const TextReading& reading,
                                              const std::function<bool()>& stop);
/// Opens the tokens that make_tokens_of_texts() has made in this folder. Their name() is the name of the text.
std::unique_ptr<Tokens> open_tokens_of_text(const TextSet& text, const std::filesystem::path& folder);
/// A checksum of the tokens of all these texts, in order; 0 if there are no texts.
std::uint64_t checksum_of_texts(const std::vector<TextSet>& texts, const std::filesystem::path& folder);

}  // namespace fsdp
