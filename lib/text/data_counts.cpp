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
                                                      {"late_targets", &DataCounts::late_targets}};
constexpr std::pair<const char*, std::string DataCounts::*> texts[] = {
    {"first_skipped", &DataCounts::first_skipped}, {"unended", &DataCounts::unended}, {"first_row", &DataCounts::first_row}};
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
  for (const auto& [name, text] : texts)
    if ((this->*text).empty()) this->*text = other.*text;
  for (const std::string& warning : other.warnings)
    if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) warnings.push_back(warning);
  return *this;
}

nlohmann::ordered_json to_json(const DataCounts& counts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, number] : numbers)
    if (counts.*number > 0) object[name] = counts.*number;
  for (const auto& [name, text] : texts)
    if (!(counts.*text).empty()) object[name] = counts.*text;
  if (!counts.roles.empty()) object["roles"] = counts.roles;
  if (!counts.warnings.empty()) object["warnings"] = counts.warnings;
  return object;
}

DataCounts counts_of_json(const nlohmann::json& object) {
  DataCounts counts;
  if (!object.is_object()) return counts;
  for (const auto& [name, number] : numbers)
    if (const auto at = object.find(name); at != object.end() && at->is_number_unsigned()) counts.*number = *at;
  for (const auto& [name, text] : texts)
    if (const auto at = object.find(name); at != object.end() && at->is_string()) counts.*text = *at;
  const nlohmann::json roles = object.value("roles", nlohmann::json()), warnings = object.value("warnings", nlohmann::json());
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

void report_counts(const DataCounts& counts, const std::string& name, const Warn& say, const Warn& warn) {
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
      parts.push_back(format("{} {} because of {} length, {} with them", plural(rows, "row"), verb, rows == 1 ? "its" : "their",
                             plural(counts.lost_targets, "target")));
  };
  lost(counts.truncated_rows, "truncated"), lost(counts.dropped_rows, "dropped");
  const std::string shown = excerpt(name, 80);
  say(format("data: {}: {}", shown, fmt::join(parts, ", ")));
  if (!counts.first_row.empty()) say(format("data: {} begins: {}", shown, counts.first_row));

  for (const std::string& warning : counts.warnings) warn(warning);
  if (counts.skipped > 0)
    warn(format("{} in {} are left out{} (the first is {})", rows_of(counts, counts.skipped), name,
                counts.without_target == 0 ? ""
                                           : format(", {} of them because they have no target{}", counts.without_target,
                                                    counts.roles.empty() ? "" : "; roles: " + roles_of(counts)),
                counts.first_skipped));
  for (const auto& [role, messages] : counts.roles)
    if (std::find(std::begin(known_roles), std::end(known_roles), role) == std::end(known_roles))
      warn(
          format("{} in {} of the role \"{}\" are not learned (only those of the role \"assistant\" are answers; roles: {}); "
                 "if they are answers, correct the role",
                 plural(messages, "message"), name, role, roles_of(counts)));
  if (counts.unended_answers > 0)
    warn(
        format("{} of {} answers in {} have no target at which generation ends (the first ends by {}), so the model does not "
               "learn to stop after them; end answers in the chat template, or tokenize texts of prompts and completions with "
               "an end token, or name the token that follows them as \"eos_token_id\" of generation_config.json",
               counts.unended_answers, counts.answers, name, counts.unended));
  const bool all_count = counts.targets + counts.rows + 1 >= counts.tokens;  // documents' first tokens may be no targets
  if (counts.late_targets > 0 && !all_count)
    warn(
        format("{} in {} {} longer than a sequence, or cut by its end: {} of {} targets are predicted without the beginning of "
               "their {}; give a larger `sequence length`, and `break mode` complete",
               rows_of(counts, counts.cut_rows), name, counts.cut_rows == 1 ? "is" : "are", counts.late_targets, counts.targets,
               row_word(counts)));
}

}  // namespace fsdp
