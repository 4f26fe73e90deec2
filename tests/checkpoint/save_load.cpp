// Saved at one world size and strategy, loaded at all others: bit-identical, and each rank reads only its share.
#include <boost/test/unit_test.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/shared_files.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/support.hpp"
#include "files/json.hpp"
#include "h5/h5.hpp"
#include "support/plain_hdf5.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

/// Loads every rank's shard of `target` and compares it with the saved values.
void check_load(const fs::path& folder, const Run& saved, const Run& target) {
  const auto parameters = list_parameters(target.config).parameters;
  const Layout layout = target.layout();
  for (int shard = 0; shard < layout.shards(); ++shard) {
    const auto reader = CheckpointReader::open(folder);
    std::vector<UnitValues> values;
    for (std::size_t s = 0; s < state_names.size(); ++s) values.push_back(room(layout, padding, s > 0));
    std::vector<ShardState> states;
    for (std::size_t s = 0; s < values.size(); ++s) states.push_back({state_names[s], spans(values[s])});
    std::size_t reported = 0, total = 0;
    load_states(*reader, parameters, layout, shard, states, [&](std::size_t done, std::size_t all) {
      BOOST_TEST((done >= reported && done <= all));
      reported = done, total = all;
    });
    std::size_t own = 0;
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
      for (const Slice& slice : layout.slices(unit, shard)) own += slice.range.size();
    for (std::size_t s = 0; s < values.size(); ++s)
      BOOST_CHECK_MESSAGE(values[s] == shard_values(layout, shard, s, saved.update, 0),
                          state_names[s] << ", " << saved.strategy << " " << saved.world_size << " to shard " << shard << " of "
                                         << layout.shards());
    BOOST_TEST(reader->bytes_read() == own * state_names.size() * sizeof(float));
    BOOST_TEST(reported == reader->bytes_read());
    BOOST_TEST(total == reported);
  }
}

/// Returns the bytes that this process has read so far, by the system's counter; nothing if there is no counter.
std::optional<std::size_t> bytes_read_by_process() {
  std::ifstream io("/proc/self/io");
  std::string key;
  std::size_t bytes = 0;
  while (io >> key >> bytes)
    if (key == "rchar:") return bytes;
  return {};
}

/// A matrix of several chunks.
TransformerConfig many_words() {
  TransformerConfig config = gpt2_config();
  config.vocab_size = 12007;
  return config;
}

std::string run_command(const std::string& command, int& status) {
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), n);
  status = pclose(pipe);
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_element_is_written_once) {
  for (const auto& config : {gpt2_config(), llama_config()})
    for (int shards = 1; shards <= 5; ++shards)
      for (int replicas = 1; replicas <= 4; ++replicas) {
        const auto parameters = list_parameters(config).parameters;
        const Layout layout(parameters, wrap_parameters(parameters, {2}, {.ignore = {"*0.*"}}), shards);
        std::size_t owned = 0;  // by each shard
        for (std::size_t u = 0; u < layout.units().size(); ++u) owned += layout.shard_numel(u);
        std::vector<std::vector<int>> seen;
        for (const Parameter& parameter : parameters) seen.emplace_back(numel(parameter.shape));
        for (int rank = 0; rank < shards * replicas; ++rank) {
          std::size_t elements = 0;
          for (const auto& slice : stored::written_slices(layout, rank, shards * replicas)) {
            for (std::size_t i = slice.range.begin; i < slice.range.end; ++i) ++seen[slice.parameter][i];
            elements += slice.range.size();
          }
          BOOST_TEST(elements <= owned / static_cast<std::size_t>(replicas) + layout.units().size());
        }
        for (const auto& counts : seen)
          for (const int count : counts) BOOST_REQUIRE(count == 1);
      }
}

BOOST_AUTO_TEST_CASE(any_world_size_and_strategy_loads_any_other) {
  for (const auto& config : {gpt2_config(), llama_config()})
    for (const char* strategy : {"full", "none"})
      for (int world_size = 1; world_size <= 4; ++world_size) {
        const TemporaryFolder folder;
        const Run saved{config, strategy, world_size, world_size == 3 ? 2u : 1u, 100};
        const fs::path step = save(folder.path(), saved);
        BOOST_TEST(step == folder / "step-00000100");
        for (int target_size = 1; target_size <= 4; ++target_size)
          check_load(step, saved, Run{config, "full", target_size, target_size == 4 ? 3u : 1u, 0});
      }
}

BOOST_AUTO_TEST_CASE(compressed_checkpoints_load_as_others_do) {
  const TemporaryFolder folder;
  for (const char* strategy : {"full", "none"}) {
    Run run{many_words(), strategy, 2, 1, 100};
    const fs::path plain = save(folder / strategy, run);
    run.compression = h5::Compression::gzip;
    const fs::path step = save(folder / (strategy + std::string("-gzip")), run);
    for (const char* file : {"rank-00000-of-00002.h5", "rank-00001-of-00002.h5"})
      BOOST_TEST(fs::file_size(step / file) < 0.9 * static_cast<double>(fs::file_size(plain / file)));
    for (const int target_size : {1, 2, 3}) check_load(step, run, Run{run.config, "full", target_size, 2, 0});
    CheckpointReader::open(step)->verify(0, 1);
    BOOST_TEST(verify_norms(*CheckpointReader::open(step), state_names) == 3 * list_parameters(run.config).parameters.size());
    int inside_tensors = 0;
    const fs::path file = step / "rank-00000-of-00002.h5";
    for (std::size_t at = 0, size = fs::file_size(file); at < size; at += size / 23) {
      const auto fresh = CheckpointReader::open(step);
      flip(file, at);
      const std::string message = message_of([&] { fresh->verify(0, 1); });
      CHECK_CONTAINS(message, "rank-00000-of-00002.h5 is damaged");
      inside_tensors += contains(message, "transformer.wte.weight");
      flip(file, at);
    }
    BOOST_TEST(inside_tensors > 3);
  }
}

// Such a step is one of fewer ranks, but for the attribute that has their number.
BOOST_AUTO_TEST_CASE(files_that_ranks_share_load_as_others_do) {
  for (const auto& config : {gpt2_config(), llama_config()})
    for (const char* strategy : {"full", "none", "hybrid"})
      for (const auto& [ranks, files] : {std::pair(2, 1), {3, 2}, {4, 1}, {4, 3}}) {
        if (strategy == std::string("hybrid") && ranks % 2 != 0) continue;
        const TemporaryFolder folder;
        Run run{config, strategy, ranks, 1, 100};
        run.files = files;
        const fs::path step = save(folder / "shared", run), other = save(folder / "fewer", Run{config, "full", files, 1, 100});
        BOOST_TEST(list(step) == list(other), boost::test_tools::per_element());
        BOOST_TEST((stored::read_complete(step).norms == stored::read_complete(other).norms));
        for (int target_size = 1; target_size <= 4; ++target_size)
          check_load(step, run, Run{config, "full", target_size, 2, 0});
        const auto reader = CheckpointReader::open(step);
        CHECK_CONTAINS(reader->description(), format("({} ranks in {} file", ranks, files));
        BOOST_TEST(reader->header().ranks == ranks);
        reader->verify(0, 1);
        BOOST_TEST(verify_norms(*reader, state_names) == 3 * list_parameters(config).parameters.size());
      }
}

BOOST_AUTO_TEST_CASE(damage_in_a_shared_file_is_named_and_a_lost_write_fails_the_save) {
  const TemporaryFolder folder;
  Run run{many_words(), "full", 3, 1, 100};
  run.files = 2;
  const fs::path step = save(folder / "saves", run), file = step / "rank-00001-of-00002.h5";
  const auto reader = CheckpointReader::open(step);
  flip(file, fs::file_size(file) / 2);
  CHECK_CONTAINS(message_of<DamagedError>([&] { reader->verify(0, 1); }), "in exp_avg/transformer.");

  const Layout layout = run.layout();
  const auto parameters = list_parameters(run.config).parameters;
  const SharedFiles files(parameters, layout, 3, 1, {{parameters_state, Extent::element}});
  const fs::path made = folder / "rank-00000-of-00001.h5";
  const auto write = [&](int ranks) {
    fs::remove(made);
    create_shared_file(folder.path(), files, 0, [](h5::File&) {});
    for (int rank = 0; rank < ranks; ++rank) {
      SharedFileWriter writer(folder.path(), files, 77, rank);
      for (const stored::WrittenSlice& slice : stored::written_slices(layout, rank, 3)) {
        const auto values = whole(0, slice.parameter, {slice.range.size()}, 1);
        writer.begin(stored::slice_name(parameters_state, parameters[slice.parameter].name), slice.parameter, Extent::element,
                     slice.range);
        writer.add({0, slice.range.size()}, values.data());
      }
      writer.finish();
    }
  };
  std::vector<kernels::ExactSum> squares(parameters.size());
  write(2);
  SharedFileSealer sealer(folder.path(), files, 0, 77);
  BOOST_TEST(!sealer.is_written());
  CHECK_CONTAINS(message_of<RunError>([&] { sealer.seal(squares); }), "does not have the numbers that rank 2 wrote");
  write(3);
  BOOST_TEST(!SharedFileSealer(folder.path(), files, 0, 78).is_written());  // reports of another save
  SharedFileSealer intact(folder.path(), files, 0, 77);
  BOOST_TEST(intact.is_written());
  const FileSum sum = intact.seal(squares);
  BOOST_TEST(sum.bytes == fs::file_size(made));
  write(3);
  flip(made, fs::file_size(made) / 2);
  CHECK_CONTAINS(message_of<RunError>([&] { SharedFileSealer(folder.path(), files, 0, 77).seal(squares); }),
                 "rank-00000-of-00001.h5 does not have the numbers that rank ");
}

// The norms have the same bits for any division among ranks.
BOOST_AUTO_TEST_CASE(norms_do_not_depend_on_the_ranks) {
  const TemporaryFolder folder;
  for (const auto& config : {gpt2_config(), llama_config()}) {
    std::map<std::string, double> first;
    for (const char* strategy : {"full", "none"})
      for (int world_size = 1; world_size <= 4; ++world_size) {
        const auto reader = CheckpointReader::open(save(folder / "saves", Run{config, strategy, world_size, 1, 100}));
        for (const std::string& state : state_names)
          for (const std::string& name : reader->names()) {
            const auto norm = reader->norm(state, name);
            BOOST_REQUIRE(norm.has_value());
            BOOST_TEST(first.try_emplace(state + "/" + name, *norm).first->second == *norm);
          }
        BOOST_TEST(verify_norms(*reader, state_names) == first.size());
        fs::remove_all(folder / "saves");
      }
    const auto parameters = list_parameters(config).parameters;
    for (std::size_t s = 0; s < state_names.size(); ++s)
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        long double squares = 0;
        for (const float x : whole(s, p, parameters[p].shape, 100)) squares += static_cast<long double>(x) * x;
        const double expected = static_cast<double>(std::sqrt(squares));
        BOOST_TEST(std::abs(first.at(state_names[s] + "/" + parameters[p].name) - expected) <= 1e-15 * expected);
      }
  }
}

BOOST_AUTO_TEST_CASE(a_norm_that_is_another_is_named_and_one_that_is_missing_is_not) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{}), marker = step / "complete.json";
  const std::string tensor = "transformer.h.1.mlp.c_fc.weight";
  nlohmann::ordered_json text = nlohmann::ordered_json::parse(read_file(marker));
  double& norm = text["norms"]["exp_avg/" + tensor].get_ref<double&>();
  norm = std::nextafter(norm, 0.0);
  text.erase("xxh3_64");
  write_file(marker, text.dump());
  CHECK_CONTAINS(message_of<DamagedError>([&] { CheckpointReader::open(step); }), "it has no checksum");
  write_file(marker, seal_json(text));
  const auto reader = CheckpointReader::open(step);
  CHECK_CONTAINS(message_of<RunError>([&] { verify_norms(*reader, state_names); }), "exp_avg/" + tensor);
  BOOST_TEST(verify_norms(*reader, {"parameters"}) == reader->names().size());
}

BOOST_AUTO_TEST_CASE(a_save_is_complete_before_the_ranks_meet_again) {
  const TemporaryFolder folder;
  for (const auto& [ranks, files] : {std::pair(1, 0), {3, 0}, {4, 0}, {3, 2}, {4, 1}}) {
    const fs::path saves = folder / format("{}-{}", ranks, files);
    Run job;
    job.strategy = ranks == 4 ? "hybrid" : "full";
    job.world_size = ranks;
    job.files = files;
    const fs::path waited = save(saves / "waited", job);
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    run_ranks(job.world_size, [&](Communicator& world) {
      const Layout layout = job.layout();
      std::vector<UnitValues> values;
      std::vector<ShardState> states;
      for (std::size_t s = 0; s < state_names.size(); ++s)
        values.push_back(shard_values(layout, world.rank() % layout.shards(), s, job.update, padding));
      for (std::size_t s = 0; s < state_names.size(); ++s) states.push_back({state_names[s], spans(values[s])});
      std::vector<std::byte> snapshot(snapshot_bytes(layout, DType::f32, world.rank(), world.size()));
      CheckpointSave one(saves, job.header(), layout, states, world, snapshot, h5::Compression::none, nullptr, job.files);
      std::string& said = found[static_cast<std::size_t>(world.rank())];
      const auto complete = [&] { return fs::exists(one.folder() / "complete.json"); };
      for (int i = 0; i < 1200 && !(complete() && one.stage() == CheckpointSave::Stage::done); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!complete()) said = "it is not complete";
      if ((one.took_s() > 0) != (world.rank() == 0)) said += " another duration";
      world.barrier();
      one.finish();
      if (one.took_s() <= 0) said += " no duration";
    });
    for (const std::string& said : found) BOOST_TEST(said == "");
    const fs::path step = saves / waited.filename();
    BOOST_TEST((stored::read_complete(step).norms == stored::read_complete(waited).norms));
    const auto names_in = [](const fs::path& of) {
      std::set<std::string> names;
      for (const auto& entry : fs::directory_iterator(of)) names.insert(entry.path().filename().string());
      return names;
    };
    BOOST_TEST((names_in(step) == names_in(waited)));
    CheckpointReader::open(step)->verify(0, 1);
  }
}

BOOST_AUTO_TEST_CASE(the_header_comes_back) {
  const TemporaryFolder folder;
  Run run{llama_config(), "none", 3, 2, 123456789};
  const auto reader = CheckpointReader::open(save(folder.path(), run));
  const CheckpointHeader &found = reader->header(), expected = run.header();
  BOOST_CHECK(found.model.to_json() == expected.model.to_json());
  BOOST_TEST(found.progress.update == expected.progress.update);
  BOOST_TEST(found.progress.tokens == expected.progress.tokens);
  BOOST_CHECK(found.progress.data == expected.progress.data);
  BOOST_TEST(found.strategy == "none");
  BOOST_TEST(found.world_size == 3);
  BOOST_TEST(found.shards == 1);
  BOOST_CHECK(found.units == expected.units);
  BOOST_TEST(found.optimizer == "adamw");
  BOOST_TEST(found.options_json == expected.options_json);
  BOOST_TEST(found.version == "test");
  BOOST_CHECK(reader->states() == state_names);
  CHECK_CONTAINS(reader->description(), "step-123456789 (3 ranks)");
  std::vector<float> one(1);
  CHECK_CONTAINS(message_of([&] {
                   reader->read_state("momentum", "model.norm.weight", {0, 1}, one.data());
                 }),
                 "has no momentum");
  CHECK_CONTAINS(message_of([&] { reader->read("lm_tail.weight", {0, 1}, one.data()); }), "has no tensor lm_tail.weight");
}

BOOST_AUTO_TEST_CASE(a_rank_reads_its_share_of_the_files) {
  if (!bytes_read_by_process()) {
    BOOST_TEST_MESSAGE("the system does not count what a process reads: skipped");
    return;
  }
  const TemporaryFolder folder;
  Run saved;
  saved.world_size = 3;
  saved.config.width = 192;
  saved.config.head_size = 64;
  saved.config.ffn_width = 771;
  saved.config.vocab_size = 5003;
  const fs::path step = save(folder.path(), saved);
  const double all = static_cast<double>(parameter_count(saved.config) * sizeof(float) * state_names.size());
  for (const int ranks : {2, 4, 7}) {
    Run target = saved;
    target.world_size = ranks;
    const Layout layout = target.layout();
    std::vector<UnitValues> values;
    std::vector<ShardState> states;
    for (std::size_t s = 0; s < state_names.size(); ++s) values.push_back(room(layout, padding, s > 0));
    for (std::size_t s = 0; s < values.size(); ++s) states.push_back({state_names[s], spans(values[s])});
    const std::size_t before = *bytes_read_by_process();
    load_states(*CheckpointReader::open(step), list_parameters(target.config).parameters, layout, ranks - 1, states);
    const double share = static_cast<double>(*bytes_read_by_process() - before) / all;
    BOOST_TEST_MESSAGE("rank " << ranks - 1 << " of " << ranks << " reads " << share << " of " << all << " bytes");
    BOOST_TEST(share > 0.98 / ranks);
    BOOST_TEST(share < 1.0 / ranks + 0.02);  // the margin is for the index, and for HDF5's structures
  }
}

BOOST_AUTO_TEST_CASE(a_step_folder_has_exactly_these_files) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{});
  BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"step-00000100"}));
  BOOST_CHECK((list(step) ==
               std::vector<std::string>{"checkpoint.h5", "complete.json", "rank-00000-of-00002.h5", "rank-00001-of-00002.h5"}));
}

BOOST_AUTO_TEST_CASE(the_index_shows_whole_parameters_even_after_a_move) {
  const TemporaryFolder folder;
  for (const Run& run : {Run{gpt2_config(), "full", 3, 1, 7}, Run{llama_config(), "none", 2, 1, 8}}) {
    fs::rename(save(folder / "saves", run), folder / "moved");
    const std::string index = folder / "moved" / "checkpoint.h5";
    const auto parameters = list_parameters(run.config).parameters;
    BOOST_TEST(h5::File::open(index).dataset_names("/").size() == parameters.size());
    for (std::size_t s = 0; s < state_names.size(); ++s)
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const auto found = test::read_plain_hdf5(index, (s == 0 ? "" : state_names[s] + "/") + parameters[p].name);
        BOOST_CHECK(found.shape == parameters[p].shape);
        BOOST_CHECK(same_bits(found.values, whole(s, p, parameters[p].shape, run.update)));
      }
    check_load(folder / "moved", run, Run{run.config, "full", 2, 1, 0});
    CheckpointReader::open(folder / "moved")->verify(0, 1);
    fs::remove_all(folder / "moved");
  }
}

BOOST_AUTO_TEST_CASE(h5dump_reads_the_index) {
  int status = 0;
  run_command("h5dump --version 2>&1", status);
  if (status != 0) {
    BOOST_TEST_MESSAGE("h5dump is not installed: skipped");
    return;
  }
  const TemporaryFolder folder;
  Run run{many_words(), "full", 2, 1, 1};
  run.compression = h5::Compression::gzip;
  save(folder / "compressed", run);
  run = {gpt2_config(), "full", 3, 1, 1};
  const fs::path step = save(folder / "plain", run);
  const auto dump_of = [&](const fs::path& from) {
    const std::string text = run_command(
        "cd / && h5dump -d /transformer.wte.weight -c 37,12 " + (from / "checkpoint.h5").string() + " 2>&1", status);
    BOOST_TEST(status == 0);
    const auto begin = text.find("DATA {");
    return text.substr(begin, text.find('}', begin) - begin);
  };
  const std::string dump = dump_of(step);
  BOOST_TEST(dump == dump_of(folder / "compressed" / "step-00000001"));  // its first rows
  // "(0,0): 1.5, 2.5, ..." : all numbers after the colons of the DATA block.
  std::istringstream lines(dump);
  std::vector<float> found;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find("): ");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + 3));
    for (std::string number; std::getline(numbers, number, ',');)
      if (number.find_first_not_of(' ') != std::string::npos) found.push_back(std::stof(number));
  }
  const auto expected = whole(0, 0, {37, 12}, 1);
  BOOST_REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) BOOST_TEST(std::abs(found[i] - expected[i]) <= std::abs(expected[i]) * 1e-5f);
}

BOOST_AUTO_TEST_CASE(a_step_is_not_overwritten_once_it_is_complete) {
  const TemporaryFolder folder;
  Run run;
  const fs::path step = save(folder.path(), run);
  const std::string before = read_file(step / "rank-00001-of-00002.h5");
  run_ranks(2, [&](Communicator& world) {  // on every rank
    const std::string message = message_of([&] { save(folder.path(), run, world); });
    if (!contains(message, "is a complete checkpoint already"))
      throw std::runtime_error(message);  // Boost.Test is not thread-safe
  });
  BOOST_CHECK(read_file(step / "rank-00001-of-00002.h5") == before);
  fs::remove(step / "complete.json");
  run.world_size = 3;
  save(folder.path(), run);
  check_load(step, run, Run{});
  BOOST_TEST(list(step).size() == 5u);
}
