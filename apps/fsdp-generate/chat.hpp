// Conversations, written down as the models expect them that were trained on some.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

/// How a model's conversations are written. transformers runs a program for that, the model's chat_template in Jinja; here it
/// is recognised which of the known ways it writes, and what it says where no system message is given.
class ChatTemplate {
 public:
  /// From the text of a chat_template. Throws UserError for one that is not known.
  explicit ChatTemplate(const std::string& jinja);

  /// The conversation up to where the assistant's next message begins, as transformers' apply_chat_template() with
  /// add_generation_prompt.
  std::string render(const std::vector<ChatMessage>& messages) const;
  /// The token that ends each message: "<|im_end|>".
  const std::string& end() const { return end_; }

 private:
  bool is_llama3_ = false, has_begin_ = false;  // else ChatML
  std::string default_system_;                  // said where there is no system message; empty: nothing
  std::string end_;
};

/// That of the model's folder: chat_template.jinja, or "chat_template" of tokenizer_config.json. Throws UserError, also where
/// the tokenizer does not have the template's tokens.
ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer);

}  // namespace fsdp
