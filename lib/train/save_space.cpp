#include "train/save_space.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <sys/statvfs.h>

#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "files/lustre.hpp"

namespace fsdp {

namespace {

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

Room room_of(const std::filesystem::path& folder) {
  struct statvfs info {};
  Room room;
  if (::statvfs(folder.c_str(), &info) != 0) return room;
  room.bytes = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  if (info.f_files > 0) room.files = info.f_favail;  // some file systems have no fixed number
  return room;
}

}  // namespace

std::uint64_t steps_in(const std::filesystem::path& folder) {
  std::uint64_t steps = 0;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing))
    steps += stored::update_of_step_name(entry.path().filename().string()).has_value();
  return steps;
}

std::uint64_t files_of_step(int files, int ranks) {
  return static_cast<std::uint64_t>(files > 0 ? std::min(files, ranks) : ranks) + 3;  // the index, the marker and the folder
}

std::uint64_t other_files(int ranks) { return static_cast<std::uint64_t>(ranks) + 8; }

std::uint64_t steps_to_add(const SaveOptions& options, std::uint64_t existing, std::uint64_t update, std::uint64_t last) {
  const auto multiples = [&](std::uint64_t n) { return n == 0 || last <= update ? 0 : last / n - update / n; };
  if (options.keep_last > 0)  // the oldest step is removed after the new one is complete
    return options.keep_last + 1 - std::min<std::uint64_t>(existing, options.keep_last) + multiples(options.keep_every) +
           (options.keep_best.empty() ? 0 : 1);
  return std::max<std::uint64_t>(1, multiples(options.interval_updates));
}

std::string judge_room(const std::filesystem::path& folder, const WillWrite& need, const Room& room, const std::string& limit) {
  const auto has = [&](const std::string& left, const std::string& one, const std::string& all) {
    return format("{} has room for {} only, by {} (a checkpoint has {}, and this run will add {} of them: {})", folder.string(),
                  left, limit, one, need.steps, all);
  };
  constexpr const char* remedy = "free some, raise the quota, give --keep-last or another --save-dir";
  std::string problem;
  bool one_fits = true;
  if (room.bytes && *room.bytes < need.steps * need.step_bytes) {
    one_fits = *room.bytes >= need.step_bytes;
    problem = has(bytes_text(*room.bytes), bytes_text(need.step_bytes), bytes_text(need.steps * need.step_bytes));
  } else if (room.files && *room.files < need.steps * need.step_files + need.other_files) {
    one_fits = *room.files >= need.step_files + need.other_files;
    problem = has(format("{} files", *room.files), format("{} files", need.step_files),
                  format("{} files, and {} others", need.steps * need.step_files, need.other_files));
  }
  if (!one_fits) throw RunError(format("{}; {}", problem, remedy));
  return problem.empty() ? "" : format("{}; {}", problem, remedy);
}

std::vector<std::pair<std::string, Room>> rooms_of(const std::filesystem::path& folder) {
  std::vector<std::pair<std::string, Room>> rooms = {{"the free space of its file system", room_of(folder)}};
  if (!is_on_lustre(folder)) return rooms;
  const QuotaLeft left = quota_left(folder);
  rooms.emplace_back("your quota", Room{left.bytes, left.files});
  return rooms;
}

std::string path_on_scratch(const std::vector<std::filesystem::path>& paths, const std::string& scratch) {
  const auto is_scratch = [](std::string name) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name.find("scratch") != std::string::npos;
  };
  for (const std::filesystem::path& path : paths) {
    const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
    const std::filesystem::path below = scratch.empty() ? "" : whole.lexically_relative(scratch);
    const std::filesystem::path folder = whole.parent_path();
    if ((!below.empty() && *below.begin() != "..") ||
        std::any_of(folder.begin(), folder.end(), [&](const auto& name) { return is_scratch(name.string()); }))
      return path.string();
  }
  return "";
}

void check_save_folder(const RunContext& run, const Layout& layout, bool with_average, const Progress& progress,
                       std::uint64_t last) {
  const TrainOptions& options = run.options;
  const std::filesystem::path& folder = options.save.folder;
  std::vector<std::string> warnings;
  agree(run.world, [&] {
    if (run.world.rank() != 0 || options.save.none) return;
    const bool lustre = is_on_lustre(folder);
    if (!options.stripe.empty())
      if (const std::string why =
              lustre ? set_striping(folder, *parse_stripe(options.stripe)) : format("{} is not on Lustre", folder.string());
          !why.empty())
        warnings.push_back(format("--stripe {} does nothing ({})", options.stripe, why));
    if (lustre) run.log.say(format("new files in {} on Lustre: {}", folder.string(), striping_of(folder)));
    const int ranks = run.world.size();
    if (options.save.files > ranks)
      warnings.push_back(format("--files-per-checkpoint {} is more than {}: each rank writes a file of its own",
                                options.save.files, plural(ranks, "rank")));
    remove_unfinished_steps(folder);  // as a save would: this rank has the lock of the folder
    const WillWrite need = {step_bytes(layout, with_average), files_of_step(options.save.files, ranks),
                            steps_to_add(options.save, steps_in(folder), progress.update, last), other_files(ranks)};
    std::string shortage;
    for (const auto& [limit, room] : rooms_of(folder))
      if (shortage.empty()) shortage = judge_room(folder, need, room, limit);
    warnings.push_back(shortage);
    const char* const scratch = std::getenv("SCRATCH");
    if (const std::string path = path_on_scratch({folder, options.data}, scratch ? scratch : ""); !path.empty())
      run.log.say(
          format("{} is in a scratch folder: look up after how many days your site removes files there, and copy what you "
                 "keep",
                 path));
  });
  for (const std::string& warning : warnings)
    if (!warning.empty()) run.log.warn(warning);
}

}  // namespace fsdp
