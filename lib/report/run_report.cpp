#include "report/run_report.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "report/flight_report.hpp"

namespace fsdp {

namespace {

/// Larger traces are not read: the page must be made in seconds, because a run that is told to stop makes it, too.
constexpr std::uintmax_t most_of_trace = std::uintmax_t{64} << 20;

/// The trace of the run: next to its metrics or in its folder, or where it was written; empty: not here.
std::filesystem::path find_trace_file(const Run& run) {
  const std::string named = text_at(run.options(), "trace");
  if (named.empty()) return {};
  const std::filesystem::path name = std::filesystem::path(named).filename(), next_to = run.metrics.parent_path();
  for (const std::filesystem::path& path : {next_to / name, run.folder / name, run.folder.parent_path() / name,
                                            std::filesystem::path(text_at(run.starts.back().line, "trace"))})
    if (!path.empty() && kind_of(path) == PathKind::file) return path;
  return {};
}

std::optional<Trace> find_trace(Run& run) {
  const auto left_out = [&](std::string_view why) { run.notes.push_back(format("its trace is left out: {}", why)); };
  try {
    const std::filesystem::path path = find_trace_file(run);
    if (path.empty()) return {};
    if (std::filesystem::file_size(path) > most_of_trace) {
      left_out(format("'{}' is larger than {}; draw it with fsdp-report --figure timeline", path.string(),
                      format_bytes(static_cast<double>(most_of_trace))));
      return {};
    }
    Trace trace = read_trace(path);
    if (trace.save_folder.empty() || trace.save_folder == run.save_folder) return trace;
    left_out(format("'{}' is of the run in '{}'", path.string(), trace.save_folder));
  } catch (const std::exception& error) {
    const std::string_view why = error.what();
    left_out(why.substr(0, why.rfind(';')));  // the advice that follows is for those who draw a trace
  }
  return {};
}

std::string find_flight(Run& run) {
  if (run.is_running) return {};  // the records of its ranks tell of no end
  try {
    if (kind_of(run.folder / "flight") != PathKind::folder && kind_of(run.folder / "flight.old") != PathKind::folder) return {};
    const FlightFolder records = read_flight_folder(run.folder);
    const bool is_old = records.path.filename() == "flight.old";
    return (is_old ? "An earlier start did not end normally. Its records:\n" : "") + describe_flight(records);
  } catch (const std::exception& error) {
    run.notes.push_back(format("its flight records are left out: {}", error.what()));
    return {};
  }
}

/// A cell of a table in CSV. A spreadsheet takes text that begins with one of "=+-@" for a formula, unless "'" precedes it.
std::string cell(const std::string& given) {
  const std::string shown = one_line(given), text = shown.find_first_of("=+-@") == 0 ? "'" + shown : shown;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}
std::string cell(double value) { return std::isfinite(value) ? format("{}", value) : ""; }

}  // namespace

std::vector<Run> read_named_runs(const std::vector<std::filesystem::path>& paths) {
  std::vector<Run> runs;
  for (const std::filesystem::path& path : paths)
    for (Run& run : read_runs(path)) runs.push_back(std::move(run));
  const auto count = [&] {
    std::map<std::string, int> times;
    for (const Run& run : runs) ++times[run.name];
    return times;
  };
  auto times = count();
  for (Run& run : runs) {  // the folder above, as in a/checkpoints and b/checkpoints
    const std::filesystem::path saves = run.save_folder, &place = saves.filename() == run.name ? saves : run.folder;
    if (times[run.name] > 1) run.name = place.parent_path().filename().string() + "/" + run.name;
  }
  times = count();
  std::map<std::string, int> numbers;
  for (Run& run : runs)
    if (times[run.name] > 1) run.name += format(" ({})", ++numbers[run.name]);
  return runs;
}

std::vector<Run> with_parts(std::vector<Run> runs) {
  for (Run& run : runs) {
    run.trace = find_trace(run);
    run.flight = find_flight(run);
  }
  return runs;
}

std::vector<std::filesystem::path> inputs_of(const std::vector<Run>& runs) {
  std::vector<std::filesystem::path> inputs;
  for (const Run& run : runs) {
    inputs.push_back(run.metrics);
    try {
      if (std::filesystem::path trace = find_trace_file(run); !trace.empty()) inputs.push_back(std::move(trace));
    } catch (const std::exception&) {  // a folder that cannot be entered; the page notes it
    }
  }
  return inputs;
}

void require_no_input(const std::filesystem::path& out, const std::vector<std::filesystem::path>& inputs) {
  std::error_code missing;
  for (const std::filesystem::path& input : inputs)
    if (!out.empty() && std::filesystem::equivalent(out, input, missing))
      throw UserError(format("'{}' would be written over (it is read, too); name another file", out.string()));
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  try {
    const auto put = [&](std::FILE* file) {
      return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
    };
    const PathKind kind = kind_of(path);
    require_no_foreign_link(path);
    const bool is_link = std::filesystem::is_symlink(path);  // such as /dev/stdout, which must not be replaced
    if (!is_link && (kind == PathKind::missing || kind == PathKind::file)) return write_text_file_durably(path, text);
    struct stat there {
    }, out{};
    if (::stat(path.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &out) == 0 && there.st_dev == out.st_dev &&
        there.st_ino == out.st_ino)
      return check_errno(put(stdout), "write " + path.string());
    // Without O_NONBLOCK, a pipe that nobody reads would wait for ever.
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    check_errno(fd >= 0, "open " + path.string());
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    std::FILE* const file = ::fdopen(fd, "w");
    if (!file) ::close(fd);
    check_errno(file != nullptr, "open " + path.string());
    const bool written = put(file);
    const int error = errno;
    const bool closed = std::fclose(file) == 0;
    if (!written) errno = error;
    check_errno(written && closed, "write " + path.string());
  } catch (const CallError& error) {
    std::string why = error.what();
    if (const std::size_t place = why.rfind(" ["); why.ends_with(']') && place != why.npos) why.resize(place);  // in the source
    for (const int of_the_disk : {ENOSPC, EDQUOT, EIO})
      if (why.find(std::strerror(of_the_disk)) != why.npos)
        throw RunError(format("cannot write '{}' ({}); name another file, or make room", path.string(), why));
    throw UserError(format("cannot write '{}' ({}); name another file", path.string(), why));
  }
}

void write_page(const std::vector<Run>& runs, const std::filesystem::path& path) { write_text(path, make_page(runs)); }

std::string to_csv(const std::vector<Run>& runs) {
  std::string out = "run,type,step";
  for (const UpdateField& field : update_fields) out += format(",{}", field.name);
  out += "\n";
  for (const Run& run : runs) {
    const Updates& u = run.updates;
    std::size_t valid = 0;
    const auto validations = [&](double until) {
      for (; valid < run.valid_step.size() && run.valid_step[valid] <= until; ++valid)
        out += format("{},valid,{},{},{},{},{}{}\n", cell(run.name), cell(run.valid_step[valid]), cell(run.valid_tokens[valid]),
                      cell(run.valid_loss[valid]), cell(run.valid_accuracy[valid]), cell(run.valid_entropy[valid]),
                      std::string(update_fields.size() - 4, ','));
    };
    for (std::size_t i = 0; i < u.size(); ++i) {
      validations(u.step[i] - 1);
      out += format("{},train,{}", cell(run.name), cell(u.step[i]));
      for (const UpdateField& field : update_fields) out += "," + cell((u.*field.column)[i]);
      out += "\n";
    }
    validations(INFINITY);
  }
  return out;
}

}  // namespace fsdp
