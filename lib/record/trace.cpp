#include "record/trace.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "base/version.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

using Json = nlohmann::json;

void add_trace_options(OptionTable& table, TraceOptions& options) {
  table
      .path("trace", "FILE", options.file,
            "Write when each operation ran, on all ranks and streams, as a trace for https://ui.perfetto.dev (JSON).")
      .unset("no trace");
  table.integer("trace-updates", "N", options.updates, {1, 1000},
                "With --trace: updates to record. The first update of a run, in which libraries initialize, is not recorded.");
  table.then([&options](const OptionTable&) {
    if (options.file.empty() && options.updates != TraceOptions().updates)
      throw UserError("--trace-updates changes nothing (there is no --trace); give --trace FILE or leave it out");
  });
}

Recorder::Recorder(const Plan& plan, std::size_t updates)
    : plan_(plan), updates_(updates), times_(plan.update.size() * updates) {
  numbers_.reserve(updates);
}

void Recorder::record_next() { waits_ = std::exchange(started_, true) && !full(); }

void Recorder::finished(const ListRun& run) {
  if (!needs_times(run)) return;
  std::copy(run.times.begin(), run.times.end(), times_.begin() + std::ssize(times()));
  numbers_.push_back(run.update);
  waits_ = false;
}

TraceFile::TraceFile(const std::filesystem::path& path, std::string save_folder)
    : path_(path), temporary_(format("{}.tmp-{}", path.string(), ::getpid())), save_folder_(std::move(save_folder)) {
  const PathKind kind = kind_of(path);
  const bool replaces = kind == PathKind::missing || kind == PathKind::file;
  if (!replaces) errno = kind == PathKind::folder ? EISDIR : EINVAL;
  file_ = replaces ? std::fopen(temporary_.c_str(), "wx") : nullptr;  // "x": follows no link and overwrites no file
  if (!file_)
    throw UserError(format("cannot write --trace '{}' ({}); give the path of a file in a folder that exists and can be written",
                           path.string(), std::strerror(errno)));
  put("{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [");
}

TraceFile::~TraceFile() {
  if (!file_) return;
  std::fclose(file_);
  ::unlink(temporary_.c_str());
}

void TraceFile::put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() && error_ == 0) error_ = errno;
}

void TraceFile::add(const Json& event) { put((std::exchange(empty_, false) ? "\n" : ",\n") + event.dump()); }

void TraceFile::finish(const Json& of_trace) {
  Json about = of_trace;
  if (!save_folder_.empty()) about["save_folder"] = save_folder_;
  put("\n],\n\"otherData\": " + about.dump() + "}\n");
  if ((std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) && error_ == 0) error_ = errno;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && error_ == 0) error_ = errno;
  try {
    errno = error_;
    check_errno(error_ == 0, "write " + temporary_.string());
    rename_durably(temporary_, path_);
  } catch (const CallError& failure) {
    ::unlink(temporary_.c_str());
    throw RunError(format("the trace was not written ({}); choose another place for --trace", failure.what()));
  }
}

ClockOffset clock_offset(Communicator& world, const std::function<std::int64_t()>& clock_ns) {
  constexpr std::size_t rounds = 64;
  const std::int64_t with_rank_0 = world.split_by_node()->sum(std::int64_t{world.rank() == 0});
  struct Barrier {
    std::int64_t entered, left;
  };
  std::vector<Barrier> mine(rounds);
  for (Barrier& barrier : mine) {
    barrier.entered = clock_ns();
    world.barrier();
    barrier.left = clock_ns();
  }
  std::vector<Barrier> theirs = mine;
  world.broadcast(theirs.data(), rounds * sizeof(Barrier), 0);
  if (with_rank_0 > 0) return {};
  std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < rounds; ++i) {
    least = std::max(least, theirs[i].entered - mine[i].left);
    most = std::min(most, theirs[i].left - mine[i].entered);
  }
  return {least + (most - least) / 2, (most - least + 1) / 2};
}

namespace {

/// The approximate number of bytes that each rank sends in an operation; 0 if the operation is not a collective.
std::size_t bytes_sent(const Operation& op, const ShardedModel& sharded) {
  const auto use = collective_of(op);
  return use ? use->sent_bytes(static_cast<std::size_t>(sharded.mesh().along(use->axis).size())) : 0;
}

/// The arrows between operations: from a gather to the first computation that uses the gathered parameters, and from the last
/// computation of a gradient to its reduction. Gathers after the optimizer have no arrow, because only the next update uses the
/// gathered parameters.
std::vector<std::pair<std::size_t, std::size_t>> find_arrows(const std::vector<Operation>& operations) {
  const auto has = [](const std::vector<Location>& places, const Location& place) {
    return std::any_of(places.begin(), places.end(), [&](const Location& one) { return one.buffer == place.buffer; });
  };
  std::vector<std::pair<std::size_t, std::size_t>> arrows;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& op = operations[i];
    if (!is_collective(op)) continue;
    if (op.kind->collective == Collective::all_gather) {
      for (std::size_t j = i + 1; j < operations.size(); ++j) {
        const Operation& user = operations[j];
        if (user.stream != StreamId::compute || !has(reads_of(user), writes_of(op).front())) continue;
        arrows.emplace_back(i, j);
        break;
      }
    } else {
      for (std::size_t j = i; j-- > 0;) {
        if (!has(writes_of(operations[j]), reads_of(op).front())) continue;
        if (operations[j].stream == StreamId::compute) arrows.emplace_back(j, i);
        break;  // another reduction wrote it, and has an arrow of its own
      }
    }
  }
  return arrows;
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

/// Adds the events of one rank. `shift_ns` is added to the times of the rank, so that times count from the start of the trace.
void add_rank(TraceFile& file, int rank, std::span<const OperationTime> times, const std::vector<std::uint64_t>& updates,
              std::int64_t shift_ns, const std::vector<Json>& titles, const std::vector<Operation>& operations,
              const std::vector<std::pair<std::size_t, std::size_t>>& arrows) {
  const auto about = [&](const char* what, Json args) {
    return Json{{"ph", "M"}, {"name", what}, {"pid", rank}, {"args", std::move(args)}};
  };
  const auto thread = [](StreamId stream) { return static_cast<int>(stream) + 1; };
  file.add(about("process_name", {{"name", format("rank {}", rank)}}));
  file.add(about("process_sort_index", {{"sort_index", rank}}));
  for (const StreamId stream : {StreamId::compute, StreamId::gather, StreamId::reduce, StreamId::load, StreamId::unload}) {
    const auto is_here = [&](const Operation& op) { return op.stream == stream; };
    if (stream > StreamId::reduce && std::none_of(operations.begin(), operations.end(), is_here)) continue;
    Json name = about("thread_name", {{"name", name_of(stream)}}),
         order = about("thread_sort_index", {{"sort_index", thread(stream)}});
    name["tid"] = order["tid"] = thread(stream);
    file.add(name);
    file.add(order);
  }
  for (std::size_t n = 0; n < updates.size(); ++n) {
    const auto of_update = times.subspan(n * operations.size(), operations.size());
    const auto base = [&](std::size_t i, const char* phase, std::int64_t ns) {
      return Json{{"ph", phase}, {"pid", rank}, {"tid", thread(operations[i].stream)}, {"ts", microseconds(ns + shift_ns)}};
    };
    for (std::size_t i = 0; i < operations.size(); ++i) {
      Json event = base(i, "X", of_update[i].begin_ns);
      event["dur"] = microseconds(of_update[i].end_ns - of_update[i].begin_ns);
      event.update(titles[i]);
      event["args"]["update"] = updates[n];
      file.add(event);
    }
    for (std::size_t a = 0; a < arrows.size(); ++a) {
      const auto [from, to] = arrows[a];
      // An arrow starts inside operation `from`, and ends at the operation that encloses the arrow's end point ("bp": "e").
      Json start = base(from, "s", std::max(of_update[from].begin_ns, of_update[from].end_ns - 1)),
           end = base(to, "f", of_update[to].begin_ns);
      end["bp"] = "e";
      for (Json* event : {&start, &end}) {
        (*event)["name"] = (*event)["cat"] = "arrow";
        (*event)["id"] =
            format("{}/{}/{}", rank, n, a);  // updates[n] is not unique: a left-out update has the number of the next one
        file.add(*event);
      }
    }
  }
}

}  // namespace

std::string write_trace(const Recorder& recorder, const ShardedModel& sharded, Communicator& world, TraceFile* file) {
  const std::vector<Operation>& operations = sharded.plan().update;
  const auto ranks = static_cast<std::size_t>(world.size());
  const ClockOffset offset = clock_offset(world, now_ns);

  // The table has three numbers for each rank: its clock offset, the error of the offset, and the begin of its first operation
  // by rank 0's clock.
  const std::int64_t begin = recorder.times().empty() ? 0 : recorder.times().front().begin_ns + offset.ns;
  const std::vector<std::int64_t> table = world.gather(std::array{offset.ns, offset.error_ns, begin});
  std::int64_t start = table[2], error = 0;
  for (std::size_t r = 0; r < ranks; ++r) start = std::min(start, table[3 * r + 2]), error = std::max(error, table[3 * r + 1]);

  std::vector<Json> titles;
  std::vector<std::pair<std::size_t, std::size_t>> arrows;
  if (file) {
    arrows = find_arrows(operations);
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const Operation& op = operations[i];
      Json args = {{"operation", i}, {"micro_batch", op.micro_batch}, {"part", name_of(op.kind->part)}};
      if (op.block >= 0) args["block"] = op.block;
      if (op.unit >= 0) args["unit"] = sharded.layout().units()[static_cast<std::size_t>(op.unit)].name;
      if (const std::size_t bytes = bytes_sent(op, sharded)) args["bytes_sent"] = bytes;
      titles.push_back({{"name", title_of(op, sharded.layout())}, {"cat", name_of(op.stream)}, {"args", std::move(args)}});
    }
  }
  std::vector<OperationTime> times;  // the times of one rank at a time
  for (std::size_t r = 0; r < ranks; ++r) {
    times.assign(recorder.times().begin(), recorder.times().end());
    world.broadcast(times.data(), times.size() * sizeof(OperationTime), static_cast<int>(r));
    if (file) add_rank(*file, static_cast<int>(r), times, recorder.updates(), table[3 * r] - start, titles, operations, arrows);
  }
  if (!file) return "";
  try {
    file->finish({{"program", "fsdp " + std::string(version_string())},
                  {"ranks", ranks},
                  {"strategy", sharded.placement().name},
                  {"updates", recorder.updates()},
                  {"clock_error_us", microseconds(error)}});
  } catch (const RunError& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace fsdp
