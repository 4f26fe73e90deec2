// Which of several answers to a question a model finds likeliest behind its context.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "data/questions.hpp"
#include "fsdp/executor.hpp"

namespace fsdp {

/// Of how many questions the right choice has the least loss (the negative logarithm of its probability behind the context).
struct MultipleChoiceScore {
  std::size_t questions = 0;
  std::size_t right = 0;                           // by the loss of a choice as a whole ("acc")
  std::size_t right_per_token = 0;                 // by its mean over tokens (llm.c's and GPT-3's normalization)
  std::optional<std::size_t> right_per_character;  // by its mean over characters ("acc_norm" of lm-evaluation-harness)
};

/// A row is a context with one of its choices.
std::size_t number_of_rows(const std::vector<Question>& questions);
/// Tokens of the longest context with a choice, without the last one, which is only predicted.
std::size_t longest_row(const std::vector<Question>& questions);

/// Throws UserError for a choice of more than T tokens.
void check_choices(const std::vector<Question>& questions, std::size_t T);

/// Asks all questions, batches of B choices per rank at a time, with T tokens at most: of a longer context the end is kept, and
/// no choice is longer. `progress` gets the part that is done. Collective over world; the score is
/// the same on every rank.
MultipleChoiceScore ask(const std::vector<Question>& questions, Executor& executor, std::size_t B, std::size_t T, Group& world,
                        const std::function<void(double done)>& progress);

}  // namespace fsdp
