// Multiple-choice questions: finds the choice that a model considers most likely after the question's context.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "data/questions.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// The number of questions for which the correct choice has the smallest loss. The loss of a choice is the negative logarithm
/// of its probability after the context.
struct MultipleChoiceScore {
  std::size_t questions = 0;
  std::size_t right = 0;                           // by the total loss of a choice ("acc")
  std::size_t right_per_token = 0;                 // by the loss per token (the normalization of llm.c and GPT-3)
  std::optional<std::size_t> right_per_character;  // by the loss per character ("acc_norm" of lm-evaluation-harness)
};

/// The number of rows; a row is a context with one of its choices.
std::size_t number_of_rows(const std::vector<Question>& questions);
/// The number of tokens in the longest row, except its last token, which is a target but no input.
std::size_t longest_row(const std::vector<Question>& questions);

/// Throws UserError for a choice of more than T tokens.
void check_choices(const std::vector<Question>& questions, std::size_t T);

/// Evaluates all questions in batches of B rows per rank, with at most T tokens per row. A longer row loses the beginning of
/// its context; choices must fit (check_choices()). `progress` receives the completed part, from 0 to 1. Collective over world;
/// all ranks return the same score.
MultipleChoiceScore ask(const std::vector<Question>& questions, Executor& executor, std::size_t B, std::size_t T, Group& world,
                        const std::function<void(double done)>& progress);

}  // namespace fsdp
