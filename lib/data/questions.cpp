#include "data/questions.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/json_records.hpp"
#include "data/text_source.hpp"
#include "files/input_file.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

namespace {

constexpr std::int32_t llmc_magic = 20240522;

/// Counts characters, without leading spaces, which only separate a choice from its context.
std::size_t count_characters(std::string_view utf8) {
  utf8.remove_prefix(std::min(utf8.find_first_not_of(' '), utf8.size()));
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Reads a question from a JSON record.
Question read_question(const JsonRecords& record, const Tokenizer& tokenizer) {
  const auto tokens_of = [&](const std::string& text) {
    std::vector<TokenId> ids = tokenizer.before_text();
    tokenizer.encode(text, ids);
    return ids;
  };
  std::string problem;
  const nlohmann::json object = read_json(record.record(), problem);
  const auto fail = [&](const std::string& why) {
    return UserError(
        format("{} is no question ({}); write a JSON object with \"context\" (a text), \"choices\" (two or more texts) and "
               "\"answer\" (the number of the right choice, counted from 0)",
               record.place(), why));
  };
  if (!problem.empty()) throw fail(problem);
  if (!object.is_object()) throw fail("it is no object");
  if (!object.contains("context") || !object["context"].is_string()) throw fail("no context");
  if (!object.contains("choices") || !object["choices"].is_array() || object["choices"].size() < 2)
    throw fail("no two choices");
  const std::size_t count = object["choices"].size();
  if (!object.contains("answer") || !object["answer"].is_number_unsigned() || object["answer"].get<std::size_t>() >= count)
    throw fail(format("no answer from 0 to {}", count - 1));
  std::string context = object["context"].get<std::string>();
  const std::size_t end = context.find_last_not_of(" \t\n\r") + 1;  // 0: only spaces
  const std::string space_after = context.substr(end);
  context.resize(end);
  Question question = {.context = tokens_of(context), .choices = {}, .answer = object["answer"].get<std::size_t>()};
  if (question.context.empty()) throw fail("a context without tokens");
  for (const nlohmann::json& choice : object["choices"]) {
    if (!choice.is_string()) throw fail("a choice that is no text");
    const std::string added = choice.get<std::string>();
    std::vector<TokenId> tokens = tokens_of(context + space_after + added);
    tokens.erase(tokens.begin(),
                 tokens.begin() + static_cast<std::ptrdiff_t>(std::min(question.context.size(), tokens.size())));
    if (tokens.empty()) throw fail("a choice that adds no token to the context");
    question.choices.push_back({std::move(tokens), std::max<std::size_t>(count_characters(added), 1)});
  }
  return question;
}

/// Reads llm.c's format. The header is 256 int32; the first three are 20240522, 1 and the number of examples. Each example is
/// in uint16: 65535, its size in bytes, its index, the index of the right completion, and the number of completions. Then, for
/// the context and each completion, follow the number of tokens and the tokens.
class LlmCQuestions {
 public:
  explicit LlmCQuestions(const InputFile& file) : path_(file.path()) {
    std::int32_t header[256];
    if (file.size() < sizeof header || file.size() % 2 != 0) fail("it is cut");
    file.read(0, header, sizeof header);
    if (header[1] != 1) fail(format("it is of version {}, but only version 1 is read", header[1]));
    if (header[2] <= 0) fail(format("its header has {} examples", header[2]));
    examples_ = static_cast<std::size_t>(header[2]);
    words_.resize((file.size() - sizeof header) / 2);
    file.read(sizeof header, words_.data(), 2 * words_.size());
  }

  std::vector<Question> read() {
    std::vector<Question> questions;
    for (std::size_t i = 0; i < examples_; ++i) {
      const std::size_t begin = at_;
      if (next() != 65535) fail(format("example {} does not begin where the one before ends", i));
      const std::size_t bytes = next();
      next();  // the example's index
      Question question;
      question.answer = next();
      const std::size_t choices = next();
      question.context = tokens();
      for (std::size_t c = 0; c < choices; ++c) question.choices.push_back({tokens(), 0});
      const bool has_tokens = std::all_of(question.choices.begin(), question.choices.end(),
                                          [](const Choice& choice) { return !choice.tokens.empty(); });
      if (choices < 2 || question.answer >= choices || question.context.empty() || !has_tokens || 2 * (at_ - begin) != bytes)
        fail(format("example {} has a context of {} tokens, {} completions, of which number {} is right, and {} bytes", i,
                    question.context.size(), choices, question.answer, bytes));
      questions.push_back(std::move(question));
    }
    if (at_ != words_.size()) fail(format("{} bytes follow its examples", 2 * (words_.size() - at_)));
    return questions;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(
        format("'{}' is not a file of llm.c's questions that can be used ({}); make it anew with llm.c's dev/data/hellaswag.py",
               path_.string(), why));
  }
  std::size_t next() {
    if (at_ >= words_.size()) fail("it is cut");
    return words_[at_++];
  }
  std::vector<TokenId> tokens() {
    const std::size_t count = next();
    if (count > words_.size() - at_) fail("it is cut");
    const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += count;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

  std::filesystem::path path_;
  std::size_t examples_ = 0, at_ = 0;
  std::vector<std::uint16_t> words_;
};

std::vector<Question> read_records(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  TextSource text({path.string()});
  std::vector<Question> questions;
  for (JsonRecords records(text, 0, std::nullopt); records.next();) questions.push_back(read_question(records, tokenizer));
  return questions;
}

}  // namespace

std::vector<Question> read_questions(const std::filesystem::path& path, const Tokenizer* tokenizer, std::size_t vocab_size) {
  const InputFile file(path);
  std::int32_t magic = 0;
  if (file.size() >= sizeof magic) file.read(0, &magic, sizeof magic);
  if (magic != llmc_magic && !tokenizer)
    throw UserError(
        "there is no tokenizer for the questions (they are texts, and no tokenizer is next to the model); give `tokenizer`");
  std::vector<Question> questions = magic == llmc_magic ? LlmCQuestions(file).read() : read_records(path, *tokenizer);
  if (questions.empty())
    throw UserError(format("no questions in {} (all of its lines are empty); write one in each line", path.string()));
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const auto check = [&](const std::vector<TokenId>& tokens) {
      for (const TokenId token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= vocab_size)
          throw UserError(format(
              "token {}{} of question {} in {} is outside the vocabulary of {} (the file was made with another "
              "tokenizer); use the model's tokenizer",
              token, tokenizer ? format(" ('{}')", excerpt(tokenizer->spelling(token))) : "", q, path.string(), vocab_size));
    };
    check(questions[q].context);
    for (const Choice& choice : questions[q].choices) check(choice.tokens);
  }
  return questions;
}

}  // namespace fsdp
