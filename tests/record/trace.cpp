// The trace of a job: the contents of the file, compared with the plan and with the bytes that the communicators sent.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "base/timer.hpp"
#include "comm/silent.hpp"
#include "comm/threads/threads.hpp"
#include "count_allocations.hpp"
#include "kernels/threads.hpp"
#include "record/trace.hpp"
#include "support/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

namespace {

constexpr std::size_t B = 2, T = 8, layers = 3;

TransformerConfig tiny() {
  TransformerConfig config;
  config.vocab_size = 33, config.max_positions = T, config.width = 12, config.layers = layers;
  config.heads = config.kv_heads = 3, config.head_size = 4, config.ffn_width = 20;
  return config;
}

void read_batch(std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
  for (std::size_t i = 0; i < B * T; ++i)
    inputs[i] = static_cast<std::int32_t>((i * 7 + micro) % 33), targets[i] = static_cast<std::int32_t>((i * 5 + micro) % 33);
}

/// One rank of a job.
struct Job {
  std::unique_ptr<Device> device = make_cpu_device();
  ShardedModel sharded;
  Executor& executor;
  std::uint64_t updates = 0;

  Job(const char* strategy, PlanOptions plan, Communicator& world)
      : sharded(tiny(), {.strategy = strategy, .shard_group_size = 1, .batch = {B, T}, .plan = plan}, world),
        executor(sharded.allocate(*device)) {
    kernels::set_threads(1);
    executor.initialize_parameters(3);
    executor.publish_parameters();
  }
  UpdateResult update() {
    return executor.run_update(read_batch, {.update = ++updates, .learning_rate = 1e-3, .clip_norm = 1, .tokens = 96});
  }
};

/// Bytes that a rank sent, by stream of the plan: gathers, and everything else.
using Sent = std::array<std::int64_t, 2>;
Sent sent(const Job& job, const Communicator& world) {
  Sent bytes{};
  for (const Communicator* comm : {&world, static_cast<const Communicator*>(&job.sharded.mesh().shard()),
                                   static_cast<const Communicator*>(&job.sharded.mesh().replicate())}) {
    const auto& all = comm->traffic().bytes_sent;
    bytes[0] += static_cast<std::int64_t>(all[static_cast<std::size_t>(Collective::all_gather)]);
    for (const Collective kind : {Collective::reduce_scatter, Collective::all_reduce})
      bytes[1] += static_cast<std::int64_t>(all[static_cast<std::size_t>(kind)]);
  }
  return bytes;
}

struct Traced {
  json file;
  std::vector<Operation> operations;
  std::vector<Sent> sent;  // by rank, in the recorded updates
};

/// Runs a job of four updates; the second and the third are recorded.
Traced trace(int ranks, const char* strategy, const PlanOptions& plan) {
  const TemporaryFolder folder;
  Traced traced;
  traced.sent.resize(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& world) {
    Job job(strategy, plan, world);
    std::optional<TraceFile> file;
    if (world.rank() == 0) file.emplace(folder / "trace.json");
    Recorder recorder(job.sharded.plan(), 2);
    job.executor.observe(recorder);
    Sent before{};
    for (std::uint64_t u = 1; u <= 4; ++u) {
      recorder.record_next();
      if (u == 2) before = sent(job, world);
      job.update();
      if (u == 3) {
        Sent& mine = traced.sent[static_cast<std::size_t>(world.rank())] = sent(job, world);
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i] -= before[i];
      }
    }
    expect(write_trace(recorder, job.sharded, world, file ? &*file : nullptr).empty(), "the trace can be written");
    if (world.rank() == 0) traced.operations = job.sharded.plan().update;
    world.barrier();
  });
  traced.file = json::parse(read_file(folder / "trace.json"));
  BOOST_TEST(!std::filesystem::exists(folder / "trace.json.tmp"));
  return traced;
}

struct TraceEvent {
  std::int64_t begin, end;  // ns
  std::string name;
  json args;
};
std::int64_t ns(const json& us) { return std::llround(1000 * us.get<double>()); }

using Track = std::pair<int, int>;  // rank, stream
std::map<Track, std::vector<TraceEvent>> tracks_of(const json& file) {
  std::map<Track, std::vector<TraceEvent>> tracks;
  for (const json& event : file["traceEvents"])
    if (event["ph"] == "X") {
      const std::int64_t begin = ns(event["ts"]);
      tracks[{event["pid"], event["tid"]}].push_back({begin, begin + ns(event["dur"]), event["name"], event["args"]});
    }
  for (auto& [track, events] : tracks)
    std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; });
  return tracks;
}

/// Returns the event of a track that encloses a time, as the format requires.
const TraceEvent* at(const std::vector<TraceEvent>& events, std::int64_t time) {
  for (const TraceEvent& event : events)
    if (event.begin <= time && (time < event.end || event.begin == time)) return &event;
  return nullptr;
}

struct Arrow {
  int rank = 0;
  const TraceEvent *from = nullptr, *to = nullptr;
};
std::vector<Arrow> arrows_of(const json& file, const std::map<Track, std::vector<TraceEvent>>& tracks) {
  std::map<std::string, Arrow> arrows;
  for (const json& event : file["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase != "s" && phase != "f") continue;
    const TraceEvent*& side = phase == "s" ? arrows[event["id"]].from : arrows[event["id"]].to;
    BOOST_TEST(!side, "an arrow has two ends");
    arrows[event["id"]].rank = event["pid"];
    side = at(tracks.at({event["pid"], event["tid"]}), ns(event["ts"]));
    BOOST_TEST(side, "an arrow's end lies in an operation");
    if (phase == "f") BOOST_TEST(event["bp"] == "e");
  }
  std::vector<Arrow> all;
  for (const auto& [id, arrow] : arrows) all.push_back(arrow);
  return all;
}

bool about(const TraceEvent& event, const std::string& word) { return event.name.find(word) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(tracks_hold_each_operation_once_and_in_order) {
  for (const int ranks : {1, 2, 3}) {
    const Traced traced = trace(ranks, "full", {.micro_batches = 2, .checkpoint_activations = true});
    std::set<std::string> names;
    for (const json& event : traced.file["traceEvents"])
      if (event["ph"] == "M" && event["name"] == "process_name") names.insert(event["args"]["name"]);
    BOOST_TEST(names.size() == static_cast<std::size_t>(ranks));
    BOOST_TEST(names.contains("rank " + std::to_string(ranks - 1)));
    const auto tracks = tracks_of(traced.file);
    BOOST_TEST(tracks.size() == (ranks == 1 ? 2u : 3 * static_cast<std::size_t>(ranks)));
    for (const auto& [track, events] : tracks) {
      std::vector<std::size_t> expected, found;
      for (const std::uint64_t update : {2, 3})
        for (std::size_t i = 0; i < traced.operations.size(); ++i)
          if (static_cast<int>(traced.operations[i].stream) + 1 == track.second) expected.push_back(update * 1000 + i);
      for (const TraceEvent& event : events)
        found.push_back(event.args["update"].get<std::size_t>() * 1000 + event.args["operation"].get<std::size_t>());
      BOOST_TEST(found == expected, boost::test_tools::per_element());
      for (std::size_t i = 0; i < events.size(); ++i) {
        const Operation& op = traced.operations[events[i].args["operation"].get<std::size_t>()];
        BOOST_TEST(events[i].args["micro_batch"] == op.micro_batch);
        BOOST_TEST(about(events[i], std::string(op.kind->name)));
        if (op.block >= 0) BOOST_TEST(events[i].args["block"] == op.block);
        BOOST_TEST(events[i].begin >= 0);
        BOOST_TEST(events[i].begin <= events[i].end);
        if (i > 0) BOOST_TEST(events[i - 1].end <= events[i].begin);
      }
    }
    BOOST_TEST(traced.file["otherData"]["updates"] == json({2, 3}));
    BOOST_TEST(traced.file["otherData"]["clock_error_us"] == 0.0);  // one node, one clock
  }
}

BOOST_AUTO_TEST_CASE(arrows_lead_from_gathers_to_their_users_and_from_gradients_to_their_reductions) {
  for (const char* strategy : {"full", "grad-op", "none", "hybrid"})
    for (const bool recompute : {false, true}) {
      const Traced traced = trace(2, strategy,
                                  {.micro_batches = 2,
                                   .checkpoint_activations = recompute,
                                   .backward_prefetch = recompute ? BackwardPrefetch::none : BackwardPrefetch::pre,
                                   .forward_prefetch = recompute});
      const auto tracks = tracks_of(traced.file);
      std::map<const TraceEvent*, int> arrows_out, arrows_in;
      for (const Arrow& arrow : arrows_of(traced.file, tracks)) {
        BOOST_TEST_REQUIRE((arrow.from && arrow.to));
        ++arrows_out[arrow.from], ++arrows_in[arrow.to];
        BOOST_TEST(arrow.from->end <= arrow.to->begin);
        BOOST_TEST(arrow.from->args["update"] == arrow.to->args["update"]);
        BOOST_TEST(arrow.from->args["micro_batch"] == arrow.to->args["micro_batch"]);
        const bool gathered = about(*arrow.from, "all-gather");
        const TraceEvent &transfer = gathered ? *arrow.from : *arrow.to, &computation = gathered ? *arrow.to : *arrow.from;
        BOOST_TEST((gathered || about(transfer, "reduce")));
        const std::string unit = transfer.args["unit"];
        BOOST_TEST(about(computation, unit == "root" ? "embedding" : unit));
        // No computation of the unit comes before the gather's user or after the reduction's source.
        for (const TraceEvent& other : tracks.at({arrow.rank, 1}))
          if (other.begin >= arrow.from->end && other.end <= arrow.to->begin && !about(other, "release"))
            BOOST_TEST(!about(other, unit == "root" ? "embedding" : unit), unit << ": " << other.name);
        BOOST_TEST(!about(computation, "release"));
      }
      // With sharded parameters each gather has an arrow. Each reduction has one, and operations after a reduction have none.
      for (const auto& [track, events] : tracks)
        for (const TraceEvent& event : events) {
          if (about(event, "all-gather")) BOOST_TEST(arrows_out[&event] == 1, strategy << ": " << event.name);
          const bool of_a_unit = !about(event, "squares") && !about(event, "loss");  // otherwise it is one of the norm's sums
          if (about(event, "reduce-scatter") || (about(event, "all-reduce") && of_a_unit && strategy == std::string("none")))
            BOOST_TEST(arrows_in[&event] == 1, strategy << ": " << event.name);
        }
    }
}

BOOST_AUTO_TEST_CASE(bytes_are_those_that_the_communicators_sent) {
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
    for (const int ranks : {2, 3}) {
      const Traced traced = trace(ranks, strategy, {.micro_batches = 2});
      for (const auto& [track, events] : tracks_of(traced.file)) {
        std::int64_t bytes = 0;
        for (const TraceEvent& event : events) bytes += event.args.value("bytes_sent", std::int64_t{0});
        const Sent& sent = traced.sent[static_cast<std::size_t>(track.first)];
        BOOST_TEST_CONTEXT(strategy << ", rank " << track.first << " of " << ranks << ", stream " << track.second) {
          if (track.second == 2) BOOST_TEST(bytes == sent[0]);
          // The difference comes from all-reduces that do not divide evenly.
          if (track.second == 3) BOOST_TEST(std::abs(bytes - sent[1]) < 2 * 1200);
          if (track.second == 1) BOOST_TEST(bytes == 0);
        }
      }
      if (strategy == std::string("full")) BOOST_TEST(traced.sent[0][0] > 10000);
      BOOST_TEST(traced.sent[0][1] > 10000);
    }
}

BOOST_AUTO_TEST_CASE(recording_allocates_nothing_and_ends) {
  run_ranks(1, [&](Communicator& world) {
    Job job("full", {}, world);
    Recorder recorder(job.sharded.plan(), 3);
    BOOST_TEST(Recorder::bytes(job.sharded.plan(), 3) == 3 * 16 * job.sharded.plan().update.size());
    job.executor.observe(recorder);
    recorder.record_next();  // the first one of the run
    job.update();
    BOOST_TEST(recorder.updates().empty());
    const auto allocations_of = [&](bool record) {
      const std::size_t before = allocations();
      for (std::uint64_t u = 6; u < 9; ++u) {
        if (record) recorder.record_next();
        job.update();
      }
      return allocations() - before;
    };
    const std::size_t off = allocations_of(false), on = allocations_of(true);
    BOOST_TEST(on == off);
    BOOST_TEST(recorder.full());
    BOOST_TEST(recorder.updates() == (std::vector<std::uint64_t>{5, 6, 7}), boost::test_tools::per_element());
    BOOST_TEST(recorder.times().size() == 3 * job.sharded.plan().update.size());
    const OperationTime last = recorder.times().back();
    BOOST_TEST(last.begin_ns > 0);
    recorder.record_next();
    job.update();
    BOOST_TEST(recorder.times().back().end_ns == last.end_ns);  // later updates do not overwrite it
  });
}

BOOST_AUTO_TEST_CASE(clocks_of_other_nodes_are_found) {
  for (const int ranks_per_node : {1, 2}) {
    std::vector<ClockOffset> offsets(4);
    run_ranks(
        4,
        [&](Communicator& world) {
          const std::int64_t shift = world.rank() * std::int64_t{1'000'000'000};
          offsets[static_cast<std::size_t>(world.rank())] = clock_offset(world, [&] { return now_ns() + shift; });
        },
        ranks_per_node);
    for (int r = 0; r < 4; ++r) {
      const ClockOffset& offset = offsets[static_cast<std::size_t>(r)];
      BOOST_TEST_MESSAGE("rank " << r << ": " << offset.ns << " +- " << offset.error_ns << " ns");
      if (r < ranks_per_node) {
        BOOST_TEST(offset.ns == 0);
        BOOST_TEST(offset.error_ns == 0);
      } else {
        BOOST_TEST(std::abs(offset.ns + r * std::int64_t{1'000'000'000}) <= offset.error_ns);
        BOOST_TEST(offset.error_ns < 500'000'000);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_written) {
  const TemporaryFolder folder;
  for (const std::string path : {"none/trace.json", ".", "none/"})
    CHECK_CONTAINS(message_of([&] { TraceFile file(folder / path); }),
                   "cannot write --trace '" + (folder / path).string() + "'");
  CHECK_CONTAINS(message_of([&] { TraceFile file("/dev/full"); }), "/dev/full");
  { TraceFile unfinished(folder / "trace.json"); }
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
  std::filesystem::create_directory(folder / "gone");
  TraceFile file(folder / "gone" / "trace.json");
  std::filesystem::remove_all(folder / "gone");
  const std::string message = message_of<RunError>([&] { file.finish({}); });
  CHECK_CONTAINS(message, "the trace was not written");
  std::string no_space;
  {
    const FileSizeLimit limit(100000);
    TraceFile full(folder / "full.json");
    for (int i = 0; i < 10000; ++i) full.add({{"event", i}});
    no_space = message_of<RunError>([&] { full.finish({}); });
  }
  CHECK_CONTAINS(no_space, "File too large");
  BOOST_TEST(!std::filesystem::exists(folder / "full.json"));
  CHECK_CONTAINS(message_of([] {
                   TraceOptions options;
                   OptionTable table("a-program", "", "");
                   add_trace_options(table, options);
                   table.parse(2, std::array{"a-program", "--trace-updates=7"}.data());
                 }),
                 "--trace-updates changes nothing");
}

BOOST_AUTO_TEST_CASE(fake_collectives_send_nothing_of_the_model) {
  for (const char* strategy : {"full", "optim", "none", "hybrid"})
    run_ranks(2, [&](Communicator& world) {
      Job job(strategy, {.micro_batches = 2}, world);
      const SilentMesh silent(job.sharded.mesh());
      job.update();
      const auto step = [&](bool fake) {
        job.executor.communicate_along(fake ? silent.mesh : job.sharded.mesh());
        const Sent before = sent(job, world);
        expect(job.update().finite(), "an update is finite, faked or not");
        const Sent after = sent(job, world);
        return after[0] - before[0] + after[1] - before[1];
      };
      const std::int64_t with = step(false), without = step(true), again = step(false);
      expect(without == 0, "nothing travels");  // Boost.Test is not thread-safe
      expect(with > 10000 && with == again, "what is switched off can be switched on again");
    });
}
