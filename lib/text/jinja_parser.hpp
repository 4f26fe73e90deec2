// Reads the source of a Jinja template into a tree, as Jinja 3.1 does with the options of transformers: trim_blocks,
// lstrip_blocks and the tags `break`, `continue` and `generation`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.hpp"

namespace fsdp::jinja {

/// What is wrong in a source, and the byte where it is.
struct SyntaxProblem : Problem {
  SyntaxProblem(const std::string& what, std::size_t place) : Problem(what), at(place) {}
  std::size_t at;
};

struct Node;
using NodePtr = std::unique_ptr<const Node>;

/// An expression or a statement. `parts` may have null pointers for parts that are left out.
struct Node {
  enum Kind {
    // Expressions
    constant,  // value
    variable,  // name
    list,
    tuple,      // parts: elements
    dict,       // parts: key, value, key, value ...
    attribute,  // parts: object; name
    item,       // parts: object, key
    slice,      // parts: object, begin, end, step
    call,       // parts: function, arguments; named
    filter,     // parts: object, arguments; named; name
    test,       // parts: object, arguments; named; name
    unary,      // parts: operand; name: "-", "+" or "not"
    binary,     // parts: left, right; name: an arithmetic operator, or "and" or "or"
    compare,    // parts: operands; names: the operators between them
    choice,     // parts: condition, value, other value
    // Statements
    block,       // parts: statements
    text,        // value
    print,       // parts: expression
    if_block,    // parts: condition, block, condition, block ..., and the block of `else`
    for_block,   // parts: target, list, condition, block, block of `else`
    set,         // parts: target, expression
    set_block,   // parts: target, block
    macro,       // name; names: parameters; parts: block, default values of the last parameters
    generation,  // parts: block
    break_loop,
    continue_loop,
  };
  Kind kind;
  std::size_t at;  // its first byte in the source
  std::string name = {};
  std::vector<std::string> names = {};
  Value value = {};
  std::vector<NodePtr> parts = {};
  std::vector<std::pair<std::string, NodePtr>> named = {};
  std::size_t depth = 1;  // levels of the tree below and with this node
};

/// Returns the source with each line end as \n, and without the last one.
std::string with_simple_lines(std::string_view source);
/// Reads a source with simple lines. Throws SyntaxProblem.
NodePtr parse(std::string_view source);

/// Calls `see` for the node and all nodes below it.
template <class See>
void each_node(const Node& node, const See& see) {
  see(node);
  for (const NodePtr& part : node.parts)
    if (part) each_node(*part, see);
  for (const auto& [name, part] : node.named) each_node(*part, see);
}

}  // namespace fsdp::jinja
