// Conversations as models were trained on them. What is expected was rendered by Jinja 3.1 from the same templates, with
// add_generation_prompt, bos_token "<|begin_of_text|>" and trim_blocks and lstrip_blocks as transformers sets them.
#define BOOST_TEST_MODULE text.chat_template
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "files/json.hpp"
#include "support/messages.hpp"
#include "text/chat_template.hpp"
#include "text/parallel_encoder.hpp"

using namespace fsdp;
using namespace std::string_literals;

#define CHECK_REFUSED(call, part) CHECK_CONTAINS(fsdp::test::message_of([&] { (void)(call); }), part)

namespace {

const std::vector<ChatMessage> question = {{"user", " Who? "}};
const std::vector<ChatMessage> whole = {{"system", "Be short."}, {"user", "Who?"}, {"assistant", "Me.\n"}, {"user", "You?"}};

/// ChatML whose system message is `text` where none is given.
std::string chatml(const std::string& text) {
  return "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system" + text +
         "<|im_end|>\\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
         "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
         "}}{% endif %}";
}
const std::string plain_chatml =
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|im_start|>system\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endif "
    "%}{% endfor %}{{ '<|im_start|>assistant\\n' }}";
const std::string llama3 =
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + (message['content'] | trim) + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// A model's own template, and what Jinja makes of `spoken`, of it behind a system message (nothing: it refuses that), and of
/// its first message where the assistant is to go on; and what a model learns of it.
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
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nMe.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nNo.<|eot_id|>",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
     "short.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nMe.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\nNo.<|eot_id|>",
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
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

/// Of Gemma 3, only what the user says is trimmed.
BOOST_AUTO_TEST_CASE(a_system_message_is_not_trimmed_with_what_follows_it) {
  const Known* const gemma3 =
      std::find_if(std::begin(known), std::end(known), [](const Known& k) { return k.name == "Gemma 3"s; });
  const ChatTemplate chat(gemma3->jinja, {"<s>", "</s>"});
  BOOST_TEST(chat.render({{"system", " \n"}, {"user", " "}}) ==
             "<s><start_of_turn>user\n \n\n\n<end_of_turn>\n<start_of_turn>model\n");
}

BOOST_AUTO_TEST_CASE(messages_that_a_template_has_no_place_for) {
  const ChatTemplate mistral(known[0].jinja, {"<s>", "</s>"});
  CHECK_REFUSED(mistral.render_whole({spoken[0], spoken[0]}), "message 1 is of the role 'user'");
  CHECK_REFUSED(mistral.render_whole({{"tool", "7"}}), "a message is of the role 'tool'");
  CHECK_REFUSED(ChatTemplate(known[0].jinja), "needs tokens that are not known");
  std::string jinja = known[0].jinja;
  jinja.replace(jinja.find(" [/INST]"), 8, "[/INST]");
  CHECK_REFUSED(ChatTemplate(jinja, {"<s>", "</s>"}), "it has [INST], as those of Llama 2 and Mistral, and other texts");
  CHECK_REFUSED(ChatTemplate(plain_chatml + "{% if not loop.last %}").render_whole(spoken), "does not end the last message");
}

// Samples of make_chat.py: conversations whose words lie so close to the template's that tokens could span both.
BOOST_AUTO_TEST_CASE(tokens_and_masks_are_those_of_transformers) {
  const std::string folder = FSDP_TEST_DATA "/tokenizers/";
  for (const nlohmann::json& sample : read_json_file(folder + "chat.json")) {
    const std::string name = sample["tokenizer"];
    const auto tokenizer = open_tokenizer(folder + name);
    const ChatTemplate chat(sample["template"].get<std::string>(), {sample["bos"], sample["eos"]});
    for (const nlohmann::json& line : sample["lines"]) BOOST_TEST_CONTEXT(name << ", " << line["messages"].dump()) {
        std::string problem;
        const ChatText text = read_conversation(
            line.dump(), [&]() -> const ChatTemplate& { return chat; }, problem);
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
  const auto read = [&](const std::string& line) {
    return read_conversation(
        line, [&]() -> const ChatTemplate& { return chat; }, problem);
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
  BOOST_TEST(complaint("{") == "it is not JSON");
  BOOST_TEST(complaint("[]") == "it is no object");
  BOOST_TEST(complaint(R"({"text":"a"})") == "it has neither \"messages\" nor \"prompt\" and \"completion\"");
  BOOST_TEST(complaint(R"({"messages":"a"})") == "its \"messages\" is no list of messages");
  BOOST_TEST(complaint(R"({"messages":[]})") == "it has no messages");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"user","content":null}]})"), "has something that is no message");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"user"}]})"), "has something that is no message");
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"assistant","content":"a"}]})"), "take turns");
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
  const ChatTemplate chat(llama3);
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
  CHECK_CONTAINS(complaint(plain_chatml + "<think>"), "it is ChatML with thoughts, as of Qwen3");
  CHECK_CONTAINS(complaint(llama3 + "Cutting Knowledge Date: "), "it is that of Llama 3.1 or later");
  CHECK_CONTAINS(complaint("{{ '[INST] ' + messages[0]['content'] }}"), "as those of Llama 2 and Mistral, and other texts");
  CHECK_CONTAINS(complaint("  {{ messages }}"), "it begins with '{{ messages }}'");
}
