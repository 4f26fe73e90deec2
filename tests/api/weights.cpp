// Weights from files of other programs: names and groups, types, what may be missing, and single parameters.
#include "api/support.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "h5/h5.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

Sequential network() {
  return std::move(Sequential().add("body", linear(4, 5)).add("act", tanh(5)).add("head", linear(5, 3)).loss(cross_entropy(3)));
}

/// `count` numbers from `first` on, which all types represent.
std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = first + static_cast<float>(i) / 4;
  return all;
}

struct Given {
  std::string name;
  Shape shape;
  float first;
};

/// Writes the files on rank 0; all ranks wait.
std::filesystem::path write_hdf5(const std::filesystem::path& path, const std::vector<Given>& tensors) {
  if (world().rank() == 0) {
    h5::File file = h5::File::create(path);
    for (const auto& [name, shape, first] : tensors)
      file.create_dataset(name, shape).write({0, numel(shape)}, numbers(numel(shape), first).data());
    file.close();
  }
  world().barrier();
  return path;
}

/// A safetensors file whose elements have 8 bytes (F64), or 4.
std::filesystem::path write_safetensors(const std::filesystem::path& path, const std::vector<Given>& tensors, bool is_double) {
  if (world().rank() == 0) {
    std::vector<std::pair<std::string, Shape>> names;
    std::string data;
    for (const auto& [name, shape, first] : tensors) {
      names.emplace_back(name, shape);
      for (const float value : numbers(numel(shape), first)) {
        const double wide = value;
        data.append(is_double ? reinterpret_cast<const char*>(&wide) : reinterpret_cast<const char*>(&value),
                    is_double ? 8 : 4);
      }
    }
    std::string header = safetensors_header(names);
    if (is_double) {  // the same header, with positions that are twice as large
      std::string text = R"({)";
      std::size_t at = 0;
      for (const auto& [name, shape] : names) {
        std::string sizes;
        for (const std::size_t size : shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
        text += (at == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"F64","shape":[)" + sizes + R"(],"data_offsets":[)" +
                std::to_string(at) + "," + std::to_string(at + 8 * numel(shape)) + "]}";
        at += 8 * numel(shape);
      }
      text += "}";
      const std::uint64_t length = text.size();
      header = std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
    }
    std::ofstream(path, std::ios::binary) << header << data;
  }
  world().barrier();
  return path;
}

const std::vector<Given> body = {{"old.weight", {5, 4}, 1}, {"old.bias", {5}, -2}};
const std::vector<Given> whole = {
    {"body.weight", {5, 4}, 1}, {"body.bias", {5}, -2}, {"head.weight", {3, 5}, 7}, {"head.bias", {3}, 9}};

void fill(const Batch& batch) {
  for (std::size_t i = 0; i < batch.inputs().size(); ++i) batch.inputs()[i] = static_cast<float>(i % 7) / 8;
  for (std::size_t i = 0; i < batch.labels().size(); ++i) batch.labels()[i] = static_cast<std::int32_t>(i % 3);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_new_head_is_put_on_an_old_body) {
  const auto folder = new_folder("api-weights", "body");
  const std::vector<Given> more = {body[0], body[1], {"old.count", {1}, 3}};
  const std::vector<std::filesystem::path> files = {
      write_safetensors(folder / "f32.safetensors", more, false), write_safetensors(folder / "f64.safetensors", more, true),
      write_hdf5(folder / "groups.h5", {{"old/weight", {5, 4}, 1}, {"old/bias", {5}, -2}, {"old/count", {1}, 3}})};
  for (const std::string strategy : {"FULL_SHARD", "NO_SHARD"})
    for (const std::filesystem::path& file : files) BOOST_TEST_CONTEXT(strategy << " " << file) {
        FullyShardedDataParallel sharded(network(), {.batch_size = 2, .sharding_strategy = strategy});
        const Parameters before = parameters_of(sharded);
        const LoadResult result = sharded.load_full(
            file, {.names = {{"old.*", "body.*"}}, .ignore_missing = {"head.*"}, .ignore_unexpected = {"*.count"}});
        BOOST_TEST((result.loaded == std::vector<std::string>{"body.bias", "body.weight"}));
        BOOST_TEST((result.missing == std::vector<std::string>{"head.bias", "head.weight"}));
        BOOST_TEST((result.unexpected == std::vector<std::string>{"body.count"}));
        const Parameters after = parameters_of(sharded);
        if (world().rank() != 0) continue;
        BOOST_TEST((after.at("body.weight") == numbers(20, 1) && after.at("body.bias") == numbers(5, -2)));
        BOOST_TEST((after.at("head.weight") == before.at("head.weight") && after.at("head.bias") == before.at("head.bias")));
      }
}

BOOST_AUTO_TEST_CASE(files_that_do_not_fit_are_refused_and_change_nothing) {
  const auto folder = new_folder("api-weights", "refused");
  FullyShardedDataParallel sharded(network(), {.batch_size = 2});
  const Parameters before = parameters_of(sharded);
  const auto file = write_safetensors(folder / "old.safetensors", body, false);
  const auto load = [&](const std::filesystem::path& path, const LoadOptions& options) {
    return [&sharded, path, options] { sharded.load_full(path, options); };
  };
  refused<CollectiveError>("old.safetensors does not fit the model in 6 tensors (body.weight: it is missing;", load(file, {}));
  refused<CollectiveError>("the model does not have this tensor of shape [5, 4]", load(file, {.ignore_missing = {"*"}}));
  refused<CollectiveError>(R"(the rule {"new.*", "body.*"} fits no tensor)", load(file, {.names = {{"new.*", "body.*"}}}));
  refused<CollectiveError>(R"(the rule {"*.*", "body.*"} has no meaning)", load(file, {.names = {{"*.*", "body.*"}}}));
  refused<CollectiveError>("both become body.weight (a parameter has one tensor)",
                           load(file, {.names = {{"old.bias", "body.weight"}, {"old.weight", "body.weight"}}}));
  refused<CollectiveError>("head.weight: its shape is [5, 4] in the source, but [3, 5] in the model",
                           load(file, {.names = {{"old.*", "head.*"}}, .ignore_missing = {"body.*"}}));
  std::string deep = "w";
  for (int i = 0; i < 40; ++i) deep.insert(0, "a/");
  refused<CollectiveError>("groups in groups that are nested more than 32 deep",
                           load(write_hdf5(folder / "deep.h5", {{deep, {1}, 1}}), {}));
  if (world().rank() == 0) std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  world().barrier();
  refused<CollectiveError>("old.safetensors is damaged",
                           load(file, {.names = {{"old.*", "body.*"}}, .ignore_missing = {"head.*"}}));
  if (world().size() > 1) refused<CollectiveError>("have different LoadOptions", load(file, {.verify = world().rank() == 0}));
  BOOST_TEST((parameters_of(sharded) == before));
}

BOOST_AUTO_TEST_CASE(the_folder_of_another_program_is_loaded_whole) {
  const auto folder = new_folder("api-weights", "folder");
  write_safetensors(folder / "a.safetensors", {whole[0], whole[1]}, false);
  write_safetensors(folder / "b.safetensors", {whole[2], whole[3]}, true);
  FullyShardedDataParallel sharded(network(), {.batch_size = 2, .param_dtype = "bf16"});
  const LoadResult result = sharded.load_full(folder);
  BOOST_TEST((result.loaded.size() == 4u && result.missing.empty() && result.unexpected.empty()));
  const Parameters loaded = parameters_of(sharded);
  for (const auto& [name, shape, first] : whole)
    if (world().rank() == 0) BOOST_TEST((loaded.at(name) == numbers(numel(shape), first)), name);
  const WeightsFile weights(folder);
  BOOST_TEST((weights.names() == std::vector<std::string>{"body.bias", "body.weight", "head.bias", "head.weight"}));
  BOOST_TEST((weights.shape("head.weight") == Shape{3, 5} && weights.read("head.weight") == numbers(15, 7)));
  BOOST_CHECK_THROW(weights.read("tail"), UserError);
  // What fsdp-consolidate writes for these layers, with the optimizer's state next to it.
  sharded.step(1e-2, fill);
  const Parameters trained = parameters_of(sharded);
  const std::filesystem::path step = sharded.save(folder / "saves");
  if (world().rank() == 0)
    consolidate(*CheckpointReader::open(step), folder / "model", {.format = &safetensors_format(), .with_optimizer = true});
  world().barrier();
  FullyShardedDataParallel again(network(), {.batch_size = 2, .param_dtype = "bf16"});
  again.load_full(folder / "model");
  BOOST_TEST((parameters_of(again) == trained));
}

// The step of plain SGD with the rate 1 is the gradient.
BOOST_AUTO_TEST_CASE(norms_of_gradients_are_returned_by_name) {
  for (const std::string strategy : {"FULL_SHARD", "NO_SHARD"}) {
    FullyShardedDataParallel sharded(network(), {.batch_size = 2,
                                                 .sharding_strategy = strategy,
                                                 .optimizer = "sgd",
                                                 .weight_decay = 0,
                                                 .norm_patterns = {"*.weight", "head.*"}});
    const Parameters before = parameters_of(sharded);
    const StepResult result = sharded.step(1, fill);
    const Parameters after = parameters_of(sharded);
    std::vector<std::string> names;
    for (const auto& [name, norm] : result.gradient_norms) {
      names.push_back(name);
      BOOST_TEST((norm > 0 && norm < result.gradient_norm));
      double sum = 0;
      for (std::size_t i = 0; world().rank() == 0 && i < before.at(name).size(); ++i)
        sum += std::pow(double{after.at(name)[i]} - before.at(name)[i], 2);
      if (world().rank() == 0) BOOST_TEST(std::sqrt(sum) == norm, boost::test_tools::tolerance(1e-4));
    }
    BOOST_TEST((names == std::vector<std::string>{"body.weight", "head.weight", "head.bias"}));
    sharded.freeze({"head.*"});
    BOOST_TEST(sharded.step(1, fill).gradient_norms.size() == 1u);
  }
  refused<CollectiveError>("norm_patterns",
                           [] { FullyShardedDataParallel(network(), {.batch_size = 2, .norm_patterns = {"tail"}}); });
}

BOOST_AUTO_TEST_CASE(a_parameter_is_set_from_rank_0) {
  for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}) {
    FullyShardedDataParallel sharded(network(), {.batch_size = 2, .sharding_strategy = strategy});
    sharded.step(1e-2, fill);
    const Parameters before = parameters_of(sharded);
    std::vector<float> values = world().rank() == 0 ? numbers(15, -1) : std::vector<float>();
    sharded.set_parameter("head.weight", values);
    const Parameters after = parameters_of(sharded);
    if (world().rank() == 0)
      for (const auto& [name, numbers_there] : after)
        BOOST_TEST((numbers_there == (name == "head.weight" ? values : before.at(name))), name);
    refused<CollectiveError>("the model has no parameter 'tail'", [&] { sharded.set_parameter("tail", values); });
    refused<CollectiveError>("'head.bias' has 3 numbers ([3]), and 15 are given",
                             [&] { sharded.set_parameter("head.bias", values); });
    if (world().rank() == 0) values[4] = std::numeric_limits<float>::quiet_NaN();
    refused<CollectiveError>("element 4 of the values for 'head.weight' is not finite",
                             [&] { sharded.set_parameter("head.weight", values); });
    BOOST_TEST((parameters_of(sharded) == after));
    BOOST_TEST(std::isfinite(sharded.step(1e-2, fill).loss));
  }
}
