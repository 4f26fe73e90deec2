#include "fsdp-generate/chat.hpp"

#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr std::size_t longest_template = std::size_t{1} << 20;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
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
    for (auto n = text.find(escape); n != std::string::npos; n = text.find(escape)) text.replace(n, escape.size(), "\n");
    return text;
  }
  return "";
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& jinja) {
  const auto has = [&](const char* text) { return jinja.find(text) != std::string::npos; };
  const auto refuse = [](const std::string& what) {
    throw UserError(
        format("the model's chat template is not known ({}; known are ChatML, as of Qwen2 and SmolLM2, and that of Llama 3); "
               "write the conversation yourself, with its marks, and give it as --prompt",
               what));
  };
  if (has("<|im_start|>")) {
    if (has("<think>")) refuse("it is ChatML with thoughts, as of Qwen3");
    default_system_ = default_system_of(jinja);
    end_ = "<|im_end|>";
  } else if (has("<|start_header_id|>")) {
    if (has("Cutting Knowledge Date")) refuse("it is that of Llama 3.1 or later, which tells the date");
    is_llama3_ = true;
    has_begin_ = has("bos_token") || has("<|begin_of_text|>");
    end_ = "<|eot_id|>";
  } else {
    refuse(has("[INST]") ? "it has [INST], as those of Llama 2 and Mistral"
                         : format("it begins with '{}'", trimmed(jinja).substr(0, 60)));
  }
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  std::string text = has_begin_ ? "<|begin_of_text|>" : "";
  const auto begin = [&](const std::string& role) {
    text += is_llama3_ ? "<|start_header_id|>" + role + "<|end_header_id|>\n\n" : "<|im_start|>" + role + "\n";
  };
  const auto add = [&](const std::string& role, const std::string& content) {
    begin(role);
    text += (is_llama3_ ? trimmed(content) : content) + end_ + (is_llama3_ ? "" : "\n");
  };
  if (!default_system_.empty() && (messages.empty() || messages.front().role != "system")) add("system", default_system_);
  for (const ChatMessage& message : messages) add(message.role, message.content);
  begin("assistant");
  return text;
}

ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  std::string jinja;
  const bool is_folder = kind_of(model) == PathKind::folder;
  if (is_folder && kind_of(model / "chat_template.jinja") == PathKind::file) {
    jinja = read_text_file(model / "chat_template.jinja", longest_template);
  } else if (is_folder && kind_of(model / "tokenizer_config.json") == PathKind::file) {
    const nlohmann::json object = read_json_file(model / "tokenizer_config.json");
    if (object.is_object() && object.contains("chat_template")) {
      const nlohmann::json& found = object["chat_template"];
      if (found.is_string()) jinja = found.get<std::string>();
      if (found.is_array())
        for (const nlohmann::json& one : found)
          if (one.is_object() && one.value("name", "") == "default") jinja = one.value("template", "");
    }
  }
  if (jinja.empty())
    throw UserError(
        format("{} has no chat template (no chat_template.jinja, and no \"chat_template\" in tokenizer_config.json: it was not "
               "trained on conversations, or its folder does not say how they are written); use --prompt",
               model.string()));
  ChatTemplate chat(jinja);
  if (!tokenizer.find(chat.end()))
    throw UserError(
        format("the tokenizer has no token '{}' (the model's chat template ends messages with it); give the "
               "model's own --tokenizer",
               chat.end()));
  return chat;
}

}  // namespace fsdp
