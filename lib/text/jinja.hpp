// Runs Jinja templates, as transformers runs chat templates: Jinja 3.1 in its immutable sandbox, with the options and functions
// of transformers' apply_chat_template(). Values are Python's. Not known are imports, inheritance, the blocks `call`, `filter`,
// `raw` and `with`, recursive loops, `varargs`, escapes of HTML, and what docs/running.md does not list: filters, tests,
// methods and operators that no template of a model uses.
//   JinjaTemplate   a template                               jinja.cpp
//   jinja::Node     its tree, read from the source           jinja_parser.cpp
//   jinja::Value    values, their operators and texts        jinja_value.cpp
//   filters, tests and methods, as tables                    jinja_functions.cpp
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_parser.hpp"
#include "text/jinja_value.hpp"

namespace fsdp {

/// The bytes from `begin` to `end` of a text.
struct TextSpan {
  std::size_t begin = 0, end = 0;
};

struct JinjaOutput {
  std::string text;
  std::vector<TextSpan> generated;  // what `generation` blocks wrote
  /// What each message wrote: the output of the last pass of a loop over `messages` that wrote anything for the message. Empty
  /// if there was none.
  std::vector<TextSpan> messages;
};

/// The template has called raise_exception(), so it refuses the values that it got.
struct TemplateRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class JinjaTemplate {
 public:
  /// What one rendering may use. Memory counts until it is freed. These limits are far above what conversations need.
  static constexpr std::size_t most_steps = 10'000'000, most_bytes = std::size_t{512} << 20;
  static constexpr std::size_t longest_source = std::size_t{1} << 20;

  /// `name` is the name in messages, that of the file. Throws UserError with line and column for what is not Jinja or not
  /// known.
  JinjaTemplate(std::string name, std::string_view source);

  using Variables = std::vector<std::pair<std::string, jinja::Value>>;
  /// Runs the template. Throws UserError, with line and column, for errors in the template and for what exceeds the limits, and
  /// TemplateRefusal. Steps and bytes are those of jinja::Budget.
  JinjaOutput render(const Variables& variables, std::size_t steps = most_steps, std::size_t bytes = most_bytes) const;

  const std::string& name() const { return name_; }
  bool has_generation() const { return has_generation_; }
  /// Returns true if the template has this word as a variable, an attribute or a text in quotes.
  bool mentions(std::string_view word) const;

 private:
  /// Names a byte of the source: both numbers count from 1, columns in characters.
  std::string place(std::size_t at) const;

  std::string name_, source_;
  jinja::NodePtr tree_;
  bool has_generation_ = false;
};

}  // namespace fsdp
