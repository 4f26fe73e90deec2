#include "fsdp-doctor/doctor.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/threads/threads.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "fsdp-doctor/gpus.hpp"
#include "fsdp-doctor/machine.hpp"
#include "fsdp-doctor/places.hpp"
#include "fsdp-doctor/start.hpp"
#include "fsdp-doctor/storage.hpp"
#include "fsdp-doctor/work.hpp"
#include "options/common_options.hpp"

namespace fsdp {

namespace {

// The time limit for the start of MPI. It is long, because MPI may start slowly on many nodes.
constexpr double mpi_start_limit_s = 60;

constexpr Check checks[] = {
    {"MPI", "how the ranks were started", check_mpi},
    {"Slurm", "srun and the environment", check_slurm},
    {"software", "versions on all nodes", check_software},
    {"processors", "processors and their instructions", check_processors, true},
    {"GPUs", "the driver, and a GPU for each rank", check_gpus, true},
    {"NCCL", "its version", check_nccl},
    {"places", "where ranks and GPUs are on a node", check_places},
    {"threads", "threads and binding", check_threads},
    {"locked memory", "the limit of locked memory", check_locked_memory, true},
    {"shared memory", "the size of /dev/shm", check_shared_memory, true},
    {"clocks", "clocks of the nodes", check_clocks},
    {"save folder", "writing and reading in the save folder", check_save_folder, true},
    {"HDF5", "a file of HDF5", check_hdf5, true},
    {"state folder", "writing and reading in the folder for state", check_state_folder, true},
    {"compute", "matrix products on all nodes", check_compute},
    {"network", "messages between the nodes", check_network},
    {"NCCL network", "a collective of all GPUs", check_nccl_network},
    {"files", "writing and reading by all ranks at once", check_files},
    {"training", "a small training run over all ranks", check_training},
};

constexpr std::string_view skipped = "The checks after this one were skipped.";

/// Thrown by a rank after it has printed an error that only this rank has, while other ranks wait for it.
struct FailedAlone {};

/// Takes the options for fsdp-bench collectives. Throws UserError if an option needs --transports, or contradicts it.
void read_transport_options(const OptionTable& read, DoctorOptions& options) {
  constexpr const char* of_bench[] = {"model",
                                      "decoder-layers",
                                      "decoder-embed-dim",
                                      "decoder-ffn-embed-dim",
                                      "decoder-attention-heads",
                                      "decoder-kv-heads",
                                      "vocab-size",
                                      "share-decoder-input-output-embed",
                                      "decoder-learned-pos",
                                      "no-scale-embedding",
                                      "activation-fn",
                                      "sharding-strategy",
                                      "shard-group-size",
                                      "update-freq",
                                      "precision",
                                      "master-dtype",
                                      "grad-dtype"};
  if (!options.transports) {
    for (const char* name : {"nodes", "ranks-per-node", "transport-limit", "launcher", "arch"})
      if (read.given(name))
        throw UserError(
            format("{} changes nothing (it is for --transports); leave it out, or add --transports", read.typed(name)));
    for (const char* name : of_bench)
      if (read.changed(name))
        throw UserError(format("--{} changes nothing (it is for --transports); leave it out, or add --transports", name));
    return;
  }
  if (!launcher_name([](const char* name) { return std::getenv(name); }).empty())
    throw UserError(
        "--transports starts the ranks itself (this is a rank of a job); start it once in the job, without mpirun or srun");
  for (const char* name : {"save-dir", "nvme-path", "comm", "threads", "pack"})
    if (read.given(name))
      throw UserError(format("{} changes nothing (--transports does not use it); leave it out", read.typed(name)));
  if (options.transport_limit_s <= 0)
    throw UserError("--transport-limit is 0 (a transport that hangs would never be ended); give a time, such as 60s");
  if (read.given("arch") && read.given("model"))
    throw UserError("--arch and --model are both given (each selects a model); leave out one of them");
  if (!read.given("model")) options.of_bench.push_back("--arch=" + options.arch);
  for (const auto& [name, value] : read.values())
    if (std::find(std::begin(of_bench), std::end(of_bench), name) != std::end(of_bench) &&
        (read.changed(name) || read.given(name)))
      options.of_bench.push_back(format("--{}={}", name, value));
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

OptionTable doctor_option_table(DoctorOptions& options) {
  OptionTable table("fsdp-doctor", "[options]",
                    "Checks this machine and this job, and says what to fix. Start it like fsdp-train: in the same allocation, "
                    "with the same launcher and number of ranks; or by itself, on a login node. Exit status: 0 if no check has "
                    "failed, 1 if one has, 2 for wrong use.");
  table.examples({"fsdp-doctor", "mpirun -np 4 fsdp-doctor --save-dir checkpoints", "srun fsdp-doctor --device cuda --json"});
  table.group("What");
  table
      .path("save-dir", "DIR", options.save_dir,
            "where checkpoints will be saved; a folder is made in it, and removed; with --pack, the folder of RUN")
      .sets("save folder")
      .common();
  table.path("nvme-path", "DIR", options.nvme_path, "the folder of --nvme-path in your run; its drive is measured on each node")
      .unset("not checked")
      .sets("folder of state")
      .common();
  table.flag("json", options.json, "print one JSON object").common();
  table
      .path("pack", "RUN", options.pack,
            "also write one archive about a run, to attach to a ticket: RUN is its save folder or metrics file. It has the "
            "report, options, plan, metrics, the output of batch jobs, flight records, versions and the environment without "
            "secrets; no data and no weights. Without a launcher, MPI is not started, and only this node is checked")
      .unset("no archive")
      .common();
  table.path("out", "FILE", options.out, "the archive of --pack, .tar.gz")
      .unset("fsdp-pack-NAME.tar.gz in this folder")
      .sets("archive");
  table.group("How");
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  add_comm_options(table, options.comm);
  table.group("Transports");
  table
      .flag("transports", options.transports,
            "Instead of the checks, time the collectives of an update with each transport and with settings that computing "
            "centres publish, and print the fastest as lines for a job script. Start this once in the job, without srun or "
            "mpirun: it starts the ranks itself.")
      .common();
  table.integer("nodes", "N", options.nodes, {1, 1e5}, "nodes of the job to use").unset("all of them");
  table.integer("ranks-per-node", "N", options.ranks_per_node, {1, 1e4}, "ranks on each node")
      .unset("the job's tasks per node, or a rank for each GPU");
  table.duration("transport-limit", "TIME", options.transport_limit_s, "a transport that takes longer is ended: it hangs");
  add_launcher_option(table, options.launcher);
  table.text("arch", "NAME", options.arch, "model; see fsdp-train --list-archs").sets("architecture");
  table.path("model", "DIR", options.model, "Hugging Face folder, instead of --arch: its config.json defines the model")
      .unset("as --arch");
  add_size_options(table, options.sizes);
  add_strategy_option(table, options.sharding.strategy);
  add_group_option(table, options.sharding.shard_group_size);
  table.integer("update-freq", "N", options.sharding.plan.micro_batches, {1, 1e6}, "micro-batches of an update");
  add_precision_options(table, options.sharding.types.parameter);
  add_kept_type_options(table, options.sharding.types);
  table.then([&options](const OptionTable& read) { read_transport_options(read, options); });
  table.then([&options](const OptionTable& given) {
    if (given.given("out") && options.pack.empty())
      throw UserError("--out changes nothing (there is no --pack); leave it out, or give --pack RUN");
    if (options.json && !options.pack.empty())
      throw UserError("--json does not go with --pack (the report in the archive is text); leave out one of them");
    if (!options.pack.empty() && !given.given("save-dir"))
      options.save_dir = kind_of(options.pack) == PathKind::folder ? options.pack : folder_of(options.pack);
  });
  return table;
}

/// The report so far, which the watchdog's thread prints if the main thread hangs.
struct Doctor::State {
  std::mutex mutex;
  Report report;
  std::atomic<bool> is_connected = false;  // true once the ranks are connected and the other members are set
  bool is_speaker = true, is_printed = false;
  std::string where;  // "rank 3 on node2: "; empty for a job of one rank
  Timer timer;

  void add(std::string_view name, Finding finding, double seconds = 0) {
    const std::lock_guard lock(mutex);
    report.lines.push_back({std::string(name), std::move(finding), seconds});
  }
  void end_with(std::string_view sentence) {
    const std::lock_guard lock(mutex);
    report.last = sentence;
  }
  /// Prints the report, at most once.
  void print(bool json) {
    const std::lock_guard lock(mutex);
    if (std::exchange(is_printed, true) || !is_speaker) return;
    report.seconds = timer.seconds();
    print_raw(stdout, json ? json_of(report) : clean_lines(text_of(report)));
    std::fflush(stdout);
  }
};

Doctor::Doctor(const DoctorOptions& options, const Start& start, std::function<std::string(const std::string&)> words)
    : options_(options),
      start_(start),
      words_(std::move(words)),
      state_(std::make_unique<State>()),
      watchdog_([this](const std::string& stage, double limit_s) { expired(stage, limit_s); }) {
  watchdog_.begin("the start of MPI", mpi_start_limit_s);
}

Doctor::~Doctor() = default;

std::string Doctor::report() const {
  const std::lock_guard lock(state_->mutex);
  return clean_lines(text_of(state_->report));
}

void Doctor::expired(const std::string& stage, double limit_s) {
  if (state_->is_connected && state_->is_speaker) {
    state_->add(stage, {.status = Status::failed,
                        .text = format("{}did not finish within {}", state_->where, format_duration(limit_s)),
                        .advice = "check that the file system, network or device that this check uses responds"});
    state_->print(options_.json);
  } else {
    // This rank prints its own line, because all other ranks may hang as well.
    std::fputs(
        format(
            "fsdp-doctor: {}'{}' did not finish within {}; check that the network and the file systems of this node respond\n",
            state_->where.empty() ? host_name() + ": " : state_->where, stage, format_duration(limit_s))
            .c_str(),
        stderr);
  }
  std::fflush(nullptr);
  std::_Exit(exit_code::failed);
}

Finding Doctor::failure_of_this_rank(const DoctorJob& job, const Check& check, const std::string& message) {
  if (job.world->size() == 1) return failed_by(message);
  if (state_->is_speaker) {
    state_->add(check.name, failed_by(state_->where + message));
    state_->end_with(skipped);
    state_->print(options_.json);
  } else {
    print_to(stderr, "fsdp-doctor: {}{} ({})\n", state_->where, message, check.about);
  }
  throw FailedAlone();
}

int Doctor::run(DoctorJob& job, bool local_checks_only) {
  const double limit_s = options_.comm.timeout_s;
  for (const Check& check : checks) {
    if (local_checks_only && !check.is_local) continue;
    // A rank that waits for another rank times out in the collective, and names that rank. The watchdog is for all other hangs.
    watchdog_.begin(std::string(check.name), 2 * limit_s);
    std::optional<Finding> finding;
    const Timer timer;
    try {
      finding = check.run(job);
    } catch (const CollectiveTimeout& timeout) {
      state_->add(check.name,
                  {.status = Status::failed,
                   .text = format("{} {} not arrived within {} ({})", timeout.who, timeout.ranks.size() > 1 ? "have" : "has",
                                  format_duration(timeout.timeout_s), check.about),
                   .advice = "check that node first: whether it responds, and what this process does there (ps, top)"});
      state_->end_with(skipped);
      state_->print(options_.json);
      throw;
    } catch (const CollectiveError& error) {
      finding = failed_by(words_(error.what()));
    } catch (const UserError& error) {
      finding = failure_of_this_rank(job, check, words_(error.what()));
    } catch (const CallError& error) {
      finding = failure_of_this_rank(job, check, error.what());
    }
    if (finding) state_->add(check.name, std::move(*finding), timer.seconds());
  }
  if (!local_checks_only)
    state_->end_with(
        "To measure the speed of your model, start fsdp-bench step in the same way, and fsdp-bench collectives for its "
        "transfers; fsdp-plan predicts both.");
  watchdog_.begin("the end", 2 * limit_s);
  state_->print(options_.json);
  // All ranks return the code of rank 0's report.
  std::int64_t code = state_->report.count(Status::failed) > 0 ? exit_code::failed : exit_code::done;
  job.world->broadcast(&code, sizeof code, 0);
  return static_cast<int>(code);
}

int Doctor::run(MpiSession& session) {
  state_->is_speaker = session.rank() == 0;
  if (session.size() > 1) state_->where = format("rank {} on {}: ", session.rank(), host_name());
  watchdog_.begin("connecting the ranks", 2 * options_.comm.timeout_s);
  DoctorJob job(options_, start_, [&](const CommOptions& options) { return session.world(options); });
  {
    const std::lock_guard lock(state_->mutex);
    for (std::size_t i = 0; i < job.nodes.size(); ++i)
      state_->report.nodes.emplace_back(job.nodes[i], static_cast<int>(job.ranks_of[i]));
    state_->report.title = format("{} on {}", plural(job.node_of.size(), "rank"), list_of(job.nodes));
  }
  state_->is_connected = true;
  try {
    return run(job, false);
  } catch (const CollectiveTimeout& timeout) {
    // Rank 0 has printed the error, unless rank 0 itself did not arrive: then the lowest of the other ranks prints it and ends
    // the job.
    if (session.rank() > 0) {
      sleep_s(1 + 0.1 * std::min(session.rank(), 40));
      print_to(stderr, "fsdp-doctor: {}{}\n", state_->where, words_(timeout.what()));
    }
    session.abort_job(exit_code::failed);
  } catch (const FailedAlone&) {
    // The other ranks wait in the check. Rank 0 prints its report when it times out there: do not end the job before that.
    if (session.rank() > 0) sleep_s(options_.comm.timeout_s + 5);
    session.abort_job(exit_code::failed);
  }
}

int Doctor::run_alone(Finding why) {
  state_->report.title = start_.launched.count == 1 ? host_name() + ", without MPI"
                                                    : format("one of {} processes, on {}", start_.launched.count, host_name());
  state_->report.nodes.emplace_back(host_name(), 1);
  state_->add(checks[0].name, std::move(why));
  state_->report.last = "The checks that need several ranks were skipped; the checks above are of this process's node only.";
  state_->is_connected = true;
  DoctorJob job(options_, start_, [](const CommOptions&) { return make_self_communicator(); });
  return run(job, true);
}

}  // namespace fsdp
