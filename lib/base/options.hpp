// One table per program is the only source of its options: names, aliases, groups, defaults, help, checks, echo and
// documentation. An option is bound to a field of a plain struct; whatever the field holds when it is bound is the default.
//
// `--key value` and `--key=value`; hyphen and underscore are the same; `--config FILE` reads INI lines `key = value` ('#'
// starts a comment, [sections] only decorate); the command line wins over the file. Unknown and repeated options are errors,
// with "did you mean".
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

/// The whole numbers that an option accepts.
struct Limits {
  double low = 0, high = 1e18;
};

/// One row of the table. The functions add what a plain binding does not say; each returns the row.
class Option {
 public:
  Option& alias(std::string name) {
    aliases_.push_back(std::move(name));
    return *this;
  }
  /// May be given without its name: the first positional option takes the first such argument; a list takes all that are left.
  Option& positional() {
    positional_ = true;
    return *this;
  }
  /// Says in words what the default means, where the field's first value (0, "") only stands for "not given".
  Option& unset(std::string meaning) {
    unset_meaning_ = std::move(meaning);
    return *this;
  }

  /// A run needs it (which is for the program to check: a configuration may be printed without).
  Option& required() { return unset("must be given"); }
  /// Asks for something instead of a run: not part of a configuration.
  Option& command_line_only() {
    command_line_only_ = true;
    return *this;
  }
  /// Its default follows from other options, in the way that `meaning` says: OptionTable::then() fills it in.
  Option& follows(std::string meaning) {
    follows_ = true;
    return unset(std::move(meaning));
  }
  /// It sets what messages of the library call `quantity`: see OptionTable::name_options(). `words`, if given, say how:
  /// "--comm mpi".
  Option& sets(std::string quantity, std::string words = "") {
    quantities_.emplace_back(std::move(quantity), words.empty() ? "--" + name_ : std::move(words));
    return *this;
  }
  /// Another way to say what other options say: OptionTable::then() passes it on to their fields, and only theirs are values of
  /// the configuration.
  Option& spelling() {
    spelling_ = true;
    return *this;
  }

 private:
  friend class OptionTable;
  bool is_unset() const;
  std::string default_text() const;
  std::string name_, group_, argument_, help_;
  std::string accepts_;  // "a whole number, at least 1"
  std::vector<std::string> aliases_;
  bool flag_ = false, positional_ = false, command_line_only_ = false, follows_ = false, spelling_ = false, shared_ = false;
  std::vector<std::string>* list_ = nullptr;
  std::vector<std::string>* texts_ = nullptr;                    // an item each time that it is given
  std::vector<std::pair<std::string, std::string>> quantities_;  // with the words that set each
  std::string unset_meaning_, default_;
  std::function<void(const std::string&)> set_;  // throws UserError with the reason alone
  std::function<std::string()> print_;           // in the form that set_ reads
};

/// What the command line asks for instead of a run.
enum class Request { run, help, version, markdown, print_config };

/// Messages of the library name quantities between backquotes, as in "use a smaller `micro-batch`": puts the words there that
/// whoever reads the message knows a quantity by, such as the option that sets it.
void name_quantity(std::string& message, std::string_view quantity, std::string_view words);

class OptionTable {
 public:
  /// `usage` is what follows the program's name: "[DATA] [options]".
  OptionTable(std::string program, std::string usage, std::string summary);
  OptionTable(OptionTable&&) = default;

  /// Rows bound from here on belong to this group ("Batch").
  void group(std::string title) { group_ = std::move(title); }
  /// Rows bound from here on are those of `program`: markdown() names it instead of repeating them.
  void rows_of(std::string program) { shared_with_ = std::move(program); }

  /// `argument` names the value in help: "N", "FILE". The fields must outlive the table.
  template <class Field>  // bool, or optional
  Option& flag(std::string name, Field& field, std::string help);
  template <class Field>  // int or std::size_t, or optional
  Option& integer(std::string name, std::string argument, Field& field, Limits limits, std::string help);
  /// "64M", "2GiB"; `least` or more.
  Option& size(std::string name, std::string argument, std::size_t& field, std::string help, std::size_t least = 0);
  /// `accepts` is empty for any finite number, else it says what `ok` takes: "0 or more".
  template <class Field>  // double, or optional
  Option& number(std::string name, std::string argument, Field& field, std::string help, std::string accepts = "",
                 std::function<bool(double)> ok = nullptr);
  /// "(0.9,0.98)" or "0.9,0.98".
  Option& pair(std::string name, std::string argument, double& first, double& second, std::string help,
               std::string accepts = "", std::function<bool(double)> ok = nullptr);
  /// Seconds, from "90s", "30min", "2h", or a plain number. `needs_unit`, if given, says why that may be meant otherwise: then
  /// only 0 needs no unit.
  Option& duration(std::string name, std::string argument, double& field_s, std::string help, std::string needs_unit = "");
  Option& text(std::string name, std::string argument, std::string& field, std::string help);
  Option& path(std::string name, std::string argument, std::filesystem::path& field, std::string help);
  /// Comma-separated after its name; one item per argument when positional.
  Option& list(std::string name, std::string argument, std::vector<std::string>& field, std::string help);
  /// May be given several times, and takes each text as it is.
  Option& texts(std::string name, std::string argument, std::vector<std::string>& field, std::string help);
  /// Names with a number each: "a=0.1,b=2".
  Option& numbers_by_name(std::string name, std::string argument, std::vector<std::pair<std::string, double>>& field,
                          std::string help, std::string accepts, std::function<bool(double)> ok);
  /// One of `names`; several names may mean the same value, the first of them is printed.
  template <class T>
  Option& choice(std::string name, T& field, std::vector<std::pair<std::string, T>> names, std::string help);

  /// An option that users know from another program, and that this one does not have; or, as "name=value", a value of one that
  /// is here; or, as "name=N,N", a list of numbers for one that takes a single number. Whoever gives it is told `answer`,
  /// "(<why>); <what to do>", instead of a guess at what was meant. What is here goes before that.
  void elsewhere(std::string name, std::string answer);

  /// A configuration file of another program, which has one of `marks` in it. Whoever gives one to --config is told `answer`,
  /// "(<what it is>); <what to do>", instead of what is wrong with its first line. A mark "[section]" at the beginning of a
  /// line is enough; others count only where the file cannot be read.
  void config_elsewhere(std::vector<std::string> marks, std::string answer);

  /// The row of this main name, which is there: for a program that shares another one's rows and says more of one.
  Option& row(std::string_view name);

  /// What parse() does once all options are read, in the order of these calls: it passes spellings on, fills in what follows
  /// from other options, and checks what options say together. Left out where something else is asked for than a run.
  void then(std::function<void(const OptionTable&)> step) { steps_.push_back(std::move(step)); }

  /// Sets the fields, unless the request is help, version or markdown. Throws UserError.
  Request parse(int argc, const char* const* argv);
  /// Whether it has an option of this name, or alias.
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Whether the command line or the file gave this option (by its main name).
  bool given(std::string_view name) const;
  /// The name by which it was given: "--param-dtype" for an alias, and the word in quotes where it had no name. Empty if it was
  /// not.
  std::string typed(std::string_view name) const;
  /// Whether its value is not the default any more.
  bool changed(std::string_view name) const;

  /// A message in the words of this program. The library does not know options: what it says of a quantity that users may set
  /// is between backquotes, as in "use a smaller `micro-batch`". Here it becomes the option: "use a smaller --batch-size".
  std::string name_options(std::string_view message) const;

  /// Grouped, wrapped at 100 columns, with defaults.
  std::string help() const;
  /// The same as Markdown tables, for docs/options.md.
  std::string markdown() const;
  /// All present values in the form that --config reads back. What is not given, or follows from other options (it was not
  /// given and is not its default any more), is a comment.
  std::string config() const;
  /// (name, present value) of every row but other spellings, in order of the table.
  std::vector<std::pair<std::string, std::string>> values() const;
  const std::string& program() const { return program_; }

 private:
  struct Given;
  Option& add(std::string name, std::string argument, std::string help, std::string accepts);
  Option& finish(Option& option);
  const Option* find(std::string_view name) const;
  Option* find(std::string_view name) { return const_cast<Option*>(std::as_const(*this).find(name)); }
  std::string unknown(std::string_view name) const;
  std::vector<Given> read_command_line(int argc, const char* const* argv);
  std::vector<Given> read_config(const std::string& path);
  std::vector<Given> read_lines(const std::string& path, const std::string& text);
  void apply(const std::vector<Given>& all);

  std::string program_, usage_, summary_, group_, shared_with_;
  std::deque<Option> rows_;                                     // rows keep their address
  std::vector<std::pair<std::string, std::string>> elsewhere_;  // options of other programs, and what is said of each
  std::vector<std::pair<std::vector<std::string>, std::string>> configs_elsewhere_;  // marks, and what is said of the file
  std::deque<Option> help_rows_;                                                     // --config, --help, ...: in every table
  std::vector<std::pair<const Option*, std::string>> given_;                         // with the name that was typed
  std::vector<std::function<void(const OptionTable&)>> steps_;
};

template <class T>
Option& OptionTable::choice(std::string name, T& field, std::vector<std::pair<std::string, T>> names, std::string help) {
  std::string argument, accepts;
  for (std::size_t i = 0; i < names.size(); ++i) {
    bool first = true;
    for (std::size_t j = 0; j < i; ++j) first = first && names[j].second != names[i].second;
    if (first) argument += (argument.empty() ? "" : "|") + names[i].first;
    accepts += (accepts.empty() ? "one of " : ", ") + names[i].first;
  }
  Option& option = add(std::move(name), std::move(argument), std::move(help), std::move(accepts));
  option.set_ = [&field, names](const std::string& text) {
    for (const auto& [known, value] : names)
      if (known == text) {
        field = value;
        return;
      }
    std::vector<std::string> all;
    for (const auto& [known, value] : names) all.push_back(known);
    const std::string near = nearest(text, all);
    throw UserError(near.empty() ? "no such choice" : "no such choice; did you mean " + near + "?");
  };
  option.print_ = [&field, names] {
    for (const auto& [known, value] : names)
      if (value == field) return known;
    return std::string();
  };
  return finish(option);
}

}  // namespace fsdp
