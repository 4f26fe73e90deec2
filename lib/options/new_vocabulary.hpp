// The vocabulary that grows by --add-tokens, --add-special-tokens and --pad-vocab-to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/grown_model.hpp"
#include "options/options.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

struct NewVocabulary {
  NewRows rows;
  std::vector<TokenizerFile> files;  // of the grown tokenizer; empty: the tokenizer stays as it is
  std::string description;           // for a log; empty: nothing is new
};

/// Changes the vocabulary of `config`, a model's configuration before its vocabulary grows, as the options ask; returns nullopt
/// if they do not. `tokenizer` is its tokenizer's name for open_tokenizer(), or empty. `has_them`: the tokenizer must have the
/// new tokens already, because it comes from the checkpoint from which the run resumes. Throws UserError.
std::optional<NewVocabulary> grow_vocabulary(const TrainOptions& options, const std::string& tokenizer, bool has_them,
                                             TransformerConfig& config);

}  // namespace fsdp
