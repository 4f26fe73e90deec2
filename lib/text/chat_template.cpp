#include "text/chat_template.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

constexpr std::size_t longest_template = std::size_t{1} << 20;

/// What ChatML and Llama 3 write is recognised by marks that no other template has, whatever else a template does.
const ChatFamily chatml = {.name = "ChatML",
                           .begin = "",
                           .system = "<|im_start|>{role}\n{content}<|im_end|>\n",
                           .user = "<|im_start|>{role}\n{content}<|im_end|>\n",
                           .assistant = "<|im_start|>{role}\n{content}<|im_end|>\n",
                           .ask = "<|im_start|>assistant\n"};
const ChatFamily llama3 = {.name = "Llama 3",
                           .begin = "<|begin_of_text|>",
                           .system = "<|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>",
                           .user = "<|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>",
                           .assistant = "<|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>",
                           .ask = "<|start_header_id|>assistant<|end_header_id|>\n\n"};

/// Others have to put together just the texts of a row, in whatever order the program has them.
const std::vector<ChatFamily>& families() {
  static const std::vector<ChatFamily> rows = [] {
    std::vector<ChatFamily> all;
    for (const char* const assistant : {"{content}{eos_token}", "{content}{eos_token} ", " {content}{eos_token}",
                                        " {content|trim}{eos_token}"})  // versions of one template
      all.push_back({.name = "Mistral",
                     .begin = "{bos_token}",
                     .system = "",
                     .user = "[INST] {content} [/INST]",
                     .assistant = assistant,
                     .ask = "",
                     .alternates = true});
    all.push_back({.name = "Llama 2",
                   .begin = "",
                   .system = "",
                   .user = "{bos_token}[INST] {content|trim} [/INST]",
                   .assistant = " {content|trim} {eos_token}",
                   .ask = "",
                   .with_system = "<<SYS>>\n{system_message}\n<</SYS>>\n\n{content}",
                   .alternates = true});
    all.push_back({.name = "Zephyr and TinyLlama",
                   .begin = "",
                   .system = "<|system|>\n{content}{eos_token}\n",
                   .user = "<|user|>\n{content}{eos_token}\n",
                   .assistant = "<|assistant|>\n{content}{eos_token}\n",
                   .ask = "<|assistant|>\n"});
    all.push_back({.name = "Gemma 3",
                   .begin = "{bos_token}",
                   .system = "",
                   .user = "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                   .assistant = "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                   .ask = "<start_of_turn>model\n",
                   .with_system = "{system_message}\n\n{content|trim}",
                   .assistant_name = "model",
                   .alternates = true,
                   .written = {"{bos_token}", "{messages[0]['content']}\n\n", "{messages[0]['content'][0]['text']}\n\n",
                               "model", "<start_of_turn>{role}\n{first_user_prefixifloop.firstelse''}", "{content|trim}",
                               "<start_of_image>", "{item['text']|trim}", "<end_of_turn>\n", "<start_of_turn>model\n"}});
    for (const char* const begin : {"{bos_token}", ""}) {
      all.push_back({.name = "Phi-3",  // the first one, which asks in the user's message
                     .begin = begin,
                     .system = "",
                     .user = "<|user|>\n{content}<|end|>\n<|assistant|>\n",
                     .assistant = "{content}<|end|>\n",
                     .ask = ""});
      all.push_back({.name = "Gemma",
                     .begin = begin,
                     .system = "",
                     .user = "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                     .assistant = "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                     .ask = "<start_of_turn>model\n",
                     .assistant_name = "model",
                     .alternates = true});
      all.push_back({.name = "Phi-3",
                     .begin = begin,
                     .system = "<|system|>\n{content}<|end|>\n",
                     .user = "<|user|>\n{content}<|end|>\n",
                     .assistant = "<|assistant|>\n{content}<|end|>\n",
                     .ask = "<|assistant|>\n",
                     .last = "{eos_token}"});
      all.push_back({.name = "Phi-3",
                     .begin = begin,
                     .system = "<|{role}|>\n{content}<|end|>\n",
                     .user = "<|{role}|>\n{content}<|end|>\n",
                     .assistant = "<|{role}|>\n{content}<|end|>\n",
                     .ask = "<|assistant|>\n",
                     .last = "{eos_token}"});
    }
    return all;
  }();
  return rows;
}

bool is_space_in_python(char32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

/// As str.strip() of Python does, which Jinja's filter `trim` calls.
std::string trimmed(const std::string& text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t first = at;
    if (is_space_in_python(next_character(text, at))) continue;
    begin = std::min(begin, first);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

/// An expression of Jinja that puts texts together, as a format: 'a' + message['role'] + "b" is a{role}b. What else is in it
/// stands in braces as it is.
std::string format_of(std::string_view expression) {
  std::string format, other;
  const auto end_part = [&] {
    if (other.starts_with('(') && other.ends_with(')')) other = other.substr(1, other.size() - 2);
    replace_all(other, "message.content", "content");
    replace_all(other, "message['content']", "content");
    replace_all(other, "message.role", "role");
    replace_all(other, "message['role']", "role");
    replace_all(other, ".strip()", "|trim");
    if (!other.empty()) format += "{" + std::exchange(other, {}) + "}";
  };
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\'' || c == '"') {
      std::string literal;
      for (++i; i < expression.size() && expression[i] != c; ++i) {
        if (expression[i] != '\\' || i + 1 == expression.size())
          literal += expression[i];
        else if (++i; expression[i] == 'n')
          literal += '\n';
        else
          literal += expression[i];
      }
      if (other.empty())
        format += literal;
      else
        other += "'" + literal + "'";  // message['role']
    } else if (c == '+') {
      end_part();
    } else if (c != ' ' && c != '\n' && c != '\t') {
      other += c;
    }
  }
  end_part();
  return format;
}

/// The texts that a template puts together, as formats: what it writes, and what it keeps in variables, as far as that is more
/// than another name. Conditions are not looked at, nor what raises an exception. Line breaks and spaces around the program's
/// parts as transformers has them left out (trim_blocks, lstrip_blocks).
std::set<std::string> formats_of(std::string_view jinja) {
  std::set<std::string> formats;
  std::string written;  // the last output, to which what stands behind it belongs
  const auto end_output = [&] {
    if (!written.empty()) formats.insert(std::exchange(written, {}));
  };
  bool behind_block = false, strip = false;
  for (std::size_t at = 0; at < jinja.size();) {
    const std::size_t open = std::min({jinja.find("{{", at), jinja.find("{%", at), jinja.find("{#", at), jinja.size()});
    std::string_view text = jinja.substr(at, open - at);
    const bool is_block = open < jinja.size() && jinja[open + 1] != '{';
    if (strip) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (behind_block && text.starts_with('\n')) text.remove_prefix(1);
    if (open + 2 < jinja.size() && jinja[open + 2] == '-') {
      text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
    } else if (is_block) {
      const auto last = text.find_last_not_of(" \t");
      if (last == std::string_view::npos ? open == 0 || at == 0 || behind_block : text[last] == '\n')
        text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    }
    written += text;
    if (open >= jinja.size()) break;
    const std::string_view close = jinja[open + 1] == '{' ? "}}" : jinja[open + 1] == '%' ? "%}" : "#}";
    const std::size_t end = jinja.find(close, open + 2);
    if (end == std::string_view::npos) return {"{a part without an end}"};
    std::string_view inside = jinja.substr(open + 2, end - open - 2);
    if (inside.starts_with('-')) inside.remove_prefix(1);
    strip = inside.ends_with('-');
    if (strip) inside.remove_suffix(1);
    behind_block = is_block;
    at = end + 2;
    inside.remove_prefix(std::min(inside.find_first_not_of(" \t\r\n"), inside.size()));
    if (!is_block && !inside.starts_with("raise_exception")) {
      end_output();
      written = format_of(inside);
    } else if (is_block) {
      end_output();
      const std::size_t equals = inside.find('=');
      if (!inside.starts_with("set ") || equals == std::string_view::npos) continue;
      const std::string format = format_of(inside.substr(equals + 1));
      if (!format.starts_with('{') || format.find('}') + 1 != format.size()) formats.insert(format);
    }
  }
  end_output();
  formats.erase("");
  return formats;
}

/// What a template of this family puts together.
std::set<std::string> formats_of(const ChatFamily& family) {
  if (!family.written.empty()) return family.written;
  std::set<std::string> formats = {family.begin, family.system, family.user,       family.assistant,
                                   family.ask,   family.last,   family.with_system};
  if (family.assistant_name != "assistant") formats.insert(family.assistant_name);
  formats.erase("");
  return formats;
}

/// What a ChatML template says where no system message is given: the text between its marks, which stands there as it is, but
/// that a line break may be written as an escape.
std::string default_system_of(std::string_view jinja) {
  constexpr std::string_view begin = "<|im_start|>system", end = "<|im_end|>", escape = "\\n";
  for (auto at = jinja.find(begin); at != std::string_view::npos; at = jinja.find(begin, at + 1)) {
    std::string_view rest = jinja.substr(at + begin.size());
    if (rest.starts_with('\n'))
      rest.remove_prefix(1);
    else if (rest.starts_with(escape))
      rest.remove_prefix(escape.size());
    else
      continue;
    const auto length = rest.find(end);
    if (length == 0 || length == std::string_view::npos) continue;
    std::string text(rest.substr(0, length));
    if (text.find_first_of("'\"{}") != std::string::npos) continue;  // parts of the program
    replace_all(text, escape, "\n");
    return text;
  }
  return "";
}

std::string known_families() {
  std::set<std::string> names;
  for (const ChatFamily& family : families()) names.insert(family.name);
  return fmt::to_string(fmt::join(names, ", "));
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& jinja, Tokens tokens) : tokens_(std::move(tokens)) {
  const auto has = [&](const char* text) { return jinja.find(text) != std::string::npos; };
  const auto refuse = [](const std::string& what) {
    throw UserError(
        format("the model's chat template is not known ({}; known are ChatML, as of Qwen2 and SmolLM2, that of Llama 3, and "
               "{}); write "
               "conversations yourself, with their marks, as texts",
               what, known_families()));
  };
  if (has("<|im_start|>")) {
    if (has("<think>")) refuse("it is ChatML with thoughts, as of Qwen3");
    family_ = chatml;
    default_system_ = default_system_of(jinja);
    leaves_last_open_ = has("not loop.last");
  } else if (has("<|start_header_id|>")) {
    if (has("Cutting Knowledge Date")) refuse("it is that of Llama 3.1 or later, which tells the date");
    family_ = llama3;
    if (!has("bos_token") && !has("<|begin_of_text|>")) family_.begin.clear();
  } else {
    const std::set<std::string> formats = formats_of(std::string_view(jinja));
    const auto row = std::find_if(families().begin(), families().end(), [&](const ChatFamily& family) {
      std::set<std::string> own = formats_of(family);
      if (own == formats) return true;
      return own.erase(family.last) > 0 && own == formats;  // versions do without the end
    });
    if (row == families().end())
      refuse(has("[INST]") ? "it has [INST], as those of Llama 2 and Mistral, and other texts"
                           : format("it begins with '{}'", trimmed(jinja).substr(0, 60)));
    family_ = *row;
    if (!formats.contains(family_.last)) family_.last.clear();
  }
  for (std::string* text : {&family_.begin, &family_.system, &family_.user, &family_.assistant, &family_.last}) {
    if ((text->find("{bos_token}") != std::string::npos && tokens_.begin.empty()) ||
        (text->find("{eos_token}") != std::string::npos && tokens_.end.empty()))
      throw UserError(
          "the model's chat template needs tokens that are not known (\"bos_token\" and \"eos_token\" of a "
          "tokenizer_config.json beside it say which); put that file there");
    replace_all(*text, "{bos_token}", tokens_.begin);
    replace_all(*text, "{eos_token}", tokens_.end);
  }
  end_ = trimmed(family_.assistant.substr(family_.assistant.rfind('}') + 1));
}

std::string ChatTemplate::filled(const std::string& format, const ChatMessage& message, std::size_t* content_begin) const {
  std::string text;
  for (std::size_t at = 0; at < format.size();) {
    const std::string_view rest = std::string_view(format).substr(at);
    const auto is = [&](std::string_view name) { return rest.starts_with(name) && (at += name.size(), true); };
    if (is("{role}")) {
      text += message.role == "assistant" ? family_.assistant_name : message.role;
    } else if (const bool whole = is("{content}"); whole || is("{content|trim}")) {
      if (content_begin) *content_begin = text.size();
      text += whole ? message.content : trimmed(message.content);
    } else {
      text += format[at++];
    }
  }
  return text;
}

void ChatTemplate::add_messages(ChatText& to, const std::vector<ChatMessage>& given) const {
  std::vector<ChatMessage> messages = given;
  if (!default_system_.empty() && (messages.empty() || messages.front().role != "system"))
    messages.insert(messages.begin(), {"system", default_system_});
  to.text += family_.begin;
  std::optional<std::string> system;
  const bool takes_system_into_first = !family_.with_system.empty();
  if (takes_system_into_first && !messages.empty() && messages.front().role == "system") {
    system = messages.front().content;
    messages.erase(messages.begin());
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ChatMessage& message = messages[i];
    const bool of_assistant = message.role == "assistant", of_user = message.role == "user";
    if (!of_assistant && !of_user && (message.role != "system" || family_.system.empty()))
      throw UserError(format("a message is of the role '{}' (the chat template, that of {}, has no place for it); leave it out",
                             excerpt(message.role), name()));
    if (family_.alternates && of_user != (i % 2 == 0))
      throw UserError(
          format("message {} is of the role '{}' (the chat template, that of {}, wants user and assistant to take turns, and "
                 "the user to begin); correct the conversation",
                 i + (system ? 1 : 0), message.role, name()));
    std::string format = of_assistant ? family_.assistant : of_user ? family_.user : family_.system;
    if (i == 0 && system) {
      constexpr std::string_view place = "{system_message}";
      const std::size_t at = family_.with_system.find(place);
      const std::string behind = family_.with_system.substr(at + place.size());
      message.content = family_.with_system.substr(0, at) + *system + filled(behind, message);
      if (behind.find("{content|trim}") != std::string::npos) replace_all(format, "{content|trim}", "{content}");
    }
    const std::size_t begin = to.text.size();
    std::size_t content = 0;
    to.text += filled(format, message, &content);
    if (message.is_answer) {
      const std::size_t end = to.text.rfind(end_);
      to.answers.push_back({begin + content, end + end_.size()});
    }
  }
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  ChatText made;
  add_messages(made, messages);
  return made.text + family_.ask;
}

ChatText ChatTemplate::render_whole(const std::vector<ChatMessage>& messages) const {
  if (leaves_last_open_)
    throw UserError(
        format("the chat template does not end the last message of a conversation with {} (so a model would not learn to end "
               "its answers); leave the condition with \"loop.last\" out of the template",
               end_));
  ChatText made;
  add_messages(made, messages);
  made.text += family_.last;
  return made;
}

namespace {

/// tokenizer_config.json gives a token as text, or as an object with its content.
std::string token_of(const nlohmann::json& config, const char* name) {
  if (!config.is_object() || !config.contains(name)) return "";
  const nlohmann::json& token = config[name];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return "";
}

}  // namespace

ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  std::string jinja;
  const bool is_folder = kind_of(model) == PathKind::folder;
  nlohmann::json config;
  if (is_folder && kind_of(model / "tokenizer_config.json") == PathKind::file)
    config = read_json_object(model / "tokenizer_config.json");
  if (is_folder && kind_of(model / "chat_template.jinja") == PathKind::file) {
    jinja = read_text_file(model / "chat_template.jinja", longest_template);
  } else if (config.is_object() && config.contains("chat_template")) {
    const nlohmann::json& found = config["chat_template"];
    if (found.is_string()) jinja = found.get<std::string>();
    if (found.is_array())
      for (const nlohmann::json& one : found)
        if (one.is_object() && one.value("name", "") == "default") jinja = one.value("template", "");
  }
  if (jinja.empty())
    throw UserError(format(
        "{} has no chat template (no chat_template.jinja, and no \"chat_template\" in tokenizer_config.json: it was not "
        "trained on conversations, or its folder does not say how they are written); write conversations yourself, as texts",
        model.string()));
  ChatTemplate chat(jinja, {token_of(config, "bos_token"), token_of(config, "eos_token")});
  if (!tokenizer.find(chat.end()))
    throw UserError(
        format("the tokenizer has no token '{}' (the model's chat template ends messages with it); give the "
               "model's own tokenizer",
               chat.end()));
  return chat;
}

ChatText read_conversation(std::string_view line, const std::function<const ChatTemplate&()>& chat, std::string& problem) {
  std::vector<ChatMessage> messages;
  problem.clear();
  const nlohmann::json object = parse_json(line);
  const auto add = [&](const char* name, bool has_answers) {
    const nlohmann::json& list = object[name];
    if (!list.is_array()) return void(problem = format("its \"{}\" is no list of messages", name));
    for (const nlohmann::json& one : list) {
      const bool is_message = one.is_object() && one.contains("role") && one["role"].is_string() && one.contains("content") &&
                              one["content"].is_string() && !one.contains("tool_calls");
      if (!is_message)
        return void(problem =
                        format("its \"{}\" has something that is no message with a \"role\" and a \"content\" of text", name));
      ChatMessage message{one["role"].get<std::string>(), one["content"].get<std::string>()};
      message.is_answer = has_answers && message.role == "assistant";
      messages.push_back(std::move(message));
    }
  };
  if (!object.is_object()) {
    problem = object.is_discarded() ? "it is not JSON" : "it is no object";
  } else if (object.contains("messages")) {
    add("messages", true);
  } else if (!object.contains("prompt") || !object.contains("completion")) {
    problem = "it has neither \"messages\" nor \"prompt\" and \"completion\"";
  } else if (object["prompt"].is_string() && object["completion"].is_string()) {
    const std::string prompt = object["prompt"].get<std::string>(), text = prompt + object["completion"].get<std::string>();
    return {text, {{prompt.size(), text.size()}}, /*ends_open=*/true};
  } else {
    add("prompt", false);
    if (problem.empty()) add("completion", true);
  }
  if (problem.empty() && messages.empty()) problem = "it has no messages";
  if (!problem.empty()) return {};
  const ChatTemplate& written_by = chat();
  try {
    return written_by.render_whole(messages);
  } catch (const UserError& error) {
    problem = error.what();
    return {};
  }
}

}  // namespace fsdp
