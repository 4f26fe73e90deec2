#include "text/jinja_value.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/format.hpp"
#include "text/utf8.hpp"

namespace fsdp::jinja {

namespace {

constexpr std::size_t most_levels = 200;

[[noreturn]] void refuse_undefined(const Value& value) {
  throw Problem(format("{} is undefined", value.as<Undefined>()->what));
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

std::string quoted(const std::string& text) {
  const bool has_single = text.find('\'') != text.npos;
  const char32_t quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  std::string all(1, static_cast<char>(quote));
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c == quote || c == '\\') {
      all += '\\';
      all += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      all += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_utf8(all, c);
    } else {
      all += hex(c);
    }
  }
  return all + static_cast<char>(quote);
}

std::string json_text(const std::string& text, bool ascii) {
  std::string all = "\"";
  const auto unit = [&](unsigned u) { all += format("\\u{:04x}", u); };
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    constexpr std::string_view named = "\"\\\n\r\t\f\b", names = "\"\\nrtfb";
    if (const std::size_t i = c < 0x80 ? named.find(static_cast<char>(c)) : named.npos; i != named.npos) {
      all += '\\';
      all += names[i];
    } else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) {
      if (c == 0x7f)
        all += static_cast<char>(c);
      else
        unit(static_cast<unsigned>(c));
    } else if (ascii && c >= 0x10000) {
      unit(0xd800 + static_cast<unsigned>((c - 0x10000) >> 10));
      unit(0xdc00 + static_cast<unsigned>((c - 0x10000) & 0x3ff));
    } else {
      append_utf8(all, c);
    }
  }
  return all + '"';
}

/// The operator % of a text, for the conversions that templates use.
std::string with_percents(const std::string& pattern, const Value& arguments) {
  std::vector<Value> values = {arguments};
  if (const auto* const list = arguments.as<List>(); list && list->shape == Shape::tuple) values = *list->items;
  std::string all;
  std::size_t used = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%') {
      all += pattern[at];
      continue;
    }
    const std::size_t end = std::min(pattern.find_first_not_of(".0123456789", at + 1), pattern.size() - 1);
    const std::string digits = pattern.substr(at + 1, end - at - 1);
    const char kind = at == end ? ' ' : pattern[end];
    at = end;
    if (kind == '%' && digits.empty()) {
      all += '%';
      continue;
    }
    if (used == values.size()) throw Problem("there are not enough values for the text with '%'");
    const Value& value = values[used++];
    if (kind == 's' && digits.empty()) {
      all += str(value);
    } else if (kind == 'r' && digits.empty()) {
      all += repr(value);
    } else if ((kind == 'd' || kind == 'i') && digits.empty() && number(value)) {
      all += format("{}", integer(value));
    } else if (kind == 'f' && number(value) && (digits.empty() || (digits.size() == 2 && digits[0] == '.'))) {
      all += format("{:.{}f}", *number(value), digits.empty() ? 6 : digits[1] - '0');
    } else {
      throw Problem(format("'%{}{}' for {} is not known (known are %s, %r, %d, %f and %.1f)", digits, kind, type_of(value)));
    }
  }
  if (used < values.size()) throw Problem("not all values are used by the text with '%'");
  return all;
}

Value power(const Value& a, const Value& b) {
  const auto base = whole(a), exponent = whole(b);
  if (!base || !exponent || *exponent < 0) return std::pow(*number(a), *number(b));
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < *exponent && (result != 0 && (*base != 1 && (*base != -1 || i < 2))); ++i)
    if (__builtin_mul_overflow(result, *base, &result)) throw Problem("a number is too large");
  if (*base == -1) result = *exponent % 2 == 0 ? 1 : -1;
  return result;
}

Value calculate(std::string_view sign, const Value& a, const Value& b) {
  if (sign == "**") return power(a, b);
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
  const std::size_t count = times < 0 ? 0 : static_cast<std::size_t>(times);
  const std::size_t one = value.text() ? value.text()->size() : value.items()->size() * sizeof(Value);
  if (one == 0) return value;
  budget.make(count > std::numeric_limits<std::size_t>::max() / one ? std::numeric_limits<std::size_t>::max() : count * one);
  if (const std::string* const text = value.text()) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += *text;
    return all;
  }
  std::vector<Value> all;
  for (std::size_t i = 0; i < count; ++i) all.insert(all.end(), value.items()->begin(), value.items()->end());
  return Value::list(std::move(all), value.as<List>()->shape);
}

/// Joins two texts. If one of them is safe, the other is escaped, as by Markup in Python.
Value joined(const Value& a, const Value& b, Budget& budget) {
  const bool safe = a.is_safe() || b.is_safe();
  const auto part = [&](const Value& value) { return safe && !value.is_safe() ? escaped(str(value)) : str(value); };
  std::string all = part(a) + part(b);
  budget.make(all.size());
  return {std::move(all), safe};
}

bool is_plain_list(const Value& value) {
  const List* const list = value.as<List>();
  return list && (list->shape == Shape::list || list->shape == Shape::tuple);
}

}  // namespace

void Budget::step() {
  if (steps_ == 0) throw Problem(format("it does more than {} steps (it may have a loop without an end)", all_steps_));
  --steps_;
}

void Budget::make(std::size_t bytes) {
  if (bytes > bytes_) throw Problem(format("it makes more than {} of text", format_bytes(static_cast<double>(all_bytes_))));
  bytes_ -= bytes;
}

std::size_t Value::depth() const {
  if (const List* const list = as<List>()) return list->depth;
  return dict() ? dict()->depth : 0;
}

Value Value::list(std::vector<Value> items, Shape shape) {
  std::size_t depth = 1;
  for (const Value& one : items) depth = std::max(depth, one.depth() + 1);
  require_levels(depth);
  return List{std::make_shared<const std::vector<Value>>(std::move(items)), shape, depth};
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
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& one : json) items.push_back(of_json(one));
    return list(std::move(items));
  }
  Dict entries;
  for (const auto& [key, value] : json.items()) entries.entries.emplace_back(key, of_json(value));
  return dict(std::move(entries));
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  for (auto& [name, old] : entries)
    if (name == key) return void(old = std::move(value));
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

bool equal(const Value& a, const Value& b) {
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (whole(a) && whole(b)) return *whole(a) == *whole(b);
  if (number(a) && number(b)) return *number(a) == *number(b);
  if (a.text() && b.text()) return *a.text() == *b.text();
  if (a.items() && b.items())
    return a.as<List>()->shape == b.as<List>()->shape &&
           std::equal(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(), equal);
  if (a.dict() && b.dict())
    return a.dict()->entries.size() == b.dict()->entries.size() &&
           std::all_of(a.dict()->entries.begin(), a.dict()->entries.end(), [&](const auto& entry) {
             const Value* const other = b.dict()->find(entry.first);
             return other && equal(entry.second, *other);
           });
  const auto same = [&]<class T>(const T* left) { return left && b.as<T>() && *left == *b.as<T>(); };
  return same(a.as<std::shared_ptr<Dict>>()) || same(a.as<std::shared_ptr<const Function>>()) ||
         same(a.as<std::shared_ptr<Loop>>());
}

bool less(const Value& a, const Value& b) {
  for (const Value* const one : {&a, &b})
    if (one->is_undefined()) refuse_undefined(*one);
  if (whole(a) && whole(b)) return *whole(a) < *whole(b);
  if (number(a) && number(b)) return *number(a) < *number(b);
  if (a.text() && b.text()) return *a.text() < *b.text();
  if (is_plain_list(a) && is_plain_list(b) && a.as<List>()->shape == b.as<List>()->shape) {
    const auto [left, right] = std::mismatch(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(), equal);
    if (left == a.items()->end() || right == b.items()->end()) return right != b.items()->end();
    return less(*left, *right);
  }
  throw Problem(format("{} and {} have no order", type_of(a), type_of(b)));
}

bool contains(const Value& container, const Value& part) {
  if (const std::string* const text = container.text()) {
    if (part.is_undefined()) refuse_undefined(part);
    if (!part.text()) throw Problem(format("{} cannot be in a text", type_of(part)));
    return text->find(*part.text()) != text->npos;
  }
  if (container.dict()) return part.text() && container.dict()->find(*part.text());
  const std::vector<Value> all = elements(container);
  return std::any_of(all.begin(), all.end(), [&](const Value& one) { return equal(one, part); });
}

std::string str(const Value& value) {
  if (value.text()) return *value.text();
  return value.is_undefined() ? "" : repr(value);
}

std::string repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const auto* const is = value.as<bool>()) return *is ? "True" : "False";
  if (const auto* const is = value.as<std::int64_t>()) return format("{}", *is);
  if (const auto* const is = value.as<double>()) return text_of_number(*is);
  if (value.text()) return value.is_safe() ? "Markup(" + quoted(*value.text()) + ")" : quoted(*value.text());
  std::string all;
  if (is_plain_list(value)) {
    for (const Value& one : *value.items()) all += (all.empty() ? "" : ", ") + repr(one);
    if (value.as<List>()->shape == Shape::list) return "[" + all + "]";
    return "(" + all + (value.items()->size() == 1 ? ",)" : ")");
  }
  if (!value.dict()) throw Problem(format("a {} cannot be printed", type_of(value)));
  for (const auto& [key, one] : value.dict()->entries) all += (all.empty() ? "" : ", ") + quoted(key) + ": " + repr(one);
  return "{" + all + "}";
}

std::size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* const text = value.text())
    return static_cast<std::size_t>(std::count_if(text->begin(), text->end(), [](char c) { return (c & 0xc0) != 0x80; }));
  if (const List* const list = value.as<List>(); list && list->shape != Shape::once) return list->items->size();
  if (value.dict()) return value.dict()->entries.size();
  if (const auto* const loop = value.as<std::shared_ptr<Loop>>()) return (*loop)->items.size();
  throw Problem(format("{} has no length", type_of(value)));
}

std::vector<Value> elements(const Value& value) {
  std::vector<Value> all;
  if (value.is_undefined()) return all;
  if (value.items()) return *value.items();
  if (value.dict()) {
    for (const auto& entry : value.dict()->entries) all.emplace_back(entry.first);
  } else if (const std::string* const text = value.text()) {
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t begin = at;
      next_character(*text, at);
      all.emplace_back(text->substr(begin, at - begin));
    }
  } else {
    throw Problem(format("{} has no elements", type_of(value)));
  }
  return all;
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) refuse_undefined(value);
  if (const auto index = whole(key)) {
    const auto size = value.text() || is_plain_list(value) ? static_cast<std::int64_t>(length(value)) : 0;
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) return Undefined{format("element {} of a {}", *index, type_of(value))};
    if (value.items()) return (*value.items())[static_cast<std::size_t>(at)];
    budget.make(value.text()->size());
    return elements(value)[static_cast<std::size_t>(at)];
  }
  if (const std::string* const name = key.text()) {
    const auto* const space = value.as<std::shared_ptr<Dict>>();
    const Dict* const dict = space ? space->get() : value.dict();
    if (const Value* const found = dict ? dict->find(*name) : nullptr) return *found;
    return Undefined{format("'{}' of a {}", excerpt(*name), type_of(value))};
  }
  return Undefined{format("the element {} of a {}", excerpt(repr(key)), type_of(value))};
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  if (value.is_undefined()) refuse_undefined(value);
  if (!value.text() && !is_plain_list(value)) throw Problem(format("{} has no parts", type_of(value)));
  const auto given = [](const Value& bound) { return !bound.is_undefined() && !bound.is_none(); };
  const std::int64_t by = given(step) ? integer(step) : 1;
  if (by == 0) throw Problem("the step of a slice is zero");
  budget.make(value.text() ? value.text()->size() * 4 : value.items()->size() * sizeof(Value));
  const std::u32string letters = value.text() ? characters(*value.text()) : U"";
  const auto size = static_cast<std::int64_t>(value.text() ? letters.size() : value.items()->size());
  const auto place = [&](const Value& bound, std::int64_t otherwise) {
    if (!given(bound)) return otherwise;
    const std::int64_t at = integer(bound), from_begin = at < 0 ? std::max(at, -size - 1) + size : at;
    return by > 0 ? std::clamp<std::int64_t>(from_begin, 0, size) : std::clamp<std::int64_t>(from_begin, -1, size - 1);
  };
  const std::int64_t from = place(begin, by > 0 ? 0 : size - 1), to = place(end, by > 0 ? size : -1);
  std::u32string text;
  std::vector<Value> items;
  const std::int64_t jump = std::clamp<std::int64_t>(by, -size - 1, size + 1);
  for (std::int64_t at = from; by > 0 ? at < to : at > to; at += jump) {
    if (value.text())
      text += letters[static_cast<std::size_t>(at)];
    else
      items.push_back((*value.items())[static_cast<std::size_t>(at)]);
  }
  if (value.text()) return {utf8(text), value.is_safe()};
  return Value::list(std::move(items), value.as<List>()->shape);
}

Value operate(std::string_view sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "~") return joined(str(a), str(b), budget);
  for (const Value* const one : {&a, &b})
    if (one->is_undefined()) refuse_undefined(*one);
  if (number(a) && number(b)) return calculate(sign, a, b);
  if (sign == "+") {
    if (a.text() && b.text()) return joined(a, b, budget);
    if (is_plain_list(a) && is_plain_list(b) && a.as<List>()->shape == b.as<List>()->shape) {
      budget.make((a.items()->size() + b.items()->size()) * sizeof(Value));
      std::vector<Value> all = *a.items();
      all.insert(all.end(), b.items()->begin(), b.items()->end());
      return Value::list(std::move(all), a.as<List>()->shape);
    }
  }
  if (sign == "*" && (a.text() || is_plain_list(a)) && whole(b)) return repeated(a, *whole(b), budget);
  if (sign == "*" && (b.text() || is_plain_list(b)) && whole(a)) return repeated(b, *whole(a), budget);
  if (sign == "%" && a.text() && !a.is_safe()) {
    std::string all = with_percents(*a.text(), b);
    budget.make(all.size());
    return all;
  }
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
  if (!real || !(std::abs(*real) < 9e18)) throw Problem(format("{} is no integer", real ? repr(value) : type_of(value)));
  return static_cast<std::int64_t>(*real);
}

namespace {

void dump(std::string& all, const Value& value, const JsonStyle& style, std::size_t level) {
  const auto line = [&](std::size_t of) {
    if (!style.indent) return;
    all += '\n';
    for (std::size_t i = 0; i < of; ++i) all += *style.indent;
  };
  const auto put_all = [&](const auto& entries, std::string_view brackets, const auto& put) {
    all += brackets[0];
    bool first = true;
    for (const auto& entry : entries) {
      if (!first) all += style.comma;
      first = false;
      line(level + 1);
      put(entry);
    }
    if (!first) line(level);
    all += brackets[1];
  };
  if (value.is_none()) {
    all += "null";
  } else if (const auto* const is = value.as<bool>()) {
    all += *is ? "true" : "false";
  } else if (const auto* const real = value.as<double>()) {
    all += std::isnan(*real) ? "NaN" : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity") : text_of_number(*real);
  } else if (value.as<std::int64_t>()) {
    all += repr(value);
  } else if (value.text()) {
    all += json_text(*value.text(), style.ascii);
  } else if (is_plain_list(value)) {
    put_all(*value.items(), "[]", [&](const Value& one) { dump(all, one, style, level + 1); });
  } else if (value.dict()) {
    auto entries = value.dict()->entries;
    if (style.sorted) std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    put_all(entries, "{}", [&](const auto& entry) {
      all += json_text(entry.first, style.ascii) + style.colon;
      dump(all, entry.second, style, level + 1);
    });
  } else {
    throw Problem(format("{} cannot be written as JSON",
                         value.is_undefined() ? value.as<Undefined>()->what + " is undefined, which" : "a " + type_of(value)));
  }
}

}  // namespace

std::string json_dump(const Value& value, const JsonStyle& style) {
  std::string all;
  dump(all, value, style, 0);
  return all;
}

std::string escaped(const std::string& text) {
  std::string all;
  for (const char c : text) {
    switch (c) {
      case '&':
        all += "&amp;";
        break;
      case '<':
        all += "&lt;";
        break;
      case '>':
        all += "&gt;";
        break;
      case '\'':
        all += "&#39;";
        break;
      case '"':
        all += "&#34;";
        break;
      default:
        all += c;
    }
  }
  return all;
}

std::u32string characters(std::string_view text) {
  std::u32string all;
  for (std::size_t at = 0; at < text.size();) all += next_character(text, at);
  return all;
}

std::string utf8(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) append_utf8(text, c);
  return text;
}

bool is_python_space(char32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string upper(const std::string& text) {
  std::string all;
  icu::UnicodeString::fromUTF8(text).toUpper(icu::Locale::getRoot()).toUTF8String(all);
  return all;
}

std::string lower(const std::string& text) {
  std::string all;
  icu::UnicodeString::fromUTF8(text).toLower(icu::Locale::getRoot()).toUTF8String(all);
  return all;
}

}  // namespace fsdp::jinja
