// Conversations in the form on which models were trained. The expected texts were rendered by Jinja 3.1 from the same
// templates, with add_generation_prompt, and with trim_blocks and lstrip_blocks as in transformers.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "files/json.hpp"
#include "support/messages.hpp"
#include "text/chat_template.hpp"
#include "text/json_reader.hpp"
#include "text/parallel_encoder.hpp"

using namespace fsdp;
using namespace std::string_literals;

#define CHECK_REFUSED(call, part) CHECK_CONTAINS(fsdp::test::message_of([&] { (void)(call); }), part)

namespace {

const std::vector<ChatMessage> question = {{"user", " Who? "}};
const std::vector<ChatMessage> whole = {{"system", "Be short."}, {"user", "Who?"}, {"assistant", "Me.\n"}, {"user", "You?"}};

/// Returns a ChatML template with `text` as the default system message.
std::string chatml(const std::string& text) {
  return "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system" + text +
         "<|im_end|>\\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
         "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
         "}}{% endif %}";
}
const std::string plain_chatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
    "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
/// The template of Qwen2.5, with the part for tools shortened.
const std::string qwen25 = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen.' }}
    {%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n{\"name\": <function-name>}\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or
           (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";
const std::string llama3 =
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + (message['content'] | trim) + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// A model's own template, and Jinja's output for `spoken`, for `spoken` after a system message (empty: it refuses that), and
/// for its first message with a generation prompt; and the part of it that a model learns.
struct Known {
  const char *name, *jinja, *whole, *with_system, *asking;
  std::vector<std::string> answers;
};
const std::vector<ChatMessage> spoken = {
    {"user", " Who?\xc2\xa0"}, {"assistant", "\nMe. \n", true}, {"user", "You?"}, {"assistant", "No.", true}};
const Known known[] = {
    {"Mistral",
     "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
     "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
     "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
     "message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif "
     "%}{% endfor %}",
     "<s>[INST]  Who?\xc2\xa0"
     " [/INST]\nMe. \n</s>[INST] You? [/INST]No.</s>",
     "",
     "<s>[INST]  Who?\xc2\xa0"
     " [/INST]",
     {"\nMe. \n</s>", "No.</s>"}},
    {"Llama 2",
     "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
     "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for "
     "message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
     "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == "
     "0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
     "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ "
     "bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() "
     "+ ' ' + eos_token }}{% endif %}{% endfor %}",
     "<s>[INST] Who? [/INST] Me. </s><s>[INST] You? [/INST] No. </s>",
     "<s>[INST] <<SYS>>\nBe short. \n<</SYS>>\n\n Who? [/INST] Me. </s><s>[INST] You? [/INST] No. </s>",
     "<s>[INST] Who? [/INST]",
     {"Me. </s>", "No. </s>"}},
    {"Zephyr and TinyLlama",
     "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token "
     "}}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif "
     "message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if "
     "loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
     "<|user|>\n Who?\xc2\xa0"
     "</s>\n<|assistant|>\n\nMe. \n</s>\n<|user|>\nYou?</s>\n<|assistant|>\nNo.</s>\n",
     "<|system|>\nBe short. </s>\n<|user|>\n Who?\xc2\xa0"
     "</s>\n<|assistant|>\n\nMe. \n</s>\n<|user|>\nYou?</s>\n<|assistant|>\nNo.</s>\n",
     "<|user|>\n Who?\xc2\xa0"
     "</s>\n<|assistant|>\n",
     {"\nMe. \n</s>", "No.</s>"}},
    {"Gemma",
     "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% "
     "for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation "
     "roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set "
     "role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + "
     "message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt "
     "%}{{'<start_of_turn>model\\n'}}{% endif %}",
     "<s><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\nMe.<end_of_turn>\n<start_of_turn>user\nYou?<end_of_turn>"
     "\n<start_of_turn>model\nNo.<end_of_turn>\n",
     "",
     "<s><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n",
     {"Me.<end_of_turn>", "No.<end_of_turn>"}},
    {"Gemma 3",
     "{{ bos_token }}\n"
     "{%- if messages[0]['role'] == 'system' -%}\n"
     "    {%- if messages[0]['content'] is string -%}\n"
     "        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}\n"
     "    {%- else -%}\n"
     "        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}\n"
     "    {%- endif -%}\n"
     "    {%- set loop_messages = messages[1:] -%}\n"
     "{%- else -%}\n"
     "    {%- set first_user_prefix = \"\" -%}\n"
     "    {%- set loop_messages = messages -%}\n"
     "{%- endif -%}\n"
     "{%- for message in loop_messages -%}\n"
     "    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n"
     "        {{ raise_exception(\"Conversation roles must alternate user/assistant/user/assistant/...\") }}\n"
     "    {%- endif -%}\n"
     "    {%- if (message['role'] == 'assistant') -%}\n"
     "        {%- set role = \"model\" -%}\n"
     "    {%- else -%}\n"
     "        {%- set role = message['role'] -%}\n"
     "    {%- endif -%}\n"
     "    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else \"\") }}\n"
     "    {%- if message['content'] is string -%}\n"
     "        {{ message['content'] | trim }}\n"
     "    {%- elif message['content'] is iterable -%}\n"
     "        {%- for item in message['content'] -%}\n"
     "            {%- if item['type'] == 'image' -%}\n"
     "                {{ '<start_of_image>' }}\n"
     "            {%- elif item['type'] == 'text' -%}\n"
     "                {{ item['text'] | trim }}\n"
     "            {%- endif -%}\n"
     "        {%- endfor -%}\n"
     "    {%- else -%}\n"
     "        {{ raise_exception(\"Invalid content type\") }}\n"
     "    {%- endif -%}\n"
     "    {{ '<end_of_turn>\\n' }}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}\n"
     "    {{'<start_of_turn>model\\n'}}\n"
     "{%- endif -%}\n",
     "<s><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\nMe.<end_of_turn>\n<start_of_turn>user\nYou?<end_of_turn>"
     "\n<start_of_turn>model\nNo.<end_of_turn>\n",
     "<s><start_of_turn>user\nBe short. \n\nWho?<end_of_turn>\n<start_of_turn>model\nMe.<end_of_turn>\n<start_of_turn>user\n"
     "You?<end_of_turn>\n<start_of_turn>model\nNo.<end_of_turn>\n",
     "<s><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n",
     {"Me.<end_of_turn>", "No.<end_of_turn>"}},
    {"Phi-3",
     "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + "
     "'<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif "
     "message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if "
     "add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
     "<|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n\nMe. \n<|end|>\n<|user|>\nYou?<|end|>\n<|assistant|>\nNo.<|end|>\n</s>",
     "<|system|>\nBe short. <|end|>\n<|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n\nMe. \n<|end|>\n<|user|>\nYou?<|end|>\n<|assistant|>\nNo.<|end|>\n</s>",
     "<|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n",
     {"\nMe. \n<|end|>", "No.<|end|>"}},
    {"Phi-3",
     "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + '\n' + message['content'] "
     "+ '<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' "
     "+ '\n'}}{% endif %}{% endfor %}",
     "<s><|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n\nMe. \n<|end|>\n<|user|>\nYou?<|end|>\n<|assistant|>\nNo.<|end|>\n",
     "",
     "<s><|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n",
     {"\nMe. \n<|end|>", "No.<|end|>"}},
    {"Phi-3",
     "{{ bos_token }}{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n' "
     "}}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
     "<s><|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n\nMe. \n<|end|>\n<|user|>\nYou?<|end|>\n<|assistant|>\nNo.<|end|>\n</s>",
     "<s><|system|>\nBe short. <|end|>\n<|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n\nMe. \n<|end|>\n<|user|>\nYou?<|end|>\n<|assistant|>\nNo.<|end|>\n</s>",
     "<s><|user|>\n Who?\xc2\xa0"
     "<|end|>\n<|assistant|>\n",
     {"\nMe. \n<|end|>", "No.<|end|>"}},
    {"ChatML",
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
     "helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
     "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
     "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Who?\xc2\xa0"
     "<|im_end|>\n<|im_start|>assistant\n\nMe. "
     "\n<|im_end|>\n<|im_start|>user\nYou?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n",
     "<|im_start|>system\nBe short. <|im_end|>\n<|im_start|>user\n Who?\xc2\xa0"
     "<|im_end|>\n<|im_start|>assistant\n\nMe. "
     "\n<|im_end|>\n<|im_start|>user\nYou?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n",
     "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Who?\xc2\xa0"
     "<|im_end|>\n<|im_start|>assistant\n",
     {"\nMe. \n<|im_end|>", "No.<|im_end|>"}},
    {"Llama 3",
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
     "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set "
     "content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
     "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
     "<s><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nMe.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nNo.<|eot_id|>",
     "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
     "short.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nMe.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nNo.<|eot_id|>",
     "<s><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\n",
     {"Me.<|eot_id|>", "No.<|eot_id|>"}},
};

}  // namespace

BOOST_AUTO_TEST_CASE(conversations_of_all_families) {
  for (const Known& k : known) BOOST_TEST_CONTEXT(k.name << ": " << k.jinja) {
      const ChatTemplate chat(k.jinja, {"<s>", "</s>"});
      BOOST_TEST(chat.name() == k.name);
      const ChatText text = chat.render_whole(spoken);
      BOOST_TEST(text.text == k.whole);
      std::vector<std::string> answers;
      for (const auto [begin, end] : text.answers) answers.push_back(text.text.substr(begin, end - begin));
      BOOST_TEST(answers == k.answers, boost::test_tools::per_element());
      BOOST_TEST(chat.render({spoken[0]}) == k.asking);
      std::vector<ChatMessage> told = spoken;
      told.insert(told.begin(), {"system", "Be short. "});
      if (*k.with_system)
        BOOST_TEST(chat.render_whole(told).text == k.with_system);
      else
        BOOST_CHECK_THROW(chat.render_whole(told), UserError);
    }
}

/// Gemma 3 trims only the user's messages.
BOOST_AUTO_TEST_CASE(a_system_message_is_not_trimmed_with_what_follows_it) {
  const Known* const gemma3 =
      std::find_if(std::begin(known), std::end(known), [](const Known& k) { return k.name == "Gemma 3"s; });
  const ChatTemplate chat(gemma3->jinja, {"<s>", "</s>"});
  BOOST_TEST(chat.render({{"system", " \n"}, {"user", " "}}) ==
             "<s><start_of_turn>user\n \n\n\n<end_of_turn>\n<start_of_turn>model\n");
}

BOOST_AUTO_TEST_CASE(messages_that_a_template_has_no_place_for) {
  const ChatTemplate mistral(known[0].jinja, {"<s>", "</s>"});
  CHECK_REFUSED(mistral.render_whole({spoken[0], spoken[0]}), "message 1 has the role 'user'");
  CHECK_REFUSED(mistral.render_whole({{"tool", "7"}}), "a message has the role 'tool'");
  CHECK_REFUSED(ChatTemplate(known[0].jinja), "needs tokens that are not known");
  std::string jinja = known[0].jinja;
  jinja.replace(jinja.find(" [/INST]"), 8, "[/INST]");
  CHECK_REFUSED(ChatTemplate(jinja, {"<s>", "</s>"}), "it has [INST] like those of Llama 2 and Mistral, but");
  const ChatTemplate qwen1_5(
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}{% if (loop.last and "
      "add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}}{% endif %}{% endfor %}\n{% if add_generation_prompt "
      "and messages[-1]['role'] != 'assistant' %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  BOOST_TEST(qwen1_5.render(question) == "<|im_start|>user\n Who? <|im_end|>\n<|im_start|>assistant\n");
  CHECK_REFUSED(qwen1_5.render_whole(spoken), "does not end the last message");
}

// Samples of make_chat.py: conversations in which tokens could span words of the template and of a message.
BOOST_AUTO_TEST_CASE(tokens_and_masks_are_those_of_transformers) {
  const std::string folder = FSDP_TEST_DATA "/tokenizers/";
  for (const nlohmann::json& sample : read_json_file(folder + "chat.json")) {
    const std::string name = sample["tokenizer"];
    const auto tokenizer = open_tokenizer(folder + name);
    const ChatTemplate chat(sample["template"].get<std::string>(), {sample["bos"], sample["eos"]});
    for (const nlohmann::json& line : sample["lines"]) BOOST_TEST_CONTEXT(name << ", " << line["messages"].dump()) {
        std::string problem;
        std::set<std::string> unused;
        const ChatText text = read_conversation(
            line, [&]() -> const ChatTemplate& { return chat; }, problem, unused);
        BOOST_TEST(problem == "");
        EncodedPiece got;
        ParallelEncoder encoder(*tokenizer, 1, [&](EncodedPiece piece) { got = std::move(piece); });
        encoder.add({.text = text.text, .is_conversation = true, .answers = text.answers});
        BOOST_TEST(got.ids == line["ids"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
        BOOST_TEST(got.mask == line["mask"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
      }
  }
}

BOOST_AUTO_TEST_CASE(conversations_in_lines_of_json) {
  const ChatTemplate chat(known[1].jinja, {"<s>", "</s>"});
  std::string problem;
  std::set<std::string> unused;
  const auto read = [&](const std::string& line) {
    return read_conversation(
        nlohmann::json::parse(line), [&]() -> const ChatTemplate& { return chat; }, problem, unused);
  };
  const auto answers = [&](const std::string& line) {
    const ChatText text = read(line);
    BOOST_TEST(problem == "");
    std::vector<std::string> all;
    for (const auto [begin, end] : text.answers) all.push_back(text.text.substr(begin, end - begin));
    return all;
  };
  const std::string first = R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})",
                    second = R"({"role":"user","content":"c"},{"role":"assistant","content":"d"})";
  BOOST_TEST(answers("{\"messages\":[" + first + "," + second + "]}") == (std::vector<std::string>{"b </s>", "d </s>"}));
  BOOST_TEST(answers("{\"prompt\":[" + first + "],\"completion\":[" + second + "]}") == std::vector<std::string>{"d </s>"});
  BOOST_TEST(answers(R"({"prompt":"a b","completion":" c"})") == std::vector<std::string>{" c"});
  BOOST_TEST(read(R"({"prompt":"a b","completion":" c"})").text == "a b c");
  const auto complaint = [&](const std::string& line) {
    read(line);
    return problem;
  };
  BOOST_TEST(complaint("[]") == "it is no object");
  BOOST_TEST(complaint(R"({"text":"a"})") == "it has neither \"messages\" nor both \"prompt\" and \"completion\"");
  BOOST_TEST(complaint(R"({"messages":"a"})") == "its \"messages\" is no list of messages");
  BOOST_TEST(complaint(R"({"messages":[]})") == "it has no messages");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"user","content":null}]})"), "has a message whose");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"user"}]})"), "has a message whose");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"assistant","content":"a"}]})"), "take turns");
  // Messages with tools are refused by name; empty columns for them are accepted.
  BOOST_TEST(answers(R"({"messages":[{"role":"user","content":"a","tool_calls":null},{"role":"assistant","content":"b",
                     "tool_calls":[]}],"tools":null})") == std::vector<std::string>{"b </s>"});
  CHECK_CONTAINS(complaint("{\"messages\":[" + first + "],\"tools\":[{}]}"), "it has \"tools\"");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"user","content":"a","tool_calls":[1]}]})"), "\"tool_calls\"");
}

BOOST_AUTO_TEST_CASE(keys_of_conversations_are_used_or_named) {
  const ChatTemplate chat(known[1].jinja, {"<s>", "</s>"});
  std::string problem;
  std::set<std::string> unused;
  const auto learned = [&](const std::string& more, const std::string& of_first = "") {
    const ChatText text = read_conversation(
        read_json(R"({"messages":[{"role":"user","content":"a")" + of_first + R"(},{"role":"assistant","content":"b")" + more +
                      R"(},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]})",
                  problem),
        [&]() -> const ChatTemplate& { return chat; }, problem, unused);
    std::string all = problem;
    for (const auto [begin, end] : text.answers) all += text.text.substr(begin, 1);
    return all;
  };
  for (const char* const no : {"\"weight\":0", "\"weight\":0.0", "\"train\":false", "\"weight\":0,\"train\":false"})
    BOOST_TEST(learned(format(",{}", no)) == "d");
  for (const char* const yes : {"\"weight\":1", "\"train\":true", "\"weight\":null", "\"id\":7", "\"tool_calls\":[]"})
    BOOST_TEST(learned(format(",{}", yes)) == "bd");
  BOOST_TEST(learned("", R"(,"weight":0)") == "bd");
  CHECK_CONTAINS(learned(R"(,"weight":0.5)"), "it has \"weight\": 0.5");
  for (const char* const value : {"NaN", "Infinity", "-Infinity"})
    CHECK_CONTAINS(learned(format(R"(,"weight":{})", value)), format("it has \"weight\": {}, but only", value));
  BOOST_TEST(learned(R"(,"tool_calls":false)") == "bd");
  BOOST_TEST(unused.empty());
  BOOST_TEST(learned(R"(,"trainable":false)") == "bd");
  BOOST_TEST(unused == (std::set<std::string>{"\"trainable\" of messages"}));
  unused.clear();
  CHECK_CONTAINS(learned(R"(,"train":"no")"), "it has \"train\": \"no\"");
  CHECK_CONTAINS(learned(R"(,"weight":1,"train":false)"), "contradict");
  CHECK_CONTAINS(learned("", R"(,"weight":1)"), "of the role 'user' with \"weight\" or \"train\", but only answers");
  CHECK_CONTAINS(learned(R"(,"function_call":{"name":"f"})"), "\"function_call\", which is not read here");
  BOOST_TEST(unused.empty());
  BOOST_TEST(learned(R"(,"name":"x","reasoning_content":"hm")") == "bd");
  BOOST_TEST(unused == (std::set<std::string>{"\"name\" of messages", "\"reasoning_content\" of messages"}));

  unused.clear();
  const auto complaint = [&](const std::string& more) {
    read_conversation(
        nlohmann::json::parse(R"({"messages":[{"role":"user","content":"a"}],)" + more + "}"),
        [&]() -> const ChatTemplate& { return chat; }, problem, unused);
    return problem;
  };
  for (const char* const key : {"functions", "system", "images"})
    CHECK_CONTAINS(complaint(format("\"{}\":\"x\"", key)), format("it has \"{}\", which is not read here", key));
  CHECK_CONTAINS(complaint(R"("conversations":[{"from":"human","value":"a"}])"), "as in ShareGPT");
  CHECK_CONTAINS(complaint(R"("completion":"a")"), "both \"messages\" and \"completion\"");
  CHECK_CONTAINS(complaint(R"("weight":0)"), "its \"weight\" or \"train\" excludes it from training");
  BOOST_TEST(complaint(R"("weight":1,"id":7,"functions":[],"system":"","images":null)") == "");
  BOOST_TEST(unused.empty());
  BOOST_TEST(complaint(R"("prompt":"a","score":1)") == "");
  BOOST_TEST(unused == (std::set<std::string>{"\"prompt\"", "\"score\""}));
}

BOOST_AUTO_TEST_CASE(chatml_with_a_system_message_of_its_own) {
  for (const char* const text : {"\\nYou know things.\\nAll.", "\nYou know things.\nAll."}) {
    const ChatTemplate chat(chatml(text));
    BOOST_TEST(chat.end() == "<|im_end|>");
    BOOST_TEST(chat.render(question) ==
               "<|im_start|>system\nYou know things.\nAll.<|im_end|>\n<|im_start|>user\n Who? <|im_end|>\n"
               "<|im_start|>assistant\n");
    BOOST_TEST(
        chat.render(whole) ==
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nMe.\n<|im_end|>\n"
        "<|im_start|>user\nYou?<|im_end|>\n<|im_start|>assistant\n");
  }
}

BOOST_AUTO_TEST_CASE(chatml_without_one) {
  BOOST_TEST(ChatTemplate(plain_chatml).render(question) == "<|im_start|>user\n Who? <|im_end|>\n<|im_start|>assistant\n");
}

BOOST_AUTO_TEST_CASE(llama_3) {
  CHECK_REFUSED(ChatTemplate(llama3), "needs tokens that are not known");
  const ChatTemplate chat(llama3, {"<|begin_of_text|>", ""});
  BOOST_TEST(chat.end() == "<|eot_id|>");
  BOOST_TEST(chat.render(question) ==
             "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\n");
  BOOST_TEST(chat.render(whole) ==
             "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe short.<|eot_id|>"
             "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nMe."
             "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou?<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

BOOST_AUTO_TEST_CASE(others_are_refused_by_name) {
  const auto complaint = [](const std::string& jinja) {
    try {
      ChatTemplate refused(jinja);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_CONTAINS(complaint(plain_chatml + "<think>"), "it is ChatML with thoughts, as in Qwen3");
  CHECK_CONTAINS(complaint(llama3 + "Cutting Knowledge Date: "), "it is the template of Llama 3.1 or later");
  CHECK_CONTAINS(complaint("{{ '[INST] ' + messages[0]['content'] }}"), "like those of Llama 2 and Mistral, but");
  CHECK_CONTAINS(complaint("  {{ messages }}"), "it begins with '{{ messages }}'");
}

/// Returns `text` with `part`, which must occur in it, replaced.
std::string with(std::string text, const std::string& part, const std::string& other) {
  const std::size_t at = text.find(part);
  BOOST_REQUIRE(at != std::string::npos);
  return text.replace(at, part.size(), other);
}

BOOST_AUTO_TEST_CASE(qwen2_5_without_tools) {
  const ChatTemplate chat(qwen25);
  const std::string begin = "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\n Who? <|im_end|>\n";
  BOOST_TEST(chat.render(question) == begin + "<|im_start|>assistant\n");
  BOOST_TEST(chat.render_whole({question[0], {"assistant", "Me."}}).text == begin + "<|im_start|>assistant\nMe.<|im_end|>\n");
  BOOST_TEST(chat.render(whole).starts_with("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWho?"));
  CHECK_REFUSED(ChatTemplate(with(qwen25, "{%- if tools %}", "{%- if not tools %}")), "like ChatML, but");
}

BOOST_AUTO_TEST_CASE(the_same_program_in_other_words) {
  for (const std::string& jinja :
       {with(plain_chatml, "message['role']", "message.role"),
        with(plain_chatml, "message['content']", "( message [\"content\"] )"),
        with(plain_chatml, "'<|im_end|>' + '\n'", "\"<|im_end|>\\n\""),
        with(plain_chatml, "{% endfor %}", "\r\n  {%- endfor %}\n"),
        with(plain_chatml, "{% endfor %}", "{#- '%} {{ #}{% endfor %}"), plain_chatml + "\n",
        with(plain_chatml, "{{'<|im_start|>' + message['role'] + '\n' + ", "<|im_start|>{{ message.role }}\n{{ ")})
    BOOST_TEST_CONTEXT(jinja) {
      BOOST_TEST(ChatTemplate(jinja).render(question) == "<|im_start|>user\n Who? <|im_end|>\n<|im_start|>assistant\n");
    }
}

// Each of these differs from its family in a small part, and writes another text for some conversation.
BOOST_AUTO_TEST_CASE(programs_that_differ_in_a_part_are_refused) {
  const std::string message = "'<|im_start|>' + message['role']", for_all = "{% for message in messages %}",
                    end = "{% if add_generation_prompt", content = "message['content']";
  const std::string zephyr = known[2].jinja;
  for (const std::string& jinja :
       {"{{ bos_token }}" + plain_chatml, with(plain_chatml, content, content + " | trim"),
        with(plain_chatml, content, content + ".strip()"), with(plain_chatml, content, content + "[1:]"),
        with(plain_chatml, content, "(" + content + " if loop.first else '')"), with(plain_chatml, content, content + "|upper"),
        with(plain_chatml, " + '\n'}}", "}}"), with(plain_chatml, " + '\n'}}", " + '\\t'}}"),
        with(plain_chatml, "'\n' +", "'<|im_sep|>' +"), with(plain_chatml, "message['role']", "'human'"),
        with(plain_chatml, "assistant\n", "assistant"), with(plain_chatml, for_all, "{% for message in messages[1:] %}"),
        with(plain_chatml, for_all, for_all + "{% if message['role'] != 'system' %}") + "{% endif %}",
        with(plain_chatml, "{% endif %}", "{% else %}{{ eos_token }}{% endif %}"), plain_chatml + " ", "\n" + plain_chatml,
        plain_chatml + "{{ eos_token }}",
        with(plain_chatml, for_all, "{{- raise_exception('No.') if messages|length > 2 }}" + for_all),
        with(plain_chatml, for_all, "{% if messages|length > 2 %}{{ raise_exception('No.') }}{% endif %}" + for_all),
        with(plain_chatml, "{{" + message, "{% generation %}{{" + message), with(plain_chatml, for_all, "{% raw %}" + for_all),
        with(plain_chatml, end, "{% endif %}" + end), with(plain_chatml, "{% endfor %}", ""), plain_chatml + "{{",
        // A system message that is not always written, or not unchanged.
        chatml("\\nYou.\\t"), chatml("\\nYou.' + bos_token + '"), chatml("\nYou {{ date }}."),
        with(chatml("\nYou."), "!= 'system'", "== 'user'"), "{% set system = 'You.' %}" + chatml("\\n' + system + '"),
        with(llama3, "| trim", "| upper"), with(llama3, "loop.first", "loop.last"), with(llama3, "bos_token", "eos_token"),
        with(llama3, "\\n\\n'", "\\n'"), with(zephyr, "== 'system' %}", "== 'system' and loop.last %}"),
        with(zephyr, "== 'system'", "== 'user'"), with(zephyr, "loop.last and", "loop.first and"),
        with(known[0].jinja, "loop.index0 % 2", "loop.index % 2"), with(known[0].jinja, "== 'assistant'", "!= 'user'"),
        with(known[1].jinja, "system_message = false", "system_message = ''"),
        with(known[1].jinja, "loop.index0 == 0 and", "loop.last and"), with(known[3].jinja, "'model'", "'assistant'"),
        with(known[4].jinja, "\n    {{ '<start_of_turn>'", "\n    {{ '<start_of_turn> '"),
        with(known[5].jinja, "{% else %}{{ eos_token }}", "{% else %}{{ bos_token }}")})
    CHECK_REFUSED(ChatTemplate(jinja, {"<s>", "</s>"}), "the model's chat template is not known");
}
