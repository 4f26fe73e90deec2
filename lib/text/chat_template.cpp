#include "text/chat_template.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer_folder.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

using ChatJson = nlohmann::ordered_json;
using jinja::Value;

std::string without_spaces(std::string_view text, bool left) {
  return std::string(strip(text, left, true, jinja::is_python_space));
}

/// The messages as transformers gives them to a template: without null values, and with the reasoning under its known names.
Value messages_of(const ChatJson& messages) {
  std::vector<Value> all;
  for (const ChatJson& message : messages) {
    ChatJson kept = ChatJson::object();
    ChatJson reasoning;
    for (const char* const name : {"reasoning_content", "thinking", "reasoning"})
      if (reasoning.is_null()) reasoning = message.value(name, ChatJson());
    if (!reasoning.is_null()) kept["thinking"] = reasoning;
    for (const auto& [key, value] : message.items())
      if (!value.is_null()) kept[key] = value;
    if (!reasoning.is_null()) kept["reasoning_content"] = reasoning;
    all.push_back(Value::of_json(kept));
  }
  return Value::given(std::move(all));
}

/// Runs a template on the first messages of a conversation.
class Renderer {
 public:
  Renderer(const JinjaTemplate& by, const Conversation& conversation, const std::map<std::string, std::string>& tokens)
      : by_(by) {
    try {
      for (const auto& [name, text] : tokens) variables_.emplace_back(name, Value::given(text));
      for (const auto& [name, value] : conversation.more.items()) set(name, Value::of_json(value));
      set("tools", Value::of_json(conversation.tools));
      set("documents", jinja::None());
      messages_ = messages_of(conversation.messages);
    } catch (const jinja::Problem& problem) {
      throw UserError(format("the conversation cannot be given to a chat template ({}); correct it", problem.what()));
    }
  }

  /// Throws TemplateRefusal.
  JinjaOutput render(std::size_t first, bool asks) {
    std::vector<Value> part = *messages_.items();
    part.resize(first);
    set("messages", Value::given(std::move(part)));
    set("add_generation_prompt", asks);
    return by_.render(variables_);
  }
  JinjaOutput render(bool asks) {
    try {
      return render(messages_.items()->size(), asks);
    } catch (const TemplateRefusal& refusal) {
      throw UserError(format("{}; correct the conversation", refusal.what()));
    }
  }

 private:
  void set(const std::string& name, Value value) {
    for (auto& [known, old] : variables_)
      if (known == name) return void(old = std::move(value));
    variables_.emplace_back(name, std::move(value));
  }

  const JinjaTemplate& by_;
  JinjaTemplate::Variables variables_;
  Value messages_;
};

/// The text of a message's content, the last part of a list; empty if it has none.
std::string last_content(const ChatJson& message) {
  ChatJson content = message.value("content", ChatJson());
  if (content.is_array() && !content.empty() && content.back().is_object()) content = content.back().value("text", ChatJson());
  return content.is_string() ? without_spaces(content.get<std::string>(), true) : "";
}

}  // namespace

void Conversation::add(const std::string& role, const std::string& content, bool answer) {
  messages.push_back({{"role", role}, {"content", content}});
  is_answer.push_back(answer);
}

ChatTemplate::ChatTemplate(const std::string& name, const std::string& jinja, std::map<std::string, std::string> variables)
    : whole_(name, jinja), variables_(std::move(variables)), end_(find_end()) {}

const JinjaTemplate& ChatTemplate::template_for(const Conversation& conversation) const {
  return for_tools_ && !conversation.tools.is_null() ? *for_tools_ : whole_;
}

bool ChatTemplate::mentions(const Conversation& conversation, const std::string& word) const {
  return template_for(conversation).mentions(word);
}

std::string ChatTemplate::render(const Conversation& conversation) const {
  return Renderer(template_for(conversation), conversation, variables_).render(true).text;
}

ChatText ChatTemplate::render_whole(const Conversation& conversation) const {
  const JinjaTemplate& by = template_for(conversation);
  Renderer renderer(by, conversation, variables_);
  JinjaOutput whole = renderer.render(false);
  ChatText made{std::move(whole.text), {}, false};
  const std::string& text = made.text;
  const auto refuse = [&](std::size_t i, const std::string& why) {
    throw UserError(
        format("message {} is an answer, but its tokens cannot be found ({}; {}); put {{% generation %}} and "
               "{{% endgeneration %}} around what the template writes of answers, or exclude the answer by \"train\": false",
               i + 1, by.name(), why));
  };
  const std::vector<TextSpan>& passes = whole.messages;
  if (by.has_generation()) {
    // A block belongs to the message that the loop has written last.
    std::optional<std::size_t> last_owner;
    for (const TextSpan& span : whole.generated) {
      std::optional<std::size_t> owner;
      for (std::size_t i = 0; i < passes.size(); ++i)
        if (passes[i].end > 0 && passes[i].begin <= span.begin && (!owner || passes[i].begin >= passes[*owner].begin))
          owner = i;
      if (!owner)
        throw UserError(format(
            "the chat template {} does not write the messages one by one in a loop (so its 'generation' blocks belong to no "
            "message); give another template",
            by.name()));
      if (!conversation.is_answer[*owner] || span.end == span.begin) continue;
      if (owner == last_owner) made.answer_ends.pop_back();
      last_owner = owner;
      made.answers.push_back(span);
      made.answer_ends.push_back(span.end);
      const std::string content = last_content(conversation.messages[*owner]);
      made.ends_open =
          span.end == text.size() && !content.empty() && without_spaces(text.substr(span.begin), false).ends_with(content);
    }
    return made;
  }
  for (std::size_t i = 0; i < conversation.is_answer.size(); ++i) {
    if (!conversation.is_answer[i]) continue;
    std::string before;
    try {
      before = renderer.render(i, true).text;
    } catch (const std::runtime_error& error) {
      refuse(i, format("it does not ask for this answer: {}", error.what()));
    }
    if (!text.starts_with(before)) {
      const std::size_t same = static_cast<std::size_t>(
          std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first - before.begin());
      refuse(i, format("it asks for the answer by '{}', but writes the conversation without this text",
                       excerpt(before.substr(same), 40)));
    }
    const TextSpan& pass = passes[i];
    if (pass.end <= before.size() || pass.begin > before.size() ||
        (!made.answers.empty() && before.size() < made.answers.back().end))
      refuse(i, "it has no loop that writes the messages one by one");
    const std::string answer = text.substr(before.size(), pass.end - before.size()), tight = without_spaces(answer, false),
                      content = last_content(conversation.messages[i]);
    const bool is_open = !content.empty() && tight.ends_with(content);  // only spaces, or nothing, end the turn
    made.answers.push_back({before.size(), before.size() + (is_open ? answer : tight).size()});
    made.answer_ends.push_back(made.answers.back().end);
    made.ends_open = is_open && pass.end == text.size();
  }
  return made;
}

std::string ChatTemplate::find_end() const {
  const std::string content = "An answer";
  Conversation short_one;
  short_one.add("user", "A question");
  short_one.add("assistant", content, true);
  try {
    const ChatText made = render_whole(short_one);
    if (made.answers.empty()) return "";
    const std::string answer = made.text.substr(made.answers.back().begin, made.answers.back().end - made.answers.back().begin);
    const std::size_t at = answer.rfind(content);
    return at == answer.npos ? "" : without_spaces(answer.substr(at + content.size()), true);
  } catch (const UserError&) {  // the template does not accept such a conversation
    return "";
  }
}

namespace {

/// A template with its name in messages.
struct NamedTemplate {
  std::string name, jinja;
};

/// Adds the templates in "chat_template" of a tokenizer's configuration.
void add_templates_of_config(const std::filesystem::path& path, std::map<std::string, NamedTemplate>& found) {
  const nlohmann::json config = read_json_object(path);
  const auto add = [&](const std::string& name, const nlohmann::json& text) {
    if (text.is_string()) found[name] = {format("\"chat_template\" of {}", path.string()), text.get<std::string>()};
  };
  const nlohmann::json given = config.value("chat_template", nlohmann::json());
  add("default", given);
  if (given.is_array())
    for (const nlohmann::json& one : given)
      if (one.is_object() && one.contains("name") && one["name"].is_string())
        add(one["name"].get<std::string>(), one.value("template", nlohmann::json()));
}

/// The templates of a folder or file (read_chat_template()) by their names: "default" and others.
std::map<std::string, NamedTemplate> templates_in(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::map<std::string, NamedTemplate> found;
  if (kind_of(folder) == PathKind::file) {
    if (folder.extension() == ".json")
      add_templates_of_config(folder, found);
    else
      found["default"] = {folder.string(), read_text_file(folder, JinjaTemplate::longest_source)};
    return found;
  }
  const fs::path config_path = folder / "tokenizer_config.json", own = folder / "chat_template.jinja",
                 tools = folder / "additional_chat_templates" / "tool_use.jinja";
  const auto read = [&](const char* name, const fs::path& path) {
    if (kind_of(path) == PathKind::file) found[name] = {path.string(), read_text_file(path, JinjaTemplate::longest_source)};
  };
  read("default", own);
  read("tool_use", tools);
  if (found.contains("default") || kind_of(config_path) != PathKind::file) return found;
  add_templates_of_config(config_path, found);
  return found;
}

}  // namespace

ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  if (!model.empty() && kind_of(model) == PathKind::file) text_of_chat_template(model);  // throws
  const bool is_there = !model.empty() && kind_of(model) != PathKind::missing;
  const auto found = is_there ? templates_in(model) : std::map<std::string, NamedTemplate>();
  const auto main = found.find("default");
  if (main == found.end())
    throw UserError(format(
        "{} has no chat template (no chat_template.jinja, and no \"chat_template\" in tokenizer_config.json; the model may not "
        "be trained on conversations); write the conversations as texts yourself, {{\"prompt\": .., \"completion\": ..}}",
        model.string()));
  std::map<std::string, std::string> tokens;
  for (const char* const name : named_tokens)
    if (const auto token = tokenizer.special_tokens().find(name); token != tokenizer.special_tokens().end())
      tokens.insert(*token);
  ChatTemplate chat(main->second.name, main->second.jinja, tokens);
  if (const auto tools = found.find("tool_use"); tools != found.end())
    chat.set_for_tools(tools->second.name, tools->second.jinja);
  for (const char* const name : {"bos_token", "eos_token"})
    if (!tokens.contains(name) && chat.mentions({}, name) && kind_of(model) == PathKind::folder &&
        kind_of(model / "tokenizer_config.json") != PathKind::file)
      throw UserError(
          format("the chat template {} needs the token {}, which is not known (it is read from a tokenizer_config.json next to "
                 "it); add that file",
                 chat.name(), name));
  return chat;
}

namespace {

/// The known keys of an object. A warning names all others.
struct KnownKeys {
  std::vector<std::string_view> used, meaningless, refused;
};

const KnownKeys keys_of_record = {
    .used = {"messages", "prompt", "completion", "weight", "train", "tools", "chat_template_kwargs"},
    .meaningless = {"id", "uuid", "prompt_id", "conversation_id", "source"},
    .refused = {"functions", "function_call", "system", "conversations", "images", "image", "videos", "video", "audios",
                "audio", "documents", "chat_template"}};
const KnownKeys keys_of_message = {
    .used = {"role", "content", "weight", "train"},
    .meaningless = {"id", "timestamp", "tool_call_id"},
    .refused = {"function_call", "refusal", "prefix", "train_detail", "images", "image", "videos", "video", "audios", "audio"}};
/// The arguments of apply_chat_template(), which "chat_template_kwargs" would set.
const std::vector<std::string_view> arguments_of_rendering = {"add_generation_prompt",
                                                              "chat_template",
                                                              "continue_final_message",
                                                              "conversation",
                                                              "documents",
                                                              "max_length",
                                                              "messages",
                                                              "padding",
                                                              "return_assistant_tokens_mask",
                                                              "return_dict",
                                                              "return_tensors",
                                                              "sanitize_control_tokens",
                                                              "tokenize",
                                                              "tokenizer_kwargs",
                                                              "tools",
                                                              "truncation"};

bool is_in(const std::vector<std::string_view>& list, const std::string& key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

/// Returns false for null and empty values. Column-oriented data sets write such a value for a key that an entry does not have.
bool says_something(const ChatJson& value) { return !value.empty() && value != ChatJson(""); }

/// Returns the first key that is refused, or an empty text. Adds unknown keys to `unknown`.
std::string look_at_keys(const ChatJson& object, const KnownKeys& keys, std::set<std::string>& unknown) {
  for (const auto& [key, value] : object.items()) {
    if (!says_something(value)) continue;
    if (is_in(keys.refused, key)) {
      if (value != ChatJson(false)) return key;
      continue;
    }
    if (!is_in(keys.used, key) && !is_in(keys.meaningless, key)) unknown.insert(key);
  }
  return "";
}

/// Returns true if the message's "weight" or "train" is 1 or true (train on this message), and false if it is 0 or false.
/// Returns nullopt if the message has neither key.
std::optional<bool> is_to_be_learned(const ChatJson& message, std::string& problem) {
  std::optional<bool> learned;
  for (const char* const key : {"weight", "train"}) {
    const ChatJson value = message.value(key, ChatJson());
    if (!says_something(value)) continue;
    const bool yes = value == ChatJson(true) || value == ChatJson(1);
    if (!yes &&
        !(value == ChatJson(false) || value == ChatJson(0)))  // not written with `!=`, because NaN is neither equal nor unequal
      problem = format("it has \"{}\": {}, but only 0, 1, false and true are read", key, json_excerpt(nlohmann::json(value)));
    if (learned.value_or(yes) != yes) problem = "its \"weight\" and its \"train\" contradict each other";
    learned = yes;
  }
  return learned;
}

/// The reason why a message cannot be read; else empty.
std::string problem_of(const ChatJson& message) {
  if (!message.contains("role") || !message["role"].is_string() || !says_something(message["role"]))
    return "\"role\" is missing or is no text";
  const ChatJson content = message.value("content", ChatJson());
  const auto is_text_part = [](const ChatJson& part) {
    return part.is_object() && part.value("type", ChatJson()) == ChatJson("text") && part.value("text", ChatJson()).is_string();
  };
  if (content.is_array()) {
    if (std::all_of(content.begin(), content.end(), is_text_part)) return "";
    return "\"content\" has a part that is no {\"type\": \"text\", \"text\": ..}";
  }
  const bool may_have_none = says_something(message.value("tool_calls", ChatJson()));
  return content.is_string() || (content.is_null() && may_have_none) ? "" : "\"role\" or \"content\" is missing or is no text";
}

/// Reads "messages", "prompt" or "completion", the list `name`. Returns the reason why it cannot be read; else an empty text.
std::string add_messages(Conversation& to, const ChatJson& list, const char* name, bool has_answers,
                         std::set<std::string>& keys) {
  if (!says_something(list)) return "";
  if (!list.is_array()) return format("its \"{}\" is no list of messages", name);
  for (const ChatJson& one : list) {
    if (!one.is_object()) return format("its \"{}\" has an element that is no message", name);
    if (const std::string key = look_at_keys(one, keys_of_message, keys); !key.empty())
      return format("its \"{}\" has a message with \"{}\", which is not read here", name, key);
    if (const std::string problem = problem_of(one); !problem.empty())
      return format("its \"{}\" has a message whose {}", name, problem);
    const std::string role = one["role"].get<std::string>();
    const bool can_be_learned = has_answers && role == "assistant";
    std::string problem;
    const bool learned = is_to_be_learned(one, problem).value_or(can_be_learned);
    if (problem.empty() && learned && !can_be_learned)
      problem = format("its \"{}\" has a message of the role '{}' with \"weight\" or \"train\", but only answers are learned",
                       name, excerpt(role));
    if (!problem.empty()) return problem;
    to.counts.add_role(role);
    to.counts.answers += learned;
    to.counts.excluded_answers += can_be_learned && !learned;
    to.counts.empty_answers +=
        learned && !says_something(one.value("content", ChatJson())) && !says_something(one.value("tool_calls", ChatJson()));
    ChatJson message = one;
    for (const char* const key : {"weight", "train"}) message.erase(key);
    to.messages.push_back(std::move(message));
    to.is_answer.push_back(learned);
  }
  return "";
}

/// Reads "tools" and "chat_template_kwargs". Returns the reason why they cannot be read; else an empty text.
std::string add_variables(Conversation& to, const ChatJson& object) {
  to.tools = object.value("tools", ChatJson());
  if (!says_something(to.tools)) to.tools = nullptr;
  std::string problem;
  if (to.tools.is_string()) to.tools = read_json_in_order(to.tools.get<std::string>(), problem);
  const auto is_object = [](const ChatJson& one) { return one.is_object(); };
  if (!problem.empty() ||
      (!to.tools.is_null() && !(to.tools.is_array() && std::all_of(to.tools.begin(), to.tools.end(), is_object))))
    return "its \"tools\" is no list of objects";
  const ChatJson more = object.value("chat_template_kwargs", ChatJson());
  if (!says_something(more)) return "";
  if (!more.is_object()) return "its \"chat_template_kwargs\" is no object";
  for (const auto& [key, value] : more.items())
    if (is_in(arguments_of_rendering, key))
      return format("its \"chat_template_kwargs\" has \"{}\", which is no variable of a template", key);
  to.more = more;
  return "";
}

/// Adds what the template does not write to `unused`.
void warn_of_unread(const Conversation& conversation, const ChatTemplate& chat, const std::string& text,
                    const std::set<std::string>& keys, std::set<std::string>& unused) {
  for (const std::string& key : keys)
    if (!chat.mentions(conversation, key) &&
        !(chat.mentions(conversation, "reasoning_content") && (key == "thinking" || key == "reasoning")))
      unused.insert(format("\"{}\" of messages", excerpt(key)));
  if (says_something(conversation.tools) && !chat.mentions(conversation, "tools")) unused.insert("\"tools\"");
  for (const auto& [key, value] : conversation.more.items())
    if (!chat.mentions(conversation, key)) unused.insert(format("\"{}\" of \"chat_template_kwargs\"", excerpt(key)));
  for (const ChatJson& message : conversation.messages) {
    const std::string role = message["role"].get<std::string>();
    if (role != "assistant" && role != "tool" && text.find(last_content(message)) == text.npos)
      unused.insert(format("the content of messages of the role \"{}\"", excerpt(role)));
  }
}

}  // namespace

ChatText read_conversation(const ChatJson& object, const std::function<const ChatTemplate&()>& chat, std::string& problem,
                           std::set<std::string>& unused) {
  Conversation conversation;
  std::set<std::string> unknown, keys;
  problem.clear();
  const std::string refused = object.is_object() ? look_at_keys(object, keys_of_record, unknown) : "";
  for (const std::string& key : unknown) unused.insert(format("\"{}\"", excerpt(key)));
  const auto is_text = [&](const char* key) { return object.contains(key) && object[key].is_string(); };
  const auto has = [&](const char* key) { return object.contains(key) && says_something(object[key]); };
  if (!object.is_object()) {
    problem = "it is no object";
  } else if (!refused.empty()) {
    problem = format("it has \"{}\", which is not read here", refused);
  } else if (!is_to_be_learned(object, problem).value_or(true)) {
    problem = "its \"weight\" or \"train\" excludes it from training";
  } else if (!problem.empty()) {
    return {};
  } else if (has("messages") && has("completion")) {
    problem = "it has both \"messages\" and \"completion\"";
  } else if (has("messages")) {
    if (has("prompt")) unused.insert("\"prompt\"");
    problem = add_messages(conversation, object["messages"], "messages", true, keys);
  } else if (is_text("prompt") && is_text("completion") && (has("prompt") || has("completion"))) {
    const std::string prompt = object["prompt"].get<std::string>(), text = prompt + object["completion"].get<std::string>();
    ChatText made{text, {{prompt.size(), text.size()}}, /*ends_open=*/true, {text.size()}};
    made.counts.answers = 1, made.counts.empty_answers = has("completion") ? 0 : 1;
    return made;
  } else if (!object.contains("prompt") || !object.contains("completion") || (!has("prompt") && !has("completion"))) {
    problem = object.contains("messages") ? "it has no messages"
                                          : "it has neither \"messages\" nor both \"prompt\" and \"completion\"";
  } else {
    problem = add_messages(conversation, object["prompt"], "prompt", false, keys);
    if (problem.empty()) problem = add_messages(conversation, object["completion"], "completion", true, keys);
  }
  if (problem.empty()) problem = add_variables(conversation, object);
  if (problem.empty() && conversation.messages.empty()) problem = "it has no messages";
  if (!problem.empty()) return {};
  const ChatTemplate& written_by = chat();
  try {
    ChatText made = written_by.render_whole(conversation);
    warn_of_unread(conversation, written_by, made.text, keys, unused);
    made.counts = std::move(conversation.counts);
    return made;
  } catch (const UserError& error) {
    problem = error.what();
    return {};
  }
}

namespace {

/// Takes the last message off if it is the assistant's. Returns its content, or the whole message if it has no text or has more
/// than that; null if the conversation does not end with an answer.
ChatJson take_last_answer(Conversation& from) {
  if (from.messages.empty() || from.messages.back()["role"] != "assistant") return nullptr;
  ChatJson answer = std::move(from.messages.back());
  from.messages.erase(from.messages.size() - 1);
  from.is_answer.pop_back();
  const bool is_text = answer.value("content", ChatJson()).is_string() && answer.size() == 2;
  return is_text ? answer["content"] : answer;
}

}  // namespace

ChatPrompt read_chat_prompt(const ChatJson& object, const std::string& system, const std::function<const ChatTemplate&()>& chat,
                            std::string& problem, std::set<std::string>& unused) {
  Conversation conversation;
  std::set<std::string> unknown, keys;
  problem.clear();
  const std::string refused = object.is_object() ? look_at_keys(object, keys_of_record, unknown) : "";
  for (const std::string& key : unknown) unused.insert(format("\"{}\"", excerpt(key)));
  const auto has = [&](const char* key) { return object.contains(key) && says_something(object[key]); };
  if (!object.is_object()) {
    problem = "it is no object";
  } else if (!refused.empty()) {
    problem = format("it has \"{}\", which is not read here", refused);
  } else if (has("messages") && has("completion")) {
    problem = "it has both \"messages\" and \"completion\"";
  } else if (has("messages")) {
    if (has("prompt")) unused.insert("\"prompt\"");
    problem = add_messages(conversation, object["messages"], "messages", true, keys);
  } else if (object.value("prompt", ChatJson()) == ChatJson("")) {
    problem = "its \"prompt\" is empty";
  } else if (has("prompt") && object["prompt"].is_string() && has("completion") && object["completion"].is_string()) {
    return {object["prompt"].get<std::string>(), false, object["completion"]};
  } else if (has("prompt") && object["prompt"].is_string() && !has("completion")) {
    conversation.add("user", object["prompt"].get<std::string>());
  } else {
    problem = add_messages(conversation, object.value("prompt", ChatJson()), "prompt", false, keys);
    if (problem.empty()) problem = add_messages(conversation, object.value("completion", ChatJson()), "completion", true, keys);
  }
  if (problem.empty()) problem = add_variables(conversation, object);
  if (!problem.empty()) return {};
  ChatPrompt made = {{}, true, take_last_answer(conversation)};
  if (conversation.messages.empty()) {
    problem = !made.reference.is_null() ? "its only message is an answer, so there is nothing to answer"
              : object.contains("messages") || object.contains("prompt") ? "it has no messages"
                                                                         : "it has neither \"messages\" nor \"prompt\"";
    return {};
  }
  if (!system.empty() && conversation.messages.front()["role"] != "system")
    conversation.messages.insert(conversation.messages.begin(), ChatJson{{"role", "system"}, {"content", system}});
  try {
    made.text = chat().render(conversation);
    warn_of_unread(conversation, chat(), made.text, keys, unused);
  } catch (const UserError& error) {
    problem = error.what();
  }
  return made;
}

std::string known_form(const ChatJson& record) {
  if (!record.is_object()) return "";
  const auto has = [&](const char* key) { return record.contains(key) && says_something(record[key]); };
  const bool is_from = has("messages") && record["messages"].is_array() && record["messages"][0].is_object() &&
                       record["messages"][0].contains("from");
  if (is_from && !has("conversations"))
    return "in ShareGPT's form (\"from\" and \"value\"); give `form of JSON` sharegpt, and conversations=messages by `names in "
           "JSON`";
  if (has("conversations"))
    return "in ShareGPT's form (\"conversations\", \"from\" and \"value\"); give `form of JSON` sharegpt";
  if (has("messages") || has("completion")) return "";
  if (has("instruction") && record.contains("output"))
    return "in Alpaca's form (\"instruction\", \"input\" and \"output\"); give `form of JSON` alpaca";
  if (has("chosen") && record.contains("rejected"))
    return "for training on preferences (\"chosen\" and \"rejected\"), which is not here; to train on the chosen answers, "
           "write {\"messages\": ..} with the messages of \"chosen\", or {\"prompt\": .., \"completion\": ..}";
  for (const auto& [question, answer] : {std::pair("question", "answer"), {"query", "response"}, {"input", "output"}})
    if (has(question) && record.contains(answer))
      return format("a question with its answer (\"{}\" and \"{}\"); write {{\"prompt\": .., \"completion\": ..}}", question,
                    answer);
  return "";
}

std::string text_of_chat_template(const std::filesystem::path& file) {
  const auto found = templates_in(file);
  if (kind_of(file) != PathKind::file || found.size() != 1 || !found.contains("default"))
    throw UserError(
        format("{} is no file with one chat template ({}); give a file in Jinja, or one in JSON with the text "
               "\"chat_template\"",
               file.string(), found.empty() ? "it has none" : format("it has {}", plural(found.size(), "template"))));
  return found.at("default").jinja;
}

std::string sum_of_chat_templates(const std::filesystem::path& model) {
  if (model.empty() || kind_of(model) == PathKind::missing) return "";
  std::string all;
  for (const auto& [name, one] : templates_in(model)) all += name + "\n" + one.jinja + "\n";
  return all.empty() ? "" : checksum_text(checksum(all.data(), all.size()));
}

const ChatTemplate& ChatReader::chat() {
  if (!template_) template_ = read_chat_template(model_, tokenizer_);
  return *template_;
}

ChatText ChatReader::read(const nlohmann::ordered_json& record, std::string& problem) {
  problem.clear();
  const ChatJson read = records_.read(record, problem);
  const auto by = [this]() -> const ChatTemplate& { return chat(); };
  return problem.empty() ? read_conversation(read, by, problem, unused_) : ChatText();
}

ChatPrompt ChatReader::read_prompt(const nlohmann::ordered_json& record, const std::string& system, std::string& problem) {
  problem.clear();
  const ChatJson read = records_.read(record, problem);
  const auto by = [this]() -> const ChatTemplate& { return chat(); };
  return problem.empty() ? read_chat_prompt(read, system, by, problem, unused_) : ChatPrompt();
}

std::vector<std::string> ChatReader::warnings() const {
  std::vector<std::string> all;
  const std::string end = template_ ? template_->end() : "";
  if (end.size() > 2 && end.front() == '<' && end.back() == '>' && end.find_first_of(" \n") == end.npos &&
      !tokenizer_.find(end))
    all.push_back(format(
        "the tokenizer has no token '{}', with which the chat template ends answers, so it becomes several tokens; check "
        "that both belong to the model",
        end));
  if (!unused_.empty())
    all.push_back(
        format("parts of the conversations are not used ({}; the chat template does not write them, or they are no keys of a "
               "conversation); check that neither the text nor the mask needs them",
               list_of({unused_.begin(), unused_.end()})));
  return all;
}

}  // namespace fsdp
