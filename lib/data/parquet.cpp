#include "data/parquet.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/parquet_pages.hpp"

namespace fsdp {

namespace {

using parquet::Thrift;
using parquet::Type;
using parquet::Unreadable;

constexpr std::size_t longest_footer = std::size_t{64} << 20;
constexpr int deepest_column = 24;

/// A column of a table, or a part of one: a column with values, or a group of others.
struct Node {
  enum Kind { value, text, is_unsigned, other, group, list } kind;
  std::string name = {};
  bool is_optional = false, is_repeated = false;
  unsigned definition = 0, repetition = 0;  // the highest levels, if the node exists and has an element
  std::vector<Node> children = {};
  std::size_t column = 0;  // the first of its columns
};

/// Reads the table's columns, which are stored as a tree in the order of a walk from the root.
class Schema {
 public:
  explicit Schema(const Thrift& elements) : elements_(elements) {}

  Node read(const InputFile& file, std::vector<parquet::Column>& columns, unsigned definition = 0, unsigned repetition = 0,
            int depth = 0) {
    if (at_ == elements_.items.size() || depth > deepest_column)
      throw Unreadable{"it is damaged, or its columns are nested too deeply"};
    const Thrift& element = elements_.items[at_++].second;
    enum { type = 1, type_bytes, repeats, name, children, converted, logical = 10 };
    Node node = {Node::group, std::string(element.at(name).text)};
    node.is_optional = depth > 0 && element.at(repeats).number == 1;
    node.is_repeated = depth > 0 && element.at(repeats).number == 2;
    node.definition = definition + (node.is_optional || node.is_repeated);
    node.repetition = repetition + node.is_repeated;
    node.column = columns.size();
    const std::int64_t count = element.at(children).number;
    for (std::int64_t i = 0; i < count; ++i)
      node.children.push_back(read(file, columns, node.definition, node.repetition, depth + 1));
    const std::int64_t form = element.at(converted).number;
    const Thrift& now = element.at(logical);
    if (count > 0) {
      const bool is_list = (element.has(converted) && form == 3) || now.has(3);
      if (is_list && count == 1 && node.children.front().is_repeated) node.kind = Node::list;
      return node;
    }
    const std::int64_t stored = element.at(type).number, bytes = element.at(type_bytes).number;
    if (depth == 0 || !element.has(type) || stored < 0 || stored > 7 || (stored == 7 && bytes <= 0))
      throw Unreadable{depth == 0 ? "it has no columns" : "it is damaged: a column has no known type"};
    columns.emplace_back(file, static_cast<Type>(stored), static_cast<std::size_t>(stored == 7 ? bytes : 0), node.definition,
                         node.repetition);
    node.kind = kind_of_value(static_cast<Type>(stored), element.has(converted) ? form : -1, now);
    return node;
  }
  bool is_read() const { return at_ == elements_.items.size(); }

 private:
  /// `converted` and `logical` are the old and the new way in which a file says what its values mean.
  static Node::Kind kind_of_value(Type type, std::int64_t converted, const Thrift& logical) {
    const bool has_meaning = converted >= 0 || !logical.items.empty();
    const bool is_text =
        converted == 0 || converted == 4 || converted == 19 || logical.has(1) || logical.has(4) || logical.has(12);
    if (type == Type::bytes) return is_text || !has_meaning ? Node::text : Node::other;
    if (type == Type::int96 || type == Type::fixed_bytes) return Node::other;
    if ((converted >= 11 && converted <= 14) || (logical.has(10) && logical.at(10).at(2).number == 0)) return Node::is_unsigned;
    const bool is_number = !has_meaning || (converted >= 15 && converted <= 18) || logical.has(10);
    return is_number ? Node::value : Node::other;
  }

  const Thrift& elements_;
  std::size_t at_ = 0;
};

void write_text(std::string& to, std::string_view text) {
  to += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') to += '\\';
    if (static_cast<unsigned char>(c) < ' ')
      to += format("\\u{:04x}", static_cast<unsigned>(c));
    else
      to += c;
  }
  to += '"';
}

template <class Number>
Number number_of(std::string_view bytes) {
  Number number{};
  std::memcpy(&number, bytes.data(), std::min(bytes.size(), sizeof number));
  return number;
}

void write_value(std::string& to, const Node& node, Type type, std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  if (node.kind == Node::other) {
    to += "null";
  } else if (node.kind == Node::text) {
    write_text(to, bytes);
  } else if (type == Type::boolean) {
    to += bytes.front() ? "true" : "false";
  } else if (type == Type::float32 || type == Type::float64) {
    const double number = type == Type::float32 ? number_of<float>(bytes) : number_of<double>(bytes);
    to += number != number ? "NaN" : number - number != 0 ? (number > 0 ? "Infinity" : "-Infinity") : format("{}", number);
  } else if (node.kind == Node::is_unsigned) {
    to += std::to_string(type == Type::int32 ? number_of<std::uint32_t>(bytes) : number_of<std::uint64_t>(bytes));
  } else {
    to += std::to_string(type == Type::int32 ? number_of<std::int32_t>(bytes) : number_of<std::int64_t>(bytes));
  }
}

class ParquetRows : public ByteStream {
 public:
  explicit ParquetRows(InputFile file) : file_(std::move(file)) {
    try {
      open();
    } catch (const Unreadable& problem) {
      fail(problem.why);
    }
  }

  bool more(std::string& to) override {
    const std::size_t before = to.size();
    try {
      while (row_ < rows_ && to.size() - before < std::size_t{1} << 20) {
        for (parquet::Column& column : columns_)
          if (column.at_end() || column.repetition() != 0)
            throw Unreadable{"it is damaged: its columns have different numbers of rows"};
        write_members(to, root_);
        to += '\n';
        ++row_;
      }
      if (row_ == rows_ &&
          std::any_of(columns_.begin(), columns_.end(), [](parquet::Column& column) { return !column.at_end(); }))
        throw Unreadable{"it is damaged: a column has more values than there are rows"};
    } catch (const Unreadable& problem) {
      fail(format("{}, in row {}", problem.why, row_ + 1));
    }
    return to.size() > before;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(format(
        "'{}' is a Parquet file that cannot be read ({}); copy it again, or write it again, as pandas does it by default",
        file_.path().string(), why));
  }

  void open() {
    const std::uint64_t size = file_.size();
    std::string end(8, '\0');
    if (size < 12) throw Unreadable{"it was cut"};
    file_.read(size - 8, end.data(), end.size());
    if (end.ends_with("PARE")) throw Unreadable{"it is encrypted"};
    const auto footer_bytes = number_of<std::uint32_t>(end);
    if (!end.ends_with("PAR1") || footer_bytes > size - 12)
      throw Unreadable{"it was cut: its last bytes are not those of a Parquet file"};
    if (footer_bytes > longest_footer) throw Unreadable{"its description has more than 64 MiB"};
    std::string footer(footer_bytes, '\0');
    file_.read(size - 8 - footer_bytes, footer.data(), footer.size());
    const Thrift about = parquet::read_thrift(footer);
    enum { elements = 2, rows = 3, groups = 4 };
    Schema schema(about.at(elements));
    root_ = schema.read(file_, columns_);
    if (!schema.is_read()) throw Unreadable{"it is damaged: it describes more columns than it has"};
    rows_ = static_cast<std::uint64_t>(about.at(rows).number);
    for (const auto& [number, group] : about.at(groups).items) add_group(group, size - 8 - footer_bytes);
  }

  /// Adds the columns of a group of rows. The pages end before `end`.
  void add_group(const Thrift& group, std::uint64_t end) {
    const Thrift& chunks = group.at(1);
    if (chunks.items.size() != columns_.size()) throw Unreadable{"it is damaged: a group of rows lacks columns"};
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const Thrift &chunk = chunks.items[i].second, &about = chunk.at(3);
      enum { type = 1, codec = 4, values = 5, packed = 7, data = 9, dictionary = 11 };
      if (!chunk.at(1).text.empty()) throw Unreadable{"its values are in other files"};
      if (about.items.empty()) throw Unreadable{"it is encrypted"};
      std::int64_t begin = about.at(data).number;
      if (about.at(dictionary).number > 0) begin = std::min(begin, about.at(dictionary).number);
      const std::int64_t bytes = about.at(packed).number;
      if (begin < 0 || bytes < 0 || static_cast<std::uint64_t>(begin) > end ||
          static_cast<std::uint64_t>(bytes) > end - static_cast<std::uint64_t>(begin) || about.at(values).number < 0 ||
          about.at(type).number != static_cast<std::int64_t>(columns_[i].type()))
        throw Unreadable{"it is damaged: a column is said to be where it cannot be"};
      columns_[i].add({static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(begin + bytes),
                       static_cast<std::uint64_t>(about.at(values).number), about.at(codec).number});
    }
  }

  static std::size_t columns_of(const Node& node) {
    std::size_t count = node.children.empty();
    for (const Node& child : node.children) count += columns_of(child);
    return count;
  }

  /// Moves all columns of a node over its absence.
  void skip(const Node& node) {
    for (std::size_t i = node.column, end = i + columns_of(node); i < end; ++i) columns_[i].next();
  }

  void write(std::string& to, const Node& node) {
    parquet::Column& first = columns_[node.column];
    if (node.is_repeated) return write_elements(to, node, node, false);
    if (node.is_optional && first.definition() < node.definition) {
      to += "null";
      return skip(node);
    }
    write_existing(to, node);
  }

  /// Writes a list: the node `repeated`, once for each element. `element` is the node with the value of an element.
  void write_elements(std::string& to, const Node& repeated, const Node& element, bool is_whole) {
    parquet::Column& first = columns_[repeated.column];
    to += '[';
    if (first.definition() < repeated.definition) {
      skip(repeated);
    } else {
      for (bool is_first = true; is_first || first.repetition() == repeated.repetition; is_first = false) {
        if (!is_first) to += ',';
        is_whole ? write(to, element) : write_existing(to, element);
      }
    }
    to += ']';
  }

  void write_existing(std::string& to, const Node& node) {
    if (node.kind == Node::list) {
      // The rules of LogicalTypes.md of apache/parquet-format, also for lists of older writers
      const Node& repeated = node.children.front();
      const bool is_element =
          repeated.children.size() != 1 || repeated.name == "array" || repeated.name == node.name + "_tuple";
      write_elements(to, repeated, is_element ? repeated : repeated.children.front(), !is_element);
    } else if (node.kind == Node::group) {
      write_members(to, node);
    } else {
      parquet::Column& column = columns_[node.column];
      if (column.definition() < node.definition) throw Unreadable{"it is damaged: a value is missing"};
      write_value(to, node, column.type(), column.next());
    }
  }

  void write_members(std::string& to, const Node& node) {
    to += '{';
    for (const Node& child : node.children) {
      if (to.back() != '{') to += ',';
      write_text(to, child.name);
      to += ':';
      write(to, child);
    }
    to += '}';
  }

  InputFile file_;
  std::vector<parquet::Column> columns_;
  Node root_ = {Node::group};
  std::uint64_t rows_ = 0, row_ = 0;
};

}  // namespace

std::unique_ptr<ByteStream> rows_of_parquet(InputFile file) { return std::make_unique<ParquetRows>(std::move(file)); }

}  // namespace fsdp
