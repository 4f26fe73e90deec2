#include "text/jinja.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/error.hpp"
#include "base/format.hpp"
#include "text/jinja_functions.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace jinja {

namespace {

constexpr std::size_t deepest_run = 1000;

/// A problem, and where in the template it is.
struct Located : std::runtime_error {
  Located(const std::string& what, std::size_t place, bool by_template)
      : std::runtime_error(what), at(place), is_raised(by_template) {}
  std::size_t at;
  bool is_raised;
};

/// The names of a block. Blocks of `if` have none of their own.
struct Scope {
  Scope(std::shared_ptr<Scope> around, Budget& budget) : outer(std::move(around)), held(&budget, 128) {}
  std::shared_ptr<Scope> outer;
  Held held;
  std::vector<std::pair<std::string_view, Value>> names = {};

  const Value* find(std::string_view name, Budget& budget) const {
    for (const Scope* scope = this; scope; scope = scope->outer.get())
      if (const auto* const entry = entry_of(scope->names, name, budget)) return &entry->second;
    return nullptr;
  }
  void set(std::string_view name, Value value, Budget& budget) {
    if (auto* const entry = entry_of(names, name, budget)) return void(entry->second = std::move(value));
    held.add(3 * sizeof(names[0]));  // the names may just have been moved
    names.emplace_back(name, std::move(value));
  }
};

/// One rendering of a template.
class Run {
 public:
  Run(const JinjaTemplate::Variables& variables, std::size_t steps, std::size_t bytes) : budget_(steps, bytes) {
    scope_ = std::make_shared<Scope>(nullptr, budget_);
    for (const auto& [name, value] : variables) {
      scope_->set(name, value, budget_);
      if (name == "messages" && value.items())
        for (const Value& message : *value.items()) messages_.emplace(message.dict(), messages_.size());
    }
    scope_ = std::make_shared<Scope>(scope_, budget_);
    output_.messages.resize(messages_.size());
  }
  ~Run() {
    // Breaks cycles of shared pointers: macros and namespaces may refer to themselves.
    for (const auto& scope : scopes_) scope->names.clear();
    for (const auto& space : spaces_) space->entries.clear();
  }

  JinjaOutput render(const Node& tree) {
    execute(tree);
    output_.text = std::move(text_.text());
    return std::move(output_);
  }

 private:
  enum class Flow { next, stop, skip };  // continue with the next node; leave the loop; begin its next pass

  /// Counts the levels of the run.
  struct Level {
    explicit Level(Run& of) : run(of) {
      if (run.level_ == deepest_run)
        throw Problem(format("it calls itself, or is nested, more than {} levels deep", deepest_run));
      ++run.level_;
    }
    ~Level() { --run.level_; }
    Run& run;
  };
  /// A scope, until the end of the block.
  struct Inner {
    explicit Inner(Run& of, std::shared_ptr<Scope> outer = nullptr) : run(of), before(of.scope_) {
      run.scope_ = std::make_shared<Scope>(outer ? std::move(outer) : before, run.budget_);
    }
    ~Inner() { run.scope_ = before; }
    Run& run;
    std::shared_ptr<Scope> before;
  };

  template <class Do>
  auto at(const Node& node, const Do& act) {
    try {
      const Level level(*this);
      budget_.work(Budget::bytes_per_step);
      return act();
    } catch (const Raised& problem) {
      throw Located(problem.what(), node.at, true);
    } catch (const Problem& problem) {
      throw Located(problem.what(), node.at, false);
    }
  }

  Value evaluate(const Node& node) {
    return at(node, [&] { return value_of(node); });
  }
  Flow execute(const Node& node) {
    return at(node, [&] { return flow_of(node); });
  }
  Value part(const Node& node, std::size_t i) { return node.parts[i] ? evaluate(*node.parts[i]) : Value(); }

  Items parts_from(const Node& node, std::size_t i) {
    Items all(&budget_);
    for (; i < node.parts.size(); ++i) all.add(evaluate(*node.parts[i]));
    return all;
  }
  Arguments arguments(const Node& node) {
    Arguments all{parts_from(node, 1)};
    for (const auto& [name, value] : node.named) all.named.emplace_back(name, evaluate(*value));
    return all;
  }

  Value value_of(const Node& node) {
    switch (node.kind) {
      case Node::constant:
        return node.value;
      case Node::variable:
        return look_up(node.name);
      case Node::list:
      case Node::tuple:
        return parts_from(node, 0).done(node.kind == Node::list ? Shape::list : Shape::tuple);
      case Node::dict:
        return dict(node);
      case Node::attribute:
        return attribute(evaluate(*node.parts[0]), node.name, budget_);
      case Node::item: {
        const Value object = evaluate(*node.parts[0]);
        return subscript(object, evaluate(*node.parts[1]), budget_);
      }
      case Node::slice: {
        const Value object = evaluate(*node.parts[0]), begin = part(node, 1), end = part(node, 2);
        return get_slice(object, begin, end, part(node, 3), budget_);
      }
      case Node::call:
        return call(node);
      case Node::filter: {
        const Value object = evaluate(*node.parts[0]);
        return call_filter(node.name, object, arguments(node), budget_);
      }
      case Node::test: {
        const Value object = evaluate(*node.parts[0]);
        return call_test(node.name, object, arguments(node), budget_);
      }
      case Node::unary: {
        const Value operand = evaluate(*node.parts[0]);
        if (const double* const real = operand.as<double>(); real && node.name == "-") return -*real;
        return node.name == "not" ? Value(!truth(operand)) : operate(node.name, 0, operand, budget_);
      }
      case Node::binary: {
        Value left = evaluate(*node.parts[0]);
        if ((node.name == "or" && truth(left)) || (node.name == "and" && !truth(left))) return left;
        const Value right = evaluate(*node.parts[1]);
        return node.name == "or" || node.name == "and" ? right : operate(node.name, left, right, budget_);
      }
      case Node::compare:
        return compare(node);
      case Node::choice:
        if (truth(evaluate(*node.parts[0]))) return evaluate(*node.parts[1]);
        return node.parts[2] ? evaluate(*node.parts[2]) : undefined("the value of an 'if' without 'else'", budget_);
      default:
        throw Problem("a statement has no value");
    }
  }

  Value look_up(const std::string& name) {
    if (const Value* const found = scope_->find(name, budget_)) return *found;
    if (name == "namespace")
      return function([this](const Arguments& given) -> Value {
        auto space = std::make_shared<Dict>(dict_of(given, budget_));
        for (const auto& [key, value] : space->entries) require_visible(key);
        spaces_.push_back(space);
        return space;
      });
    if (auto function = global_function(name, budget_)) return *function;
    return undefined(format("'{}'", excerpt(name)), budget_);
  }
  Value function(std::function<Value(const Arguments&)> call) {
    return std::make_shared<const Function>(Function{std::move(call), 1, Held(&budget_, 256)});
  }

  static void require_visible(std::string_view name) {
    if (name.starts_with('_')) throw Problem("the name of an attribute begins with '_', which transformers forbids");
  }

  Value dict(const Node& node) {
    Dict all(&budget_);
    for (std::size_t i = 0; i < node.parts.size(); i += 2) {
      const Value key = evaluate(*node.parts[i]);
      if (!key.text()) throw Problem(format("a key of a dictionary is no text, but {}", type_of(key)));
      all.set(*key.text(), evaluate(*node.parts[i + 1]), budget_);
    }
    return Value::dict(std::move(all));
  }

  Value compare(const Node& node) {
    Value left = evaluate(*node.parts[0]);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(*node.parts[i + 1]);
      const std::string& sign = node.names[i];
      const bool is = sign == "=="       ? equal(left, right, budget_)
                      : sign == "!="     ? !equal(left, right, budget_)
                      : sign == "<"      ? less(left, right, budget_)
                      : sign == ">"      ? less(right, left, budget_)
                      : sign == "<="     ? less(left, right, budget_) || equal(left, right, budget_)
                      : sign == ">="     ? less(right, left, budget_) || equal(left, right, budget_)
                      : sign == "not in" ? !contains(right, left, budget_)
                                         : contains(right, left, budget_);
      if (!is) return false;
      left = std::move(right);
    }
    return true;
  }

  Value call(const Node& node) {
    const Value function = evaluate(*node.parts[0]);
    if (const auto* const known = function.as<std::shared_ptr<const Function>>()) return (*known)->call(arguments(node));
    if (function.is_undefined()) throw Problem(format("{} is undefined, or not known here", function.as<Undefined>()->named()));
    throw Problem(format("{} is called, which is no function", type_of(function)));
  }

  /// What a block writes, as a text.
  Value captured(const Node& block) {
    Writer text(budget_);
    Writer* const before = std::exchange(out_, &text);
    try {
      execute(block);
    } catch (...) {
      out_ = before;
      throw;
    }
    out_ = before;
    return text.done();
  }

  Flow flow_of(const Node& node) {
    switch (node.kind) {
      case Node::block:
        for (const NodePtr& one : node.parts)
          if (const Flow flow = execute(*one); flow != Flow::next) return flow;
        break;
      case Node::text:
        out_->add(*node.value.text());
        break;
      case Node::print:
        write(*out_, evaluate(*node.parts[0]));
        break;
      case Node::if_block:
        for (std::size_t i = 0; i + 1 < node.parts.size(); i += 2)
          if (truth(evaluate(*node.parts[i]))) return execute(*node.parts[i + 1]);
        if (node.parts.size() % 2 == 1) return execute(*node.parts.back());
        break;
      case Node::for_block:
        loop(node);
        break;
      case Node::set:
        assign(*node.parts[0], evaluate(*node.parts[1]));
        break;
      case Node::set_block: {
        const Value text = [&] {
          const Inner inner(*this);
          return captured(*node.parts[1]);
        }();
        assign(*node.parts[0], text);
        break;
      }
      case Node::macro:
        define(node);
        break;
      case Node::generation: {
        if (out_ != &text_) throw Problem("'generation' in a macro or in a block of 'set' is not known here");
        const Inner inner(*this);
        const std::size_t begin = text_.text().size();
        execute(*node.parts[0]);
        output_.generated.push_back({begin, text_.text().size()});
        break;
      }
      case Node::break_loop:
        return Flow::stop;
      case Node::continue_loop:
        return Flow::skip;
      default:
        throw Problem("an expression is no statement");
    }
    return Flow::next;
  }

  void assign(const Node& to, const Value& value) {
    if (to.kind == Node::variable) return scope_->set(to.name, value, budget_);
    if (to.kind == Node::attribute) {
      const Value object = evaluate(*to.parts[0]);
      const auto* const space = object.as<std::shared_ptr<Dict>>();
      if (!space) throw Problem(format("'{}' of {} is set, but only a namespace can change", to.name, type_of(object)));
      require_visible(to.name);
      return (*space)->set(to.name, value, budget_);
    }
    const List values = elements(value, budget_);
    if (values.items->size() != to.parts.size())
      throw Problem(format("{} are assigned to {}", plural(values.items->size(), "value"), plural(to.parts.size(), "name")));
    for (std::size_t i = 0; i < to.parts.size(); ++i) assign(*to.parts[i], (*values.items)[i]);
  }

  void loop(const Node& node) {
    const Node &target = *node.parts[0], &body = *node.parts[3];
    List items = elements(evaluate(*node.parts[1]), budget_);
    if (node.parts[2]) {
      Items kept(&budget_);
      for (const Value& one : *items.items) {
        const Inner inner(*this);
        assign(target, one);
        if (truth(evaluate(*node.parts[2]))) kept.add(one);
      }
      items = *kept.done().as<List>();
    }
    const auto loop = std::make_shared<Loop>(Loop{items, Held(&budget_, 128)});
    bool is_complete = false;  // Jinja runs `else` unless a pass has reached its end
    for (; loop->index < items.items->size(); ++loop->index) {
      const Value& one = (*items.items)[loop->index];
      const bool is_outside = out_ == &text_;
      const std::size_t begin = text_.text().size();
      const Inner inner(*this);
      assign(target, one);
      scope_->set("loop", loop, budget_);
      const Flow flow = execute(body);
      if (const auto message = messages_.find(one.dict());
          is_outside && message != messages_.end() && text_.text().size() > begin)
        output_.messages[message->second] = {begin, text_.text().size()};
      if (flow == Flow::stop) break;
      is_complete = is_complete || flow == Flow::next;
    }
    if (is_complete || !node.parts[4]) return;
    const Inner inner(*this);
    execute(*node.parts[4]);
  }

  void define(const Node& node) {
    scopes_.push_back(scope_);
    scope_->set(node.name,
                function([this, &node, scope = scope_](const Arguments& given) { return call_macro(node, scope, given); }),
                budget_);
  }

  Value call_macro(const Node& node, const std::shared_ptr<Scope>& scope, const Arguments& given) {
    const std::vector<Value>& values = given.values.all();
    if (values.size() > node.names.size())
      throw Problem(format("the macro '{}' takes {}, not {}", node.name, plural(node.names.size(), "argument"), values.size()));
    const Inner inner(*this, scope);
    const std::size_t first_default = node.names.size() - (node.parts.size() - 1);
    budget_.work(4 * node.names.size() * given.named.size());
    for (const auto& [name, value] : given.named)
      if (std::find(node.names.begin(), node.names.end(), name) == node.names.end())
        throw Problem(format("the macro '{}' has no argument '{}'", node.name, excerpt(name)));
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      const auto* const named = entry_of(given.named, node.names[i], budget_);
      const Value value =
          i < values.size() ? values[i]
          : named           ? named->second
          : i >= first_default
              ? evaluate(*node.parts[1 + i - first_default])
              : undefined(format("the argument '{}' of the macro '{}'", excerpt(node.names[i]), node.name), budget_);
      scope_->set(node.names[i], value, budget_);
    }
    return captured(*node.parts[0]);
  }

  Budget budget_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> scopes_;
  std::vector<std::shared_ptr<Dict>> spaces_;
  std::unordered_map<const Dict*, std::size_t> messages_;
  JinjaOutput output_;
  Writer text_{budget_};  // the text of the output
  Writer* out_ = &text_;
  std::size_t level_ = 0;
};

}  // namespace

}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string name, std::string_view source) : name_(std::move(name)) {
  if (source.size() > longest_source)
    throw UserError(format("the chat template {} has more than {}; give another template", name_,
                           format_bytes(static_cast<double>(longest_source))));
  source_ = jinja::with_simple_lines(source);
  try {
    tree_ = jinja::parse(source_);
    jinja::each_node(*tree_, [&](const jinja::Node& node) {
      if (node.kind == jinja::Node::generation) has_generation_ = true;
      if (node.kind == jinja::Node::variable && (node.name == "varargs" || node.name == "kwargs"))
        throw jinja::SyntaxProblem(format("'{}' is not known here", node.name), node.at);
    });
  } catch (const jinja::SyntaxProblem& problem) {
    throw UserError(format("the chat template {} cannot be used ({}: {}); correct it, or give another template", name_,
                           place(problem.at), problem.what()));
  }
}

JinjaOutput JinjaTemplate::render(const Variables& variables, std::size_t steps, std::size_t bytes) const {
  try {
    return jinja::Run(variables, steps, bytes).render(*tree_);
  } catch (const jinja::Located& problem) {
    const std::string where = format("{}, {}", name_, place(problem.at));
    if (problem.is_raised)
      throw TemplateRefusal(format("the chat template refuses it: {} ({})", excerpt(problem.what()), where));
    throw UserError(
        format("the chat template cannot be run ({}: {}); correct the template or the conversation", where, problem.what()));
  }
}

std::string JinjaTemplate::place(std::size_t at) const {
  const std::string_view before = std::string_view(source_).substr(0, at), line = before.substr(before.rfind('\n') + 1);
  return format("line {}, column {}", 1 + std::count(before.begin(), before.end(), '\n'), 1 + characters_in(line));
}

bool JinjaTemplate::mentions(std::string_view word) const {
  bool found = false;
  jinja::each_node(*tree_, [&](const jinja::Node& node) {
    found = found || ((node.kind == jinja::Node::variable || node.kind == jinja::Node::attribute) && node.name == word) ||
            (node.kind == jinja::Node::constant && node.value.text() && *node.value.text() == word);
  });
  return found;
}

}  // namespace fsdp
