#include "text/data_counts.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/format.hpp"

namespace fsdp {

namespace {

using Number = std::uint64_t DataCounts::*;
constexpr std::pair<const char*, Number> numbers[] = {{"rows", &DataCounts::rows},
                                                      {"conversations", &DataCounts::conversations},
                                                      {"skipped", &DataCounts::skipped},
                                                      {"without_target", &DataCounts::without_target},
                                                      {"answers", &DataCounts::answers},
                                                      {"empty_answers", &DataCounts::empty_answers},
                                                      {"excluded_answers", &DataCounts::excluded_answers},
                                                      {"unended_answers", &DataCounts::unended_answers},
                                                      {"tokens", &DataCounts::tokens},
                                                      {"targets", &DataCounts::targets},
                                                      {"longest_row", &DataCounts::longest_row},
                                                      {"sequences", &DataCounts::sequences},
                                                      {"positions", &DataCounts::positions},
                                                      {"padding", &DataCounts::padding},
                                                      {"cut_rows", &DataCounts::cut_rows},
                                                      {"truncated_rows", &DataCounts::truncated_rows},
                                                      {"dropped_rows", &DataCounts::dropped_rows},
                                                      {"lost_targets", &DataCounts::lost_targets},
                                                      {"late_targets", &DataCounts::late_targets},
                                                      {"idle_sequences", &DataCounts::idle_sequences},
                                                      {"cut_answers", &DataCounts::cut_answers},
                                                      {"beyond_model", &DataCounts::beyond_model},
                                                      {"long_prompts", &DataCounts::long_prompts},
                                                      {"doubled_bos", &DataCounts::doubled_bos},
                                                      {"unended_rows", &DataCounts::unended_rows},
                                                      {"empty_rows", &DataCounts::empty_rows},
                                                      {"unknown_tokens", &DataCounts::unknown_tokens},
                                                      {"duplicates", &DataCounts::duplicates},
                                                      {"near_duplicates", &DataCounts::near_duplicates},
                                                      {"in_training", &DataCounts::in_training},
                                                      {"near_training", &DataCounts::near_training}};
constexpr std::size_t most_roles = 16;  // further ones are counted together

/// The roles of messages that are not learned.
constexpr std::string_view known_roles[] = {"assistant", "user",      "system",      "developer",     "tool",   "function",
                                            "ipython",   "tool_call", "observation", "tool_response", "context"};

std::string roles_of(const DataCounts& counts) {
  std::string all;
  for (const auto& [role, messages] : counts.roles) all += format("{}{} {}", all.empty() ? "" : ", ", role, messages);
  return all;
}

std::string share_of(std::uint64_t part, std::uint64_t all) {
  return format("{:.3g} %", 100 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(all, 1)));
}

/// What a row is. If all rows were left out, only their roles show that they are conversations.
const char* row_word(const DataCounts& counts) {
  const bool only_chats = counts.conversations == counts.rows && (counts.rows > 0 || !counts.roles.empty());
  return only_chats ? "conversation" : "document";
}

/// "2 of 3 conversations": `part` of the rows, the skipped ones counted as well.
std::string rows_of(const DataCounts& counts, std::uint64_t part) {
  return format("{} of {}", part, plural(counts.rows + counts.skipped, row_word(counts)));
}

}  // namespace

void DataCounts::add_role(const std::string& role, std::uint64_t messages) {
  const std::string name = excerpt(role, 40);
  roles[roles.contains(name) || roles.size() < most_roles ? name : "others"] += messages;
}

DataCounts& DataCounts::operator+=(const DataCounts& other) {
  const std::uint64_t longest = std::max(longest_row, other.longest_row);
  for (const auto& [name, number] : numbers) this->*number += other.*number;
  longest_row = longest;
  for (const auto& [role, messages] : other.roles) add_role(role, messages);
  if (first_row.empty()) first_row = other.first_row;
  firsts.insert(other.firsts.begin(), other.firsts.end());  // keeps those that are there
  for (const std::string& warning : other.warnings)
    if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) warnings.push_back(warning);
  return *this;
}

nlohmann::ordered_json to_json(const DataCounts& counts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, number] : numbers)
    if (counts.*number > 0) object[name] = counts.*number;
  if (!counts.first_row.empty()) object["first_row"] = counts.first_row;
  if (!counts.firsts.empty()) object["firsts"] = counts.firsts;
  if (!counts.roles.empty()) object["roles"] = counts.roles;
  if (!counts.warnings.empty()) object["warnings"] = counts.warnings;
  return object;
}

DataCounts counts_of_json(const nlohmann::json& object) {
  DataCounts counts;
  if (!object.is_object()) return counts;
  for (const auto& [name, number] : numbers)
    if (const auto at = object.find(name); at != object.end() && at->is_number_unsigned()) counts.*number = *at;
  const nlohmann::json roles = object.value("roles", nlohmann::json()), warnings = object.value("warnings", nlohmann::json()),
                       firsts = object.value("firsts", nlohmann::json()), row = object.value("first_row", nlohmann::json());
  if (row.is_string()) counts.first_row = row;
  for (const auto& [name, place] : firsts.items())
    if (place.is_string()) counts.firsts[name] = place;
  for (const auto& [role, messages] : roles.items())
    if (messages.is_number_unsigned()) counts.add_role(role, messages);
  for (const nlohmann::json& warning : warnings)
    if (warning.is_string()) counts.warnings.push_back(warning);
  return counts;
}

std::string why_no_target(const DataCounts& row) {
  if (row.answers > 0) return "its answer is empty, and no token ends it";
  if (row.excluded_answers > 0) return "\"weight\" or \"train\" excludes its answers";
  return format("none of its messages is an answer, which has the role \"assistant\"; its roles: {}", roles_of(row));
}

namespace {

/// "(the first is line 3 of 'a.jsonl')", or nothing if the place is not known.
std::string first_of(const DataCounts& counts, const char* check) {
  const auto found = counts.firsts.find(check);
  return found == counts.firsts.end() ? "" : format(" (the first is {})", found->second);
}

std::string left_out_rows(const DataCounts& counts, const std::string& name) {
  return format("{} in {} {} left out{}{}", rows_of(counts, counts.skipped), name, counts.skipped == 1 ? "is" : "are",
                counts.without_target == 0 ? ""
                                           : format(", {} of them because they have no target{}", counts.without_target,
                                                    counts.roles.empty() ? "" : "; roles: " + roles_of(counts)),
                first_of(counts, "invalid-rows"));
}

std::string no_targets(const DataCounts& counts, const std::string& name) {
  if (counts.targets > 0 || counts.tokens == 0) return "";
  return format(
      "{} has no sequence with a target, so a run would be refused; correct the data or their mask, or give a larger "
      "`sequence length`",
      name);
}

std::string unknown_roles(const DataCounts& counts, const std::string& name) {
  std::string unknown;
  std::uint64_t messages = 0;
  for (const auto& [role, times] : counts.roles) {
    if (std::find(std::begin(known_roles), std::end(known_roles), role) != std::end(known_roles)) continue;
    unknown += format("{}\"{}\"", unknown.empty() ? "" : ", ", role);
    messages += times;
  }
  if (messages == 0) return "";
  return format(
      "{} in {} of the role {} {} not learned (only those of the role \"assistant\" are answers; roles: {}); if they "
      "are answers, correct the role",
      plural(messages, "message"), name, unknown, messages == 1 ? "is" : "are", roles_of(counts));
}

std::string unended_answers(const DataCounts& counts, const std::string& name) {
  const auto found = counts.firsts.find("no-end-token");
  return format(
      "{} of {} answers in {} have no target at which generation ends{}, so the model does not learn to stop after them; end "
      "answers in the chat template, or tokenize texts of prompts and completions with an end token, or name the token that "
      "follows them as \"eos_token_id\" of generation_config.json",
      counts.unended_answers, counts.answers, name,
      found == counts.firsts.end() ? "" : format(" (the first ends by {})", found->second));
}

std::string late_targets(const DataCounts& counts, const std::string& name) {
  const bool all_count = counts.targets + counts.rows + 1 >= counts.tokens;  // documents' first tokens may be no targets
  if (all_count) return "";
  return format(
      "{} in {} {} longer than a sequence, or cut by its end: {} of {} targets are predicted without the beginning of their "
      "{}; "
      "give a larger `sequence length`, or `break mode` complete",
      rows_of(counts, counts.cut_rows), name, counts.cut_rows == 1 ? "is" : "are", counts.late_targets, counts.targets,
      row_word(counts));
}

constexpr DataCheck checks[] = {
    {"invalid-rows", true, &DataCounts::skipped, "rows", "cannot be read, or have no target", "", left_out_rows},
    {"no-targets", true, nullptr, "data sets", "have no sequence with a target", "", no_targets},
    {"unknown-roles", true, nullptr, "messages", "have a role that is not known", "", unknown_roles},
    {"no-end-token", true, &DataCounts::unended_answers, "answers", "do not end with an end token that is learned", "",
     unended_answers},
    {"unended-rows", true, &DataCounts::unended_rows, "rows", "do not end with an end token",
     "write one after each when they are tokenized"},
    {"doubled-bos", true, &DataCounts::doubled_bos, "rows", "begin with two BOS tokens",
     "remove one from the chat template or from the texts"},
    {"unknown-tokens", true, &DataCounts::unknown_tokens, "tokens", "are not in the model's vocabulary",
     "give the `tokenizer` of the model, or the model more tokens"},
    {"long-prompts", true, &DataCounts::long_prompts, "rows", "have prompts that fill a sequence",
     "give a larger `sequence length`"},
    {"cut-answers", true, &DataCounts::cut_answers, "answers", "are cut by the end of a sequence",
     "give a larger `sequence length`, or `break mode` complete"},
    {"beyond-model", true, &DataCounts::beyond_model, "rows", "have answers beyond the model's longest sequence",
     "shorten them, or leave them out by `long rows`"},
    {"in-training", true, &DataCounts::in_training, "rows", "are in the training data, too", "remove them from one of the two"},
    {"near-training", false, &DataCounts::near_training, "rows", "resemble one of the training data", "look at them"},
    {"late-targets", false, &DataCounts::late_targets, "targets", "are predicted without the beginning of their row", "",
     late_targets},
    {"lost-targets", false, &DataCounts::lost_targets, "targets", "are not used, by `long rows`",
     "give a larger `sequence length`"},
    {"idle-sequences", false, &DataCounts::idle_sequences, "sequences", "have no target and are not computed",
     "give a larger `sequence length` if their rows matter"},
    {"empty-answers", false, &DataCounts::empty_answers, "answers", "are empty", "fill them, or remove their rows"},
    {"empty-rows", false, &DataCounts::empty_rows, "rows", "are empty", "remove them"},
    {"duplicates", false, &DataCounts::duplicates, "rows", "are the same as an earlier one",
     "remove them, unless they are to count more"},
    {"near-duplicates", false, &DataCounts::near_duplicates, "rows", "resemble an earlier one", "look at them"},
};

}  // namespace

std::string DataCheck::message(const DataCounts& counts, const std::string& data) const {
  const std::uint64_t found = number ? counts.*number : 1;
  if (found == 0) return "";
  if (special) return special(counts, data);
  const bool of_rows = std::string_view(things) == "rows";
  return format("{} in {} that {}: {}{}{}; {}", things, data, what, found,
                of_rows ? format(" of {}", counts.rows + counts.skipped) : "", first_of(counts, name), advice);
}

std::span<const DataCheck> data_checks() { return checks; }

std::vector<std::string> describe_counts(const DataCounts& counts, const std::string& name) {
  std::vector<std::string> parts;
  if (counts.rows > 0 || counts.skipped > 0) parts.push_back(plural(counts.rows, row_word(counts)));
  if (counts.skipped > 0) parts.push_back(format("{} more left out", counts.skipped));
  if (counts.answers > 0) parts.push_back(plural(counts.answers, "answer"));
  if (counts.empty_answers > 0)
    parts.push_back(format("{} of them empty (only the token that ends it is learned)", counts.empty_answers));
  if (counts.excluded_answers > 0)
    parts.push_back(format("{} more excluded by \"weight\" or \"train\"", counts.excluded_answers));
  parts.push_back(plural(counts.tokens, "token"));
  parts.push_back(format("{} ({}) in the loss", counts.targets, share_of(counts.targets, counts.tokens)));
  if (counts.longest_row > 0) parts.push_back(format("the longest row has {}", counts.longest_row));
  if (counts.sequences > 0) {
    parts.push_back(plural(counts.sequences, "sequence"));
    parts.push_back(format("{} padding", share_of(counts.padding, counts.positions)));
  }
  if (counts.cut_rows > 0) parts.push_back(plural(counts.cut_rows, "row is cut", "rows are cut"));
  const auto lost = [&](std::uint64_t rows, const char* verb) {
    if (rows > 0)
      parts.push_back(format("{} {} ({} lost)", plural(rows, "long row"), verb, plural(counts.lost_targets, "target")));
  };
  lost(counts.truncated_rows, "truncated"), lost(counts.dropped_rows, "dropped");
  const std::string shown = excerpt(name, 80);
  std::vector<std::string> lines = {format("data: {}: {}", shown, fmt::join(parts, ", "))};
  if (!counts.first_row.empty()) lines.push_back(format("data: {} begins: {}", shown, counts.first_row));
  return lines;
}

void report_counts(const DataCounts& counts, const std::string& name, const Warn& say, const Warn& warn) {
  for (const std::string& line : describe_counts(counts, name)) say(line);
  for (const std::string& warning : counts.warnings) warn(warning);
  for (const DataCheck& check : data_checks())
    if (const std::string found = check.message(counts, name); !found.empty()) warn(found);
}

}  // namespace fsdp
