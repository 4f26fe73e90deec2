#include "text/record_form.hpp"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

namespace {

using FormJson = nlohmann::ordered_json;
using FormNames = std::map<std::string, std::string>;

/// Removes the key that the data set has for `name`, and returns its value; null if there is none.
FormJson take(FormJson& object, const FormNames& names, const char* name) {
  const auto found = object.find(names.at(name));
  if (found == object.end()) return nullptr;
  FormJson value = std::move(*found);
  object.erase(found);
  return value;
}

FormJson message_of(const char* role, FormJson content) { return {{"role", role}, {"content", std::move(content)}}; }

/// Renames the keys of records that have the form already.
FormJson rename(FormJson record, const FormNames& names, std::string&) {
  const auto renamed = [&](const FormJson& object, std::initializer_list<std::string_view> ours) {
    FormJson made = FormJson::object();
    for (const auto& [key, value] : object.items()) {
      const auto is_key = [&, &theirs = key](std::string_view our) { return names.at(std::string(our)) == theirs; };
      const auto our = std::find_if(ours.begin(), ours.end(), is_key);
      made[our == ours.end() ? key : std::string(*our)] = value;
    }
    return made;
  };
  record = renamed(record, {"messages", "prompt", "completion", "tools"});
  for (const char* const list : {"messages", "prompt", "completion"})
    if (record.contains(list) && record[list].is_array())
      for (FormJson& message : record[list])
        if (message.is_object()) message = renamed(message, {"role", "content"});
  return record;
}

/// Reads a call of a tool, the JSON text {"name": .., "arguments": {..}} or a list of these.
FormJson calls_of(const FormJson& value, std::string& problem) {
  FormJson calls = value.is_string() ? read_json_in_order(value.get<std::string>(), problem) : FormJson(value);
  if (calls.is_object()) calls = FormJson::array({calls});
  FormJson made = FormJson::array();
  if (problem.empty() && calls.is_array())
    for (const FormJson& call : calls)
      if (call.is_object() && call.contains("name")) made.push_back({{"type", "function"}, {"function", call}});
  if (!problem.empty() || !calls.is_array() || made.empty() || made.size() != calls.size())
    problem = "it has a function_call that is no JSON with \"name\" and \"arguments\"";
  return made;
}

FormJson read_sharegpt(FormJson record, const FormNames& names, std::string& problem) {
  // The words for roles that data sets have, and that the programs which read this form know
  const std::pair<std::string, const char*> roles[] = {{names.at("human"), "user"},
                                                       {"user", "user"},
                                                       {names.at("gpt"), "assistant"},
                                                       {"assistant", "assistant"},
                                                       {"chatgpt", "assistant"},
                                                       {"bing", "assistant"},
                                                       {"bard", "assistant"},
                                                       {names.at("system"), "system"},
                                                       {names.at("observation"), "tool"},
                                                       {"tool", "tool"},
                                                       {"function_response", "tool"},
                                                       {names.at("function_call"), "function_call"}};
  const FormJson system = take(record, names, "system"), turns = take(record, names, "conversations");
  FormJson messages = FormJson::array();
  if (!system.is_null() && !system.is_string()) {
    problem = format("\"{}\" is no text", names.at("system"));
    return record;
  }
  if (system.is_string() && system != FormJson("")) messages.push_back(message_of("system", system));
  if (!turns.is_array()) {
    problem = format("it has no list \"{}\"", names.at("conversations"));
    return record;
  }
  for (FormJson turn : turns) {
    const FormJson from = turn.is_object() ? take(turn, names, "from") : FormJson();
    const auto role = std::ranges::find_if(roles, [&](const auto& each) { return from == FormJson(each.first); });
    if (role == std::end(roles)) {
      problem = format("its \"{}\" has an element whose \"{}\" is {}", names.at("conversations"), names.at("from"),
                       from.is_string() ? format("'{}', which is no role that is known", excerpt(from.get<std::string>()))
                                        : "missing or no text");
      return record;
    }
    const FormJson value = take(turn, names, "value");
    FormJson message = message_of(role->second, value);
    if (message["role"] == FormJson("function_call"))
      message = {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls_of(value, problem)}};
    message.update(turn);  // weights of answers, and what is warned of
    messages.push_back(std::move(message));
  }
  record["messages"] = std::move(messages);
  return record;
}

FormJson read_alpaca(FormJson record, const FormNames& names, std::string& problem) {
  const auto text_of = [&](const char* name, bool may_lack) {
    const FormJson value = take(record, names, name);
    if (!value.is_string() && !(may_lack && value.is_null()) && problem.empty())
      problem = format("its \"{}\" is missing or is no text", names.at(name));
    return value.is_string() ? value.get<std::string>() : "";
  };
  FormJson messages = FormJson::array();
  if (const std::string system = text_of("system", true); !system.empty()) messages.push_back(message_of("system", system));
  const FormJson history = take(record, names, "history");
  const auto is_pair = [](const FormJson& each) {
    return each.is_array() && each.size() == 2 && each[0].is_string() && each[1].is_string();
  };
  if (!history.is_null() && !(history.is_array() && std::all_of(history.begin(), history.end(), is_pair)))
    problem = format("its \"{}\" is no list of pairs of a prompt and an answer", names.at("history"));
  if (problem.empty())
    for (const FormJson& pair : history) {
      messages.push_back(message_of("user", pair[0]));
      messages.push_back(message_of("assistant", pair[1]));
    }
  std::string prompt = text_of("instruction", false);
  const std::string input = text_of("input", true);
  if (!prompt.empty() && !input.empty()) prompt += '\n';
  messages.push_back(message_of("user", prompt + input));
  messages.push_back(message_of("assistant", text_of("output", false)));
  record["messages"] = std::move(messages);
  return record;
}

}  // namespace

struct RecordReader::Form {
  std::string name, about;
  std::vector<std::string> names;
  FormJson (*read)(FormJson record, const FormNames& names, std::string& problem);
};

const std::vector<RecordReader::Form>& RecordReader::forms() {
  static const std::vector<Form> all = {
      {"messages",
       "\"messages\" with \"role\" and \"content\", or \"prompt\" and \"completion\"",
       {"messages", "prompt", "completion", "tools", "role", "content"},
       rename},
      {"sharegpt",
       "\"conversations\" with \"from\" (human, gpt, system, observation, function_call) and \"value\", also with \"system\" "
       "and \"tools\"",
       {"conversations", "from", "value", "system", "human", "gpt", "observation", "function_call"},
       read_sharegpt},
      {"alpaca",
       "\"instruction\", \"input\" and \"output\", also with \"system\" and \"history\"; instruction and input, with a line "
       "end between them, are the user's message",
       {"instruction", "input", "output", "system", "history"},
       read_alpaca}};
  return all;
}

std::vector<std::pair<std::string, std::string>> record_forms() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const RecordReader::Form& form : RecordReader::forms()) all.emplace_back(form.name, form.about);
  return all;
}

RecordReader::RecordReader(const RecordForm& form) : form_(&*std::ranges::find(forms(), form.name, &Form::name)) {
  for (const std::string& name : form_->names) names_[name] = name;
  for (std::size_t begin = 0; begin < form.names.size();) {
    const std::size_t end = std::min(form.names.find(',', begin), form.names.size());
    const std::string part = form.names.substr(begin, end - begin), own = part.substr(0, part.find('='));
    if (part.size() < own.size() + 2 || !names_.contains(own))
      throw UserError(
          format("'{}' renames nothing of the form {} (each part is NAME=NAME-IN-THE-DATA, and its names are {}); "
                 "correct `names in JSON`",
                 part, form.name, fmt::to_string(fmt::join(form_->names, ", "))));
    names_[own] = part.substr(own.size() + 1);
    begin = end + 1;
  }
}

FormJson RecordReader::read(const FormJson& record, std::string& problem) const {
  return record.is_object() ? form_->read(record, names_, problem) : record;
}

}  // namespace fsdp
