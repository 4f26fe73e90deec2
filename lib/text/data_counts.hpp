// What data have: rows, answers, tokens, and the tokens that count in the loss. Rows are counted where texts become tokens
// (TokenizeJob), and sequences where tokens are cut (Samples).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/program.hpp"

namespace fsdp {

/// A number that is not known is 0, and a text that is not known is empty.
struct DataCounts {
  std::uint64_t rows = 0;                         // documents, some or all of them conversations
  std::uint64_t conversations = 0;                // of `rows`, those read as conversations
  std::uint64_t skipped = 0, without_target = 0;  // rows that were left out; those of them that have no target
  std::uint64_t answers = 0;                      // messages and completions whose tokens are learned
  std::uint64_t empty_answers = 0, excluded_answers = 0, unended_answers = 0;  // excluded ones are none of `answers`
  std::uint64_t tokens = 0, targets = 0;                                       // all tokens, and those that count in the loss
  std::uint64_t longest_row = 0;                                               // in tokens
  std::uint64_t sequences = 0, positions = 0, padding = 0;  // positions of all sequences, and those of them without a target
  std::uint64_t cut_rows = 0;                               // rows that begin in an earlier sequence than they end
  std::uint64_t truncated_rows = 0, dropped_rows = 0;       // rows that are longer than a sequence, by LongRows
  std::uint64_t lost_targets = 0;                           // targets of these rows that are not used
  std::uint64_t late_targets = 0;                           // targets that are predicted without the beginning of their row
  std::map<std::string, std::uint64_t> roles = {};          // the number of messages of each role, in skipped rows, too
  std::string first_row = {};                               // as marked() shows it
  std::vector<std::string> warnings = {};                   // of the conversations
  // Only fsdp-data counts what follows.
  std::uint64_t idle_sequences = 0;                   // that have no target, and so are not computed
  std::uint64_t cut_answers = 0;                      // by the end of a sequence
  std::uint64_t beyond_model = 0;                     // rows with an answer that ends after the model's longest sequence
  std::uint64_t long_prompts = 0;                     // rows whose prompt is longer than a sequence
  std::uint64_t doubled_bos = 0, unended_rows = 0;    // rows that begin with two BOS tokens, or end without an end token
  std::uint64_t empty_rows = 0, unknown_tokens = 0;   // unknown_tokens: those that the model does not have
  std::uint64_t duplicates = 0, near_duplicates = 0;  // rows that are, or resemble, an earlier row
  std::uint64_t in_training = 0, near_training = 0;   // rows for validation that are, or resemble, a row of the training data
  /// The first place where a check found something, by the name of the check: "line 3 of 'a.jsonl'".
  std::map<std::string, std::string> firsts = {};

  void add_role(const std::string& role, std::uint64_t messages = 1);
  DataCounts& operator+=(const DataCounts& other);
};

/// A check of data: a row of the table of checks. It finds `things` that `what`: "rows" that "are empty".
struct DataCheck {
  const char* name;
  bool costs_a_run;  // what the check finds makes training worse or impossible
  std::uint64_t DataCounts::*number;
  const char *things, *what, *advice;
  std::string (*special)(const DataCounts& counts, const std::string& name) = nullptr;  // makes the message in another way

  /// What was found in the data of this name, and what to do; empty if nothing.
  std::string message(const DataCounts& counts, const std::string& data) const;
};
std::span<const DataCheck> data_checks();

/// An object without what is not known, and its inverse: what is missing or of another type is not known.
nlohmann::ordered_json to_json(const DataCounts& counts);
DataCounts counts_of_json(const nlohmann::json& object);

/// The reason why a row without a target has none.
std::string why_no_target(const DataCounts& row);

/// The lines of the log about the data `name`.
std::vector<std::string> describe_counts(const DataCounts& counts, const std::string& name);
/// Calls `say` for each of these lines, and `warn` for what the checks found.
void report_counts(const DataCounts& counts, const std::string& name, const Warn& say, const Warn& warn);

}  // namespace fsdp
