#include "report/run_report.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "files/input_file.hpp"
#include "report/flight_report.hpp"

namespace fsdp {

namespace {

/// A file that the options name, as they name it or next to the metrics; empty: not here.
std::filesystem::path find_file(const Run& run, const std::string& name) {
  if (name.empty()) return {};
  for (const std::filesystem::path& path :
       {std::filesystem::path(name), run.metrics.parent_path() / name, run.metrics.parent_path().parent_path() / name})
    if (kind_of(path) == PathKind::file) return path;
  return {};
}

std::optional<Trace> find_trace(Run& run) {
  const nlohmann::json options = run.options();
  if (!options.is_object() || !options.contains("trace") || !options["trace"].is_string()) return {};
  const std::filesystem::path path = find_file(run, options["trace"]);
  if (path.empty()) return {};
  try {
    Trace trace = read_trace(path);
    if (!trace.updates.empty()) return trace;
  } catch (const std::exception& error) {
    run.notes.push_back(format("its trace is left out: {}", error.what()));
  }
  return {};
}

std::string find_flight(Run& run) {
  const std::filesystem::path folder =
      kind_of(run.save_folder) == PathKind::folder ? std::filesystem::path(run.save_folder) : run.metrics.parent_path();
  if (kind_of(folder / "flight") != PathKind::folder && kind_of(folder / "flight.old") != PathKind::folder) return {};
  try {
    return describe_flight(read_flight_folder(folder));
  } catch (const std::exception& error) {
    run.notes.push_back(format("its flight records are left out: {}", error.what()));
    return {};
  }
}

/// A cell of a table in CSV.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}
std::string cell(double value) { return std::isfinite(value) ? format("{}", value) : ""; }

}  // namespace

FoundRuns find_runs(const std::vector<std::filesystem::path>& paths) {
  FoundRuns found;
  for (const std::filesystem::path& path : paths)
    for (Run& run : read_runs(path)) {
      found.parts.traces.push_back(find_trace(run));
      found.parts.flights.push_back(find_flight(run));
      found.runs.push_back(std::move(run));
    }
  std::map<std::string, int> times;
  for (const Run& run : found.runs) ++times[run.name];
  for (Run& run : found.runs)
    if (times[run.name] > 1) run.name = run.save_folder.empty() ? run.metrics.string() : run.save_folder;
  return found;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = path.string() + format(".tmp-{}", ::getpid());
  std::FILE* const file = std::fopen(temporary.c_str(), "wxe");
  const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int error = errno;
  if (file) std::fclose(file);
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(written ? errno : error);
    if (file) std::remove(temporary.c_str());
    throw UserError(format("cannot write '{}' ({}); name another file", path.string(), why));
  }
}

void write_page(const FoundRuns& found, const std::filesystem::path& path) {
  write_text(path, make_page(found.runs, found.parts, version_string()));
}

std::string to_csv(const std::vector<Run>& runs) {
  std::string out =
      "run,type,step,tokens,loss,max_loss,lr,gnorm,loss_scale,wps,positions_per_second,ms,mfu,comm_exposed_ms,data_wait_ms,"
      "mem_peak_bytes\n";
  for (const Run& run : runs) {
    const Updates& u = run.updates;
    std::size_t valid = 0;
    const auto validations = [&](double until) {
      for (; valid < run.valid_step.size() && run.valid_step[valid] <= until; ++valid)
        out += format("{},valid,{},{},{},,,,,,,,,,,\n", cell(run.name), cell(run.valid_step[valid]),
                      cell(run.valid_tokens[valid]), cell(run.valid_loss[valid]));
    };
    for (std::size_t i = 0; i < u.size(); ++i) {
      validations(u.step[i] - 1);
      out += format("{},train,{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", cell(run.name), cell(u.step[i]), cell(u.tokens[i]),
                    cell(u.loss[i]), cell(u.largest_loss[i]), cell(u.learning_rate[i]), cell(u.gradient_norm[i]),
                    cell(u.loss_scale[i]), cell(u.tokens_per_second[i]), cell(u.positions_per_second[i]), cell(u.ms[i]),
                    cell(u.mfu[i]), cell(u.exposed_ms[i]), cell(u.data_wait_ms[i]), cell(u.memory[i]));
    }
    validations(INFINITY);
  }
  return out;
}

}  // namespace fsdp
