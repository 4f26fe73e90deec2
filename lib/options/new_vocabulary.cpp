#include "options/new_vocabulary.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "nn/families.hpp"
#include "nn/parameters.hpp"
#include "tensor/shape.hpp"
#include "text/new_tokens.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

namespace {

std::string some_of(const std::vector<std::string>& words) {
  constexpr std::size_t most = 5;
  const std::vector<std::string> first(words.begin(), words.begin() + narrow<std::ptrdiff_t>(std::min(most, words.size())));
  return format("{}{}", fmt::join(first, ", "), words.size() > most ? ", ..." : "");
}

std::vector<NewToken> tokens_of(const TrainOptions& options) {
  std::vector<NewToken> tokens;
  for (const auto& [given, special] : {std::pair(&options.add_tokens, false), std::pair(&options.add_special_tokens, true)})
    if (!given->empty())
      for (NewToken& token : read_new_tokens(*given, special)) {
        if (std::any_of(tokens.begin(), tokens.end(), [&](const NewToken& one) { return one.content == token.content; }))
          throw UserError(format("'{}' is in --add-tokens and in --add-special-tokens (it is one token); leave it out of one",
                                 excerpt(token.content)));
        tokens.push_back(std::move(token));
      }
  return tokens;
}

/// Adds the tokens to the tokenizer, or finds that it has them.
void add_tokens(const std::vector<NewToken>& tokens, const std::string& name, bool has_them, std::size_t model_vocabulary,
                NewVocabulary& made) {
  if (name.empty() || name == "bytes")
    throw UserError(format("--add-tokens has no tokenizer to add to ({}); give --tokenizer, or a --model DIR that has one",
                           name.empty() ? "none is known" : "bytes are the model's tokens"));
  const auto tokenizer = open_tokenizer(name);
  std::vector<std::string> there, missing;
  for (const NewToken& token : tokens) {
    const auto id = tokenizer->find(token.content);
    if (id)
      there.push_back(format("'{}' is {}", excerpt(token.content), *id)), made.rows.pieces[static_cast<std::size_t>(*id)];
    else
      missing.push_back(format("'{}'", excerpt(token.content)));
  }
  if (has_them) {
    if (!missing.empty())
      throw UserError(
          format("the checkpoint to resume from does not have {} of --add-tokens ({}); add tokens in a new run, which begins "
                 "with --finetune-from",
                 plural(missing.size(), "token"), some_of(missing)));
    made.rows.known = made.rows.pieces.begin()->first;
    return;
  }
  if (!there.empty())
    throw UserError(format("the tokenizer has {} of --add-tokens already ({}); leave out those that exist",
                           plural(there.size(), "token"), some_of(there)));
  made.rows.known = tokenizer->vocab_size();
  if (made.rows.known > model_vocabulary)
    throw UserError(
        format("the tokenizer has {} tokens, but the model has only {} (the ids of new tokens would follow those of the "
               "tokenizer); give the model's own tokenizer by --tokenizer",
               made.rows.known, model_vocabulary));
  made.files = with_new_tokens(read_files_of_tokenizer(name), tokens, made.rows.known);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokenizer->encode(tokens[i].content, made.rows.pieces[made.rows.known + i]);
  made.description = format("{} from id {} on: {}", plural(tokens.size(), "new token"), made.rows.known, some_of(missing));
}

}  // namespace

std::optional<NewVocabulary> grow_vocabulary(const TrainOptions& options, const std::string& tokenizer, bool has_them,
                                             TransformerConfig& config) {
  if (!options.grows_vocabulary()) return std::nullopt;
  NewVocabulary made;
  made.rows.init = options.new_token_init;
  const std::size_t before = without_adapters(config).vocab_size;
  made.rows.known = before;
  config.vocab_size = before;
  const std::vector<NewToken> tokens = tokens_of(options);
  if (!tokens.empty()) {
    add_tokens(tokens, tokenizer, has_them, before, made);
    config.vocab_size = std::max(before, made.rows.known + tokens.size());
  }
  made.rows.first_unused = before;
  if (options.pad_vocab_to > 0) config.vocab_size = round_up(config.vocab_size, options.pad_vocab_to);
  if (config.lora.rank > 0) {  // only the new rows are trained
    std::vector<std::size_t> rows;
    for (const auto& [row, pieces] : made.rows.pieces) rows.push_back(row);
    for (std::size_t row = before; row < config.vocab_size; ++row)
      if (!made.rows.pieces.contains(row)) rows.push_back(row);
    const ParameterNames& names = find_family(config.family).names;
    const std::vector<std::size_t> none;
    config.lora.tokens = trains_whole(config, names.token_table) ? none : rows;
    config.lora.head_tokens = config.tied_embeddings || trains_whole(config, names.head) ? none : rows;
    if (config.vocab_size > before) config.lora.base_vocab = before, config.lora.vocab = config.vocab_size;
  }
  if (config.vocab_size != before)
    made.description += format("{}the vocabulary of the model grows from {} to {}", made.description.empty() ? "" : "; ",
                               before, config.vocab_size);
  return made;
}

}  // namespace fsdp
