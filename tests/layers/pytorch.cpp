// Values and gradients of the library's layers and losses are those of PyTorch (tests/golden/layers), in all types, on the CPU
// and on a GPU. The GPU is real, or the double of CUDA (cuda_double/).
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/element.hpp"
#include "device/memory_view.hpp"
#include "layers/layers.hpp"
#include "layers/losses.hpp"
#include "support/golden.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Floats = std::vector<float>;

/// A device, its stream, and the memory that the library gives to all passes.
struct Machine {
  explicit Machine(bool of_gpu)
      : device(of_gpu ? make_device(Threads::of_gpu, 0) : make_cpu_device()),
        stream(device->make_stream()),
        sums(device->allocate(most_columns * 1024 * sizeof(float))),
        unwanted(device->allocate(2 * most_columns * sizeof(float))) {}

  static constexpr std::size_t most_columns = 64;
  std::unique_ptr<Device> device;
  std::shared_ptr<Stream> stream;
  Buffer sums, unwanted;
};

/// Numbers of one type in the memory of a device.
class Numbers {
 public:
  Numbers(Machine& machine, DType type, const Floats& values)
      : machine_(&machine), type_(type), n_(values.size()), buffer_(machine.device->allocate((n_ + 1) * sizeof(float))) {
    with_element(type, [&]<class E>() {
      std::vector<E> typed;
      for (const float value : values) typed.push_back(E(value));
      view<E>().write(0, std::as_bytes(std::span(typed)));
    });
  }
  void* data() const { return buffer_.data(); }
  Tensor tensor(std::size_t rows) const { return {buffer_.data(), rows, n_ / rows, n_ / rows, type_}; }
  Floats fetch() const {
    return with_element(type_, [&]<class E>() {
      std::vector<E> typed(n_);
      view<E>().read(0, std::as_writable_bytes(std::span(typed)));
      return Floats(typed.begin(), typed.end());
    });
  }

 private:
  template <class E>
  MemoryView view() const {
    return MemoryView(std::span(buffer_.data(), n_ * sizeof(E)), *machine_->stream);
  }
  Machine* machine_;
  DType type_;
  std::size_t n_;
  Buffer buffer_;
};

/// Results are computed in fp32 and rounded once to the type.
double tolerance_of(DType type) { return type == DType::f32 ? 1e-6 : type == DType::bf16 ? 0x1p-8 : 0x1p-10; }

/// `tolerance` is relative to the largest number that is wanted.
void require_near(const char* what, const Floats& got, const Floats& want, double tolerance) {
  BOOST_TEST_REQUIRE(got.size() == want.size(), what);
  double largest = 0, apart = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    apart = std::isfinite(difference) ? std::max(apart, difference) : HUGE_VAL;
  }
  BOOST_TEST(largest > 0, what);
  BOOST_TEST(apart <= tolerance * largest, what << ": " << apart / largest << " is more than " << tolerance);
}

const json& cases() {
  static const json all = read_json(golden_folder("").parent_path().parent_path() / "layers" / "layers.json");
  return all;
}

void fill_pass(Pass& pass, Machine& machine, DType type) {
  pass.B = cases()["B"], pass.T = cases()["T"];
  pass.type = type, pass.update = 1, pass.seed = 1;
  pass.stream = machine.stream.get();
  pass.sums = reinterpret_cast<float*>(machine.sums.data()), pass.unwanted = reinterpret_cast<float*>(machine.unwanted.data());
  pass.most_columns = Machine::most_columns;
}

/// Unwritten results are NaN.
Floats unwritten(std::size_t n) { return Floats(n, std::nanf("")); }

void compare(Machine& machine, DType type, const Layer& layer, const json& golden) {
  const double tolerance = tolerance_of(type);
  ForwardPass forward;
  fill_pass(forward, machine, type);
  const std::size_t R = forward.rows();
  BOOST_TEST_REQUIRE(golden["y"].size() == R * layer.outputs());
  const std::vector<LayerParameter> parameters = layer.parameters();
  BOOST_TEST_REQUIRE(parameters.size() == golden["parameters"].size());
  std::vector<Numbers> weights, gradients;
  std::vector<const void*> at;
  std::vector<float*> gradients_at;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const json& parameter = golden["parameters"][i];
    BOOST_TEST(parameters[i].name == parameter["name"].get<std::string>());
    BOOST_TEST_REQUIRE(numel(parameters[i].shape) == parameter["value"].size());
    weights.emplace_back(machine, type, parameter["value"].get<Floats>());
    gradients.emplace_back(machine, DType::f32, Floats(parameter["value"].size()));
    at.push_back(weights.back().data()), gradients_at.push_back(static_cast<float*>(gradients.back().data()));
  }
  std::vector<std::size_t> indices(parameters.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  forward.weights = at.data(), forward.parameters = parameters, forward.indices = indices;
  Floats inputs;
  if (layer.takes_tokens())
    for (const std::int32_t token : golden["tokens"].get<std::vector<std::int32_t>>())
      inputs.push_back(__builtin_bit_cast(float, token));
  else
    inputs = golden["x"].get<Floats>();
  BOOST_TEST_REQUIRE(inputs.size() == R * layer.inputs());
  const Numbers x(machine, layer.takes_tokens() ? DType::f32 : type, inputs), y(machine, type, unwritten(R * layer.outputs())),
      saved(machine, type, unwritten(R * layer.saved())), stats(machine, DType::f32, unwritten(R * layer.saved_floats())),
      scratch(machine, type, unwritten(R * layer.scratch())), dy(machine, type, golden["dy"].get<Floats>()),
      dx(machine, type, unwritten(R * layer.inputs()));
  if (layer.takes_tokens())
    forward.tokens = static_cast<const std::int32_t*>(x.data());
  else
    forward.x = x.tensor(R);
  forward.scratch = scratch.tensor(R);
  BackwardPass backward;
  static_cast<Pass&>(backward) = forward;
  backward.gradients = gradients_at.data();
  forward.y = y.tensor(R), forward.saved = backward.saved = saved.tensor(R), forward.stats = backward.stats = stats.tensor(R);
  backward.dy = dy.tensor(R);
  if (!layer.takes_tokens()) backward.dx = dx.tensor(R);
  on_stream(*machine.stream, [&] { layer.forward(forward); });
  require_near("y", y.fetch(), golden["y"].get<Floats>(), tolerance);
  on_stream(*machine.stream, [&] { layer.backward(backward); });
  if (backward.dx) require_near("dx", dx.fetch(), golden["dx"].get<Floats>(), tolerance);
  for (std::size_t i = 0; i < parameters.size(); ++i)  // fp32 in all types
    require_near(parameters[i].name.c_str(), gradients[i].fetch(), golden["parameters"][i]["gradient"].get<Floats>(), 1e-6);
}

void compare(Machine& machine, DType type, const Loss& loss, const json& golden) {
  LossPass pass;
  fill_pass(pass, machine, type);
  const std::size_t R = pass.rows();
  BOOST_TEST_REQUIRE(golden["x"].size() == R * loss.inputs());
  const Numbers x(machine, type, golden["x"].get<Floats>()), dx(machine, type, unwritten(R * loss.inputs())),
      scratch(machine, type, unwritten(R * loss.scratch())), losses(machine, DType::f32, unwritten(R));
  Floats targets;
  double weight = 0;
  if (loss.takes_labels())
    for (const std::int32_t label : golden["labels"].get<std::vector<std::int32_t>>()) {
      const bool counts = label >= 0 && label != loss.ignore_index();
      targets.push_back(__builtin_bit_cast(float, counts ? label : -1));
      if (counts) weight += loss.weight(label);
    }
  else
    targets = golden["targets"].get<Floats>(), weight = static_cast<double>(R);
  const Numbers on_device(machine, DType::f32, targets);
  if (loss.takes_labels())
    pass.labels = static_cast<const std::int32_t*>(on_device.data());
  else
    pass.targets = on_device.tensor(R);
  pass.x = x.tensor(R), pass.scratch = scratch.tensor(R), pass.losses = static_cast<float*>(losses.data());
  pass.dx = dx.tensor(R), pass.scale = static_cast<float>(1 / weight);
  const auto mean = [&] {
    double sum = 0;
    for (const float row : losses.fetch()) sum += static_cast<double>(row);
    return Floats{static_cast<float>(sum / weight)};
  };
  on_stream(*machine.stream, [&] { loss.evaluate(pass); });
  require_near("loss", mean(), {golden["loss"].get<float>()}, 1e-6);
  require_near("dx", dx.fetch(), golden["dx"].get<Floats>(), tolerance_of(type));
  const Floats in_training = mean();
  pass.dx = {};  // an evaluation, whose loss is not smoothed
  on_stream(*machine.stream, [&] { loss.evaluate(pass); });
  if (golden["smoothed"].get<bool>())
    BOOST_TEST(std::abs(mean()[0] / in_training[0] - 1) > 1e-3f);
  else
    require_near("loss of an evaluation", mean(), in_training, 1e-6);
}

const std::map<std::string, LayerPtr> layers = {{"linear", linear(7, 5)},
                                                {"embedding", embedding(8, 5)},
                                                {"relu", relu(7)},
                                                {"gelu", gelu(7)},
                                                {"gelu erf", gelu(7, ops::Gelu::erf)},
                                                {"silu", silu(7)},
                                                {"tanh", fsdp::tanh(7)},
                                                {"sigmoid", sigmoid(7)},
                                                {"softmax", softmax(7)},
                                                {"softmax of large numbers", softmax(7)},
                                                {"log_softmax", log_softmax(7)},
                                                {"swiglu", swiglu(5)},
                                                {"transpose", transpose(3, 4)},
                                                {"identity", identity(4)},
                                                {"position_embedding", position_embedding(4, 5)},
                                                {"layer_norm", layer_norm(7)},
                                                {"rms_norm", rms_norm(7)}};

const std::vector<float> of_classes = {0.5f, 2.0f, 0.25f, 1.0f, 3.0f}, of_columns = {0.5f, 2.0f, 1.0f, 4.0f, 0.0f};
const std::map<std::string, LossPtr> losses = {
    {"cross_entropy", cross_entropy(5)},
    {"cross_entropy, ignored", cross_entropy(5)},
    {"cross_entropy, smoothed", cross_entropy(5, 0.2)},
    {"cross_entropy, weights", cross_entropy(5, {.weight = of_classes})},
    {"cross_entropy, weights, smoothed", cross_entropy(5, {.label_smoothing = 0.3, .weight = of_classes})},
    {"mean_squared_error", mean_squared_error(5)},
    {"l1_loss", l1_loss(5)},
    {"huber_loss", huber_loss(5, 0.75)},
    {"smooth_l1_loss", smooth_l1_loss(5, 0.75)},
    {"binary_cross_entropy_with_logits", binary_cross_entropy_with_logits(5)},
    {"binary_cross_entropy_with_logits, pos_weight", binary_cross_entropy_with_logits(5, of_columns)}};

void compare_all(Machine& machine) {
  const auto run = [&](const auto& named, const json& golden) {
    BOOST_TEST(named.size() == golden.size());
    for (const auto& [name, part] : named)
      for (const DType type : {DType::f32, DType::bf16, DType::f16})
        BOOST_TEST_CONTEXT(name << " in " << name_of(type)) compare(machine, type, *part, golden.at(name));
  };
  run(layers, cases()["layers"]);
  run(losses, cases()["losses"]);
}

}  // namespace

BOOST_AUTO_TEST_CASE(on_the_cpu) {
  Machine machine(false);
  compare_all(machine);
}

BOOST_AUTO_TEST_CASE(on_a_gpu) {
  Machine machine(true);
  compare_all(machine);
}
