#include "comm/mpi_session.hpp"

#include <dlfcn.h>
#include <link.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi/check_mpi.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace fsdp {

namespace {

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> libraries;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* names) {
        static_cast<std::vector<std::string>*>(names)->emplace_back(library->dlpi_name);
        return 0;
      },
      &libraries);
  return libraries;
}

/// A program that is linked with one MPI and uses a libfsdp of another one would call a mixture of both.
void require_one_mpi() {
  std::vector<std::string> found;
  for (const std::string& library : loaded_libraries()) {
    const std::string name = std::filesystem::path(library).filename();
    if (name.starts_with("libmpi.so") || name.starts_with("libmpich.so")) found.push_back(library);
  }
  if (found.size() > 1)
    throw UserError(
        format("this process has loaded two MPIs ({} and {}; libfsdp or another library was built with another one than the "
               "program); build all of them with the same MPI",
               found[0], found[1]));
}

/// With too few descriptors, MPI_Init prints pages, and leaves Open MPI's daemon of a job without mpirun running.
void require_open_files() {
  constexpr std::size_t least = 32;  // Open MPI 4.1 needs 28 with one rank
  if (const std::size_t most = allow_open_files(least); most < least)
    throw UserError(
        format("this process may open only {} files at once (MPI needs at least {}); raise the limit, as with "
               "ulimit -n 1024",
               most, least));
}

/// Calls MPI_Finalize. Open MPI unloads its modules there while its progress thread still runs, and an event that reaches the
/// thread in this time calls a function that is gone (4.1.4 closes mca_pmix_ext3x.so before the thread ends). So every library
/// that is loaded now stays in memory until the process ends.
void finalize_mpi() {
  for (const std::string& library : loaded_libraries())
    if (!library.empty()) dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  MPI_Finalize();
}

}  // namespace

MpiSession::MpiSession() {
  int none = 0;
  char** words = nullptr;
  start(none, words);
}

MpiSession::MpiSession(int& argc, char**& argv) { start(argc, argv); }

void MpiSession::start(int& argc, char**& argv) {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  const LaunchedRanks launched = launched_ranks(environment);
  require_one_mpi();
  int level = MPI_THREAD_SINGLE, is_there = 0;
  FSDP_CHECK_MPI(MPI_Initialized(&is_there));
  if (is_over())
    throw UserError(
        "MPI was finalized in this process and cannot start again; keep one job for the whole program, or call MPI_Init in the "
        "program itself");
  began_here_ = is_there == 0;
  if (began_here_) {
    require_open_files();
    const std::string library = library_version();
    if (ranks_stay_alone(launched, library, has_client(), environment)) {
      // Launchers end all ranks as soon as one fails, so the others wait for the message of the first.
      if (launched_rank(environment) != 0) std::this_thread::sleep_for(std::chrono::seconds(3));
      require_own_launcher(launched, 1, library, environment);
    }
    // Without a launcher, Open MPI starts a daemon, which only MPI_Comm_spawn needs. MPI_Init and MPI_Finalize wait for it.
    setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/0);
    FSDP_CHECK_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level));
    expect(level >= MPI_THREAD_SERIALIZED, "MPI supports the thread level SERIALIZED");
    FSDP_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    FSDP_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  }
  FSDP_CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  FSDP_CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  try {
    require_own_launcher(launched, size_, library_version(), environment);
  } catch (...) {
    if (began_here_) finalize_mpi();  // this is the only rank, so MPI_Finalize does not wait
    throw;
  }
}

bool MpiSession::is_over() {
  int is_over = 0;
  FSDP_CHECK_MPI(MPI_Finalized(&is_over));
  return is_over != 0;
}

MpiSession::~MpiSession() {
  if (began_here_ && std::uncaught_exceptions() == uncaught_at_start_) finalize_mpi();
}

namespace {

/// Returns the texts of all ranks, each cut to 63 bytes.
std::vector<std::string> gather_texts(std::string mine, std::size_t ranks) {
  constexpr int length = 64;
  std::string all(ranks * length, '\0');
  mine.resize(length - 1);
  mine.resize(length);
  FSDP_CHECK_MPI(MPI_Allgather(mine.data(), length, MPI_CHAR, all.data(), length, MPI_CHAR, MPI_COMM_WORLD));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) texts.emplace_back(all.c_str() + r * length);
  return texts;
}

// Sets job.nodes (which ranks share a node) and job.hosts (the names of the hosts), with the same values on all ranks.
void find_nodes(MpiJob& job, const std::string& host, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  int node = rank;
  if (job.options.ranks_per_node > 0) {
    node = rank / job.options.ranks_per_node;
  } else {
    MPI_Comm neighbours = MPI_COMM_NULL;
    FSDP_CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &neighbours));
    FSDP_CHECK_MPI(MPI_Bcast(&node, 1, MPI_INT, 0, neighbours));
    FSDP_CHECK_MPI(MPI_Comm_free(&neighbours));
  }
  job.nodes.resize(ranks);
  FSDP_CHECK_MPI(MPI_Allgather(&node, 1, MPI_INT, job.nodes.data(), 1, MPI_INT, MPI_COMM_WORLD));
  job.hosts = gather_texts(host, ranks);
}

}  // namespace

std::unique_ptr<Communicator> MpiSession::world(const CommOptions& options) {
  expect(options.piece_bytes > 0 && options.piece_bytes < std::size_t{1} << 31, "MPI counts bytes of a message in int");
  // wait_all() gives this barrier a time limit. The MPI calls below have none.
  MPI_Request all_here = MPI_REQUEST_NULL;
  FSDP_CHECK_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &all_here));
  if (!wait_all({&all_here, 1}, options.timeout_s, /*given_up=*/std::atomic(false)))
    throw RunError(
        format("after {}, not all of {} ranks have connected (all must connect at the same time); make every rank connect, or "
               "raise `longest wait`",
               format_duration(options.timeout_s), size_));
  const auto job = std::make_shared<MpiJob>();
  job->options = options;
  find_nodes(*job, host(), rank_, size_);
  require_one_program(job->hosts, gather_texts(version_string(), job->hosts.size()));
  MPI_Comm world = MPI_COMM_NULL;
  FSDP_CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &world));
  FSDP_CHECK_MPI(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));  // communicators that are split from `world` inherit it
  return connect(std::make_unique<MpiCommunicator>(world, job));
}

std::string MpiSession::host() const {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  FSDP_CHECK_MPI(MPI_Get_processor_name(name, &length));
  return std::string(name, static_cast<std::size_t>(length));
}

void MpiSession::abort_job(int code) noexcept {
  std::fflush(nullptr);
  if (size_ == 1) {
    // There is no other process to end, and MPI_Abort would print a paragraph after our message.
    finalize_mpi();
  } else {
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  std::_Exit(code);
}

bool MpiSession::has_client() {
  namespace fs = std::filesystem;
  if (!library_version().starts_with("Open MPI")) {
    const std::vector<std::string> libraries = loaded_libraries();
    return std::getenv("I_MPI_PMI_LIBRARY") != nullptr ||
           std::any_of(libraries.begin(), libraries.end(),
                       [](const fs::path& library) { return library.filename().string().starts_with("libpmi"); });
  }
  // Open MPI 4 and older support PMI by modules in a folder next to the library.
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&MPI_Init), &library) == 0) return true;
  std::error_code error;
  bool has_modules = false, has_pmi = false;
  const bool by_flux = std::getenv("FLUX_PMI_LIBRARY_PATH") != nullptr;  // flux run sets it
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::canonical(library.dli_fname, error).parent_path(), error)) {
    if (!entry.path().filename().string().starts_with("openmpi")) continue;
    has_modules = true;
    for (const char* module : {"mca_pmix_s1.so", "mca_pmix_s2.so"})
      has_pmi = has_pmi || fs::exists(entry.path() / module, error);
    for (const char* folder : {"", "lib/openmpi3"})  // the latter in Debian
      has_pmi = has_pmi || (by_flux && fs::exists(entry.path() / folder / "mca_pmix_flux.so", error));
  }
  return has_pmi || !has_modules;
}

std::string MpiSession::library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  FSDP_CHECK_MPI(MPI_Get_library_version(text, &length));
  // Open MPI includes the final NUL in `length`.
  std::string version(text, static_cast<std::size_t>(length));
  version.resize(std::min(version.size(), version.find_first_of(std::string_view("\n\0", 2))));
  if (version.starts_with("MPICH Version:")) version = "MPICH " + version.substr(version.find_last_of(" \t:") + 1);
  return version;
}

}  // namespace fsdp
