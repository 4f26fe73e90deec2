#include "checkpoint/save_lock.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/batch_job.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// The owner that a lock file names. All fields are empty if the file names none.
struct LockOwner {
  std::string host;
  std::string job;                 // with its scheduler's name, as BatchJob::description()
  std::string slurm_job, cluster;  // of Slurm only
  std::int64_t process = 0, restarts = 0;

  std::string description() const { return format("process {} on {}{}{}", process, host, job.empty() ? "" : ", ", job); }
};

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

LockOwner myself() {
  const BatchJob job = batch_job();
  return {host_name(), job.description(), job.scheduler == Scheduler::slurm ? job.id : "", environment("SLURM_CLUSTER_NAME"),
          getpid(),    job.restarts};
}

/// Returns nothing if the file is not a lock file of this program. Returns an empty LockOwner if the file is empty or has only
/// the beginning of the text, because a run died while it wrote the file.
std::optional<LockOwner> read_owner(int fd) {
  char text[1024];
  const ssize_t n = ::pread(fd, text, sizeof text, 0);
  if (n == 0) return LockOwner{};  // the file has just been made
  check_errno(n >= 0, "read the lock file");
  if (n == sizeof text) return {};  // longer than any lock file of this program
  const std::string_view found(text, static_cast<std::size_t>(n)), ours = "{\"host\":";
  if (found.substr(0, ours.size()) != ours.substr(0, found.size())) return {};
  const nlohmann::json owner = parse_json(found);
  const auto is = [&](const char* key, bool (nlohmann::json::*kind)() const noexcept) {
    return owner.is_object() && owner.contains(key) && (owner[key].*kind)();
  };
  using Json = nlohmann::json;
  if (!is("host", &Json::is_string) || !is("slurm_job", &Json::is_string) || !is("process", &Json::is_number_integer)) {
    const bool is_beginning = found.find_first_of("}\n") == found.npos;
    return is_beginning ? std::optional(LockOwner{}) : std::nullopt;
  }
  const auto word = [&](const char* key) { return is(key, &Json::is_string) ? owner.value(key, "") : std::string(); };
  const BatchJob slurm_job = {Scheduler::slurm, word("slurm_job")};
  return LockOwner{word("host"),
                   slurm_job.id.empty() ? word("job") : slurm_job.description(),
                   slurm_job.id,
                   word("slurm_cluster"),
                   owner.value("process", std::int64_t{0}),
                   is("slurm_restarts", &Json::is_number_integer) ? owner["slurm_restarts"].get<std::int64_t>() : 0};
}

/// Returns true for errors of the storage, for which the advice "choose another folder" would be wrong.
bool is_of_the_disk(int error) { return error == EIO || error == ESTALE || error == ETIMEDOUT; }

[[noreturn]] void cannot_write(const fs::path& folder, const std::string& why) {
  throw UserError(format("checkpoints cannot be written to {} ({}); choose another `save folder`", folder.string(), why));
}

/// Opens the lock file, or makes it. Throws UserError for a file that is no lock file, and leaves that file unchanged.
int open_lock(const fs::path& folder, const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  const int error = fd < 0 ? errno : 0;
  struct stat info {};
  check_errno(!is_of_the_disk(error), "open " + path.string());
  if (error == EACCES && ::lstat(path.c_str(), &info) == 0)
    throw UserError(format("{} cannot be written ({}); make it writable, or remove it if no run saves to this folder",
                           path.string(), why_not_opened(path, error)));
  if (error != 0 && error != ELOOP && error != ENXIO && error != EISDIR) cannot_write(folder, why_not_opened(folder, error));
  const bool plain = fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink <= 1;
  try {
    if (plain && read_owner(fd)) return fd;
  } catch (const CallError&) {
    ::close(fd);
    throw;
  }
  if (fd >= 0) ::close(fd);
  throw UserError(
      format("{} is in the way (a run that saves here needs a lock file of this name, but this is {}); move it away, or choose "
             "another folder",
             path.string(), plain ? "not a lock file" : "a link, or not a plain file"));
}

}  // namespace

bool slurm_job_is_over(const std::string& job) {
  if (job.empty() || job.find_first_not_of("0123456789") != job.npos)
    return false;  // not a job's number: lock files may contain any text
  const std::optional<ProgramAnswer> squeue = ask_program({"squeue", "-h", "-o", "%A %T", "-j", job}, 10);
  if (!squeue) return false;
  // For a job that has ended squeue prints nothing for some minutes, later "Invalid job id". If the job's number is also that
  // of a whole array of jobs, squeue prints all jobs of the array.
  if (squeue->exit_code != 0) return squeue->text.find("Invalid job id") != std::string::npos;
  return ("\n" + squeue->text).find("\n" + job + " ") == std::string::npos;
}

SaveLock::SaveLock(const fs::path& save_dir, double patience_s, const EarlierStart& earlier_start)
    : folder_(save_dir), path_(save_dir / "lock") {
  std::error_code error;
  made_folder_ = fs::create_directories(folder_, error);
  if (is_of_the_disk(error.value())) throw CallError("make folder " + folder_.string(), error.message());
  const PathKind kind = kind_of(folder_);
  if (error && kind == PathKind::missing && fs::is_symlink(fs::symlink_status(folder_)))
    cannot_write(folder_, "it is a link to a missing folder");
  if (error || kind != PathKind::folder) cannot_write(folder_, error ? error.message() : "it is not a folder");
  const LockOwner me = myself();
  WaitTimer waited;
  bool asked = false;
  try {
    for (;;) {
      fd_ = open_lock(folder_, path_);
      const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
      const bool busy = !locked && errno == EWOULDBLOCK;  // another error means that the file system has no locks
      const LockOwner owner = read_owner(fd_).value_or(LockOwner{});
      // Each requeue of a job increases its number of restarts; two job steps of one start have the same number.
      const bool requeued = !owner.job.empty() && owner.job == me.job && owner.restarts < me.restarts;
      if (busy && requeued && !std::exchange(asked, true)) {
        ::lseek(fd_, 0, SEEK_END);
        [[maybe_unused]] const ssize_t told = ::write(fd_, "\n", 1);  // read by the owner's is_wanted()
        if (earlier_start.say)
          earlier_start.say(format("waiting until an earlier start of this job, {}, has saved to {} and ended",
                                   owner.description(), folder_.string()));
      }
      const bool stop = requeued && earlier_start.stop && earlier_start.stop();
      if (busy && !stop && waited.seconds() < (requeued ? std::max(patience_s, earlier_start.patience_s) : patience_s)) {
        ::close(std::exchange(fd_, -1));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      if (busy)
        throw RunError(format("{} is in use ({} saves there); wait until that run ends, or choose another folder",
                              folder_.string(), owner.host.empty() ? "another run" : owner.description()));
      if (locked && !is_file_at(fd_, path_)) {  // the last owner has removed the file in the meantime
        ::close(std::exchange(fd_, -1));
        continue;
      }
      const bool left_here = owner.host.empty() || (owner.host == me.host && locked);  // a dead process holds no flock
      if (left_here || requeued) break;
      const bool is_of_this_cluster = !me.cluster.empty() && owner.cluster == me.cluster;
      if (owner.job == me.job || !is_of_this_cluster || !slurm_job_is_over(owner.slurm_job))
        throw RunError(format("{} may be in use (by {}); wait until that run ends, or, if it has died, remove {}",
                              folder_.string(), owner.description(), path_.string()));
      taken_over_ =
          format("the lock file in {} is ignored: {}, which made the file, is over", folder_.string(), owner.description());
      break;
    }
    const std::string text = json_text(nlohmann::json{{"host", me.host},
                                                      {"process", me.process},
                                                      {"slurm_job", me.slurm_job},
                                                      {"job", me.job},
                                                      {"slurm_cluster", me.cluster},
                                                      {"slurm_restarts", me.restarts},
                                                      {"since", std::time(nullptr)}}) +
                             "\n";
    const bool written =
        ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
    mark_bytes_ = text.size();
    if (!written) {
      const int why = errno;
      static_cast<void>(::ftruncate(fd_, 0));  // an empty lock file is better than the beginning of a text
      errno = why;
      throw RunError(format("{} could not be written ({}); free some space, check the disk, or choose another `save folder`",
                            path_.string(), std::strerror(errno)));
    }
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    if (made_folder_) ::rmdir(folder_.c_str());
    throw;
  }
}

void SaveLock::require_held() const {
  if (is_file_at(fd_, path_)) return;
  throw RunError(format(
      "{} is no longer this run's save folder ({} is missing or belongs to another run); somebody has moved or replaced the "
      "folder, or removed the file; put the folder back or choose another one, and resume from the last checkpoint",
      folder_.string(), path_.string()));
}

SaveLock::~SaveLock() {
  bool ours = false;
  try {
    ours = is_file_at(fd_, path_);
  } catch (const CallError&) {  // the file remains; once this process has ended, it locks nothing on this host
  }
  if (ours && ::unlink(path_.c_str()) != 0 && errno != ENOENT)
    print_warning(format("{} could not be removed ({}); remove it, or runs on other hosts are refused", path_.string(),
                         std::strerror(errno)));
  ::close(fd_);
  if (ours && made_folder_) ::rmdir(folder_.c_str());  // fails if the folder is not empty
}

bool SaveLock::is_wanted() {
  if (wanted_ || since_look_.seconds() < 1) return wanted_;
  since_look_.restart();
  struct stat info {};
  wanted_ = ::fstat(fd_, &info) == 0 && static_cast<std::size_t>(info.st_size) > mark_bytes_;
  return wanted_;
}

}  // namespace fsdp
