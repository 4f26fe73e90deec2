// The speed of disks varies, and they have caches. So each round measures everything once, next to plain files of the same
// size; every other round reverses the order; and ratios are computed within a round. Before each read, the files are dropped
// from the page cache.
#include "bench/parts.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/system.hpp"
#include "base/timer.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "files/scratch_folder.hpp"
#include "kernels/threads.hpp"
#include "machine/machine.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_bytes = std::size_t{16} << 20;

/// A new folder in `parent` for the files of this measurement. Rank 0 makes it, and removes it at the end.
class Scratch {
 public:
  /// Collective over world.
  Scratch(const fs::path& parent, Group& world) {
    std::string name;
    agree(world, [&] {
      if (world.rank() == 0) name = mine_.emplace(parent, "bench-parts").path();
    });
    path_ = world.broadcast(name, 0);
  }
  const fs::path& path() const { return path_; }
  /// Removes the files in the folder, and waits until that has reached the disk.
  void clear() const {
    if (!mine_) return;
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
    const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::syncfs(fd);
    ::close(fd);
  }
  /// Drops the files, which must be on disk, from the page cache. The next read comes from the disk, or from a cache of a file
  /// server.
  void forget() const {
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      const int fd = entry.is_regular_file() ? ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC) : -1;
      if (fd < 0) continue;
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }

 private:
  std::optional<ScratchFolder> mine_;  // on rank 0
  fs::path path_;
};

/// Calls write(2) until all bytes are written, then fsync(2).
void write_plain(const fs::path& path, std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  check_errno(fd >= 0, "create " + path.string());
  bool good = true;
  for (std::size_t at = 0; good && at < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + at, std::min(piece_bytes, bytes.size() - at));
    good = n > 0;
    if (good) at += static_cast<std::size_t>(n);
  }
  good = good && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  check_errno(good, "write " + path.string());
}

/// Copies the first `bytes` of the concatenated files into one file, durably.
void copy_plain(const std::vector<fs::path>& from, const fs::path& to, std::size_t bytes) {
  OutputFile output(to);
  std::vector<std::byte> piece(piece_bytes);
  std::size_t written = 0;
  for (const fs::path& path : from) {
    const InputFile file(path);
    for (std::size_t at = 0; at < file.size() && written < bytes;) {
      const std::size_t n = std::min({piece.size(), file.size() - at, bytes - written});
      file.read(at, piece.data(), n);
      output.write(written, piece.data(), n);
      at += n, written += n;
    }
  }
  output.finish();
}

/// Runs a program to its end, with its output in a file. Returns its peak memory as the system counts it. The count is read
/// every two milliseconds, so that memory allocated just before the end is missed.
std::size_t run_and_measure(const std::vector<std::string>& words, const fs::path& log) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child = -1;
  const int error = ::posix_spawn(&child, argv[0], &files, nullptr, argv.data(), environ);  // the program runs when this
                                                                                            // returns
  ::posix_spawn_file_actions_destroy(&files);
  errno = error;
  check_errno(error == 0, "start " + words[0]);
  std::size_t peak = 0;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0) {
    peak = std::max(peak, process_peak_bytes(std::to_string(child)));
    ::usleep(2000);
  }
  check_errno(ended == child, "wait for " + words[0]);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw RunError(format("{} failed ({}); fix the cause, or measure something else", fs::path(words[0]).filename().string(),
                          read_text_file(log)));
  return peak;
}

double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

class CheckpointBench {
 public:
  CheckpointBench(const PartsOptions& options, ShardedModel& sharded, const Scratch& scratch, Communicator& world,
                  const Device& device)
      : options_(options),
        device_(is_host(device.kind()) ? "CPU" : device.description()),
        sharded_(sharded),
        scratch_(scratch),
        world_(world),
        program_(fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/fsdp-consolidate") {
    const Layout& layout = sharded.layout();
    states_ = sharded.executor().states();
    for (const Parameter& parameter : parameters()) numel_ += fsdp::numel(parameter.shape);
    for (const int ranks : {world.size() - 1, world.size(), world.size() + 1})
      if (ranks > 0) readers_.emplace(ranks, Layout(parameters(), {layout.units().begin(), layout.units().end()}, ranks));
    std::size_t room = 0;
    for (const auto& [ranks, read_layout] : readers_) room = std::max(room, bytes_of_shard(read_layout));
    agree(world, [&] {
      snapshot_ = allocate_host(snapshot_bytes(layout, DType::f32, world.rank(), world.size()));
      loaded_ = allocate_host(room);
      if (!fs::exists(program_)) throw UserError(format("{} is missing (it is measured, too); build it", program_.string()));
    });
    // The first update, the first save and the first use of memory pages take longer: none of them is counted.
    update();
    save_meanwhile();
    std::fill_n(loaded_.data(), loaded_.bytes(), std::byte{0});
    scratch_.clear();
  }

  /// Measures everything once. Collective over world.
  void round(bool forwards) {
    in_turn(forwards, {[&] {
                         const auto bytes = std::span<const std::byte>(snapshot_.data(), snapshot_.bytes());
                         note("plain_write", together([&] { write_plain(plain_file(world_.rank()), bytes); }));
                       },
                       [&] {
                         const auto bytes = std::span<const std::byte>(snapshot_.data(), snapshot_.bytes());
                         note("output_write", together([&] { write_as_saves(output_file(), bytes); }));
                       },
                       [&] { save(); }});
    double alone = 0;
    Meanwhile meanwhile;
    in_turn(forwards, {[&] { alone = update(); }, [&] { meanwhile = save_meanwhile(); }});
    note("step", alone);
    note("stall", meanwhile.stall);
    note("step_meanwhile", meanwhile.steps / static_cast<double>(meanwhile.count));
    note("lost", meanwhile.stall + meanwhile.steps - static_cast<double>(meanwhile.count) * alone);

    std::vector<std::function<void()>> reads;
    for (const auto& [ranks, layout] : readers_) {
      reads.push_back([&, ranks = ranks] { note(format("plain_read_{}", ranks), read_plain(ranks)); });
      reads.push_back([&, ranks = ranks] { note(format("load_{}", ranks), read_as(ranks, false)); });
      reads.push_back([&, ranks = ranks] { note(format("resume_{}", ranks), read_as(ranks, true)); });
    }
    in_turn(forwards, std::move(reads));
    in_turn(forwards, {[&] { consolidate(); }, [&] { copy(); }});
    world_.barrier();
    agree(world_, [&] { scratch_.clear(); });
  }

  std::string report() const;

 private:
  struct Meanwhile {
    double stall = 0, steps = 0;
    std::size_t count = 0;
  };

  const std::vector<Parameter>& parameters() const { return sharded_.model().parameters(); }
  fs::path plain_file(int rank) const { return scratch_.path() / format("plain-{}", rank); }
  fs::path output_file() const { return scratch_.path() / format("output-{}", world_.rank()); }
  /// The size of all ranks' files in bytes, without HDF5's overhead.
  double stored_bytes() const { return static_cast<double>(numel_ * sizeof(float) * states_.size()); }
  std::size_t bytes_of_shard(const Layout& layout) const {
    std::size_t numel = 0;
    for (std::size_t u = 0; u < layout.units().size(); ++u) numel += layout.shard_numel(u);
    return numel * sizeof(float) * states_.size();
  }

  void note(const std::string& what, double seconds) { seconds_[what].push_back(seconds); }
  static void in_turn(bool forwards, std::vector<std::function<void()>> calls) {
    if (!forwards) std::reverse(calls.begin(), calls.end());
    for (const auto& call : calls) call();
  }
  double together(const std::function<void()>& work) { return time_together(world_, work); }

  double update() {
    world_.barrier();
    const Timer timer;
    sharded_.executor().run_update(
        random_batches(options_.sharding.batch, sharded_.transformer().config().vocab_size, world_.rank()),
        {.update = ++updates_,
         .learning_rate = 1e-4,
         .clip_norm = 1.0,
         .tokens = static_cast<double>(options_.sharding.batch.rows() * options_.sharding.plan.micro_batches) *
                   static_cast<double>(world_.size())});
    world_.barrier();
    return timer.seconds();
  }

  CheckpointHeader header() const {
    const Layout& layout = sharded_.layout();
    CheckpointHeader header;
    header.model = sharded_.transformer().config();
    header.progress.update = updates_;
    header.strategy = std::string(sharded_.placement().name);
    header.world_size = world_.size();
    header.shards = layout.shards();
    header.units = {layout.units().begin(), layout.units().end()};
    header.optimizer = std::string(OptimizerOptions{}.kind->name);
    header.options_json = "{}";
    header.version = version_string();
    return header;
  }

  void save() {
    world_.barrier();
    const Timer timer;
    step_ = save_checkpoint(scratch_.path() / "waiting", header(), sharded_.layout(), states_, world_);
    note("save", timer.seconds());
  }

  /// Saves asynchronously, as a training run does: updates continue until all ranks have written.
  Meanwhile save_meanwhile() {
    Meanwhile result;
    world_.barrier();
    const Timer begin;
    CheckpointSave save(scratch_.path() / "meanwhile", header(), sharded_.layout(), states_, world_,
                        {snapshot_.data(), snapshot_.bytes()});
    result.stall = begin.seconds();
    do {
      result.steps += update();
      ++result.count;
    } while (world_.max(save.stage() == CheckpointSave::Stage::working ? 1 : 0) > 0);
    const Timer end;
    save.finish();
    result.stall += end.seconds();
    return result;
  }

  /// Reads the data that a run on `ranks` ranks reads when it resumes; if `verify`, first verifies the checksums of all files.
  /// With W ranks in this job, rank r reads for the ranks r, r + W, r + 2 W, ... of that run, one after the other.
  double read_as(int ranks, bool verify) {
    scratch_.forget();
    const Layout& layout = readers_.at(ranks);
    return together([&] {
      const auto reader = CheckpointReader::open(step_);
      for (int r = world_.rank(); verify && r < ranks; r += world_.size()) reader->verify(r, ranks);
      for (int r = world_.rank(); r < ranks; r += world_.size()) {
        const std::size_t before = reader->bytes_read();
        load_states(*reader, parameters(), layout, r, room_for(layout));
        share_bytes_[ranks] = std::max(share_bytes_[ranks], reader->bytes_read() - before);
      }
    });
  }

  /// Reads from plain files the same number of bytes that each rank reads in read_as().
  double read_plain(int ranks) {
    scratch_.forget();
    std::size_t left = 0;
    for (int r = world_.rank(); r < ranks; r += world_.size()) left += bytes_of_shard(readers_.at(ranks));
    return together([&] {
      for (int i = 0; i < world_.size() && left > 0; ++i) {
        const InputFile file(plain_file((world_.rank() + i) % world_.size()));
        const std::size_t n = std::min({left, static_cast<std::size_t>(file.size()), loaded_.bytes()});
        file.read(0, loaded_.data(), n);
        left -= n;
      }
    });
  }

  /// Returns the states of a shard, which use the memory of `loaded_`.
  std::vector<ShardState> room_for(const Layout& layout) const {
    std::vector<ShardState> states;
    auto* at = reinterpret_cast<float*>(loaded_.data());
    for (const ShardState& state : states_) {
      std::vector<std::span<float>> units;
      for (std::size_t u = 0; u < layout.units().size(); ++u) {
        units.emplace_back(at, layout.shard_numel(u));
        at += layout.shard_numel(u);
      }
      states.emplace_back(state.name, units);
    }
    return states;
  }

  void consolidate() {
    scratch_.forget();
    note("consolidate", together([&] {
           if (world_.rank() != 0) return;
           const std::size_t peak = run_and_measure(
               {program_.string(), step_.string(), (scratch_.path() / "model.h5").string()}, scratch_.path() / "log");
           consolidate_peak_ = std::max(consolidate_peak_, peak);
         }));
  }

  void copy() {
    std::vector<fs::path> from;
    for (int rank = 0; rank < world_.size(); ++rank) from.push_back(plain_file(rank));
    scratch_.forget();
    note("plain_copy", together([&] {
           if (world_.rank() == 0) copy_plain(from, scratch_.path() / "copy", numel_ * sizeof(float));
         }));
  }

  const PartsOptions& options_;
  const std::string device_;
  ShardedModel& sharded_;
  const Scratch& scratch_;
  Communicator& world_;
  const fs::path program_;
  std::vector<ShardState> states_;
  std::size_t numel_ = 0;          // the number of elements of all parameters
  std::map<int, Layout> readers_;  // by number of ranks: the layout of a run on that many ranks, fully sharded
  Buffer snapshot_, loaded_;
  std::uint64_t updates_ = 0;
  fs::path step_;                                       // the step folder of the last synchronous save
  std::map<std::string, std::vector<double>> seconds_;  // by measurement, one value for each round
  std::map<int, std::size_t> share_bytes_;              // the most bytes that one rank reads, by number of ranks
  std::size_t consolidate_peak_ = 0;
};

std::string CheckpointBench::report() const {
  const auto seconds = [&](const std::string& key) -> const std::vector<double>& { return seconds_.at(key); };
  /// Divides the times of `of` by the times of `by`, for each round.
  const auto ratios = [&](const std::string& of, const std::string& by) {
    std::vector<double> all;
    for (std::size_t i = 0; i < seconds(of).size(); ++i) all.push_back(seconds(of)[i] / seconds(by)[i]);
    return all;
  };
  const auto spread = [](const std::vector<double>& values, double unit, const char* text) {
    return format("{:.{}f}{} ({:.{}f} to {:.{}f})", unit * median(values), unit == 1 ? 2 : 0, text, unit * smallest(values),
                  unit == 1 ? 2 : 0, unit * largest(values), unit == 1 ? 2 : 0);
  };
  const double bytes = stored_bytes(), model_bytes = static_cast<double>(numel_ * sizeof(float));
  std::vector<std::vector<std::string>> rows = {{"", "s", "least", "most", "GB/s", "", ""}};
  const auto row = [&](const std::string& label, const std::string& key, double moved, const std::string& against = "",
                       const std::string& what = "") {
    const std::vector<double>& s = seconds(key);
    rows.push_back({label, format("{:.3f}", median(s)), format("{:.3f}", smallest(s)), format("{:.3f}", largest(s)),
                    moved > 0 ? format("{:.2f}", moved / median(s) / 1e9) : "",
                    against.empty() ? "" : spread(ratios(against, key), 100, " %"), what});
  };
  row("plain files, write and fsync", "plain_write", bytes);
  row("the same, written as saves are", "output_write", bytes);
  row("save", "save", bytes, "plain_write", "of plain files");
  for (const auto& [ranks, layout] : readers_) {
    row(format("plain files, read as by {}", plural(ranks, "rank")), format("plain_read_{}", ranks), bytes);
    row("load", format("load_{}", ranks), bytes, format("plain_read_{}", ranks), "of plain files");
    row("checksums of all, and load", format("resume_{}", ranks), bytes, format("plain_read_{}", ranks), "of plain files");
  }
  row("plain file, read and written", "plain_copy", model_bytes);
  row("fsdp-consolidate", "consolidate", model_bytes, "plain_copy", "of the plain file");
  std::string text = format(
      "{}, {}, {} parameters with AdamW's moments: {} by {} of {}, {}; medians of {} rounds, ratios of the same "
      "round\n"
      "(least to most). Before each read posix_fadvise has dropped the files from the page cache; saves are on the disk "
      "(fsync).\n",
      device_, options_.arch, format_count(static_cast<double>(numel_)), format_bytes(bytes), plural(world_.size(), "rank"),
      plural(kernels::threads(), "thread"), sharded_.placement().name, seconds("save").size());
  text += lay_out(rows, 2);
  text += format("update, {}: {:.3f} s undisturbed\n", name_of(options_.sharding.types.parameter), median(seconds("step")));
  text += format(
      "asynchronous save: training stops for {:.3f} s, {} of an update; updates during the save take {} times as long\n",
      median(seconds("stall")), spread(ratios("stall", "step"), 100, " %"), spread(ratios("step_meanwhile", "step"), 1, ""));
  text += format("  total time lost to training: {} s\n", spread(seconds("lost"), 1, ""));
  text += "read by a rank at most:";
  for (const auto& [ranks, share] : share_bytes_)
    text += format(" {} of {}{}", format_bytes(static_cast<double>(share)), ranks, ranks <= world_.size() ? "," : "\n");
  text += format("fsdp-consolidate: {} of memory at most\n", format_bytes(static_cast<double>(consolidate_peak_)));
  if (!options_.json) return text;

  nlohmann::json json = {{"arch", options_.arch},
                         {"device", device_},
                         {"ranks", world_.size()},
                         {"strategy", sharded_.placement().name},
                         {"bytes", bytes},
                         {"model_bytes", model_bytes},
                         {"seconds", seconds_},
                         {"save_of_plain", median(ratios("plain_write", "save"))},
                         {"stall_of_update", median(ratios("stall", "step"))},
                         {"update_meanwhile", median(ratios("step_meanwhile", "step"))},
                         {"consolidate_of_plain", median(ratios("plain_copy", "consolidate"))},
                         {"consolidate_peak_bytes", consolidate_peak_}};
  for (const auto& [ranks, share] : share_bytes_) {
    const std::string n = std::to_string(ranks);
    json["load_of_plain"][n] = median(ratios("plain_read_" + n, "load_" + n));
    json["resume_of_plain"][n] = median(ratios("plain_read_" + n, "resume_" + n));
    json["share_bytes"][n] = share;
  }
  return json_text(json) + "\n";
}

}  // namespace

std::string bench_checkpoint(const PartsOptions& options, Communicator& world, Device& device) {
  const ShardingOptions& sharding = options.sharding;
  TransformerConfig config;
  agree(world, [&] { check_sharding(config = config_of(options), sharding, world.size()); });
  const Scratch scratch(options.save_dir, world);
  ShardedModel sharded(config, sharding, world, traits_of(device.kind(), kernels::threads()));
  Executor& executor = sharded.allocate(device, {}, options.comm);
  executor.initialize_parameters(1);
  executor.publish_parameters();
  CheckpointBench bench(options, sharded, scratch, world, device);
  for (std::size_t i = 0; i < options.steps; ++i) bench.round(i % 2 == 0);
  return world.rank() == 0 ? bench.report() : "";
}

}  // namespace fsdp
