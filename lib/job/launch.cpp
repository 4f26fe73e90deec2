#include "job/launch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "base/timer.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_output = std::size_t{16} << 20;
constexpr double grace_s = 3;  // between SIGTERM and SIGKILL

/// All descendants of this process on this host.
std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (pid <= 0 || !std::getline(file, line)) continue;
    // "17 (name) S 12 ...": a name may contain spaces and parentheses.
    if (const std::size_t behind_name = line.rfind(')'); behind_name != line.npos && behind_name + 4 < line.size())
      children.emplace(std::atoi(line.c_str() + behind_name + 4), pid);
  }
  std::vector<pid_t> found = {::getpid()};
  for (std::size_t i = 0; i < found.size(); ++i)
    for (auto [child, end] = children.equal_range(found[i]); child != end; ++child) found.push_back(child->second);
  found.erase(found.begin());
  return found;
}

/// Appends what can be read now. Returns false at the end.
bool read_some(int descriptor, std::string& text) {
  char piece[4096];
  const ssize_t n = ::read(descriptor, piece, sizeof piece);
  if (n > 0 && text.size() < most_output) text.append(piece, static_cast<std::size_t>(n));
  return n != 0;
}

/// The environment of this process with changes, as execvpe() takes it. `storage` holds the new texts.
std::vector<char*> environment_with(const ChildCommand& command, std::vector<std::string>& storage) {
  std::vector<char*> all;
  for (char** variable = environ; *variable; ++variable) {
    const std::string name(*variable, std::find(*variable, *variable + std::string_view(*variable).size(), '='));
    if (std::none_of(command.environment.begin(), command.environment.end(),
                     [&](const auto& change) { return change.first == name; }))
      all.push_back(*variable);
  }
  for (const auto& [name, value] : command.environment)
    if (value) storage.push_back(name + "=" + *value);
  for (std::string& text : storage) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

void replace_all(std::string& text, std::string_view name, int value) {
  for (std::size_t at = 0; (at = text.find(name, at)) != text.npos;) text.replace(at, name.size(), std::to_string(value));
}

int number(const Environment& get, const char* name) {
  const char* const text = get(name);
  return text ? std::max(0, std::atoi(text)) : 0;  // "4(x2)" is 4
}

}  // namespace

sigset_t stop_signals() {
  sigset_t stops;
  ::sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::sigaddset(&stops, signal);
  return stops;
}

bool stop_is_requested() {
  sigset_t pending;
  ::sigpending(&pending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
    if (::sigismember(&pending, signal) == 1) return true;
  return false;
}

ChildEnd run_child(const ChildCommand& command) {
  std::vector<std::string> storage;
  std::vector<char*> words, variables = environment_with(command, storage);
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));  // execvpe() only reads them
  words.push_back(nullptr);

  int pipes[2][2];
  for (auto& ends : pipes)
    if (::pipe2(ends, O_CLOEXEC) != 0) throw CallError("pipe2", "no pipe for the output of a child");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // a process whose parent ends becomes a child of this process, and can be found
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw CallError("fork", "cannot start a child");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int empty = ::open("/dev/null", O_RDONLY);
    ::dup2(empty, STDIN_FILENO);
    ::dup2(pipes[0][1], STDOUT_FILENO);
    ::dup2(pipes[1][1], STDERR_FILENO);
    ::execvpe(words[0], words.data(), variables.data());
    ::dprintf(STDERR_FILENO, "%s cannot be started (%s); load its module, or give --launcher\n", words[0],
              std::strerror(errno));
    ::_exit(127);
  }
  for (auto& ends : pipes) ::close(ends[1]);

  ChildEnd result;
  WaitTimer timer;
  pollfd readable[] = {{pipes[0][0], POLLIN, 0}, {pipes[1][0], POLLIN, 0}};
  std::string* const texts[] = {&result.out, &result.err};
  const auto read_for = [&](int ms) {
    if (::poll(readable, 2, ms) <= 0) return false;
    bool any = false;
    for (int i = 0; i < 2; ++i) {
      if (readable[i].fd < 0 || readable[i].revents == 0) continue;
      if (read_some(readable[i].fd, *texts[i]))
        any = true;
      else
        readable[i].fd = -1;  // poll() ignores it from now on
    }
    return any;
  };
  // A signal that would end this process waits until no child is left.
  sigset_t before;
  const sigset_t stops = stop_signals();
  ::sigprocmask(SIG_BLOCK, &stops, &before);
  int status = 0;
  bool killed = false;
  double limit_s = command.limit_s, end_s = limit_s + 4 * grace_s, seconds = 0;
  while (::waitpid(child, &status, WNOHANG) == 0 && seconds < end_s) {
    read_for(50);
    seconds = timer.seconds();
    if (stop_is_requested() && seconds < limit_s) limit_s = seconds, end_s = limit_s + 4 * grace_s;
    if (!result.timed_out && seconds >= limit_s) {
      result.timed_out = true;
      ::kill(child, SIGTERM);
    }
    if (!killed && seconds > limit_s + grace_s) {
      killed = true;
      for (pid_t pid : descendants()) ::kill(pid, SIGKILL);
    }
  }
  result.seconds = timer.seconds();
  // A process that is being killed may have started another one, so this looks again until there is none.
  while (!(result.left = descendants()).empty() && timer.seconds() < std::max(end_s, result.seconds + 4 * grace_s)) {
    for (pid_t pid : result.left) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    ::usleep(2000);
  }
  while (read_for(0)) {
  }
  for (const auto& ends : pipes) ::close(ends[0]);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool has_hung(const ChildEnd& end, double limit_s) { return end.timed_out || (end.exit_code != 0 && end.seconds >= limit_s); }

namespace {

std::string message_in(const std::string& text, const std::string& program) {
  std::istringstream lines(text);
  std::string of_mpirun, last, of_srun;
  for (std::string line; std::getline(lines, line);) {
    if (const std::size_t at = line.find(program + ": "); at != line.npos) return line.substr(at + program.size() + 2);
    if (line.starts_with("mpirun ") && of_mpirun.empty())
      of_mpirun = line;
    else if (line.starts_with("srun: ") || line.starts_with("slurmstepd"))
      of_srun = line;
    else if (line.find_first_not_of(" -=*\t\r") != line.npos && line.find("orte_base_help_aggregate") == line.npos)
      last = line;
  }
  // mpirun ends a box of lines with advice; its first line has the reason.
  return !of_mpirun.empty() ? of_mpirun : !last.empty() ? last : of_srun;
}

}  // namespace

std::string error_in(const ChildEnd& end, const std::string& program) {
  const std::string message = message_in(end.err, program);
  return message.empty() ? format("exit code {}", end.exit_code) : excerpt(message, 200);
}

ChildAnswer read_child(const ChildEnd& end, const std::string& program, double limit_s) {
  ChildAnswer answer;
  if (has_hung(end, limit_s)) {
    answer.hung = true;
    answer.problem = format("it hung, and was ended after {}", format_duration(end.seconds));
    if (!end.left.empty())
      answer.problem += format("; {} could not be killed (process {} and others), so this node needs its administrator",
                               plural(end.left.size(), "process", "processes"), end.left.front());
  } else if (end.exit_code != 0) {
    answer.problem = format("it failed: {}", error_in(end, program));
  } else {
    std::istringstream lines(end.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("{"))
        if (nlohmann::json object = nlohmann::json::parse(line, nullptr, false); object.is_object())
          answer.json = std::move(object);
    if (answer.json.is_null())
      answer.problem = format("it printed '{}' instead of a result", excerpt(message_in(end.out, program), 60));
  }
  return answer;
}

std::string program_beside(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

Allocation find_allocation(const Environment& get, const std::string& library, const SchedulerAnswers& answers,
                           const std::string& template_words) {
  if (const std::string launcher = launcher_name(get); !launcher.empty())
    throw UserError(format("this program was started by {}, but starts the ranks itself; start it once, in the job, without {}",
                           launcher, launcher.substr(0, launcher.find(' '))));
  const bool is_open_mpi = library.starts_with("Open MPI");
  Allocation allocation;
  const auto use_hosts = [&](const char* scheduler, const char* variable) {
    const char* const hosts = get(variable);
    std::ifstream file(hosts ? hosts : "");
    std::multiset<std::string> lines;
    for (std::string name; file >> name;) lines.insert(name);
    const std::set<std::string> names(lines.begin(), lines.end());
    if (names.empty())
      throw UserError(format("{}{} has no nodes; start this program in a batch job of {}", variable,
                             hosts ? format(", {},", hosts) : std::string(), scheduler));
    const std::size_t of_a_node = lines.size() / names.size();  // with one line for a node, its ranks are not known
    allocation = {scheduler, static_cast<int>(names.size()), of_a_node > 1 ? static_cast<int>(of_a_node) : 0};
    if (is_open_mpi)
      allocation.start = {"mpirun",    "-np", "{ranks}", "--hostfile", hosts, "--map-by", "ppr:{per-node}:node",
                          "--bind-to", "none"};
    else  // PALS, and MPICH's mpiexec
      allocation.start = {"mpiexec", "-n", "{ranks}", "--ppn", "{per-node}", "--hostfile", hosts};
  };
  if (get("SLURM_JOB_ID")) {
    allocation = {"Slurm", number(get, "SLURM_JOB_NUM_NODES"), number(get, "SLURM_NTASKS_PER_NODE")};
    if (const std::string plugin = srun_plugin(library); answers.srun_mpi.find(plugin) != std::string::npos) {
      allocation.start = {
          "srun",      "--mpi=" + plugin,      "--nodes={nodes}", "--ntasks={ranks}", "--ntasks-per-node={per-node}",
          "--overlap", "--kill-on-bad-exit=1", "--wait=30"};
      if (const char* const cores = get("SLURM_CPUS_PER_TASK")) allocation.start.push_back(format("--cpus-per-task={}", cores));
    }
  } else if (get("PBS_JOBID")) {
    use_hosts("PBS", "PBS_NODEFILE");
  } else if (get("LSB_JOBID")) {
    use_hosts("LSF", "LSB_DJOB_HOSTFILE");
  } else if (get("FLUX_ENCLOSING_ID")) {
    allocation = {"Flux", std::atoi(answers.flux_size.c_str())};
    allocation.start = {"flux", "run", "--nodes={nodes}", "--ntasks={ranks}", "--exclusive"};
  }
  if (allocation.nodes < 1 && !allocation.scheduler.empty())
    throw UserError(format("the number of nodes of this {0} job is unknown ({1} is no number); start this in a job of {0}",
                           allocation.scheduler,
                           allocation.scheduler == "Flux" ? "what flux getattr size prints" : "SLURM_JOB_NUM_NODES"));
  if (allocation.start.empty())
    allocation.start =
        is_open_mpi ? std::vector<std::string>{"mpirun",          "-np",       "{ranks}", "--map-by", "ppr:{per-node}:node",
                                               "--oversubscribe", "--bind-to", "none"}
                    : std::vector<std::string>{"mpiexec", "-n", "{ranks}", "--ppn", "{per-node}"};
  if (!template_words.empty()) {
    std::istringstream words(template_words);
    allocation.start.clear();
    for (std::string word; words >> word;) allocation.start.push_back(word);
    if (template_words.find_first_of("'\"") != template_words.npos)
      throw UserError(
          format("--launcher '{}' has a quote (spaces separate its words, and quotes have no meaning); leave it out, or put "
                 "the command into a script",
                 template_words));
    const auto has = [&](const char* name) { return template_words.find(name) != template_words.npos; };
    if (!has("{ranks}") && !(has("{nodes}") && has("{per-node}")))
      throw UserError(
          format("--launcher '{}' does not say how many ranks it starts (it needs {{ranks}}, or {{nodes}} and {{per-node}}); "
                 "write for example --launcher 'mpiexec -n {{ranks}} --ppn {{per-node}}'",
                 template_words));
  }
  return allocation;
}

Allocation find_allocation(const std::string& template_words) {
  const Environment get = [](const char* name) { return std::getenv(name); };
  SchedulerAnswers answers;
  const auto ask = [](const std::vector<std::string>& words) {
    const auto answer = ask_program(words, 20);
    return answer ? answer->text : std::string();
  };
  if (get("SLURM_JOB_ID")) answers.srun_mpi = ask({"srun", "--mpi=list"});
  if (get("FLUX_ENCLOSING_ID")) answers.flux_size = ask({"flux", "getattr", "size"});
  return find_allocation(get, MpiSession::library_version(), answers, template_words);
}

RankLayout choose_layout(const Allocation& allocation, int nodes, int per_node, int gpus) {
  const bool alone = allocation.scheduler.empty();
  if (nodes > allocation.nodes)
    throw UserError(
        format("--nodes {} is more than {} has; start this in a larger job, or give fewer nodes", nodes,
               alone ? std::string("this machine (1)") : format("the {} job ({})", allocation.scheduler, allocation.nodes)));
  for (const int known : {allocation.per_node, gpus, alone ? 2 : 0})
    if (per_node == 0) per_node = known;
  if (per_node == 0)
    throw UserError(format("the {} job does not say how many ranks a node gets; give --ranks-per-node", allocation.scheduler));
  return {nodes > 0 ? nodes : allocation.nodes, per_node};
}

ChildEnd run_ranks(const Allocation& allocation, RankLayout layout, double limit_s, const std::vector<std::string>& program,
                   const Variables& variables) {
  std::vector<std::string> words;
  if (!variables.empty()) {  // mpirun over ssh passes on only some variables
    words.emplace_back("env");
    for (const auto& [name, value] : variables)
      if (!value) words.insert(words.end(), {"-u", name});
    for (const auto& [name, value] : variables)
      if (value) words.push_back(name + "=" + *value);
  }
  words.insert(words.end(), program.begin(), program.end());
  return run_child({.words = launch_words(allocation, layout, limit_s, words),
                    .environment = variables,
                    .limit_s = limit_s + std::min(10.0, limit_s)});
}

std::vector<std::string> launch_words(const Allocation& allocation, RankLayout layout, double limit_s,
                                      const std::vector<std::string>& program) {
  std::vector<std::string> words = allocation.start;
  for (std::string& word : words) {
    replace_all(word, "{nodes}", layout.nodes);
    replace_all(word, "{per-node}", layout.per_node);
    replace_all(word, "{ranks}", layout.ranks());
  }
  for (const std::string& word : {std::string("timeout"), std::string("--signal=KILL"), format("{:.0f}", std::ceil(limit_s))})
    words.push_back(word);
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

}  // namespace fsdp
