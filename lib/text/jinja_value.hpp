// Values of Jinja templates, which are Python's: how they are printed, compared, added and searched.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace fsdp::jinja {

/// What a template does wrong. JinjaTemplate adds its name, the line and the column.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a template may still use. The functions throw Problem if nothing is left.
class Budget {
 public:
  Budget(std::size_t steps, std::size_t bytes) : steps_(steps), bytes_(bytes), all_steps_(steps), all_bytes_(bytes) {}
  void step();
  void make(std::size_t bytes);  // call this before texts and lists are made

 private:
  std::size_t steps_, bytes_, all_steps_, all_bytes_;
};

class Value;
struct Dict;
struct Function;
struct Loop;

/// The value of an unknown name. It prints nothing, and its attributes are errors.
struct Undefined {
  std::string what;  // "'x'"
};
struct None {};
/// Text in UTF-8. A `safe` text comes from the filters `safe` and `escape`.
struct Text {
  std::shared_ptr<const std::string> text;
  bool safe = false;
};
/// `view` is the result of dict.keys(), values() and items(); `once` is a generator, the result of filters such as `map`.
enum class Shape { list, tuple, view, once };
struct List {
  std::shared_ptr<const std::vector<Value>> items;
  Shape shape = Shape::list;
  std::size_t depth = 1;
};

/// A value. Lists and dictionaries cannot change, so copies share them. Only a namespace changes.
class Value {
 public:
  using Any = std::variant<Undefined, None, bool, std::int64_t, double, Text, List, std::shared_ptr<const Dict>,
                           std::shared_ptr<Dict>, std::shared_ptr<const Function>, std::shared_ptr<Loop>>;
  Value() : any_(Undefined{"a value"}) {}
  Value(Undefined one) : any_(std::move(one)) {}
  Value(None one) : any_(one) {}
  Value(Text one) : any_(std::move(one)) {}
  Value(List one) : any_(std::move(one)) {}
  template <std::integral T>
  Value(T one) {
    if constexpr (std::same_as<T, bool>)
      any_ = one;
    else
      any_ = static_cast<std::int64_t>(one);
  }
  Value(double one) : any_(one) {}
  template <class T>
  Value(std::shared_ptr<T> one) : any_(std::move(one)) {}
  Value(std::string text, bool safe = false) : any_(Text{std::make_shared<const std::string>(std::move(text)), safe}) {}
  Value(const char* text) : Value(std::string(text)) {}
  /// Throws Problem if the value has too many levels.
  static Value list(std::vector<Value> items, Shape shape = Shape::list);
  static Value dict(Dict entries);
  static Value of_json(const nlohmann::ordered_json& json);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&any_);
  }
  bool is_undefined() const { return as<Undefined>(); }
  bool is_none() const { return as<None>(); }
  const std::string* text() const { return as<Text>() ? as<Text>()->text.get() : nullptr; }
  const std::vector<Value>* items() const { return as<List>() ? as<List>()->items.get() : nullptr; }
  const Dict* dict() const { return as<std::shared_ptr<const Dict>>() ? as<std::shared_ptr<const Dict>>()->get() : nullptr; }
  bool is_safe() const { return as<Text>() && as<Text>()->safe; }
  std::size_t depth() const;

 private:
  Any any_;
};

/// A dictionary. Its keys are texts, in the order in which they were added.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  std::size_t depth = 1;

  const Value* find(std::string_view key) const;
  void set(std::string_view key, Value value);  // replaces the value of a key that is there
};

/// The arguments of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};
struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

/// The variable `loop`.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;  // from 0
  std::vector<Value> changed_arguments;
  bool has_changed = false;
};

/// "str", "list" and so on: the name of the type in Python.
std::string type_of(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
/// Throws Problem if the values have no order.
bool less(const Value& a, const Value& b);
bool contains(const Value& container, const Value& part);
/// Python's str() and repr().
std::string str(const Value& value);
std::string repr(const Value& value);
/// The number of characters or elements.
std::size_t length(const Value& value);
/// The elements of a list, the keys of a dictionary or the characters of a text.
std::vector<Value> elements(const Value& value);
/// value[key], value.name: a text as key is that of a dictionary. Returns an undefined value if there is none.
Value get_item(const Value& value, const Value& key, Budget& budget);
/// value[begin:end:step]; none and undefined count as left out.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);
/// The operators + - * / // % ** and ~.
Value operate(std::string_view sign, const Value& a, const Value& b, Budget& budget);
/// Python's int(). Throws Problem if the value is no integer.
std::int64_t integer(const Value& value);
std::optional<double> number(const Value& value);

struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent;  // of each level
  std::string comma, colon;
};
/// Python's json.dumps().
std::string json_dump(const Value& value, const JsonStyle& style);
/// The text with &, <, >, ' and " as in HTML.
std::string escaped(const std::string& text);

/// Functions on characters, as in Python.
std::u32string characters(std::string_view text);
std::string utf8(std::u32string_view characters);
bool is_python_space(char32_t character);
std::string upper(const std::string& text);
std::string lower(const std::string& text);

}  // namespace fsdp::jinja
