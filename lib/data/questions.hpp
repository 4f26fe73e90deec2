// Questions with several answers to choose from, as files have them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

struct Choice {
  std::vector<TokenId> tokens;  // one or more
  std::size_t characters = 0;   // of its text without spaces in front; 0: not known, as the file has tokens alone
};

struct Question {
  std::vector<TokenId> context;  // one or more tokens
  std::vector<Choice> choices;   // two or more
  std::size_t answer = 0;        // the right one
};

/// Reads a file of JSON, whose records are objects with "context", "choices" and "answer" (the number of the right choice, from
/// 0), or one of llm.c's for HellaSwag and MMLU, which has tokens. A choice's tokens are those that it adds to the context's,
/// as in EleutherAI's lm-evaluation-harness: both are tokenized together, and spaces at the end of the context belong to the
/// choice. `tokenizer` may be null for a file of tokens. Throws UserError, also for tokens that are not below vocab_size.
std::vector<Question> read_questions(const std::filesystem::path& file, const Tokenizer* tokenizer, std::size_t vocab_size);

}  // namespace fsdp
