#include "text/jinja_functions.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include <unicode/uchar.h>

#include "base/format.hpp"
#include "text/utf8.hpp"

namespace fsdp::jinja {

namespace {

/// The arguments of a call by the order of the parameters; null if not given.
struct Call {
  const Value& self;
  const Arguments& all;
  Budget& budget;
  std::vector<const Value*> args = {};

  const Value* operator[](std::size_t i) const { return i < args.size() ? args[i] : nullptr; }
  bool has(std::size_t i) const { return (*this)[i] && !(*this)[i]->is_none(); }
  bool is(std::size_t i, bool otherwise = false) const { return (*this)[i] ? truth(*(*this)[i]) : otherwise; }
  std::int64_t whole(std::size_t i, std::int64_t otherwise) const { return has(i) ? integer(*(*this)[i]) : otherwise; }
  const std::string& text(std::size_t i) const {
    if (!(*this)[i]->text()) throw Problem(format("argument {} must be a text, not {}", i + 1, type_of(*(*this)[i])));
    return *(*this)[i]->text();
  }
};

/// A filter, test, method or function. `parameters` are names with spaces between them; `*` stands for any arguments.
struct Row {
  std::string_view names, parameters;
  std::size_t required;
  Value (*run)(const Call&);
};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool is_word_in(std::string_view word, std::string_view words) {
  for (std::size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1))
    if ((at == 0 || words[at - 1] == ' ') && (at + word.size() == words.size() || words[at + word.size()] == ' ')) return true;
  return false;
}

template <std::size_t n>
const Row* find_row(const Row (&rows)[n], std::string_view name) {
  const Row* const end = rows + n;
  const Row* const row = std::find_if(rows, end, [&](const Row& one) { return !name.empty() && is_word_in(name, one.names); });
  return row == end ? nullptr : row;
}

Value run(const Row& row, std::string_view name, const Value& self, const Arguments& arguments, Budget& budget) {
  Call call{self, arguments, budget};
  if (row.parameters != "*") {
    const std::vector<std::string_view> parameters = words_of(row.parameters);
    call.args.assign(parameters.size(), nullptr);
    if (arguments.values.size() > parameters.size())
      throw Problem(format("'{}' takes {}, not {}", name, plural(parameters.size(), "argument"), arguments.values.size()));
    for (std::size_t i = 0; i < arguments.values.size(); ++i) call.args[i] = &arguments.values[i];
    for (const auto& [key, value] : arguments.named) {
      const auto place = std::find(parameters.begin(), parameters.end(), key);
      if (place == parameters.end()) throw Problem(format("'{}' has no argument '{}'", name, excerpt(key)));
      call.args[static_cast<std::size_t>(place - parameters.begin())] = &value;
    }
    for (std::size_t i = 0; i < row.required; ++i)
      if (!call.args[i]) throw Problem(format("'{}' needs the argument '{}'", name, parameters[i]));
  }
  Value result = row.run(call);
  if (const std::string* const text = result.text()) budget.make(text->size());
  if (result.items()) budget.make(result.items()->size() * sizeof(Value));
  return result;
}

// Texts

/// Removes characters from the ends: those of `set`, or spaces.
std::string stripped(const std::string& text, const Value* set, bool left, bool right) {
  if (!set || set->is_none()) return strip(text, left, right, is_python_space);
  if (!set->text()) throw Problem("the characters to be removed must be a text");
  const std::u32string letters = characters(text), removed = characters(*set->text());
  std::size_t begin = 0, end = letters.size();
  while (left && begin < end && removed.find(letters[begin]) != removed.npos) ++begin;
  while (right && end > begin && removed.find(letters[end - 1]) != removed.npos) --end;
  return utf8(std::u32string_view(letters).substr(begin, end - begin));
}

std::string replaced(const std::string& text, const std::string& old, const std::string& by, std::int64_t most,
                     Budget& budget) {
  std::string all;
  std::size_t at = 0;
  for (std::int64_t done = 0; done != most; ++done) {
    if (old.empty()) {
      if (at > text.size()) break;
      all += by;
      const std::size_t begin = at;
      if (at < text.size())
        next_character(text, at);
      else
        ++at;
      all += text.substr(std::min(begin, text.size()), at - begin);
      budget.make(by.size() + 4);
      continue;
    }
    const std::size_t found = text.find(old, at);
    if (found == text.npos) break;
    budget.make(found - at + by.size());
    all.append(text, at, found - at);
    all += by;
    at = found + old.size();
  }
  if (at < text.size()) all.append(text, at);
  return all;
}

std::string capitalized(const std::string& text) {
  if (text.empty()) return text;
  std::size_t at = 0;
  const char32_t first = next_character(text, at);
  std::string all;
  append_utf8(all, static_cast<char32_t>(u_totitle(static_cast<UChar32>(first))));
  return all + lower(text.substr(at));
}

/// The filter `title`: words begin after spaces, hyphens and opening brackets.
std::string with_titles(const std::string& text) {
  std::string all, word;
  const auto end_word = [&] {
    if (word.empty()) return;
    std::size_t at = 0;
    next_character(word, at);
    all += upper(word.substr(0, at)) + lower(word.substr(at));
    word.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    if (is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      end_word();
      all += text.substr(begin, at - begin);
    } else {
      word += text.substr(begin, at - begin);
    }
  }
  end_word();
  return all;
}

/// str.title(): a word begins with each letter that follows something else.
std::string python_title(const std::string& text) {
  std::string all;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(next_character(text, at));
    append_utf8(all, static_cast<char32_t>(in_word ? u_tolower(c) : u_totitle(c)));
    in_word = u_hasBinaryProperty(c, UCHAR_CASED);
  }
  return all;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_character(text, at);
    const bool is_end = (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!is_end) continue;
    lines.push_back(text.substr(begin, end - begin));
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Value list_of_texts(const std::vector<std::string>& texts, Shape shape = Shape::list) {
  std::vector<Value> all;
  for (const std::string& one : texts) all.emplace_back(one);
  return Value::list(std::move(all), shape);
}

/// str.split() and str.rsplit(): at `separator`, or at spaces.
std::vector<std::string> split_text(const std::string& text, const Value* separator, std::int64_t most, bool from_right) {
  std::vector<std::string> parts;
  const auto is_full = [&] { return most >= 0 && static_cast<std::int64_t>(parts.size()) == most; };
  if (separator && !separator->is_none()) {
    if (!separator->text() || separator->text()->empty()) throw Problem("a text is split at a text that is not empty");
    const std::string& by = *separator->text();
    std::size_t begin = 0, end = text.size();
    while (!is_full()) {
      const std::size_t found =
          from_right ? (end < by.size() ? text.npos : text.rfind(by, end - by.size())) : text.find(by, begin);
      if (found == text.npos) break;
      if (from_right) {
        parts.push_back(text.substr(found + by.size(), end - found - by.size()));
        end = found;
      } else {
        parts.push_back(text.substr(begin, found - begin));
        begin = found + by.size();
      }
    }
    parts.push_back(text.substr(begin, end - begin));
  } else {
    const std::u32string letters = characters(text);
    std::vector<std::pair<std::size_t, std::size_t>> words;
    for (std::size_t at = 0; at < letters.size();) {
      while (at < letters.size() && is_python_space(letters[at])) ++at;
      const std::size_t begin = at;
      while (at < letters.size() && !is_python_space(letters[at])) ++at;
      if (at > begin) words.emplace_back(begin, at);
    }
    const std::u32string_view all = letters;
    if (from_right) std::reverse(words.begin(), words.end());
    for (const auto& [begin, end] : words) {
      if (is_full()) {
        parts.push_back(from_right ? strip(utf8(all.substr(0, end)), true, true, is_python_space)
                                   : strip(utf8(all.substr(begin)), true, false, is_python_space));
        break;
      }
      parts.push_back(utf8(all.substr(begin, end - begin)));
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

/// str.format(), for fields that are empty, a number or a name.
std::string formatted(const std::string& pattern, const Arguments& arguments) {
  std::string all;
  std::size_t next = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if ((c == '{' || c == '}') && at + 1 < pattern.size() && pattern[at + 1] == c) {
      all += c;
      ++at;
    } else if (c == '{') {
      const std::size_t end = pattern.find('}', at);
      if (end == pattern.npos) throw Problem("format() has a '{' without '}'");
      const std::string field = pattern.substr(at + 1, end - at - 1);
      const bool is_number = field.find_first_not_of("0123456789") == field.npos && field.size() < 4;
      const Value* value = nullptr;
      if (is_number) {
        const std::size_t i = field.empty() ? next++ : std::stoul(field);
        if (i < arguments.values.size()) value = &arguments.values[i];
      }
      for (const auto& [name, one] : arguments.named)
        if (name == field) value = &one;
      if (!value)
        throw Problem(
            format("format() has no value for '{{{}}}' (fields with ':', '!' or '.' are not known here)", excerpt(field)));
      all += str(*value);
      at = end;
    } else {
      if (c == '}') throw Problem("format() has a '}' without '{'");
      all += c;
    }
  }
  return all;
}

std::string indented(const Call& call) {
  const std::string by = call[0] && call[0]->text()
                             ? *call[0]->text()
                             : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(call.whole(0, 4), 0, 1000)), ' ');
  std::string all;
  bool first = true;
  for (const std::string& line : lines_of(str(call.self) + "\n")) {
    call.budget.make(by.size() + line.size() + 1);
    if (!first) all += '\n';
    if (first ? call.is(1) : (!line.empty() || call.is(2))) all += by;
    all += line;
    first = false;
  }
  return all;
}

/// True if there is a letter with case, and all of these satisfy `is`.
bool is_all_cased(const std::string& text, UBool (*is)(UChar32)) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(next_character(text, at));
    if (!u_hasBinaryProperty(c, UCHAR_CASED)) continue;
    if (!is(c)) return false;
    found = true;
  }
  return found;
}

template <class Is>
bool is_all(const std::string& text, const Is& is) {
  for (std::size_t at = 0; at < text.size();)
    if (!is(static_cast<UChar32>(next_character(text, at)))) return false;
  return !text.empty();
}

const std::string& self_text(const Call& call) { return *call.self.text(); }

std::string padded(const Call& call, bool left, bool right) {
  const std::string fill = call.has(1) ? call.text(1) : " ";
  const std::int64_t missing = std::max<std::int64_t>(0, integer(*call[0]) - static_cast<std::int64_t>(length(call.self)));
  call.budget.make(static_cast<std::size_t>(missing) * fill.size());
  const auto fills = [&](std::int64_t n) {
    std::string all;
    for (; n > 0; --n) all += fill;
    return all;
  };
  const std::int64_t width = integer(*call[0]), before = left && right ? missing / 2 + (missing & width & 1)
                                                         : left        ? missing
                                                                       : 0;
  return fills(before) + self_text(call) + fills(missing - before);
}

/// str.find() and str.rfind(): the place counted in characters, or -1.
std::int64_t place_in(const std::string& text, const std::string& part, bool last) {
  const std::size_t at = last ? text.rfind(part) : text.find(part);
  return at == text.npos ? -1 : static_cast<std::int64_t>(length(text.substr(0, at)));
}

bool has_end(const Call& call, bool (*is)(const std::string&, const std::string&)) {
  if (const std::vector<Value>* const several = call[0]->items())
    return std::any_of(several->begin(), several->end(),
                       [&](const Value& one) { return one.text() && is(self_text(call), *one.text()); });
  return is(self_text(call), call.text(0));
}

Value partitioned(const Call& call, bool last) {
  const std::string &text = self_text(call), by = call.text(0);
  if (by.empty()) throw Problem("a text is split at a text that is not empty");
  const std::size_t at = last ? text.rfind(by) : text.find(by);
  if (at == text.npos)
    return list_of_texts(last ? std::vector<std::string>{"", "", text} : std::vector<std::string>{text, "", ""}, Shape::tuple);
  return list_of_texts({text.substr(0, at), by, text.substr(at + by.size())}, Shape::tuple);
}

std::string joined_texts(const std::vector<Value>& items, const std::string& by, bool strict, Budget& budget) {
  std::string all;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (strict && !items[i].text()) throw Problem(format("join() takes texts, not {}", type_of(items[i])));
    const std::string one = str(items[i]);
    budget.make(by.size() + one.size());
    all += (i == 0 ? "" : by) + one;
  }
  return all;
}

const Row text_methods[] = {
    {"strip", "chars", 0,
     [](const Call& c) -> Value {
       return {stripped(self_text(c), c[0], true, true), c.self.is_safe()};
     }},
    {"lstrip", "chars", 0,
     [](const Call& c) -> Value {
       return {stripped(self_text(c), c[0], true, false), c.self.is_safe()};
     }},
    {"rstrip", "chars", 0,
     [](const Call& c) -> Value {
       return {stripped(self_text(c), c[0], false, true), c.self.is_safe()};
     }},
    {"split", "sep maxsplit", 0,
     [](const Call& c) -> Value { return list_of_texts(split_text(self_text(c), c[0], c.whole(1, -1), false)); }},
    {"rsplit", "sep maxsplit", 0,
     [](const Call& c) -> Value { return list_of_texts(split_text(self_text(c), c[0], c.whole(1, -1), true)); }},
    {"splitlines", "", 0, [](const Call& c) -> Value { return list_of_texts(lines_of(self_text(c))); }},
    {"partition", "sep", 1, [](const Call& c) -> Value { return partitioned(c, false); }},
    {"rpartition", "sep", 1, [](const Call& c) -> Value { return partitioned(c, true); }},
    {"startswith", "prefix", 1,
     [](const Call& c) -> Value {
       return has_end(c, [](const std::string& a, const std::string& b) { return a.starts_with(b); });
     }},
    {"endswith", "suffix", 1,
     [](const Call& c) -> Value {
       return has_end(c, [](const std::string& a, const std::string& b) { return a.ends_with(b); });
     }},
    {"removeprefix", "prefix", 1,
     [](const Call& c) -> Value {
       return self_text(c).starts_with(c.text(0)) ? self_text(c).substr(c.text(0).size()) : self_text(c);
     }},
    {"removesuffix", "suffix", 1,
     [](const Call& c) -> Value {
       return self_text(c).ends_with(c.text(0)) ? self_text(c).substr(0, self_text(c).size() - c.text(0).size()) : self_text(c);
     }},
    {"replace", "old new count", 2,
     [](const Call& c) -> Value { return replaced(self_text(c), c.text(0), c.text(1), c.whole(2, -1), c.budget); }},
    {"upper", "", 0, [](const Call& c) -> Value { return upper(self_text(c)); }},
    {"lower", "", 0, [](const Call& c) -> Value { return lower(self_text(c)); }},
    {"capitalize", "", 0, [](const Call& c) -> Value { return capitalized(self_text(c)); }},
    {"title", "", 0, [](const Call& c) -> Value { return python_title(self_text(c)); }},
    {"find", "sub", 1, [](const Call& c) -> Value { return place_in(self_text(c), c.text(0), false); }},
    {"rfind", "sub", 1, [](const Call& c) -> Value { return place_in(self_text(c), c.text(0), true); }},
    {"index", "sub", 1,
     [](const Call& c) -> Value {
       const std::int64_t at = place_in(self_text(c), c.text(0), false);
       if (at < 0) throw Problem(format("index() does not find '{}'", excerpt(c.text(0))));
       return at;
     }},
    {"count", "sub", 1,
     [](const Call& c) -> Value {
       const std::string &text = self_text(c), part = c.text(0);
       if (part.empty()) return static_cast<std::int64_t>(length(c.self) + 1);
       std::int64_t n = 0;
       for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
       return n;
     }},
    {"join", "iterable", 1, [](const Call& c) -> Value { return joined_texts(elements(*c[0]), self_text(c), true, c.budget); }},
    {"format", "*", 0, [](const Call& c) -> Value { return formatted(self_text(c), c.all); }},
    {"isdigit", "", 0,
     [](const Call& c) -> Value {
       return is_all(self_text(c), [](UChar32 a) {
         return u_charDigitValue(a) >= 0 || u_getIntPropertyValue(a, UCHAR_NUMERIC_TYPE) == U_NT_DIGIT;
       });
     }},
    {"isdecimal", "", 0,
     [](const Call& c) -> Value {
       return is_all(self_text(c), [](UChar32 a) { return u_charType(a) == U_DECIMAL_DIGIT_NUMBER; });
     }},
    {"isalpha", "", 0,
     [](const Call& c) -> Value {
       return is_all(self_text(c), [](UChar32 a) { return (U_MASK(u_charType(a)) & U_GC_L_MASK) != 0; });
     }},
    {"isspace", "", 0,
     [](const Call& c) -> Value {
       return is_all(self_text(c), [](UChar32 a) { return is_python_space(static_cast<char32_t>(a)); });
     }},
    {"isupper", "", 0, [](const Call& c) -> Value { return is_all_cased(self_text(c), u_isUUppercase); }},
    {"islower", "", 0, [](const Call& c) -> Value { return is_all_cased(self_text(c), u_isULowercase); }},
    {"zfill", "width", 1,
     [](const Call& c) -> Value {
       const std::string& text = self_text(c);
       const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
       const std::int64_t missing = std::max<std::int64_t>(0, integer(*c[0]) - static_cast<std::int64_t>(length(c.self)));
       c.budget.make(static_cast<std::size_t>(missing));
       return text.substr(0, sign) + std::string(static_cast<std::size_t>(missing), '0') + text.substr(sign);
     }},
    {"ljust", "width fillchar", 1, [](const Call& c) -> Value { return padded(c, false, true); }},
    {"rjust", "width fillchar", 1, [](const Call& c) -> Value { return padded(c, true, false); }},
    {"center", "width fillchar", 1, [](const Call& c) -> Value { return padded(c, true, true); }},
};
constexpr std::string_view other_text_methods =
    "casefold encode expandtabs format_map isalnum isascii isidentifier isnumeric isprintable istitle maketrans rindex "
    "swapcase translate";

// Lists and dictionaries

Value pair_of(const std::string& key, const Value& value) { return Value::list({key, value}, Shape::tuple); }

Value pairs_of(const Dict& dict, Shape shape) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries) pairs.push_back(pair_of(key, value));
  return Value::list(std::move(pairs), shape);
}

const Row dict_methods[] = {
    {"get", "key default", 1,
     [](const Call& c) -> Value {
       const Value* const found = c[0]->text() ? c.self.dict()->find(*c[0]->text()) : nullptr;
       return found ? *found : c[1] ? *c[1] : Value(None());
     }},
    {"items", "", 0, [](const Call& c) -> Value { return pairs_of(*c.self.dict(), Shape::view); }},
    {"keys", "", 0, [](const Call& c) -> Value { return Value::list(elements(c.self), Shape::view); }},
    {"values", "", 0,
     [](const Call& c) -> Value {
       std::vector<Value> all;
       for (const auto& entry : c.self.dict()->entries) all.push_back(entry.second);
       return Value::list(std::move(all), Shape::view);
     }},
    {"copy", "", 0, [](const Call& c) -> Value { return c.self; }},
};
constexpr std::string_view dict_changes = "clear pop popitem setdefault update fromkeys";

const Row list_methods[] = {
    {"index", "value", 1,
     [](const Call& c) -> Value {
       const auto& all = *c.self.items();
       const auto found = std::find_if(all.begin(), all.end(), [&](const Value& one) { return equal(one, *c[0]); });
       if (found == all.end()) throw Problem("index() does not find the value");
       return static_cast<std::int64_t>(found - all.begin());
     }},
    {"count", "value", 1,
     [](const Call& c) -> Value {
       return static_cast<std::int64_t>(
           std::count_if(c.self.items()->begin(), c.self.items()->end(), [&](const Value& one) { return equal(one, *c[0]); }));
     }},
    {"copy", "", 0, [](const Call& c) -> Value { return c.self; }},
};
constexpr std::string_view list_changes = "append clear extend insert pop remove reverse sort";

const Row loop_methods[] = {
    {"cycle", "*", 0,
     [](const Call& c) -> Value {
       if (c.all.values.empty()) throw Problem("cycle() needs values");
       return c.all.values[(*c.self.as<std::shared_ptr<Loop>>())->index % c.all.values.size()];
     }},
    {"changed", "*", 0,
     [](const Call& c) -> Value {
       Loop& loop = **c.self.as<std::shared_ptr<Loop>>();
       const bool same = loop.has_changed && loop.changed_arguments.size() == c.all.values.size() &&
                         std::equal(c.all.values.begin(), c.all.values.end(), loop.changed_arguments.begin(), equal);
       loop.has_changed = true;
       loop.changed_arguments = c.all.values;
       return !same;
     }},
};

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto size = static_cast<std::int64_t>(loop.items.size()), index = static_cast<std::int64_t>(loop.index);
  const std::pair<std::string_view, Value> numbers[] = {
      {"index", index + 1},  {"index0", index},           {"revindex", size - index}, {"revindex0", size - index - 1},
      {"first", index == 0}, {"last", index + 1 == size}, {"length", size},           {"depth", 1},
      {"depth0", 0}};
  for (const auto& [known, value] : numbers)
    if (known == name) return value;
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
  return Undefined{format("'{}' of the loop", excerpt(name))};
}

Value method(const Row& row, const Value& self, Budget& budget) {
  return std::make_shared<const Function>(Function{std::string(row.names), [&row, self, &budget](const Arguments& arguments) {
                                                     return run(row, row.names, self, arguments, budget);
                                                   }});
}

/// The attribute with this name of each dictionary, as by the filters with `attribute`: "a.b".
Value at_path(Value value, const std::string& path, Budget& budget) {
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, end - at);
    std::int64_t index = 0;
    const bool is_index = !part.empty() &&
                          std::from_chars(part.data(), part.data() + part.size(), index).ptr == part.data() + part.size() &&
                          part[0] != '-';
    value = subscript(value, is_index ? Value(index) : Value(part), budget);
    at = end + 1;
  }
  return value;
}
Value at_path(const Value& value, const Value* path, Budget& budget) {
  if (!path || path->is_none()) return value;
  if (path->text()) return at_path(value, *path->text(), budget);
  return subscript(value, *path, budget);
}

/// The arguments from the i-th on.
Arguments rest_of(const Arguments& all, std::size_t i) {
  return {{all.values.begin() + static_cast<std::ptrdiff_t>(std::min(i, all.values.size())), all.values.end()}, all.named};
}

Value mapped(const Call& c) {
  std::vector<Value> all;
  const Value *path = nullptr, *otherwise = nullptr;
  for (const auto& [name, value] : c.all.named) {
    if (name == "attribute") path = &value;
    if (name == "default") otherwise = &value;
  }
  if (!path && (c.all.values.empty() || !c.all.values[0].text()))
    throw Problem("'map' needs the name of a filter, or 'attribute'");
  for (const Value& one : elements(c.self)) {
    c.budget.step();
    if (!path) {
      all.push_back(call_filter(*c.all.values[0].text(), one, rest_of(c.all, 1), c.budget));
      continue;
    }
    Value found = at_path(one, path, c.budget);
    all.push_back(found.is_undefined() && otherwise ? *otherwise : found);
  }
  return Value::list(std::move(all), Shape::once);
}

/// The filters `select`, `reject`, `selectattr` and `rejectattr`.
Value selected(const Call& c, bool by_attribute, bool keeps) {
  const std::size_t before = by_attribute ? 1 : 0;
  const std::vector<Value>& values = c.all.values;
  if (by_attribute && values.empty()) throw Problem("the name of an attribute is missing");
  if (values.size() > before && !values[before].text()) throw Problem("the name of a test must be a text");
  std::vector<Value> all;
  for (const Value& one : elements(c.self)) {
    c.budget.step();
    const Value tested = by_attribute ? at_path(one, &values[0], c.budget) : one;
    const bool is = values.size() > before ? call_test(*values[before].text(), tested, rest_of(c.all, before + 1), c.budget)
                                           : truth(tested);
    if (is == keeps) all.push_back(one);
  }
  return Value::list(std::move(all), Shape::once);
}

/// What `sort`, `unique`, `min` and `max` compare: without regard to case unless `with_case`.
Value sort_key(const Value& value, const Value* path, bool with_case, Budget& budget) {
  const Value found = at_path(value, path, budget);
  return found.text() && !with_case ? Value(lower(*found.text())) : found;
}

std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool backwards) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return backwards ? less(keys[b], keys[a]) : less(keys[a], keys[b]); });
  std::vector<Value> all;
  for (const std::size_t i : order) all.push_back(items[i]);
  return all;
}

Value sorted_by(const Call& c, const Value* path, bool with_case, bool backwards) {
  const std::vector<Value> items = elements(c.self);
  std::vector<Value> keys;
  for (const Value& one : items) keys.push_back(sort_key(one, path, with_case, c.budget));
  return Value::list(sorted(items, keys, backwards));
}

Value least(const Call& c, bool greatest) {
  const std::vector<Value> items = elements(c.self);
  if (items.empty()) return Undefined{"the least or greatest of no values"};
  const Value* best = &items[0];
  for (const Value& one : items) {
    const Value key = sort_key(one, c[1], c.is(0), c.budget), other = sort_key(*best, c[1], c.is(0), c.budget);
    if (greatest ? less(other, key) : less(key, other)) best = &one;
  }
  return *best;
}

Value dict_sorted(const Call& c) {
  if (!c.self.dict()) throw Problem(format("'dictsort' sorts a dict, not {}", type_of(c.self)));
  const std::string by = c.has(1) ? c.text(1) : "key";
  if (by != "key" && by != "value") throw Problem("'dictsort' sorts by 'key' or 'value'");
  const std::vector<Value> pairs = elements(pairs_of(*c.self.dict(), Shape::list));
  std::vector<Value> keys;
  for (const auto& [key, value] : c.self.dict()->entries)
    keys.push_back(sort_key(by == "key" ? Value(key) : value, nullptr, c.is(0), c.budget));
  return Value::list(sorted(pairs, keys, c.is(2)));
}

Value unique(const Call& c) {
  std::vector<Value> all, keys;
  for (const Value& one : elements(c.self)) {
    c.budget.step();
    Value key = sort_key(one, c[1], c.is(0), c.budget);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& other) { return equal(key, other); })) continue;
    keys.push_back(std::move(key));
    all.push_back(one);
  }
  return Value::list(std::move(all), Shape::once);
}

Value reversed(const Call& c) {
  if (c.self.text()) {
    std::u32string all = characters(*c.self.text());
    std::reverse(all.begin(), all.end());
    return utf8(all);
  }
  std::vector<Value> all = elements(c.self);
  std::reverse(all.begin(), all.end());
  return Value::list(std::move(all), Shape::once);
}

// Numbers

/// The number in a text, which may have spaces around it.
template <class Number>
std::optional<Number> number_in(const std::string& given) {
  std::string text = strip(given, true, true, is_python_space);
  if (text.starts_with('+')) text.erase(0, 1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() ? std::optional(number) : std::nullopt;
}

Value as_integer(const Call& c) {
  const Value otherwise = c[0] ? *c[0] : Value(0);
  if (c.whole(1, 10) != 10) throw Problem("'int' knows the base 10");
  if (const std::string* const text = c.self.text()) {
    if (const auto is = number_in<std::int64_t>(*text)) return *is;
    if (const auto is = number_in<double>(*text)) return integer(*is);
    return otherwise;
  }
  return number(c.self) || c.self.is_undefined() ? Value(integer(c.self)) : otherwise;
}

Value as_real(const Call& c) {
  if (const std::string* const text = c.self.text()) {
    const auto is = number_in<double>(*text);
    return is ? Value(*is) : c[0] ? *c[0] : Value(0.0);
  }
  if (c.self.is_undefined()) integer(c.self);  // throws
  return number(c.self) ? Value(*number(c.self)) : c[0] ? *c[0] : Value(0.0);
}

Value rounded(const Call& c) {
  const std::int64_t digits = std::clamp<std::int64_t>(c.whole(0, 0), -15, 15);
  const std::string how = c.has(1) ? c.text(1) : "common";
  const auto given = number(c.self);
  if (!given) throw Problem(format("'round' takes a number, not {}", type_of(c.self)));
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (how == "ceil") return std::ceil(*given * scale) / scale;
  if (how == "floor") return std::floor(*given * scale) / scale;
  if (how != "common") throw Problem("'round' knows 'common', 'ceil' and 'floor'");
  if (!c.self.as<double>() && digits >= 0) return c.self;
  if (digits >= 0) return *number_in<double>(format("{:.{}f}", *given, digits));
  const double result = std::nearbyint(*given * scale) / scale;
  return c.self.as<double>() ? Value(result) : Value(static_cast<std::int64_t>(result));
}

Value absolute(const Call& c) {
  if (!number(c.self)) throw Problem(format("'abs' takes a number, not {}", type_of(c.self)));
  return less(c.self, 0) ? operate("-", 0, c.self, c.budget) : c.self;
}

Value to_json(const Call& c) {
  JsonStyle style;
  style.ascii = c.is(0);
  style.sorted = c.is(3);
  if (c.has(1))
    style.indent = c[1]->text() ? *c[1]->text()
                                : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(c.whole(1, 0), 0, 100)), ' ');
  style.comma = style.indent ? "," : ", ";
  style.colon = ": ";
  if (c.has(2)) {
    const std::vector<Value> two = elements(*c[2]);
    if (two.size() != 2 || !two[0].text() || !two[1].text()) throw Problem("'separators' must be two texts");
    style.comma = *two[0].text();
    style.colon = *two[1].text();
  }
  return json_dump(c.self, style);
}

Value first_of(const Call& c, bool last) {
  const std::vector<Value> all = elements(c.self);
  if (all.empty()) return Undefined{format("the {} of no elements", last ? "last" : "first")};
  return last ? all.back() : all.front();
}

/// Filters on texts that Python would do with Markup. Here only printing and joining know safe texts.
std::string plain_text(const Call& c) {
  if (c.self.is_safe()) throw Problem("this filter of a text that is 'safe' is not known here");
  return str(c.self);
}

const Row filter_rows[] = {
    {"default d", "default_value boolean", 0,
     [](const Call& c) -> Value {
       return c.self.is_undefined() || (c.is(1) && !truth(c.self)) ? (c[0] ? *c[0] : Value("")) : c.self;
     }},
    {"trim", "chars", 0,
     [](const Call& c) -> Value {
       return {stripped(str(c.self), c[0], true, true), c.self.is_safe()};
     }},
    {"upper", "", 0, [](const Call& c) -> Value { return upper(plain_text(c)); }},
    {"lower", "", 0, [](const Call& c) -> Value { return lower(plain_text(c)); }},
    {"capitalize", "", 0, [](const Call& c) -> Value { return capitalized(plain_text(c)); }},
    {"title", "", 0, [](const Call& c) -> Value { return with_titles(plain_text(c)); }},
    {"replace", "old new count", 2,
     [](const Call& c) -> Value { return replaced(str(c.self), str(*c[0]), str(*c[1]), c.whole(2, -1), c.budget); }},
    {"indent", "width first blank", 0, [](const Call& c) -> Value { return plain_text(c), indented(c); }},
    {"string", "", 0, [](const Call& c) -> Value { return c.self.text() ? c.self : Value(str(c.self)); }},
    {"safe", "", 0,
     [](const Call& c) -> Value {
       return {str(c.self), true};
     }},
    {"escape e", "", 0,
     [](const Call& c) -> Value {
       return {c.self.is_safe() ? str(c.self) : escaped(str(c.self)), true};
     }},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, to_json},
    {"format", "*", 0,
     [](const Call& c) -> Value { return operate("%", plain_text(c), Value::list(c.all.values, Shape::tuple), c.budget); }},
    {"length count", "", 0, [](const Call& c) -> Value { return static_cast<std::int64_t>(length(c.self)); }},
    {"join", "d attribute", 0,
     [](const Call& c) -> Value {
       std::vector<Value> all = elements(c.self);
       for (Value& one : all) one = at_path(one, c[1], c.budget);
       return joined_texts(all, c[0] ? str(*c[0]) : "", false, c.budget);
     }},
    {"first", "", 0, [](const Call& c) -> Value { return first_of(c, false); }},
    {"last", "", 0, [](const Call& c) -> Value { return first_of(c, true); }},
    {"list", "", 0, [](const Call& c) -> Value { return Value::list(elements(c.self)); }},
    {"items", "", 0,
     [](const Call& c) -> Value {
       if (c.self.is_undefined()) return Value::list({}, Shape::once);
       if (!c.self.dict()) throw Problem(format("'items' takes a dict, not {}", type_of(c.self)));
       return pairs_of(*c.self.dict(), Shape::once);
     }},
    {"dictsort", "case_sensitive by reverse", 0, dict_sorted},
    {"map", "*", 0, mapped},
    {"select", "*", 0, [](const Call& c) -> Value { return selected(c, false, true); }},
    {"reject", "*", 0, [](const Call& c) -> Value { return selected(c, false, false); }},
    {"selectattr", "*", 0, [](const Call& c) -> Value { return selected(c, true, true); }},
    {"rejectattr", "*", 0, [](const Call& c) -> Value { return selected(c, true, false); }},
    {"sort", "reverse case_sensitive attribute", 0,
     [](const Call& c) -> Value { return sorted_by(c, c[2], c.is(1), c.is(0)); }},
    {"unique", "case_sensitive attribute", 0, unique},
    {"reverse", "", 0, reversed},
    {"min", "case_sensitive attribute", 0, [](const Call& c) -> Value { return least(c, false); }},
    {"max", "case_sensitive attribute", 0, [](const Call& c) -> Value { return least(c, true); }},
    {"sum", "attribute start", 0,
     [](const Call& c) -> Value {
       Value total = c[1] ? *c[1] : Value(0);
       for (const Value& one : elements(c.self)) total = operate("+", total, at_path(one, c[0], c.budget), c.budget);
       return total;
     }},
    {"int", "default base", 0, as_integer},
    {"float", "default", 0, as_real},
    {"abs", "", 0, absolute},
    {"round", "precision method", 0, rounded},
};

bool is_whole(const Value& value) { return value.as<std::int64_t>(); }

Value rest_by(const Call& c, std::int64_t by) { return operate("%", c.self, by, c.budget); }

const Row test_rows[] = {
    {"defined", "", 0, [](const Call& c) -> Value { return !c.self.is_undefined(); }},
    {"undefined", "", 0, [](const Call& c) -> Value { return c.self.is_undefined(); }},
    {"none", "", 0, [](const Call& c) -> Value { return c.self.is_none(); }},
    {"string", "", 0, [](const Call& c) -> Value { return c.self.text() != nullptr; }},
    {"mapping", "", 0, [](const Call& c) -> Value { return c.self.dict() != nullptr; }},
    {"sequence", "", 0,
     [](const Call& c) -> Value {
       const List* const list = c.self.as<List>();
       return c.self.is_undefined() || c.self.text() || c.self.dict() ||
              (list && (list->shape == Shape::list || list->shape == Shape::tuple));
     }},
    {"iterable", "", 0,
     [](const Call& c) -> Value {
       return c.self.is_undefined() || c.self.text() || c.self.dict() || c.self.items() || c.self.as<std::shared_ptr<Loop>>();
     }},
    {"number", "", 0, [](const Call& c) -> Value { return number(c.self).has_value(); }},
    {"integer", "", 0, [](const Call& c) -> Value { return is_whole(c.self); }},
    {"float", "", 0, [](const Call& c) -> Value { return c.self.as<double>() != nullptr; }},
    {"boolean", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() != nullptr; }},
    {"true", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() && *c.self.as<bool>(); }},
    {"false", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() && !*c.self.as<bool>(); }},
    {"callable", "", 0,
     [](const Call& c) -> Value { return c.self.is_undefined() || c.self.as<std::shared_ptr<const Function>>(); }},
    {"lower", "", 0, [](const Call& c) -> Value { return is_all_cased(str(c.self), u_isULowercase); }},
    {"upper", "", 0, [](const Call& c) -> Value { return is_all_cased(str(c.self), u_isUUppercase); }},
    {"odd", "", 0, [](const Call& c) -> Value { return equal(rest_by(c, 2), 1); }},
    {"even", "", 0, [](const Call& c) -> Value { return equal(rest_by(c, 2), 0); }},
    {"divisibleby", "num", 1, [](const Call& c) -> Value { return equal(rest_by(c, integer(*c[0])), 0); }},
    {"eq equalto ==", "b", 1, [](const Call& c) -> Value { return equal(c.self, *c[0]); }},
    {"ne !=", "b", 1, [](const Call& c) -> Value { return !equal(c.self, *c[0]); }},
    {"lt lessthan <", "b", 1, [](const Call& c) -> Value { return less(c.self, *c[0]); }},
    {"gt greaterthan >", "b", 1, [](const Call& c) -> Value { return less(*c[0], c.self); }},
    {"le <=", "b", 1, [](const Call& c) -> Value { return less(c.self, *c[0]) || equal(c.self, *c[0]); }},
    {"ge >=", "b", 1, [](const Call& c) -> Value { return less(*c[0], c.self) || equal(c.self, *c[0]); }},
    {"in", "seq", 1, [](const Call& c) -> Value { return contains(*c[0], c.self); }},
};

Value range_of(const Call& c) {
  const std::int64_t first = c[1] ? integer(*c[0]) : 0, last = integer(c[1] ? *c[1] : *c[0]), by = c.whole(2, 1);
  if (by == 0) throw Problem("the step of range() is zero");
  std::vector<Value> all;
  for (std::int64_t i = first; by > 0 ? i < last : i > last;) {
    if (all.size() == 100000) throw Problem("range() has more than 100000 numbers, which Jinja's sandbox forbids");
    all.emplace_back(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return Value::list(std::move(all));
}

Value time_now(const Call& c) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[1000];
  const std::size_t size = c.text(0).empty() ? 0 : std::strftime(text, sizeof text, c.text(0).c_str(), &parts);
  return std::string(text, size);
}

const Row global_rows[] = {
    {"range", "start stop step", 1, range_of},
    {"dict", "*", 0, [](const Call& c) -> Value { return Value::dict(dict_of(c.all)); }},
    {"raise_exception", "message", 1, [](const Call& c) -> Value { throw Raised(str(*c[0])); }},
    {"strftime_now", "format", 1, time_now},
};

}  // namespace

Dict dict_of(const Arguments& arguments) {
  if (arguments.values.size() > 1) throw Problem("dict() and namespace() take one dictionary, and names");
  Dict all;
  if (!arguments.values.empty()) {
    const Value& given = arguments.values[0];
    if (given.dict()) {
      all = *given.dict();
    } else {
      for (const Value& one : elements(given)) {
        const std::vector<Value> pair = elements(one);
        if (pair.size() != 2 || !pair[0].text()) throw Problem("a dictionary is made of pairs that begin with a text");
        all.set(*pair[0].text(), pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) all.set(name, value);
  return all;
}

Value call_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Row* const row = find_row(filter_rows, name);
  if (!row) throw Problem(format("the filter '{}' is not known here", excerpt(name)));
  return run(*row, name, value, arguments, budget);
}

bool call_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Row* const row = find_row(test_rows, name);
  if (!row) throw Problem(format("the test '{}' is not known here", excerpt(name)));
  return truth(run(*row, name, value, arguments, budget));
}

std::optional<Value> global_function(std::string_view name, Budget& budget) {
  const Row* const row = find_row(global_rows, name);
  return row ? std::optional(method(*row, Value(None()), budget)) : std::nullopt;
}

Value attribute(const Value& value, const std::string& name, Budget& budget) {
  if (value.is_undefined()) throw Problem(format("{} is undefined", value.as<Undefined>()->what));
  const auto require_no_change = [&](std::string_view changes) {
    if (is_word_in(name, changes)) throw Problem(format("'{}' changes a value, which Jinja's sandbox forbids", name));
  };
  const Row* row = nullptr;
  if (value.text()) {
    row = find_row(text_methods, name);
    if (!row && is_word_in(name, other_text_methods))
      throw Problem(format("the method '{}' of a text is not known here", name));
    if (row && value.is_safe() && !name.ends_with("strip"))
      throw Problem("this method of a text that is 'safe' is not known here");
  } else if (value.dict()) {
    row = find_row(dict_methods, name);
    if (!row) require_no_change(dict_changes);
  } else if (const List* const list = value.as<List>()) {
    if (list->shape == Shape::list || list->shape == Shape::tuple) row = find_row(list_methods, name);
    if (!row && list->shape == Shape::list) require_no_change(list_changes);
  } else if (const auto* const loop = value.as<std::shared_ptr<Loop>>()) {
    row = find_row(loop_methods, name);
    if (!row) return loop_attribute(**loop, name);
  }
  return row ? method(*row, value, budget) : get_item(value, Value(name), budget);
}

Value subscript(const Value& value, const Value& key, Budget& budget) {
  Value found = get_item(value, key, budget);
  return found.is_undefined() && key.text() ? attribute(value, *key.text(), budget) : found;
}

}  // namespace fsdp::jinja
