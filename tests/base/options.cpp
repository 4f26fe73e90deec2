// The option table: reading command lines and configuration files, and the messages about errors in them.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <sstream>

#include "base/options.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

enum class Colour { red, green };

struct Fields {
  std::string data;
  std::size_t batch = 1, memory = 64, total = 0;
  int offset = 0;
  double rate = 0.5, every_s = 60;
  std::array<double, 2> betas = {0.9, 0.999};
  bool dry_run = false;
  Colour colour = Colour::red;
  std::filesystem::path folder = "checkpoints";
  std::vector<std::string> names;
};

OptionTable make_table(Fields& f) {
  OptionTable table("fsdp-x", "[DATA] [options]", "Trains a model.");
  table.group("Data");
  table.text("data", "DATA", f.data, "Token file.").positional();
  table.list("names", "NAMES", f.names, "Names.");
  table.group("Numbers");
  table.integer("batch-size", "B", f.batch, {1}, "Sequences.").alias("batch-size-per-device");
  table.integer("total-batch-size", "G", f.total, {1}, "All sequences.").unset("as it comes");
  table.integer("offset", "N", f.offset, {-5, 5}, "Offset.");
  table.size("memory", "SIZE", f.memory, "Memory.");
  table.number("rate", "R", f.rate, "Rate.", "0 or more", [](double x) { return x >= 0; });
  table.pair("adam-betas", "\"(B1,B2)\"", f.betas[0], f.betas[1], "Decay rates.", "from 0 to below 1",
             [](double x) { return x >= 0 && x < 1; });
  table.duration("every", "TIME", f.every_s, "Interval.");
  table.flag("dry-run", f.dry_run, "Do nothing.");
  table.choice<Colour>("colour", f.colour, {{"red", Colour::red}, {"RED", Colour::red}, {"green", Colour::green}}, "Colour.");
  table.path("save-dir", "DIR", f.folder, "Folder.");
  return table;
}

struct Parsed {
  Fields fields;
  Request request{};
};

Parsed parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "fsdp-x");
  Parsed result;
  auto table = make_table(result.fields);
  result.request = table.parse(static_cast<int>(arguments.size()), arguments.data());
  return result;
}

std::string error(std::vector<const char*> arguments) {
  return message_of([&] { parse(std::move(arguments)); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_kind_of_value_is_read) {
  const auto [f, request] =
      parse({"train.bin", "--batch-size=7", "--memory", "2GiB", "--rate", "1e-3", "--adam-betas", "(0.9, 0.98)", "--every",
             "30min", "--dry-run", "--colour", "green", "--save-dir", "out", "--names", "a, b,c", "--offset", "-3"});
  BOOST_CHECK(request == Request::run);
  BOOST_TEST(f.data == "train.bin");
  BOOST_TEST(f.batch == 7u);
  BOOST_TEST(f.memory == std::size_t{2} << 30);
  BOOST_TEST(f.rate == 1e-3);
  BOOST_TEST(f.betas[0] == 0.9);
  BOOST_TEST(f.betas[1] == 0.98);
  BOOST_TEST(f.every_s == 1800.0);
  BOOST_TEST(f.dry_run);
  BOOST_CHECK(f.colour == Colour::green);
  BOOST_TEST(f.folder == "out");
  BOOST_TEST(f.names == (std::vector<std::string>{"a", "b", "c"}), boost::test_tools::per_element());
  BOOST_TEST(f.offset == -3);
}

BOOST_AUTO_TEST_CASE(underscores_and_aliases_name_the_same_option) {
  BOOST_TEST(parse({"--batch_size", "3"}).fields.batch == 3u);
  BOOST_TEST(parse({"--batch_size_per-device=4"}).fields.batch == 4u);
  BOOST_TEST(parse({"--data", "with_underscore.bin"}).fields.data == "with_underscore.bin");
  BOOST_TEST(parse({"--data=a_b=c_d"}).fields.data == "a_b=c_d");
}

BOOST_AUTO_TEST_CASE(a_flag_takes_no_word_that_follows_it) {
  const auto f = parse({"--dry-run", "train.bin"}).fields;
  BOOST_TEST(f.dry_run);
  BOOST_TEST(f.data == "train.bin");
  BOOST_TEST(!parse({"--dry-run=false"}).fields.dry_run);
  CHECK_CONTAINS(error({"--dry-run", "True", "train.bin"}),
                 "--dry-run True is not understood (--dry-run itself means yes, and takes no separate word); give --dry-run");
  CHECK_CONTAINS(error({"--dry_run", "false"}), "give --dry-run=false, or leave it out");
}

BOOST_AUTO_TEST_CASE(a_positional_list_takes_all_that_is_left) {
  std::vector<std::string> texts;
  OptionTable table("t", "TEXT...", "");
  table.list("text", "TEXT", texts, "Texts.").positional();
  const char* argv[] = {"t", "a,b", "-", "--", "--c"};
  table.parse(5, argv);
  BOOST_TEST(texts == (std::vector<std::string>{"a,b", "-", "--c"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(unknown_options_are_named_with_the_nearest) {
  const auto near = error({"--batchsize", "3"});
  CHECK_CONTAINS(near, "unknown option --batchsize");
  CHECK_CONTAINS(near, "did you mean --batch-size?");
  const auto far = error({"--flux-capacitor=3"});
  CHECK_CONTAINS(far, "unknown option --flux-capacitor");
  BOOST_TEST(!contains(far, "did you mean"));
  CHECK_CONTAINS(error({"-b", "3"}), "unknown option -b");
  for (const char* word : {"--=3", "---", "-="}) CHECK_CONTAINS(error({word}), "unknown option -");
  // Prefixes of options are not accepted: their meaning would change when options are added.
  CHECK_CONTAINS(error({"--batch", "3"}), "unknown option --batch; see");
}

BOOST_AUTO_TEST_CASE(repeated_options_are_errors) {
  CHECK_CONTAINS(error({"--rate", "1", "--rate=2"}), "--rate is given twice ('1' and '2'); give it once");
  const auto aliased = error({"--batch-size", "1", "--batch-size-per-device", "2"});
  CHECK_CONTAINS(aliased, "--batch-size-per-device is given twice (also as --batch-size: '1' and '2')");
  CHECK_CONTAINS(error({"a.bin", "--data", "b.bin"}), "DATA is given twice (by --data 'b.bin' and by the word 'a.bin'");
  CHECK_CONTAINS(error({"a.bin", "b.bin"}), "unexpected argument 'b.bin' (DATA is 'a.bin', and no more arguments are expected");
}

/// The words of an unquoted pattern that the shell expanded are not silently read as other arguments.
BOOST_AUTO_TEST_CASE(a_pattern_without_quotes_is_refused) {
  const TemporaryFolder folder;
  for (const char* name : {"a.bin", "b.bin", "c.bin", "b.txt"}) write_file(folder / name, "");
  const std::string a = folder / "a.bin", b = folder / "b.bin", c = folder / "c.bin", text = folder / "b.txt";
  const std::string words = error({a.c_str(), b.c_str(), c.c_str()});
  CHECK_CONTAINS(words, "unexpected argument '" + b + "' (DATA is '" + a +
                            "', and no more arguments are expected; the shell expands a pattern without ");
  CHECK_CONTAINS(words, "put a pattern into quotes");
  CHECK_CONTAINS(error({"--data", a.c_str(), b.c_str()}),
                 "'" + b + "' follows --data '" + a + "' (the shell expands a pattern without ");
  const std::string other = error({"--save-dir", a.c_str(), b.c_str()});
  CHECK_CONTAINS(other, "'" + b + "' follows --save-dir '" + a + "'");
  CHECK_CONTAINS(other, "put the pattern into quotes, or give '" + b + "' before all options");
  // Words after an option's value are separate words.
  BOOST_TEST(parse({"--save-dir", b.c_str(), a.c_str()}).fields.data == a);
  BOOST_TEST(parse({"--save-dir", a.c_str(), text.c_str()}).fields.data == text);
  BOOST_TEST(parse({("--save-dir=" + a).c_str(), b.c_str()}).fields.data == b);
  BOOST_TEST(parse({b.c_str(), "--save-dir", a.c_str()}).fields.data == b);
}

BOOST_AUTO_TEST_CASE(bad_values_name_the_option_the_value_and_what_is_accepted) {
  CHECK_CONTAINS(error({"--batch-size", "3x"}),
                 "--batch-size '3x' is not accepted (not a whole number); give a whole number, 1 or more");
  CHECK_CONTAINS(error({"--batch-size", "0"}), "'0' is not accepted (out of range)");
  CHECK_CONTAINS(error({"--batch-size", "-4"}), "'-4' is not accepted (out of range)");
  CHECK_CONTAINS(error({"--batch-size", "99999999999999999999"}), "is not accepted");
  CHECK_CONTAINS(error({"--offset", "6"}), "from -5 to 5");
  CHECK_CONTAINS(error({"--rate", "-1"}), "a number, 0 or more");
  CHECK_CONTAINS(error({"--rate", "nan"}), "not a finite number");
  CHECK_CONTAINS(error({"--rate", "inf"}), "not a finite number");
  CHECK_CONTAINS(error({"--memory", "12 parsecs"}), "a size, such as");
  CHECK_CONTAINS(error({"--every", "soon"}), "a time, such as");
  CHECK_CONTAINS(error({"--colour", "blue"}), "give one of red, RED, green");
  CHECK_CONTAINS(error({"--adam-betas", "0.9"}), "1 instead of 2 numbers");
  CHECK_CONTAINS(error({"--adam-betas", "(0.9,0.98"}), "the bracket is not closed");
  CHECK_CONTAINS(error({"--adam-betas", "(0.9,1.0)"}), "each from 0 to below 1");
  CHECK_CONTAINS(error({"--dry-run=perhaps"}), "true or false");
  CHECK_CONTAINS(error({"--rate"}), "--rate has no value");
  CHECK_CONTAINS(error({"--rate", "--dry-run"}), "--rate has no value");
  CHECK_CONTAINS(error({"--save-dir="}), "--save-dir");
}

BOOST_AUTO_TEST_CASE(a_file_is_read_and_the_command_line_wins) {
  const TemporaryFolder folder;
  const std::string file = (folder / "run.ini").string();
  write_file(file,
             "# a comment\n[decoration]\ndata = train.bin\n batch_size=5   # five\n\nrate = 0.25\ndry-run = true\nadam-betas = "
             "(0.8,0.9)\n");
  const auto f = parse({"--rate", "0.75", "--config", file.c_str(), "--dry-run=no"}).fields;
  BOOST_TEST(f.data == "train.bin");
  BOOST_TEST(f.batch == 5u);
  BOOST_TEST(f.rate == 0.75);
  BOOST_TEST(!f.dry_run);
  BOOST_TEST(f.betas[0] == 0.8);
}

BOOST_AUTO_TEST_CASE(mistakes_in_a_file_name_file_and_line) {
  const TemporaryFolder folder;
  const std::string file = (folder / "run.ini").string();
  const auto with = [&](const std::string& text) {
    write_file(file, text);
    return error({"--config", file.c_str()});
  };
  CHECK_CONTAINS(with("# x\nbatchsize = 3\n"), file + ":2: unknown option batchsize");
  CHECK_CONTAINS(with("batchsize = 3\n"), "did you mean --batch-size?");
  CHECK_CONTAINS(with("rate = 1\n\nrate = 2\n"), file + ":3: rate is given twice (" + file + ":1: '1' and '2')");
  CHECK_CONTAINS(with("batch-size=1\nbatch-size-per-device=2\n"), "is given twice (also as batch-size");
  CHECK_CONTAINS(with("rate = fast\n"), file + ":1: rate 'fast' is not accepted");
  CHECK_CONTAINS(with("hello\n"), file + ":1: 'hello' is not understood");
  CHECK_CONTAINS(with("config = other.ini\n"), "only on the command line");
  CHECK_CONTAINS(error({"--config", (folder / "missing.ini").c_str()}), "missing.ini' (no such file");
  CHECK_CONTAINS(error({"--config", folder.path().c_str()}), "it is a folder");
}

BOOST_AUTO_TEST_CASE(the_printed_configuration_reads_back_as_the_same) {
  const TemporaryFolder folder;
  const std::string first = (folder / "a.ini").string();
  Fields f;
  auto table = make_table(f);
  const char* argv[] = {"fsdp-x",  "d.bin", "--rate",   "0.1", "--adam-betas",  "0.3,0.70000000000000007",
                        "--every", "90min", "--colour", "RED", "--print-config"};
  BOOST_CHECK(table.parse(static_cast<int>(std::size(argv)), argv) == Request::print_config);
  write_file(first, table.config());
  CHECK_CONTAINS(table.config(), "\n# total-batch-size = (as it comes)\n");

  Fields again;
  auto second = make_table(again);
  const char* from_file[] = {"fsdp-x", "--config", first.c_str()};
  second.parse(3, from_file);
  BOOST_TEST(second.config() == table.config());
  BOOST_TEST(again.rate == f.rate);
  BOOST_TEST(again.betas[1] == f.betas[1]);
  BOOST_TEST(again.every_s == 5400.0);
}

BOOST_AUTO_TEST_CASE(a_value_that_the_file_cannot_hold_is_not_printed_as_one) {
  Fields f;
  auto table = make_table(f);
  const char* argv[] = {"fsdp-x", "--data", "a#b.bin"};
  table.parse(3, argv);
  BOOST_TEST(!contains(table.config(), "\ndata ="));
  CHECK_CONTAINS(table.config(), "# data: give it on the command line");
}

BOOST_AUTO_TEST_CASE(requests_come_before_everything_else) {
  BOOST_CHECK(parse({"--help", "--rate", "bad"}).request == Request::help);
  BOOST_CHECK(parse({"-h"}).request == Request::help);
  BOOST_CHECK(parse({"--version"}).request == Request::version);
  BOOST_CHECK(parse({"--help-markdown"}).request == Request::markdown);
  BOOST_TEST(!parse({"--version", "--dry-run"}).fields.dry_run);
}

BOOST_AUTO_TEST_CASE(given_tells_defaults_from_choices) {
  Fields f;
  auto table = make_table(f);
  const char* argv[] = {"fsdp-x", "--batch-size-per-device", "1"};
  table.parse(3, argv);
  BOOST_TEST(table.given("batch-size"));
  BOOST_TEST(!table.given("rate"));
}

BOOST_AUTO_TEST_CASE(help_names_everything_and_fits_the_page) {
  Fields f;
  const auto table = make_table(f);
  const std::string help = table.help();
  for (const auto& [name, value] : table.values()) CHECK_CONTAINS(help, "--" + name);
  CHECK_CONTAINS(help, "Usage: fsdp-x [DATA] [options]");
  CHECK_CONTAINS(help, "  DATA, --data DATA");
  CHECK_CONTAINS(help, "[default: as it comes]");
  CHECK_CONTAINS(help, "[default: (0.9,0.999)]");
  CHECK_CONTAINS(help, "--colour red|green ");
  CHECK_CONTAINS(help, "[also --batch-size-per-device]");
  CHECK_CONTAINS(help, "\nNumbers:\n");
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) BOOST_TEST(line.size() <= 100u, line);
  const auto longest_line = [&](const char* columns) {
    setenv("COLUMNS", columns, 1);
    std::istringstream page(table.help());
    std::size_t longest = 0;
    for (std::string line; std::getline(page, line);) longest = std::max(longest, line.size());
    unsetenv("COLUMNS");
    return longest;
  };
  BOOST_TEST((longest_line("90") > 80u && longest_line("90") <= 90u));
  BOOST_TEST((longest_line("70") > 70u && longest_line("70") <= 80u));  // a page has 80 to 120 columns
  BOOST_TEST((longest_line("999") > 110u && longest_line("999") <= 120u));
  CHECK_CONTAINS(table.markdown(), "| `--colour red\\|green` | `red` | Colour. |");
}

BOOST_AUTO_TEST_CASE(a_long_help_has_pages) {
  std::vector<std::size_t> fields(60, 1);
  const auto help = [&](std::vector<const char*> words) {
    OptionTable table("fsdp-x", "[options]", "Trains a model.");
    table.examples({"fsdp-x --size-0 3"});
    table.elsewhere("seed-size", "(there is no seed); leave it out");
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (i % 30 == 0) table.group(i == 0 ? "Data" : "Model");
      Option& row = table.integer(format("size-{}", i), "N", fields[i], {1, 9}, "A size. And more; and more.");
      row.alias(format("s-{}", i));
      if (i == 0) row.common();
    }
    words.insert(words.begin(), "fsdp-x");
    BOOST_CHECK(table.parse(static_cast<int>(words.size()), words.data()) == Request::help);
    return table.help();
  };
  const std::string first = help({"--help"});
  CHECK_CONTAINS(first, "Usage: fsdp-x [options]\nTrains a model.\n\nExamples:\n  fsdp-x --size-0 3\n");
  CHECK_CONTAINS(first, "\nData:\n  --size-0 N                      A size. [default: 1]\nHelp:\n  --config FILE ");
  CHECK_CONTAINS(first, "(data, model, help)");
  CHECK_CONTAINS(first, "for all 65 options.");
  const std::string all = help({"--size-3", "bad", "-h", "ALL", "--unknown"});
  CHECK_CONTAINS(all, "Examples:");
  for (std::size_t i = 0; i < fields.size(); ++i) CHECK_CONTAINS(all, format("  --size-{} N ", i));
  const std::string model = help({"--help", "models"});
  BOOST_TEST(model.starts_with("Model:\n  --size-30 N "));
  BOOST_TEST((contains(model, "--size-59 N") && !contains(model, "--size-29") && !contains(model, "Usage")));
  BOOST_TEST(help({"--help=Model"}) == model);
  const std::string one =
      "Data:\n  --size-7 N                      A size. And more; and more. [default: 1] [also --s-7] It takes a\n";
  for (const char* name : {"--size-7", "size_7", "S-7"}) BOOST_TEST(help({"--help", name}).starts_with(one));
  const auto error = [&](const char* word) { return message_of([&] { help({"--help", word}); }); };
  BOOST_TEST(error("modle") == "there is no help on 'modle'; did you mean model? See fsdp-x --help model");
  CHECK_CONTAINS(error("--sise-7"), "there is no help on '--sise-7'; did you mean size-7?");
  CHECK_CONTAINS(error("--data"), "there is no help on '--data'; did you mean data?");
  CHECK_CONTAINS(error("--seed_size"), "there is no help on '--seed_size' (there is no seed); leave it out");
  CHECK_CONTAINS(error("flux-capacitor"), "'flux-capacitor'; see fsdp-x --help");
}

BOOST_AUTO_TEST_CASE(a_long_list_of_choices_fits_the_page) {
  int chosen = 0;
  std::vector<std::pair<std::string, int>> names;
  for (int i = 10; i < 22; ++i) names.emplace_back(format("choice-{}", i), i);
  OptionTable table("fsdp-x", "[options]", "For a test.");
  table.group("Choices");
  table.choice("which", chosen, names, "One of them.");
  std::istringstream lines(table.help());
  for (std::string line; std::getline(lines, line);) BOOST_TEST(line.size() <= 100u, line);
  CHECK_CONTAINS(table.help(), "|choice-18|\n                                  choice-19|choice-20|choice-21\n");
}

namespace {

/// A table with derived fields and other spellings.
struct Derived {
  std::size_t batch = 2, total = 0;
  double eps = 1e-8;
  std::optional<std::size_t> width;
  std::optional<double> threshold;
  std::vector<std::pair<std::string, double>> scales;
  std::string strategy = "full";
  bool zero2 = false, list = false;
};

OptionTable derived_table(Derived& f) {
  OptionTable table("fsdp-x", "[options]", "Trains a model.");
  table.integer("batch-size", "B", f.batch, {1}, "Sequences.").alias("block").sets("micro-batch");
  table.integer("total", "G", f.total, {1}, "All sequences.").follows("4 x B");
  table.integer("width", "C", f.width, {1, 100}, "Width.").unset("as it is").sets("width");
  table.number("threshold", "X", f.threshold, "Threshold.", "0 or more", [](double x) { return x >= 0; }).unset("none");
  table.numbers_by_name("scale", "NAME=X,...", f.scales, "Scales.", "NAME=X of 0 or more", [](double x) { return x >= 0; });
  table.choice<std::string>("strategy", f.strategy, {{"full", "full"}, {"half", "half"}}, "Strategy.")
      .sets("sharding in halves", "--strategy half");
  table.flag("zero2", f.zero2, "Spelling of half.").spelling();
  table.flag("list", f.list, "List.").command_line_only();
  table.then([&f](const OptionTable& read) {
    if (f.zero2) f.strategy = "half";
    if (!read.given("total")) f.total = 4 * f.batch;
  });
  table.then([&f](const OptionTable& read) {
    if (f.total % f.batch != 0) throw UserError("total is not a multiple of " + read.typed("batch-size"));
  });
  return table;
}

std::string config_of(std::vector<const char*> arguments, Derived& f) {
  arguments.insert(arguments.begin(), "fsdp-x");
  OptionTable table = derived_table(f);
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  return table.config();
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_follows_is_settled_once_all_is_read) {
  Derived f;
  const std::string config = config_of({"--zero2", "--batch-size", "3"}, f);
  BOOST_TEST(f.total == 12u);
  BOOST_TEST(f.strategy == "half");
  CHECK_CONTAINS(config, "\n# total = 12 (follows from other options)\n");
  CHECK_CONTAINS(config, "\n# strategy = half (follows from other options)\n");
  CHECK_CONTAINS(config, "\nzero2 = true\n");
  CHECK_CONTAINS(config, "\n# width = (as it is)\n");
  // The configuration has a value once, for any spelling; and a derived default is printed even if it is the field's own.
  OptionTable table = derived_table(f);
  for (const auto& [name, value] : table.values()) BOOST_TEST(name != "zero2");
  Derived given;
  CHECK_CONTAINS(config_of({"--total", "8"}, given), "\ntotal = 8\n");
  // Derived steps are only for runs: with --help, errors in other options do not matter.
  Derived wrong;
  CHECK_CONTAINS(message_of([&] { config_of({"--total", "7", "--block", "2"}, wrong); }), "not a multiple of --block");
  BOOST_CHECK_NO_THROW(config_of({"--total", "7", "--list"}, wrong));
  // A caller may want the errors of all steps.
  Derived several;
  OptionTable steps = derived_table(several);
  steps.then([](const OptionTable&) { throw UserError("another mistake"); });
  const char* const words[] = {"fsdp-x", "--total", "7"};
  std::vector<std::string> problems;
  BOOST_CHECK(steps.parse(3, words, &problems) == Request::run);
  BOOST_TEST(problems == (std::vector<std::string>{"total is not a multiple of ", "another mistake"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_option_of_this_start_is_read_but_is_not_in_the_configuration) {
  Derived f;
  OptionTable table = derived_table(f);
  bool tries = false;
  table.flag("try", tries, "Try it.").of_this_start();
  const char* const words[] = {"fsdp-x", "--try"};
  table.parse(2, words);
  BOOST_TEST(tries);
  BOOST_TEST(f.total == 8u);  // the steps have run
  BOOST_TEST(table.config().find("try") == std::string::npos);
  for (const auto& [name, value] : table.values()) BOOST_TEST(name != "try");
}

BOOST_AUTO_TEST_CASE(fields_that_may_be_empty_and_numbers_by_name) {
  Derived f;
  const std::string config = config_of({"--width", "7", "--threshold", "0", "--scale", "a.*=0.5, b=2e3"}, f);
  BOOST_TEST(f.width.value() == 7u);
  BOOST_TEST(f.threshold.value() == 0);
  BOOST_TEST(f.scales.size() == 2u);
  BOOST_TEST((f.scales[0].first == "a.*" && f.scales[0].second == 0.5 && f.scales[1].second == 2000));
  CHECK_CONTAINS(config, "\nscale = a.*=0.5,b=2000\n");
  Derived none;
  config_of({}, none);
  BOOST_TEST((!none.width && !none.threshold && none.scales.empty()));
  for (const char* bad : {"a", "=1", "a=", "a=-1", "a=x", "a=1,,b=2", "a=nan"})
    CHECK_CONTAINS(message_of([&] { config_of({"--scale", bad}, f); }), "is not accepted");
  CHECK_CONTAINS(message_of([&] { config_of({"--width", "101"}, f); }), "from 1 to 100");
}

BOOST_AUTO_TEST_CASE(messages_name_the_options_that_set_quantities) {
  Derived f;
  const OptionTable table = derived_table(f);
  BOOST_TEST(table.name_options("a smaller `micro-batch`, `sharding in halves` or `width`; no `micro-batch` at all") ==
             "a smaller --batch-size, --strategy half or --width; no --batch-size at all");
  BOOST_TEST(table.name_options("`length` is unknown, micro-batch not quoted, ` open") ==
             "`length` is unknown, micro-batch not quoted, ` open");
}
