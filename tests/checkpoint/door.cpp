// Damaged and hostile files must not harm their readers, and foreign files must not be changed. Each case has happened.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/support.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

const std::string rank_file = "rank-00001-of-00002.h5";

/// Reads every number that a source has.
void read_all(const TensorSource& source) {
  std::vector<float> values;
  for (const std::string& state : source.states())
    for (const std::string& name : source.names()) {
      if (!source.has_state(state, name)) continue;
      values.resize(numel(source.state_shape(state, name)));
      source.read_state(state, name, {0, values.size()}, values.data());
    }
}

/// Reads a whole checkpoint and returns the error, or an empty string.
std::string complaint(const fs::path& step) {
  try {
    read_all(*CheckpointReader::open(step));
    return "";
  } catch (const DamagedError& error) {
    return error.what();
  }
}

/// Makes a consolidated file without checksums, changed by `change` through HDF5 itself.
void make_foreign(const fs::path& path, const std::function<void(hid_t)>& change) {
  fs::resize_file(path, CheckedFile(path).size());
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  BOOST_REQUIRE(file >= 0);
  H5Adelete(file, "checksums");
  change(file);
  H5Fclose(file);
}

const char* const victim_tensor = "transformer.h.1.mlp.c_fc.bias";  // [29]

void replace_dataset(hid_t file, hid_t creation, hid_t type = H5T_IEEE_F32LE) {
  H5Ldelete(file, victim_tensor, H5P_DEFAULT);
  const hsize_t extent = 29;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  const hid_t dataset = H5Dcreate2(file, victim_tensor, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  BOOST_REQUIRE(dataset >= 0);
  H5Dclose(dataset);
  H5Sclose(space);
}

}  // namespace

// One byte near 2,076 of the index crashed HDF5, 512 zeros at 2,560 made it loop forever.
BOOST_AUTO_TEST_CASE(hdf5_sees_no_damaged_byte_of_a_checkpoint) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{});
  BOOST_TEST(complaint(step) == "");
  for (const std::string& name : {std::string("checkpoint.h5"), rank_file}) {
    const std::string whole = read_file(step / name);
    const auto damaged = [&](std::size_t at, std::size_t bytes, char with) {
      std::string bad = whole;
      std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at), std::min(bytes, bad.size() - at), with);
      if (bad == whole) return;
      const auto before = CheckpointReader::open(step);
      write_file(step / name, bad);
      // The virtual datasets for other programs are not read here.
      if (const std::string said = complaint(step); !said.empty() || name == rank_file)
        CHECK_CONTAINS(said, name + " is damaged");
      CHECK_CONTAINS(message_of<DamagedError>([&] { before->verify(0, 1); }), name + " is damaged");
      write_file(step / name, whole);
    };
    for (std::size_t at = 0; at < whole.size(); at += 1021) damaged(at, 1, '\xff');
    for (std::size_t at = 0; at < whole.size(); at += 4096) damaged(at, 512, '\0');
    damaged(2076, 1, '\xff');
    damaged(2560, 512, '\0');
  }
  BOOST_TEST(complaint(step) == "");
}

BOOST_AUTO_TEST_CASE(the_newest_step_is_told_from_one_that_is_damaged_without_hdf5) {
  const TemporaryFolder folder;
  Run run;
  const fs::path early = save(folder.path(), run);
  run.update = 200;
  const fs::path late = save(folder.path(), run);
  std::string index = read_file(late / "checkpoint.h5");
  std::fill_n(index.begin() + 2560, 512, '\0');
  write_file(late / "checkpoint.h5", index);
  CHECK_CONTAINS(message_of<DamagedError>([&] { CheckpointReader::open(late); }), "checkpoint.h5 is damaged");
  set_aside(late);
  BOOST_TEST(*latest_checkpoint(folder.path()) == early);
}

BOOST_AUTO_TEST_CASE(a_consolidated_file_is_compared_with_its_seal) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  consolidate(*reader, folder / "model.h5", {.with_optimizer = true});
  const fs::path path = folder / "model.h5";
  const std::string whole = read_file(path);
  read_all(*open_tensor_source(path));
  for (std::size_t at = 0; at < whole.size(); at += 307) {
    flip(path, at);
    message_of<UserError>([&] { read_all(*open_tensor_source(path)); });
    write_file(path, whole);
  }
}

// Only HDF5 checks this file. It may crash on bytes that were damaged on purpose (docs/reliability.md).
BOOST_AUTO_TEST_CASE(a_consolidated_file_without_a_seal_is_read_or_refused) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  const fs::path path = folder / "model.h5";
  consolidate(*reader, path, {});
  make_foreign(path, [](hid_t) {});
  compare_sources(*reader, *open_tensor_source(path));
  for (std::size_t size = fs::file_size(path); size > 0; size /= 2) {
    fs::resize_file(path, size - 1);
    CHECK_CONTAINS(message_of<UserError>([&] { read_all(*open_tensor_source(path)); }), "model.h5");
  }
}

BOOST_AUTO_TEST_CASE(nothing_leads_into_other_files) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  const fs::path path = folder / "model.h5";
  write_file(folder / "secret", std::string(4096, 's'));
  const auto refusal = [&](const std::function<void(hid_t)>& change) {
    fs::remove(path);
    consolidate(*reader, path, {});
    make_foreign(path, change);
    return message_of([&] { find_mismatch(*open_tensor_source(path), list_parameters(gpt2_config()).parameters); });
  };
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  CHECK_CONTAINS(refusal([&](hid_t file) {
                   const hid_t external = H5Pcopy(creation);
                   H5Pset_external(external, (folder / "secret").c_str(), 0, 29 * 4);
                   replace_dataset(file, external);
                 }),
                 "has its elements in other files");
  CHECK_CONTAINS(refusal([&](hid_t file) {
                   const hid_t shown = H5Pcopy(creation);
                   const hsize_t extent = 29;
                   const hid_t space = H5Screate_simple(1, &extent, nullptr);
                   H5Pset_virtual(shown, space, (folder / "other.h5").c_str(), "x", space);
                   replace_dataset(file, shown);
                 }),
                 "has its elements in other files");
  CHECK_CONTAINS(refusal([&](hid_t file) {
                   H5Ldelete(file, victim_tensor, H5P_DEFAULT);
                   H5Lcreate_external((folder / "other.h5").c_str(), "/x", file, victim_tensor, H5P_DEFAULT, H5P_DEFAULT);
                 }),
                 "is a link to another place");
  CHECK_CONTAINS(refusal([&](hid_t file) { replace_dataset(file, creation, H5T_STD_I32LE); }), "does not have floating-point");
  {
    fs::remove(path);
    consolidate(*reader, path, {});
    make_foreign(path, [&](hid_t file) {
      H5Ldelete(file, victim_tensor, H5P_DEFAULT);
      H5Lcreate_soft("/transformer.h.0.mlp.c_fc.bias", file, victim_tensor, H5P_DEFAULT, H5P_DEFAULT);
    });
    CHECK_CONTAINS(message_of([&] { h5::File::open(path).dataset(victim_tensor); }), "is a link to another place");
  }
  H5Pclose(creation);
}

BOOST_AUTO_TEST_CASE(what_lies_where_a_consolidation_works_stays_as_it_is) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  const fs::path work = folder / "out.tmp";
  const auto refused = [&] {
    for (const auto format : {&hdf5_format(), &safetensors_format()})
      CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {.format = format}); }), "out.tmp is in the way");
    BOOST_TEST(!fs::exists(folder / "out"));
  };
  fs::create_directory(work);
  for (const char* name : {"thesis.tex", "model"}) {
    write_file(work / name, "years of work");
    refused();
    BOOST_TEST(read_file(work / name) == "years of work");
    fs::remove(work / name);
  }
  const std::string lock = R"({"host":"db.example.org","port":5432})";
  write_file(work / "lock", lock);
  CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {}); }), "is in the way");
  BOOST_TEST(read_file(work / "lock") == lock);
  fs::remove(work / "lock");
  fs::create_directory(folder / "elsewhere");
  fs::remove(work);
  fs::create_symlink("elsewhere", work);
  refused();
  BOOST_TEST(fs::is_empty(folder / "elsewhere"));
  fs::remove(work);
  if (::geteuid() == 0) {
    fs::create_directory(work);
    BOOST_REQUIRE(::chown(work.c_str(), 1, 1) == 0);
    refused();
    fs::remove(work);
  }
  fs::create_directory(work);  // as left by a call that dies at once
  consolidate(*reader, folder / "out", {});
  BOOST_TEST(fs::is_empty(work));
}

BOOST_AUTO_TEST_CASE(a_consolidation_that_fails_leaves_nothing_and_removes_nothing_of_others) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  for (const auto format : {&hdf5_format(), &safetensors_format()}) {
    const ConsolidateOptions options = {.format = format};
    BOOST_CHECK_THROW(consolidate(*reader, folder / "out", options,
                                  [](std::size_t done, std::size_t all) {
                                    if (done > all / 2) throw std::runtime_error("interrupted");
                                  }),
                      std::runtime_error);
    BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"saves"}));
    // A link is removed, but its target and files of other names are kept.
    const fs::path work = folder / "out.tmp", elsewhere = folder / "elsewhere";
    fs::create_directory(elsewhere);
    write_file(elsewhere / "config.json", "{}");
    fs::create_directory(work);
    fs::create_directory_symlink("../elsewhere", work / "unfinished-model");
    consolidate(*reader, folder / "out", options);
    BOOST_TEST(read_file(elsewhere / "config.json") == "{}");
    fs::remove_all(folder / "out");
    fs::create_directories(work / "unfinished-model");
    write_file(work / "unfinished-model" / "thesis.tex", "years of work");
    CHECK_CONTAINS(message_of<RunError>([&] { consolidate(*reader, folder / "out", options); }), "files of other programs");
    BOOST_TEST(read_file(work / "unfinished-model" / "thesis.tex") == "years of work");
    fs::remove_all(work);
    fs::remove_all(elsewhere);
  }
}

BOOST_AUTO_TEST_CASE(a_lock_is_nothing_but_a_lock) {
  const TemporaryFolder folder;
  write_file(folder / "victim", "precious");
  const fs::path saves = folder / "saves", lock = saves / "lock";
  fs::create_directory(saves);
  const auto refused = [&] { CHECK_CONTAINS(message_of([&] { SaveLock taken(saves); }), "lock is in the way"); };
  fs::create_symlink("../victim", lock);
  refused();
  fs::remove(lock);
  fs::create_hard_link(folder / "victim", lock);
  refused();
  fs::remove(lock);
  for (const std::string text : {"precious", "{\"host\":\"db.example.org\",\"port\":5432}", "{\"host\":5}"}) {
    write_file(lock, text);
    refused();
    BOOST_TEST(read_file(lock) == text);
    fs::remove(lock);
  }
  BOOST_REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  refused();
  fs::remove(lock);
  fs::create_directory(lock);
  refused();
  fs::remove(lock);
  {
    const SaveLock taken(saves);
    fs::remove(lock);
    write_file(lock, "somebody else's");
  }
  BOOST_TEST(read_file(lock) == "somebody else's");
  BOOST_TEST(read_file(folder / "victim") == "precious");
}

BOOST_AUTO_TEST_CASE(a_step_under_the_name_of_another_is_refused_by_name) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{});
  fs::rename(step, folder / "step-00000300");
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { CheckpointReader::open(folder / "step-00000300"); }, [&] { open_tensor_source(folder.path()); },
           [&] { latest_checkpoint(folder.path()); }, [&] { damaged_checkpoints(folder.path(), 0); }})
    CHECK_CONTAINS(message_of(call), "step-00000300 holds the step of update 100");
  fs::rename(folder / "step-00000300", folder / "best");  // a name without an update number
  BOOST_TEST(CheckpointReader::open(folder / "best")->header().progress.update == 100u);
}

// A run moves the link `best` while others read the step that it named.
BOOST_AUTO_TEST_CASE(a_link_is_resolved_once) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{});
  fs::create_directory_symlink(step.filename(), folder / "best");
  fs::create_directory_symlink("best", folder / "other");
  const auto reader = open_checkpoint(folder / "other");
  BOOST_TEST(reader->folder() == step);
  fs::remove(folder / "best");
  reader->verify(0, 1);
}

BOOST_AUTO_TEST_CASE(files_of_the_users_in_a_step_stay) {
  const TemporaryFolder folder;
  Run run;
  const fs::path first = save(folder.path(), run);
  write_file(first / "notes.txt", "the good one");
  run.update = 200;
  save(folder.path(), run);
  const std::string said = remove_old_checkpoints(folder.path(), 1, 0);
  CHECK_CONTAINS(said, "step-00000100.tmp is kept");
  BOOST_TEST(read_file(folder / "step-00000100.tmp" / "notes.txt") == "the good one");
  BOOST_TEST(list(folder / "step-00000100.tmp").size() == 1u);
  run.update = 300;
  save(folder.path(), run);
  BOOST_TEST(read_file(folder / "step-00000100.tmp" / "notes.txt") == "the good one");
  fs::create_directory(folder / "step-00000400");
  write_file(folder / "step-00000400" / "notes.txt", "why this one failed");
  run.update = 400;
  run_ranks(2, [&](Communicator& world) {
    try {
      save(folder.path(), run, world);
      expect(false, "a folder in the way is refused");
    } catch (const CollectiveError& error) {
      expect(contains(error.what(), "is in the way"), "it is named");
    }
  });
  BOOST_TEST(read_file(folder / "step-00000400" / "notes.txt") == "why this one failed");
}

BOOST_AUTO_TEST_CASE(weights_that_are_not_finite_are_no_step) {
  const TemporaryFolder folder;
  const Run run;
  save(folder.path(), run);
  Run next = run;
  next.update = 200;
  run_ranks(2, [&](Communicator& world) {
    const Layout layout = next.layout();
    std::vector<UnitValues> values;
    std::vector<ShardState> states;
    for (std::size_t s = 0; s < state_names.size(); ++s)
      values.push_back(shard_values(layout, world.rank(), s, next.update, padding));
    if (world.rank() == 1) values[0][1][0] = std::numeric_limits<float>::infinity();
    for (std::size_t s = 0; s < state_names.size(); ++s) states.push_back({state_names[s], spans(values[s])});
    try {
      save_checkpoint(folder.path(), next.header(), layout, states, world);
      expect(false, "they are refused");
    } catch (const CollectiveError& error) {
      expect(contains(error.what(), "the weights after update 200 are not finite (transformer.") &&
                 contains(error.what(), "has 1 element") && contains(error.what(), "last complete checkpoint is step-00000100"),
             error.what());
      expect(error.exit_code == 1, "it is no wrong use");
    }
  });
  BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"step-00000100"}));
  // If an older version saved a step with infinite weights, the last finite one is kept.
  const fs::path late = save(folder.path(), next);
  stored::Marker marker = stored::read_complete(late);
  marker.norms["transformer.wte.weight"] = std::numeric_limits<double>::quiet_NaN();
  write_file(late / "complete.json", stored::marker_text(marker));
  BOOST_TEST(remove_old_checkpoints(folder.path(), 1, 0) == "");
  BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"step-00000100", "step-00000200"}));
}

// Weights with checksums are reported as damaged; weights without checksums must be finite.
BOOST_AUTO_TEST_CASE(weights_that_became_no_numbers_are_damaged_or_refused) {
  const TemporaryFolder folder;
  const Run run;
  const auto reader = CheckpointReader::open(save(folder / "saves", run));
  const std::string name = "transformer.h.1.mlp.c_fc.bias", whole = "holds weights that are not finite (element 17 of " + name;
  const auto load = [&](const fs::path& path, Verify verify) {
    const auto parameters = list_parameters(run.config).parameters;
    const Layout layout = run.layout();
    for (int shard = 0; shard < layout.shards(); ++shard) {
      UnitValues values = room(layout, 0);
      load_parameters(*open_tensor_source(path, nullptr, verify), parameters, layout, shard, {"parameters", spans(values)});
    }
  };
  const auto spoil = [&](const fs::path& path, std::uint64_t offset) {
    std::string bytes = read_file(path);
    bytes.replace(offset + 4 * 17, 4, std::string("\x00\x00\xc0\x7f", 4));
    write_file(path, bytes);
  };
  consolidate(*reader, folder / "model", {.format = &safetensors_format()});
  const fs::path file = folder / "model" / "model.safetensors", h5 = folder / "model.h5";
  spoil(file, SafetensorsFile(file).find(name)->offset);
  consolidate(*reader, h5, {});
  spoil(h5, h5::File::open(h5).dataset(name).offset().value());
  for (const fs::path& path : {folder / "model", h5})
    CHECK_CONTAINS(message_of<DamagedError>([&] { load(path, Verify::yes); }), " is damaged (bytes ");
  CHECK_CONTAINS(message_of<UserError>([&] { load(folder / "model", Verify::no); }), file.string() + " " + whole);
  fs::resize_file(h5, fs::file_size(h5) - 8);  // the seal is gone
  CHECK_CONTAINS(message_of<UserError>([&] { load(h5, Verify::no); }), h5.string() + " " + whole);
  const std::string part = "parameters/" + name;
  for (const char* rank : {"rank-00000-of-00002.h5", "rank-00001-of-00002.h5"}) {
    const fs::path path = reader->folder() / rank;
    const h5::File stored = h5::File::open(path);
    if (!stored.has(part)) continue;
    const h5::Dataset dataset = stored.dataset(part);
    if (const std::uint64_t begin = dataset.read_integer("begin"); begin <= 17 && 17 < begin + dataset.shape()[0])
      spoil(path, dataset.offset().value() - 4 * begin);
  }
  const auto consolidated = [&] { consolidate(*CheckpointReader::open(reader->folder()), folder / "out", {}); };
  CHECK_CONTAINS(message_of<DamagedError>(consolidated), " is damaged (bytes ");
}

BOOST_AUTO_TEST_CASE(texts_are_neither_deep_nor_long_nor_pipes) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "saves", Run{});
  const std::string deep(100000, '['), marker = read_file(step / "complete.json");
  write_file(step / "complete.json", deep);
  CHECK_CONTAINS(message_of<DamagedError>([&] { CheckpointReader::open(step); }), "its complete.json is damaged");
  fs::remove(step / "complete.json");
  BOOST_REQUIRE(::mkfifo((step / "complete.json").c_str(), 0600) == 0);
  CHECK_CONTAINS(message_of([&] { CheckpointReader::open(step); }), "complete.json is not a file");
  const fs::path model = folder / "model";
  fs::create_directory(model);
  write_file(model / "model.safetensors", "");
  for (const std::string& text : {deep, "{\"model_type\":" + deep, std::string(60000, 'x')}) {
    write_file(model / "config.json", text);
    const std::string message = message_of([&] { open_tensor_source(model); });
    CHECK_CONTAINS(message, "is not a JSON object");
    BOOST_TEST(message.size() < 1000u);
  }
  write_file(model / "config.json", "{\"model_type\": \"" + std::string(60000, 'x') + "\"}");
  BOOST_TEST(message_of([&] { open_tensor_source(model); }).size() < 1000u);
  fs::remove(model / "config.json");
  BOOST_REQUIRE(::mkfifo((model / "config.json").c_str(), 0600) == 0);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(model); }), "config.json is not a file");
  fs::remove(model / "config.json");
  write_file(model / "config.json", config_to_json(gpt2_config()).dump());
  fs::remove(model / "model.safetensors");
  BOOST_REQUIRE(::mkfifo((model / "model.safetensors").c_str(), 0600) == 0);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(model); }), "model.safetensors is not a file");
  fs::remove(model / "model.safetensors");
  for (const std::string name : {"a\\u0000b", "..", "a\\nb"}) {
    write_file(model / "model.safetensors.index.json", "{\"weight_map\": {\"x\": \"" + name + "\"}}");
    CHECK_CONTAINS(message_of([&] { open_tensor_source(model); }), "which is not a file name in its folder");
  }
}
