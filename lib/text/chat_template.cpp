#include "text/chat_template.hpp"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/json_reader.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

constexpr std::size_t longest_template = std::size_t{1} << 20;

bool is_space_in_python(char32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

/// The same as Python's str.strip(), which Jinja's filter `trim` calls.
std::string trimmed(const std::string& text) { return strip(text, true, true, is_space_in_python); }

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

std::string as_in_program(std::string format) {
  for (const char* const name : {"role", "content"}) {
    for (const char* const filter : {"", "|trim"})
      replace_all(format, fmt::format("{{{}{}}}", name, filter), fmt::format("{{message['{}']{}}}", name, filter));
  }
  return format;
}

/// The Jinja programs that write each message in the format of its role. They write `ask` after the loop over the messages, or
/// in the last iteration.
std::vector<std::string> programs_by_role(const ChatFamily& family) {
  std::vector<std::string> programs;
  const std::string user = "message['role']=='user'%}" + as_in_program(family.user),
                    system = "message['role']=='system'%}" + as_in_program(family.system),
                    assistant = "{%elif message['role']=='assistant'%}" + as_in_program(family.assistant) + "{%endif%}",
                    ask = "add_generation_prompt%}" + family.ask, last = "{%else%}" + family.last + "{%endif%}";
  const std::string roles = "{%for message in messages%}{%if ";
  if (family.system.empty()) return {family.begin + roles + user + assistant + "{%endfor%}"};
  for (const std::string& all :
       {roles + user + "{%elif " + system + assistant, roles + system + "{%elif " + user + assistant}) {
    if (!family.last.empty()) {
      programs.push_back(family.begin + all + "{%endfor%}{%if " + ask + last);
    } else {
      programs.push_back(family.begin + all + "{%endfor%}{%if " + ask + "{%endif%}");
      programs.push_back(family.begin + all + "{%if loop.last and " + ask + "{%endif%}{%endfor%}");
    }
  }
  return programs;
}

/// A family that writes all messages in the same format.
ChatFamily of_one_format(const char* name, const std::string& begin, const std::string& message, const std::string& ask) {
  return {.name = name, .begin = begin, .system = message, .user = message, .assistant = message, .ask = ask};
}

std::vector<ChatFamily> chatml_families() {
  const std::string message = "<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n";
  const std::string begin = "{%for message in messages%}", end = "{%endfor%}",
                    ask = "{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}";
  const std::string system = "<|im_start|>system\n{default}<|im_end|>\n{%endif%}";
  const std::string first = "{%if loop.first and messages[0]['role']!='system'%}" + system;
  // Qwen2.5's template also handles tool calls. Without tools only this part of the template has an effect.
  const std::string qwen =
      "{%if messages[0]['role']=='system'%}<|im_start|>system\n{messages[0]['content']}<|im_end|>\n{%else%}" + system + begin +
      "{%if (message['role']=='user')or(message['role']=='system'and not loop.first)or"
      "(message['role']=='assistant'and not message.tool_calls)%}" +
      message;
  const std::string calls =
      "{%elif message['role']=='assistant'%}<|im_start|>{message['role']}{%if message['content']%}\n{message['content']}"
      "{%endif%}<|im_end|>\n";
  ChatFamily family = of_one_format("ChatML", "", "<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n");
  family.programs = {begin + message + end + ask, begin + first + message + end + ask,  // SmolLM2, Qwen2
                     "{%if messages[0]['role']!='system'%}" + system + begin + message + end + ask,
                     qwen + calls + "{%endif%}" + end + ask, qwen + "{%endif%}" + end + ask};
  ChatFamily open = family;  // the first template of Qwen1.5
  open.leaves_last_open = true;
  const std::string open_message =
      "<|im_start|>{message['role']}\n{message['content']}{%if (loop.last and add_generation_prompt)or not loop.last%}"
      "<|im_end|>\n{%endif%}{%endfor%}{%if add_generation_prompt and messages[-1]['role']!='assistant'%}"
      "<|im_start|>assistant\n{%endif%}";
  open.programs = {begin + open_message, begin + first + open_message};
  return {family, open};
}

std::vector<ChatFamily> llama3_families() {
  const std::string ask = "<|start_header_id|>assistant<|end_header_id|>\n\n",
                    asks = "{%if add_generation_prompt%}" + ask + "{%endif%}";
  std::vector<ChatFamily> all;
  for (const char* const content : {"{content|trim}", "{content}"}) {
    for (const std::string begin : {"{bos_token}", "<|begin_of_text|>", ""}) {
      ChatFamily family = of_one_format(
          "Llama 3", begin, fmt::format("<|start_header_id|>{{role}}<|end_header_id|>\n\n{}<|eot_id|>", content), ask);
      const std::string message = as_in_program(family.user);
      const std::string kept = "{%set loop_messages={messages}%}{%for message in loop_messages%}{%set content=" + message +
                               "%}{%if loop.index0==0%}{%set content=" + begin + "{content}%}{%endif%}{content}{%endfor%}";
      family.programs = {kept + asks, begin + "{%for message in messages%}" + message + "{%endfor%}" + asks};
      if (!begin.empty())
        family.programs.push_back("{%for message in messages%}{%if loop.first%}" + begin + "{%endif%}" + message +
                                  "{%endfor%}" + asks);
      all.push_back(family);
      family.last = ask;  // Llama 3's first template writes `ask` in any case
      family.programs = {kept + ask};
      all.push_back(family);
    }
  }
  return all;
}

const std::vector<ChatFamily>& families() {
  static const std::vector<ChatFamily> rows = [] {
    std::vector<ChatFamily> all = chatml_families();
    for (ChatFamily& family : llama3_families()) all.push_back(std::move(family));
    const auto add_by_role = [&](ChatFamily family) {
      family.programs = programs_by_role(family);
      all.push_back(std::move(family));
    };
    for (const char* const assistant : {"{content}{eos_token}", "{content}{eos_token} ", " {content}{eos_token}",
                                        " {content|trim}{eos_token}"})  // in versions of one template
      add_by_role({.name = "Mistral",
                   .begin = "{bos_token}",
                   .system = "",
                   .user = "[INST] {content} [/INST]",
                   .assistant = assistant,
                   .ask = "",
                   .alternates = true});
    all.push_back(
        {.name = "Llama 2",
         .begin = "",
         .system = "",
         .user = "{bos_token}[INST] {content|trim} [/INST]",
         .assistant = " {content|trim} {eos_token}",
         .ask = "",
         .with_system = "<<SYS>>\n{system_message}\n<</SYS>>\n\n{content}",
         .alternates = true,
         .programs = {
             "{%if messages[0]['role']=='system'%}{%set loop_messages={messages[1:]}%}{%set "
             "system_message={messages[0]['content']}%}"
             "{%else%}{%set loop_messages={messages}%}{%set system_message={false}%}{%endif%}{%for message in loop_messages%}"
             "{%if loop.index0==0 and system_message!=false%}"
             "{%set content=<<SYS>>\n{system_message}\n<</SYS>>\n\n{message['content']}%}"
             "{%else%}{%set content={message['content']}%}{%endif%}"
             "{%if message['role']=='user'%}{bos_token}[INST] {content|trim} [/INST]"
             "{%elif message['role']=='assistant'%} {content|trim} {eos_token}{%endif%}{%endfor%}"}});
    add_by_role({.name = "Zephyr and TinyLlama",
                 .begin = "",
                 .system = "<|system|>\n{content}{eos_token}\n",
                 .user = "<|user|>\n{content}{eos_token}\n",
                 .assistant = "<|assistant|>\n{content}{eos_token}\n",
                 .ask = "<|assistant|>\n"});
    ChatFamily gemma = of_one_format("Gemma 3", "{bos_token}", "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                                     "<start_of_turn>model\n");
    gemma.system.clear();
    gemma.with_system = "{system_message}\n\n{content|trim}";
    gemma.assistant_name = "model";
    gemma.alternates = true;
    const std::string role =
        "{%if message['role']=='assistant'%}{%set role=model%}{%else%}{%set role={message['role']}%}{%endif%}"
        "<start_of_turn>{role}\n";
    const std::string gemma_end = "<end_of_turn>\n{%endfor%}{%if add_generation_prompt%}<start_of_turn>model\n{%endif%}";
    gemma.programs = {
        "{bos_token}{%if messages[0]['role']=='system'%}"
        "{%if messages[0]['content']is string%}{%set first_user_prefix={messages[0]['content']}\n\n%}"
        "{%else%}{%set first_user_prefix={messages[0]['content'][0]['text']}\n\n%}{%endif%}"
        "{%set loop_messages={messages[1:]}%}{%else%}{%set first_user_prefix=%}{%set loop_messages={messages}%}{%endif%}"
        "{%for message in loop_messages%}" +
        role +
        "{(first_user_prefix if loop.first else'')}"
        "{%if message['content']is string%}{message['content']|trim}{%elif message['content']is iterable%}"
        "{%for item in message['content']%}{%if item['type']=='image'%}<start_of_image>"
        "{%elif item['type']=='text'%}{item['text']|trim}{%endif%}{%endfor%}{%endif%}" +
        gemma_end};
    all.push_back(gemma);
    gemma.name = "Gemma";
    gemma.with_system.clear();
    for (const char* const begin : {"{bos_token}", ""}) {
      gemma.begin = begin;
      gemma.programs = {begin + ("{%for message in messages%}" + role) + "{message['content']|trim}" + gemma_end};
      all.push_back(gemma);
      add_by_role({.name = "Phi-3",  // the first template, in which `ask` is part of the user's message
                   .begin = begin,
                   .system = "",
                   .user = "<|user|>\n{content}<|end|>\n<|assistant|>\n",
                   .assistant = "{content}<|end|>\n",
                   .ask = ""});
      for (const char* const last : {"{eos_token}", ""}) {
        add_by_role({.name = "Phi-3",
                     .begin = begin,
                     .system = "<|system|>\n{content}<|end|>\n",
                     .user = "<|user|>\n{content}<|end|>\n",
                     .assistant = "<|assistant|>\n{content}<|end|>\n",
                     .ask = "<|assistant|>\n",
                     .last = last});
        ChatFamily phi = of_one_format("Phi-3", begin, "<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n");
        phi.last = last;
        const std::string messages = begin + ("{%for message in messages%}" + as_in_program(phi.user)) + "{%endfor%}";
        const std::string ask = "<|assistant|>\n" + (phi.last.empty() ? "" : "{%else%}" + phi.last) + "{%endif%}";
        phi.programs = {messages + "{%if add_generation_prompt%}" + ask};
        if (phi.last.empty())
          phi.programs.push_back(messages + "{%if add_generation_prompt and messages[-1]['role']!='assistant'%}" + ask);
        all.push_back(phi);
      }
    }
    return all;
  }();
  return rows;
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Writes a backslash before each brace and backslash of a template's text, so that an unescaped brace in the result of
/// program_of() always belongs to the program.
std::string escaped(std::string_view text) {
  std::string all;
  for (const char c : text) {
    if (c == '{' || c == '}' || c == '\\') all += '\\';
    all += c;
  }
  return all;
}

/// Reads the quoted text that begins at `at`, moves `at` behind the quote, and returns the text as escaped() does. The escape
/// sequences of line feeds, quotes and backslashes are known. Any other one keeps its single backslash, so that the program
/// equals no known program.
std::string quoted(std::string_view expression, std::size_t& at) {
  const char quote = expression[at++];
  std::string text;
  for (; at < expression.size() && expression[at] != quote; ++at) {
    if (expression[at] != '\\' || at + 1 == expression.size())
      text += escaped(expression.substr(at, 1));
    else if (const char c = expression[++at]; c == 'n')
      text += '\n';
    else
      text += c == '\\' || c == '\'' || c == '"' ? escaped(expression.substr(at, 1)) : fmt::format("\\{}", c);
  }
  ++at;
  return text;
}

/// Rewrites a Jinja expression in a single spelling: without unnecessary spaces, with 'single quotes', message['role'] for
/// message.role and |trim for .strip().
std::string plain(std::string_view expression) {
  std::string all;
  bool spaced = false;
  for (std::size_t at = 0; at < expression.size();) {
    const char c = expression[at];
    const std::string_view rest = expression.substr(at);
    const auto is = [&](std::string_view name) {
      return rest.starts_with(name) && (rest.size() == name.size() || !is_name(rest[name.size()]));
    };
    if (c == ' ' || c == '\n' || c == '\t') {
      spaced = true;
      ++at;
      continue;
    }
    if (std::exchange(spaced, false) && !all.empty() && is_name(all.back()) && is_name(c)) all += ' ';
    if (c == '\'' || c == '"') {
      std::string text = quoted(expression, at);
      replace_all(text, "'", "\\'");
      all += "'" + text + "'";
    } else if (is(".role") || is(".content")) {
      const std::size_t size = is(".role") ? 5 : 8;
      all += fmt::format("['{}']", rest.substr(1, size - 1));
      at += size;
    } else if (rest.starts_with(".strip()")) {
      all += "|trim";
      at += 8;
    } else {
      all += c;
      ++at;
    }
  }
  return all;
}

/// Removes parentheses around the whole expression.
std::string_view bare(std::string_view expression) {
  if (!expression.starts_with('(') || !expression.ends_with(')')) return expression;
  const std::string_view inside = expression.substr(1, expression.size() - 2);
  return inside.find_first_of("()") == std::string_view::npos ? inside : expression;
}

/// Converts a Jinja expression that concatenates texts to a format: 'a' + message['role'] + "b" is a{message['role']}b.
std::string format_of(std::string_view expression) {
  std::string format;
  std::size_t begin = 0, depth = 0;
  const auto end_part = [&](std::size_t end) {
    std::string_view part = expression.substr(begin, end - begin);
    part = part.substr(0, part.find_last_not_of(" \t\n") + 1);
    part.remove_prefix(std::min(part.find_first_not_of(" \t\n"), part.size()));
    begin = end + 1;
    if (part.starts_with('\'') || part.starts_with('"')) {
      std::size_t at = 0;
      const std::string text = quoted(part, at);
      if (at == part.size()) return void(format += text);
    }
    const std::string other = plain(part);
    // Parentheses around one value, as in (message['content']|trim), have no effect; around a condition they do.
    const bool is_one_value = other.find_first_of(" +-*/%~<>=!,") == std::string::npos;
    format += fmt::format("{{{}}}", is_one_value ? bare(other) : other);
  };
  for (std::size_t at = 0; at < expression.size();) {
    const char c = expression[at];
    if (c == '\'' || c == '"') {
      quoted(expression, at);
      continue;
    }
    depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
    if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
    if (c == '+' && depth == 0) end_part(at);
    ++at;
  }
  end_part(expression.size());
  return format;
}

/// Returns the position of `close`, which ends a tag, or npos if the tag is not closed. `at` is after the tag's beginning, such
/// as "{%".
std::size_t end_of_tag(std::string_view jinja, std::size_t at, std::string_view close) {
  while (at < jinja.size() && !jinja.substr(at).starts_with(close)) {
    if (close != "#}" && (jinja[at] == '\'' || jinja[at] == '"'))
      quoted(jinja, at);
    else
      ++at;
  }
  return at < jinja.size() ? at : std::string_view::npos;
}

/// Collects the parts of a program that can run without tools. A block is left out if its condition is about tools, tool calls
/// or tool messages, because such a condition is never true here.
class WithoutTools {
 public:
  void output(std::string_view text) {
    if (is_live()) program_ += text;
  }
  void statement(const std::string& text) {
    const auto is = [&](std::string_view name) { return text.starts_with(name); };
    const bool never = text == "if tools" || text == "if message['role']=='tool'" || text == "elif message['role']=='tool'" ||
                       text == "for tool_call in message.tool_calls";
    if (is("if ") || is("for ")) {
      add(text, !never);
      blocks_.push_back({.has_begun = !never, .is_live = !never});
    } else if (is("set ") && text.find('=') != std::string::npos) {
      add(text, true);
    } else if (blocks_.empty()) {
      is_known_ = false;
    } else if (Block& block = blocks_.back(); is("elif ") || text == "else") {
      block.is_live = true;
      if (block.has_begun) {
        add(text, !never);
      } else if (is("elif ")) {
        add(text.substr(2), !never);
        block.has_begun = !never;
      }
      block.is_live = !never;
    } else if (text == "endif" || text == "endfor") {
      block.is_live = true;
      add(text, block.has_begun);
      blocks_.pop_back();
    } else {
      is_known_ = false;
    }
  }
  std::string take() { return blocks_.empty() && is_known_ ? std::move(program_) : ""; }

 private:
  struct Block {
    bool has_begun;  // the block's first statement is in the program
    bool is_live;
  };
  bool is_live() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.is_live; });
  }
  void add(const std::string& text, bool is_said) {
    if (is_said && is_live()) program_ += "{%" + text + "%}";
  }

  std::string program_;
  std::vector<Block> blocks_;
  bool is_known_ = true;  // all statements are known
};

/// Rewrites a template in a single spelling, with outputs as formats and statements as {%if ..%}. Line breaks and spaces around
/// statements are removed as in transformers (trim_blocks, lstrip_blocks). Returns an empty text if the template is not
/// understood.
std::string program_of(std::string jinja) {
  replace_all(jinja, "\r\n", "\n");
  if (jinja.find('\r') != std::string::npos) return "";
  if (jinja.ends_with('\n')) jinja.pop_back();
  const std::string_view all = jinja;
  WithoutTools program;
  bool begins_line = true, strip = false;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t open = std::min({all.find("{{", at), all.find("{%", at), all.find("{#", at), all.size()});
    std::string_view text = all.substr(at, open - at);
    const bool is_block = open < all.size() && all[open + 1] != '{';
    if (strip) text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
    if (open + 2 < all.size() && all[open + 2] == '-') {
      text = text.substr(0, text.find_last_not_of(" \t\n") + 1);
    } else if (is_block) {
      const auto last = text.find_last_not_of(" \t");
      if (last == std::string_view::npos ? begins_line : text[last] == '\n')
        text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    }
    program.output(escaped(text));
    if (open >= all.size()) break;
    const std::string_view close = all[open + 1] == '{' ? "}}" : all[open + 1] == '%' ? "%}" : "#}";
    const std::size_t end = end_of_tag(all, open + 2, close);
    if (end == std::string_view::npos) return "";
    std::string_view inside = all.substr(open + 2, end - open - 2);
    if (inside.starts_with('+') || inside.ends_with('+')) return "";
    if (inside.starts_with('-')) inside.remove_prefix(1);
    strip = inside.ends_with('-');
    if (strip) inside.remove_suffix(1);
    at = end + 2;
    begins_line = is_block && !strip && all.substr(at).starts_with('\n');
    if (begins_line) ++at;
    inside.remove_prefix(std::min(inside.find_first_not_of(" \t\n"), inside.size()));
    if (close == "}}") {
      program.output(inside.starts_with("raise_exception(") ? "{raise}" : format_of(inside));
    } else if (close == "%}") {
      const std::string text_of_it = plain(inside);
      const std::size_t equals = inside.find('=');
      if (text_of_it.starts_with("set ") && equals != std::string_view::npos)
        program.statement(plain(inside.substr(0, equals)) + "=" + format_of(inside.substr(equals + 1)));
      else if (const std::size_t name = text_of_it.find_first_of("( "); name != std::string::npos)
        program.statement(fmt::format("{} {}", text_of_it.substr(0, name),
                                      bare(std::string_view(text_of_it).substr(name + (text_of_it[name] == ' ' ? 1 : 0)))));
      else
        program.statement(text_of_it);
    }
  }
  return program.take();
}

/// Removes a program's own checks that user and assistant alternate. add_messages() refuses the same conversations if the
/// family alternates.
std::string without_checks(std::string program) {
  replace_all(program, "{%if (message['role']=='user')!=(loop.index0%2==0)%}{raise}{%endif%}", "");
  replace_all(program, "{%if messages[0]['role']=='system'%}{raise}{%endif%}", "");
  replace_all(program, "{%else%}{raise}{%endif%}", "{%endif%}");
  return program;
}

/// Returns true if `program` equals `known`, except that it may have any text in place of {default}. Sets `said` to that text,
/// which must not contain parts of a program.
bool is_program(std::string_view known, std::string_view program, std::optional<std::string>& said) {
  constexpr std::string_view place = "{default}";
  const std::size_t at = known.find(place);
  if (at == std::string_view::npos) return program == known;
  const std::string_view behind = known.substr(at + place.size());
  if (program.size() < at + behind.size() || !program.starts_with(known.substr(0, at)) || !program.ends_with(behind))
    return false;
  const std::string_view text = program.substr(at, program.size() - behind.size() - at);
  if (text.find_first_of("{}\\") != std::string_view::npos) return false;
  said = std::string(text);
  return true;
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
        format("the model's chat template is not known ({}; the known templates are those of {}); write the conversations as "
               "texts yourself, with the template's marks",
               what, known_families()));
  };
  if (has("<|im_start|>") && has("<think>")) refuse("it is ChatML with thoughts, as in Qwen3");
  if (has("Cutting Knowledge Date")) refuse("it is the template of Llama 3.1 or later, which has the date");
  const std::string program = program_of(jinja), unchecked = without_checks(program);
  const auto row = std::find_if(families().begin(), families().end(), [&](const ChatFamily& family) {
    return std::any_of(family.programs.begin(), family.programs.end(), [&](const std::string& known) {
      return is_program(known, family.alternates ? unchecked : program, default_system_);
    });
  });
  if (row == families().end())
    refuse(has("<|im_start|>")          ? "it has <|im_start|> like ChatML, but differs from it"
           : has("<|start_header_id|>") ? "it has <|start_header_id|> like that of Llama 3, but differs from it"
           : has("[INST]")              ? "it has [INST] like those of Llama 2 and Mistral, but differs from them"
                                        : format("it begins with '{}'", trimmed(jinja).substr(0, 60)));
  family_ = *row;
  for (std::string* text : {&family_.begin, &family_.system, &family_.user, &family_.assistant, &family_.last}) {
    if ((text->find("{bos_token}") != std::string::npos && tokens_.begin.empty()) ||
        (text->find("{eos_token}") != std::string::npos && tokens_.end.empty()))
      throw UserError(
          "the model's chat template needs tokens that are not known (\"bos_token\" and \"eos_token\" are read from a "
          "tokenizer_config.json next to it); add that file");
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
  if (default_system_ && (messages.empty() || messages.front().role != "system"))
    messages.insert(messages.begin(), {"system", *default_system_});
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
      throw UserError(
          format("a message has the role '{}' (the chat template of {} does not have this role); leave the message out",
                 excerpt(message.role), name()));
    if (family_.alternates && of_user != (i % 2 == 0))
      throw UserError(
          format("message {} has the role '{}' (in the chat template of {} user and assistant take turns, and the user "
                 "begins); correct the conversation",
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
  if (family_.leaves_last_open)
    throw UserError(
        format("the chat template does not end the last message of a conversation with {} (so a model would not learn to end "
               "its answers); remove the condition with \"loop.last\" from the template",
               end_));
  ChatText made;
  add_messages(made, messages);
  made.text += family_.last;
  return made;
}

namespace {

/// Reads a token from tokenizer_config.json. The token is a text, or an object with "content".
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
        "{} has no chat template (no chat_template.jinja, and no \"chat_template\" in tokenizer_config.json; the model may not "
        "be trained on conversations); write the conversations as texts yourself",
        model.string()));
  ChatTemplate chat(jinja, {token_of(config, "bos_token"), token_of(config, "eos_token")});
  if (!tokenizer.find(chat.end()))
    throw UserError(
        format("the tokenizer has no token '{}' (the model's chat template ends messages with it); give the "
               "model's own tokenizer",
               chat.end()));
  return chat;
}

namespace {

/// The known keys of an object. A warning names all others.
struct Keys {
  std::vector<std::string_view> used, meaningless, refused;
};

const Keys keys_of_record = {
    .used = {"messages", "prompt", "completion", "weight", "train"},
    .meaningless = {"id", "uuid", "prompt_id", "conversation_id", "source"},
    .refused = {"tools", "functions", "function_call", "system", "conversations", "images", "image", "videos", "video",
                "audios", "audio", "documents", "chat_template", "chat_template_kwargs"}};
const Keys keys_of_message = {.used = {"role", "content", "weight", "train"},
                              .meaningless = {"id", "timestamp"},
                              .refused = {"tool_calls", "function_call", "refusal", "prefix", "train_detail", "images", "image",
                                          "videos", "video", "audios", "audio"}};

/// Returns false for null and empty values. Column-oriented data sets write such a value for a key that an entry does not have.
bool says_something(const nlohmann::json& value) { return !value.empty() && value != nlohmann::json(""); }

/// Returns the first key that is refused, or an empty text. Adds unknown keys to `unused`, each followed by `behind`.
std::string look_at_keys(const nlohmann::json& object, const Keys& keys, const char* behind, std::set<std::string>& unused) {
  const auto is_in = [](const std::vector<std::string_view>& list, const std::string& key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  for (const auto& [key, value] : object.items()) {
    if (!says_something(value)) continue;
    if (is_in(keys.refused, key)) {
      if (value != nlohmann::json(false)) return key;
      continue;
    }
    if (!is_in(keys.used, key) && !is_in(keys.meaningless, key)) unused.insert(format("\"{}\"{}", excerpt(key), behind));
  }
  return "";
}

/// Returns true if the message's "weight" or "train" is 1 or true (train on this message), and false if it is 0 or false.
/// Returns nullopt if the message has neither key.
std::optional<bool> is_to_be_learned(const nlohmann::json& message, std::string& problem) {
  std::optional<bool> learned;
  for (const char* const key : {"weight", "train"}) {
    const nlohmann::json value = message.value(key, nlohmann::json());
    if (value.is_null()) continue;
    const bool yes = value == nlohmann::json(true) || value == nlohmann::json(1);
    if (!yes && !(value == nlohmann::json(false) ||
                  value == nlohmann::json(0)))  // not written with `!=`, because NaN is neither equal nor unequal
      problem = format("it has \"{}\": {}, but only 0, 1, false and true are read", key, json_excerpt(value));
    if (learned.value_or(yes) != yes) problem = "its \"weight\" and its \"train\" contradict each other";
    learned = yes;
  }
  return learned;
}

}  // namespace

ChatText read_conversation(const nlohmann::json& object, const std::function<const ChatTemplate&()>& chat, std::string& problem,
                           std::set<std::string>& unused) {
  std::vector<ChatMessage> messages;
  problem.clear();
  const auto add = [&](const char* name, bool has_answers) {
    const nlohmann::json& list = object[name];
    if (!list.is_array()) return void(problem = format("its \"{}\" is no list of messages", name));
    for (const nlohmann::json& one : list) {
      if (!one.is_object()) return void(problem = format("its \"{}\" has an element that is no message", name));
      if (const std::string key = look_at_keys(one, keys_of_message, " of messages", unused); !key.empty())
        return void(problem = format("its \"{}\" has a message with \"{}\", which is not read here", name, key));
      const bool is_message =
          one.contains("role") && one["role"].is_string() && one.contains("content") && one["content"].is_string();
      if (!is_message)
        return void(problem = format("its \"{}\" has a message whose \"role\" or \"content\" is missing or is no text", name));
      ChatMessage message{one["role"].get<std::string>(), one["content"].get<std::string>()};
      const bool can_be_learned = has_answers && message.role == "assistant";
      const bool learned = is_to_be_learned(one, problem).value_or(can_be_learned);
      if (problem.empty() && learned && !can_be_learned)
        problem = format("its \"{}\" has a message of the role '{}' with \"weight\" or \"train\", but only answers are learned",
                         name, excerpt(message.role));
      if (!problem.empty()) return;
      message.is_answer = learned;
      messages.push_back(std::move(message));
    }
  };
  const std::string refused = object.is_object() ? look_at_keys(object, keys_of_record, "", unused) : "";
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  if (!object.is_object()) {
    problem = "it is no object";
  } else if (refused == "conversations") {
    problem = "it has \"conversations\", as in ShareGPT, but only \"messages\" are read, each with \"role\" and \"content\"";
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
    add("messages", true);
  } else if (!has("prompt") || !has("completion")) {
    problem = "it has neither \"messages\" nor both \"prompt\" and \"completion\"";
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
