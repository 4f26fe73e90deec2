// Records of ShareGPT's and Alpaca's forms, and with other names.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "support/messages.hpp"
#include "text/record_form.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Json = nlohmann::ordered_json;

/// What the reader makes of a record, or the problem.
std::string made(const RecordForm& form, const std::string& record) {
  std::string problem;
  const Json read = RecordReader(form).read(Json::parse(record), problem);
  return problem.empty() ? read.dump() : problem;
}

}  // namespace

BOOST_AUTO_TEST_CASE(sharegpt) {
  const RecordForm form = {"sharegpt"};
  BOOST_TEST(
      made(
          form,
          R"({"id":7,"conversations":[{"from":"system","value":"s"},{"from":"human","value":"a"},{"from":"gpt","value":"b","weight":0}]})") ==
      R"({"id":7,"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0}]})");
  BOOST_TEST(
      made(form, R"({"system":"s","tools":"[]","conversations":[{"from":"user","value":"a"},
                 {"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},{"from":"observation","value":"1"},
                 {"from":"assistant","value":"b"}]})") ==
      R"({"tools":"[]","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]},)"
      R"({"role":"tool","content":"1"},{"role":"assistant","content":"b"}]})");
  BOOST_TEST(made({"sharegpt", "conversations=dialog,from=who,value=what,human=student,gpt=teacher"},
                  R"({"dialog":[{"who":"student","what":"a"},{"who":"teacher","what":"b"}]})") ==
             R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  BOOST_TEST(made(form, R"({"messages":[]})") == "it has no list \"conversations\"");
  BOOST_TEST(made(form, R"({"conversations":[{"from":"narrator","value":"a"}]})") ==
             "its \"conversations\" has an element whose \"from\" is 'narrator', which is no role that is known");
  CHECK_CONTAINS(made(form, R"({"conversations":[{"value":"a"}]})"), "whose \"from\" is missing or no text");
  CHECK_CONTAINS(made(form, R"({"conversations":["a"]})"), "whose \"from\" is missing or no text");
  CHECK_CONTAINS(made(form, R"-({"conversations":[{"from":"function_call","value":"f(1)"}]})-"),
                 "function_call that is no JSON");
}

BOOST_AUTO_TEST_CASE(alpaca) {
  const RecordForm form = {"alpaca"};
  BOOST_TEST(made(form, R"({"instruction":"a","input":"b","output":"c","text":"abc"})") ==
             R"({"text":"abc","messages":[{"role":"user","content":"a\nb"},{"role":"assistant","content":"c"}]})");
  BOOST_TEST(made(form, R"({"instruction":"a","input":"","output":"c","system":"s","history":[["x","y"]]})") ==
             R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"},{"role":"assistant","content":"y"},)"
             R"({"role":"user","content":"a"},{"role":"assistant","content":"c"}]})");
  BOOST_TEST(made(form, R"({"instruction":"a","input":null,"output":"c","system":null,"history":null})") ==
             R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c"}]})");
  BOOST_TEST(made({"alpaca", "instruction=q,output=a"}, R"({"q":"a","a":"c"})") ==
             R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c"}]})");
  BOOST_TEST(made(form, R"({"instruction":"a"})") == "its \"output\" is missing or is no text");
  BOOST_TEST(made(form, R"({"output":"a"})") == "its \"instruction\" is missing or is no text");
  BOOST_TEST(made(form, R"({"instruction":"a","input":3,"output":"c"})") == "its \"input\" is missing or is no text");
  BOOST_TEST(made(form, R"({"instruction":"a","output":"c","history":[["x"]]})") ==
             "its \"history\" is no list of pairs of a prompt and an answer");
}

BOOST_AUTO_TEST_CASE(other_names_of_messages) {
  BOOST_TEST(made({"messages", "messages=turns,role=who"}, R"({"turns":[{"who":"user","content":"a"}],"n":1})") ==
             R"({"messages":[{"role":"user","content":"a"}],"n":1})");
  BOOST_TEST(made({"messages", "prompt=question,completion=answer"}, R"({"question":"a","answer":"b"})") ==
             R"({"prompt":"a","completion":"b"})");
  BOOST_TEST(made({}, R"({"messages":[{"role":"user"}],"from":"x"})") == R"({"messages":[{"role":"user"}],"from":"x"})");
  for (const char* const wrong : {"from=who", "messages", "messages=", "=a", "messages=a,,role=b"})
    CHECK_CONTAINS(message_of([&] { RecordReader({"messages", wrong}); }), "renames nothing of the form messages");
}
