// Reads multiple-choice questions from files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

struct Choice {
  std::vector<TokenId> tokens;  // at least one
  std::size_t characters = 0;   // length of the text without leading spaces; 0: not known (a file of tokens)
};

struct Question {
  std::vector<TokenId> context;  // at least one token
  std::vector<Choice> choices;   // at least two
  std::size_t answer = 0;        // index of the right choice
};

/// Reads a JSON file or one of llm.c's token files for HellaSwag and MMLU. JSON records are objects with "context", "choices"
/// and "answer" (the index of the right choice). Context and choice are tokenized as one text. The choice's tokens are those
/// after the tokens of the context without the spaces at its end, as in EleutherAI's lm-evaluation-harness.
/// `tokenizer` may be null for a file of tokens. Throws UserError for other files, and for tokens that are not below
/// vocab_size.
std::vector<Question> read_questions(const std::filesystem::path& file, const Tokenizer* tokenizer, std::size_t vocab_size);

}  // namespace fsdp
