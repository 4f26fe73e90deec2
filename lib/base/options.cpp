#include "base/options.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include <boost/program_options.hpp>

#include "base/byte_order_mark.hpp"
#include "base/format.hpp"
#include "base/number_in.hpp"
#include "base/terminal.hpp"

namespace fsdp {

namespace po = boost::program_options;

namespace {

constexpr std::size_t help_column = 34;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string small(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Returns the first sentence of an option's help, up to a colon or semicolon.
std::string first_sentence(const std::string& help) {
  const std::size_t end = std::min({help.find(". "), help.find(": "), help.find("; ")});
  return end == help.npos ? help : help.substr(0, end) + (help.ends_with('.') ? "." : "");
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
  if (text.ends_with(separator)) parts.emplace_back();
  return parts;
}

template <class T>
T parse_number(std::string_view text, const char* problem) {
  if (text.size() > 1 && text.front() == '+') text.remove_prefix(1);  // number_in() does not accept a plus sign
  const auto value = number_in<T>(text);
  if (!value) throw UserError(problem);
  return *value;
}

double parse_finite(std::string_view text) {
  const auto value = parse_number<double>(text, "not a number");
  if (!std::isfinite(value)) throw UserError("not a finite number");
  return value;
}

template <class Field>
auto set_text(Field& field) {
  return [&field](const std::string& text) {
    if (text.empty()) throw UserError("empty");
    field = text;
  };
}

/// The width of --help in characters: $COLUMNS, else the width of the terminal, limited to 80 to 120; 100 if neither is known.
std::size_t page_width() {
  const char* const columns = std::getenv("COLUMNS");
  std::size_t width = columns ? std::strtoul(columns, nullptr, 10) : 0;
  if (width == 0) width = Terminal(stdout).width();
  return width == 0 ? 100 : std::clamp<std::size_t>(width, 80, 120);
}

/// Returns `text` with a backslash before each character of `special`.
std::string escaped(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) out += special.find(c) != special.npos ? std::string{'\\', c} : std::string{c};
  return out;
}

std::string escaped_for_markdown(const std::string& text) { return escaped(text, "|<"); }
/// `text` as Markdown code in a cell of a table. Bars are escaped, because a bar ends the cell even inside backquotes.
std::string code_for_markdown(const std::string& text) { return "`" + escaped(text, "|") + "`"; }

/// Returns true if two adjacent words can come from a pattern such as *.txt that the shell expanded: they name files in one
/// folder, with the same extension, in alphabetical order.
bool are_as_of_a_pattern(const std::filesystem::path& first, const std::filesystem::path& second) {
  std::error_code no;
  return first.parent_path() == second.parent_path() && first.extension() == second.extension() && first < second &&
         std::filesystem::is_regular_file(first, no) && std::filesystem::is_regular_file(second, no);
}

}  // namespace

/// An option as the user gave it, and the place where it was given: the command line or a line of a file.
struct OptionTable::Given {
  Option* option;
  std::string typed;  // "--batch-size-per-device", "batch-size", or the positional argument's text
  std::string value;
  std::string where;  // "" for the command line, else "run.ini:3: "
  bool positional = false;
};

bool Option::is_unset() const { return print_ && print_() == default_ && (!unset_meaning_.empty() || default_.empty()); }

/// "default: 1", "must be given", or nothing.
std::string Option::default_text() const {
  if (!print_ || (flag_ && default_ == "false")) return "";
  if (unset_meaning_ == "must be given") return unset_meaning_;
  const std::string& meaning = unset_meaning_.empty() ? default_ : unset_meaning_;
  return meaning.empty() ? "" : "default: " + meaning;
}

OptionTable::OptionTable(std::string program, std::string usage, std::string summary)
    : program_(std::move(program)), usage_(std::move(usage)), summary_(std::move(summary)) {
  const auto help_row = [this](const char* name, const char* argument, const char* help) {
    Option& option = help_rows_.emplace_back();
    option.name_ = name;
    option.group_ = "Help";
    option.argument_ = argument;
    option.help_ = help;
    option.flag_ = option.argument_.empty();
    option.command_line_only_ = true;
    option.common_ = option.name_ != "help-markdown";
  };
  help_row("config", "FILE",
           "Read options from FILE: lines 'name = value'; '#' starts a comment. The command line overrides FILE.");
  help_row("print-config", "", "Print all values in the form that --config reads, and exit.");
  help_row("help", "[TOPIC]",
           "Print the options that most runs need and exit. TOPIC: the name of a section or of an option, or all.");
  help_row("help-markdown", "", "Print all options as Markdown and exit.");
  help_row("version", "", "Print versions of the program and its libraries and exit.");
}

Option& OptionTable::add(std::string name, std::string argument, std::string help, std::string accepts) {
  expect(find(name) == nullptr, "an option is bound twice");
  Option& option = rows_.emplace_back();
  option.name_ = std::move(name);
  option.group_ = groups_.empty() ? "" : groups_.back();
  option.shared_ = !shared_with_.empty();
  option.argument_ = std::move(argument);
  option.help_ = std::move(help);
  option.accepts_ = std::move(accepts);
  return option;
}

Option& OptionTable::finish(Option& option) {
  option.default_ = option.print_();
  return option;
}

namespace {

bool parse_bool(const std::string& text) {
  for (const char* yes : {"true", "yes", "on", "1"})
    if (text == yes) return true;
  for (const char* no : {"false", "no", "off", "0"})
    if (text == no) return false;
  throw UserError("not a yes or no");
}

template <class T>
std::string text_of(T value) {
  return format("{}", value);
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "";
}

}  // namespace

template <class Field>
Option& OptionTable::flag(std::string name, Field& field, std::string help) {
  Option& option = add(std::move(name), "", std::move(help), "true or false, or nothing for true");
  option.flag_ = true;
  option.set_ = [&field](const std::string& text) { field = parse_bool(text); };
  option.print_ = [&field] { return text_of(field); };
  return finish(option);
}
template Option& OptionTable::flag(std::string, bool&, std::string);
template Option& OptionTable::flag(std::string, std::optional<bool>&, std::string);

template <class Field>
Option& OptionTable::integer(std::string name, std::string argument, Field& field, Limits limits, std::string help) {
  Option& option = add(std::move(name), std::move(argument), std::move(help),
                       limits.high < 1e18 ? format("a whole number from {:.0f} to {:.0f}", limits.low, limits.high)
                                          : format("a whole number, {:.0f} or more", limits.low));
  option.set_ = [&field, limits](const std::string& text) {
    using T = std::conditional_t<std::is_same_v<Field, int>, int, std::size_t>;
    const auto value = parse_number<std::int64_t>(without_separators(text), "not a whole number");
    if (static_cast<double>(value) < limits.low || static_cast<double>(value) > limits.high || !std::in_range<T>(value))
      throw UserError("out of range");
    field = static_cast<T>(value);
  };
  option.print_ = [&field] { return text_of(field); };
  return finish(option);
}
template Option& OptionTable::integer(std::string, std::string, int&, Limits, std::string);
template Option& OptionTable::integer(std::string, std::string, std::size_t&, Limits, std::string);
template Option& OptionTable::integer(std::string, std::string, std::optional<std::size_t>&, Limits, std::string);

Option& OptionTable::size(std::string name, std::string argument, std::size_t& field, std::string help, std::size_t least) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), "a size, such as 4096, 64M or 2GiB");
  option.set_ = [&field, least](const std::string& text) {
    std::size_t size = 0;
    try {
      size = parse_size(text);
    } catch (const UserError&) {
      throw UserError("not a size");
    }
    if (size < least) throw UserError(format("less than {}; is a unit missing?", format_bytes(static_cast<double>(least))));
    field = size;
  };
  option.print_ = [&field] {
    const std::size_t mebibyte = std::size_t{1} << 20;
    return field > 0 && field % mebibyte == 0 ? format("{}MiB", field / mebibyte) : std::to_string(field);
  };
  return finish(option);
}

Option& OptionTable::duration(std::string name, std::string argument, double& field_s, std::string help, std::string needs_unit,
                              bool* automatic) {
  Option& option = add(std::move(name), std::move(argument), std::move(help),
                       automatic ? "a time, such as 90s, 30min or 2h, or auto" : "a time, such as 90s, 30min or 2h");
  option.set_ = [&field_s, needs_unit = std::move(needs_unit), automatic](const std::string& text) {
    if (automatic && (*automatic = text == "auto")) return;
    const bool plain = text.find_first_not_of("0123456789.") == std::string::npos;
    if (!needs_unit.empty() && plain && text.find_first_not_of("0.") != std::string::npos) throw UserError(needs_unit);
    try {
      field_s = parse_duration(text);
    } catch (const UserError&) {
      throw UserError("not a time");
    }
  };
  option.print_ = [&field_s, automatic] { return automatic && *automatic ? std::string("auto") : format("{}s", field_s); };
  return finish(option);
}

template <class Field>
Option& OptionTable::number(std::string name, std::string argument, Field& field, std::string help, std::string accepts,
                            std::function<bool(double)> ok) {
  Option& option =
      add(std::move(name), std::move(argument), std::move(help), accepts.empty() ? "a number" : "a number, " + accepts);
  option.set_ = [&field, ok = std::move(ok)](const std::string& text) {
    const double value = parse_finite(text);
    if (ok && !ok(value)) throw UserError("out of range");
    field = value;
  };
  option.print_ = [&field] { return text_of(field); };
  return finish(option);
}
template Option& OptionTable::number(std::string, std::string, double&, std::string, std::string, std::function<bool(double)>);
template Option& OptionTable::number(std::string, std::string, std::optional<double>&, std::string, std::string,
                                     std::function<bool(double)>);

Option& OptionTable::pair(std::string name, std::string argument, double& first, double& second, std::string help,
                          std::string accepts, std::function<bool(double)> ok) {
  Option& option = add(std::move(name), std::move(argument), std::move(help),
                       "two numbers" + (accepts.empty() ? "" : ", each " + accepts) + ", as in \"(0.9,0.98)\"");
  option.set_ = [&first, &second, ok = std::move(ok)](const std::string& text) {
    std::string inner = trimmed(text);
    if (inner.size() >= 2 && (inner.front() == '(' || inner.front() == '[')) {
      if (inner.back() != (inner.front() == '(' ? ')' : ']')) throw UserError("the bracket is not closed");
      inner = inner.substr(1, inner.size() - 2);
    }
    const auto parts = split(inner, ',');
    if (parts.size() != 2) throw UserError(format("{} instead of 2 numbers", parts.size()));
    const double values[] = {parse_finite(parts[0]), parse_finite(parts[1])};
    if (ok && !(ok(values[0]) && ok(values[1]))) throw UserError("out of range");
    first = values[0], second = values[1];
  };
  option.print_ = [&first, &second] { return format("({},{})", first, second); };
  return finish(option);
}

Option& OptionTable::numbers_by_name(std::string name, std::string argument, std::vector<std::pair<std::string, double>>& field,
                                     std::string help, std::string accepts, std::function<bool(double)> ok) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), std::move(accepts));
  option.set_ = [&field, ok = std::move(ok)](const std::string& text) {
    std::vector<std::pair<std::string, double>> read;
    for (const std::string& item : split(text, ',')) {
      const std::size_t equals = item.rfind('=');
      if (equals == std::string::npos || equals == 0) throw UserError("'" + item + "' is not NAME=NUMBER");
      const double value = parse_finite(std::string_view(item).substr(equals + 1));
      if (ok && !ok(value)) throw UserError("out of range");
      read.emplace_back(item.substr(0, equals), value);
    }
    if (read.empty()) throw UserError("empty");
    field = std::move(read);
  };
  option.print_ = [&field] {
    std::string text;
    for (const auto& [key, value] : field) text += format("{}{}={}", text.empty() ? "" : ",", key, value);
    return text;
  };
  return finish(option);
}

Option& OptionTable::text(std::string name, std::string argument, std::string& field, std::string help) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), "some text");
  option.set_ = set_text(field);
  option.print_ = [&field] { return field; };
  return finish(option);
}

Option& OptionTable::path(std::string name, std::string argument, std::filesystem::path& field, std::string help) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), "a path");
  option.set_ = set_text(field);
  option.print_ = [&field] { return field.string(); };
  return finish(option);
}

Option& OptionTable::list(std::string name, std::string argument, std::vector<std::string>& field, std::string help) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), "a list, separated by commas");
  option.list_ = &field;
  option.set_ = [&field](const std::string& text) {
    auto items = split(text, ',');
    if (items.empty() || std::find(items.begin(), items.end(), "") != items.end()) throw UserError("an empty item");
    field = std::move(items);
  };
  option.print_ = [&field] { return format("{}", fmt::join(field, ",")); };
  return finish(option);
}

Option& OptionTable::texts(std::string name, std::string argument, std::vector<std::string>& field, std::string help) {
  Option& option = add(std::move(name), std::move(argument), std::move(help), "some text");
  option.texts_ = &field;
  option.set_ = [&field](const std::string& text) {
    if (text.empty()) throw UserError("empty");
    field.push_back(text);
  };
  option.print_ = [&field] { return format("{}", fmt::join(field, " ")); };
  return finish(option);
}

const Option* OptionTable::find(std::string_view name) const {
  for (const auto* rows : {&rows_, &help_rows_})
    for (const Option& row : *rows)
      if (row.name_ == name || std::find(row.aliases_.begin(), row.aliases_.end(), name) != row.aliases_.end()) return &row;
  return nullptr;
}

Option& OptionTable::row(std::string_view name) {
  Option* option = find(name);
  expect(option != nullptr, "a row that is asked for is there");
  return *option;
}

void OptionTable::elsewhere(std::string name, std::string answer) {
  elsewhere_.emplace_back(std::move(name), std::move(answer));
}

void OptionTable::config_elsewhere(std::vector<std::string> marks, std::string answer) {
  configs_elsewhere_.emplace_back(std::move(marks), std::move(answer));
}

std::string OptionTable::unknown(std::string_view name, bool is_topic) const {
  for (const auto& [option, answer] : elsewhere_)
    if (option == name) return " " + answer;
  std::vector<std::string> names;
  for (const auto* rows : {&rows_, &help_rows_})
    for (const Option& row : *rows) {
      names.push_back(row.name_);
      names.insert(names.end(), row.aliases_.begin(), row.aliases_.end());
      if (is_topic) names.push_back(small(row.group_));
    }
  const std::string near = nearest(name, names);
  if (!near.empty()) return format("; did you mean {0}{1}? See {2} --help {1}", is_topic ? "" : "--", near, program_);
  return format("; see {} --help{}", program_, elsewhere_.empty() ? "" : ", and docs/from-*.md for other programs' options");
}

std::vector<OptionTable::Given> OptionTable::read_command_line(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  std::vector<Given> given;
  std::vector<Option*> positional;
  for (Option& row : rows_)
    if (row.positional_) positional.push_back(&row);
  std::size_t next = 0;
  const auto take = [&](const std::string& text) {
    if (positional.empty())
      throw UserError(format("unexpected argument '{}' (only options are expected); see {} --help", text, program_));
    if (next == positional.size()) {
      std::string taken;
      for (const Given& one : given)
        if (one.positional) taken += format("{}{} is '{}'", taken.empty() ? "" : ", ", one.option->argument_, one.value);
      throw UserError(
          format("unexpected argument '{}' ({}, and no more arguments are expected; the shell expands a pattern without quotes "
                 "to several words); put a pattern into quotes, or see {} --help",
                 text, taken, program_));
    }
    given.push_back({positional[next], "'" + text + "'", text, "", true});
    if (!positional[next]->list_) ++next;
  };
  const auto unknown_option = [&](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return UserError(
        format("unknown option {}{}", name, unknown(name.substr(std::min(name.find_first_not_of('-'), name.size())))));
  };
  std::optional<Given> before;  // the option whose value is the previous word
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i] == "-h" ? "--help" : words[i];
    if (word == "--") {
      for (++i; i < words.size(); ++i) take(words[i]);
      break;
    }
    if (word.starts_with("--")) {
      const std::size_t end = word.find('=');
      const std::string name = with_hyphens(word.substr(2, end - 2)), typed = "--" + name;
      Option* const row = find(name);
      if (row == nullptr) throw unknown_option(typed);
      const bool has_next = i + 1 < words.size();
      if (row->name_ == "help") {  // words after the topic do not matter
        topic_ = end != word.npos ? word.substr(end + 1) : has_next ? words[i + 1] : "";
        given.push_back({row, typed, topic_, ""});
        break;
      }
      if (row->flag_ && has_next && end == word.npos)
        for (const char* text : {"True", "true", "False", "false"})
          if (words[i + 1] == text)
            throw UserError(format("{0} {1} is not understood ({0} itself means yes, and takes no separate word); give {0}{2}",
                                   typed, text, std::tolower(text[0]) == 't' ? "" : "=false, or leave it out"));
      const bool takes_next = !row->flag_ && end == word.npos;
      if (takes_next ? !has_next || words[i + 1].starts_with("--") : end + 1 == word.size())
        throw UserError(format("{} has no value (it needs one); give {}", typed, row->accepts_));
      const std::string value = takes_next ? words[++i] : end == word.npos ? "true" : word.substr(end + 1);
      given.push_back({row, typed, value, ""});
      before = takes_next ? std::optional(given.back()) : std::nullopt;
      continue;
    }
    if (word.size() > 1 && word.front() == '-' && word.find_first_of("0123456789.") != 1) throw unknown_option(word);
    if (before && are_as_of_a_pattern(before->value, word))
      throw UserError(
          format("'{}' follows {} '{}' (the shell expands a pattern without quotes to several words, and an option takes one); "
                 "put the pattern into quotes, or give '{}' before all options if it is an argument of its own",
                 word, before->typed, before->value, word));
    before.reset();
    take(word);
  }
  return given;
}

std::vector<OptionTable::Given> OptionTable::read_config(const std::string& path) {
  std::ifstream opened(path);
  if (!opened || std::filesystem::is_directory(path))
    throw UserError(format("cannot read --config '{}' ({}); give a file of lines 'name = value'", path,
                           std::filesystem::is_directory(path) ? "it is a folder" : "no such file, or no permission"));
  constexpr std::size_t longest = std::size_t{16} << 20;  // a device such as /dev/zero has no end
  std::string text(longest + 1, ' ');
  opened.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(opened.gcount()));
  if (opened.bad()) throw UserError(format("cannot read --config '{}' (reading stopped with an error); check the file", path));
  if (text.size() > longest)
    throw UserError(format("cannot read --config '{}' (it is longer than {}); check the path", path,
                           format_bytes(static_cast<double>(longest))));
  const auto refuse_elsewhere = [&](const auto& holds) {
    for (const auto& [marks, answer] : configs_elsewhere_)
      for (const std::string& mark : marks)
        if (holds(mark)) throw UserError(format("cannot read --config '{}' {}", path, answer));
  };
  text.erase(0, byte_order_mark(text));
  // Sections have no meaning in our files, and Boost accepts every line after a section's header. In files of other programs
  // they have a meaning, so look for the sections of other programs first.
  refuse_elsewhere(
      [&](const std::string& mark) { return mark[0] == '[' && ("\n" + text).find("\n" + mark) != std::string::npos; });
  try {
    return read_lines(path, text);
  } catch (const UserError&) {
    refuse_elsewhere([&](const std::string& mark) { return text.find(mark) != std::string::npos; });
    if (trimmed(text).starts_with('{'))
      throw UserError(format("cannot read --config '{}' (it is JSON); give a file of lines 'name = value'", path));
    throw;
  }
}

std::vector<OptionTable::Given> OptionTable::read_lines(const std::string& path, const std::string& text) {
  std::vector<Given> given;
  std::istringstream file(text);
  // Boost reads one line at a time, so that every error can name its line.
  const po::options_description nothing;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = format("{}:{}: ", path, number);
    std::istringstream one(line);
    std::vector<po::option> parsed;
    try {
      parsed = po::parse_config_file(one, nothing, true).options;
    } catch (const po::error&) {
      throw UserError(format("{}'{}' is not understood (no 'name = value'); correct this line", where, trimmed(line)));
    }
    for (const po::option& option : parsed) {
      std::string name = with_hyphens(option.string_key);
      if (name.starts_with("--")) name = name.substr(2);
      Option* row = find(name);
      if (row == nullptr) throw UserError(format("{}unknown option {}{}", where, name, unknown(name)));
      if (row->command_line_only_)
        throw UserError(format("{}{} cannot be in a file (it works only on the command line); remove this line", where, name));
      given.push_back({row, name, option.value.empty() ? "" : option.value.front(), where});
    }
  }
  return given;
}

void OptionTable::apply(const std::vector<Given>& all) {
  for (auto it = all.begin(); it != all.end(); ++it) {
    const Given& given = *it;
    Option& option = *given.option;
    const auto earlier = std::find_if(all.begin(), it, [&](const Given& other) { return other.option == &option; });
    const bool list_goes_on = option.list_ && given.positional && earlier != it && earlier->positional;
    if (option.texts_ && earlier == it) option.texts_->clear();
    if (earlier != it && !list_goes_on && !option.texts_) {
      if (given.positional != earlier->positional) {
        const auto& [word, named] = given.positional ? std::pair(given, *earlier) : std::pair(*earlier, given);
        throw UserError(
            format("{} is given twice (by {} '{}' and by the word '{}'; the shell expands a pattern without quotes to several "
                   "words); give it once, and put a pattern in quotes",
                   option.argument_, named.typed, named.value, word.value));
      }
      const bool same = earlier->typed == given.typed;
      throw UserError(format("{}{} is given twice ({}{}'{}' and '{}'); give it once", given.where, given.typed,
                             same ? "" : "also as " + earlier->typed + ": ", earlier->where, earlier->value, given.value));
    }
    given_.emplace_back(&option, given.positional || given.typed.starts_with("--") ? given.typed : "--" + given.typed);
    if (!option.set_) continue;  // a request such as --help, which parse() handles
    if (option.list_ && given.positional) {
      if (!list_goes_on) option.list_->clear();
      option.list_->push_back(given.value);
      continue;
    }
    try {
      option.set_(given.value);
    } catch (const UserError& why) {
      const std::string name = given.positional ? option.argument_ : given.typed;
      const bool several = given.value.find(',') != std::string::npos || given.value.starts_with('[');
      for (const auto& [known, answer] : elsewhere_)
        if (known == option.name_ + "=" + given.value || (several && known == option.name_ + "=N,N"))
          throw UserError(format("{}{} {} is not supported {}", given.where, name, given.value, answer));
      throw UserError(
          format("{}{} '{}' is not accepted ({}); give {}", given.where, name, given.value, why.what(), option.accepts_));
    }
  }
}

Request OptionTable::parse(int argc, const char* const* argv, std::vector<std::string>* problems) {
  for (const Option& row : rows_)
    for (const std::string& alias : row.aliases_) expect(find(alias) == &row, "an option is bound twice");
  const auto command_line = read_command_line(argc, argv);
  const auto asked = [&](std::string_view name) {
    return std::any_of(command_line.begin(), command_line.end(), [&](const Given& g) { return g.option->name_ == name; });
  };
  if (asked("help")) return Request::help;
  if (asked("help-markdown")) return Request::markdown;
  if (asked("version")) return Request::version;
  for (const Given& given : command_line)
    if (given.option->name_ == "config") apply(read_config(given.value));
  apply(command_line);
  const bool something_else = std::any_of(given_.begin(), given_.end(),
                                          [](const auto& one) { return one.first->set_ && one.first->command_line_only_; });
  if (!something_else)
    for (const auto& step : steps_) try {
        step(*this);
      } catch (const UserError& error) {
        if (!problems) throw;
        problems->emplace_back(error.what());
      }
  return asked("print-config") ? Request::print_config : Request::run;
}

bool OptionTable::given(std::string_view name) const { return !typed(name).empty(); }

std::string OptionTable::typed(std::string_view name) const {
  const Option* const option = find(name);
  expect(option != nullptr, "a row that is asked for is there");
  const auto last = std::find_if(given_.rbegin(), given_.rend(), [&](const auto& one) { return one.first == option; });
  return last == given_.rend() ? "" : last->second;
}

bool OptionTable::changed(std::string_view name) const {
  const Option* const option = find(name);
  expect(option != nullptr && option->print_, "a row that is asked for is there, and has a value");
  return option->print_() != option->default_;
}

void name_quantity(std::string& message, std::string_view quantity, std::string_view words) {
  const std::string quoted = format("`{}`", quantity);
  for (auto at = message.find(quoted); at != std::string::npos; at = message.find(quoted, at + words.size()))
    message.replace(at, quoted.size(), words);
}

std::string OptionTable::name_options(std::string_view message) const {
  std::string out(message);
  for (const Option& row : rows_)
    for (const auto& [quantity, words] : row.quantities_) name_quantity(out, quantity, words);
  return out;
}

std::string OptionTable::list_options(const std::function<bool(const Option&)>& shown, Detail detail) const {
  const std::size_t width = page_width();
  std::string out, title;
  for (const auto* rows : {&rows_, &help_rows_})
    for (const Option& row : *rows) {
      if (!shown(row)) continue;
      if (row.group_ != title) out += format("{}{}:\n", detail == Detail::brief ? "" : "\n", title = row.group_);
      std::string left = format("  {}--{}{}", row.positional_ ? row.argument_ + ", " : "", row.name_,
                                row.argument_.empty() ? "" : " " + row.argument_);
      for (std::size_t begin = 0; left.size() - begin > width;) {  // breaks a long list of choices
        const std::size_t bar = left.rfind('|', begin + width - 1);
        if (bar == left.npos || bar < begin) break;
        left.insert(bar + 1, "\n" + std::string(help_column, ' '));
        begin = bar + 2;
      }
      left +=
          left.size() + 2 > help_column ? "\n" + std::string(help_column, ' ') : std::string(help_column - left.size(), ' ');
      std::string right = detail == Detail::brief ? first_sentence(row.help_) : row.help_;
      if (std::string text = row.default_text(); !text.empty())
        if (text = format(" [{}]", text); detail != Detail::brief || help_column + right.size() + text.size() <= width)
          right += text;
      if (detail != Detail::brief)
        for (const std::string& alias : row.aliases_) right += format(" [also --{}]", alias);
      if (detail == Detail::with_values && !row.accepts_.empty()) right += format(" It takes {}.", row.accepts_);
      out += left + wrap(right, help_column, width) + "\n";
    }
  return out;
}

std::string OptionTable::help() const {
  const std::size_t width = page_width();
  const std::string topic = with_hyphens(small(topic_));
  if (!topic.empty() && topic != "all") {
    const std::string name = topic.substr(std::min(topic.find_first_not_of('-'), topic.size()));
    const Option* const option = find(name);
    std::string out = list_options(
        [&](const Option& row) { return topic == small(row.group_) || topic == small(row.group_) + "s"; }, Detail::full);
    if (out.empty()) out = list_options([&](const Option& row) { return &row == option; }, Detail::with_values);
    if (out.empty()) throw UserError(format("there is no help on '{}'{}", topic_, unknown(name, true)));
    return out.substr(1);
  }
  std::string out = "Usage: ";
  out += wrap(format("{} {}", program_, usage_), out.size(), width) + "\n" + wrap(summary_, 0, width) + "\n";
  if (!examples_.empty()) out += format("\nExamples:\n  {}\n", fmt::join(examples_, "\n  "));
  const std::string all = out + list_options([](const Option&) { return true; }, Detail::full);
  if (topic == "all" || std::count(all.begin(), all.end(), '\n') <= 60) return all;  // two screens
  out += format("\nThe options that most runs need{}:\n{}\n", shared_with_.empty() ? "" : ", besides those of " + shared_with_,
                list_options([](const Option& row) { return row.common_ && !row.shared_; }, Detail::brief));
  const std::string more = format(
      "See also: {0} --help SECTION for all options of a section ({1}, help), --help OPTION for one option, and --help all for "
      "all {2} options.",
      program_, small(format("{}", fmt::join(groups_, ", "))), rows_.size() + help_rows_.size());
  return out + wrap(more, 0, width) + "\n";
}

std::string OptionTable::markdown() const {
  std::string out = format("## {0}\n\n    {0} {1}\n\n{2}\n", program_, usage_, escaped_for_markdown(summary_));
  if (!examples_.empty()) out += format("\nExamples:\n\n    {}\n", fmt::join(examples_, "\n    "));
  if (!shared_with_.empty()) out += format("\nIt has the options of [{0}](#{0}), and these:\n", shared_with_);
  std::string title;
  for (const auto* rows : {&rows_, &help_rows_})
    for (const Option& row : *rows) {
      if (row.shared_) continue;
      if (row.group_ != title) out += format("\n**{}**\n\n| option | default | meaning |\n|---|---|---|\n", title = row.group_);
      std::string left = code_for_markdown(format("--{}{}", row.name_, row.argument_.empty() ? "" : " " + row.argument_));
      if (row.positional_) left = code_for_markdown(row.argument_) + " or " + left;
      for (const std::string& alias : row.aliases_) left += "<br>" + code_for_markdown("--" + alias);
      std::string value;
      if (row.print_ && !(row.flag_ && row.unset_meaning_.empty()) && !row.command_line_only_)
        value = !row.unset_meaning_.empty() ? escaped_for_markdown(row.unset_meaning_)
                : row.default_.empty()      ? ""
                                            : code_for_markdown(row.default_);
      out += format("| {} | {} | {} |\n", left, value, escaped_for_markdown(row.help_));
    }
  return out;
}

std::string OptionTable::config() const {
  std::string out = format("# The values of all options of {}. Read back with: {} --config FILE\n", program_, program_);
  std::string title;
  for (const Option& row : rows_) {
    if (row.command_line_only_ || row.of_this_start_) continue;
    if (row.group_ != title) out += format("\n# {}\n", title = row.group_);
    const std::string value = row.print_();
    if (!given(row.name_) && (row.follows_ || value != row.default_)) {
      out += format("# {} = {} (follows from other options)\n", row.name_, value);
    } else if (!given(row.name_) && row.is_unset()) {
      out += format("# {} = {}\n", row.name_, row.unset_meaning_.empty() ? "" : format("({})", row.unset_meaning_));
    } else {
      for (const std::string& text : row.texts_ ? *row.texts_ : std::vector{value})
        out += text.find_first_of("#\n") == text.npos
                   ? format("{} = {}\n", row.name_, text)
                   : format("# {}: give it on the command line ('#' and line breaks cannot be in this file)\n", row.name_);
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> OptionTable::values() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Option& row : rows_)
    if (!row.command_line_only_ && !row.of_this_start_ && !row.spelling_) out.emplace_back(row.name_, row.print_());
  return out;
}

}  // namespace fsdp
