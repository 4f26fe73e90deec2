#include "text/jinja_value.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <unicode/uchar.h>

#include "base/format.hpp"
#include "text/utf8.hpp"

namespace fsdp::jinja {

namespace {

constexpr std::size_t most_levels = 200;

[[noreturn]] void refuse_undefined(const Value& value) {
  throw Problem(format("{} is undefined", value.as<Undefined>()->named()));
}

/// A value with the memory that it holds.
template <class T>
struct Owned {
  T value;
  Held held;
};
template <class T>
std::shared_ptr<const T> owned(T value, Held held) {
  if (held.budget()) held.budget()->work(Budget::bytes_per_step / 2);
  held.add(sizeof(Owned<T>) + 48);
  const auto all = std::make_shared<const Owned<T>>(Owned<T>{std::move(value), std::move(held)});
  return {all, &all->value};
}

void require_levels(std::size_t depth) {
  if (depth > most_levels) throw Problem(format("a value has more than {} levels", most_levels));
}

/// The value as an integer, where Python's bool is one, too.
std::optional<std::int64_t> whole(const Value& value) {
  if (const auto* const is = value.as<bool>()) return *is ? 1 : 0;
  if (const auto* const is = value.as<std::int64_t>()) return *is;
  return std::nullopt;
}

std::string text_of_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::string text = format("{}", number);
  if (text.find_first_not_of("-0123456789") == text.npos) text += ".0";
  return text;
}

std::string hex(char32_t c) {
  const auto code = static_cast<unsigned>(c);
  return code < 0x100 ? format("\\x{:02x}", code) : code < 0x10000 ? format("\\u{:04x}", code) : format("\\U{:08x}", code);
}

bool is_printable(char32_t c) {
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    case U_SPACE_SEPARATOR:
      return c == ' ';
    default:
      return true;
  }
}

void write_quoted(Writer& to, const std::string& text) {
  const bool has_single = text.find('\'') != text.npos;
  const char32_t quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  to.add(static_cast<char>(quote));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == quote || c == '\\') to.add('\\');
    if (c == '\n' || c == '\r' || c == '\t')
      to.add(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    else if (is_printable(c))
      to.add(std::string_view(text).substr(begin, at - begin));
    else
      to.add(hex(c));
  }
  to.add(static_cast<char>(quote));
}

void write_json_text(Writer& to, const std::string& text, bool ascii) {
  const auto unit = [&](unsigned u) { to.add(format("\\u{:04x}", u)); };
  to.add('"');
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    constexpr std::string_view named = "\"\\\n\r\t\f\b", names = "\"\\nrtfb";
    if (const std::size_t i = c < 0x80 ? named.find(static_cast<char>(c)) : named.npos; i != named.npos) {
      to.add('\\');
      to.add(names[i]);
    } else if (c < 0x20 || (ascii && c > 0x7f && c < 0x10000)) {
      unit(static_cast<unsigned>(c));
    } else if (ascii && c >= 0x10000) {
      unit(0xd800 + static_cast<unsigned>((c - 0x10000) >> 10));
      unit(0xdc00 + static_cast<unsigned>((c - 0x10000) & 0x3ff));
    } else {
      to.add(std::string_view(text).substr(begin, at - begin));
    }
  }
  to.add('"');
}

Value calculate(std::string_view sign, const Value& a, const Value& b) {
  const auto left = whole(a), right = whole(b);
  const double x = *number(a), y = *number(b);
  if (sign.starts_with('/') || sign == "%") {
    if (y == 0) throw Problem("a number is divided by zero");
    if (sign == "/") return x / y;
    if (!left || !right) {
      double rest = std::fmod(x, y);
      if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
      return sign == "%" ? rest : std::floor(x / y);
    }
    if (*right == -1) return sign == "%" ? Value(0) : calculate("-", 0, a);
    const std::int64_t rest = *left % *right, lower_by = rest != 0 && (rest < 0) != (*right < 0) ? 1 : 0;
    return sign == "%" ? rest + lower_by * *right : *left / *right - lower_by;
  }
  if (!left || !right) return sign == "+" ? x + y : sign == "-" ? x - y : x * y;
  std::int64_t result = 0;
  if (sign == "+"   ? __builtin_add_overflow(*left, *right, &result)
      : sign == "-" ? __builtin_sub_overflow(*left, *right, &result)
                    : __builtin_mul_overflow(*left, *right, &result))
    throw Problem("a number is too large");
  return result;
}

Value repeated(const Value& value, std::int64_t times, Budget& budget) {
  const std::size_t size = value.text() ? value.text()->size() : value.items()->size();
  if (size == 0) return value;
  Writer text(budget);
  Items items(&budget);
  if (value.text() && times > 0)
    text.reserve(static_cast<std::size_t>(times) > text.text().max_size() / size ? text.text().max_size()
                                                                                 : static_cast<std::size_t>(times) * size);
  for (std::int64_t i = 0; i < times; ++i) {
    if (value.text()) text.add(*value.text());
    if (value.items())
      for (const Value& one : *value.items()) items.add(one);
  }
  return value.text() ? text.done() : items.done(value.as<List>()->shape);
}

bool is_plain_list(const Value& value) {
  const List* const list = value.as<List>();
  return list && (list->shape == Shape::list || list->shape == Shape::tuple);
}

}  // namespace

void Budget::refuse_work() const {
  throw Problem(format("it does more than {} steps (it may have a loop without an end)", all_steps_));
}

void Budget::refuse_bytes() const {
  throw Problem(format("it makes more than {} of text and lists", format_bytes(static_cast<double>(all_bytes_))));
}

void Writer::reserve(std::size_t more) {
  const std::size_t before = text_.capacity();
  if (more <= before - text_.size()) return;
  const std::size_t after = std::max(2 * before, text_.size() + more);
  held_.add(after);  // the old text and the new one are there at the same time
  text_.reserve(after);
  held_.remove(capacity_);
  capacity_ = after;
}

void Writer::add(std::string_view text) {
  budget().work(Budget::bytes_per_character + text.size());
  reserve(text.size());
  text_ += text;
}

Value Writer::done() { return Text{owned(std::move(text_), std::move(held_))}; }

void Items::add(Value value) {
  if (held_.budget()) held_.budget()->work(Budget::bytes_per_element);
  if (all_.size() == all_.capacity()) {
    const std::size_t before = all_.capacity(), after = std::max<std::size_t>(2 * before, 2);
    held_.add(after * sizeof(Value));
    all_.reserve(after);
    held_.remove(before * sizeof(Value));
  }
  all_.push_back(std::move(value));
}

Value Items::done(Shape shape) {
  std::size_t depth = 1;
  for (const Value& one : all_) depth = std::max(depth, one.depth() + 1);
  require_levels(depth);
  return List{owned(std::move(all_), std::move(held_)), shape, depth};
}

std::size_t Value::depth() const {
  if (const List* const list = as<List>()) return list->depth;
  if (const auto* const function = as<std::shared_ptr<const Function>>()) return (*function)->depth;
  if (const auto* const loop = as<std::shared_ptr<Loop>>()) return (*loop)->items.depth + 1;
  return dict() ? dict()->depth : 0;
}

Value Value::given(std::vector<Value> items) {
  Items all;
  for (Value& one : items) all.add(std::move(one));
  return all.done();
}

Value Value::dict(Dict entries) {
  for (const auto& [key, value] : entries.entries) entries.depth = std::max(entries.depth, value.depth() + 1);
  require_levels(entries.depth);
  return std::make_shared<const Dict>(std::move(entries));
}

Value Value::of_json(const nlohmann::ordered_json& json) {
  if (json.is_null()) return None();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() &&
      json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Problem(format("the number {} is too large", json.get<std::uint64_t>()));
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return given(json.get<std::string>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& one : json) items.push_back(of_json(one));
    return given(std::move(items));
  }
  Dict entries;
  for (const auto& [key, value] : json.items()) entries.entries.emplace_back(key, of_json(value));
  return dict(std::move(entries));
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  const auto* const entry = entry_of(entries, key, budget);
  return entry ? &entry->second : nullptr;
}

void Dict::set(std::string_view key, Value value, Budget& budget) {
  if (auto* const entry = entry_of(entries, key, budget)) return void(entry->second = std::move(value));
  add(key, std::move(value), budget);
}

void Dict::add(std::string_view key, Value value, Budget& budget) {
  budget.work(Budget::bytes_per_element + key.size());
  held.add(3 * sizeof(entries[0]) + key.size());  // the entries may just have been moved
  entries.emplace_back(key, std::move(value));
}

std::string type_of(const Value& value) {
  if (value.is_undefined()) return "an undefined value";
  if (value.is_none()) return "None";
  if (value.as<bool>()) return "bool";
  if (value.as<std::int64_t>()) return "int";
  if (value.as<double>()) return "float";
  if (value.text()) return "str";
  if (const List* const list = value.as<List>())
    return list->shape == Shape::list    ? "list"
           : list->shape == Shape::tuple ? "tuple"
           : list->shape == Shape::view  ? "view"
                                         : "generator";
  return value.dict()                        ? "dict"
         : value.as<std::shared_ptr<Dict>>() ? "namespace"
         : value.as<std::shared_ptr<Loop>>() ? "loop"
                                             : "function";
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto is = number(value)) return *is != 0;
  if (value.text()) return !value.text()->empty();
  if (const List* const list = value.as<List>()) return list->shape == Shape::once || !list->items->empty();
  return !value.dict() || !value.dict()->entries.empty();
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.work(2 * Budget::bytes_per_element);
  const auto same_values = [&](const Value& left, const Value& right) { return equal(left, right, budget); };
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (whole(a) && whole(b)) return *whole(a) == *whole(b);
  if (number(a) && number(b)) return *number(a) == *number(b);
  if (a.text() && b.text()) {
    if (a.text()->size() != b.text()->size()) return false;
    budget.work(a.text()->size());
    return *a.text() == *b.text();
  }
  if (a.items() && b.items())
    return a.as<List>()->shape == b.as<List>()->shape &&
           std::equal(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(), same_values);
  if (a.dict() && b.dict())
    return a.dict()->entries.size() == b.dict()->entries.size() &&
           std::all_of(a.dict()->entries.begin(), a.dict()->entries.end(), [&](const auto& entry) {
             const Value* const other = b.dict()->find(entry.first, budget);
             return other && same_values(entry.second, *other);
           });
  const auto same = [&]<class T>(const T* left) { return left && b.as<T>() && *left == *b.as<T>(); };
  return same(a.as<std::shared_ptr<Dict>>()) || same(a.as<std::shared_ptr<const Function>>()) ||
         same(a.as<std::shared_ptr<Loop>>());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.work(2 * Budget::bytes_per_element);
  for (const Value* const one : {&a, &b})
    if (one->is_undefined()) refuse_undefined(*one);
  if (whole(a) && whole(b)) return *whole(a) < *whole(b);
  if (number(a) && number(b)) return *number(a) < *number(b);
  if (a.text() && b.text()) {
    budget.work(std::min(a.text()->size(), b.text()->size()));
    return *a.text() < *b.text();
  }
  throw Problem(format("{} and {} have no order", type_of(a), type_of(b)));
}

bool contains(const Value& container, const Value& part, Budget& budget) {
  if (const std::string* const text = container.text()) {
    if (part.is_undefined()) refuse_undefined(part);
    if (!part.text()) throw Problem(format("{} cannot be in a text", type_of(part)));
    return find_text(*text, *part.text(), 0, budget) != text->npos;
  }
  if (container.dict()) return part.text() && container.dict()->find(*part.text(), budget);
  const List all = elements(container, budget);
  return std::any_of(all.items->begin(), all.items->end(), [&](const Value& one) { return equal(one, part, budget); });
}

void write(Writer& to, const Value& value) {
  if (value.text())
    to.add(*value.text());
  else if (!value.is_undefined())
    write_repr(to, value);
}

void write_repr(Writer& to, const Value& value) {
  to.budget().work(2 * Budget::bytes_per_element);
  if (value.is_undefined()) return to.add("Undefined");
  if (value.is_none()) return to.add("None");
  if (const auto* const is = value.as<bool>()) return to.add(*is ? "True" : "False");
  if (const auto* const is = value.as<std::int64_t>()) return to.add(format("{}", *is));
  if (const auto* const is = value.as<double>()) return to.add(text_of_number(*is));
  require_not_safe(value);
  if (value.text()) return write_quoted(to, *value.text());
  std::string_view between = "";
  if (is_plain_list(value)) {
    const bool is_list = value.as<List>()->shape == Shape::list;
    to.add(is_list ? "[" : "(");
    for (const Value& one : *value.items()) {
      to.add(std::exchange(between, ", "));
      write_repr(to, one);
    }
    return to.add(is_list ? "]" : value.items()->size() == 1 ? ",)" : ")");
  }
  if (!value.dict()) throw Problem(format("a {} cannot be printed", type_of(value)));
  to.add("{");
  for (const auto& [key, one] : value.dict()->entries) {
    to.add(std::exchange(between, ", "));
    write_quoted(to, key);
    to.add(": ");
    write_repr(to, one);
  }
  to.add("}");
}

Value str(const Value& value, Budget& budget) {
  if (value.text()) return value;
  Writer all(budget);
  write(all, value);
  return all.done();
}

Value text_of(std::string_view text, Budget& budget) {
  Writer all(budget);
  all.add(text);
  return all.done();
}

void require_not_safe(const Value& value) {
  if (value.as<Text>() && value.as<Text>()->safe)
    throw Problem("a text that is 'safe' is used (here it can only be printed, compared or joined by '~')");
}

Undefined undefined(std::string_view what, Budget& budget) { return {text_of(what, budget).as<Text>()->text}; }

std::size_t length(const Value& value, Budget& budget) {
  if (value.is_undefined()) return 0;
  if (value.text()) return length(*value.text(), budget);
  if (const List* const list = value.as<List>(); list && list->shape != Shape::once) return list->items->size();
  if (value.dict()) return value.dict()->entries.size();
  if (const auto* const loop = value.as<std::shared_ptr<Loop>>()) return (*loop)->items.items->size();
  throw Problem(format("{} has no length", type_of(value)));
}

std::size_t length(std::string_view text, Budget& budget) {
  budget.work(text.size());
  return characters_in(text);
}

List elements(const Value& value, Budget& budget) {
  if (value.items()) return *value.as<List>();
  Items all(&budget);
  if (value.dict()) {
    for (const auto& entry : value.dict()->entries) all.add(text_of(entry.first, budget));
  } else if (const std::string* const text = value.text()) {
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t begin = at;
      next_character(*text, at);
      all.add(text_of(std::string_view(*text).substr(begin, at - begin), budget));
    }
  } else if (!value.is_undefined()) {
    throw Problem(format("{} has no elements", type_of(value)));
  }
  return *all.done().as<List>();
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) refuse_undefined(value);
  if (const auto index = whole(key)) {
    const auto size = value.text() || is_plain_list(value) ? static_cast<std::int64_t>(length(value, budget)) : 0;
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) return undefined(format("element {} of a {}", *index, type_of(value)), budget);
    if (value.items()) return (*value.items())[static_cast<std::size_t>(at)];
    return get_slice(value, at, at + 1, 1, budget);
  }
  if (key.text()) return get_item(value, *key.text(), budget);
  return undefined(format("an element of a {} by a {}", type_of(value), type_of(key)), budget);
}

Value get_item(const Value& value, std::string_view name, Budget& budget) {
  const auto* const space = value.as<std::shared_ptr<Dict>>();
  const Dict* const dict = space ? space->get() : value.dict();
  if (const Value* const found = dict ? dict->find(name, budget) : nullptr) return *found;
  return undefined(format("'{}' of a {}", excerpt(name), type_of(value)), budget);
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  if (value.is_undefined()) refuse_undefined(value);
  require_not_safe(value);
  if (!value.text() && !is_plain_list(value)) throw Problem(format("{} has no parts", type_of(value)));
  const auto given = [](const Value& bound) { return !bound.is_undefined() && !bound.is_none(); };
  const std::int64_t by = given(step) ? integer(step) : 1;
  if (by == 0) throw Problem("the step of a slice is zero");
  const auto size = static_cast<std::int64_t>(length(value, budget));
  const auto place = [&](const Value& bound, std::int64_t otherwise) {
    if (!given(bound)) return otherwise;
    const std::int64_t at = integer(bound), from_begin = at < 0 ? std::max(at, -size - 1) + size : at;
    return by > 0 ? std::clamp<std::int64_t>(from_begin, 0, size) : std::clamp<std::int64_t>(from_begin, -1, size - 1);
  };
  const std::int64_t from = place(begin, by > 0 ? 0 : size - 1), to = place(end, by > 0 ? size : -1);
  const std::int64_t jump = std::clamp<std::int64_t>(by, -size - 1, size + 1);
  if (value.items()) {
    Items items(&budget);
    for (std::int64_t at = from; by > 0 ? at < to : at > to; at += jump)
      items.add((*value.items())[static_cast<std::size_t>(at)]);
    return items.done(value.as<List>()->shape);
  }
  const std::string_view text = *value.text();
  Writer part(budget);
  budget.work(text.size());
  std::size_t first = moved(text, 0, from);
  if (by == 1 && from < to) part.add(text.substr(first, moved(text, first, to - from) - first));
  for (std::int64_t at = from; by != 1 && (by > 0 ? at < to : at > to); at += jump) {
    part.add(text.substr(first, moved(text, first, 1) - first));
    first = moved(text, first, jump);
  }
  return part.done();
}

Value operate(std::string_view sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "~") {
    Writer all(budget);
    for (const Value* const one : {&a, &b}) write(all, *one);
    return all.done();
  }
  for (const Value* const one : {&a, &b}) {
    if (one->is_undefined()) refuse_undefined(*one);
    require_not_safe(*one);
  }
  if (number(a) && number(b)) return calculate(sign, a, b);
  if (sign == "+") {
    if (a.text() && b.text()) return operate("~", a, b, budget);
    if (is_plain_list(a) && is_plain_list(b) && a.as<List>()->shape == b.as<List>()->shape) {
      Items all(&budget);
      for (const Value* const list : {&a, &b})
        for (const Value& one : *list->items()) all.add(one);
      return all.done(a.as<List>()->shape);
    }
  }
  if (sign == "*" && (a.text() || is_plain_list(a)) && whole(b)) return repeated(a, *whole(b), budget);
  if (sign == "*" && (b.text() || is_plain_list(b)) && whole(a)) return repeated(b, *whole(a), budget);
  if (sign == "%" && a.text()) throw Problem("'%' with a text is not known here; join texts by '~'");
  throw Problem(format("'{}' does not work with {} and {}", sign, type_of(a), type_of(b)));
}

std::optional<double> number(const Value& value) {
  if (const auto* const is = value.as<double>()) return *is;
  if (const auto is = whole(value)) return static_cast<double>(*is);
  return std::nullopt;
}

std::int64_t integer(const Value& value) {
  if (const auto is = whole(value)) return *is;
  if (value.is_undefined()) refuse_undefined(value);
  const auto* const real = value.as<double>();
  if (!real || !(std::abs(*real) < 9e18))
    throw Problem(format("{} is no integer", real ? text_of_number(*real) : type_of(value)));
  return static_cast<std::int64_t>(*real);
}

void write_json(Writer& to, const Value& value, const JsonStyle& style, std::size_t level) {
  to.budget().work(2 * Budget::bytes_per_element);
  const auto line = [&](std::size_t of) {
    if (style.indent) to.add('\n');
    for (std::size_t i = 0; style.indent && i < of; ++i) to.add(*style.indent);
  };
  const auto put_all = [&](const auto& entries, std::string_view brackets, const auto& put) {
    to.add(brackets[0]);
    bool first = true;
    for (const auto& entry : entries) {
      if (!first) to.add(style.comma);
      first = false;
      line(level + 1);
      put(entry);
    }
    if (!first) line(level);
    to.add(brackets[1]);
  };
  if (value.is_none()) {
    to.add("null");
  } else if (const auto* const is = value.as<bool>()) {
    to.add(*is ? "true" : "false");
  } else if (const auto* const real = value.as<double>()) {
    to.add(std::isnan(*real) ? "NaN" : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity") : text_of_number(*real));
  } else if (value.as<std::int64_t>()) {
    write_repr(to, value);
  } else if (value.text()) {
    write_json_text(to, *value.text(), style.ascii);
  } else if (is_plain_list(value)) {
    put_all(*value.items(), "[]", [&](const Value& one) { write_json(to, one, style, level + 1); });
  } else if (value.dict()) {
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : value.dict()->entries) entries.push_back(&entry);
    if (style.sorted)
      std::sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        to.budget().work(Budget::bytes_per_element + std::min(a->first.size(), b->first.size()));
        return a->first < b->first;
      });
    put_all(entries, "{}", [&](const auto* entry) {
      write_json_text(to, entry->first, style.ascii);
      to.add(style.colon);
      write_json(to, entry->second, style, level + 1);
    });
  } else {
    throw Problem(format("{} cannot be written as JSON", value.is_undefined()
                                                             ? format("{} is undefined, which", value.as<Undefined>()->named())
                                                             : "a " + type_of(value)));
  }
}

bool is_python_space(char32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from, Budget& budget) {
  // The windows grow, so that what is charged before the search is at most twice what the search looks at.
  for (std::size_t size = 256; from <= text.size(); from += size, size *= 2) {
    const std::string_view window = text.substr(from, size + part.size());
    budget.work(4 * (window.size() + part.size()));
    if (const void* const found = memmem(window.data(), window.size(), part.data(), part.size()))
      return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  return text.npos;
}

std::size_t moved(std::string_view text, std::size_t at, std::int64_t by) {
  for (; by > 0 && at < text.size(); --by) next_character(text, at);
  for (; by < 0 && at > 0; ++by) at -= character_before(text, at);
  return at;
}

}  // namespace fsdp::jinja
