// Each program has one table of options. The table defines the options' names, aliases, groups, defaults, help and checks, the
// output of --print-config, and the documentation. An option is bound to a field of a plain struct. The default of the option
// is the value that the field has when the option is added.
//
// Both `--key value` and `--key=value` are accepted, with hyphens or underscores. `--config FILE` reads INI lines `key = value`
// ('#' starts a comment, [sections] have no meaning); the command line overrides the file. Unknown and repeated options are
// errors, with "did you mean".
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

/// The range of whole numbers that an option accepts.
struct Limits {
  double low = 0, high = 1e18;
};

/// One option: a row of the table. Each public function sets a property of the option and returns the row.
class Option {
 public:
  Option& alias(std::string name) {
    aliases_.push_back(std::move(name));
    return *this;
  }
  /// The option may be given without its name. The first positional option takes the first argument without a name, and so on;
  /// a list takes all that remain.
  Option& positional() {
    positional_ = true;
    return *this;
  }
  /// Describes the default in words. It is for fields whose initial value (0 or "") only means that the option is not given.
  Option& unset(std::string meaning) {
    unset_meaning_ = std::move(meaning);
    return *this;
  }

  /// A run needs this option. The program itself has to check that the option is given, because a configuration may be printed
  /// without it.
  Option& required() { return unset("must be given"); }
  /// Most runs need the option, so the first page of --help shows it.
  Option& common() { return common_ = true, *this; }
  /// The option requests something other than a run, such as a list, so it is not part of a configuration.
  Option& command_line_only() {
    command_line_only_ = true;
    return *this;
  }
  /// The option concerns only this start of the program, so it is not part of a configuration either, although its run may be
  /// one with a configuration.
  Option& of_this_start() { return of_this_start_ = true, *this; }
  /// The default depends on other options, as `meaning` describes. A step of OptionTable::then() sets the default.
  Option& follows(std::string meaning) {
    follows_ = true;
    return unset(std::move(meaning));
  }
  /// The option sets `quantity`, which messages of the library name in backquotes (see OptionTable::name_options()). The
  /// program prints these messages with the option's name instead, or with `words` if given, such as "--comm mpi".
  Option& sets(std::string quantity, std::string words = "") {
    quantities_.emplace_back(std::move(quantity), words.empty() ? "--" + name_ : std::move(words));
    return *this;
  }
  /// This option is another spelling of other options. A step of OptionTable::then() sets the fields of those options from it,
  /// and values() lists only those options.
  Option& spelling() {
    spelling_ = true;
    return *this;
  }

 private:
  friend class OptionTable;
  bool is_unset() const;
  std::string default_text() const;
  std::string name_, group_, argument_, help_;
  std::string accepts_;  // describes the accepted values: "a whole number, at least 1"
  std::vector<std::string> aliases_;
  bool flag_ = false, positional_ = false, command_line_only_ = false, of_this_start_ = false, follows_ = false,
       spelling_ = false, shared_ = false, common_ = false;
  std::vector<std::string>* list_ = nullptr;
  std::vector<std::string>* texts_ = nullptr;                    // if not null: each use of the option adds an item
  std::vector<std::pair<std::string, std::string>> quantities_;  // quantity, and the words that replace it in messages
  std::string unset_meaning_, default_;
  std::function<void(const std::string&)> set_;  // reads the value; a UserError that it throws has only the reason
  std::function<std::string()> print_;           // the value, in the form that set_ reads
};

/// What the user asks for on a command line: a run, or a text to print instead of a run.
enum class Request { run, help, version, markdown, print_config };

/// Messages of the library name quantities between backquotes, as in "use a smaller `micro-batch`". This function replaces
/// `quantity` and its backquotes by `words`, such as the name of the option that sets the quantity.
void name_quantity(std::string& message, std::string_view quantity, std::string_view words);

class OptionTable {
 public:
  /// `usage` is the usage line without the program's name: "[DATA] [options]".
  OptionTable(std::string program, std::string usage, std::string summary);
  OptionTable(OptionTable&&) = default;

  /// Adds commands that --help shows for the user to copy.
  void examples(std::vector<std::string> commands) { examples_ = std::move(commands); }
  /// Options that are added after this call belong to the group `title`, one word such as "Batch".
  void group(std::string title) { groups_.push_back(std::move(title)); }
  /// Options that are added after this call are also options of `program`. markdown() does not list them, but refers to
  /// `program`.
  void rows_of(std::string program) { shared_with_ = std::move(program); }

  /// `argument` names the value in help: "N", "FILE". The fields must outlive the table.
  template <class Field>  // Field is bool or std::optional<bool>
  Option& flag(std::string name, Field& field, std::string help);
  template <class Field>  // Field is int, std::size_t or std::optional<std::size_t>
  Option& integer(std::string name, std::string argument, Field& field, Limits limits, std::string help);
  /// A size, such as "64M" or "2GiB", of at least `least` bytes.
  Option& size(std::string name, std::string argument, std::size_t& field, std::string help, std::size_t least = 0);
  /// A number. If `ok` is null, every finite number is accepted. Otherwise `ok` checks the number, and `accepts` describes the
  /// condition: "0 or more".
  template <class Field>  // Field is double or std::optional<double>
  Option& number(std::string name, std::string argument, Field& field, std::string help, std::string accepts = "",
                 std::function<bool(double)> ok = nullptr);
  /// Two numbers, given as "(0.9,0.98)" or "0.9,0.98".
  Option& pair(std::string name, std::string argument, double& first, double& second, std::string help,
               std::string accepts = "", std::function<bool(double)> ok = nullptr);
  /// Seconds, from "90s", "30min", "2h", or a plain number. If `needs_unit` is not empty, a plain number other than 0 is
  /// refused, with `needs_unit` as the reason. If `automatic` is not null, the option also accepts "auto", which sets it.
  Option& duration(std::string name, std::string argument, double& field_s, std::string help, std::string needs_unit = "",
                   bool* automatic = nullptr);
  Option& text(std::string name, std::string argument, std::string& field, std::string help);
  Option& path(std::string name, std::string argument, std::filesystem::path& field, std::string help);
  /// A list: comma-separated after the option's name, or one item per positional argument.
  Option& list(std::string name, std::string argument, std::vector<std::string>& field, std::string help);
  /// An option that may be given several times; each value becomes an item of `field`, unchanged.
  Option& texts(std::string name, std::string argument, std::vector<std::string>& field, std::string help);
  /// Pairs of a name and a number: "a=0.1,b=2".
  Option& numbers_by_name(std::string name, std::string argument, std::vector<std::pair<std::string, double>>& field,
                          std::string help, std::string accepts, std::function<bool(double)> ok);
  /// A choice of one of `names`. If several names mean the same value, the first of them is printed.
  template <class T>
  Option& choice(std::string name, T& field, std::vector<std::pair<std::string, T>> names, std::string help);

  /// Adds an answer for an option of another program that this program does not have. A user who gives it gets `answer`,
  /// "(<why>); <what to do>", instead of a guess at the intended option. `name` may also be "name=value", for a value that an
  /// option of this program does not have, or "name=N,N", for a list of numbers given to an option that takes one number.
  /// Options and values of this program have precedence.
  void elsewhere(std::string name, std::string answer);

  /// Adds an answer for a configuration file of another program, which is recognized by one of `marks`. A user who gives such a
  /// file to --config gets `answer`, "(<what it is>); <what to do>", instead of an error about its first line. A mark
  /// "[section]" counts if a line begins with it; other marks count only if the file cannot be read.
  void config_elsewhere(std::vector<std::string> marks, std::string answer);

  /// Returns the row of an option, which must be in the table. A program that shares the rows of another program can change one
  /// of them in this way.
  Option& row(std::string_view name);

  /// Adds a step that parse() runs after all options are read. The steps run in the order of these calls. They set fields from
  /// other spellings, set defaults that depend on other options, and check options against each other. They are skipped if the
  /// command line requests something other than a run or its configuration.
  void then(std::function<void(const OptionTable&)> step) { steps_.push_back(std::move(step)); }

  /// Sets the fields, unless the request is help, version or markdown. Throws UserError. If `problems` is not null, it receives
  /// the errors of all steps instead, and a step that fails leaves its fields as they are.
  Request parse(int argc, const char* const* argv, std::vector<std::string>* problems = nullptr);
  /// Returns true if the table has an option with this name or alias.
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Returns true if this option was given on the command line or in the file. `name` is its main name or an alias.
  bool given(std::string_view name) const;
  /// The name by which the user gave the option: "--param-dtype" for an alias, or the argument in quotes if it had no name.
  /// Empty if the option was not given.
  std::string typed(std::string_view name) const;
  /// Returns true if the option's value differs from its default.
  bool changed(std::string_view name) const;

  /// Returns `message` with the names of this program's options. The library does not know options: its messages put a quantity
  /// that users can set between backquotes, as in "use a smaller `micro-batch`". This function replaces the quantity by the
  /// name of the option: "use a smaller --batch-size".
  std::string name_options(std::string_view message) const;

  /// The text of --help, wrapped at the width of the terminal. It has all options if they fit two screens, else those that most
  /// runs need. With the word that follows --help on the command line: the options of this group, this option, or all. Throws
  /// UserError if there is no such group or option.
  std::string help() const;
  /// All options as Markdown tables, for docs/options.md.
  std::string markdown() const;
  /// All current values, in the form that --config reads back. An option that was not given is written as a comment if it has
  /// no value or if its value depends on other options.
  std::string config() const;
  /// (name, current value) of every row of the configuration except spellings, in the table's order.
  std::vector<std::pair<std::string, std::string>> values() const;
  const std::string& program() const { return program_; }

 private:
  struct Given;
  enum class Detail { brief, full, with_values };
  Option& add(std::string name, std::string argument, std::string help, std::string accepts);
  Option& finish(Option& option);
  const Option* find(std::string_view name) const;
  Option* find(std::string_view name) { return const_cast<Option*>(std::as_const(*this).find(name)); }
  std::string unknown(std::string_view name, bool is_topic = false) const;
  std::string list_options(const std::function<bool(const Option&)>& shown, Detail detail) const;
  std::vector<Given> read_command_line(int argc, const char* const* argv);
  std::vector<Given> read_config(const std::string& path);
  std::vector<Given> read_lines(const std::string& path, const std::string& text);
  void apply(const std::vector<Given>& all);

  std::string program_, usage_, summary_, shared_with_, topic_;  // topic_ is the word that follows --help
  std::vector<std::string> examples_, groups_;
  std::deque<Option> rows_;                                     // a deque, because adding a row does not move the others
  std::vector<std::pair<std::string, std::string>> elsewhere_;  // options of other programs, each with its answer
  std::vector<std::pair<std::vector<std::string>, std::string>>
      configs_elsewhere_;                                     // marks of other programs' files, with the answer
  std::deque<Option> help_rows_;                              // options that every table has: --config, --help, ...
  std::vector<std::pair<const Option*, std::string>> given_;  // the options that were given, with their names as typed
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
