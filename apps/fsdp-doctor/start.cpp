#include "fsdp-doctor/start.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "base/batch_job.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "checkpoint/save_lock.hpp"
#include "h5/h5.hpp"
#include "kernels/kernels.hpp"
#include "machine/machine.hpp"

namespace fsdp {

namespace {

constexpr double patience_s = 5;  // the longest wait for other programs

bool is_open_mpi(std::string_view library) { return library.starts_with("Open MPI"); }

/// Returns true if the output of `srun --mpi=list` ("MPI plugin types are... pmix pmix_v4 ...") names the one that this MPI
/// uses.
bool has_plugin(const std::string& plugins, const std::string& library) {
  std::istringstream words(plugins);
  for (std::string word; words >> word;)
    if (word.starts_with(srun_plugin(library))) return true;
  return false;
}

const char* const build_with = "build fsdp with the MPI of that launcher (-DMPI_CXX_COMPILER=.../bin/mpicxx)";

}  // namespace

Start how_started(const std::string& library, const Environment& get) {
  return {launched_ranks(get), launcher_name(get), library.substr(0, library.find_first_of(",\n\r"))};
}

Finding judge_alone(const Start& start, const std::optional<std::string>& plugins) {
  const bool by_srun = start.launcher.starts_with("srun");
  Finding finding{
      .status = Status::failed,
      .text = format("{} has started {} ranks, and {} cannot connect them: each would be a job of one rank, or end at once",
                     start.launcher, start.launched.count, start.library)};
  if (!by_srun)
    finding.advice = format("start the job with mpirun of {}, or {}", start.library, build_with);
  else if (plugins && has_plugin(*plugins, start.library))
    finding.advice = format("start the job with srun --mpi={}, which this Slurm supports", srun_plugin(start.library));
  else
    finding.advice = format(
        "start the job with mpirun of {} inside sbatch or salloc; `srun --mpi=list` lists no plugin here that this MPI "
        "supports",
        start.library);
  finding.figures = {{"launched", start.launched.count}, {"ranks", 1}};
  return finding;
}

Finding judge_mpi(const Start& start, const std::vector<std::string>& nodes, const std::vector<std::size_t>& ranks,
                  const std::optional<std::string>& mpirun) {
  Finding finding;
  const std::size_t all = std::accumulate(ranks.begin(), ranks.end(), std::size_t{0});
  finding.figures = {{"library", start.library}, {"launcher", start.launcher}, {"ranks", all}, {"nodes", nodes.size()}};
  if (!start.launcher.empty()) {
    finding.text = format("{} connects {} on {}; started by {}", start.library, plural(all, "rank"),
                          plural(nodes.size(), "node"), start.launcher);
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    if (*least == *most) return finding;
    finding.text += format("; {} has {}, and {} has {}", nodes[static_cast<std::size_t>(most - ranks.begin())], *most,
                           nodes[static_cast<std::size_t>(least - ranks.begin())], *least);
    finding.warn(
        "start the same number of ranks on each node (srun --ntasks-per-node, mpirun --map-by ppr:N:node): otherwise "
        "communication ignores nodes, and the node with the most ranks limits the speed");
    return finding;
  }
  finding.text = format("{}; one rank, started without a launcher", start.library);
  if (!mpirun || !is_open_mpi(start.library)) {
    finding.text += mpirun ? "" : "; there is no mpirun in the PATH";
    return finding;
  }
  // Compares "mpirun (Open MPI) 4.1.4", of mpirun --version, with "Open MPI v4.1.4", of the library.
  const std::string version = start.library.substr(std::min(start.library.size(), std::string_view("Open MPI v").size()));
  const std::string first = mpirun->substr(0, mpirun->find('\n'));
  if (first.find("Open MPI") == std::string::npos) {
    finding.text += format("; mpirun belongs to another MPI ({})", excerpt(first, 60));
    finding.warn(format("put mpirun of {} first in the PATH, or {}", start.library, build_with));
  } else if (first.find(version) == std::string::npos) {
    finding.text += format("; mpirun belongs to another version ({})", excerpt(first, 60));
    finding.warn(format("put mpirun of {} first in the PATH", start.library));
  }
  return finding;
}

Finding judge_slurm(const SlurmFacts& slurm, const Start& start, std::size_t ranks, std::size_t nodes) {
  Finding finding;
  const std::string plugin = srun_plugin(start.library), protocol = plugin == "pmix"   ? "PMIx"
                                                                    : plugin == "pmi2" ? "PMI2"
                                                                                       : plugin;
  const bool has_it = slurm.plugins && has_plugin(*slurm.plugins, start.library);
  const std::string srun = !slurm.plugins ? "there is no srun here"
                           : has_it       ? "srun has " + protocol
                                          : format("srun has no {}: start jobs with mpirun", protocol);
  finding.figures = {{"job", slurm.job}, {"nodes", slurm.nodes}, {"tasks", slurm.tasks}};
  if (slurm.job.empty()) {
    finding.text = slurm.plugins ? format("this is not a Slurm job; {}", srun) : "this is not a Slurm job";
    if (!slurm.other_job.empty()) finding.text += format(", but {}", slurm.other_job);
    return finding;
  }
  if (slurm.is_over) {
    finding.text =
        format("SLURM_JOB_ID is {}, and that job is over: srun and mpirun would try to use its nodes, and fail", slurm.job);
    finding.warn("unset the variables of that job (in bash: unset ${!SLURM_*}), or open a new shell");
    return finding;
  }
  finding.text = format("job {} with {} and {}; {}", slurm.job, plural(slurm.nodes, "node"), plural(slurm.tasks, "task"), srun);
  const bool is_alone = ranks == 1 && start.launcher.empty();
  if (is_alone && (slurm.tasks > 1 || slurm.nodes > 1)) {
    finding.text += "; but this is one rank, which no launcher has started on the job's nodes";
    finding.warn(has_it ? "start it with srun --mpi=" + plugin : "start it with mpirun");
  } else if (nodes < slurm.nodes) {
    finding.text += format("; but there are ranks on {} only", plural(nodes, "node"));
    finding.warn(
        format("start ranks on all of them (srun --nodes={0}, or mpirun with a multiple of {0} ranks), or request fewer nodes",
               slurm.nodes));
  }
  return finding;
}

std::optional<std::string> plugins_of_srun() {
  const auto answer = ask_program({"srun", "--mpi=list"}, patience_s);
  return answer && answer->exit_code == 0 ? std::optional(answer->text) : std::nullopt;
}

std::optional<Finding> check_mpi(DoctorJob& job) {
  std::optional<std::string> mpirun;
  if (job.start.launcher.empty())
    if (const auto answer = ask_program({"mpirun", "--version"}, patience_s)) mpirun = answer->text;
  return judge_mpi(job.start, job.nodes, job.ranks_of, mpirun);
}

std::optional<Finding> check_slurm(DoctorJob& job) {
  if (job.world->rank() != 0) return Finding{};  // only rank 0 asks Slurm
  SlurmFacts slurm;
  if (const char* const id = std::getenv("SLURM_JOB_ID"))
    slurm = {.job = excerpt(id, 20),
             .nodes = std::max<std::size_t>(1, number_in_environment("SLURM_JOB_NUM_NODES")),
             .tasks = std::max<std::size_t>(1, number_in_environment("SLURM_NTASKS")),
             .plugins = {},
             .is_over = slurm_job_is_over(id)};
  else
    slurm.other_job = batch_job().description();
  slurm.plugins = plugins_of_srun();
  return judge_slurm(slurm, job.start, job.node_of.size(), job.nodes.size());
}

std::optional<Finding> check_software(DoctorJob& job) {
  const std::string gemm = kernels::gemm_description();
  const std::string mine = format("fsdp {}, {}, HDF5 {}, {}", version_string(), job.start.library, h5::library_version(),
                                  gemm.substr(0, gemm.find(',')));
  const std::vector<std::string> all = job.of_nodes(mine);
  Finding finding{.text = by_value(job.nodes, all)};
  if (!all_equal(all)) {
    finding.fail("use the same programs and libraries on all nodes, from a folder that they share");
  }
  for (std::size_t i = 0; i < all.size(); ++i) finding.figures[job.nodes[i]] = all[i];
  return finding;
}

}  // namespace fsdp
