// fsdp-inspect: shows the contents of a checkpoint, a consolidated file or a Hugging Face folder; or the differences between
// two of these; or the last operations of each rank of a run. It is one process without MPI.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "checkpoint/inspect.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "job/program.hpp"
#include "options/common_options.hpp"
#include "report/flight_report.hpp"

using namespace fsdp;

namespace {

struct Command {
  std::filesystem::path checkpoint, other, flight;
  std::string tensor;
  bool verify = false, no_verify = false, options = false, json = false;
};

OptionTable inspect_option_table(Command& o) {
  OptionTable table(
      "fsdp-inspect", "CHECKPOINT [OTHER] [options]",
      "Shows the contents of a checkpoint, its differences from another one, or what the ranks of a run did last. Also reads "
      "consolidated files and Hugging Face folders. Needs only a few tens of MB of memory for any size of model.");
  table.examples({"fsdp-inspect checkpoints --verify", "fsdp-inspect checkpoints/step-00000100 other/step-00000100",
                  "fsdp-inspect --flight checkpoints"});
  table.group("What");
  table
      .path("checkpoint", "CHECKPOINT", o.checkpoint,
            "A step folder, a save folder (then its latest complete step), a file made by fsdp-consolidate, or a Hugging Face "
            "folder.")
      .positional()
      .unset("required, except with --flight");
  table
      .path("other", "OTHER", o.other,
            "Compare CHECKPOINT with this one, which may have any of these forms and any number of ranks. The exit code is 1 "
            "if the two differ.")
      .positional()
      .unset("no comparison");
  table
      .path("flight", "DIR", o.flight,
            "Instead show what each rank did last in a run that did not end normally, and which rank the others waited for. "
            "DIR is the run's save folder, or the folder of flight records in it.")
      .unset("a checkpoint");
  table.group("How");
  table.flag("verify", o.verify,
             "Compare the checksum of every file of the checkpoint, and the norm of every tensor with its norm when it was "
             "saved; the first bad one is named.");
  add_no_verify_option(table, o.no_verify);
  table
      .text("tensor", "NAME", o.tensor,
            "Show only this tensor, with its optimizer states if they are stored, and which ranks hold which elements.")
      .unset("all");
  table.flag("options", o.options, "Show the options of the run that wrote the checkpoint.");
  table.flag("json", o.json, "Print one JSON object.");
  return table;
}

using Cells = std::vector<std::string>;

/// Returns true if several ranks wrote each file: parts() then has the numbers of files.
bool shares_files(const CheckpointReader& reader) { return reader.header().ranks != reader.header().world_size; }

std::vector<int> ranks_that_hold(const CheckpointReader& reader, const std::string& name) {
  std::vector<int> ranks;
  for (const auto& [range, rank] : reader.parts().of(name)) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/// The statistics of a tensor, and its norm at the time of the save if the checkpoint has it.
struct Examined {
  TensorSummary s;
  std::optional<double> saved;

  Examined(const TensorSource& source, const CheckpointReader* reader, const std::string& name,
           const std::string& state = parameters_state)
      : s(summarize(source, name, state)), saved(reader ? reader->norm(state, name) : std::nullopt) {}
  bool is_wrong() const { return saved && !s.has_norm(*saved); }
  nlohmann::json to_json() const {
    nlohmann::json json = {
        {"mean", s.mean}, {"norm", s.norm}, {"min", s.smallest}, {"max", s.largest}, {"non_finite", s.non_finite}};
    if (saved) json["saved_norm"] = *saved;
    return json;
  }
  /// A row that begins with these cells.
  Cells row(Cells first) const {
    std::string remark = s.non_finite == 0 ? "" : format("{} not finite", s.non_finite);
    if (is_wrong()) remark += format("{}norm was {:.6g}", remark.empty() ? "" : ", ", *saved);
    first.insert(first.end(), {format("{:.4g}", s.mean), format("{:.6g}", s.norm), format("{:.4g}", s.smallest),
                               format("{:.4g}", s.largest), remark});
    return first;
  }
};

/// Returns the exit code for a report in which the norms of `wrong` tensors differ from those stored in the checkpoint.
int exit_code_for(std::size_t wrong) {
  if (wrong == 0) return exit_code::done;
  print_to(stderr,
           "fsdp-inspect: {} tensor{} with another norm than when {} saved; restore the checkpoint from a copy, or use "
           "another step\n",
           wrong, wrong == 1 ? "" : "s", wrong == 1 ? "it was" : "they were");
  return exit_code::failed;
}

std::string describe_run(const CheckpointReader& reader) {
  const CheckpointHeader& h = reader.header();
  const std::string base = h.base ? format("adapters of rank {} for the base model {} with checksum {}\n",
                                           reader.config().lora.rank, one_line(h.base->path), checksum_text(h.base->sum))
                                  : "";
  std::string validations;
  if (const auto& valid = h.progress.validations)
    validations = format("validation loss {:.6g} at update {}; the smallest so far is {:.6g} at update {}\n", valid->loss,
                         valid->update, valid->best_loss, valid->best_update);
  std::vector<std::string> data;
  for (const auto& [name, bytes] : reader.user_data_sizes())
    data.push_back(format("{} ({})", name, format_bytes(static_cast<double>(bytes))));
  const std::string of_user =
      data.empty() ? "" : format("data of the program: {}\n", one_line(format("{}", fmt::join(data, ", "))));
  return format("{}\n{}update {}, {} tokens trained on; strategy {}{}; optimizer {}, states: {}\n{}{}written by fsdp {}\n",
                one_line(reader.description()), base, h.progress.update, h.progress.tokens, one_line(h.strategy),
                h.ranks == h.world_size ? format(", {} shards", h.shards) : "", one_line(h.optimizer),
                one_line(format("{}", fmt::join(reader.states(), ", "))), validations, of_user, one_line(h.version));
}

/// The entries of two models' configurations that differ: "rms_norm_eps: 1e-05 and 1e-06".
std::vector<std::string> config_differences(const TensorSource& a, const TensorSource& b) {
  const nlohmann::json of_a = a.model().to_json(), of_b = b.model().to_json();
  nlohmann::json all = of_a;
  all.update(of_b);
  std::vector<std::string> differences;
  const auto text = [](const nlohmann::json& config, const std::string& key) {
    return config.contains(key) ? json_excerpt(config[key]) : "nothing";
  };
  for (const auto& [key, value] : all.items())
    if (key != "parameters" && text(of_a, key) != text(of_b, key))
      differences.push_back(format("{}: {} and {}", key, text(of_a, key), text(of_b, key)));
  return differences;
}

int show_difference(const TensorSource& a, const TensorSource& b, const Command& command) {
  std::vector<TensorDifference> all;
  with_progress("comparing", [&](const ByteProgress& progress) { all = compare_tensors(a, b, progress); });
  std::vector<Cells> rows = {{"tensor", "elements that differ", "largest", "relative", ""}};
  nlohmann::json json = {{"a", a.description()}, {"b", b.description()}, {"tensors", nlohmann::json::array()}};
  std::size_t different = 0;
  for (const TensorDifference& d : all) {
    different += !d.same();
    json["tensors"].push_back(
        {{"name", d.name}, {"why", d.why}, {"elements", d.elements}, {"max", d.largest}, {"relative", d.relative}});
    if (!d.same())
      rows.push_back({excerpt(d.name), d.why.empty() ? format("{}", d.elements) : "",
                      d.why.empty() ? format("{:.3g}", d.largest) : "", d.why.empty() ? format("{:.3g}", d.relative) : "",
                      d.why});
  }
  json["different"] = different;
  json["config"] = config_differences(a, b);
  const int code = different == 0 ? exit_code::done : exit_code::failed;
  if (command.json) {
    print_raw(stdout, json_text(json) + "\n");
    return code;
  }
  print_to(stdout, "a: {}\nb: {}\n", a.description(), b.description());
  if (different == 0)
    print_to(stdout, "the parameters, {} tensors, are the same, bit for bit\n", all.size());
  else
    print_text(stdout, format("{}{} of {} parameter tensors differ\n", lay_out(rows, 2), different, all.size()));
  for (const nlohmann::json& difference : json["config"])
    print_to(stdout, "the configurations differ in {}\n", difference.get<std::string>());
  return code;
}

int show_tensor(const TensorSource& source, const CheckpointReader* reader, const Command& command) {
  const std::string& name = command.tensor;
  const Shape shape = source.shape(name);
  nlohmann::json json = {{"name", name}, {"shape", shape}};
  std::size_t wrong = 0;
  std::vector<Cells> rows = {{name + " " + to_string(shape), "mean", "norm", "min", "max", ""}};
  std::string holders;
  for (const std::string& state : source.states()) {
    if (!source.has_state(state, name)) continue;
    const Examined one(source, reader, name, state);
    json[state] = one.to_json();
    wrong += one.is_wrong();
    rows.push_back(one.row({state}));
  }
  if (reader) {
    for (const auto& [range, rank] : reader->parts().of(name)) {
      const char* const holder = shares_files(*reader) ? "file" : "rank";
      holders += format("{} {}: elements {} to {}\n", holder, rank, range.begin, range.end);
      json["holders"].push_back({{holder, rank}, {"begin", range.begin}, {"end", range.end}});
    }
  }
  print_raw(stdout, command.json ? json_text(json) + "\n" : lay_out(rows, 2) + holders);
  return exit_code_for(wrong);
}

int show_all(const TensorSource& source, const CheckpointReader* reader, const Command& command) {
  nlohmann::json json = {{"description", source.description()}, {"config", source.model().to_json()}};
  const bool is_shared = reader && shares_files(*reader);
  std::vector<Cells> rows = {{"tensor", "shape", "mean", "norm", "min", "max", "",
                              is_shared ? "files"
                              : reader  ? "ranks"
                                        : ""}};
  std::size_t elements = 0, non_finite = 0, wrong = 0, all = 0;
  double squares = 0;
  for (const std::string& name : source.names()) all += numel(source.shape(name));
  ProgressBar bar("reading", ProgressBar::Unit::bytes);
  bar.update(0, sizeof(float) * static_cast<double>(all));
  for (const std::string& name : source.names()) {
    const Examined one(source, reader, name);
    const Shape shape = source.shape(name);
    elements += numel(shape), non_finite += one.s.non_finite, squares += one.s.norm * one.s.norm;
    bar.update(sizeof(float) * static_cast<double>(elements), sizeof(float) * static_cast<double>(all));
    wrong += one.is_wrong();
    nlohmann::json entry = one.to_json();
    entry["name"] = name, entry["shape"] = shape;
    Cells row = one.row({excerpt(name), to_string(shape)});
    const std::vector<int> ranks = reader ? ranks_that_hold(*reader, name) : std::vector<int>();
    if (reader) entry[is_shared ? "files" : "ranks"] = ranks;
    row.push_back(ranks_text(ranks));
    rows.push_back(std::move(row));
    json["tensors"].push_back(std::move(entry));
  }
  bar.finish();
  json["parameters"] = elements, json["norm"] = std::sqrt(squares), json["non_finite"] = non_finite;
  json["states"] = source.states();
  if (reader) {
    const CheckpointHeader& h = reader->header();
    json["update"] = h.progress.update, json["tokens"] = h.progress.tokens, json["world_size"] = h.ranks;
    if (is_shared) json["files"] = h.world_size;
    json["strategy"] = h.strategy, json["optimizer"] = h.optimizer;
    json["version"] = h.version;
    if (h.base) json["base_model"] = {{"path", h.base->path}, {"xxh3", checksum_text(h.base->sum)}};
    for (const auto& [name, bytes] : reader->user_data_sizes()) json["user_data"][name] = bytes;
    if (const auto& valid = h.progress.validations)
      json["validation"] = {{"update", valid->update},
                            {"loss", valid->loss},
                            {"best_update", valid->best_update},
                            {"best_loss", valid->best_loss}};
  }
  if (command.json) {
    print_raw(stdout, json_text(json) + "\n");
    return exit_code_for(wrong);
  }
  const std::string states =
      source.states().size() > 1 ? format(", states: {}", fmt::join(source.states(), ", ")) : std::string();
  print_text(stdout, format("{}{}{} parameters in {} tensors, norm {:.6g}{}\n",
                            reader ? describe_run(*reader) : one_line(source.description() + states) + "\n", lay_out(rows, 2),
                            format_count(static_cast<double>(elements)), source.names().size(), std::sqrt(squares),
                            non_finite == 0 ? "" : format(", {} elements are not finite", non_finite)));
  return exit_code_for(wrong);
}

int show_flight(const Command& command) {
  if (!command.checkpoint.empty() || command.verify || command.options || !command.tensor.empty() || command.no_verify)
    throw UserError("--flight goes only with --json (it reads no checkpoint); leave out all other options and CHECKPOINT");
  const FlightFolder folder = read_flight_folder(command.flight);
  print_raw(stdout, command.json ? json_text(flight_to_json(folder)) + "\n" : clean_lines(describe_flight(folder)));
  return exit_code::done;
}

int run(const Command& command) {
  if (!command.flight.empty()) return show_flight(command);
  if (command.checkpoint.empty()) throw UserError("CHECKPOINT is missing (what to show); see fsdp-inspect --help");
  if (!command.other.empty() && (command.verify || command.options || !command.tensor.empty()))
    throw UserError(
        "OTHER does not go with --verify, --options or --tensor (a comparison uses none of them); leave out OTHER, or these "
        "options");

  if (command.verify && command.no_verify)
    throw UserError(
        "--verify and --no-verify contradict each other (one compares all checksums, the other none); leave out one of them");
  const auto open = [&](const std::filesystem::path& path) {
    std::vector<std::string> warnings;
    auto opened = open_tensor_source(path, &warnings, command.no_verify ? Verify::no : Verify::yes);
    print_warnings(warnings);
    return opened;
  };
  const auto source = open(command.checkpoint);
  const CheckpointReader* const reader = source->checkpoint();
  if (!command.other.empty()) return show_difference(*source, *open(command.other), command);
  if (!reader && (command.verify || command.options))
    throw UserError(
        command.verify
            ? format("--verify is only for checkpoints ({} is compared with its checksums, if it has any, in every run); leave "
                     "out --verify",
                     source->description())
            : format("{} has no options of a run (only checkpoints have them); leave out --options", source->description()));
  if (command.verify) {
    with_progress("checksums", [&](const ByteProgress& progress) { reader->verify(0, 1, progress); });
    std::size_t norms = 0;
    with_progress("norms", [&](const ByteProgress& progress) { norms = verify_norms(*reader, reader->states(), progress); });
    if (!command.json)
      print_to(stdout, "{}: {} files, all checksums as written; {}\n", reader->description(), reader->header().world_size + 1,
               norms == 0 ? "norms were not stored" : format("{} tensors, all norms as saved", norms));
  }
  if (command.options) {
    const auto options = parse_json(reader->header().options_json);
    if (command.json && !options.is_discarded())
      print_raw(stdout, json_text(options) + "\n");
    else
      print_text(stdout, (options.is_discarded() ? reader->header().options_json : json_text(options, 2)) + "\n");
    return exit_code::done;
  }
  if (!command.tensor.empty()) return show_tensor(*source, reader, command);
  return show_all(*source, reader, command);
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  OptionTable table = inspect_option_table(command);
  return run_program(argc, argv, table, [&] { return run(command); });
}
