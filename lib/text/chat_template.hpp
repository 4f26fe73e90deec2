// Conversations, written down as the models expect them that were trained on some.
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
  bool is_answer = false;  // one that a model is to learn
};

/// A conversation as text, and where in it the answers stand: each from the first byte of its content, behind what says
/// whose it is, to the end of the token that ends the turn.
struct ChatText {
  struct Span {
    std::size_t begin, end;
  };
  std::string text;
  std::vector<Span> answers;
  bool ends_open = false;  // its end is that of an answer, and no token says so
};

/// A way to write conversations: one row. A format is text in which {role}, {content}, {content|trim}, {bos_token} and
/// {eos_token} are replaced.
struct ChatFamily {
  std::string name;       // "Llama 2"
  std::string begin;      // stands before all messages
  std::string system;     // a format; empty: such messages are refused, or see with_system
  std::string user;       // a format
  std::string assistant;  // a format, whose last token ends the turn
  std::string ask;        // follows a conversation that the assistant is to go on with
  std::string last = {};  // follows one that is over
  /// What becomes of the first user's content where there is a system message: a format with {system_message}. If it says
  /// {content|trim}, the whole is not trimmed again.
  std::string with_system = {};
  std::string assistant_name = "assistant";  // what {role} is for the assistant
  bool alternates = false;                   // the user begins, then they take turns; all else is refused
  bool leaves_last_open = false;             // a conversation that is over lacks the end of its last message
  /// The programs that are known to write so, as program_of() in chat_template.cpp has them. Where one says {default}, there
  /// stands what is said if there is no system message.
  std::vector<std::string> programs = {};
};

/// How a model's conversations are written. transformers runs a program for that, the model's chat_template in Jinja; here it
/// is recognised, whole, as one of the programs that the known models have, but for spaces, quotes and other things that make
/// no difference, and for what it says where no system message is given. One that differs in anything else is refused, since it
/// could write anything.
class ChatTemplate {
 public:
  /// The texts that "bos_token" and "eos_token" of a template stand for.
  struct Tokens {
    std::string begin, end;
  };
  /// From the text of a chat_template. Throws UserError for one that is not known, or that needs a token that is not given.
  explicit ChatTemplate(const std::string& jinja, Tokens tokens = {});

  /// The conversation up to where the assistant's next message begins, as transformers' apply_chat_template() with
  /// add_generation_prompt. Throws UserError for messages that the template does not take.
  std::string render(const std::vector<ChatMessage>& messages) const;
  /// A conversation that is over, as apply_chat_template() without it.
  ChatText render_whole(const std::vector<ChatMessage>& messages) const;
  /// The token that ends each of the assistant's messages: "<|im_end|>".
  const std::string& end() const { return end_; }
  const std::string& name() const { return family_.name; }

 private:
  std::string filled(const std::string& format, const ChatMessage& message, std::size_t* content_begin = nullptr) const;
  void add_messages(ChatText& to, const std::vector<ChatMessage>& messages) const;

  ChatFamily family_;
  Tokens tokens_;
  std::optional<std::string> default_system_;  // said where there is no system message
  std::string end_;
};

/// Reads the conversation in a record of JSON, in the forms of Hugging Face's TRL. {"messages": [{"role": .., "content": ..},
/// ..]}: the assistant's messages are answers. {"prompt": .., "completion": ..}, both lists of messages: the assistant's in the
/// completion are answers. Both texts: they are joined without a template, and the completion is an answer. An answer with
/// "weight" 0 or "train" false does not count as one. `chat` returns the template if it is needed, or throws. If there is no
/// conversation, or a key would change the text, `problem` says why. Unknown keys are added to
/// `unused`.
ChatText read_conversation(const nlohmann::json& object, const std::function<const ChatTemplate&()>& chat, std::string& problem,
                           std::set<std::string>& unused);

/// That of the model's folder: chat_template.jinja, or "chat_template" of tokenizer_config.json. Throws UserError, also where
/// the tokenizer does not have the template's tokens.
ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer);

}  // namespace fsdp
