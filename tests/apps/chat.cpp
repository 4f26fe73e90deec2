// Conversations as models were trained on them. What is expected was rendered by Jinja 3.1 from the same templates, with
// add_generation_prompt, bos_token "<|begin_of_text|>" and trim_blocks and lstrip_blocks as transformers sets them.
#define BOOST_TEST_MODULE apps.chat
#include <boost/test/unit_test.hpp>

#include "fsdp-generate/chat.hpp"
#include "support/messages.hpp"

using namespace fsdp;

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

}  // namespace

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
  CHECK_CONTAINS(complaint("{{ '[INST] ' + messages[0]['content'] }}"), "as those of Llama 2 and Mistral");
  CHECK_CONTAINS(complaint("  {{ messages }}"), "it begins with '{{ messages }}'");
}
