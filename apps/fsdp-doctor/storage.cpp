#include "fsdp-doctor/storage.hpp"

#include <fcntl.h>
#include <mntent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "device/file_storage.hpp"
#include "files/output_file.hpp"
#include "h5/h5.hpp"
#include "machine/measure.hpp"
#include "machine/storage_rate.hpp"
#include "options/options.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

// The longest time until a new file becomes visible on another node. It is short: NFS clients ask the server for a file name
// that they do not have in their caches.
constexpr double seen_within_s = 3;

std::string name_of_node(std::size_t node) { return format("node-{}", node); }

/// Waits until the file contains `text`, for some seconds at most. Returns the reason of a failure; empty on success.
std::string why_not_read(const fs::path& path, const std::string& text) {
  const Timer timer;
  for (;;) {
    errno = 0;
    std::ifstream file(path);
    std::string found;
    if (file && std::getline(file, found) && found == text) return "";
    const std::string why = file.is_open() ? "its content differs from what was written" : std::strerror(errno);
    if (timer.seconds() > seen_within_s) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Writes the file. Returns the reason of a failure; empty on success.
std::string why_not_written(const fs::path& path, const std::string& text) {
  try {
    write_text_file_durably(path, text + "\n");
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Writes a small file in the same way as a checkpoint's files, and reads it. Returns the reason of a failure; empty on
/// success.
std::string why_not_hdf5(const fs::path& path) {
  try {
    const std::size_t n = 1000;
    std::vector<float> written(n), read(n);
    for (std::size_t i = 0; i < n; ++i) written[i] = static_cast<float>(i) / 7;
    h5::File out = h5::File::create(path);
    out.create_dataset("numbers", {n}).write({0, n}, written.data());
    out.seal();
    const h5::File in = h5::File::open(path);
    if (!in.is_checked()) return "the file has no checksums";
    in.dataset("numbers").read({0, n}, read.data());
    return read == written ? "" : "the numbers read differ from those written";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

ProbeFolder::ProbeFolder(const fs::path& save_dir) : made_save_dir_(kind_of(save_dir) == PathKind::missing) {
  try {
    path_ = mine_.emplace(save_dir, ".fsdp-doctor").path();
  } catch (const UserError&) {
    if (made_save_dir_) ::rmdir(save_dir.c_str());
    throw;
  }
}

ProbeFolder::~ProbeFolder() {
  mine_.reset();
  if (made_save_dir_) ::rmdir(path_.parent_path().c_str());  // fails if the folder is not empty
}

std::string file_system_of(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  std::string kind = "unknown";
  std::size_t longest = 0;
  std::FILE* const mounts = ::setmntent("/proc/self/mounts", "r");
  if (!mounts) return kind;
  mntent entry{};
  char text[4096];
  while (::getmntent_r(mounts, &entry, text, sizeof text)) {
    const fs::path at = entry.mnt_dir;
    const auto [end, unused] = std::mismatch(at.begin(), at.end(), whole.begin(), whole.end());
    if (at != "/" && end != at.end()) continue;
    const std::size_t length = at.string().size();
    if (length < longest) continue;  // if two mounts have the same path, the later one hides the earlier
    longest = length;
    kind = entry.mnt_type;
  }
  ::endmntent(mounts);
  return excerpt(kind, 30);
}

Finding judge_save_folder(const std::string& folder, const std::string& file_system, const std::vector<FolderUse>& nodes) {
  Finding finding{.text = format("{} ({})", folder, file_system)};
  finding.figures = {{"folder", folder}, {"file_system", file_system}};
  std::vector<std::string> blind, mute;
  std::string why_blind, why_mute;
  for (const FolderUse& use : nodes) {
    finding.figures["problems"][use.node] = use.read_problem.empty() ? use.write_problem : use.read_problem;
    if (!use.read_problem.empty()) {
      blind.push_back(use.node);
      why_blind = use.read_problem;
    } else if (!use.write_problem.empty() || !use.is_seen) {
      mute.push_back(use.node);
      why_mute = use.write_problem.empty() ? format("{} cannot read the file written there", nodes[0].node) : use.write_problem;
    }
  }
  if (!blind.empty()) {
    finding.text += format(": files written by {} cannot be read on {} ({})", nodes[0].node, list_of(blind), why_blind);
    finding.fail(
        "choose a --save-dir on a file system that all nodes share; a folder such as /tmp is a different one on each node");
  } else if (!mute.empty()) {
    finding.text += format(" cannot be written to on {} ({})", list_of(mute), why_mute);
    finding.fail("give this user write permission there on all nodes, or choose another --save-dir");
  } else {
    if (nodes.size() > 1) finding.text += format(": all {} nodes read and write it", nodes.size());
    if (file_system == "tmpfs" || file_system == "ramfs") {
      finding.text += nodes.size() > 1 ? "; it is in the memory of one machine" : " is in this machine's memory";
      finding.warn("choose a --save-dir on a disk: files in memory are lost when the machine stops, and take memory from jobs");
    }
  }
  return finding;
}

Finding judge_hdf5(const std::string& headers, const std::string& library, const std::vector<std::string>& nodes,
                   const std::vector<std::string>& problems) {
  Finding finding{.text = format("HDF5 {}: a small file was written and read, with checksums{}", library,
                                 nodes.size() > 1 ? ", by each node" : "")};
  finding.figures = {{"library", library}, {"headers", headers}};
  if (headers != library) {
    finding.text = format("fsdp was built with HDF5 {}, but loads {}", headers, library);
    finding.fail(
        "build it again, or load the module of the version that it was built with (HDF5 aborts a program if the two differ)");
    return finding;
  }
  std::vector<std::string> bad;
  std::string why;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!problems[i].empty()) {
      bad.push_back(nodes[i]);
      why = problems[i];
    }
  if (bad.empty()) return finding;
  finding.text = format("HDF5 {} fails on {} ({})", library, list_of(bad), excerpt(why, 300));
  finding.fail("check the disk and the permissions there, or choose another --save-dir");
  return finding;
}

Finding judge_state_folder(const std::string& folder, const std::vector<StateFolder>& nodes) {
  constexpr double slow = 0.5;  // of the other nodes' median
  Finding finding;
  std::vector<std::string> names, systems, bad, problems, advice;
  std::vector<double> rates;
  const auto least = [&](double StateFolder::*value) { return (*std::ranges::min_element(nodes, {}, value)).*value; };
  for (const StateFolder& node : nodes) {
    names.push_back(node.node);
    systems.push_back(node.file_system);
    finding.figures[node.node] = {{"file_system", node.file_system}, {"problem", node.problem},
                                  {"warning", node.warning},         {"free_bytes", node.free_bytes},
                                  {"write_bytes_per_s", node.write}, {"read_bytes_per_s", node.read},
                                  {"both_bytes_per_s", node.both}};
    if (!node.problem.empty()) bad.push_back(node.node);
  }
  if (!bad.empty()) {
    const auto first = std::find_if(nodes.begin(), nodes.end(), [](const StateFolder& node) { return !node.problem.empty(); });
    Finding failed = failed_by(first->problem);
    failed.text = nodes.size() > 1 ? format("{}: {}", list_of(bad), failed.text) : failed.text;
    failed.figures = std::move(finding.figures);
    return failed;
  }
  const auto rate = [](double bytes) { return format("{:.2f}", bytes / 1e9); };
  finding.text = format("{} ({}): {} free; {} writes {}, reads {} and both at once {} GB/s", folder, by_value(names, systems),
                        format_bytes(least(&StateFolder::free_bytes)), nodes.size() > 1 ? "each node at least" : "a file",
                        rate(least(&StateFolder::write)), rate(least(&StateFolder::read)), rate(least(&StateFolder::both)));
  for (const StateFolder& node : nodes) {
    if (!node.warning.empty() && problems.empty()) {
      const Finding why = failed_by(node.warning);
      problems.push_back(why.text), advice.push_back(why.advice);
    }
    std::vector<double> others;
    for (const StateFolder& other : nodes)
      if (&other != &node) others.push_back(other.both);
    if (nodes.size() > 2 && node.both < slow * median(others)) {
      problems.push_back(format("{} reaches {:.0f} % of the others' median", node.node, 100 * node.both / median(others)));
      advice.push_back(format("check the drive of {0} (smartctl, fstrim), or leave it out (sbatch --exclude={0})", node.node));
    }
  }
  if (problems.empty()) return finding;
  finding.text += format("; {}", fmt::join(problems, "; "));
  finding.warn(format("{}", fmt::join(advice, "; ")));
  return finding;
}

std::optional<Finding> check_save_folder(DoctorJob& job) {
  const bool first = job.world->rank() == 0;
  const std::string mark = "written by fsdp-doctor";
  std::unique_ptr<ProbeFolder> probe;
  std::string problem, name;
  if (first) try {
      probe = std::make_unique<ProbeFolder>(job.options.save_dir);
      name = probe->path().filename().string();
      problem = why_not_written(probe->path() / name_of_node(0), mark);
    } catch (const UserError& error) {
      problem = error.what();
    }
  name = job.world->gather(name)[0];
  problem = job.world->gather(problem)[0];
  if (!problem.empty()) return failed_by(problem);
  if (!first) probe = std::make_unique<ProbeFolder>(job.options.save_dir, name);

  // Node 0 has written a file. The other nodes read that file and write one each; then node 0 reads the files of all nodes.
  std::string read_problem, write_problem;
  if (job.is_leader() && !first) {
    read_problem = why_not_read(probe->path() / name_of_node(0), mark);
    if (read_problem.empty()) write_problem = why_not_written(probe->path() / name_of_node(job.my_node()), mark);
  }
  const std::vector<std::string> reads = job.of_nodes(read_problem);
  const std::vector<std::string> writes = job.of_nodes(write_problem);
  std::vector<FolderUse> uses;
  bool usable = true;
  for (std::size_t i = 0; i < job.nodes.size(); ++i) {
    const bool written = reads[i].empty() && writes[i].empty();
    const bool seen = !written || !first || why_not_read(probe->path() / name_of_node(i), mark).empty();
    uses.push_back({job.nodes[i], reads[i], writes[i], seen});
    usable = usable && written;
  }
  std::error_code error;
  const fs::path whole = fs::absolute(job.options.save_dir, error).lexically_normal();
  const Finding finding =
      judge_save_folder((error ? job.options.save_dir : whole).string(), first ? file_system_of(probe->path()) : "", uses);
  if (usable) job.probe = std::move(probe);
  return finding;
}

std::optional<Finding> check_hdf5(DoctorJob& job) {
  const std::string headers = h5::header_version(), library = h5::library_version();
  const bool same = job.world->all(headers == library);
  std::string problem;
  if (same && job.is_leader()) {
    // If the save folder cannot be used, HDF5 is tested in this node's folder for temporary files.
    std::optional<ProbeFolder> own;
    try {
      if (!job.probe) own.emplace(fs::temp_directory_path());
      const fs::path& folder = job.probe ? job.probe->path() : own->path();
      problem = why_not_hdf5(folder / format("{}.h5", name_of_node(job.my_node())));
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  return judge_hdf5(headers, library, job.nodes, job.of_nodes(problem));
}

std::optional<Finding> check_state_folder(DoctorJob& job) {
  const fs::path& folder = job.options.nvme_path;
  if (folder.empty()) return std::nullopt;
  constexpr std::size_t unit = std::size_t{4} << 20, of_node = std::size_t{128} << 20;
  const std::size_t bytes = std::max(of_node / static_cast<std::size_t>(job.node->size()) / unit, std::size_t{1}) * unit;
  StateFolder mine;
  try {
    std::unique_ptr<Storage> storage;
    std::optional<StoragePasses> passes;
    agree(*job.node, [&] {
      mine.warning = with_option_names(check_storage_folder(folder));
      mine.free_bytes = static_cast<double>(free_bytes_of(folder));
      storage = make_file_storage(folder, bytes, *job.device);
      passes.emplace(*job.device, *storage, bytes);
    });
    // The first pass only gets the file's blocks from the file system.
    for (const auto& [pass, rate] : {std::pair(FilePass::write, &StateFolder::write),
                                     {FilePass::write, &StateFolder::write},
                                     {FilePass::read, &StateFolder::read},
                                     {FilePass::both, &StateFolder::both}})
      mine.*rate = rate_of_pass(*job.node, bytes, [&] { passes->run(pass); });
  } catch (const CollectiveError& error) {
    mine.problem = with_option_names(error.what());
  }
  const std::vector<std::string> systems = job.of_nodes(file_system_of(folder)), problems = job.of_nodes(mine.problem),
                                 warnings = job.of_nodes(mine.warning);
  const std::vector<double> free = job.of_nodes(mine.free_bytes), writes = job.of_nodes(mine.write),
                            reads = job.of_nodes(mine.read), both = job.of_nodes(mine.both);
  std::vector<StateFolder> nodes;
  for (std::size_t i = 0; i < job.nodes.size(); ++i)
    nodes.push_back({job.nodes[i], systems[i], problems[i], warnings[i], free[i], writes[i], reads[i], both[i]});
  return judge_state_folder(folder.string(), nodes);
}

}  // namespace fsdp
