// Conversations in the form on which models were trained, and where their answers are. jobs.python_text compares the texts
// of many templates with transformers.
#include <boost/test/unit_test.hpp>

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "files/json.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "text/chat_template.hpp"
#include "text/json_reader.hpp"
#include "text/parallel_encoder.hpp"

using namespace fsdp;
using namespace std::string_literals;

#define CHECK_REFUSED(call, part) CHECK_CONTAINS(fsdp::test::message_of([&] { (void)(call); }), part)

namespace {

ChatTemplate template_named(const std::string& name) {
  return {name,
          fsdp::test::read_file(FSDP_TEST_DATA "/chat_templates/" + name + ".jinja"),
          {{"bos_token", "<s>"}, {"eos_token", "</s>"}}};
}

Conversation spoken(bool with_system = false) {
  Conversation all;
  if (with_system) all.add("system", "Be short. ");
  all.add("user", " Who? ");
  all.add("assistant", "\nMe. \n", true);
  all.add("user", "You?");
  all.add("assistant", "No.", true);
  return all;
}

std::vector<std::string> answers_of(const ChatText& text) {
  std::vector<std::string> all;
  for (const auto& [begin, end] : text.answers) all.push_back(text.text.substr(begin, end - begin));
  return all;
}

/// A template in the style of Qwen 3: the last answer has empty thoughts, and earlier answers lose theirs.
const std::string thinking = R"({%- for message in messages %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if loop.last and message.role == 'assistant' %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
    {{- content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})";

}  // namespace

BOOST_AUTO_TEST_CASE(answers_begin_after_the_prompt_and_end_with_their_turn) {
  struct Known {
    const char *name, *end, *asking;
    std::vector<std::string> answers;
  };
  const Known known[] = {
      {"mistral-v1", "</s>", "<s>[INST]  Who?  [/INST]", {"\nMe. \n</s>", "No.</s>"}},
      {"llama2", "</s>", "<s>[INST] Who? [/INST]", {" Me. </s>", " No. </s>"}},
      {"zephyr", "</s>", "<|user|>\n Who? </s>\n<|assistant|>\n", {"\nMe. \n</s>", "No.</s>"}},
      {"vicuna", "</s>", "A chat of a curious user and a helper. USER: Who? ASSISTANT:", {" Me.</s>", " No.</s>"}},
      {"granite-tools",
       "<|end_of_text|>",
       "<|start_of_role|>user<|end_of_role|> Who? <|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
       {"\nMe. \n<|end_of_text|>", "No.<|end_of_text|>"}},
      {"phi4",
       "<|im_end|>",
       "<|im_start|>user<|im_sep|> Who? <|im_end|><|im_start|>assistant<|im_sep|>",
       {"\nMe. \n<|im_end|>", "No.<|im_end|>"}},
  };
  for (const Known& k : known) BOOST_TEST_CONTEXT(k.name) {
      const ChatTemplate chat = template_named(k.name);
      BOOST_TEST(chat.end() == k.end);
      Conversation question;
      question.add("user", " Who? ");
      BOOST_TEST(chat.render(question) == k.asking);
      const ChatText whole = chat.render_whole(spoken());
      BOOST_TEST(answers_of(whole) == k.answers, boost::test_tools::per_element());
      BOOST_TEST(!whole.ends_open);
      Conversation last = spoken();
      last.is_answer[1] = false;
      BOOST_TEST(answers_of(chat.render_whole(last)) == std::vector<std::string>{k.answers[1]},
                 boost::test_tools::per_element());
    }
  BOOST_TEST(template_named("llama2").render_whole(spoken(true)).text ==
             "<s>[INST] <<SYS>>\nBe short. \n<</SYS>>\n\n Who? [/INST] Me. </s><s>[INST] You? [/INST] No. </s>");
  // Nothing but spaces ends these turns.
  BOOST_TEST(
      answers_of(template_named("alpaca").render_whole(spoken())) == (std::vector<std::string>{"\nMe. \n\n\n", "No.\n\n"}),
      boost::test_tools::per_element());
  BOOST_TEST(template_named("chatml-open").render_whole(spoken()).ends_open);
}

BOOST_AUTO_TEST_CASE(answers_of_a_template_with_thoughts) {
  const ChatTemplate chat("thinking.jinja", thinking);
  BOOST_TEST(chat.end() == "<|im_end|>");
  Conversation two = spoken();
  two.messages[1]["content"] = "<think>hm</think>\n\nMe.";
  BOOST_TEST(
      answers_of(chat.render_whole(two)) == (std::vector<std::string>{"Me.<|im_end|>", "<think>\n\n</think>\n\nNo.<|im_end|>"}),
      boost::test_tools::per_element());
  two.more["enable_thinking"] = false;
  CHECK_REFUSED(chat.render_whole(two),
                "message 2 is an answer, but its tokens cannot be found (thinking.jinja; it asks for the answer by");
  two.is_answer[1] = false;
  BOOST_TEST(answers_of(chat.render_whole(two)) == std::vector<std::string>{"No.<|im_end|>"}, boost::test_tools::per_element());
  const ChatTemplate joined("joined.jinja",
                            "{{ messages | map(attribute='content') | join(' ') }}{{ '>' if add_generation_prompt }}");
  CHECK_REFUSED(joined.render_whole(spoken()), "joined.jinja; it asks for the answer by '>', but writes");
  const ChatTemplate at_once("at-once.jinja", "{{ messages | map(attribute='content') | join(' ') }}");
  CHECK_REFUSED(at_once.render_whole(spoken()), "at-once.jinja; it has no loop that writes the messages one by one");
}

BOOST_AUTO_TEST_CASE(what_a_template_refuses) {
  const ChatTemplate mistral = template_named("mistral-v1");
  Conversation twice;
  twice.add("user", "a");
  twice.add("user", "b");
  CHECK_REFUSED(mistral.render_whole(twice),
                "the chat template refuses it: The roles must alternate. (mistral-v1, line 1, column ");
  CHECK_REFUSED(mistral.render(twice), "); correct the conversation");
  CHECK_REFUSED(ChatTemplate("a/chat_template.jinja", "{{ 1 | x }}\n{% if %}"),
                "the chat template a/chat_template.jinja cannot be used (line 2, column 7: a value is expected");
  Conversation large;
  large.add("user", "a");
  large.more["n"] = std::uint64_t{1} << 63;
  CHECK_REFUSED(mistral.render(large), "the number 9223372036854775808 is too large");
}

BOOST_AUTO_TEST_CASE(tools_and_their_calls_are_written) {
  const std::string record =
      R"({"messages": [{"role": "user", "content": "Add."}, {"role": "assistant", "content": null, "tool_calls": [
      {"type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}}]}, {"role": "tool", "name": "add", "content": "3"},
      {"role": "assistant", "content": "3."}], "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.",
      "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}}}]})";
  std::string problem;
  std::set<std::string> unused;
  const auto read = [&](const ChatTemplate& chat, const std::string& of) {
    return read_conversation(
        read_json_in_order(of, problem), [&]() -> const ChatTemplate& { return chat; }, problem, unused);
  };
  const ChatText text = read(template_named("granite-tools"), record);
  BOOST_TEST(problem == "");
  CHECK_CONTAINS(text.text, "\"properties\": {\n                \"b\": {");  // members keep their order
  BOOST_TEST(answers_of(text) ==
                 (std::vector<std::string>{R"(<|tool_call|>[{"name": "add", "arguments": {"b": 2, "a": 1}}]<|end_of_text|>)",
                                           "3.<|end_of_text|>"}),
             boost::test_tools::per_element());
  BOOST_TEST(unused == (std::set<std::string>{"\"name\" of messages"}));
  // A template that does not know tools: they are named.
  unused.clear();
  read(template_named("phi4"), record);
  CHECK_CONTAINS(problem, "'content' of a dict is undefined");
  unused.clear();
  read(ChatTemplate("c", "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"), record);
  BOOST_TEST(problem == "");
  BOOST_TEST(unused == (std::set<std::string>{"\"name\" of messages", "\"tool_calls\" of messages", "\"tools\""}));
  // As text, and of a template of their own.
  ChatTemplate two("two", "{% for m in messages %}{{ m.content }}{% endfor %}");
  two.set_for_tools("tool_use", "{{ tools | tojson }}{{ flag }}");
  const auto text_of = [&](const std::string& more) {
    return read(two, R"({"messages": [{"role": "user", "content": "a"}])" + more + "}").text;
  };
  BOOST_TEST(text_of("") == "a");
  BOOST_TEST(text_of(R"(, "tools": "[{\"b\": 1, \"a\": 2}]", "chat_template_kwargs": {"flag": true})") ==
             R"([{"b": 1, "a": 2}]True)");
  for (const char* const more : {R"(, "tools": 7)", R"(, "tools": "[1]")", R"(, "tools": "{")"}) {
    text_of(more);
    BOOST_TEST(problem == "its \"tools\" is no list of objects");
  }
  text_of(R"(, "chat_template_kwargs": {"tokenize": true})");
  CHECK_CONTAINS(problem, "has \"tokenize\", which is no variable of a template");
}

BOOST_AUTO_TEST_CASE(templates_of_a_folder) {
  const fsdp::test::TemporaryFolder folder;
  const auto tokenizer = open_tokenizer(FSDP_TEST_DATA "/tokenizers/chat-tokenizer.json");
  const auto write = [&](const std::string& name, const std::string& text) { fsdp::test::write_file(folder / name, text); };
  Conversation question;
  question.add("user", "a");
  CHECK_REFUSED(read_chat_template(folder.path(), *tokenizer), "has no chat template");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  BOOST_TEST(read_chat_template(folder.path(), *tokenizer).render(question) == "d");
  question.tools = nlohmann::ordered_json::array({nlohmann::ordered_json::object()});
  BOOST_TEST(read_chat_template(folder.path(), *tokenizer).render(question) == "t");
  write("chat_template.jinja", "of the file");
  BOOST_TEST(read_chat_template(folder.path(), *tokenizer).render(question) == "of the file");
  write("chat_template.jinja", "{% for m in messages %}{{ m.content }}<|nothing|>{% endfor %}");
  ChatReader reader(folder.path(), *tokenizer);
  std::string problem;
  const std::string record = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  BOOST_TEST(reader.read(nlohmann::ordered_json::parse(record), problem).text == "a<|nothing|>b<|nothing|>");
  BOOST_TEST_REQUIRE(reader.warnings().size() == 1u);
  CHECK_CONTAINS(reader.warnings()[0], "the tokenizer has no token '<|nothing|>', with which the chat template ends answers");
  write("chat_template.jinja", "{{ bos_token }}");
  std::filesystem::remove(folder / "tokenizer_config.json");
  CHECK_REFUSED(read_chat_template(folder.path(), *tokenizer), "needs the token bos_token, which is not known");
}

// Samples of make_chat.py: conversations in which tokens could span words of the template and of a message.
BOOST_AUTO_TEST_CASE(tokens_and_masks_are_those_of_transformers) {
  const std::string folder = FSDP_TEST_DATA "/tokenizers/";
  for (const nlohmann::json& sample : read_json_file(folder + "chat.json")) {
    const std::string name = sample["tokenizer"];
    const auto tokenizer = open_tokenizer(folder + name);
    const ChatTemplate chat(name, sample["template"].get<std::string>(),
                            {{"bos_token", sample["bos"]}, {"eos_token", sample["eos"]}});
    for (const nlohmann::json& line : sample["lines"]) BOOST_TEST_CONTEXT(name << ", " << line["messages"].dump()) {
        std::string problem;
        std::set<std::string> unused;
        const ChatText text = read_conversation(
            nlohmann::ordered_json(line), [&]() -> const ChatTemplate& { return chat; }, problem, unused);
        BOOST_TEST(problem == "");
        EncodedPiece got;
        ParallelEncoder encoder(*tokenizer, 1, [&](EncodedPiece piece) { got = std::move(piece); });
        TextPiece whole{text};
        whole.is_conversation = true;
        encoder.add(std::move(whole));
        BOOST_TEST(got.ids == line["ids"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
        BOOST_TEST(got.mask == line["mask"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
      }
  }
}

BOOST_AUTO_TEST_CASE(conversations_in_lines_of_json) {
  const ChatTemplate chat = template_named("llama2");
  std::string problem;
  std::set<std::string> unused;
  const auto read = [&](const std::string& line) {
    return read_conversation(
        nlohmann::ordered_json::parse(line), [&]() -> const ChatTemplate& { return chat; }, problem, unused);
  };
  const auto answers = [&](const std::string& line) {
    const ChatText text = read(line);
    BOOST_TEST(problem == "");
    return answers_of(text);
  };
  const std::string first = R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})",
                    second = R"({"role":"user","content":"c"},{"role":"assistant","content":"d"})";
  BOOST_TEST(answers("{\"messages\":[" + first + "," + second + "]}") == (std::vector<std::string>{" b </s>", " d </s>"}));
  BOOST_TEST(answers("{\"prompt\":[" + first + "],\"completion\":[" + second + "]}") == std::vector<std::string>{" d </s>"});
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
  CHECK_CONTAINS(complaint(R"({"messages":[{"role":"assistant","content":"a"}]})"), "must alternate");
  // Empty values count as missing.
  const std::string two = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])";
  for (const char* const none : {"null", "\"\"", "[]", "{}"}) {
    BOOST_TEST(answers(format(R"({{"messages":{},"prompt":{},"completion":{},"tools":{},"chat_template_kwargs":{},"weight":{},
                              "train":{}}})",
                              two, none, none, none, none, none, none)) == std::vector<std::string>{" b </s>"});
    BOOST_TEST(answers(format(R"({{"messages":{},"prompt":"a","completion":"b"}})", none)) == std::vector<std::string>{"b"});
    BOOST_TEST(answers(format(R"({{"messages":{},"prompt":{},"completion":[{}],"tools":{}}})", none,
                              R"([{"role":"user","content":"a"}])",
                              R"({"role":"assistant","content":"b","weight":"","train":[]})", none)) ==
               std::vector<std::string>{" b </s>"});
    BOOST_TEST(complaint(format(R"({{"messages":{},"prompt":{},"completion":{}}})", none, none, none)) == "it has no messages");
  }
  BOOST_TEST(answers(R"({"prompt":"","completion":"b"})") == std::vector<std::string>{"b"});
  BOOST_TEST(read(R"({"prompt":"a","completion":""})").counts.empty_answers == 1u);
  BOOST_TEST(answers(R"({"messages":[{"role":"user","content":"a","tool_calls":null},{"role":"assistant","content":"b",
                     "tool_calls":[]}],"tools":null})") == std::vector<std::string>{" b </s>"});
}

BOOST_AUTO_TEST_CASE(conversations_are_continued) {
  const ChatTemplate chat(
      "short",
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
  std::string problem;
  const auto ask = [&](const std::string& record, const std::string& system = "") {
    std::set<std::string> unused;
    std::string none;
    return read_chat_prompt(
        read_json_in_order(record, none), system, [&]() -> const ChatTemplate& { return chat; }, problem, unused);
  };
  const std::string user = R"({"role":"user","content":"q"})", answer = R"({"role":"assistant","content":"r"})";
  const struct {
    std::string record, text, reference;
  } rows[] = {{R"({"messages":[)" + user + "," + answer + "]}", "u:q;a:", R"("r")"},
              {R"({"messages":[)" + user + "," + answer + "," + user + "]}", "u:q;a:r;u:q;a:", "null"},
              {R"({"messages":[)" + user + "," + answer + "," + answer + "]}", "u:q;a:r;a:", R"("r")"},
              {R"({"prompt":"q"})", "u:q;a:", "null"},
              {R"({"prompt":[)" + user + "]}", "u:q;a:", "null"},
              {R"({"prompt":[)" + user + R"(],"completion":[)" + answer + "]}", "u:q;a:", R"("r")"},
              {R"({"prompt":"q","completion":"c"})", "q", R"("c")"},  // as in training, without a template
              {R"({"messages":[)" + user + R"(,{"role":"assistant","content":"","tool_calls":[{"n":1}]}]})",
               "u:q;a:", R"({"role":"assistant","content":"","tool_calls":[{"n":1}]})"}};
  for (const auto& row : rows) BOOST_TEST_CONTEXT(row.record) {
      const ChatPrompt asked = ask(row.record);
      BOOST_TEST(problem == "");
      BOOST_TEST(asked.text == row.text);
      BOOST_TEST(asked.reference.dump() == row.reference);
      BOOST_TEST(asked.is_templated == (row.text != "q"));
    }
  BOOST_TEST(ask(rows[0].record, "S").text == "s:S;u:q;a:");
  BOOST_TEST(ask(R"({"messages":[{"role":"system","content":"T"},)" + user + "]}", "S").text == "s:T;u:q;a:");
  for (const auto& [record, text] :
       {std::pair(R"({"messages":[]})", "it has no messages"),
        {R"({"prompt":""})", "its \"prompt\" is empty"},
        {R"({"text":"q"})", "it has neither \"messages\" nor \"prompt\""},
        {R"([1])", "it is no object"},
        {R"({"messages":[{"role":"assistant","content":"r"}]})",
         "its only message is an answer, so there is nothing to answer"},
        {R"({"messages":[{"role":"user"}]})", "\"role\" or \"content\" is missing or is no text"}}) {
    ask(record);
    CHECK_CONTAINS(problem, text);
  }
}

BOOST_AUTO_TEST_CASE(a_template_of_a_file) {
  const fsdp::test::TemporaryFolder folder;
  const auto write_file = fsdp::test::write_file;
  write_file(folder / "t.jinja", "{{ messages[0].content }}");
  write_file(folder / "t.json", R"({"chat_template": "{{ messages[0].content }}"})");
  BOOST_TEST(text_of_chat_template(folder / "t.jinja") == text_of_chat_template(folder / "t.json"));
  write_file(folder / "none.json", "{}");
  CHECK_REFUSED(text_of_chat_template(folder / "none.json"), "is no file with one chat template (it has none)");
  write_file(folder / "two.json",
             R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  CHECK_REFUSED(text_of_chat_template(folder / "two.json"), "it has 2 templates");
  CHECK_REFUSED(text_of_chat_template(folder / "missing.jinja"), "is no file with one chat template");
}

BOOST_AUTO_TEST_CASE(messages_are_counted_and_common_forms_are_named) {
  const ChatTemplate chat = template_named("chatml-open");
  std::string problem;
  std::set<std::string> unused;
  const DataCounts counts = read_conversation(
                                nlohmann::ordered_json::parse(R"({"messages":[{"role":"user","content":"a"},
                        {"role":"assistant","content":"b","train":false},{"role":"gpt","content":"c"},
                        {"role":"assistant","content":""},{"role":"assistant","content":"d"}]})"),
                                [&]() -> const ChatTemplate& { return chat; }, problem, unused)
                                .counts;
  BOOST_TEST(problem == "");
  BOOST_TEST(counts.answers == 2u);
  BOOST_TEST(counts.excluded_answers == 1u);
  BOOST_TEST(counts.empty_answers == 1u);
  BOOST_TEST((counts.roles == std::map<std::string, std::uint64_t>{{"assistant", 3}, {"gpt", 1}, {"user", 1}}));
  BOOST_TEST((counts_of_json(to_json(counts)).roles == counts.roles));
  const auto form = [](const char* row) { return known_form(nlohmann::ordered_json::parse(row)); };
  CHECK_CONTAINS(form(R"({"conversations":[{"from":"human","value":"a"}]})"), "in ShareGPT's form");
  CHECK_CONTAINS(form(R"({"messages":[{"from":"human","value":"a"}]})"), "in ShareGPT's form");
  CHECK_CONTAINS(form(R"({"instruction":"a","input":"","output":"b"})"), "in Alpaca's form");
  CHECK_CONTAINS(form(R"({"prompt":"a","chosen":"b","rejected":"c"})"), "for training on preferences");
  CHECK_CONTAINS(form(R"({"question":"a","answer":"b"})"), "a question with its answer");
  BOOST_TEST(form(R"({"messages":[{"role":"user","content":"a"}],"question":"a","answer":"b"})") == "");
  BOOST_TEST(form("[]") == "");
}

BOOST_AUTO_TEST_CASE(keys_of_conversations_are_used_or_named) {
  const ChatTemplate chat = template_named("llama2");
  std::string problem;
  std::set<std::string> unused;
  const auto learned = [&](const std::string& more, const std::string& of_first = "") {
    const ChatText text = read_conversation(
        read_json_in_order(R"({"messages":[{"role":"user","content":"a")" + of_first +
                               R"(},{"role":"assistant","content":"b")" + more +
                               R"(},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]})",
                           problem),
        [&]() -> const ChatTemplate& { return chat; }, problem, unused);
    std::string all = problem;
    for (const auto [begin, end] : text.answers) all += text.text.substr(begin + 1, 1);
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
        nlohmann::ordered_json::parse(R"({"messages":[{"role":"user","content":"a"}],)" + more + "}"),
        [&]() -> const ChatTemplate& { return chat; }, problem, unused);
    return problem;
  };
  for (const char* const key : {"functions", "system", "images"})
    CHECK_CONTAINS(complaint(format("\"{}\":\"x\"", key)), format("it has \"{}\", which is not read here", key));
  CHECK_CONTAINS(complaint(R"("conversations":[{"from":"human","value":"a"}])"),
                 "it has \"conversations\", which is not read here");
  CHECK_CONTAINS(complaint(R"("completion":"a")"), "both \"messages\" and \"completion\"");
  CHECK_CONTAINS(complaint(R"("weight":0)"), "its \"weight\" or \"train\" excludes it from training");
  BOOST_TEST(complaint(R"("weight":1,"id":7,"functions":[],"system":"","images":null)") == "");
  BOOST_TEST(unused.empty());
  BOOST_TEST(complaint(R"("prompt":"a","score":1)") == "");
  BOOST_TEST(unused == (std::set<std::string>{"\"prompt\"", "\"score\""}));
}
