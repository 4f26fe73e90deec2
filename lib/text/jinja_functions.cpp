#include "text/jinja_functions.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

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
  List elements() const { return jinja::elements(self, budget); }
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
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (std::size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1))
    if ((at == 0 || words[at - 1] == ' ') && (at + word.size() == words.size() || words[at + word.size()] == ' ')) return true;
  return false;
}

template <std::size_t n>
const Row* find_row(const Row (&rows)[n], std::string_view name) {
  const Row* const end = rows + n;
  const Row* const row = std::find_if(rows, end, [&](const Row& one) { return is_word_in(name, one.names); });
  return row == end ? nullptr : row;
}

/// What a function does at least: it may look at the whole of its texts. Elements are charged where they are looked at.
void charge(const Value& value, Budget& budget) {
  budget.work(Budget::bytes_per_element + (value.text() ? value.text()->size() : 0));
}

Value run(const Row& row, std::string_view name, const Value& self, const Arguments& arguments, Budget& budget) {
  budget.work(4 * Budget::bytes_per_step);
  charge(self, budget);
  for (const Value& one : arguments.values.all()) charge(one, budget);
  for (const auto& [key, value] : arguments.named) charge(value, budget);
  Call call{self, arguments, budget};
  if (row.parameters != "*") {
    const std::vector<std::string_view> parameters = words_of(row.parameters);
    const std::vector<Value>& values = arguments.values.all();
    call.args.assign(parameters.size(), nullptr);
    if (values.size() > parameters.size())
      throw Problem(format("'{}' takes {}, not {}", name, plural(parameters.size(), "argument"), values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) call.args[i] = &values[i];
    for (const auto& [key, value] : arguments.named) {
      const auto place = std::find(parameters.begin(), parameters.end(), key);
      if (place == parameters.end()) throw Problem(format("'{}' has no argument '{}'", name, excerpt(key)));
      call.args[static_cast<std::size_t>(place - parameters.begin())] = &value;
    }
    for (std::size_t i = 0; i < row.required; ++i)
      if (!call.args[i]) throw Problem(format("'{}' needs the argument '{}'", name, parameters[i]));
  }
  return row.run(call);
}

// Texts

/// Removes characters from the ends: those of `set`, or spaces.
Value stripped(const Value& self, const Value* set, bool left, bool right, Budget& budget) {
  const std::string_view text = *self.text();
  if (set && !set->is_none() && !set->text()) throw Problem("the characters to be removed must be a text");
  const std::string* const removed = set ? set->text() : nullptr;
  const auto is_removed = [&](std::size_t begin, std::size_t end) {
    budget.work(Budget::bytes_per_character + (removed ? removed->size() : 0));
    return removed ? removed->find(text.substr(begin, end - begin)) != removed->npos
                   : is_python_space(next_character(text, begin));
  };
  std::size_t begin = 0, end = text.size();
  for (std::size_t next; left && begin < end && is_removed(begin, next = moved(text, begin, 1)); begin = next) {
  }
  for (std::size_t next; right && end > begin && is_removed(next = moved(text, end, -1), end); end = next) {
  }
  return begin == 0 && end == text.size() ? self : text_of(text.substr(begin, end - begin), budget);
}

Value replaced(const std::string& text, const std::string& old, const std::string& by, std::int64_t most, Budget& budget) {
  Writer all(budget);
  std::size_t at = 0;
  for (std::int64_t done = 0; done != most; ++done) {
    const std::size_t found = old.empty() && done > 0 ? moved(text, at, 1) : find_text(text, old, at, budget);
    if (found == text.npos || (found == at && old.empty() && done > 0)) break;
    all.add(std::string_view(text).substr(at, found - at));
    all.add(by);
    at = found + old.size();
  }
  all.add(std::string_view(text).substr(at));
  return all.done();
}

Value cased(std::string_view text, bool up, Budget& budget) {
  budget.work(Budget::bytes_per_character * text.size());
  const Held copies(&budget, 10 * text.size());  // a character may become three
  icu::UnicodeString all = icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
  std::string result;
  (up ? all.toUpper(icu::Locale::getRoot()) : all.toLower(icu::Locale::getRoot())).toUTF8String(result);
  return text_of(result, budget);
}

Value capitalized(const std::string& text, Budget& budget) {
  if (text.empty()) return text_of("", budget);
  std::size_t at = 0;
  std::string first;
  append_utf8(first, static_cast<char32_t>(u_totitle(static_cast<UChar32>(next_character(text, at)))));
  return operate("~", text_of(first, budget), cased(std::string_view(text).substr(at), false, budget), budget);
}

/// str.title(): a word begins with each letter that follows something else. In the filter `title`, words begin after spaces,
/// hyphens and opening brackets.
Value with_titles(const std::string& text, bool is_filter, Budget& budget) {
  Writer all(budget);
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(next_character(text, at));
    std::string one;
    append_utf8(one, static_cast<char32_t>(in_word ? u_tolower(c) : is_filter ? u_toupper(c) : u_totitle(c)));
    all.add(one);
    in_word = is_filter ? !is_python_space(static_cast<char32_t>(c)) &&
                              (c >= 0x80 || std::string_view("-({[<").find(static_cast<char>(c)) == std::string_view::npos)
                        : u_hasBinaryProperty(c, UCHAR_CASED) != 0;
  }
  return all.done();
}

/// str.split() at `separator`, or at spaces.
Value split_text(const std::string& text, const Value* separator, std::int64_t most, Budget& budget) {
  Items parts(&budget);
  const std::string_view all = text;
  const auto add = [&](std::size_t begin, std::size_t end) { parts.add(text_of(all.substr(begin, end - begin), budget)); };
  const auto is_full = [&] { return most >= 0 && static_cast<std::int64_t>(parts.all().size()) == most; };
  std::size_t at = 0;
  if (separator && !separator->is_none()) {
    if (!separator->text() || separator->text()->empty()) throw Problem("a text is split at a text that is not empty");
    const std::string& by = *separator->text();
    for (std::size_t found; !is_full() && (found = find_text(text, by, at, budget)) != text.npos; at = found + by.size())
      add(at, found);
    add(at, text.size());
    return parts.done();
  }
  budget.work(Budget::bytes_per_character * text.size());
  const auto skip = [&](bool spaces) {
    for (std::size_t next = at; at < text.size(); at = next)
      if (is_python_space(next_character(text, next)) != spaces) break;
    return at;
  };
  while (skip(true) < text.size()) {
    const std::size_t begin = at;
    add(begin, is_full() ? at = text.size() : skip(false));
  }
  return parts.done();
}

/// Argument `i`: a text, or a number of spaces.
Value spaces(const Call& c, std::size_t i, std::int64_t otherwise) {
  return c[i] && c[i]->text() ? *c[i] : operate("*", text_of(" ", c.budget), c.whole(i, otherwise), c.budget);
}

Value indented(const Call& call, const std::string& text) {
  const Value by = spaces(call, 0, 4);
  call.budget.work(Budget::bytes_per_character * text.size());
  Writer all(call.budget);
  bool is_first = true;
  std::size_t begin = 0;
  const auto add_line = [&](std::size_t end) {
    if (!is_first) all.add("\n");
    if (is_first ? call.is(1) : end > begin || call.is(2)) all.add(*by.text());
    all.add(std::string_view(text).substr(begin, end - begin));
    is_first = false;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_character(text, at);
    if (!((c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    add_line(end);
    if (c == '\r' && at == text.size()) return all.done();
    if (c == '\r' && text[at] == '\n') ++at;
    begin = at;
  }
  add_line(text.size());
  return all.done();
}

const std::string& self_text(const Call& call) { return *call.self.text(); }

bool has_end(const Call& call, bool (*is)(const std::string&, const std::string&)) {
  if (!call[0]->items()) return is(self_text(call), call.text(0));
  return std::any_of(call[0]->items()->begin(), call[0]->items()->end(), [&](const Value& one) {
    charge(one, call.budget);
    return one.text() && is(self_text(call), *one.text());
  });
}

/// The attribute with this name of each dictionary, as by the filters with `attribute`: "a.b".
Value at_path(Value value, const Value* path, Budget& budget) {
  if (!path) return value;
  if (!path->text()) throw Problem("the name of an attribute must be a text");
  const std::string& text = *path->text();
  budget.work(text.size());
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('.', at), text.size());
    value = subscript(value, text_of(std::string_view(text).substr(at, end - at), budget), budget);
    at = end + 1;
  }
  return value;
}

Value joined_texts(const Call& call, const Value& list, std::string_view by, bool strict) {
  Writer all(call.budget);
  bool first = true;
  for (const Value& one : elements(list, call.budget)) {
    if (strict && !one.text()) throw Problem(format("join() takes texts, not {}", type_of(one)));
    if (!std::exchange(first, false)) all.add(by);
    write(all, one);
  }
  return all.done();
}

const Row text_methods[] = {
    {"strip", "chars", 0, [](const Call& c) -> Value { return stripped(c.self, c[0], true, true, c.budget); }},
    {"lstrip", "chars", 0, [](const Call& c) -> Value { return stripped(c.self, c[0], true, false, c.budget); }},
    {"rstrip", "chars", 0, [](const Call& c) -> Value { return stripped(c.self, c[0], false, true, c.budget); }},
    {"split", "sep maxsplit", 0,
     [](const Call& c) -> Value { return split_text(self_text(c), c[0], c.whole(1, -1), c.budget); }},
    {"startswith", "prefix", 1,
     [](const Call& c) -> Value {
       return has_end(c, [](const std::string& a, const std::string& b) { return a.starts_with(b); });
     }},
    {"endswith", "suffix", 1,
     [](const Call& c) -> Value {
       return has_end(c, [](const std::string& a, const std::string& b) { return a.ends_with(b); });
     }},
    {"replace", "old new count", 2,
     [](const Call& c) -> Value { return replaced(self_text(c), c.text(0), c.text(1), c.whole(2, -1), c.budget); }},
    {"upper", "", 0, [](const Call& c) -> Value { return cased(self_text(c), true, c.budget); }},
    {"lower", "", 0, [](const Call& c) -> Value { return cased(self_text(c), false, c.budget); }},
    {"capitalize", "", 0, [](const Call& c) -> Value { return capitalized(self_text(c), c.budget); }},
    {"title", "", 0, [](const Call& c) -> Value { return with_titles(self_text(c), false, c.budget); }},
    {"find", "sub", 1,
     [](const Call& c) -> Value {
       const std::size_t at = find_text(self_text(c), c.text(0), 0, c.budget);
       return at == std::string::npos ? Value(-1) : Value(length(std::string_view(self_text(c)).substr(0, at), c.budget));
     }},
    {"join", "iterable", 1, [](const Call& c) -> Value { return joined_texts(c, *c[0], self_text(c), true); }},
};

// Lists and dictionaries

Value pairs_of(const Dict& dict, Shape shape, Budget& budget) {
  Items pairs(&budget);
  for (const auto& [key, value] : dict.entries) {
    Items pair(&budget);
    pair.add(text_of(key, budget));
    pair.add(value);
    pairs.add(pair.done(Shape::tuple));
  }
  return pairs.done(shape);
}

const Row dict_methods[] = {
    {"get", "key default", 1,
     [](const Call& c) -> Value {
       const Value* const found = c[0]->text() ? c.self.dict()->find(*c[0]->text(), c.budget) : nullptr;
       return found ? *found : c[1] ? *c[1] : Value(None());
     }},
    {"items", "", 0, [](const Call& c) -> Value { return pairs_of(*c.self.dict(), Shape::view, c.budget); }},
    {"keys", "", 0,
     [](const Call& c) -> Value {
       return List{c.elements().items, Shape::view};
     }},
    {"values", "", 0,
     [](const Call& c) -> Value {
       Items all(&c.budget);
       for (const auto& entry : c.self.dict()->entries) all.add(entry.second);
       return all.done(Shape::view);
     }},
};

Value loop_attribute(const Loop& loop, const std::string& name, Budget& budget) {
  const std::vector<Value>& items = *loop.items.items;
  const auto size = static_cast<std::int64_t>(items.size()), index = static_cast<std::int64_t>(loop.index);
  const std::pair<std::string_view, Value> numbers[] = {{"index", index + 1},
                                                        {"index0", index},
                                                        {"revindex", size - index},
                                                        {"revindex0", size - index - 1},
                                                        {"first", index == 0},
                                                        {"last", index + 1 == size},
                                                        {"length", size}};
  for (const auto& [known, value] : numbers)
    if (known == name) return value;
  if (name == "previtem" && index > 0) return items[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return items[loop.index + 1];
  return undefined(format("'{}' of the loop", excerpt(name)), budget);
}

Value method(const Row& row, const Value& self, Budget& budget) {
  return std::make_shared<const Function>(
      Function{[&row, self, &budget](const Arguments& arguments) { return run(row, row.names, self, arguments, budget); },
               self.depth() + 1, Held(&budget, 256)});
}

/// The arguments from the i-th on.
Arguments rest_of(const Arguments& all, std::size_t i, Budget& budget) {
  Arguments rest{Items(&budget), all.named};
  for (; i < all.values.all().size(); ++i) rest.values.add(all.values.all()[i]);
  return rest;
}

Value mapped(const Call& c) {
  const std::vector<Value>& values = c.all.values.all();
  const Value* path = nullptr;
  for (const auto& [name, value] : c.all.named) {
    if (name == "default") throw Problem("'map' with the argument 'default' is not known here");
    if (name == "attribute") path = &value;
  }
  if (!path && (values.empty() || !values[0].text())) throw Problem("'map' needs the name of a filter, or 'attribute'");
  const Arguments rest = rest_of(c.all, 1, c.budget);
  Items all(&c.budget);
  for (const Value& one : c.elements())
    all.add(path ? at_path(one, path, c.budget) : call_filter(*values[0].text(), one, rest, c.budget));
  return all.done(Shape::once);
}

/// The filters `select`, `reject`, `selectattr` and `rejectattr`.
Value selected(const Call& c, bool by_attribute, bool keeps) {
  const std::size_t before = by_attribute ? 1 : 0;
  const std::vector<Value>& values = c.all.values.all();
  if (by_attribute && values.empty()) throw Problem("the name of an attribute is missing");
  if (values.size() > before && !values[before].text()) throw Problem("the name of a test must be a text");
  const Arguments rest = rest_of(c.all, before + 1, c.budget);
  Items all(&c.budget);
  for (const Value& one : c.elements()) {
    const Value tested = by_attribute ? at_path(one, &values[0], c.budget) : one;
    const bool is = values.size() > before ? call_test(*values[before].text(), tested, rest, c.budget) : truth(tested);
    if (is == keeps) all.add(one);
  }
  return all.done(Shape::once);
}

/// What `sort` compares: without regard to case.
Value sort_key(const Value& value, const Value* path, Budget& budget) {
  const Value found = at_path(value, path, budget);
  return found.text() ? cased(*found.text(), false, budget) : found;
}

Value sorted(const std::vector<Value>& items, const Items& keys, bool backwards, Budget& budget) {
  const Held places(&budget, 2 * sizeof(std::size_t) * items.size());
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return backwards ? less(keys.all()[b], keys.all()[a], budget) : less(keys.all()[a], keys.all()[b], budget);
  });
  Items all(&budget);
  for (const std::size_t i : order) all.add(items[i]);
  return all.done();
}

Value sorted_by(const Call& c) {
  const List items = c.elements();
  Items keys(&c.budget);
  for (const Value& one : *items.items) keys.add(sort_key(one, c[1], c.budget));
  return sorted(*items.items, keys, c.is(0), c.budget);
}

Value dict_sorted(const Call& c) {
  if (!c.self.dict()) throw Problem(format("'dictsort' sorts a dict, not {}", type_of(c.self)));
  const Value pairs = pairs_of(*c.self.dict(), Shape::list, c.budget);
  Items keys(&c.budget);
  for (const Value& pair : *pairs.items()) keys.add(sort_key((*pair.items())[0], nullptr, c.budget));
  return sorted(*pairs.items(), keys, false, c.budget);
}

Value reversed(const Call& c) {
  if (c.self.text()) return get_slice(c.self, None(), None(), -1, c.budget);
  const List items = c.elements();
  Items all(&c.budget);
  for (auto one = items.items->rbegin(); one != items.items->rend(); ++one) all.add(*one);
  return all.done(Shape::once);
}

Value as_integer(const Call& c) {
  const Value otherwise = c[0] ? *c[0] : Value(0);
  if (c.whole(1, 10) != 10) throw Problem("'int' knows the base 10");
  if (!c.self.text()) return number(c.self) || c.self.is_undefined() ? Value(integer(c.self)) : otherwise;
  const Value tight = stripped(c.self, nullptr, true, true, c.budget);
  const std::string& text = *tight.text();
  if (text.size() > 4300) return otherwise;  // as in Python
  const char *const first = text.data() + (text.starts_with('+') ? 1 : 0), *const last = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto read = std::from_chars(first, last, whole); read.ec == std::errc() && read.ptr == last) return whole;
  double real = 0;
  if (const auto read = std::from_chars(first, last, real); read.ec == std::errc() && read.ptr == last) return integer(real);
  return otherwise;
}

Value to_json(const Call& c) {
  JsonStyle style;
  style.ascii = c.is(0);
  style.sorted = c.is(3);
  const Value indent = c.has(1) ? spaces(c, 1, 0) : Value();
  if (indent.text()) style.indent = *indent.text();
  style.comma = style.indent ? "," : ", ";
  style.colon = ": ";
  const List two = c.has(2) ? elements(*c[2], c.budget) : List();
  if (two.items) {
    if (two.items->size() != 2 || !(*two.items)[0].text() || !(*two.items)[1].text())
      throw Problem("'separators' must be two texts");
    style.comma = *(*two.items)[0].text();
    style.colon = *(*two.items)[1].text();
  }
  Writer all(c.budget);
  write_json(all, c.self, style);
  return all.done();
}

Value first_of(const Call& c, bool last) {
  const List all = c.elements();
  if (all.items->empty()) return undefined(format("the {} of no elements", last ? "last" : "first"), c.budget);
  return last ? all.items->back() : all.items->front();
}

Value self_as_text(const Call& c) { return str(c.self, c.budget); }

const Row filter_rows[] = {
    {"default d", "default_value boolean", 0,
     [](const Call& c) -> Value {
       return c.self.is_undefined() || (c.is(1) && !truth(c.self)) ? (c[0] ? *c[0] : text_of("", c.budget)) : c.self;
     }},
    {"trim", "chars", 0, [](const Call& c) -> Value { return stripped(self_as_text(c), c[0], true, true, c.budget); }},
    {"upper", "", 0, [](const Call& c) -> Value { return cased(*self_as_text(c).text(), true, c.budget); }},
    {"lower", "", 0, [](const Call& c) -> Value { return cased(*self_as_text(c).text(), false, c.budget); }},
    {"capitalize", "", 0, [](const Call& c) -> Value { return capitalized(*self_as_text(c).text(), c.budget); }},
    {"title", "", 0, [](const Call& c) -> Value { return with_titles(*self_as_text(c).text(), true, c.budget); }},
    {"replace", "old new count", 2,
     [](const Call& c) -> Value {
       const Value self = self_as_text(c), old = str(*c[0], c.budget), by = str(*c[1], c.budget);
       return replaced(*self.text(), *old.text(), *by.text(), c.whole(2, -1), c.budget);
     }},
    {"indent", "width first blank", 0, [](const Call& c) -> Value { return indented(c, *self_as_text(c).text()); }},
    {"string", "", 0, self_as_text},
    {"safe", "", 0,
     [](const Call& c) -> Value {
       return Text{str(c.self, c.budget).as<Text>()->text, true};
     }},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, to_json},
    {"length count", "", 0, [](const Call& c) -> Value { return length(c.self, c.budget); }},
    {"join", "d", 0,
     [](const Call& c) -> Value {
       const Value by = c[0] ? str(*c[0], c.budget) : text_of("", c.budget);
       return joined_texts(c, c.self, *by.text(), false);
     }},
    {"first", "", 0, [](const Call& c) -> Value { return first_of(c, false); }},
    {"last", "", 0, [](const Call& c) -> Value { return first_of(c, true); }},
    {"list", "", 0,
     [](const Call& c) -> Value {
       const List all = c.elements();
       return List{all.items, Shape::list, all.depth};
     }},
    {"items", "", 0,
     [](const Call& c) -> Value {
       if (c.self.is_undefined()) return Items(&c.budget).done(Shape::once);
       if (!c.self.dict()) throw Problem(format("'items' takes a dict, not {}", type_of(c.self)));
       return pairs_of(*c.self.dict(), Shape::once, c.budget);
     }},
    {"dictsort", "", 0, dict_sorted},
    {"map", "*", 0, mapped},
    {"select", "*", 0, [](const Call& c) -> Value { return selected(c, false, true); }},
    {"reject", "*", 0, [](const Call& c) -> Value { return selected(c, false, false); }},
    {"selectattr", "*", 0, [](const Call& c) -> Value { return selected(c, true, true); }},
    {"rejectattr", "*", 0, [](const Call& c) -> Value { return selected(c, true, false); }},
    {"sort", "reverse attribute", 0, sorted_by},
    {"reverse", "", 0, reversed},
    {"int", "default base", 0, as_integer},
};

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
    {"integer", "", 0, [](const Call& c) -> Value { return c.self.as<std::int64_t>() != nullptr; }},
    {"float", "", 0, [](const Call& c) -> Value { return c.self.as<double>() != nullptr; }},
    {"boolean", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() != nullptr; }},
    {"true", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() && *c.self.as<bool>(); }},
    {"false", "", 0, [](const Call& c) -> Value { return c.self.as<bool>() && !*c.self.as<bool>(); }},
    {"odd", "", 0, [](const Call& c) -> Value { return equal(operate("%", c.self, 2, c.budget), 1, c.budget); }},
    {"even", "", 0, [](const Call& c) -> Value { return equal(operate("%", c.self, 2, c.budget), 0, c.budget); }},
    {"eq equalto ==", "b", 1, [](const Call& c) -> Value { return equal(c.self, *c[0], c.budget); }},
    {"ne !=", "b", 1, [](const Call& c) -> Value { return !equal(c.self, *c[0], c.budget); }},
    {"in", "seq", 1, [](const Call& c) -> Value { return contains(*c[0], c.self, c.budget); }},
};

Value range_of(const Call& c) {
  const std::int64_t first = c[1] ? integer(*c[0]) : 0, last = integer(c[1] ? *c[1] : *c[0]), by = c.whole(2, 1);
  if (by == 0) throw Problem("the step of range() is zero");
  Items all(&c.budget);
  for (std::int64_t i = first; by > 0 ? i < last : i > last;) {
    if (all.all().size() == 100000) throw Problem("range() has more than 100000 numbers, which Jinja's sandbox forbids");
    all.add(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return all.done();
}

Value time_now(const Call& c) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[1000];
  if (c.text(0).size() > sizeof text) throw Problem("the format of strftime_now() is too long");
  const std::size_t size = c.text(0).empty() ? 0 : std::strftime(text, sizeof text, c.text(0).c_str(), &parts);
  return text_of({text, size}, c.budget);
}

const Row global_rows[] = {
    {"range", "start stop step", 1, range_of},
    {"dict", "*", 0, [](const Call& c) -> Value { return Value::dict(dict_of(c.all, c.budget)); }},
    {"raise_exception", "message", 1, [](const Call& c) -> Value { throw Raised(excerpt(*str(*c[0], c.budget).text())); }},
    {"strftime_now", "format", 1, time_now},
};

}  // namespace

Dict dict_of(const Arguments& arguments, Budget& budget) {
  const std::vector<Value>& values = arguments.values.all();
  if (values.size() > 1) throw Problem("dict() and namespace() take one dictionary, and names");
  Dict all(&budget);
  if (!values.empty() && values[0].dict()) {
    for (const auto& [key, value] : values[0].dict()->entries) all.add(key, value, budget);
  } else if (!values.empty()) {
    for (const Value& one : elements(values[0], budget)) {
      const List pair = elements(one, budget);
      if (pair.items->size() != 2 || !(*pair.items)[0].text())
        throw Problem("a dictionary is made of pairs that begin with a text");
      all.set(*(*pair.items)[0].text(), (*pair.items)[1], budget);
    }
  }
  for (const auto& [name, value] : arguments.named) all.set(name, value, budget);
  return all;
}

Value call_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Row* const row = find_row(filter_rows, name);
  require_not_safe(value);
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
  if (value.is_undefined()) throw Problem(format("{} is undefined", value.as<Undefined>()->named()));
  require_not_safe(value);
  if (const auto* const loop = value.as<std::shared_ptr<Loop>>()) return loop_attribute(**loop, name, budget);
  const Row* const row = value.text() ? find_row(text_methods, name) : value.dict() ? find_row(dict_methods, name) : nullptr;
  return row ? method(*row, value, budget) : get_item(value, name, budget);
}

Value subscript(const Value& value, const Value& key, Budget& budget) {
  Value found = get_item(value, key, budget);
  return found.is_undefined() && key.text() ? attribute(value, *key.text(), budget) : found;
}

}  // namespace fsdp::jinja
