// Hugging Face folders: valid ones are read, and errors in others are named.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/format.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/support.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

std::string file_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Writes a folder with config.json and the given tensors; `rename` may change names, or drop a tensor by returning "".
template <class Rename>
void write_folder(const fs::path& folder, const TransformerConfig& config, Rename&& rename) {
  fs::create_directories(folder);
  const auto parameters = list_parameters(config).parameters;
  std::vector<std::pair<std::string, Shape>> tensors;
  std::vector<float> values;
  for (std::size_t p = parameters.size(); p-- > 0;) {  // in reverse order
    const std::string name = rename(parameters[p].name);
    if (name.empty()) continue;
    tensors.emplace_back(name, parameters[p].shape);
    const auto tensor = whole(0, p, parameters[p].shape, 1);
    values.insert(values.end(), tensor.begin(), tensor.end());
  }
  write_file(folder / "model.safetensors", safetensors_header(tensors) + bytes_of(values));
  write_file(folder / "config.json", config_to_json(config).dump());
}

void check_model(const TensorSource& source, const TransformerConfig& config) {
  BOOST_CHECK(source.config() == config);
  const auto parameters = list_parameters(config).parameters;
  BOOST_TEST(source.names().size() == parameters.size());
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    BOOST_REQUIRE(source.has(parameters[p].name));
    BOOST_CHECK(source.shape(parameters[p].name) == parameters[p].shape);
    const auto expected = whole(0, p, parameters[p].shape, 1);
    std::vector<float> out(expected.size());
    const std::size_t middle = out.size() / 3;
    source.read(parameters[p].name, {0, middle}, out.data());
    source.read(parameters[p].name, {middle, out.size()}, out.data() + middle);
    BOOST_CHECK(same_bits(out, expected));
  }
  BOOST_TEST(source.bytes_read() == parameter_count(config) * 4);
}

const auto same_name = [](const std::string& name) { return name; };

/// Loads a folder on `shards` ranks, each its shard, and returns the error of each rank.
std::vector<std::string> load(const fs::path& folder, int shards) {
  const auto source = open_tensor_source(folder);
  const auto parameters = list_parameters(source->config()).parameters;
  const Layout layout(parameters, wrap_parameters(parameters, {}), shards);
  std::vector<std::string> said;
  for (int shard = 0; shard < shards; ++shard) {
    UnitValues values = room(layout, 0);
    try {
      std::size_t reported = 0, total = 0;
      load_parameters(*source, parameters, layout, shard, {"parameters", spans(values)}, {},
                      [&](std::size_t done, std::size_t all) { reported = done, total = all; });
      BOOST_TEST((reported > 0 && reported == total));
      said.emplace_back();
    } catch (const UserError& error) {
      said.emplace_back(error.what());
    }
  }
  return said;
}

struct Written {
  std::string name;
  Shape shape;
  std::vector<float> values;
};
/// Returns all parameters for write_folder().
std::vector<Written> tensors_of(const TransformerConfig& config) {
  std::vector<Written> all;
  const auto parameters = list_parameters(config).parameters;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    all.push_back({parameters[p].name, parameters[p].shape, whole(0, p, parameters[p].shape, 1)});
  return all;
}
void write_tensors(const fs::path& path, const std::vector<Written>& tensors, DType type = DType::f32) {
  fs::create_directories(path.parent_path());
  std::vector<std::pair<std::string, Shape>> names;
  std::string data;
  for (const Written& tensor : tensors) {
    names.emplace_back(tensor.name, tensor.shape);
    with_element(type, [&]<class E>() {
      for (const float value : tensor.values) {
        const E element(value);
        data.append(reinterpret_cast<const char*>(&element), sizeof element);
      }
    });
  }
  write_file(path, safetensors_header(names, type) + data);
}

/// Opens a folder with this model.safetensors and returns the error.
std::string complaint(const std::string& contents) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", contents);
  write_file(folder / "config.json", config_to_json(gpt2_config()).dump());
  const std::string message = message_of([&] { open_hugging_face(folder.path()); });
  CHECK_CONTAINS(message, "model.safetensors");
  return message;
}

}  // namespace

BOOST_AUTO_TEST_CASE(golden_models_are_read) {
  for (const char* name : {"gpt2-tied", "llama-gqa", "llama3-tied"}) {
    const auto source = open_tensor_source(fs::path(FSDP_TEST_DATA) / "runs" / name);
    CHECK_CONTAINS(source->description(), "Hugging Face folder");
    const auto parameters = list_parameters(source->config()).parameters;
    BOOST_TEST(source->names().size() == parameters.size());
    const Layout layout(parameters, wrap_parameters(parameters, {}), 3);
    std::size_t before = 0;
    for (int shard = 0; shard < 3; ++shard) {
      UnitValues values = room(layout, std::nanf(""));
      load_parameters(*source, parameters, layout, shard, {"parameters", spans(values)});
      for (const auto& unit : values)
        for (const float value : unit) BOOST_REQUIRE(std::abs(value) < 10);
      std::size_t own = 0;
      for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
        for (const Slice& slice : layout.slices(unit, shard)) own += slice.range.size() * 4;
      BOOST_TEST(source->bytes_read() - before == own);
      before = source->bytes_read();
    }
    BOOST_TEST(before == parameter_count(source->config()) * 4);
  }
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  for (const auto& config : {gpt2_config(), llama_config()}) {
    const TemporaryFolder folder;
    write_folder(folder.path(), config, same_name);
    check_model(*open_tensor_source(folder.path()), config);
    check_model(*open_tensor_source(folder.path().string() + "/"), config);
    const SafetensorsFile file(folder / "model.safetensors");
    BOOST_TEST(file.tensors().front().offset % 8 == 0u);
  }
}

BOOST_AUTO_TEST_CASE(names_may_lack_their_prefix) {
  const TemporaryFolder folder;
  const auto bare = [](const std::string& name) {
    return name.substr(name.starts_with("transformer.") ? 12 : name.starts_with("model.") ? 6 : 0);
  };
  write_folder(folder / "gpt2", gpt2_config(), bare);
  BOOST_TEST(SafetensorsFile(folder / "gpt2" / "model.safetensors").find("wte.weight"));
  check_model(*open_hugging_face(folder / "gpt2"), gpt2_config());
  write_folder(folder / "llama", llama_config(), bare);
  check_model(*open_hugging_face(folder / "llama"), llama_config());
  TransformerConfig opt = gpt2_config();
  opt.family = "opt", opt.activation = Activation::relu, opt.position_offset = 2;
  write_folder(folder / "opt", opt, bare);
  BOOST_TEST(SafetensorsFile(folder / "opt" / "model.safetensors").find("decoder.embed_positions.weight"));
  check_model(*open_hugging_face(folder / "opt"), opt);
}

BOOST_AUTO_TEST_CASE(names_may_have_the_prefixes_of_wrappers) {
  const TemporaryFolder folder;
  const auto compiled = [](const std::string& name) { return "_orig_mod." + name; };
  write_folder(folder / "compiled", llama_config(), compiled);
  check_model(*open_hugging_face(folder / "compiled"), llama_config());
  write_folder(folder / "ddp", gpt2_config(), [](const std::string& name) { return "module._orig_mod." + name; });
  check_model(*open_hugging_face(folder / "ddp"), gpt2_config());
  write_folder(folder / "bare", gpt2_config(),
               [](const std::string& name) { return "_orig_mod." + name.substr(name.starts_with("transformer.") ? 12 : 0); });
  check_model(*open_hugging_face(folder / "bare"), gpt2_config());
  // Names of blocks that were compiled, checkpointed or sharded individually.
  write_folder(folder / "blocks", llama_config(), [](std::string name) {
    if (name.starts_with("model.layers.")) name.insert(15, "_fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod.");
    return name;
  });
  check_model(*open_hugging_face(folder / "blocks"), llama_config());
  write_folder(folder / "twice", gpt2_config(), [](const std::string& name) {
    return name == "transformer.ln_f.bias" ? "_orig_mod.transformer.ln_f.weight" : name;
  });
  CHECK_CONTAINS(message_of([&] { open_hugging_face(folder / "twice"); }), "transformer.ln_f.weight a second time");
  // A tied head with such a name is also compared.
  TransformerConfig tied = llama_config();
  write_folder(folder / "tied", tied, compiled);
  tied.tied_embeddings = true;
  write_file(folder / "tied" / "config.json", config_to_json(tied).dump());
  std::vector<float> table(41 * 20);
  CHECK_CONTAINS(message_of([&] {
                   open_hugging_face(folder / "tied")->read("model.embed_tokens.weight", {0, table.size()}, table.data());
                 }),
                 "_orig_mod.lm_head.weight");
}

BOOST_AUTO_TEST_CASE(buffers_and_tied_heads_are_passed_over_and_nothing_else) {
  const TemporaryFolder folder;
  TransformerConfig config = gpt2_config();
  config.layers = 1;
  const auto parameters = list_parameters(config).parameters;
  // As in openai-community/gpt2: masks, and the head in addition to the table that it is tied to.
  const auto write = [&](const fs::path& path, const std::string& extra, const Shape& shape, std::size_t changed = SIZE_MAX) {
    fs::create_directories(path);
    std::vector<std::pair<std::string, Shape>> tensors;
    for (const Parameter& parameter : parameters) tensors.emplace_back(parameter.name, parameter.shape);
    tensors.emplace_back("h.0.attn.bias", Shape{1, 1, 11, 11});
    tensors.emplace_back(extra, shape);
    std::vector<float> values;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto tensor = whole(0, p, parameters[p].shape, 1);
      values.insert(values.end(), tensor.begin(), tensor.end());
    }
    values.resize(values.size() + 121);
    for (std::size_t i = 0; i < numel(shape); ++i) values.push_back(i == changed ? 7 : values[i]);
    write_file(path / "model.safetensors", safetensors_header(tensors) + bytes_of(values));
    write_file(path / "config.json", config_to_json(config).dump());
  };
  write(folder / "a", "lm_head.weight", {37, 12});
  check_model(*open_hugging_face(folder / "a"), config);
  BOOST_CHECK((load(folder / "a", 3) == std::vector<std::string>(3)));
  // Any different element is found by one of the ranks that share the table.
  const std::string differs = "holds lm_head.weight that differs from transformer.wte.weight, and the model ties the two";
  for (const std::size_t changed : {0, 12 * 18 + 5, 12 * 19, 37 * 12 - 1})
    for (const int shards : {1, 2, 4}) {
      write(folder / "other", "lm_head.weight", {37, 12}, changed);
      const auto said = load(folder / "other", shards);
      BOOST_TEST(std::count_if(said.begin(), said.end(), [&](const auto& text) { return contains(text, differs); }) == 1);
    }
  write(folder / "shape", "lm_head.weight", {36, 12});
  CHECK_CONTAINS(message_of([&] { open_hugging_face(folder / "shape"); }), differs);
  write(folder / "b", "transformer.h.0.attn.q_norm.weight", {12});
  const auto b = open_hugging_face(folder / "b");
  BOOST_TEST(b->names().size() == parameters.size() + 1);
  CHECK_CONTAINS(message_of([&] { find_mismatch(*b, parameters); }),
                 "1 tensor (transformer.h.0.attn.q_norm.weight: the model does not have this tensor of shape [12])");
  write(folder / "c", "wte.weight", {37, 12});
  CHECK_CONTAINS(message_of([&] { open_hugging_face(folder / "c"); }), "transformer.wte.weight a second time");
}

// Tables of other dtypes, and heads in other files, are compared by value.
BOOST_AUTO_TEST_CASE(a_tied_head_may_be_of_another_type_and_in_another_file) {
  const TemporaryFolder folder;
  std::vector<Written> all = tensors_of(gpt2_config());
  for (float& value : all[0].values) value = std::round(value);  // exact in bf16
  Written head = all[0];
  head.name = "lm_head.weight";
  nlohmann::json map;
  for (const Written& tensor : all) map[tensor.name] = "model-a.safetensors";
  map[head.name] = "model-b.safetensors";
  write_file(folder / "config.json", config_to_json(gpt2_config()).dump());
  write_file(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  write_tensors(folder / "model-a.safetensors", all);
  write_tensors(folder / "model-b.safetensors", {head}, DType::bf16);
  BOOST_CHECK((load(folder.path(), 2) == std::vector<std::string>(2)));
  head.values[12 * 30 + 1] += 1;
  write_tensors(folder / "model-b.safetensors", {head}, DType::bf16);
  BOOST_TEST(load(folder.path(), 2)[0] == "");
  CHECK_CONTAINS(load(folder.path(), 2)[1], "model-b.safetensors holds lm_head.weight that differs");
}

BOOST_AUTO_TEST_CASE(an_index_says_which_copy_counts) {
  const TemporaryFolder folder;
  const std::vector<Written> all = tensors_of(gpt2_config());
  Written stale = all[0], listed_nowhere = all.back();
  for (float& value : stale.values) value += 1;
  write_file(folder / "config.json", config_to_json(gpt2_config()).dump());
  const auto write_index = [&](const std::string& of_table, const std::string& extra = "") {
    nlohmann::json map;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) map[all[i].name] = "model-b.safetensors";
    map[stale.name] = of_table;
    if (!extra.empty()) map[extra] = "model-a.safetensors";
    write_file(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  };
  std::vector<Written> most(all.begin(), all.end() - 1);
  for (const bool first : {true, false}) {  // in both orders of the files
    write_tensors(folder / "model-a.safetensors", {first ? all[0] : stale, listed_nowhere});
    if (!first) most[0] = all[0];
    if (first) most[0] = stale;
    write_tensors(folder / "model-b.safetensors", most);
    write_index(first ? "model-a.safetensors" : "model-b.safetensors", listed_nowhere.name);
    std::vector<std::string> warnings;
    check_model(*open_tensor_source(folder.path(), &warnings), gpt2_config());
    BOOST_TEST_REQUIRE(warnings.size() == 1u);
    CHECK_CONTAINS(warnings[0],
                   std::string(first ? "model-b" : "model-a") + ".safetensors is not read (according to the folder's index");
    CHECK_CONTAINS(warnings[0], stale.name + " of ");
  }
  // A tensor that the index does not name is read if only one file has it.
  write_index("model-a.safetensors");
  write_tensors(folder / "model-a.safetensors", {all[0], listed_nowhere});
  check_model(*open_tensor_source(folder.path()), gpt2_config());
  most.push_back(listed_nowhere);
  write_tensors(folder / "model-b.safetensors", most);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "ln_f.bias a second time");
  most.pop_back();
  write_tensors(folder / "model-b.safetensors", most);
  // A tensor in the index must exist, except for a tied head.
  write_index("model-a.safetensors", "lm_head.weight");
  check_model(*open_tensor_source(folder.path()), gpt2_config());
  write_index("model-a.safetensors", most[3].name);
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "model-a.safetensors has no tensor " + most[3].name);
  // Other weight files in the folder are named.
  write_index("model-a.safetensors");
  std::vector<std::string> warnings;
  most.erase(most.begin());
  write_tensors(folder / "model-b.safetensors", most);
  open_tensor_source(folder.path(), &warnings);
  BOOST_TEST(warnings.empty());
  write_tensors(folder / "model-00002-of-00003.safetensors", {stale});
  open_tensor_source(folder.path(), &warnings);
  BOOST_TEST_REQUIRE(warnings.size() == 1u);
  CHECK_CONTAINS(warnings[0], "model-00002-of-00003.safetensors of ");
  CHECK_CONTAINS(warnings[0], "is not read (model.safetensors.index.json does not name it)");
  warnings.clear();
  write_tensors(folder / "model.safetensors", all);
  check_model(*open_tensor_source(folder.path(), &warnings), gpt2_config());
  BOOST_TEST_REQUIRE(warnings.size() == 1u);
  CHECK_CONTAINS(warnings[0], "are not read (model.safetensors is the whole model)");
}

BOOST_AUTO_TEST_CASE(weights_that_are_not_finite_are_refused_with_file_and_tensor) {
  const TemporaryFolder folder;
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
      for (const std::size_t p : {0, 5, 37}) {
        std::vector<Written> all = tensors_of(gpt2_config());
        all.at(p).values.back() = bad;
        write_tensors(folder / "model.safetensors", all, type);
        write_file(folder / "config.json", config_to_json(gpt2_config()).dump());
        const auto said = load(folder.path(), 3);
        const auto told = std::find_if(said.begin(), said.end(), [](const std::string& text) { return !text.empty(); });
        BOOST_TEST_REQUIRE((told != said.end()));
        CHECK_CONTAINS(*told, "model.safetensors holds weights that are not finite (element ");
        CHECK_CONTAINS(*told, format("{} of {} is ", all[p].values.size() - 1, all[p].name));
        BOOST_TEST(std::count(said.begin(), said.end(), "") == 2);
        // fsdp-inspect may read them nevertheless.
        BOOST_TEST(summarize(*open_tensor_source(folder.path()), all[p].name).non_finite == 1u);
      }
}

BOOST_AUTO_TEST_CASE(missing_and_misshapen_tensors_are_named) {
  const TemporaryFolder folder;
  write_folder(folder / "a", gpt2_config(),
               [](const std::string& name) { return name == "transformer.h.1.ln_1.bias" ? "" : name; });
  const auto parameters = list_parameters(gpt2_config()).parameters;
  const Layout layout(parameters, wrap_parameters(parameters, {}), 1);
  UnitValues values = room(layout, 0);
  const std::string missing = message_of([&] {
    load_parameters(*open_hugging_face(folder / "a"), parameters, layout, 0, {"parameters", spans(values)});
  });
  CHECK_CONTAINS(missing, "does not fit the model in 1 tensor (transformer.h.1.ln_1.bias: it is missing)");
  write_folder(folder / "b", gpt2_config(), same_name);
  TransformerConfig wider = gpt2_config();
  wider.ffn_width = 31;
  const auto others = list_parameters(wider).parameters;
  const Layout other_layout(others, wrap_parameters(others, {}), 1);
  UnitValues other_values = room(other_layout, 0);
  const std::string shape = message_of([&] {
    load_parameters(*open_hugging_face(folder / "b"), others, other_layout, 0, {"parameters", spans(other_values)});
  });
  CHECK_CONTAINS(shape, "in 9 tensors");
  for (const char* text : {"transformer.h.0.mlp.c_fc.weight: its shape is [12, 29] in the source, but [12, 31] in the model",
                           "transformer.h.0.mlp.c_fc.bias: its shape is [29] in the source", "; and 4 more)"})
    CHECK_CONTAINS(shape, text);
}

BOOST_AUTO_TEST_CASE(messages_about_tensors_are_short_and_explain_a_missing_head) {
  const TemporaryFolder folder;
  TransformerConfig config = llama_config();
  const auto complaint = [&](const TransformerConfig& wanted, const char* name) {
    return message_of([&] { find_mismatch(*open_hugging_face(folder / name), list_parameters(wanted).parameters); });
  };
  write_folder(folder / "headless", config, [](const std::string& name) { return name == "lm_head.weight" ? "" : name; });
  CHECK_CONTAINS(complaint(config, "headless"),
                 "(lm_head.weight: it is missing, although tie_word_embeddings of config.json is "
                 "false: set that to true if the head is the embedding);");
  TransformerConfig tied = config;
  tied.tied_embeddings = true;
  write_folder(folder / "tied", tied, same_name);
  CHECK_CONTAINS(complaint(config, "tied"), "(lm_head.weight: it is missing, because that model ties its head");
  write_folder(folder / "others", config, [](const std::string& name) { return "student." + name; });
  const std::string others = complaint(config, "others");
  BOOST_TEST(others.size() < 1500u);
  for (const char* text :
       {"in 42 tensors (model.embed_tokens.weight: it is missing; ", "and 16 more; student.", "; and 16 more); check"})
    CHECK_CONTAINS(others, text);
}

BOOST_AUTO_TEST_CASE(patterns_allow_what_does_not_fit) {
  const TemporaryFolder folder;
  TransformerConfig untied = llama_config();
  write_folder(folder.path(), untied,
               [](const std::string& name) { return name == "model.norm.weight" ? "score.weight" : name; });
  const auto source = open_hugging_face(folder.path());
  TransformerConfig larger = untied;
  larger.vocab_size = 43;
  const auto parameters = list_parameters(larger).parameters;
  const std::string message = message_of([&] { find_mismatch(*source, parameters, {{"lm_head*"}, {"lm_head*"}}, "do this"); });
  CHECK_CONTAINS(message,
                 "in 3 tensors (model.embed_tokens.weight: its shape is [41, 20] in the source, but [43, 20] in the model; "
                 "model.norm.weight: it is missing; score.weight: the model does not have this tensor of shape [20]); do this");
  const Mismatch found =
      find_mismatch(*source, parameters, {{"*embed*", "norm.weight", "lm_head.weight", "layers.*"}, {"score.*", "*embed*"}});
  BOOST_TEST(found.said.size() == 5u);
  for (const char* text :
       {"lm_head.weight is newly initialized: its shape is [41, 20] in the source, but [43, 20] in the model",
        "score.weight is left out", "'layers.*' changes nothing"})
    BOOST_TEST(std::any_of(found.said.begin(), found.said.end(),
                           [&](const std::string& line) { return line.find(text) != std::string::npos; }),
               text);
  for (const int shards : {1, 2, 3}) {
    const Layout layout(parameters, wrap_parameters(parameters, {}), shards);
    for (int shard = 0; shard < shards; ++shard) {
      UnitValues values = room(layout, padding);
      load_parameters(*source, parameters, layout, shard, {"parameters", spans(values)}, found.fresh);
      for (std::size_t unit = 0; unit < values.size(); ++unit)
        for (const Slice& slice : layout.slices(unit, shard))
          for (std::size_t i = 0; i < slice.range.size(); ++i) {
            const std::string& name = parameters[slice.parameter].name;
            const bool fresh =
                name.find("embed") != std::string::npos || name == "model.norm.weight" || name == "lm_head.weight";
            const float expected = fresh ? padding : element(0, slice.parameter, slice.range.begin + i, 1);
            BOOST_REQUIRE(values[unit][slice.shard_offset + i] == expected);
          }
    }
  }
}

BOOST_AUTO_TEST_CASE(damaged_files_are_refused) {
  const std::string data(16, '\0');
  CHECK_CONTAINS(complaint("abc"), "it has 3 bytes");
  CHECK_CONTAINS(complaint(file_bytes("{}", "").substr(0, 9)), "header would be 2 bytes long");
  CHECK_CONTAINS(complaint(std::string(8, '\xff') + "{}"), "header would be 18446744073709551615 bytes long");
  CHECK_CONTAINS(complaint("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
                 "is a pointer of Git LFS");
  CHECK_CONTAINS(complaint(file_bytes("{\"a\":", data)), "not a JSON object");
  CHECK_CONTAINS(complaint(file_bytes("[1]", data)), "not a JSON object");
  const auto one = [&](const std::string& entry) { return complaint(file_bytes("{\"a\":" + entry + "}", data)); };
  CHECK_CONTAINS(one("3"), "entry for a lacks");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[4]})"), "entry for a lacks");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "not a list of sizes");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,17]})"), "bytes 0 to 17, but the data has only 16");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "bytes 16 to 0");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"), "16 bytes, which is not the size of [3] in F32");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]})"), "0 bytes, which is not");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "describes 70 bytes, but the file has 78");
  CHECK_CONTAINS(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})"), "a starts at byte");
  const std::string twice =
      R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
  CHECK_CONTAINS(one(twice), "names a twice");
  const std::string overlap =
      R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
  CHECK_CONTAINS(one(overlap), "b starts at byte");
}

BOOST_AUTO_TEST_CASE(what_is_not_supported_yet_is_said) {
  const std::string header = R"({"transformer.wte.weight":{"dtype":"I16","shape":[37,12],"data_offsets":[0,888]}})";
  CHECK_CONTAINS(complaint(file_bytes(header, std::string(888, '\0'))),
                 "transformer.wte.weight in type I16 (only F32, BF16 and F16");

  const TemporaryFolder folder;
  write_file(folder / "config.json", config_to_json(gpt2_config()).dump());
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "no model.safetensors");
  write_file(folder / "pytorch_model.bin", "x");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }),
                 "(pytorch_model.bin: such files are not read), and no model.safetensors; save the model as safetensors");
  write_file(folder / "model.safetensors.index.json", "{}");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "it has no weight_map");
  write_file(folder / "model.safetensors.index.json", R"({"weight_map":{"transformer.wte.weight":"model-1.safetensors"}})");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "model-1.safetensors is missing");
  write_file(folder / "model.safetensors.index.json", R"({"weight_map":{"transformer.wte.weight":"../model.safetensors"}})");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "which is not a file name in its folder");
  write_file(folder / "model.safetensors", "x");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder / "model.safetensors"); }), "give its folder");
  fs::remove(folder / "config.json");
  CHECK_CONTAINS(message_of([&] { open_tensor_source(folder.path()); }), "has no config.json");
}

// The file is truncated while it is read.
BOOST_AUTO_TEST_CASE(a_file_that_shrinks_is_noticed) {
  const TemporaryFolder folder;
  write_folder(folder.path(), gpt2_config(), same_name);
  const auto source = open_hugging_face(folder.path());
  fs::resize_file(folder / "model.safetensors", 5000);
  std::vector<float> out(37 * 12);
  CHECK_CONTAINS(message_of([&] { source->read("transformer.wte.weight", {0, out.size()}, out.data()); }), "ends before byte");
}
