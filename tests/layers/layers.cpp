// Errors in a model are reported before training; Tensor::part() cuts tensors as documented.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "device/traits.hpp"
#include "gated_convolution.hpp"
#include "swiglu_layer.hpp"

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

/// Like a layer with loops over rows: only fp32 on CPUs.
class Plain final : public Layer {
 public:
  std::size_t inputs() const override { return 4; }
  std::size_t outputs() const override { return 4; }
  void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
};

/// A loss with a loop over rows.
class PlainLoss final : public Loss {
 public:
  std::size_t inputs() const override { return 4; }
  std::size_t targets() const override { return 4; }
  bool takes_labels() const override { return false; }
  void evaluate(const LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) pass.losses[r] = pass.x.row(r)[0];
  }
};

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
  require_said(refusal(two("a", "a")), "each layer and the loss need a unique name");
  require_said(refusal(two("", "b")), "a layer has the name ''");
  for (const std::string& name :
       std::vector<std::string>{"./b", "a//b", "/", "a b", {"a\0b", 3}, "\xc3\xa4", std::string(300, 'a')})
    require_said(refusal(two("a", name)), "is not a valid name of a parameter");
  require_said(refusal(two("loss", "b")), "a layer has the name 'loss'");
  require_said(refusal(Sequential().add("a", linear(4, 6)).add("b", linear(5, 3)).loss(cross_entropy(3))),
               "layer 'b' takes 5 numbers per row (layer 'a' before it gives 6)");
  require_said(refusal(Sequential().add("a", linear(4, 6)).loss(cross_entropy(3))), "the loss takes 3 numbers per row");
  require_said(refusal(Sequential().add("a", linear(4, 6))), "the model has no loss");
  require_said(refusal(Sequential().add("a", gelu(4)).loss(cross_entropy(4))), "the model has no parameters");
  require_said(refusal(Sequential().add("a", linear(4, 1)).add("b", embedding(5, 4)).loss(cross_entropy(4))), "put it there");
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
  require_said(with([](FsdpOptions& o) { o.sharding_strategy = "FULL"; }, model),
               "sharding_strategy 'FULL' is not accepted (no such choice; did you mean full?)");
  require_said(with([](FsdpOptions& o) { o.optimizer = "adamv"; }, model), "adamv");
  require_said(with([](FsdpOptions& o) { o.param_dtype = "bf8"; }, model),
               "param_dtype 'bf8' is not accepted (no such choice; did you mean bf16?); give one of fp32");
  BOOST_TEST(with([](FsdpOptions& o) { o.param_dtype = "bfloat16"; }, model) == "");
  require_said(with([](FsdpOptions& o) { o.param_dtype = ""; }, model), "param_dtype has no value");
  require_said(with([](FsdpOptions& o) { o.gradient_accumulation_steps = 0; }, model),
               "gradient_accumulation_steps '0' is not accepted (out of range); give a whole number from 1");
  require_said(with([](FsdpOptions& o) { o.batch_size = 0; }, model), "batch_size '0' is not accepted (out of range)");
  require_said(with([](FsdpOptions& o) { o.freeze = {"b.*"}; }, model), "b.*");
  Sequential plain;
  plain.add("in", linear(4, 4)).add("c", std::make_shared<Plain>()).loss(mean_squared_error(4));
  require_said(with([](FsdpOptions& o) { o.param_dtype = "bf16"; }, plain), "layer 'c' does not work in bf16");
  require_said(with([](FsdpOptions& o) { o.param_dtype = "bf16"; },
                    Sequential().add("a", linear(4, 4)).loss(std::make_shared<PlainLoss>())),
               "loss 'loss' does not work in bf16");
  const auto on_gpu = [](const Sequential& of) { return refusal([&] { estimate_memory(of, {}, 2, "cuda"); }); };
  require_said(on_gpu(plain), "layer 'c' does not work on a GPU (its works_on_gpu() returns false)");
  require_said(on_gpu(Sequential().add("a", linear(4, 4)).loss(std::make_shared<PlainLoss>())),
               "loss 'loss' does not work on a GPU");
  BOOST_TEST(on_gpu(Sequential().add("a", std::make_shared<SwigluLayer>(4, 6)).loss(cross_entropy(4))) == "");
  require_said(refusal([&] { estimate_memory(model, {}, 0); }), "0 ranks cannot hold a model");
  require_said(refusal([&] { estimate_memory(model, {}, 2, "cpu", 0); }), "0 threads cannot compute");
  require_said(with([](FsdpOptions& o) { o.seed = std::uint64_t{1} << 32; }, model),
               "seed '4294967296' is not accepted (out of range); give a whole number from 0 to 4294967295");
  BOOST_TEST(with([](FsdpOptions& o) { o.seed = 0xffffffff; }, model) == "");
  require_said(with([](FsdpOptions& o) { o.shard_group_size = 2; }, model),
               "shard_group_size changes nothing (it goes with sharding_strategy hybrid");
  require_said(with([](FsdpOptions& o) { o.min_num_params = 9; }, model), "min_num_params changes nothing");
  BOOST_TEST(with([](FsdpOptions& o) { o.min_num_params = 9, o.auto_wrap_policy = "size"; }, model) == "");
  require_said(with([](FsdpOptions& o) { o.batch_size = std::size_t{1} << 62; }, model), "batch_size '4611686018427387904' is");
  require_said(with([](FsdpOptions& o) { o.batch_size = 1 << 20, o.sequence_length = 1 << 20; }, model),
               "batch_size 1048576 with sequence_length 1048576 is too large");
  const std::size_t huge = std::size_t{1} << 28;
  require_said(with([](FsdpOptions&) {}, Sequential().add("a", linear(huge, huge)).loss(cross_entropy(huge))),
               "parameter 'weight' of layer 'a' has the shape [268435456, 268435456]");
  require_said(refusal([] { linear(0, 5); }), "linear(0, 5) is empty");
  const Sequential positions = Sequential().add("in", linear(4, 6)).add("inner", sequential({{"p", position_embedding(8, 6)}}));
  const auto with_length = [&](std::size_t T) {
    return with([=](FsdpOptions& o) { o.sequence_length = T; }, Sequential(positions).loss(cross_entropy(6)));
  };
  BOOST_TEST(with_length(8) == "");
  require_said(with_length(9), "layer 'inner': position_embedding() has 8 positions (the sequences have 9)");
  require_said(refusal([] { Sequential().loss(cross_entropy(3)).loss(cross_entropy(3)); }), "loss() is called twice");
}

BOOST_AUTO_TEST_CASE(layers_and_losses_that_cannot_be) {
  const auto said = [](const auto& make, const std::string& wanted) { require_said(refusal([&] { make(); }), wanted); };
  const float nan = std::nanf("");
  for (const double p : {-0.1, 1.0, static_cast<double>(nan)})
    said([&] { return dropout(4, p); }, "dropout() has p = " + std::string(p < 0 ? "-0.1" : p == 1 ? "1" : "nan"));
  said([&] { return layer_norm(4, nan); }, "layer_norm() has eps nan (it must be at least 0, and finite)");
  said([&] { return rms_norm(4, HUGE_VALF); }, "rms_norm() has eps inf");
  said([&] { return linear(4, 4, true, nan); }, "linear() has standard_deviation nan (it must be at least 0)");
  said([&] { return multi_head_attention(4, {.standard_deviation = nan}); }, "has a wrong standard deviation");
  said([&] { return transformer_block(4, {.norm_eps = nan}); }, "layer_norm() has eps nan");
  said([] { return repeat(2, nullptr); }, "the function that makes the layers of repeat() is null");
  said([] { return softmax(0); }, "softmax() has width 0 (it must be at least 1)");
  said([] { return transpose(3, 0); }, "transpose() has width 0");
  said([] { return sequential({{"up", linear(4, 6)}, {"gate", fsdp::swiglu(6)}}); }, "layer 'gate' takes 12 numbers per row");
  said([] { return cross_entropy(0); }, "cross_entropy() has width 0");
  said([] { return cross_entropy(3, {.label_smoothing = 1}); },
       "cross_entropy(): label_smoothing is 1 (it must be in [0, 1)) and z_loss is 0");
  said([] { return cross_entropy(3, {.weight = {1, 2}}); }, "cross_entropy has 2 numbers in weight (it needs 3, or none)");
  said(
      [] {
        return cross_entropy(2, {.weight = {1, -2}});
      },
      "cross_entropy has -2 in weight (each number is from 0 to 1048576)");
  said([&] { return cross_entropy(2, {.weight = {1, nan}}); }, "cross_entropy has nan in weight");
  said([] { return huber_loss(3, 0); }, "huber_loss() has delta 0 (it must be above 0, and finite)");
  said([] { return smooth_l1_loss(3, -1); }, "smooth_l1_loss() has beta -1");
  said([] { return binary_cross_entropy_with_logits(3, {1}); },
       "binary_cross_entropy_with_logits has 1 numbers in pos_weight (it needs 3, or none)");
  said([] { return l1_loss(0); }, "l1_loss() has width 0");
}

BOOST_AUTO_TEST_CASE(numbers_that_cannot_be) {
  const auto with = [](const std::function<void(FsdpOptions&)>& change) {
    FsdpOptions options;
    change(options);
    return refusal([&] { estimate_memory(Sequential().add("a", linear(4, 6)).loss(cross_entropy(6)), options, 4); });
  };
  const double nan = std::nan(""), infinite = HUGE_VAL;
  require_said(with([](FsdpOptions& o) { o.beta1 = 1; }), "beta1 and beta2 '(1,0.999)' is not accepted (out of range)");
  require_said(with([](FsdpOptions& o) { o.beta2 = 1.5; }), "each from 0 to below 1");
  require_said(with([](FsdpOptions& o) { o.beta2 = -0.1; }), "beta1 and beta2 '(0.9,-0.1)'");
  require_said(with([&](FsdpOptions& o) { o.beta1 = nan; }), "not a finite number");
  require_said(with([](FsdpOptions& o) { o.eps = 0; }), "eps '0' is not accepted (out of range); give a number, above 0");
  require_said(with([](FsdpOptions& o) { o.weight_decay = -1; }), "weight_decay '-1' is not accepted");
  require_said(with([&](FsdpOptions& o) { o.weight_decay = infinite; }), "weight_decay 'inf'");
  require_said(with([](FsdpOptions& o) { o.clip_norm = -1; }),
               "clip_norm '-1' is not accepted (out of range); give a number, 0 or more");
  require_said(with([&](FsdpOptions& o) { o.clip_norm = nan; }), "clip_norm 'nan'");
  require_said(with([](FsdpOptions& o) { o.momentum = 0.9; }),
               "momentum changes nothing (optimizer adamw does not read it; sgd and muon do)");
  require_said(with([](FsdpOptions& o) { o.optimizer = "sgd", o.momentum = 1; }),
               "momentum '1' is not accepted (out of range); give a number, from 0 to below 1");
  BOOST_TEST(with([](FsdpOptions& o) { o.optimizer = "sgd", o.momentum = 0.9; }) == "");
  require_said(with([](FsdpOptions& o) { o.optimizer = "sgd", o.beta2 = 0.9; }),
               "beta1 or beta2 changes nothing (optimizer sgd");
  require_said(with([](FsdpOptions& o) { o.optimizer = "lion", o.eps = 1e-6; }), "eps changes nothing (optimizer lion");
  BOOST_TEST(with([](FsdpOptions& o) { o.beta1 = 0, o.beta2 = 0.99, o.eps = 1e-6, o.weight_decay = 0; }) == "");
}

BOOST_AUTO_TEST_CASE(messages_call_options_as_programs_do) {
  Sequential model;
  model.add("a", linear(4, 6)).loss(cross_entropy(6));
  const auto with = [&](const std::function<void(FsdpOptions&)>& change) {
    FsdpOptions options;
    change(options);
    return refusal([&] { estimate_memory(model, options, 4); });
  };
  require_said(with([](FsdpOptions& o) { o.freeze = {"*"}; }), "narrow freeze or widen train_only");
  require_said(with([](FsdpOptions& o) { o.freeze = {"b.*"}; }), "freeze 'b.*' matches no parameter");
  require_said(with([](FsdpOptions& o) { o.sharding_strategy = "HYBRID_SHARD", o.shard_group_size = 3; }), "shard_group_size");
  require_said(with([](FsdpOptions& o) { o.sharding_strategy = "HYBRID_SHARD"; }), "give shard_group_size");
  BOOST_TEST(with([](FsdpOptions& o) { o.sharding_strategy = "HYBRID_SHARD", o.shard_group_size = 2; }) == "");
  require_said(refusal([] { estimate_memory(TransformerDescription("gpt2"), {.gradient_accumulation_steps = 100000}, 1); }),
               "raise batch_size, and lower gradient_accumulation_steps if you gave it");
  require_said(refusal([] {
                 FsdpOptions options;
                 options.sequence_length = 2048;
                 estimate_memory(TransformerDescription("gpt2"), options, 1);
               }),
               "lower sequence_length");
  require_said(refusal([] { estimate_memory(TransformerDescription("gtp2"), {}, 1); }),
               "architecture gtp2 is not known (did you mean gpt2?)");
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
  BOOST_TEST(whole == 8 * (64 * 256 + 256 + 256 * 64 + 64));  // two moments of AdamW for each parameter
  BOOST_TEST(bytes("FULL_SHARD", 4, "optimizer state") == whole / 4);
  const auto of_threads = [](int threads) {
    return estimate_memory(TransformerDescription("gpt2"), {.sequence_length = 64}, 2, "cpu", threads).total;
  };
  BOOST_TEST(of_threads(256) > of_threads(1));
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
  require_said(refusal([&] { columns.floats(); }), "a view as dense fp32 numbers of a tensor [3, 2] in fp32, rows 4 apart");
  require_said(refusal([&] { tensor.columns_from(3, 2); }), "columns 3 to 5 of a tensor [3, 4] in fp32");
  require_said(refusal([&] { columns.part(0, 1); }), "the part of numbers 0 to 1 of a row");
  require_said(refusal([&] { tensor.row(3); }), "row 3 in fp32 of a tensor [3, 4] in fp32");
  require_said(refusal([&] { tensor.get(0, 4); }), "the number in row 0, column 4");
  require_said(refusal([] { Tensor().row(0); }), "row 0 in fp32 of an empty tensor");
  BOOST_TEST(columns.get(2, 1) == 10);
  columns.set(2, 1, -3);
  BOOST_TEST(numbers[10] == -3);
  std::uint16_t halves[2] = {};
  const Tensor narrow = {halves, 1, 2, 2, DType::bf16};
  narrow.set(0, 1, 1.0f + 1.0f / 128 + 1.0f / 512);
  BOOST_TEST(narrow.get(0, 1) == 1.0f + 1.0f / 128);
  BOOST_TEST(narrow.get(0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(views_of_tensors) {
  float numbers[24];
  for (int i = 0; i < 24; ++i) numbers[i] = static_cast<float>(i);
  const Tensor tensor = {numbers, 6, 4, 4, DType::f32};
  const Tensor rows = tensor.rows_from(2, 3), block = rows.columns_from(1, 2);
  BOOST_TEST(rows.get(2, 3) == 19);
  BOOST_TEST(block.rows_from(1, 2).get(1, 1) == 18);
  const Tensor wide = rows.reshaped(2, 6);
  BOOST_TEST(wide.get(1, 0) == 14);
  BOOST_TEST(tensor.rows_from(6, 0).rows == 0);
  require_said(refusal([&] { tensor.rows_from(5, 2); }), "rows 5 to 7 of a tensor [6, 4] in fp32 does not exist");
  require_said(refusal([&] { tensor.rows_from(7, static_cast<std::size_t>(-1)); }), "of a tensor [6, 4] in fp32");
  require_said(refusal([] { Tensor().rows_from(0, 0); }), "of an empty tensor");
  require_said(refusal([&] { block.reshaped(2, 3); }), "a view as [2, 3] of a tensor [3, 2] in fp32, rows 4 apart");
  require_said(refusal([&] { tensor.reshaped(5, 5); }), "a view as [5, 5] of a tensor [6, 4]");

  Pass pass;
  pass.B = 2, pass.T = 3;
  const Tensor second = pass.sequence(tensor, 1);
  BOOST_TEST(second.rows == 3u);
  BOOST_TEST(second.get(0, 1) == 13);
  require_said(refusal([&] { pass.sequence(tensor, 2); }), "sequence 2 of a tensor [6, 4] in fp32 does not exist");
  require_said(refusal([&] { pass.sequence(rows, 0); }), "the batch has 2 sequences of 3 positions");

  const TypedTensor<float> typed = block.as<float>();
  typed[1][0] = 2 * typed[2][1];
  BOOST_TEST(numbers[13] == 36);
  float sum = 0;
  for (const float x : typed[0]) sum += x;
  BOOST_TEST(sum == 19);
  require_said(refusal([&] { typed[3]; }), "rows 3 to 4 of a tensor [3, 2] in fp32, rows 4 apart");
  require_said(refusal([&] { tensor.as<bf16>(); }), "a view in bf16 of a tensor [6, 4] in fp32");
  require_said(refusal([] { Tensor().as<float>(); }), "a view in fp32 of an empty tensor");
  f16 halves[2] = {f16(1.5f), f16(-2.0f)};
  const TypedTensor<f16> narrow = Tensor{halves, 1, 2, 2, DType::f16}.as<f16>();
  narrow[0][0] = f16(narrow[0][0] * narrow[0][1]);
  BOOST_TEST(static_cast<float>(halves[0]) == -3);
}

namespace {

/// Memory of a few tensors, and a pass over them on the host.
struct Bench {
  std::shared_ptr<Stream> stream = make_host_stream();
  std::vector<float> memory = std::vector<float>(400);
  std::size_t used = 0;
  Pass pass;
  Bench() { pass.stream = stream.get(); }
  Tensor tensor(std::size_t rows, std::size_t columns, DType type = DType::f32) {
    const Tensor made = {memory.data() + used, rows, columns, columns, type};
    used += rows * columns;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) made.set(r, c, static_cast<float>(r) - 0.5f * static_cast<float>(c));
    return made;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(operations_say_what_they_were_given) {
  Bench bench;
  const Pass& pass = bench.pass;
  const Tensor a = bench.tensor(3, 4), b = bench.tensor(5, 4), out = bench.tensor(3, 5), wrong = bench.tensor(4, 5),
               narrow = bench.tensor(3, 4, DType::bf16);
  const auto no = ops::Transpose::no, yes = ops::Transpose::yes;
  BOOST_TEST(refusal([&] { ops::matmul(pass, a, no, b, yes, out); }) == "");
  BOOST_TEST(
      refusal([&] { ops::matmul(pass, a, no, b, no, out); }) ==
      "matmul is given a [3, 4] in fp32; b [5, 4] in fp32; out [3, 5] in fp32 (it takes op(a) [m, k] and op(b) [k, n] of "
      "one type, and out [m, n] of it or in fp32); correct the layer");
  require_said(refusal([&] { ops::matmul(pass, a, no, b, yes, wrong); }),
               "b to be transposed [5, 4] in fp32; out [4, 5] in fp32");
  require_said(refusal([&] { ops::matmul(pass, narrow, no, b, yes, out); }), "matmul is given a [3, 4] in bf16");
  require_said(refusal([&] { ops::linear(pass, a, b, a, out); }), "linear is given bias [3, 4] in fp32; y [3, 5] in fp32");
  require_said(refusal([&] { ops::copy(pass, a, b); }), "copy is given to [3, 4] in fp32; from [5, 4] in fp32");
  require_said(refusal([&] { ops::add(pass, a, a, {}); }), "add is given y [3, 4] in fp32; a [3, 4] in fp32; b none");
  require_said(refusal([&] { ops::gelu(pass, a.columns_from(0, 2), a.columns_from(1, 2)); }), "[3, 2] in fp32, rows 4 apart");
  require_said(refusal([&] { ops::layer_norm(pass, a, a, a, 1e-5f, a, a); }), "stats [3, 4] in fp32 (it takes weight and bias");
  require_said(refusal([&] { ops::convert(pass, narrow, b); }), "convert is given to [3, 4] in bf16; from [5, 4] in fp32");
  require_said(refusal([&] { pass.parameter(0); }), "parameter 0 does not exist (the layer declares none)");
  require_said(refusal([&] { ops::softmax(pass, a, b); }), "softmax is given y [5, 4] in fp32; x [3, 4] in fp32");
  require_said(refusal([&] { ops::silu(pass, a, narrow); }), "silu is given y [3, 4] in bf16; x [3, 4] in fp32");
  require_said(refusal([&] { ops::tanh_backward(pass, a, b, a); }), "tanh_backward is given dx [3, 4] in fp32");
  require_said(refusal([&] { ops::swiglu(pass, a, b, a); }),
               "swiglu is given y [3, 4] in fp32; gate [3, 4] in fp32; up [5, 4]");
  require_said(refusal([&] { ops::transpose(pass, a, 3, out); }), "transpose is given y [3, 5] in fp32; x [3, 4] in fp32");
  require_said(refusal([&] { ops::transpose(pass, a, 2, a); }), "transpose is given x [3, 4] in fp32 (it takes rows that are");
  bench.pass.B = 1, bench.pass.T = 3;
  require_said(refusal([&] { ops::dropout(pass, 1, a, a); }), "dropout has p = 1 (it is from 0 to below 1)");
  require_said(refusal([&] { ops::dropout(pass, 0.5, b, b); }), "dropout is given x [5, 4] in fp32 (it takes a row for each");
  require_said(refusal([&] { ops::add_positions(pass, a, a.rows_from(0, 2), a); }),
               "add_positions is given x [3, 4] in fp32; weight [2, 4] in fp32");
}

BOOST_AUTO_TEST_CASE(products_sigmoids_and_conversions) {
  Bench bench;
  const Pass& pass = bench.pass;
  const Tensor a = bench.tensor(3, 4), b = bench.tensor(3, 4), y = bench.tensor(3, 4), narrow = bench.tensor(3, 4, DType::f16);
  ops::multiply(pass, y, a, b);
  ops::multiply(pass, y, a, b, ops::Out::add);
  BOOST_TEST(y.get(2, 1) == 2 * 1.5f * 1.5f);
  ops::multiply(pass, a, a, b);  // in place
  BOOST_TEST(a.get(2, 1) == 1.5f * 1.5f);
  ops::sigmoid(pass, b, y);
  BOOST_TEST(y.get(2, 1) == 1 / (1 + std::exp(-1.5f)), boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(b.get(2, 1) == 1.5f);
  a.set(2, 1, 1.0f / 3);
  ops::convert(pass, narrow, a);
  ops::convert(pass, y, narrow);
  BOOST_TEST(narrow.get(2, 1) == 0.333251953125f);
  BOOST_TEST(y.get(2, 1) == 0.333251953125f);
}
