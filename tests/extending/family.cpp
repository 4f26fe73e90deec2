// Adds the model family of docs/extending-family.md from outside the library: StarCoder 2, in starcoder2.cpp.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "checkpoint/tensor_source.hpp"
#include "nn/family_run.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using nlohmann::json;

const Family& starcoder2_family();

BOOST_AUTO_TEST_CASE(a_family_is_known_once_it_is_added) {
  CHECK_CONTAINS(message_of([] { config_from_json({{"model_type", "starcoder2"}}); }), "\"starcoder2\" is not supported");
  add_family(starcoder2_family());
  const TransformerConfig config = config_from_json({{"model_type", "starcoder2"}});
  BOOST_TEST(parameter_count(config) == 3030371328u);  // StarCoder 2 3B; its config.json has the defaults
  BOOST_CHECK(config_from_json(config_to_json(config)) == config);
  BOOST_CHECK_THROW(add_family(starcoder2_family()), InternalError);
}

BOOST_AUTO_TEST_CASE(it_agrees_with_transformers) { BOOST_TEST(compare_with_transformers("starcoder2") >= 10); }

BOOST_AUTO_TEST_CASE(its_folders_are_read) {
  const TemporaryFolder folder;
  const json one = family_case("starcoder2");
  write_formula_model(folder.path(), one["config"]);
  const auto source = open_tensor_source(folder.path());
  for (const Parameter& parameter : list_parameters(source->config()).parameters) {
    std::vector<float> values(numel(parameter.shape));
    source->read(parameter.name, {0, values.size()}, values.data());
    BOOST_TEST((values == formula_values(parameter)), parameter.name);
  }
}

// The page contains the compiled file.
BOOST_AUTO_TEST_CASE(the_document_shows_the_whole_code) {
  const std::filesystem::path tests = std::filesystem::path(FSDP_TEST_DATA).parent_path();
  const std::string document = read_file(tests.parent_path() / "docs" / "extending-family.md");
  BOOST_TEST(document.find("```cpp\n" + read_file(tests / "extending" / "starcoder2.cpp") + "```\n") != std::string::npos);
}
