#include "fsdp-doctor/pack.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <optional>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "files/scratch_folder.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "options/common_options.hpp"
#include "report/flight_report.hpp"
#include "report/run.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

// Parts of names of variables that are left out. KEY also leaves out harmless ones, which is better than the reverse.
constexpr std::array<std::string_view, 13> secret_words = {"KEY",    "TOKEN",   "SECRET", "PASS",   "PW",   "CRED",     "AUTH",
                                                           "COOKIE", "PRIVATE", "JWT",    "BEARER", "_SAS", "WANDB_API"};
// Parts of values, in small letters.
constexpr std::array<std::string_view, 8> secret_values = {
    "private key-----", "bearer ", "password=", "passwd=", "token=", "sig=", "hf_", "ghp_"};
constexpr std::size_t most_logs = 4, most_listed = 2000;
constexpr std::string_view cut_type = "left_out";  // the type of the line that replaces the middle of a long file

/// Returns where a line of a run's output begins to show its data ("data: NAME begins: ") or a sample ("sample 100: "); npos if
/// it shows none. Further lines of these texts begin with a space. A launcher may have put something before the line.
std::size_t find_text_of_data(std::string_view line) {
  const std::size_t data = line.find("data: "), sample = line.find("sample "), digits = sample + 7;
  if (data != line.npos && line.find(" begins: ", data) != line.npos) return data;
  if (sample == line.npos) return line.npos;
  const std::size_t end = line.find_first_not_of("0123456789", digits);
  return end != line.npos && end > digits && line.substr(end, 2) == ": " ? sample : line.npos;
}

/// Returns the number of the job in which a start line was written, which the name of the job's output has: "12", also of "PBS
/// job 12.server"; empty if there was no job.
std::string job_number(const nlohmann::json& start) {
  const std::string slurm = text_at(start, "slurm_job"), other = text_at(start, "batch_job");
  if (!slurm.empty()) return slurm;
  const std::string number = other.substr(other.rfind(' ') + 1);
  return number.substr(0, number.find_first_of(".["));
}

/// Returns the text that `make` makes, or why it cannot be made.
std::string text_or_problem(const std::function<std::string()>& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    return format("not available: {}\n", error.what());
  }
}

/// Returns the environment without secrets, and the names of the variables that were left out.
std::string environment_text() {
  std::vector<std::string> lines, secret;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (may_be_secret(name, text))
      secret.push_back(one_line(name));
    else
      lines.push_back(one_line(text));
  }
  std::sort(lines.begin(), lines.end());
  std::sort(secret.begin(), secret.end());
  return format("{}\n\nleft out, because they may hold secrets: {}\n", fmt::join(lines, "\n"),
                secret.empty() ? "none" : format("{}", fmt::join(secret, ", ")));
}

/// Lists the files of the run: size in bytes, and name.
std::string list_of_files(const fs::path& folder) {
  std::string text = format("files in {}, at most {}:\n", one_line(folder.string()), most_listed);
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    std::error_code gone;
    if (!entry.is_regular_file(gone)) continue;
    if (++files > most_listed) break;
    text += format("{:>14} {}\n", entry.file_size(gone), one_line(entry.path().lexically_relative(folder).string()));
  }
  return text;
}

/// Returns what the newest checkpoint says of its run.
nlohmann::json describe_checkpoint(const fs::path& folder) {
  const std::optional<fs::path> step = latest_checkpoint(folder);
  if (!step) throw UserError("there is no complete checkpoint");
  const auto reader = CheckpointReader::open(*step, Verify::no);
  const CheckpointHeader& h = reader->header();
  return {{"folder", step->string()},
          {"description", reader->description()},
          {"update", h.progress.update},
          {"tokens", h.progress.tokens},
          {"world_size", h.ranks},
          {"strategy", h.strategy},
          {"optimizer", h.optimizer},
          {"version", h.version},
          {"bytes", reader->file_bytes()},
          {"config", reader->model().to_json()},
          {"options", parse_json(h.options_json)}};
}

/// Returns the plan of the run, as `fsdp-plan --explain` prints it. Only options that differ from the defaults are given.
std::string plan_text(const nlohmann::json& options, std::uint64_t nodes, std::uint64_t ranks) {
  PlanTableOptions usual;
  OptionTable usual_table = plan_option_table(usual);
  const std::array<const char*, 2> any_model = {"fsdp-plan", "--arch=gpt2"};
  usual_table.parse(any_model.size(), any_model.data());
  nlohmann::json defaults = to_json(usual.train);
  defaults.erase("arch");
  std::vector<std::string> words = {"fsdp-plan", format("--nodes={}", nodes), format("--ranks-per-node={}", ranks / nodes)};
  for (const auto& [name, value] : options.items())
    if (!value.is_null() && !name.starts_with("fp16-") && (!defaults.contains(name) || defaults[name] != value))
      words.push_back(format("--{}={}", name, value.is_string() ? value.get<std::string>() : json_text(value)));
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  PlanTableOptions plan;
  OptionTable table = plan_option_table(plan);
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  const PlanTable made = make_plan_table(plan);
  return format("{}\n\n{}\n{}", fmt::join(words, " "), describe(made), explain(made));
}

}  // namespace

bool may_be_secret(std::string_view name, std::string_view value) {
  std::string capitals(name);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto is_in_name = [&](std::string_view word) { return capitals.find(word) != std::string::npos; };
  if (capitals != "PWD" && capitals != "OLDPWD" && std::any_of(secret_words.begin(), secret_words.end(), is_in_name))
    return true;
  std::string small(value);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::any_of(secret_values.begin(), secret_values.end(),
                  [&](std::string_view part) { return small.find(part) != small.npos; }))
    return true;
  const std::size_t url = value.find("://");  // http://user:password@host
  return url != value.npos && value.find('@', url) != value.npos;
}

std::string ends_of_file(const fs::path& path, std::size_t most) {
  const InputFile file(path);
  if (file.size() <= most) return file.beginning(most);
  std::string first = file.beginning(most / 2), last(most / 2, '\0');
  file.read(file.size() - last.size(), last.data(), last.size());
  first.resize(first.rfind('\n') + 1);  // 0 if there is no line end
  last.erase(0, last.find('\n') + 1);
  return format("{}{{\"type\":\"{}\",\"bytes\":{}}}\n{}", first, cut_type, file.size() - first.size() - last.size(), last);
}

std::string without_data(std::string_view lines) {
  std::string kept;
  std::optional<std::string> dropped;  // the beginning of further lines of a text that is being dropped
  while (!lines.empty()) {
    const std::string line(lines.substr(0, std::min(lines.find('\n'), lines.size() - 1) + 1));
    lines.remove_prefix(line.size());
    if (dropped && line.starts_with(*dropped)) continue;
    dropped.reset();
    if (line.starts_with('{')) {
      nlohmann::json json = parse_json(line);
      if (!json.is_object()) continue;  // cut off
      for (const char* const text : {"first_sequences", "prompt", "text"}) json.erase(text);
      if (const auto data = json.find("data"); data != json.end() && data->is_array())
        for (nlohmann::json& set : *data)
          if (set.is_object()) set.erase("first_row");
      kept += json_text(json) + "\n";
      if (text_at(json, "type") == cut_type) dropped = " ";
    } else if (const std::size_t text = find_text_of_data(line); text != line.npos) {
      dropped = line.substr(0, text) + " ";
      kept += line.substr(0, text) + "(left out)\n";
    } else {
      kept += line;
    }
  }
  return kept;
}

/// A file of the archive: its text, or the file that is copied.
struct Pack::Entry {
  std::string name, text;
  fs::path from = {};
};

Pack::Pack(const fs::path& run, fs::path out) : folder_(run), out_(std::move(out)) {
  try {
    for (const Run& read : read_runs(run)) {
      metrics_ = read.metrics, folder_ = read.folder, name_ = read.name;
      start_ = read.starts.back().line;
      for (const RunStart& start : read.starts)
        if (const std::string job = job_number(start.line); !job.empty() && (jobs_.empty() || jobs_.back() != job))
          jobs_.push_back(job);
    }
  } catch (const UserError&) {  // a run that was killed before its first line of metrics may have other files
    if (kind_of(run) != PathKind::folder || !(latest_checkpoint(run) || kind_of(flight_folder(run)) == PathKind::folder)) throw;
    name_ = fs::absolute(run).lexically_normal().filename().string();
  }
  if (out_.empty()) out_ = format("fsdp-pack-{}.tar.gz", one_line(name_.empty() ? "run" : name_));
  const std::string ending = out_.filename().string();
  if (!ending.ends_with(".tar.gz") && !ending.ends_with(".tgz"))
    throw UserError(
        format("the `archive` cannot be '{}' (the archive is made by tar and gzip); end its name with .tar.gz", out_.string()));
  std::error_code none;
  const fs::file_type there = fs::symlink_status(out_, none).type();
  if (there == fs::file_type::none)
    throw UserError(format("the `archive` cannot be '{}' ({}); give another name", out_.string(), none.message()));
  if (there != fs::file_type::not_found)
    throw UserError(format("'{}' already exists (nothing is replaced); name another `archive`", out_.string()));
  ScratchFolder(folder_of(out_), ".fsdp-pack");  // throws if nothing can be written there
}

std::vector<Pack::Entry> Pack::entries(const std::string& report) const {
  std::vector<Entry> all = {{"doctor.txt", report}};
  const auto add = [&](std::string name, const std::function<std::string()>& make) {
    all.push_back({std::move(name), text_or_problem(make)});
  };
  nlohmann::json checkpoint;
  add("checkpoint.json", [&] { return json_text(checkpoint = describe_checkpoint(folder_), 2) + "\n"; });
  const nlohmann::json& options = start_.contains("options") ? start_["options"] : checkpoint["options"];
  add("options.json", [&] { return json_text(options, 2) + "\n"; });
  add("plan.txt", [&] {
    const std::uint64_t nodes = std::max<std::uint64_t>(1, whole_number(number_at(start_, "nodes")));
    const nlohmann::json& run = start_.contains("world_size") ? start_ : checkpoint;
    return plan_text(options, nodes, whole_number(number_at(run, "world_size")));
  });
  add("versions.txt", [&] {
    return format("{}the run: fsdp {}\n", *answer(OptionTable("fsdp-doctor", "", ""), Request::version),
                  text_at(start_.contains("version") ? start_ : checkpoint, "version"));
  });
  add("environment.txt", environment_text);
  add("files.txt", [&] { return list_of_files(folder_); });
  if (!metrics_.empty()) add("metrics.jsonl", [&] { return without_data(ends_of_file(metrics_)); });

  // The output of the run's newest jobs, as Slurm, LSF (NAME-12.out) and PBS (NAME.o12) name it: in this folder, the run's and
  // the one above it.
  std::vector<std::string> logs;
  for (std::size_t i = jobs_.size() - std::min(jobs_.size(), most_logs); i < jobs_.size(); ++i)
    for (const fs::path& place : {fs::path("."), folder_, folder_of(folder_)}) {
      std::error_code unreadable;
      for (const auto& entry : fs::directory_iterator(place, unreadable)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(format("-{}.out", jobs_[i])) && !name.ends_with(format(".o{}", jobs_[i]))) continue;
        if (entry.is_symlink(unreadable)) continue;  // it may lead to any file of the user
        if (std::find(logs.begin(), logs.end(), name) != logs.end()) continue;
        logs.push_back(name);
        add(name, [&] { return without_data(ends_of_file(entry.path())); });
      }
    }

  std::size_t bytes = 0;
  for (const char* const records : {"flight", "flight.old"}) {
    const fs::path from = folder_ / records;
    if (kind_of(from) != PathKind::folder) continue;
    add(format("{}.txt", records), [&] { return describe_flight(read_flight_folder(from)); });
    for (const fs::path& record : flight_files(from))
      if (bytes += size_of_file(record).value_or(0); bytes <= most_of_flight)
        all.push_back({(fs::path(records) / record.filename()).string(), "", record});
  }
  return all;
}

std::string Pack::write(const std::string& report) const {
  std::string list;
  std::size_t files = 0;
  const std::string top = out_.filename().string().substr(0, out_.filename().string().rfind(".t"));
  try {
    const ScratchFolder scratch(folder_of(out_), ".fsdp-pack");
    const fs::path archive = scratch.path() / "archive";
    for (const Entry& entry : entries(report)) {
      const fs::path to = scratch.path() / top / entry.name;
      fs::create_directories(to.parent_path());
      if (entry.from.empty())
        write_text_file_durably(to, entry.text);
      else
        fs::copy_file(entry.from, to);
      list += format("{:>10}  {}\n", fs::file_size(to), one_line(entry.name));
      ++files;
    }
    const auto answer =
        ask_program({"tar", "--create", "--gzip", "--directory", scratch.path(), "--file", archive, "--", top}, 60);
    if (!answer || answer->exit_code != 0)
      throw RunError(format("tar could not make '{}' ({}); install tar and gzip, or make room", out_.string(),
                            answer ? one_line(answer->text) : "it did not start or end"));
    rename_durably(archive, out_);
  } catch (const CallError& error) {
    const std::string_view why = error.what();  // ends with " [place in the source]"
    throw RunError(
        format("cannot write '{}' ({}); name another `archive`, or make room", out_.string(), why.substr(0, why.rfind(" ["))));
  } catch (const fs::filesystem_error& error) {
    throw RunError(
        format("cannot write '{}' ({}); name another `archive`, or make room", out_.string(), error.code().message()));
  }
  return format(
      "{}: {} with {}\n     bytes  file\n{}"
      "Paths, names of hosts and users, and the output of jobs are in it: look at it before you send it (tar -xf).\n"
      "It has no data and no weights; environment.txt names the variables that were left out.\n",
      one_line(out_.string()), plural(files, "file"), format_bytes(static_cast<double>(fs::file_size(out_))), list);
}

}  // namespace fsdp
