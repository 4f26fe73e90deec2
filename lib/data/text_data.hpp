// Texts among the data. Each data set of text becomes one token file, by the code of fsdp-tokenize, and is that file from then
// on: it is made once, resumed after a kill, and made anew only if the text, the tokenizer or the way to read it has
// changed. One rank makes it; all read it.
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

/// Files of text that are one data set, as a part of a data name stands for them (open_data.hpp).
struct TextSet {
  std::string name;  // of the part
  std::vector<std::string> files;
};

/// How texts become tokens. Lines of JSON are documents, each followed by the tokenizer's end-of-text token if it has one, and
/// so are plain texts if `documents`; else these follow each other, and nothing but their own tokens is there.
struct TextReading {
  std::string tokenizer = "bytes";    // of open_tokenizer()
  std::string json_field = {};        // for TextSource::json_field()
  bool skip_invalid = false;          // leave out lines of JSON without a text
  bool documents = false;             // each plain text is a document
  std::filesystem::path folder = {};  // where the token files lie; it is made if it is not there
  std::size_t vocab_size = 0;         // of the model: a text with a token from there on is refused; 0: none is
  std::size_t threads = 0;            // 0: as many as the cores that this process may use
  double save_interval_s = 30;
};

/// Makes the token files of these texts, or finds them. Returns a line for each: what it has done. For one process alone.
/// `stop` is asked now and then. Throws UserError (an unreadable, empty or binary text, a tokenizer that is none, a
/// token that the model does not have), RunError (a
/// full disk), and TokenizingStopped if `stop` says so.
std::vector<std::string> make_tokens_of_texts(const std::vector<TextSet>& texts, const TextReading& reading,
                                              const std::function<bool()>& stop);
/// The tokens that make_tokens_of_texts() has made in this folder, named by the text.
std::unique_ptr<Tokens> open_tokens_of_text(const TextSet& text, const std::filesystem::path& folder);
/// Tells apart what these texts have become: of the tokens of all, in order; 0 if there are no texts.
std::uint64_t checksum_of_texts(const std::vector<TextSet>& texts, const std::filesystem::path& folder);

}  // namespace fsdp
