// Templates that would take a node's memory or time. Each operation of the interpreter is repeated on large values, and must be
// stopped by the limits of steps and memory. The limits are small here, so that the test is fast.
#include <sys/resource.h>

#include <chrono>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "support/messages.hpp"
#include "text/jinja.hpp"

using namespace fsdp;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20, steps = JinjaTemplate::most_steps / 100,
                      bytes = JinjaTemplate::most_bytes / 16;

/// The largest memory of this process so far.
std::size_t peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) << 10;
}

/// Runs the template. Its message, or an empty text, must come soon, and the memory must not grow by much more than the limit.
std::string message_of_bomb(const std::string& source) {
  const std::size_t before = peak();
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    JinjaTemplate("t", source).render({}, steps, bytes);
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  BOOST_TEST(took.count() < 5, took.count() << " s");
  BOOST_TEST(peak() - before < 2 * bytes, (peak() - before) / mib << " MiB");
  return message;
}

bool is_limit(const std::string& message) {
  return message.find("it does more than 100000 steps") != message.npos ||
         message.find("it makes more than 32.0 MiB") != message.npos;
}

// s: a text of 4 MB; m: 10,000 messages; l: a list with 20,000 numbers; t: 10,000 texts; n, o: equal lists with 2^60 elements,
// which share their parts; k: a dictionary with n; f: an undefined value
const std::string values =
    "{% set s = ('a ' * 1000) * 2000 %}{% set l = range(20000) | list %}{% set t = ['ab\n'] * 10000 %}{% set f = q %}"
    "{% set ns = namespace(n=[1], o=[1]) %}{% for i in range(60) %}{% set ns.n = [ns.n, ns.n] %}{% set ns.o = [ns.o, ns.o] "
    "%}{% "
    "endfor %}{% set n = ns.n %}{% set o = ns.o %}{% set k = {'a': n} %}{% set m = [{'a': 'x', 'b': {'c': 1}}] * 10000 %}";

}  // namespace

BOOST_AUTO_TEST_CASE(each_operation_on_large_values_is_charged) {
  const std::vector<std::string> operations = {
      // Texts: parts and searches
      "s[3]", "s[-1]", "s[3:]", "s[:-1]", "s[::2]", "s[::-1]", "s[1:9:3]", "s['upper']", "'b' in s", "'b' not in s", "s in s",
      "s == s ~ ''", "s != s ~ ''", "s < s ~ 'b'", "s >= s", "s.find('b')", "s.find('a' * 5000 ~ 'b')", "s.startswith(s)",
      "s.endswith(('b', s))", "s | length", "s | count",
      // Texts: new ones
      "s.split()", "s.split('a')", "s.split(none, 3)", "s.split('b')", "s.strip()", "s.strip('a ')", "s.lstrip('a b')",
      "s.rstrip(s)", "s | trim", "s | trim('a ')", "s.upper()", "s.lower()", "s | upper", "s | lower", "s.title()", "s | title",
      "s.capitalize()", "s | capitalize", "s.replace('a', 'b')", "s.replace('', s)", "s | replace('a', s)",
      "s | replace(s, 'b')", "s | indent", "s | indent(s, true)", "t | join | indent(99999)", "s | string", "s | safe", "s + s",
      "s ~ s", "s ~ n", "s * 2", "2 * s", "'a' * 99999", "'a' * 999999999999", "(s | safe) ~ s", "s | reverse", "s | tojson",
      "s | tojson(true)", "s | list", "s | first", "s | last", "s | int", "s | default('x')", "s is string", "s is in s",
      "s | map('upper') | list", "s | sort", "s | join(s)", "s.join([s, s])", "s.join(t)",
      // Lists
      "l + l", "l * 2", "[l] * 99999999", "[0] * 999999999999", "l[1:]", "l[::-1]", "l == l + []", "'x' in l",
      "l | reverse | list", "l | sort", "l | sort(reverse=true)", "l | map('string') | list", "l | map('default', s) | list",
      "l | select | list", "l | select('odd') | list", "l | reject('in', l) | list", "l | join", "l | join(s)", "l | string",
      "l ~ ''", "l | tojson", "l | tojson(indent=s)", "l | tojson(separators=(s, s))", "t | join(',')", "t | sort | list",
      "m | map(attribute='a') | list", "m | map(attribute='q') | list", "m | map(attribute='b.c') | list",
      "m | map(attribute='a' * 99999) | list", "m | map(attribute='items') | list", "m | selectattr('a') | list",
      "m | selectattr('a', 'equalto', s) | list", "m | rejectattr('a') | list", "m | sort(attribute='a')",
      "m | tojson(sort_keys=true)", "t | map(attribute='strip') | list", "range(99999)", "range(99999, 0, -1) | list",
      "[s, s, s] | string", "(l, l) == (l + [], l)",
      // Shared parts, which are exponentially many
      "n == o", "n != o", "n in [o]", "n | string", "n ~ ''", "n | tojson", "n | tojson(indent=2)", "k | string", "k | tojson",
      "k == {'a': o}", "[k] | join", "n | map('string') | list", "n is eq o", "n is in [o]", "k | dictsort | string",
      "k.items() | list | string", "n | replace('a', 'b')", "n | upper", "n | trim", "raise_exception(n)",
      // Dictionaries and calls
      "dict([(s, 1)] * 100)", "dict(['ab'] * 1000)", "{'a': s} == {'a': s ~ ''}", "k.values() | list | string", "k[s]",
      "k.get(s)", "namespace(a=s)[s]", "{s: 1}", "dict({s: 1})", "f | default(s)", "([f] * 9999) | string"};
  const std::size_t before = peak();
  for (const std::string& operation : operations) BOOST_TEST_CONTEXT(operation) {
      const std::string message =
          message_of_bomb(values + "{% for i in range(99999) %}{% set x = " + operation + " %}{% endfor %}{{ 'done' }}");
      BOOST_TEST(is_limit(message), message);
    }
  BOOST_TEST(peak() - before < 4 * bytes, (peak() - before) / mib << " MiB");
}

BOOST_AUTO_TEST_CASE(templates_that_grow_are_stopped) {
  const std::string thousand = "{% for i in range(1000) %}", end = "{% endfor %}",
                    space = "{% set a = namespace(x=[], f=1, d={}) %}";
  const auto many = [](std::size_t n, const auto& one) {
    std::string all;
    for (std::size_t i = 0; i < n; ++i) all += one(i);
    return all;
  };
  const auto each = [&](const std::string& body) { return space + thousand + thousand + body + end + end; };
  struct Bomb {
    std::string source, ends;
  };
  const std::vector<Bomb> bombs = {
      // Values that grow
      {each("{% set a.x = a.x + [a.x] %}"), "levels"},
      {each("{% set a.x = [a.x, a.x] %}"), "levels"},
      {each("{% set a.x = {'b': a.x} %}"), "levels"},
      {each("{% set a.x = a.x + [i] %}"), "limit"},
      {each("{% set a.x = a.x + [namespace()] %}"), "limit"},
      {each("{% set a.x = namespace(b=a.x) %}"), "limit"},
      {each("{% set a.x = [namespace(b=a.x)] %}"), "limit"},
      {each("{% set a.x = 'a' ~ a.x %}"), "limit"},
      {each("{% set a.x = a.x ~ a.x %}"), "limit"},
      {each("{% set a.x = a.x | string | tojson %}"), "limit"},
      {each("{% set a.x = a.x | string | replace('[', '[[') %}"), "limit"},
      {each("{% set a.x = a.x | string | indent(99) ~ '\n' %}"), "limit"},
      {each("{% set a.x = (a.x, a.x | length) %}"), "levels"},
      {each("{% set a.x = dict({'k': a.x}) %}"), "levels"},
      {each("{% set a.x = [{'b': a.x}.get] %}"), "levels"},
      {each("{% set a.x = {'b': a.x}.get %}"), "levels"},
      {each("{% for j in [a.x] %}{% set a.x = loop %}{% endfor %}"), "levels"},
      {each("{% macro m() %}{% macro g() %}{% endmacro %}{% set a.f = g %}{% endmacro %}{{ m() }}"), "limit"},
      {space + "{% macro m(n) %}{% macro g(n) %}{{ n }}{% endmacro %}{% set a.f = m %}{% endmacro %}" + thousand + thousand +
           "{{ m(i) }}" + end + end,
       "limit"},
      {each("{% set b %}" + std::string(3000, 'x') + "{% endset %}{% set a.x = [a.x, b] | string %}"), "limit"},
      {thousand + thousand + std::string(3000, 'x') + end + end, "limit"},
      {each("{{ a.x }}{% set a.x = a.x | string + 'xxx' %}"), "limit"},
      {each("{% set b = [i] * 900 %}{% set a.x = [b] + a.x[:9] %}"), "limit"},
      {"{% set x = ['a'] * 200000 %}{{ x | map('upper') | map('lower') | map('title') | list | length }}", "limit"},
      {"{% set x = ['a'] * 200000 %}{{ x | map(attribute='upper') | list | length }}", "limit"},
      {"{% set x = [{}] * 200000 %}{{ x | map(attribute='abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz') | list | "
       "length }}",
       "limit"},
      {"{% set x = ['a' * 9000] * 90000 %}{{ x | join }}", "limit"},
      {"{% set x = ['a' * 9000] * 90000 %}{{ x }}", "limit"},
      {"{% set x = 'a' * 3000000 %}{% set a, b = x %}", "limit"},
      {"{% set x = 'a' * 3000000 %}{% for a in x if a == 'b' %}{% endfor %}", "limit"},
      {"{% set a = ['x'] * 100 %}{% set b = [a] * 100 %}{% set c = [b] * 100 %}{% set d = [c] * 100 %}{{ d }}", "limit"},
      {"{% set a = ['x'] * 100 %}{% set b = [a] * 100 %}{% set c = [b] * 100 %}{% set d = [c] * 100 %}{{ d | "
       "tojson(indent=9999) }}",
       "limit"},
      // Time
      {each("{% for j in range(1000) %}{% endfor %}"), "limit"},
      {each("{% for j in range(1000) if false %}{% else %}{% endfor %}"), "limit"},
      {each("{% set b = a.b %}"), "limit"},
      {each("{% if i is defined and i in [1, 2] and i is not none %}{% endif %}"), "limit"},
      {each("{{ strftime_now('%Y') }}"), "limit"},
      {each("{% set b, c = 'xy' %}"), "limit"},
      {many(9000, [](std::size_t i) { return format("{{% set a{} = 1 %}}", i); }) + each("{{ a8999 }}"), "limit"},
      {each("{{ " + std::string(90000, 'a') + " }}{{ " + std::string(89999, 'a') + "b }}"), "limit"},
      {"{% set d = {" + many(9000, [](std::size_t i) { return format("'a{}': 1, ", i); }) + "} %}" + each("{{ d.a8999 }}"),
       "limit"},
      {"{{ dict(" + many(30000, [](std::size_t i) { return format("a{}=1, ", i); }) + ") | length }}", "limit"},
      {"{% macro m(" + many(9000, [](std::size_t i) { return format("{}a{}=1", i ? ", " : "", i); }) + ") %}{% endmacro %}" +
           each("{{ m(a9=1, a8999=1) }}"),
       "limit"},
      // Depth
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep"},
      {"{% macro m(x) %}{{ x ~ m(x ~ x) }}{% endmacro %}{{ m('a') }}", "limit"},
      {"{% macro m(x) %}{% for i in [1, 2] %}{{ m(i) }}{% endfor %}{% endmacro %}{{ m(1) }}", "levels deep"},
      {"{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "limit"},
      {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "levels deep"},
      {"{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}", "levels"},
      {"{{ " + std::string(100000, '[') + "1" + std::string(100000, ']') + " }}", "levels"},
      {"{{ " + std::string(100000, '-') + "1 }}", "levels"},
      {"{{ " + many(100000, [](std::size_t) { return "not "; }) + "1 }}", "levels"},
      {"{{ 1" + many(100000, [](std::size_t) { return " + 1"; }) + " }}", "levels"},
      {"{{ 1" + many(50000, [](std::size_t) { return " if 1 else 1"; }) + " }}", "levels"},
      {"{{ a" + many(100000, [](std::size_t) { return ".a"; }) + " }}", "levels"},
      {"{{ 1" + many(100000, [](std::size_t) { return " | string"; }) + " }}", "levels"},
      {many(100000, [](std::size_t) { return "{% if 1 %}"; }), "levels"},
      {many(50000, [](std::size_t) { return "{% for x in y %}"; }), "levels"},
      {"{% include 't' %}", "not known here"},
      {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x" + many(300, [](std::size_t) { return ".x"; }) + " is none }}",
       ""},
      {"{{ 1" + many(40000, [](std::size_t) { return " < 1"; }) + " }}", ""},
      {"{{ [" + many(50000, [](std::size_t) { return "1, "; }) + "] | length }}", ""},
      {many(100000, [](std::size_t) { return "{"; }), "has no"}};
  const std::size_t before = peak();
  for (const auto& [source, ends] : bombs) BOOST_TEST_CONTEXT(source.substr(0, 300)) {
      const std::string message = message_of_bomb(source);
      BOOST_TEST((ends.empty()      ? message.empty()
                  : ends == "limit" ? is_limit(message)
                                    : message.find(ends) != message.npos),
                 message << ", not " << ends);
    }
  BOOST_TEST(peak() - before < 4 * bytes, (peak() - before) / mib << " MiB");
}
