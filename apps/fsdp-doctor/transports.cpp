#include "fsdp-doctor/transports.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/terminal.hpp"
#include "base/version.hpp"
#include "device/cuda_library.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr double again = 1.5;   // rows within this factor of the fastest run twice; the smaller time counts
constexpr double worth = 1.03;  // a row is recommended if it is faster than the present settings by more than this factor

/// The variables of all rows. A row has only its own, whatever the user's environment has.
std::set<std::string> variables_of_all() {
  std::set<std::string> names;
  for (const Transport& transport : transports())
    for (const auto& [name, value] : transport.variables) names.insert(name);
  return names;
}

/// The settings of the user that the other rows replace: "NCCL_NET=IB"; empty if there are none.
std::string present_settings() {
  std::string text;
  for (const std::string& name : variables_of_all())
    if (const char* const value = std::getenv(name.c_str())) text += format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

/// The lines of a job script that choose the transport.
std::vector<std::string> lines_for(const Transport& transport) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : transport.variables)
    lines.push_back(value.find(' ') == value.npos ? format("export {}={}", name, value)
                                                  : format("export {}='{}'", name, value));
  std::string options;
  for (const std::string& option : transport.options) options += " " + option;
  if (!options.empty()) lines.push_back(format("fsdp-train{} ...", options));
  return lines;
}

const Trial* fastest(std::span<const Trial> trials) {
  const Trial* best = nullptr;
  for (const Trial& trial : trials)
    if (trial.result == Trial::Result::done && (!best || trial.update_ms < best->update_ms)) best = &trial;
  return best;
}

}  // namespace

const std::vector<Transport>& transports() {
  constexpr std::string_view infiniband = "/sys/class/infiniband", slingshot = "/sys/class/cxi";
  using enum TransportOf;
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const auto libfabric = [](Settings more) {
    more.insert(more.begin(), {"NCCL_NET", "AWS Libfabric"});
    return more;
  };
  // docs/doctor.md ("Transports") has the pages of the sites and their dates.
  static const std::vector<Transport> all = {
      {"present settings", any, "", {}, {}, ""},
      {"libfabric", nccl, slingshot, libfabric({}), {}, "CSCS, OLCF"},
      {"libfabric, newer plugin", nccl, slingshot, {{"NCCL_NET", "OFI"}}, {}, "HPE"},
      {"libfabric, GPU near NIC",
       nccl,
       slingshot,
       libfabric({{"NCCL_NET_GDR_LEVEL", "PHB"}, {"NCCL_CROSS_NIC", "1"}}),
       {},
       "CSCS; LUMI removed it"},
      {"libfabric, userfaultfd", nccl, slingshot, libfabric({{"FI_MR_CACHE_MONITOR", "userfaultfd"}}), {}, "CSCS, LUMI"},
      {"libfabric, rendezvous",
       nccl,
       slingshot,
       libfabric({{"FI_CXI_RDZV_EAGER_SIZE", "0"}, {"FI_CXI_RDZV_GET_MIN", "0"}, {"FI_CXI_RDZV_THRESHOLD", "0"}}),
       {},
       "CSCS"},
      {"libfabric, alt_read", nccl, slingshot, libfabric({{"FI_CXI_RDZV_PROTO", "alt_read"}}), {}, "OLCF"},
      {"libfabric, no LL128", nccl, slingshot, libfabric({{"NCCL_PROTO", "^LL128"}}), {}, "CSCS, NRIS"},
      {"InfiniBand", nccl, infiniband, {{"NCCL_NET", "IB"}}, {}, ""},
      {"InfiniBand, all NICs", nccl, infiniband, {{"NCCL_NET", "IB"}, {"NCCL_CROSS_NIC", "1"}}, {}, ""},
      {"NCCL by TCP", nccl, "", {{"NCCL_NET", "Socket"}}, {}, ""},
      {"host memory and MPI", nccl, "", {}, {"--comm=mpi"}, ""},
      {"messages", cpu, "", {}, {"--comm=mpi"}, ""},
      {"shared memory", cpu, "", {}, {"--comm=shm"}, ""},
      {"ob1, sm", open_mpi, "", {{"OMPI_MCA_pml", "ob1"}, {"OMPI_MCA_btl", "self,vader,tcp"}}, {"--comm=mpi"}, ""},
      {"ob1, TCP", open_mpi, "", {{"OMPI_MCA_pml", "ob1"}, {"OMPI_MCA_btl", "self,tcp"}}, {"--comm=mpi"}, ""},
      {"ucx", open_mpi, "", {{"OMPI_MCA_pml", "ucx"}}, {"--comm=mpi"}, ""},
      {"cm (libfabric, PSM2)", open_mpi, "", {{"OMPI_MCA_pml", "cm"}}, {"--comm=mpi"}, ""},
  };
  return all;
}

Trial judge_trial(const Transport& transport, const ChildEnd& end, double limit_s) {
  const ChildAnswer answer = read_child(end, "fsdp-bench", limit_s);
  if (!answer.problem.empty())
    return {&transport, answer.hung ? Trial::Result::hung : Trial::Result::failed, 0, answer.problem};
  const nlohmann::json ms = answer.json.value("update_ms", nlohmann::json()),
                       comm = answer.json.value("comm", nlohmann::json());
  if (!ms.is_number() || !comm.is_string())
    return {&transport, Trial::Result::failed, 0,
            "it printed another object than fsdp-bench collectives; use one installation"};
  return {&transport, Trial::Result::done, ms, comm};
}

bool present_settings_work(std::span<const Trial> trials) {
  return !trials.empty() && trials.front().result == Trial::Result::done;
}

std::string describe(std::span<const Trial> trials) {
  const Trial* const best = fastest(trials);
  std::vector<std::vector<std::string>> rows = {{"transport", "ms/update", "times the fastest", "from"}};
  std::string notes;
  for (const Trial& trial : trials) {
    const bool done = trial.result == Trial::Result::done;
    rows.push_back({std::string(trial.transport->name), done ? format("{:.1f}", trial.update_ms) : "-",
                    done ? format("{:.2f}", trial.update_ms / best->update_ms)
                         : (trial.result == Trial::Result::hung       ? "hung"
                            : trial.result == Trial::Result::left_out ? "left out"
                                                                      : "failed"),
                    std::string(trial.transport->source)});
    notes += format("  {}: {}\n", trial.transport->name, trial.connection);
  }
  std::string text = lay_out(rows, 1) + "\n" + notes + "\n";
  if (!best) return text + "no transport works; check the launcher and the network with fsdp-doctor, started by the launcher\n";
  // A row that sets nothing and has the same connection is the present one: a difference is noise.
  const bool same = best->transport->variables.empty() && best->connection == trials.front().connection;
  if (present_settings_work(trials) && (same || trials.front().update_ms <= worth * best->update_ms))
    return text + (std::ranges::count(trials, Trial::Result::done, &Trial::result) == 1
                       ? "there was nothing to compare the present settings with\n"
                       : "the present settings are as fast as any other; nothing needs to be set\n");
  text += format("the fastest: {}{}; for a job script:\n\n", best->transport->name,
                 present_settings_work(trials)
                     ? format(", {:.2f} times as fast as the present settings", trials.front().update_ms / best->update_ms)
                     : std::string(" (the present settings do not work)"));
  for (const std::string& line : lines_for(*best->transport)) text += "    " + line + "\n";
  for (const std::string& name : variables_of_all())
    if (std::getenv(name.c_str()) && std::none_of(best->transport->variables.begin(), best->transport->variables.end(),
                                                  [&](const auto& variable) { return variable.first == name; }))
      text += format("    unset {}\n", name);
  return text;
}

nlohmann::json to_json(std::span<const Trial> trials) {
  constexpr std::string_view results[] = {"done", "failed", "hung", "left out"};
  const Trial* const best = fastest(trials);
  nlohmann::json json = {{"fastest", best ? nlohmann::json(best->transport->name) : nlohmann::json()},
                         {"transports", nlohmann::json::array()}};
  for (const Trial& trial : trials) {
    const bool done = trial.result == Trial::Result::done;
    json["transports"].push_back({{"name", trial.transport->name},
                                  {"result", results[static_cast<std::size_t>(trial.result)]},
                                  {"update_ms", done ? nlohmann::json(trial.update_ms) : nlohmann::json()},
                                  {"said", trial.connection},
                                  {"lines", lines_for(*trial.transport)},
                                  {"source", trial.transport->source}});
  }
  return json;
}

int run_transports(const DoctorOptions& options, const std::string& library) {
  const Allocation allocation = find_allocation(options.launcher);
  std::string why;
  const bool on_gpu = choose_device(options.device) == DeviceKind::cuda;
  const RankLayout layout = choose_layout(allocation, options.nodes, options.ranks_per_node, on_gpu ? visible_gpus(&why) : 0);
  if (layout.ranks() == 1) throw UserError("one rank has no collectives; give --ranks-per-node, or start this in a larger job");

  std::vector<std::string> program = {program_beside("fsdp-bench"), "collectives", "--json",
                                      on_gpu ? "--device=cuda" : "--device=cpu"};
  program.insert(program.end(), options.of_bench.begin(), options.of_bench.end());
  const bool is_open_mpi = library.starts_with("Open MPI");
  std::vector<Trial> trials;
  const std::string present = present_settings();
  if (!options.json)
    print_to(stdout, "fsdp-doctor {}: the collectives of an update ({}), {} on {}{}\n\n", version_string(),
             fmt::join(options.of_bench, " "), plural(static_cast<std::size_t>(layout.ranks()), "rank"),
             plural(static_cast<std::size_t>(layout.nodes), "node"),
             present.empty() ? std::string() : format("\npresent settings: {}", present));
  const auto run = [&](const Transport& transport) {
    if (!options.json) print_to(stderr, "{} ...\n", transport.name);
    Variables variables;
    if (&transport != &transports().front())
      for (const std::string& name : variables_of_all()) variables.emplace_back(name, std::nullopt);
    for (const auto& [name, value] : transport.variables) {
      std::erase_if(variables, [&](const auto& variable) { return variable.first == name; });
      variables.emplace_back(name, value);
    }
    std::vector<std::string> words = program;
    words.insert(words.end(), transport.options.begin(), transport.options.end());
    return judge_trial(transport, run_ranks(allocation, layout, options.transport_limit_s, words, variables),
                       options.transport_limit_s);
  };
  for (const Transport& transport : transports()) {
    if (transport.of != TransportOf::any && (transport.of == TransportOf::nccl) != on_gpu) continue;
    if (transport.of == TransportOf::open_mpi && !is_open_mpi) continue;
    std::error_code error;
    if (!transport.needs.empty() && !std::filesystem::exists(transport.needs, error)) {
      trials.push_back({&transport, Trial::Result::left_out, 0, format("this node has no {}", transport.needs)});
      continue;
    }
    trials.push_back(run(transport));
  }
  // Other programs may have disturbed one measurement: those near the fastest, and the present settings, run once more.
  for (Trial& trial : trials) {
    if (trial.result != Trial::Result::done ||
        (&trial != &trials.front() && trial.update_ms > again * fastest(trials)->update_ms))
      continue;
    const double first_ms = trial.update_ms;
    trial = run(*trial.transport);
    trial.update_ms = std::min(trial.update_ms, first_ms);
  }
  print_raw(stdout, options.json ? json_text(to_json(trials)) + "\n" : clean_lines(describe(trials)));
  return present_settings_work(trials) ? exit_code::done : exit_code::failed;
}

}  // namespace fsdp
