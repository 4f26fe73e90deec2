// What is wrong with a model is said before any of it is trained; tensors are cut as they say.
#define BOOST_TEST_MODULE api.layers
#include <boost/test/unit_test.hpp>

#include <string>

#include <fsdp/fsdp.hpp>

#include "device/traits.hpp"
#include "gated_convolution.hpp"

using namespace fsdp;

namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const Sequential& model) {
  return refusal([&] { model.build(cpu_traits(1)); });
}

void require_said(const std::string& said, const std::string& wanted) {
  BOOST_TEST(said.find(wanted) != std::string::npos, "'" << said << "' does not say '" << wanted << "'");
}

}  // namespace

BOOST_AUTO_TEST_CASE(models_that_do_not_fit_together) {
  const auto two = [](std::string first, std::string second) {
    Sequential model;
    model.add(std::move(first), linear(4, 6)).add(std::move(second), linear(6, 3)).loss(cross_entropy(3));
    return model;
  };
  BOOST_TEST(refusal(two("a", "b")) == "");
  require_said(refusal(two("a", "a")), "each layer, and the loss, has a name of its own");
  require_said(refusal(two("", "b")), "layer 0 is called ''");
  require_said(refusal(two("loss", "b")), "layer 0 is called 'loss'");
  require_said(refusal(Sequential().add("a", linear(4, 6)).add("b", linear(5, 3)).loss(cross_entropy(3))),
               "layer 'b' takes 5 numbers of a row (the one before it gives 6)");
  require_said(refusal(Sequential().add("a", linear(4, 6)).loss(cross_entropy(3))), "the loss takes 3 numbers of a row");
  require_said(refusal(Sequential().add("a", linear(4, 6))), "the model has no loss");
  require_said(refusal(Sequential().add("a", gelu(4)).loss(cross_entropy(4))), "the model has no parameters");
  require_said(refusal(Sequential().add("a", linear(4, 1)).add("b", embedding(5, 4)).loss(cross_entropy(4))),
               "put it in front");
}

BOOST_AUTO_TEST_CASE(options_that_cannot_be) {
  const auto with = [](const std::function<void(FsdpOptions&)>& change, const Sequential& model) {
    FsdpOptions options;
    change(options);
    return refusal([&] { estimate_memory(model, options, 4); });
  };
  Sequential model;
  model.add("a", linear(4, 6)).loss(cross_entropy(6));
  BOOST_TEST(with([](FsdpOptions&) {}, model) == "");
  require_said(with([](FsdpOptions& o) { o.sharding_strategy = "FULL"; }, model), "there is no sharding strategy 'FULL'");
  require_said(with([](FsdpOptions& o) { o.optimizer = "adamv"; }, model), "adamv");
  require_said(with([](FsdpOptions& o) { o.param_dtype = "bfloat16"; }, model),
               "there is no param_dtype 'bfloat16' (known are fp32");
  require_said(with([](FsdpOptions& o) { o.gradient_accumulation_steps = 0; }, model),
               "gradient_accumulation_steps is 1 or more");
  require_said(with([](FsdpOptions& o) { o.batch_size = 0; }, model), "a batch has no rows");
  require_said(with([](FsdpOptions& o) { o.freeze = {"b.*"}; }, model), "b.*");
  require_said(with([](FsdpOptions& o) { o.param_dtype = "bf16"; },
                    Sequential().add("c", std::make_shared<GatedConvolution>(4, 2)).loss(cross_entropy(4))),
               "the layer with 'gate' does not work in bf16");
  require_said(refusal([&] {
                 estimate_memory(Sequential().add("c", std::make_shared<GatedConvolution>(4, 2)).loss(cross_entropy(4)), {}, 2,
                                 "cuda");
               }),
               "does not work on a GPU");
}

BOOST_AUTO_TEST_CASE(memory_is_a_function_of_the_plan) {
  Sequential model;
  model.add("a", linear(64, 256)).add("b", gelu(256)).add("c", linear(256, 64)).loss(mean_squared_error(64));
  const auto bytes = [&](const std::string& strategy, int ranks, const std::string& part) {
    FsdpOptions options;
    options.sharding_strategy = strategy;
    std::size_t sum = 0, found = 0;
    const MemoryUse use = estimate_memory(model, options, ranks);
    for (const auto& [name, n] : use.parts) {
      sum += n;
      if (name == part) found = n;
    }
    BOOST_TEST(sum == use.total);
    return found;
  };
  const std::size_t whole = bytes("NO_SHARD", 4, "optimizer state");
  BOOST_TEST(whole == 8 * (64 * 256 + 256 + 256 * 64 + 64));  // two numbers of AdamW's for each parameter
  BOOST_TEST(bytes("FULL_SHARD", 4, "optimizer state") == whole / 4);
  BOOST_TEST(bytes("SHARD_GRAD_OP", 4, "optimizer state") == whole / 4);
  BOOST_TEST(bytes("FULL_SHARD", 4, "parameters") == whole / 8);
}

BOOST_AUTO_TEST_CASE(tensors_are_cut) {
  float numbers[12];
  for (int i = 0; i < 12; ++i) numbers[i] = static_cast<float>(i);
  const Tensor tensor = {numbers, 3, 4, 4, DType::f32};
  const Tensor columns = tensor.columns_from(1, 2), part = tensor.part(1, 2);
  BOOST_TEST(columns.row(2)[1] == 10);
  BOOST_TEST(!columns.is_dense());
  BOOST_TEST(part.row(0)[0] == 3);
  BOOST_TEST(part.row(2)[1] == 8);
  BOOST_CHECK_THROW(columns.floats(), InternalError);
  BOOST_CHECK_THROW(tensor.columns_from(3, 2), InternalError);
  BOOST_CHECK_THROW(tensor.row(3), InternalError);
}
