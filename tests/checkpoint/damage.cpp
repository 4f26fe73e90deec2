// Incomplete steps are ignored with a warning; damage is found and named.
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/stored.hpp"
#include "checkpoint/support.hpp"
#include "files/json.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

/// Two steps in one save folder, 100 and 200.
struct TwoSteps {
  TemporaryFolder folder;
  Run run;
  fs::path early = save(folder.path(), run), late;
  TwoSteps() {
    run.update = 200;
    late = save(folder.path(), run);
  }
  /// Checks that the early step is now the latest one, with a warning that contains `why`.
  void check_early_is_latest(const std::string& why) const {
    std::vector<std::string> warnings;
    const auto latest = latest_checkpoint(folder.path(), &warnings);
    BOOST_REQUIRE(latest);
    BOOST_TEST(*latest == early);
    BOOST_REQUIRE(warnings.size() == 1);
    CHECK_CONTAINS(warnings[0], "step-00000200");
    CHECK_CONTAINS(warnings[0], why);
    warnings.clear();
    const auto source = open_tensor_source(folder.path(), &warnings);
    CHECK_CONTAINS(source->description(), "step-00000100");
    BOOST_TEST(warnings.size() == 1u);
  }
};

const std::string second_file = "rank-00001-of-00002.h5";

}  // namespace

BOOST_AUTO_TEST_CASE(a_marker_that_cannot_be_read_is_no_missing_marker) {
  const TemporaryFolder folder;
  const fs::path step = save(folder.path(), Run{});
  const std::string before = read_file(step / "rank-00000-of-00002.h5");
  fs::remove(step / "complete.json");
  fs::create_symlink("complete.json", step / "complete.json");  // a link to itself: an error even for root
  BOOST_CHECK_THROW(latest_checkpoint(folder.path()), CallError);
  CHECK_CONTAINS(message_of([&] { save(folder.path(), Run{}); }), "complete.json");
  BOOST_TEST(read_file(step / "rank-00000-of-00002.h5") == before);
}

BOOST_AUTO_TEST_CASE(the_latest_complete_step_is_found) {
  const TwoSteps steps;
  std::vector<std::string> warnings;
  BOOST_TEST(*latest_checkpoint(steps.folder.path(), &warnings) == steps.late);
  BOOST_TEST(warnings.empty());
  BOOST_CHECK(!latest_checkpoint(steps.folder / "absent"));
  BOOST_CHECK(!latest_checkpoint(steps.late));
}

BOOST_AUTO_TEST_CASE(a_step_without_its_marker_is_passed_over) {
  const TwoSteps steps;
  fs::remove(steps.late / "complete.json");
  steps.check_early_is_latest("no complete.json");
  CHECK_CONTAINS(message_of([&] { CheckpointReader::open(steps.late); }), "not a complete checkpoint");
}

BOOST_AUTO_TEST_CASE(a_step_with_a_torn_marker_is_passed_over) {
  const TwoSteps steps;
  const std::string marker = read_file(steps.late / "complete.json");
  for (const std::size_t length : {std::size_t{0}, marker.size() / 2, marker.size() - 3}) {
    write_file(steps.late / "complete.json", marker.substr(0, length));
    steps.check_early_is_latest("complete.json is damaged");
  }
  for (const char* text : {"[]", "{}", R"({"format_version": 1, "update": 200, "save_id": "zz", "files": []})"}) {
    write_file(steps.late / "complete.json", text);
    steps.check_early_is_latest("complete.json is damaged");
  }
  const auto without_files =
      nlohmann::ordered_json::parse(R"({"format_version": 1, "update": 200, "save_id": "12", "files": [], "norms": {}})");
  write_file(steps.late / "complete.json", seal_json(without_files));
  steps.check_early_is_latest("does not name checkpoint.h5");
}

BOOST_AUTO_TEST_CASE(a_missing_or_truncated_file_is_noticed_before_anything_is_read) {
  for (const std::string& name : {second_file, std::string("checkpoint.h5")}) {
    const TwoSteps steps;
    const auto size = fs::file_size(steps.late / name);
    fs::resize_file(steps.late / name, size - 1);
    steps.check_early_is_latest(name + " has");
    fs::remove(steps.late / name);
    steps.check_early_is_latest(name + " is missing");
    CHECK_CONTAINS(message_of([&] { CheckpointReader::open(steps.late); }), name + " is missing");
  }
}

BOOST_AUTO_TEST_CASE(an_unfinished_save_is_passed_over_and_removed_by_the_next) {
  const TwoSteps steps;
  fs::create_directory(steps.folder / "step-00000300.tmp");
  write_file(steps.folder / "step-00000300.tmp" / "rank-00000-of-00002.h5", "half");
  std::vector<std::string> warnings;
  BOOST_TEST(*latest_checkpoint(steps.folder.path(), &warnings) == steps.late);
  BOOST_REQUIRE(warnings.size() == 1);
  CHECK_CONTAINS(warnings[0], "step-00000300.tmp is incomplete");
  Run next = steps.run;
  next.update = 250;
  save(steps.folder.path(), next);
  BOOST_CHECK((list(steps.folder.path()) == std::vector<std::string>{"step-00000100", "step-00000200", "step-00000250"}));
}

// Checksums cover every byte: if any is flipped, verify() names the file and, for data, the tensor.
BOOST_AUTO_TEST_CASE(a_flipped_byte_is_found_wherever_it_is) {
  const TemporaryFolder folder;
  Run run;
  run.user_data = {{"sampler", std::string(50000, 's')}};
  const fs::path step = save(folder.path(), run);
  for (const std::string& name : {second_file, std::string("checkpoint.h5")}) {
    const std::size_t size = fs::file_size(step / name);
    int inside_tensors = 0;
    for (std::size_t at = 0; at < size; at += size / 23) {
      const auto reader = CheckpointReader::open(step);
      flip(step / name, at);
      const std::string message = message_of([&] { reader->verify(0, 1); });
      CHECK_CONTAINS(message, name + " is damaged");
      inside_tensors += contains(message, ", in parameters/transformer.") || contains(message, ", in exp_avg");
      flip(step / name, at);
    }
    BOOST_TEST((name == second_file ? inside_tensors > 5 : inside_tensors == 0));
  }
  CheckpointReader::open(step)->verify(0, 1);
}

BOOST_AUTO_TEST_CASE(damaged_data_of_a_user_is_not_returned) {
  const TemporaryFolder folder;
  Run run;
  std::string bytes(150000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i / 251);
  run.user_data = {{"empty", ""}, {"a name with spaces.bin", bytes}};
  const fs::path step = save(folder.path(), run);
  const auto reader = CheckpointReader::open(step, Verify::no);
  BOOST_CHECK((reader->user_data_sizes() ==
               std::map<std::string, std::size_t>{{"empty", 0}, {"a name with spaces.bin", bytes.size()}}));
  BOOST_TEST(reader->read_user_data("empty") == "");
  BOOST_TEST((reader->read_user_data("a name with spaces.bin") == bytes));
  const std::string index = read_file(step / "checkpoint.h5");
  const std::size_t begin = index.find(bytes.substr(1000, 100));
  BOOST_REQUIRE(begin != std::string::npos);
  for (const std::size_t at : {begin, begin + 50000}) {
    flip(step / "checkpoint.h5", at);
    CHECK_CONTAINS(message_of([&] { reader->read_user_data("a name with spaces.bin"); }), "checkpoint.h5 is damaged");
    flip(step / "checkpoint.h5", at);
  }
  BOOST_TEST((reader->read_user_data("a name with spaces.bin") == bytes));
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string(".."), std::string(101, 'n'), std::string("\n")})
    CHECK_CONTAINS(message_of([&] { check({{name, ""}}); }), "cannot name data in a checkpoint");
}

BOOST_AUTO_TEST_CASE(parts_of_a_verification_cover_all_files) {
  const TemporaryFolder folder;
  Run run;
  run.world_size = 4;
  const fs::path step = save(folder.path(), run);
  const std::vector<std::string> names{"rank-00000-of-00004.h5", "rank-00001-of-00004.h5", "rank-00002-of-00004.h5",
                                       "rank-00003-of-00004.h5", "checkpoint.h5"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto reader = CheckpointReader::open(step);
    flip(step / names[i], 3000);
    for (int part = 0; part < 3; ++part) {
      if (part == static_cast<int>(i % 3))
        CHECK_CONTAINS(message_of([&] { reader->verify(part, 3); }), names[i]);
      else
        reader->verify(part, 3);
    }
    flip(step / names[i], 3000);
  }
}

// The file may be undamaged: it is not ignored, not overwritten, and not reported as damaged.
BOOST_AUTO_TEST_CASE(files_of_a_newer_format_version_are_refused) {
  const std::string newer = " has format version 2 (this program reads version 1); use the fsdp that wrote it, or a newer one";
  const auto complaint = [](auto&& call) {
    return message_of([&] {
      try {
        call();
      } catch (const RunError&) {  // for a damaged file
        return;
      }
    });
  };
  {
    const TwoSteps steps;
    const std::string marker = read_file(steps.late / "complete.json");
    const auto at = marker.find("\"format_version\": 1");
    BOOST_REQUIRE(at != std::string::npos);
    write_file(steps.late / "complete.json", std::string(marker).replace(at, 19, "\"format_version\": 2"));
    const std::vector<std::string> before = list(steps.late);
    CHECK_CONTAINS(complaint([&] { latest_checkpoint(steps.folder.path()); }), "step-00000200/complete.json" + newer);
    CHECK_CONTAINS(complaint([&] { open_checkpoint(steps.folder.path()); }), "step-00000200/complete.json" + newer);
    CHECK_CONTAINS(complaint([&] { open_tensor_source(steps.late); }), "step-00000200/complete.json" + newer);
    CHECK_CONTAINS(complaint([&] { save(steps.folder.path(), steps.run); }), "step-00000200/complete.json" + newer);
    BOOST_CHECK(list(steps.late) == before);
    // An older step is not read, and is kept.
    Run last = steps.run;
    last.update = 300;
    save(steps.folder.path(), last);
    BOOST_TEST(*latest_checkpoint(steps.folder.path()) == steps.folder / "step-00000300");
    BOOST_TEST(remove_old_checkpoints(steps.folder.path(), 1, 0) == "");
    BOOST_CHECK((list(steps.folder.path()) == std::vector<std::string>{"step-00000200", "step-00000300"}));
  }
  const TemporaryFolder folder;
  const auto replace = [](const fs::path& file, const char* kind) {
    fs::remove(file);
    h5::File made = h5::File::create(file);
    made.write_text("format", kind);
    made.write_integer("format_version", 2);
    made.seal();
  };
  /// A step with a replaced file and a matching marker.
  const auto replaced = [&](const std::string& name, const char* kind) {
    const fs::path step = save(folder / name, Run{});
    stored::Marker marker = stored::read_complete(step);
    replace(step / name, kind);
    for (auto& file : marker.files)
      if (file.name == name) file.sum = sum_file(step / name);
    write_file(step / "complete.json", stored::marker_text(marker));
    return step;
  };
  const fs::path index = replaced("checkpoint.h5", stored::index_kind), rank = replaced(second_file, stored::rank_kind);
  CHECK_CONTAINS(complaint([&] { CheckpointReader::open(index); }), (index / "checkpoint.h5").string() + newer);
  const auto reader = CheckpointReader::open(rank);
  reader->verify(0, 1);
  CHECK_CONTAINS(complaint([&] { summarize(*reader, "transformer.h.2.mlp.c_proj.weight"); }),
                 (rank / second_file).string() + newer);
  replace(folder / "model.h5", stored::model_kind);
  CHECK_CONTAINS(complaint([&] { open_tensor_source(folder / "model.h5"); }), (folder / "model.h5").string() + newer);
}

BOOST_AUTO_TEST_CASE(the_index_of_another_save_is_noticed) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "a", Run{}), other = save(folder / "b", Run{});
  fs::copy_file(other / "checkpoint.h5", step / "checkpoint.h5", fs::copy_options::overwrite_existing);
  CHECK_CONTAINS(message_of<RunError>([&] { CheckpointReader::open(step); }),
                 "checkpoint.h5 is damaged (it belongs to another save");
  // If its marker is also replaced, the rank files are the wrong ones.
  fs::copy_file(other / "complete.json", step / "complete.json", fs::copy_options::overwrite_existing);
  const auto reader = CheckpointReader::open(step);
  CHECK_CONTAINS(message_of<RunError>([&] { reader->verify(0, 1); }), "rank-00000-of-00002.h5 is damaged (its checksum is");
  CHECK_CONTAINS(message_of<RunError>([&] { summarize(*reader, "transformer.wte.weight"); }),
                 "it belongs to another save than the index");
  // If the file is unreadable, its checksum distinguishes a damaged file from one of another kind.
  write_file(other / "checkpoint.h5", std::string(fs::file_size(other / "checkpoint.h5"), 'x'));
  CHECK_CONTAINS(message_of<RunError>([&] { CheckpointReader::open(other); }), "checkpoint.h5 is damaged");
}

BOOST_AUTO_TEST_CASE(files_of_another_save_are_noticed) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "a", Run{}), other = save(folder / "b", Run{});
  BOOST_REQUIRE(fs::file_size(step / second_file) == fs::file_size(other / second_file));
  fs::copy_file(other / second_file, step / second_file, fs::copy_options::overwrite_existing);
  const auto reader = CheckpointReader::open(step);
  std::vector<float> values(37 * 12);
  const std::string message = message_of([&] {
    for (const std::string& name : reader->names()) {
      values.resize(numel(reader->shape(name)));
      reader->read(name, {0, values.size()}, values.data());
    }
  });
  CHECK_CONTAINS(message, second_file);
  CHECK_CONTAINS(message, "it belongs to another save");
}

BOOST_AUTO_TEST_CASE(a_path_that_is_something_else_is_told_what_was_expected) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "saves", Run{});
  const auto complaint = [](const fs::path& path) { return message_of([&] { open_tensor_source(path); }); };
  CHECK_CONTAINS(complaint(folder / "absent"), "absent does not exist (expected a step folder");
  fs::create_directory(folder / "empty");
  CHECK_CONTAINS(complaint(folder / "empty"), "empty holds no model");
  write_file(folder / "notes.txt", "hello");
  CHECK_CONTAINS(complaint(folder / "notes.txt"), "notes.txt is not a model");
  CHECK_CONTAINS(complaint(step / "checkpoint.h5"), "give " + step.string());
  CHECK_CONTAINS(complaint(step / second_file), "one file of a checkpoint");
  CHECK_CONTAINS(message_of([&] { open_checkpoint(folder / "empty"); }), "no folder step-NNNNNNNN is in it");
  CHECK_CONTAINS(message_of([&] { open_checkpoint(folder / "notes.txt"); }), "is not a folder");
  BOOST_TEST(open_checkpoint(folder / "saves")->header().progress.update == 100u);
  BOOST_TEST(open_checkpoint(step.string() + "/")->header().progress.update == 100u);
}

// Unsupported forms of models, with and without config.json. (tests/jobs/mistakes.cpp has the messages for --model.)
BOOST_AUTO_TEST_CASE(a_model_in_a_form_that_is_not_read_is_told_what_it_is) {
  const TemporaryFolder folder;
  const std::string zip = "PK\x03\x04 and more", config = config_to_json(gpt2_config()).dump();
  struct Form {
    std::string file, content, said;
  };
  for (const Form& form : std::vector<Form>{
           {"model-00001-of-00002.safetensors", "", "but no model.safetensors.index.json"},
           {"adapter_config.json", "{}", "holds an adapter such as LoRA's (adapter_config.json: "},
           {"adapter_model.safetensors", "", "merge it into that model"},
           {"model.gguf", "GGUF", "has a GGUF file (model.gguf: "},
           {"pytorch_model.bin", zip, "has its weights pickled by PyTorch (pytorch_model.bin: "},
           {"pytorch_model-00001-of-00002.bin", "\x80\x02 and more",
            "(pytorch_model-00001-of-00002.bin: such files are not read)"},
           {"pytorch_model.bin.index.json", "{}", "has its weights pickled by PyTorch"},
           {"consolidated.00.pth", zip, "has its weights pickled by PyTorch (consolidated.00.pth: "},
           {"__0_0.distcp", "", "is a checkpoint of torch.distributed.checkpoint (__0_0.distcp: "},
           {"tf_model.h5", "", "has its weights in tf_model.h5"},
           {"consolidated.safetensors", "", "has consolidated.safetensors, and no model.safetensors"},
       }) {
    const fs::path here = folder / ("with-" + form.file);
    fs::create_directory(here);
    write_file(here / form.file, form.content);
    CHECK_CONTAINS(message_of([&] { open_tensor_source(here); }), form.said);
    write_file(here / "config.json", config);
    CHECK_CONTAINS(message_of([&] { open_tensor_source(here); }), form.said);
    CHECK_CONTAINS(message_of([&] { open_hugging_face(here); }), form.said);
  }
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "with-model.gguf" / "model.gguf"); }), "is a GGUF file");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "with-pytorch_model.bin" / "pytorch_model.bin"); }),
                 "is pickled by PyTorch");
  CHECK_CONTAINS(
      message_of([&] { open_tensor_source(folder / "with-adapter_model.safetensors" / "adapter_model.safetensors"); }),
      "is of an adapter such as LoRA's");
  // transformers would apply an adapter next to a model; a trainer's states are not weights.
  const fs::path both = folder / "both";
  consolidate(*CheckpointReader::open(save(folder / "saves", Run{})), both, {.format = &safetensors_format()});
  for (const char* name : {"optimizer.pt", "training_args.bin"}) write_file(both / name, zip);
  open_tensor_source(both);
  fs::remove(both / "model.safetensors");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(both); }), "has no model.safetensors (the weights are read from there)");
  write_file(both / "model.safetensors", "");
  write_file(both / "adapter_config.json", "{}");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(both); }), "holds an adapter");
}

// For example a run that saves into its model's folder, or a config.json next to the steps.
BOOST_AUTO_TEST_CASE(a_save_folder_that_holds_a_model_too_is_refused) {
  const TemporaryFolder folder;
  const fs::path step = save(folder / "saves", Run{});
  consolidate(*CheckpointReader::open(step), folder / "model", {.format = &safetensors_format()});
  const auto refusal = [&] { return message_of([&] { open_tensor_source(folder / "saves"); }); };
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.xxh3"}) {
    fs::copy(folder / "model" / name, folder / "saves" / name);
    CHECK_CONTAINS(refusal(), "saves is both a Hugging Face folder and a save folder (step folders are in it); give");
  }
  BOOST_TEST(open_hugging_face(folder / "saves")->config().vocab_size == gpt2_config().vocab_size);  // --model always means the
                                                                                                     // model
  BOOST_TEST(open_checkpoint(folder / "saves")->header().progress.update == 100u);
  CHECK_CONTAINS(open_tensor_source(step)->description(), "step-00000100");
  fs::rename(step, folder / "step-00000100");
  CHECK_CONTAINS(open_tensor_source(folder / "saves")->description(), "saves");
}

BOOST_AUTO_TEST_CASE(a_model_of_another_size_is_refused) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder.path(), Run{}));
  Run wider;
  wider.config.vocab_size = 38;
  const auto parameters = list_parameters(wider.config).parameters;
  const Layout layout = wider.layout();
  UnitValues values = room(layout, 0);
  const std::vector<ShardState> states{{"parameters", spans(values)}};
  const std::string message = message_of([&] { load_states(*reader, parameters, layout, 0, states); });
  CHECK_CONTAINS(message, "transformer.wte.weight");
  CHECK_CONTAINS(message, "its shape is [37, 12] in the source, but [38, 12] in the model");
}
