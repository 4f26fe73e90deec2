// Writes conversations as text, in the format with which a model was trained.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/tokenizer.hpp"

namespace fsdp {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  bool is_answer = false;  // training computes the loss of this message's tokens
};

/// A conversation as text, with the byte ranges of its answers. A range begins with the answer's content, after the text that
/// names the role, and ends after the token that ends the turn.
struct ChatText {
  struct Span {
    std::size_t begin, end;
  };
  std::string text;
  std::vector<Span> answers;
  bool ends_open = false;  // the text ends with an answer, without a token that ends the turn
};

/// One way to write conversations: a row of the table in chat_template.cpp. A format is text in which {role}, {content},
/// {content|trim}, {bos_token} and {eos_token} are replaced.
struct ChatFamily {
  std::string name;       // "Llama 2"
  std::string begin;      // text before all messages
  std::string system;     // a format; if empty, system messages are written by with_system, or refused
  std::string user;       // a format
  std::string assistant;  // a format; its last token ends the turn
  std::string ask;        // text after a conversation that the assistant is to continue
  std::string last = {};  // text after a conversation that is complete
  /// The format of the first user message's content if the conversation has a system message, which replaces {system_message}.
  /// If this format has {content|trim}, its result is not trimmed again.
  std::string with_system = {};
  std::string assistant_name = "assistant";  // the value of {role} for the assistant
  bool alternates = false;                   // user and assistant must alternate, and the user must begin
  bool leaves_last_open = false;             // the last message of a complete conversation has no end token
  /// The known Jinja templates that write these formats, as program_of() in chat_template.cpp rewrites them. {default} stands
  /// for the default system message.
  std::vector<std::string> programs = {};
};

/// Writes the conversations of one model. transformers runs the model's chat_template for this, a program in Jinja. Here the
/// program is not run, but compared with the programs of known models. Spaces, quotes and other details without effect may
/// differ, and so may the default system message. A program with any other difference is refused.
class ChatTemplate {
 public:
  /// The texts that replace {bos_token} (`begin`) and {eos_token} (`end`).
  struct Tokens {
    std::string begin, end;
  };
  /// Reads the text of a chat_template. Throws UserError if the template is not known or needs a token that `tokens` does not
  /// have.
  explicit ChatTemplate(const std::string& jinja, Tokens tokens = {});

  /// Writes a conversation, followed by the beginning of the assistant's next message, like transformers' apply_chat_template()
  /// with add_generation_prompt. Throws UserError for messages that the template does not accept.
  std::string render(const std::vector<ChatMessage>& messages) const;
  /// Writes a complete conversation, like apply_chat_template() without add_generation_prompt.
  ChatText render_whole(const std::vector<ChatMessage>& messages) const;
  /// The token that ends each of the assistant's messages: "<|im_end|>".
  const std::string& end() const { return end_; }
  const std::string& name() const { return family_.name; }

 private:
  std::string filled(const std::string& format, const ChatMessage& message, std::size_t* content_begin = nullptr) const;
  void add_messages(ChatText& to, const std::vector<ChatMessage>& messages) const;

  ChatFamily family_;
  Tokens tokens_;
  std::optional<std::string> default_system_;  // the system message if a conversation has none
  std::string end_;
};

/// Reads the conversation of a JSON record, in the forms of Hugging Face's TRL. In {"messages": [{"role": .., "content": ..},
/// ..]} the assistant's messages are answers. In {"prompt": .., "completion": ..} the two values may be lists of messages; the
/// assistant's messages in the completion are then answers. If the two are texts, they are joined without a template, and the
/// completion is an answer. An answer with "weight" 0 or "train" false does not count as an answer. `chat` is
/// called only if the template is needed; it returns the template, or throws. If the record has no conversation, or has a key
/// that would change the text, `problem` is set to the reason. Unknown keys are added to `unused`.
ChatText read_conversation(const nlohmann::json& object, const std::function<const ChatTemplate&()>& chat, std::string& problem,
                           std::set<std::string>& unused);

/// Reads the template of a model's folder: chat_template.jinja, or "chat_template" of tokenizer_config.json. Throws UserError
/// if there is no known template, or if the tokenizer does not have the token that ends the template's messages.
ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer);

}  // namespace fsdp
