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

/// What a template may still use. All work and memory of a template is charged here before it is done or taken.
class Budget {
 public:
  /// A step is a node of the template, or this many bytes that are copied or looked at. What is dearer is charged as more
  /// bytes.
  static constexpr std::size_t bytes_per_step = 256, bytes_per_element = 32, bytes_per_character = 16;

  Budget(std::size_t steps, std::size_t bytes)
      : work_(steps * bytes_per_step), bytes_(bytes), all_steps_(steps), all_bytes_(bytes) {}
  /// Throws Problem if so many bytes of work are not left.
  void work(std::size_t bytes) {
    if (bytes > work_) refuse_work();
    work_ -= bytes;
  }
  /// Throws Problem if the memory is not left.
  void take(std::size_t bytes) {
    if (bytes > bytes_) refuse_bytes();
    bytes_ -= bytes;
  }
  void give_back(std::size_t bytes) { bytes_ += bytes; }

 private:
  [[noreturn]] void refuse_work() const;
  [[noreturn]] void refuse_bytes() const;
  std::size_t work_, bytes_, all_steps_, all_bytes_;
};

/// Memory that is charged until this is destroyed. Without a budget, as for the values of a conversation, nothing is charged.
class Held {
 public:
  explicit Held(Budget* budget = nullptr, std::size_t bytes = 0) : budget_(budget) { add(bytes); }
  Held(Held&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Held() { remove(bytes_); }
  void add(std::size_t bytes) {
    if (!budget_) return;
    budget_->take(bytes);
    bytes_ += bytes;
  }
  void remove(std::size_t bytes) {
    if (!budget_) return;
    budget_->give_back(bytes);
    bytes_ -= bytes;
  }
  Budget* budget() const { return budget_; }

 private:
  Budget* budget_;
  std::size_t bytes_ = 0;
};

class Value;
struct Dict;
struct Function;
struct Loop;

/// The value of an unknown name. It prints nothing, and its attributes are errors.
struct Undefined {
  std::shared_ptr<const std::string> what = nullptr;  // "'x'"
  std::string_view named() const { return what ? std::string_view(*what) : "a value"; }
};
struct None {};
/// Text in UTF-8. A `safe` text comes from the filter `safe`.
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
  const Value* begin() const;
  const Value* end() const;
};

/// A value. Lists and dictionaries cannot change, so copies share them. Only a namespace changes. Texts are made by Writer and
/// lists by Items.
class Value {
 public:
  using Any = std::variant<Undefined, None, bool, std::int64_t, double, Text, List, std::shared_ptr<const Dict>,
                           std::shared_ptr<Dict>, std::shared_ptr<const Function>, std::shared_ptr<Loop>>;
  Value() : any_(Undefined()) {}
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
  /// Values that are given to a template, and are not charged. Throw Problem if the value has too many levels.
  static Value given(std::string text) { return Text{std::make_shared<const std::string>(std::move(text))}; }
  static Value given(std::vector<Value> items);
  static Value of_json(const nlohmann::ordered_json& json);
  /// Throws Problem if the value has too many levels.
  static Value dict(Dict entries);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&any_);
  }
  bool is_undefined() const { return as<Undefined>(); }
  bool is_none() const { return as<None>(); }
  const std::string* text() const { return as<Text>() ? as<Text>()->text.get() : nullptr; }
  const std::vector<Value>* items() const { return as<List>() ? as<List>()->items.get() : nullptr; }
  const Dict* dict() const { return as<std::shared_ptr<const Dict>>() ? as<std::shared_ptr<const Dict>>()->get() : nullptr; }
  std::size_t depth() const;

 private:
  Any any_;
};

inline const Value* List::begin() const { return items->data(); }
inline const Value* List::end() const { return items->data() + items->size(); }

/// A text that a template makes.
class Writer {
 public:
  explicit Writer(Budget& budget) : held_(&budget) {}
  Budget& budget() const { return *held_.budget(); }
  std::string& text() { return text_; }
  void reserve(std::size_t more);
  void add(std::string_view text);
  void add(char c) { add(std::string_view(&c, 1)); }
  Value done();

 private:
  std::string text_;
  Held held_;
  std::size_t capacity_ = 0;  // that is charged
};

/// The elements of a list that a template makes, or the arguments of a call.
class Items {
 public:
  explicit Items(Budget* budget = nullptr) : held_(budget) {}
  void add(Value value);
  const std::vector<Value>& all() const { return all_; }
  /// Throws Problem if the value has too many levels.
  Value done(Shape shape = Shape::list);

 private:
  std::vector<Value> all_;
  Held held_;
};

/// A dictionary. Its keys are texts, in the order in which they were added.
struct Dict {
  explicit Dict(Budget* budget = nullptr) : held(budget, 128) {}
  std::vector<std::pair<std::string, Value>> entries = {};
  std::size_t depth = 1;
  Held held;

  const Value* find(std::string_view key, Budget& budget) const;
  void add(std::string_view key, Value value, Budget& budget);  // a new key
  void set(std::string_view key, Value value, Budget& budget);  // a new key, or another value of a known key
};

/// The entry with this name, or null.
template <class Entries>
auto entry_of(Entries& entries, std::string_view name, Budget& budget) -> decltype(entries.data()) {
  budget.work(entries.size() * 4);
  for (auto& entry : entries) {
    if (entry.first.size() != name.size()) continue;
    budget.work(name.size());
    if (entry.first == name) return &entry;
  }
  return nullptr;
}

/// The arguments of a call.
struct Arguments {
  Items values;
  std::vector<std::pair<std::string_view, Value>> named = {};
};
struct Function {
  std::function<Value(const Arguments&)> call;
  std::size_t depth;  // of the value to which it belongs
  Held held;
};

/// The variable `loop`.
struct Loop {
  List items;
  Held held;
  std::size_t index = 0;  // from 0
};

/// "str", "list" and so on: the name of the type in Python.
std::string type_of(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Throws Problem if the values have no order.
bool less(const Value& a, const Value& b, Budget& budget);
bool contains(const Value& container, const Value& part, Budget& budget);
/// Writes Python's str() or repr().
void write(Writer& to, const Value& value);
void write_repr(Writer& to, const Value& value);
/// str(), as a text.
Value str(const Value& value, Budget& budget);
Value text_of(std::string_view text, Budget& budget);
/// Throws Problem for a text of the filter `safe`, which Python would join to escaped texts.
void require_not_safe(const Value& value);
Undefined undefined(std::string_view what, Budget& budget);
/// The number of characters or elements.
std::size_t length(const Value& value, Budget& budget);
std::size_t length(std::string_view text, Budget& budget);
/// The elements of a list, the keys of a dictionary or the characters of a text.
List elements(const Value& value, Budget& budget);
/// value[key], value.name: a text as key is that of a dictionary. Returns an undefined value if there is none.
Value get_item(const Value& value, const Value& key, Budget& budget);
Value get_item(const Value& value, std::string_view name, Budget& budget);
/// value[begin:end:step]; none and undefined count as left out.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);
/// The operators + - * / // % and ~.
Value operate(std::string_view sign, const Value& a, const Value& b, Budget& budget);
/// Python's int(). Throws Problem if the value is no integer.
std::int64_t integer(const Value& value);
std::optional<double> number(const Value& value);

struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string_view> indent;  // of each level
  std::string_view comma, colon;
};
/// Writes Python's json.dumps().
void write_json(Writer& to, const Value& value, const JsonStyle& style, std::size_t level = 0);

/// Functions on characters, as in Python.
bool is_python_space(char32_t character);
/// The place of `part` in `text` from `from` on, or npos. Takes a time that is linear in what it looks at.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from, Budget& budget);
/// Moves a place in a text by characters, until the text begins or ends.
std::size_t moved(std::string_view text, std::size_t at, std::int64_t by);

}  // namespace fsdp::jinja
