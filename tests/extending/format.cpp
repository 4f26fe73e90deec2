// Adds the whole-model format of docs/extending-format.md from outside the library: numpy_folder.cpp.
#include <boost/test/unit_test.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/support.hpp"

using namespace fsdp;
using namespace fsdp::test;

const ModelFormat& numpy_format();

namespace {

struct Added {
  Added() { add_model_format(numpy_format()); }
};
BOOST_TEST_GLOBAL_FIXTURE(Added);

const ConsolidateOptions as_numpy = {.format = &numpy_format()};

}  // namespace

BOOST_AUTO_TEST_CASE(a_format_is_added_once) {
  BOOST_TEST(model_formats().back() == &numpy_format());
  BOOST_CHECK_THROW(add_model_format(numpy_format()), InternalError);
  CHECK_CONTAINS(message_of([] { open_tensor_source("absent"); }), "a Hugging Face folder or a NumPy folder)");
}

BOOST_AUTO_TEST_CASE(a_model_is_written_and_read) {
  for (const Run& run : {Run{gpt2_config(), "full", 3, 1, 7}, Run{llama_config(), "none", 2, 1, 8}}) {
    const TemporaryFolder folder;
    const auto reader = CheckpointReader::open(save(folder / "saves", run));
    consolidate(*reader, folder / "model", as_numpy);
    const auto model = open_tensor_source(folder / "model");
    BOOST_TEST(model->description() == "NumPy folder " + (folder / "model").string());
    BOOST_CHECK(model->config() == run.config);
    BOOST_TEST(model->names().size() == reader->names().size());
    compare_sources(*reader, *model);
    BOOST_TEST(!exists(folder / "model.tmp"));
  }
}

// The bytes that numpy.save() of NumPy 2.4 writes for zeros((37, 12), float32) and zeros(12, float32).
BOOST_AUTO_TEST_CASE(its_files_are_those_of_numpy) {
  const TemporaryFolder folder;
  consolidate(*CheckpointReader::open(save(folder / "saves", Run{})), folder / "model", as_numpy);
  for (const auto& [name, shape, elements] :
       {std::tuple("transformer.wte.weight", "(37, 12), }", 37 * 12), std::tuple("transformer.ln_f.bias", "(12,), }", 12)}) {
    std::string header =
        std::string("\x93NUMPY\x01\x00v\x00", 10) + "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape;
    header.resize(127, ' ');
    const std::string file = read_file(folder / "model" / (std::string(name) + ".npy"));
    BOOST_TEST(file.substr(0, 128) == header + "\n", name);
    BOOST_TEST(file.size() == 128u + 4u * static_cast<std::size_t>(elements));
  }
}

BOOST_AUTO_TEST_CASE(damage_is_found) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  consolidate(*reader, folder / "model", as_numpy);
  const auto path = folder / "model" / "transformer.wte.weight.npy";
  const std::string whole = read_file(path);
  const auto complaint = [&](std::string bytes, Verify verify = Verify::yes) {
    write_file(path, bytes);
    return message_of([&] { compare_sources(*reader, *open_tensor_source(folder / "model", nullptr, verify)); });
  };
  std::string other = whole;
  other[500] ^= 1;
  CHECK_CONTAINS(complaint(other), "transformer.wte.weight.npy");
  other = whole;
  other[61] = '9';  // in the shape
  CHECK_CONTAINS(complaint(other, Verify::no), "is no array of float32 and shape [37, 12]");
  CHECK_CONTAINS(complaint(whole.substr(0, 700), Verify::no), "transformer.wte.weight.npy");
  remove(path);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "model"); }), "transformer.wte.weight.npy");
}

BOOST_AUTO_TEST_CASE(what_it_cannot_hold_is_refused) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(save(folder / "saves", Run{}));
  ConsolidateOptions options = as_numpy;
  options.type = DType::bf16;
  CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "model", options); }), "NumPy has no bf16");
  BOOST_TEST(!exists(folder / "model.tmp"));
}

// The page contains the compiled file.
BOOST_AUTO_TEST_CASE(the_document_shows_the_whole_code) {
  const std::filesystem::path tests = std::filesystem::path(FSDP_TEST_DATA).parent_path();
  const std::string document = read_file(tests.parent_path() / "docs" / "extending-format.md");
  BOOST_TEST(document.find("```cpp\n" + read_file(tests / "extending" / "numpy_folder.cpp") + "```\n") != std::string::npos);
}
