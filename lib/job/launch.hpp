// Starts jobs of several ranks as children of one process that is not a rank itself, for programs that run a job several times:
// with other transports, with more nodes, or as a rehearsal.
#pragma once

#include <signal.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "comm/launcher.hpp"

namespace fsdp {

/// Variables that replace those of this process, by name; without a value: the child does not have the variable.
using Variables = std::vector<std::pair<std::string, std::optional<std::string>>>;

/// A command to run. Its standard input is empty.
struct ChildCommand {
  std::vector<std::string> words;  // the first one is a path, or a program in PATH
  Variables environment = {};
  double limit_s = 60;
};

struct ChildEnd {
  int exit_code = 0;  // 128 + the signal's number if a signal ended it; 127 if it could not be started
  bool timed_out = false;
  std::string out, err;  // what it and its children wrote: at most the first 16 MiB of each
  double seconds = 0;
  std::vector<int> left = {};  // processes that could not be killed, because a driver or file system does not return
};

/// The signals that end a process which does not expect them, such as SIGTERM and SIGHUP; and whether one of them has come and
/// is blocked.
sigset_t stop_signals();
bool stop_is_requested();

/// Runs a command, and waits until it ends. If one of stop_signals() comes, ends the command first; then the signal takes
/// effect, unless the caller has blocked it. After `limit_s` seconds sends SIGTERM, which mpirun and srun pass on to their
/// ranks, and 3 s later SIGKILL. Afterwards all descendants of this process on this host are killed, so it may have no other
/// children. If this process dies, the child receives SIGTERM. Must be called by the only thread of a process. Makes this
/// process the parent of orphans among its descendants, from then on. Throws CallError if no process can be made.
ChildEnd run_child(const ChildCommand& command);
/// True if the child was ended at its limit, or if its ranks were killed after `limit_s` seconds.
bool has_hung(const ChildEnd& end, double limit_s);
/// Why a child failed: the first line of end.err that names `program`, else a line of mpirun or the last line.
std::string error_in(const ChildEnd& end, const std::string& program);

/// The JSON object that a child has printed, or why there is none.
struct ChildAnswer {
  nlohmann::json json;  // null if there is no object
  bool hung = false;    // the child was ended, or its ranks were killed, after the limit
  std::string problem;  // "it failed: nothing fits"; empty if there is an object
};
/// Reads the last line of end.out that is a JSON object, among lines of launchers.
ChildAnswer read_child(const ChildEnd& end, const std::string& program, double limit_s);
/// The path of another program in the folder of this one.
std::string program_beside(const std::string& name);

/// How many nodes a job has, and how many ranks to start on each of them.
struct RankLayout {
  int nodes = 1, per_node = 1;
  int ranks() const { return nodes * per_node; }
};

/// What is known about the allocation in which this process runs.
struct Allocation {
  std::string scheduler;  // "Slurm", "PBS", "Flux" or "LSF"; empty: none
  int nodes = 1;
  int per_node = 0;                     // tasks of a node that the job asked for; 0: unknown
  std::vector<std::string> start = {};  // the words that start ranks; {nodes}, {per-node} and {ranks} are replaced by numbers
};

/// What commands of schedulers have printed; empty outside of their jobs, or if they fail.
struct SchedulerAnswers {
  std::string srun_mpi = {};   // srun --mpi=list
  std::string flux_size = {};  // flux getattr size
};
/// Finds the scheduler in whose job this process is, and how it starts ranks for this MPI (`library`: its version text).
/// `template_words` replaces `start` if it is not empty. Throws UserError if this process was started by mpirun or srun, if a
/// job of PBS or LSF has no list of its nodes, or if `template_words` lacks {ranks}, and also {nodes} or {per-node}.
Allocation find_allocation(const Environment& get, const std::string& library, const SchedulerAnswers& answers,
                           const std::string& template_words = "");
/// The same for this process.
Allocation find_allocation(const std::string& template_words = "");

/// The layout of a job with these numbers; 0 means those of the allocation: all of its nodes, and the tasks of a node that it
/// asked for, or a rank for each of `gpus` GPUs of this node. Without a scheduler, a node has 2 ranks. Throws UserError if the
/// allocation has fewer nodes, or does not say how many ranks a node gets (options --nodes and --ranks-per-node).
RankLayout choose_layout(const Allocation& allocation, int nodes, int per_node, int gpus);

/// Runs `program` on every rank, with these variables on all nodes. Ranks that still run after `limit_s` seconds are killed on
/// their own nodes (by timeout of coreutils), so that none is left on a node that this process does not see; the launcher is
/// ended a little later.
ChildEnd run_ranks(const Allocation& allocation, RankLayout layout, double limit_s, const std::vector<std::string>& program,
                   const Variables& variables = {});
/// The words of the launcher that run_ranks() starts.
std::vector<std::string> launch_words(const Allocation& allocation, RankLayout layout, double limit_s,
                                      const std::vector<std::string>& program);

}  // namespace fsdp
