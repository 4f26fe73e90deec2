// Writes conversations as text, in the format with which a model was trained. The model's chat template defines the format, a
// program in Jinja, which is run (jinja.hpp) as by transformers' apply_chat_template().
//   Conversation        what the template gets
//   ChatTemplate        the template, or two: models may have another one for conversations with tools
//   ChatText            the text, and where its answers are
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/data_counts.hpp"
#include "text/jinja.hpp"
#include "text/record_form.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// The values that a template gets, as JSON in its order.
struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // each has "role", and mostly "content"
  std::vector<bool> is_answer = {};                                // for each message: training computes the loss of its tokens
  DataCounts counts = {};                                          // of its messages
  nlohmann::ordered_json tools = {};                               // a list, or null
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // further variables, "chat_template_kwargs"

  void add(const std::string& role, const std::string& content, bool answer = false);
};

/// A conversation as text, with the byte ranges of its answers. A range begins after the text that asks for the answer
/// (add_generation_prompt), and ends after the text that ends the turn.
struct ChatText {
  std::string text;
  std::vector<TextSpan> answers;
  bool ends_open = false;  // the text ends with an answer, without a token that ends the turn
  /// For each message or completion that is an answer, the end of its last range.
  std::vector<std::size_t> answer_ends = {};
  DataCounts counts = {};  // of the messages
};

class ChatTemplate {
 public:
  /// `name` is the template's name in messages. `variables` are the special tokens by name, such as "eos_token". Throws
  /// UserError for what is not Jinja, with line and column.
  ChatTemplate(const std::string& name, const std::string& jinja, std::map<std::string, std::string> variables = {});
  /// Sets another template for conversations with tools.
  void set_for_tools(const std::string& name, const std::string& jinja) { for_tools_.emplace(name, jinja); }

  /// Writes a conversation, followed by the beginning of the assistant's next message, like transformers' apply_chat_template()
  /// with add_generation_prompt. Throws UserError if the template cannot be run, or refuses the conversation.
  std::string render(const Conversation& conversation) const;
  /// Writes a complete conversation, like apply_chat_template() without add_generation_prompt. The answers are what
  /// `generation` blocks write. Without such blocks, an answer begins after the text of the messages before it with
  /// add_generation_prompt, and ends with the output of its pass of the loop over the messages. If the whole text does not
  /// begin with the former, or the template has no such loop, throws UserError.
  ChatText render_whole(const Conversation& conversation) const;
  /// The text that ends each of the assistant's messages: "<|im_end|>". Empty if it was not found.
  const std::string& end() const { return end_; }
  const std::string& name() const { return whole_.name(); }
  /// Returns true if the template for this conversation has this word as a variable, an attribute or a text.
  bool mentions(const Conversation& conversation, const std::string& word) const;

 private:
  const JinjaTemplate& template_for(const Conversation& conversation) const;
  std::string find_end() const;

  JinjaTemplate whole_;
  std::optional<JinjaTemplate> for_tools_;
  std::map<std::string, std::string> variables_;
  std::string end_;
};

/// Reads the conversation of a JSON record, in the forms of Hugging Face's TRL. In {"messages": [{"role": .., "content": ..},
/// ..]} the assistant's messages are answers. In {"prompt": .., "completion": ..} the two values may be lists of messages; the
/// assistant's messages in the completion are then answers. If the two are texts, they are joined without a template, and the
/// completion is an answer. An answer with "weight" 0 or "train" false does not count as an answer. "tools" and
/// "chat_template_kwargs" go to the template. `chat` is called only if the template is needed; it returns the template, or
/// throws. If the record has no conversation, has a key that would change the text, or is refused by the template, `problem` is
/// set to the reason. Keys that are not used are added to `unused`, also those that the template does not read.
ChatText read_conversation(const nlohmann::ordered_json& object, const std::function<const ChatTemplate&()>& chat,
                           std::string& problem, std::set<std::string>& unused);

/// A conversation that is to be continued by an answer.
struct ChatPrompt {
  std::string text;
  bool is_templated = true;                    // a template has written `text`, with all special tokens before it
  nlohmann::ordered_json reference = nullptr;  // the answer that the record has; null if it has none
};
/// Reads the conversation of a JSON record that is to be answered. The forms are those of read_conversation(), without which
/// answers count; the completion may be missing, and a prompt that is a text is then the user's message. If the last message is
/// the assistant's, it becomes the reference: its text, or the whole message if it has more than a text. `system`, if not
/// empty, is the system message of conversations that have none. `problem` and `unused` are set as by read_conversation(), also
/// if nothing is left to answer.
ChatPrompt read_chat_prompt(const nlohmann::ordered_json& object, const std::string& system,
                            const std::function<const ChatTemplate&()>& chat, std::string& problem,
                            std::set<std::string>& unused);

/// If a JSON record has a common form that is not read, returns its name and how to write it: "in Alpaca's form (..); write
/// ..". Otherwise returns an empty text.
std::string known_form(const nlohmann::ordered_json& record);

/// Reads the template of a model's folder: chat_template.jinja, or "chat_template" of tokenizer_config.json, and the one named
/// "tool_use" if there is one. If `model` is a file, it is the template, or a JSON file with "chat_template". Throws UserError
/// if there is no template, if it is no Jinja, or if it needs a special token that no file names.
ChatTemplate read_chat_template(const std::filesystem::path& model, const Tokenizer& tokenizer);
/// The template of a file: the file itself, or "chat_template" of a file in JSON. Throws UserError if it is not one text.
std::string text_of_chat_template(const std::filesystem::path& file);
/// A checksum of the texts of these templates; empty if there are none.
std::string sum_of_chat_templates(const std::filesystem::path& model);

/// Reads conversations with the chat template of a model's folder, or of a file. The template is read when it is first needed.
class ChatReader {
 public:
  /// `tokenizer` must outlive this object.
  ChatReader(std::filesystem::path model, const Tokenizer& tokenizer, const RecordForm& form = {})
      : model_(std::move(model)), tokenizer_(tokenizer), records_(form) {}
  /// Calls read_conversation() with the model's template.
  ChatText read(const nlohmann::ordered_json& record, std::string& problem);
  /// Calls read_chat_prompt() with the model's template.
  ChatPrompt read_prompt(const nlohmann::ordered_json& record, const std::string& system, std::string& problem);
  const ChatTemplate& chat();
  /// Warnings about keys of records that were not used, and about a tokenizer without the token that ends answers.
  std::vector<std::string> warnings() const;

 private:
  std::filesystem::path model_;
  const Tokenizer& tokenizer_;
  RecordReader records_;
  std::optional<ChatTemplate> template_;
  std::set<std::string> unused_;
};

}  // namespace fsdp
