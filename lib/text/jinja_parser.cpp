#include "text/jinja_parser.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <unicode/uchar.h>

#include "base/format.hpp"
#include "text/utf8.hpp"

namespace fsdp::jinja {

namespace {

constexpr std::size_t deepest_tree = 400, deepest_parse = 100;

struct Token {
  enum Kind { data, print_begin, print_end, tag_begin, tag_end, end, name, text, integer, real, sign } kind;
  std::string value;
  std::size_t at;  // in the source
};

/// Returns true if the character can be in a name: Python's str.isidentifier().
bool is_of_name(char32_t c, bool first) {
  return c == '_' || u_hasBinaryProperty(static_cast<UChar32>(c), first ? UCHAR_XID_START : UCHAR_XID_CONTINUE);
}
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> tokens() {
    while (at_ < source_.size()) outside();
    add(Token::end, "", source_.size());
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::size_t at) const { throw SyntaxProblem(what, at); }
  bool is(std::string_view text, std::size_t at) const { return source_.substr(at).starts_with(text); }
  bool take(std::string_view text) {
    if (!is(text, at_)) return false;
    at_ += text.size();
    return true;
  }
  void add(Token::Kind kind, std::string value, std::size_t at) { tokens_.push_back({kind, std::move(value), at}); }
  /// Moves past the characters of a name. Returns true if there is one.
  bool take_name() {
    const std::size_t begin = at_;
    for (std::size_t next = at_; at_ < source_.size() && is_of_name(next_character(source_, next), at_ == begin); at_ = next) {
    }
    return at_ > begin;
  }
  void skip_spaces() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_python_space(next_character(source_, next))) return;
      at_ = next;
    }
  }

  /// Adds the text from `begin` to `end`. A mark with `sign` follows, which may remove spaces at the end of the text.
  void add_data(std::size_t begin, std::size_t end, char sign, bool is_print) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      text = strip(text, false, true, is_python_space);
    } else if (sign != '+' && !is_print) {
      const std::size_t newline = text.rfind('\n'), line = newline == text.npos ? 0 : newline + 1;
      const bool starts_line = newline != text.npos || begin == 0 || source_[begin - 1] == '\n';
      if (starts_line && strip(text.substr(line), true, false, is_python_space).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::data, std::string(text), begin);
  }

  /// Skips the white space that the end of a tag or comment removes: all of it after '-', else one newline (trim_blocks).
  void trim_after(char sign) {
    if (sign == '-')
      skip_spaces();
    else if (sign != '+')
      take("\n");
  }

  void outside() {
    std::size_t mark = at_;
    do {
      mark = source_.find('{', mark);
    } while (mark != source_.npos &&
             (mark + 1 == source_.size() || std::string_view("%{#").find(source_[mark + 1]) == std::string_view::npos) &&
             ++mark > 0);
    if (mark == source_.npos) {
      if (at_ < source_.size()) add(Token::data, std::string(source_.substr(at_)), at_);
      at_ = source_.size();
      return;
    }
    const char kind = source_[mark + 1];
    const char sign =
        mark + 2 < source_.size() && (source_[mark + 2] == '-' || source_[mark + 2] == '+') ? source_[mark + 2] : ' ';
    add_data(at_, mark, sign, kind == '{');
    at_ = mark + (sign == ' ' ? 2 : 3);
    if (kind == '#') return comment(mark);
    add(kind == '{' ? Token::print_begin : Token::tag_begin, "", mark);
    while (!inside(kind == '{', mark)) {
    }
  }

  void comment(std::size_t mark) {
    const std::size_t end = source_.find("#}", at_);
    if (end == source_.npos) fail("a comment does not end", mark);
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    trim_after(sign);
  }

  /// Reads a token. Returns true if the tag ends.
  bool inside(bool is_print, std::size_t mark) {
    skip_spaces();
    const std::size_t begin = at_;
    if (at_ == source_.size()) fail(is_print ? "'{{' has no '}}'" : "'{%' has no '%}'", mark);
    if (open_.empty()) {
      const bool strips = take(is_print ? "-}}" : "-%}"), keeps = !strips && !is_print && take("+%}");
      if (strips || keeps || take(is_print ? "}}" : "%}")) {
        add(is_print ? Token::print_end : Token::tag_end, "", begin);
        if (strips || !is_print) trim_after(strips ? '-' : keeps ? '+' : ' ');
        return true;
      }
    }
    const char c = source_[at_];
    if (take_name()) {
      add(Token::name, std::string(source_.substr(begin, at_ - begin)), begin);
    } else if (is_decimal(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      quoted();
    } else {
      sign();
    }
    return false;
  }

  void number() {
    const std::size_t begin = at_;
    const auto digits = [&] {
      while (at_ < source_.size() && is_decimal(source_[at_])) ++at_;
    };
    digits();
    const bool is_of_attribute = begin > 0 && source_[begin - 1] == '.';  // a.0
    const bool is_real = !is_of_attribute && at_ + 1 < source_.size() && source_[at_] == '.' && is_decimal(source_[at_ + 1]);
    if (is_real) {
      ++at_;
      digits();
    }
    if (take_name()) fail("a number ends with a letter", at_);
    add(is_real ? Token::real : Token::integer, std::string(source_.substr(begin, at_ - begin)), begin);
  }

  void quoted() {
    const std::size_t begin = at_;
    const char quote = source_[at_++];
    std::string value;
    for (;;) {
      if (at_ == source_.size()) fail("a text in quotes does not end", begin);
      const char c = source_[at_++];
      if (c == quote) break;
      if (c == '\\')
        escape(value, begin);
      else
        value += c;
    }
    add(Token::text, std::move(value), begin);
  }

  void escape(std::string& to, std::size_t begin) {
    if (at_ == source_.size()) fail("a text in quotes does not end", begin);
    const char c = source_[at_++];
    constexpr std::string_view names = "ntr\\'\"abfv", meanings = "\n\t\r\\'\"\a\b\f\v";
    if (const std::size_t i = names.find(c); i != names.npos) {
      to += meanings[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      unsigned code = 0;
      const char* const last = source_.data() + std::min(source_.size(), at_ + digits);
      const auto [stopped, error] = std::from_chars(source_.data() + at_, last, code, 16);
      if (error != std::errc() || stopped != source_.data() + at_ + digits || code > 0x10ffff ||
          (code >= 0xd800 && code < 0xe000))
        fail(format("'\\{}' is not followed by the {} digits of a character", c, digits), at_ - 2);
      append_utf8(to, code);
      at_ += digits;
    } else if (c == 'N' || is_decimal(c)) {
      fail(format("'\\{}' is not known in a text", c), at_ - 2);
    } else if (c != '\n') {
      to += '\\';
      to += c;
    }
  }

  void sign() {
    constexpr std::string_view doubles[] = {"**", "//", "==", "!=", "<=", ">="};
    const std::size_t begin = at_;
    std::string_view value = source_.substr(at_, 1);
    for (const std::string_view two : doubles)
      if (is(two, at_)) value = two;
    std::size_t end = at_;
    if (const char32_t c = next_character(source_, end); c >= 0x80)
      fail(format("the character U+{:04X} is not expected", static_cast<unsigned>(c)), at_);
    if (std::string_view("+-*/%~<>=.,:|()[]{}!").find(value[0]) == value.npos || value == "!")
      fail(format("'{}' is not expected", excerpt(value)), at_);
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (const std::size_t i = opening.find(value[0]); i != opening.npos) open_ += closing[i];
    if (closing.find(value[0]) != closing.npos) {
      if (!open_.ends_with(value[0])) fail(format("'{}' closes nothing", value), at_);
      open_.pop_back();
    }
    at_ += value.size();
    add(Token::sign, std::string(value), begin);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string open_;  // the brackets that are to be closed
  std::vector<Token> tokens_;
};

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Lexer(source).tokens()) {}

  NodePtr whole() {
    NodePtr all = block({});
    if (here().kind != Token::end) fail("the source does not end here");
    return all;
  }

 private:
  using Names = std::vector<std::string_view>;

  const Token& here() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxProblem(what, here().at); }
  static std::string named(const Token& token) {
    constexpr const char* marks[] = {"text", "'{{'", "'}}'", "'{%'", "'%}'", "the end of the template"};
    return token.kind <= Token::end ? marks[token.kind] : format("'{}'", excerpt(token.value, 40));
  }
  bool is(Token::Kind kind) const { return here().kind == kind; }
  bool is_sign(std::string_view sign) const { return is(Token::sign) && here().value == sign; }
  bool is_name(std::string_view name) const { return is(Token::name) && here().value == name; }
  bool take_sign(std::string_view sign) { return is_sign(sign) && ++at_ > 0; }
  bool take_name(std::string_view name) { return is_name(name) && ++at_ > 0; }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) fail(format("'{}' is expected, not {}", sign, named(here())));
  }
  void expect(Token::Kind kind) {
    if (!is(kind)) fail(format("{} is expected, not {}", named({kind, "", 0}), named(here())));
    ++at_;
  }
  std::string expect_name() {
    if (!is(Token::name)) fail(format("a name is expected, not {}", named(here())));
    return tokens_[at_++].value;
  }

  Node node(Node::Kind kind, std::string name = {}) const { return {.kind = kind, .at = here().at, .name = std::move(name)}; }
  NodePtr made(Node node) const {
    for (const NodePtr& part : node.parts)
      if (part) node.depth = std::max(node.depth, part->depth + 1);
    for (const auto& [name, part] : node.named) node.depth = std::max(node.depth, part->depth + 1);
    if (node.depth > deepest_tree)
      throw SyntaxProblem(format("an expression or block has more than {} levels", deepest_tree), node.at);
    return std::make_unique<const Node>(std::move(node));
  }
  template <class... Parts>
  NodePtr made(Node node, Parts... parts) const {
    (node.parts.push_back(std::move(parts)), ...);
    return made(std::move(node));
  }

  /// Counts the levels of calls, which brackets and blocks make.
  struct Level {
    explicit Level(Parser& of) : parser(of) {
      if (++parser.level_ > deepest_parse) parser.fail(format("brackets or blocks have more than {} levels", deepest_parse));
    }
    ~Level() { --parser.level_; }
    Parser& parser;
  };

  /// Reads statements until the tag of one of `ends`, whose {% and name have then been read.
  NodePtr block(const Names& ends) {
    const Level level(*this);
    const std::size_t begin = here().at;
    Node all = node(Node::block);
    for (;;) {
      if (is(Token::end)) {
        if (!ends.empty()) throw SyntaxProblem(format("'{}' is missing for the block that begins here", ends.back()), begin);
        return made(std::move(all));
      }
      if (is(Token::data)) {
        Node text = node(Node::text);
        text.value = Value::given(tokens_[at_++].value);
        all.parts.push_back(made(std::move(text)));
      } else if (is(Token::print_begin)) {
        ++at_;
        Node print = node(Node::print);
        all.parts.push_back(made(std::move(print), tuple_or_one()));
        expect(Token::print_end);
      } else {
        expect(Token::tag_begin);
        if (is(Token::name) && std::find(ends.begin(), ends.end(), here().value) != ends.end()) return made(std::move(all));
        all.parts.push_back(statement());
      }
    }
  }
  /// The rest of a tag, a block until `end`, and its tag.
  NodePtr body(std::string_view end) {
    expect(Token::tag_end);
    NodePtr all = block({end});
    ++at_;
    return all;
  }

  NodePtr statement() {
    const std::string name = is(Token::name) ? here().value : "";
    const auto is_one = [&](std::string_view of) { return name == of && ++at_ > 0; };
    Node all = node(Node::block);
    NodePtr done;
    if (is_one("if")) {
      done = if_block(std::move(all));
    } else if (is_one("for")) {
      done = for_block(std::move(all));
    } else if (is_one("set")) {
      done = set(std::move(all));
    } else if (is_one("macro")) {
      done = macro(std::move(all));
    } else if (is_one("generation")) {
      all.kind = Node::generation;
      done = made(std::move(all), body("endgeneration"));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(format("'{}' is in no loop", name));
      ++at_;
      all.kind = name == "break" ? Node::break_loop : Node::continue_loop;
      done = made(std::move(all));
    } else {
      fail(format("the tag {} is not known here", named(here())));
    }
    expect(Token::tag_end);
    return done;
  }

  NodePtr if_block(Node all) {
    all.kind = Node::if_block;
    all.parts.push_back(tuple_or_one(/*with_choice=*/false));
    expect(Token::tag_end);
    for (;;) {
      all.parts.push_back(block({"elif", "else", "endif"}));
      if (take_name("endif")) return made(std::move(all));
      if (take_name("elif"))
        all.parts.push_back(tuple_or_one(/*with_choice=*/false));
      else
        break;
      expect(Token::tag_end);
    }
    ++at_;
    all.parts.push_back(body("endif"));
    return made(std::move(all));
  }

  NodePtr for_block(Node all) {
    all.kind = Node::for_block;
    all.parts.push_back(target(/*with_attribute=*/false));
    if (!take_name("in")) fail(format("'in' is expected, not {}", named(here())));
    all.parts.push_back(tuple_or_one(/*with_choice=*/false));
    all.parts.push_back(take_name("if") ? expression() : nullptr);
    if (is_name("recursive")) fail("a loop that is 'recursive' is not known here");
    expect(Token::tag_end);
    ++loops_;
    all.parts.push_back(block({"else", "endfor"}));
    --loops_;
    if (take_name("else")) {
      all.parts.push_back(body("endfor"));
    } else {
      ++at_;
      all.parts.push_back(nullptr);
    }
    return made(std::move(all));
  }

  /// A name, a tuple of names, or name.attribute, to which a value is assigned.
  NodePtr target(bool with_attribute) {
    const auto one = [&]() -> NodePtr {
      Node to = node(Node::variable);
      to.name = expect_name();
      if (with_attribute && take_sign(".")) {
        Node of = node(Node::attribute, expect_name());
        of.at = to.at;
        return made(std::move(of), made(std::move(to)));
      }
      return made(std::move(to));
    };
    const Level level(*this);
    Node all = node(Node::tuple);
    NodePtr first = one();
    if (!is_sign(",")) return first;
    all.parts.push_back(std::move(first));
    while (take_sign(","))
      if (is(Token::name)) all.parts.push_back(one());
    return made(std::move(all));
  }

  NodePtr set(Node all) {
    NodePtr to = target(/*with_attribute=*/true);
    if (take_sign("=")) {
      all.kind = Node::set;
      return made(std::move(all), std::move(to), tuple_or_one());
    }
    all.kind = Node::set_block;
    return made(std::move(all), std::move(to), body("endset"));
  }

  NodePtr macro(Node all) {
    all.kind = Node::macro;
    all.name = expect_name();
    std::vector<NodePtr> defaults;
    expect_sign("(");
    while (!take_sign(")")) {
      if (!all.names.empty()) expect_sign(",");
      if (take_sign(")")) break;
      all.names.push_back(expect_name());
      if (take_sign("="))
        defaults.push_back(expression());
      else if (!defaults.empty())
        fail("a parameter without a default value follows one that has it");
    }
    const std::size_t outer = std::exchange(loops_, 0);
    all.parts.push_back(body("endmacro"));
    loops_ = outer;
    for (NodePtr& one : defaults) all.parts.push_back(std::move(one));
    return made(std::move(all));
  }

  /// An expression, or several with commas between them.
  NodePtr tuple_or_one(bool with_choice = true) {
    Node all = node(Node::tuple);
    const auto one = [&] { return with_choice ? expression() : either(); };
    NodePtr first = one();
    if (!is_sign(",")) return first;
    all.parts.push_back(std::move(first));
    while (take_sign(",")) {
      if (is(Token::print_end) || is(Token::tag_end) || is_sign(")") || is_name("in")) break;
      all.parts.push_back(one());
    }
    return made(std::move(all));
  }

  NodePtr expression() {
    const Level level(*this);
    NodePtr value = either();
    while (is_name("if")) {
      Node choice = node(Node::choice);
      ++at_;
      NodePtr condition = either();
      NodePtr other = take_name("else") ? expression() : nullptr;
      value = made(std::move(choice), std::move(condition), std::move(value), std::move(other));
    }
    return value;
  }

  /// Operators of one precedence, from left to right.
  template <class Read>
  NodePtr operators(const Names& signs, Token::Kind kind, const Read& read) {
    NodePtr left = read();
    while (is(kind) && std::find(signs.begin(), signs.end(), here().value) != signs.end()) {
      Node both = node(Node::binary, here().value);
      ++at_;
      left = made(std::move(both), std::move(left), read());
    }
    return left;
  }
  NodePtr either() {
    return operators({"or"}, Token::name, [&] { return operators({"and"}, Token::name, [&] { return negation(); }); });
  }
  NodePtr negation() {
    if (!is_name("not")) return comparison();
    const Level level(*this);
    Node all = node(Node::unary, "not");
    ++at_;
    return made(std::move(all), negation());
  }
  NodePtr comparison() {
    Node all = node(Node::compare);
    NodePtr first = sum();
    for (;;) {
      std::string sign;
      if (is(Token::sign) &&
          (here().value == "==" || here().value == "!=" || here().value[0] == '<' || here().value[0] == '>')) {
        sign = here().value;
      } else if (is_name("in")) {
        sign = "in";
      } else if (is_name("not") && next().kind == Token::name && next().value == "in") {
        sign = "not in";
        ++at_;
      } else {
        break;
      }
      ++at_;
      if (all.parts.empty()) all.parts.push_back(std::move(first));
      all.names.push_back(sign);
      all.parts.push_back(sum());
    }
    return all.parts.empty() ? std::move(first) : made(std::move(all));
  }
  NodePtr sum() {
    return operators({"+", "-"}, Token::sign, [&] {
      return operators({"~"}, Token::sign, [&] {
        return operators({"*", "/", "//", "%"}, Token::sign, [&] { return signed_value(true); });
      });
    });
  }
  NodePtr signed_value(bool with_filters) {
    const Level level(*this);
    NodePtr value;
    if (is_sign("-") || is_sign("+")) {
      Node all = node(Node::unary, here().value);
      ++at_;
      value = made(std::move(all), signed_value(false));
    } else {
      value = primary();
    }
    value = with_attributes(std::move(value));
    return with_filters ? filters(std::move(value)) : std::move(value);
  }

  NodePtr primary() {
    Node one = node(Node::constant);
    if (is(Token::name)) {
      static const std::pair<std::string_view, Value> words[] = {{"true", true},   {"True", true},   {"false", false},
                                                                 {"False", false}, {"none", None()}, {"None", None()}};
      for (const auto& [word, value] : words) {
        if (!is_name(word)) continue;
        one.value = value;
        ++at_;
        return made(std::move(one));
      }
      for (const std::string_view word : {"if", "else", "in", "is", "not", "and", "or"})
        if (is_name(word)) fail(format("a value is expected, not '{}'", word));
      one.kind = Node::variable;
      one.name = expect_name();
      return made(std::move(one));
    }
    if (is(Token::text)) {
      std::string text;
      while (is(Token::text)) text += tokens_[at_++].value;
      one.value = Value::given(std::move(text));
      return made(std::move(one));
    }
    if (is(Token::integer) || is(Token::real)) {
      const std::string& digits = here().value;
      std::int64_t whole = 0;
      double real = 0;
      const char* const end = digits.data() + digits.size();
      const auto read =
          is(Token::integer) ? std::from_chars(digits.data(), end, whole) : std::from_chars(digits.data(), end, real);
      if (read.ec != std::errc() || read.ptr != end) fail(format("the number {} is not accepted", excerpt(digits, 40)));
      one.value = is(Token::integer) ? Value(whole) : Value(real);
      ++at_;
      return made(std::move(one));
    }
    if (take_sign("(")) {
      if (take_sign(")")) {
        one.kind = Node::tuple;
        return made(std::move(one));
      }
      NodePtr inner = tuple_or_one();
      expect_sign(")");
      return inner;
    }
    if (take_sign("[")) {
      one.kind = Node::list;
      elements("]", [&] { one.parts.push_back(expression()); });
      return made(std::move(one));
    }
    if (take_sign("{")) {
      one.kind = Node::dict;
      elements("}", [&] {
        one.parts.push_back(expression());
        expect_sign(":");
        one.parts.push_back(expression());
      });
      return made(std::move(one));
    }
    fail(format("a value is expected, not {}", named(here())));
  }
  template <class Read>
  void elements(std::string_view end, const Read& read) {
    for (bool first = true; !take_sign(end); first = false) {
      if (!first) expect_sign(",");
      if (take_sign(end)) return;
      read();
    }
  }

  NodePtr with_attributes(NodePtr value) {
    for (;;) {
      Node all = node(Node::attribute);
      if (take_sign(".")) {
        if (is(Token::integer)) {
          all.kind = Node::item;
          value = made(std::move(all), std::move(value), primary());
        } else {
          all.name = expect_name();
          value = made(std::move(all), std::move(value));
        }
      } else if (take_sign("[")) {
        value = subscript(std::move(all), std::move(value));
      } else if (is_sign("(")) {
        value = call(std::move(all), std::move(value));
      } else {
        return value;
      }
    }
  }
  NodePtr subscript(Node all, NodePtr value) {
    all.parts.push_back(std::move(value));
    const auto bound = [&] { return is_sign(":") || is_sign("]") ? nullptr : expression(); };
    all.kind = Node::item;
    NodePtr first = bound();
    if (!first && is_sign("]")) fail("a value is expected, not ']'");
    all.parts.push_back(std::move(first));
    if (is_sign(":")) {
      all.kind = Node::slice;
      for (int i = 0; i < 2; ++i) all.parts.push_back(take_sign(":") ? bound() : nullptr);
    }
    expect_sign("]");
    return made(std::move(all));
  }
  NodePtr call(Node all, NodePtr function) {
    all.kind = Node::call;
    all.parts.push_back(std::move(function));
    arguments(all);
    return made(std::move(all));
  }
  void arguments(Node& to) {
    expect_sign("(");
    elements(")", [&] {
      if (is_sign("*") || is_sign("**")) fail("arguments with '*' are not known here");
      if (is(Token::name) && next().kind == Token::sign && next().value == "=") {
        std::string name = expect_name();
        ++at_;
        to.named.emplace_back(std::move(name), expression());
      } else if (to.named.empty()) {
        to.parts.push_back(expression());
      } else {
        fail("an argument without a name follows one with a name");
      }
    });
  }

  /// The filters, tests and calls after a value.
  NodePtr filters(NodePtr value) {
    for (;;) {
      if (take_sign("|")) {
        value = filter(std::move(value));
      } else if (is_name("is")) {
        value = test(std::move(value));
      } else if (is_sign("(")) {
        Node all = node(Node::call);
        value = call(std::move(all), std::move(value));
      } else {
        return value;
      }
    }
  }
  NodePtr filter(NodePtr value) {
    Node all = node(Node::filter);
    all.name = expect_name();
    all.parts.push_back(std::move(value));
    if (is_sign("(")) arguments(all);
    return made(std::move(all));
  }
  NodePtr test(NodePtr value) {
    Node all = node(Node::test);
    ++at_;
    const bool negates = take_name("not");
    all.name = expect_name();
    all.parts.push_back(std::move(value));
    if (is_sign("(")) {
      arguments(all);
    } else if (is(Token::text) || is(Token::integer) || is(Token::real) || is_sign("[") || is_sign("{") ||
               (is(Token::name) && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if"))) {
      if (is_name("is")) fail("a test ('is') cannot follow another test without parentheses");
      if (!is_name("in") && !is_name("not") && !is_name("recursive")) all.parts.push_back(with_attributes(primary()));
    }
    Node inverse = node(Node::unary, "not");
    inverse.at = all.at;
    NodePtr done = made(std::move(all));
    return negates ? made(std::move(inverse), std::move(done)) : std::move(done);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0, level_ = 0, loops_ = 0;
};

}  // namespace

std::string with_simple_lines(std::string_view source) {
  std::string all;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      all += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      all += '\n';
  }
  if (all.ends_with('\n')) all.pop_back();
  return all;
}

NodePtr parse(std::string_view source) { return Parser(source).whole(); }

}  // namespace fsdp::jinja
