#include "fsdp-evaluate/multiple_choice.hpp"

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "engine/mean_loss.hpp"

namespace fsdp {

namespace {

/// A context with one of its choices.
struct Row {
  const Question* question;
  const Choice* choice;
};

/// The number of inputs.
std::size_t length_of(const Row& row) { return row.question->context.size() + row.choice->tokens.size() - 1; }

std::vector<Row> rows_of(const std::vector<Question>& questions) {
  std::vector<Row> rows;
  for (const Question& question : questions)
    for (const Choice& choice : question.choices) rows.push_back({&question, &choice});
  return rows;
}

/// Writes T inputs and T targets. Only the tokens of the choice are targets; all other targets are -1, which do not count.
void fill_row(const Row& row, std::size_t T, std::int32_t* inputs, std::int32_t* targets) {
  const auto &context = row.question->context, &choice = row.choice->tokens;
  const std::size_t all = context.size() + choice.size(), left_out = all > T + 1 ? all - (T + 1) : 0;
  const auto token = [&](std::size_t i) { return i < context.size() ? context[i] : choice[i - context.size()]; };
  std::fill_n(inputs, T, 0);
  std::fill_n(targets, T, -1);
  for (std::size_t i = left_out; i + 1 < all; ++i) {
    inputs[i - left_out] = token(i);
    if (i + 1 >= context.size()) targets[i - left_out] = token(i + 1);
  }
}

/// Returns the index of the choice with the smallest loss of(i), the first if several are equal.
template <class Of>
std::size_t least(std::size_t n, Of&& of) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < n; ++i)
    if (of(i) < of(best)) best = i;
  return best;
}

MultipleChoiceScore score_of(const std::vector<Question>& questions, const std::vector<double>& losses) {
  MultipleChoiceScore score;
  score.questions = questions.size();
  const double* loss = losses.data();
  for (const Question& question : questions) {
    const std::size_t n = question.choices.size();
    const auto per = [&](auto length) {
      return [&, length](std::size_t i) { return loss[i] / static_cast<double>(length(i)); };
    };
    const auto tokens = [&](std::size_t i) { return question.choices[i].tokens.size(); };
    const auto characters = [&](std::size_t i) { return question.choices[i].characters; };
    score.right += least(n, per([](std::size_t) { return 1; })) == question.answer;
    score.right_per_token += least(n, per(tokens)) == question.answer;
    if (question.choices.front().characters > 0)
      score.right_per_character = score.right_per_character.value_or(0) + (least(n, per(characters)) == question.answer);
    loss += n;
  }
  return score;
}

}  // namespace

std::size_t number_of_rows(const std::vector<Question>& questions) { return rows_of(questions).size(); }

std::size_t longest_row(const std::vector<Question>& questions) {
  std::size_t longest = 1;
  for (const Row& row : rows_of(questions)) longest = std::max(longest, length_of(row));
  return longest;
}

void check_choices(const std::vector<Question>& questions, std::size_t T) {
  for (const Row& row : rows_of(questions))
    if (row.choice->tokens.size() > T)
      throw UserError(
          format("question {} of the file has a choice of {} tokens (a sequence has {}); leave out the question, or raise "
                 "`sequence length` if the model's longest sequence allows it",
                 row.question - questions.data() + 1, row.choice->tokens.size(), T));
}

MultipleChoiceScore ask(const std::vector<Question>& questions, Executor& executor, std::size_t B, std::size_t T, Group& world,
                        const std::function<void(double done)>& progress) {
  const std::vector<Row> rows = rows_of(questions);
  std::vector<float> of_tokens(B * T);
  std::vector<double> losses(rows.size(), 0);  // by row: of this rank's rows, later of all rows
  const std::size_t at_once = B * static_cast<std::size_t>(world.size());
  agree(world, [&] {
    for (const Row& row : rows)
      if (executor.table_class(std::min(T, length_of(row))) != executor.table_class(T))
        throw UserError(format(
            "questions of {} and {} tokens do not go together (the model's rotary frequencies depend on the length); split "
            "the file by the length of its questions",
            length_of(row), T));
  });
  for (std::size_t begin = 0; begin < rows.size(); begin += at_once) {
    const std::size_t first = std::min(rows.size(), begin + B * static_cast<std::size_t>(world.rank()));
    const std::size_t mine = std::min(B, rows.size() - first);
    executor.evaluate(
        [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
          for (std::size_t b = 0; b < mine; ++b) fill_row(rows[first + b], T, inputs + b * T, targets + b * T);
          std::fill_n(inputs + mine * T, (B - mine) * T, 0);
          std::fill_n(targets + mine * T, (B - mine) * T, -1);
        },
        of_tokens.data());
    for (std::size_t b = 0; b < mine; ++b)
      for (std::size_t t = 0; t < T; ++t) losses[first + b] += static_cast<double>(of_tokens[b * T + t]);
    progress(static_cast<double>(std::min(rows.size(), begin + at_once)) / static_cast<double>(rows.size()));
  }
  world.sum(losses);
  agree(world, [&] { std::for_each(losses.begin(), losses.end(), require_finite_loss); });
  return score_of(questions, losses);
}

}  // namespace fsdp
