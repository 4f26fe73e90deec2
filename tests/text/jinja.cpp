// The interpreter of Jinja templates. jobs.python_text compares it with Jinja on whole chat templates; here are its rules one
// by one, and what it refuses.
#include "text/jinja.hpp"

#include <boost/test/unit_test.hpp>

#include <ctime>
#include <string>
#include <vector>

#include "base/format.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using fsdp::test::message_of;

namespace {

JinjaTemplate::Variables variables() {
  const auto json = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "Héy"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
          "d": {"z": 1, "a": [1.0, null], "get": "k"}, "s": "a-b-c", "n": 5, "yes": true, "spaces": " x\n"})");
  JinjaTemplate::Variables all;
  for (const auto& [name, value] : json.items()) all.emplace_back(name, jinja::Value::of_json(value));
  return all;
}

std::string rendered(const std::string& source) { return JinjaTemplate("t.jinja", source).render(variables()).text; }

struct Example {
  const char *source, *text;
};

void check(const std::vector<Example>& examples) {
  for (const auto& [source, text] : examples) BOOST_TEST_CONTEXT(source) {
      BOOST_TEST(rendered(source) == text);
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(spaces_around_tags) {
  check({{"a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\nb\nc"},
         {"a\n  {% if yes %}  \nb\n  {%+ endif %}", "a\n  \nb\n  "},
         {"a {%- if yes -%} b {%- endif %} c", "ab c"},
         {"a\n  {{ n }}\n b", "a\n  5\n b"},
         {"a {{- n -}} b", "a5b"},
         {"a\n {# note #}\nb {#- note -#} c", "a\nbc"},
         {"{% if yes +%}\na{% endif %}", "\na"},
         {"a\r\nb\r{{ n }}\r\n", "a\nb\n5"},
         {"{ {n} }}", "{ {n} }}"},
         {"\n", ""},
         {"{{ {'a': {'b': n}}['a']['b'] }}", "5"}});
}

BOOST_AUTO_TEST_CASE(expressions) {
  check(
      {{"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "7 9 3 -4 2 3.5"},
       {"{{ 1 ~ 2 * 3 }} {{ 'a' + 'b' ~ 1 }}", "16 ab1"},
       {"{{ 1.0 }} {{ 100000000000000000000.0 }} {{ 0.1 + 0.2 }} {{ 0.0000001 }} {{ 6 / 3 }} {{ -0.0 }}",
        "1.0 1e+20 0.30000000000000004 1e-07 2.0 -0.0"},
       {"{{ true }} {{ none }} {{ [1, 'a', none] }} {{ {'a': true} }} {{ (1,) }} {{ () }}",
        "True None [1, 'a', None] {'a': True} (1,) ()"},
       {"{{ [\"it's\"] }} {{ ['a\"\\'b'] }} {{ ['\\n\\t\\x00é\\u200b'] }}", "[\"it's\"] ['a\"\\'b'] ['\\n\\t\\x00é\\u200b']"},
       {"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ not 1 }} {{ 'e' in 'Hey' }} {{ 2 not in [1] }} {{ "
        "'z' in d }}",
        "True False True True False True True True"},
       {"{{ yes and 'x' or 'y' }} {{ 0 or none or [] }} {{ 'a' if n == 5 else 'b' }} {{ 'a' if not n }}|", "x [] a |"},
       {"{{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[:-1:2] }} {{ s[9:] }} {{ [1, 2, 3][::-2] }} {{ "
        "messages[0].content[1] }}",
        "a c -b c-b-a ab  [3, 1] é"},
       {"{{ messages[-1]['role'] }} {{ d.a[0] }} {{ d.get('q', 3) }} {{ d['get'] }} {{ d.q is defined }} {{ messages.0.role }}",
        "user 1.0 3 k False user"},
       {"{{ 'a' 'b' }} {{ 'a' * 3 }} {{ [0] * 2 }}", "ab aaa [0, 0]"},
       {"{{ n is odd and n is not even }} {{ n is not string }} {{ messages is iterable }} {{ d is mapping }} {{ 'x' is "
        "in ['x'] }}",
        "True True True True True"},
       {"{# a comment with %} and }} #}", ""}});
}

BOOST_AUTO_TEST_CASE(filters_tests_and_methods) {
  check(
      {{"{{ ' a ' | trim }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na'.lstrip('\\n') }}|{{ 'é'.upper() }}|{{ 'hELLO wORLD' | "
        "capitalize }}|{{ 'a b-c' | title }}",
        "a|a|a|É|Hello world|A B-C"},
       {"{{ s.split('-') }} {{ s.split('-', 1) }} {{ 'ab' | replace('', '.') }} {{ ' a  b '.split() }} {{ ''.split() }} {{ "
        "''.split('x') }}",
        "['a', 'b', 'c'] ['a', 'b-c'] .a.b. ['a', 'b'] [] ['']"},
       {"{{ s.startswith('a-') }} {{ s.endswith(('x', 'c')) }} {{ s.find('c') }} {{ s.find('q') }} {{ "
        "s.replace('-', '+', 1) }}",
        "True True 4 -1 a+b-c"},
       {"{{ messages | length }} {{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', "
        "'equalto', 'user') | list | count }}",
        "3 user,assistant,user 2"},
       {"{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | first }} {{ ['a', '', 'b'] | select | "
        "list }} {{ ['a', 'B'] | map('upper') | list }}",
        "b ['a', 'b'] ['A', 'B']"},
       {"{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}", "[1]"},
       {"{{ d | tojson }} {{ d | tojson(indent=1) }} {{ 'é<\"' | tojson }} {{ 'é😀' | tojson(ensure_ascii=true) }} {{ {'b': "
        "1, 'a': []} | tojson(sort_keys=true, separators=(',', ':')) }}",
        "{\"z\": 1, \"a\": [1.0, null], \"get\": \"k\"} {\n \"z\": 1,\n \"a\": [\n  1.0,\n  null\n ],\n \"get\": \"k\"\n} "
        "\"é<\\\"\" \"\\u00e9\\ud83d\\ude00\" {\"a\":[],\"b\":1}"},
       {"{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}{{ d.keys() "
        "| list }}",
        "z=1;a=[1.0, None];get=k;agetz['z', 'a', 'get']"},
       {"{{ nothing | default('x') }} {{ '' | default('x') }} {{ '' | d('x', true) }} {{ nothing }}|{{ nothing is undefined "
        "}} {{ nothing | length }}",
        "x  x |True 0"},
       {"{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [1, 2] | last }} {{ 'ab' | reverse }}", "[1, 2, 3] ['A', 'b'] 2 ba"},
       {"{{ '3' | int }} {{ 'x' | int(9) }} {{ 3.7 | int }} {{ ' +2.5 ' | int }} {{ 5 | string ~ '!' }}", "3 9 3 2 5!"},
       {"{{ 'a\\nb' | indent(2) }} {{ '<b>' | safe }} {{ '<' ~ ('b' | safe) }} {{ '<b' == 'b' | safe }}",
        "a\n  b <b> <b False"},
       {"{{ ','.join(['a', 'b']) }} {{ 'a b-c'.title() }} {{ 'héy'[1:] }} {{ 'héy'[::-2] }} {{ 'héy'.find('y') }}",
        "a,b A B-C éy yh 2"},
       {"{{ range(3) | list }} {{ range(5, 1, -2) | list }} {{ dict(a=1) }} {{ none is none }} {{ 1 is "
        "integer }} {{ true is integer }} {{ 1 is eq 1 }}",
        "[0, 1, 2] [5, 3] {'a': 1} True True False True"}});
}

BOOST_AUTO_TEST_CASE(statements_and_scopes) {
  check({{"{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "121"},
         {"{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }} {{ ns['x'] }}",
          "4 4"},
         {"{% if n %}{% set y = 1 %}{% endif %}{{ y }}", "1"},
         {"{% for i in [5, 6, 7] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ "
          "loop.previtem }}{{ loop.nextitem }} {% endfor %}",
          "103TrueFalse6 212FalseFalse57 321FalseTrue6 "},
         {"{% for i in [1, 2, 3, 4, 5] if i % 2 %}{{ i }}/{{ loop.length }} {% endfor %}", "1/3 3/3 5/3 "},
         {"{% for i in [] %}a{% else %}b{% endfor %}{% for i in [1] %}a{% else %}b{% endfor %}", "ba"},
         // As in Jinja, `else` is run unless a pass has reached its end.
         {"{% for i in [1, 2] %}{{ i }}{% continue %}{% else %}b{% endfor %}", "12b"},
         {"{% for i in [1, 2] %}{{ i }}{% break %}{% else %}b{% endfor %}", "1b"},
         {"{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}b{% endfor %}", "12"},
         {"{% for i in [1, 2] if i > 2 %}a{% else %}b{% endfor %}", "b"},
         {"{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
          "13"},
         {"{% for a, b in [(1, (2, 3))] %}{{ a }}{{ b }}{% endfor %}{% set p, q = 'xy' %}{{ q ~ p }}", "1(2, 3)yx"},
         {"{% for i in [1, 2] %}{% for j in [1] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "1112"},
         {"{% macro m(a, b='y', c=a) %}[{{ a }}{{ b }}{{ c }}{{ n }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m('q', 'r') | "
          "upper }}{{ m() }}",
          "[1y15][1y35][QRQ5][y5]"},
         {"{% macro f(k) %}{{ k }}{% if k %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
         {"{% set t %}a{% set inner = 1 %}{{ n }}{% endset %}{{ t | length }}{{ inner is defined }}", "2False"},
         {"{% for m in messages %}{% set m = m.content %}{{ m }}{% endfor %}{% set messages = messages[1:] %}{{ messages | "
          "length }}",
          "Héybc2"}});
  const std::time_t now = std::time(nullptr);
  BOOST_TEST(std::stoi(rendered("{{ strftime_now('%Y') }}")) - (1900 + std::localtime(&now)->tm_year) <= 1);
}

BOOST_AUTO_TEST_CASE(generation_blocks_and_passes_over_messages_are_found) {
  const JinjaTemplate jinja("t",
                            "{{ s }}{% for m in messages[1:] %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
                            "m.content }}!{% endgeneration %}{% endif %}{% endfor %}.");
  BOOST_TEST(jinja.has_generation());
  const JinjaOutput made = jinja.render(variables());
  BOOST_TEST(made.text == "a-b-c<assistant>b!<user>.");
  const auto part = [&](const TextSpan& span) { return made.text.substr(span.begin, span.end - span.begin); };
  BOOST_TEST_REQUIRE(made.generated.size() == 1u);
  BOOST_TEST(part(made.generated[0]) == "b!");
  BOOST_TEST_REQUIRE(made.messages.size() == 3u);
  BOOST_TEST(part(made.messages[0]) == "");
  BOOST_TEST(part(made.messages[1]) == "<assistant>b!");
  BOOST_TEST(part(made.messages[2]) == "<user>");
  BOOST_TEST((jinja.mentions("role") && jinja.mentions("assistant") && !jinja.mentions("tools")));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_said_with_its_place) {
  const Example errors[] = {
      {"a\n{{ 'é' ~ x.y }}", "t.jinja, line 2, column 11: 'x' is undefined"},
      {"{{ messages[0].name.first }}", "'name' of a dict is undefined"},
      {"{{ n + 'a' }}", "column 6: '+' does not work with int and str"},
      {"{{ nothing + 'a' }}", "'nothing' is undefined"},
      {"{{ nothing() }}", "'nothing' is undefined"},
      {"{{ s() }}", "str is called, which is no function"},
      {"{{ n | frobnicate }}", "line 1, column 8: the filter 'frobnicate' is not known here"},
      {"{{ n is frobnicated }}", "the test 'frobnicated' is not known here"},
      {"{{ s.casefold() }}", "'casefold' of a str is undefined, or not known here"},
      {"{{ '{:>999999999}'.format(1) }}", "line 1, column 26: 'format' of a str is undefined, or not known here"},
      {"{{ '%..f' % 1.5 }}", "line 1, column 11: '%' with a text is not known here"},
      {"{{ messages.index(1) }}", "'index' of a list is undefined, or not known here"},
      {"{% for i in [1] %}{{ loop.cycle(1) }}{% endfor %}", "'cycle' of the loop is undefined, or not known here"},
      {"{{ n | abs }}", "line 1, column 8: the filter 'abs' is not known here"},
      {"{{ n is divisibleby 2 }}", "the test 'divisibleby' is not known here"},
      {"{{ messages.append(1) }}", "'append' of a list is undefined, or not known here"},
      {"{{ d.update(a=1) }}", "'update' of a dict is undefined, or not known here"},
      {"{% set d.x = 1 %}", "only a namespace can change"},
      {"{% set ns = namespace() %}{% set ns._x = 1 %}", "begins with '_'"},
      {"{% set a, b = [1] %}", "1 value are assigned to 2 names"},
      {"{{ 1 // 0 }}", "divided by zero"},
      {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
      {"{% for x in 5 %}{% endfor %}", "int has no elements"},
      {"{{ [1] | map('upper') | length }}", "generator has no length"},
      {"{{ 1 < 'a' }}", "int and str have no order"},
      {"{{ nothing | tojson }}", "'nothing' is undefined, which cannot be written as JSON"},
      {"{{ s.replace('a') }}", "'replace' needs the argument 'new'"},
      {"{{ s | trim('a', 'b') }}", "'trim' takes 1 argument, not 2"},
      {"{{ s | default(c=1) }}", "'default' has no argument 'c'"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "the macro 'm' takes 1 argument, not 2"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "has no argument 'b'"},
      {"{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}{{ m() }}", "'generation' in a macro"},
      {"{{ {1: 2} }}", "a key of a dictionary is no text, but int"},
      {"{% set x = ['a' | safe] %}{{ x[0].upper() }}", "a text that is 'safe' is used"},
      {"{{ '<' + ('a' | safe) }}", "a text that is 'safe' is used"},
      {"{{ [1] | map(attribute='a', default=1) | list }}", "'map' with the argument 'default' is not known here"},
      {"{{ '\\0' }}", "'\\0' is not known in a text"},
      // Not Jinja, or not known
      {"a\n b {% include 'x' %}", "line 2, column 7: the tag 'include' is not known here"},
      {"{% call m() %}{% endcall %}", "the tag 'call' is not known here"},
      {"{% raw %}{% endraw %}", "the tag 'raw' is not known here"},
      {"{{ 1e3 }}", "a number ends with a letter"},
      {"{% for x in y recursive %}{% endfor %}", "'recursive' is not known here"},
      {"{{ f(*x) }}", "arguments with '*' are not known here"},
      {"{{ kwargs }}", "'kwargs' is not known here"},
      {"{% if n %}a", "line 1, column 11: 'endif' is missing"},
      {"{% endfor %}", "the tag 'endfor' is not known here"},
      {"{{ n", "'{{' has no '}}'"},
      {"{{ n ) }}", "')' closes nothing"},
      {"{{ 'a }}", "a text in quotes does not end"},
      {"{{ n n }}", "'}}' is expected, not 'n'"},
      {"{{ }}", "a value is expected, not '}}'"},
      {"{# a", "a comment does not end"},
      {"{% break %}", "'break' is in no loop"},
      {"{{ 2 ** 3 }}", "'}}' is expected, not '**'"},
      {"{{ é\u2028x }}", "'}}' is expected, not 'x'"},
      {"{{ a€ }}", "line 1, column 5: the character U+20AC is not expected"},
      {"{{ 99999999999999999999 }}", "the number 99999999999999999999 is not accepted"},
  };
  for (const auto& [source, text] : errors) BOOST_TEST_CONTEXT(source) {
      CHECK_CONTAINS(message_of([&, source = source] { rendered(source); }), text);
    }
  const JinjaTemplate refusing("t.jinja", "\n {{ raise_exception('Only ' ~ n ~ '!') }}");
  CHECK_CONTAINS(message_of<TemplateRefusal>([&] { refusing.render(variables()); }), "Only 5! (t.jinja, line 2, column ");
}

// jinja_bombs.cpp tests the limits with smaller numbers; here are their messages for users.
BOOST_AUTO_TEST_CASE(a_template_has_limits) {
  const std::string thousand = "{% for i in range(1000) %}", end = "{% endfor %}";
  const std::pair<std::string, const char*> errors[] = {
      {thousand + thousand + thousand + end + end + end, "it does more than 10000000 steps"},
      {"{{ 'a' * 999999999999 }}", "it makes more than 512 MiB of text and lists"},
      {std::string(JinjaTemplate::longest_source + 1, 'a'), "the chat template t.jinja has more than 1.00 MiB"},
      {"{{ range(999999999) }}", "range() has more than 100000 numbers"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it calls itself, or is nested, more than 1000 levels deep"},
      {"{% set ns = namespace(x=[]) %}" + thousand + "{% set ns.x = [ns.x] %}" + end, "a value has more than 200 levels"},
  };
  for (const auto& [source, text] : errors) CHECK_CONTAINS(message_of([&, &of = source] { rendered(of); }), text);
  // Values that refer to themselves are freed.
  BOOST_TEST(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.me.me == ns }}") == "True");
}
