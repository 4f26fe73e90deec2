// The filters, tests, methods and global functions of Jinja templates.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.hpp"

namespace fsdp::jinja {

/// value | name(arguments). Throws Problem if the filter is not known.
Value call_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
/// value is name(arguments). Throws Problem if the test is not known.
bool call_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
/// value.name: a method, an attribute or an element of a dictionary. Returns an undefined value if there is none. Throws
/// Problem for methods that are not known here, or that would change the value.
Value attribute(const Value& value, const std::string& name, Budget& budget);
/// value[key], with Python's methods for a text that is no key, as in Jinja.
Value subscript(const Value& value, const Value& key, Budget& budget);
/// Global functions; `budget` must outlive the values that are returned. namespace() is made by the interpreter.
std::optional<Value> global_function(std::string_view name, Budget& budget);
/// The dictionary that the arguments of dict() and namespace() describe.
Dict dict_of(const Arguments& arguments, Budget& budget);

/// raise_exception() was called.
struct Raised : Problem {
  using Problem::Problem;
};

}  // namespace fsdp::jinja
