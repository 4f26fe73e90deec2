// JSON as Python's json module reads it.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <string>

#include "support/files.hpp"
#include "support/messages.hpp"
#include "text/json_reader.hpp"

using namespace fsdp;

namespace {

std::string text_of(const std::string& line, std::size_t* replaced = nullptr) {
  std::string problem;
  const auto text = read_json_field(line, "text", problem, replaced);
  BOOST_TEST(text.has_value() == problem.empty());
  return text ? *text : "! " + problem;
}

}  // namespace

BOOST_AUTO_TEST_CASE(other_fields_never_cost_a_text) {
  for (const std::string other :
       {"NaN", "Infinity", "-Infinity", "1e999", "-0.0E-7", "true", "[[{\"text\": 1}], []]", "\"\xff\\ud83d\"", "\"\\u0000\""})
    for (const std::string& line : {"{\"x\":" + other + ", \"text\": \"a\"}", " {\"text\" : \"a\",\"x\":" + other + "}\r\n"})
      BOOST_TEST(text_of(line) == "a", line);
  BOOST_TEST(text_of("{\"n\":" + std::string(5000, '7') + ",\"text\":\"a\"}") == "a");
  BOOST_TEST(text_of("{\"n\":" + std::string(900, '[') + std::string(900, ']') + ",\"text\":\"a\"}") == "a");
  BOOST_TEST(text_of(R"({"text": 1, "te\u0078t": "a", "text": "b"})") == "b");  // the last of equal keys
}

BOOST_AUTO_TEST_CASE(what_python_refuses_is_refused) {
  for (const char* const line :
       {"", "{", "{\"text\":\"a\"", "{\"text\":\"a\",}", "{\"text\":\"a\"} x", "{\"text\":\"a\" \"b\":1}", "{text:\"a\"}",
        "{'text':'a'}", "{\"text\":\"a\",\"x\":nan}", "{\"text\":\"a\",\"x\":-NaN}", "{\"text\":\"a\",\"x\":01}",
        "{\"text\":\"a\",\"x\":1.}", "{\"text\":\"a\",\"x\":.5}", "{\"text\":\"a\",\"x\":+1}", "{\"text\":\"a\tb\"}",
        "{\"text\":\"a\",\"x\":\"\\x\"}", "{\"text\":\"a\",\"x\":\"\\u12g4\"}", "{\"text\":\"a\",\"x\":[1,]}",
        "{\"text\":\"a\",\"x\":[1 2]}"})
    CHECK_CONTAINS(text_of(line), "! it is not JSON: ");
  CHECK_CONTAINS(text_of("{\"text\":\"a\",\"x\":" + std::string(100000, '[')), "nested deeper");
  BOOST_TEST(text_of("[\"text\"]") == "! it is no object");
  BOOST_TEST(text_of("{\"txt\":\"a\"}") == "! it has no \"text\"");
  BOOST_TEST(text_of("{\"text\":null}") == "! its \"text\" is no text");
}

BOOST_AUTO_TEST_CASE(strings_are_those_of_python_with_replacements) {
  std::size_t replaced = 0;
  BOOST_TEST(text_of(R"({"text": "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"})", &replaced) == "\"\\/\b\f\n\r\t\u00e9\U0001f600");
  BOOST_TEST(replaced == 0u);
  BOOST_TEST(text_of("{\"text\": \"\\ud83d\\ud83d\\ude00\\ude00\xff\"}", &replaced) == "\ufffd\U0001f600\ufffd\ufffd");
  BOOST_TEST(replaced == 3u);
  for (std::size_t before = 0; before < 70; ++before)  // the reader scans whole blocks
    BOOST_TEST(text_of("{\"text\":\"" + std::string(before, 'x') + "\\n\u00e9\"}") == std::string(before, 'x') + "\n\u00e9");
}

BOOST_AUTO_TEST_CASE(files_of_a_model_are_read_as_python_reads_them) {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    test::write_file(folder / "a.json", text);
    return read_json_object(folder / "a.json");
  };
  const nlohmann::json object = read("\xef\xbb\xbf{\"a\": Infinity, \"b\": NaN, \"c\": \"x\\ud83d\", \"d\": 1}\n");
  BOOST_TEST((std::isinf(object["a"].get<double>()) && std::isnan(object["b"].get<double>()) && object["d"] == 1));
  BOOST_TEST(object["c"] == "x\ufffd");
  for (const auto& [text, problem] : {std::pair("{\"a\": nan}", "no value, at byte 6"),
                                      {"{\"a\": \"\xff\"}", "byte 7 is not UTF-8"},
                                      {"[1]", "it is another value"},
                                      {"{\"a\": ", "it ends too early"},
                                      {"", "it ends too early"}})
    CHECK_CONTAINS(test::message_of([&, text = text] { read(text); }),
                   "a.json' is not a JSON object (" + std::string(problem) + "); ");
}

BOOST_AUTO_TEST_CASE(values_as_a_whole) {
  std::string problem;
  const nlohmann::json value =
      read_json(R"({"a": [1, -2, 2.5, 18446744073709551616, NaN, true, null], "b": {"c": "d"}})", problem);
  BOOST_TEST(problem == "");
  BOOST_TEST(value["a"][0].is_number_unsigned());
  BOOST_TEST(value["a"][1] == -2);
  BOOST_TEST(value["a"][3] == 18446744073709551616.0);
  BOOST_TEST(std::isnan(value["a"][4].get<double>()));
  BOOST_TEST(value["b"]["c"] == "d");
  BOOST_TEST(read_json("{]", problem).is_discarded());
  BOOST_CHECK(end_of_json("x {\"a\": [\"}\"]} y", 1).kind == JsonEnd::whole);
  BOOST_TEST(end_of_json("x {\"a\": [\"}\"]} y", 1).at == 14u);
  for (const char* const open : {"{\"a\": [", "\"\\ud8", "tru", "-", "1e", "{\"a\"", " "})
    BOOST_CHECK(end_of_json(open, 0).kind == JsonEnd::open);
}
