// Runs a layer's passes on memory filled with NaN, and compares them with PyTorch's results in
// tests/golden/attention.
#pragma once

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "base/element.hpp"
#include "device/memory_view.hpp"
#include "device/traits.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "support/golden.hpp"

namespace fsdp::test {

using Tensors = std::map<std::string, std::vector<float>>;

inline Tensors layer_tensors(const std::string& file) { return read_tensors(golden_folder("../attention") / file); }

/// Returns y, dx and "grad/NAME" of each parameter. `given` has x, dy and "param/NAME"; B and T are the numbers of sequences
/// and positions. `device`: null for the CPU.
inline Tensors run_layer(const Layer& layer, const Tensors& given, std::size_t B, std::size_t T, DType type,
                         Device* device = nullptr) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::size_t R = B * T;
  const std::unique_ptr<Device> cpu = make_cpu_device();
  if (!device) device = cpu.get();
  const bool on_gpu = !is_host(device->kind());
  const std::shared_ptr<Stream> stream = device->make_stream();
  std::vector<Buffer> memory;
  const auto view = [&](const Tensor& of) {
    return MemoryView(std::span(static_cast<std::byte*>(of.data), of.numel() * size_of(of.type)), *stream);
  };
  const auto write = [&](const Tensor& to, const std::vector<float>& values) {
    BOOST_TEST_REQUIRE(to.numel() == values.size());
    with_element(to.type, [&]<class E>() {
      std::vector<E> typed;
      for (const float value : values) typed.push_back(E(value));
      view(to).write(0, std::as_bytes(std::span(typed)));
    });
  };
  const auto read = [&](const Tensor& from) {
    return with_element(from.type, [&]<class E>() {
      std::vector<E> typed(from.numel());
      view(from).read(0, std::as_writable_bytes(std::span(typed)));
      return std::vector<float>(typed.begin(), typed.end());
    });
  };
  const auto tensor = [&](std::size_t rows, std::size_t columns, DType of) {
    memory.push_back(device->allocate((rows * columns + 1) * size_of(of)));
    const Tensor made = {columns > 0 ? memory.back().data() : nullptr, rows, columns, columns, of};
    if (made) write(made, std::vector<float>(made.numel(), nan));
    return made;
  };
  const std::vector<LayerParameter> parameters = layer.parameters();
  std::vector<const void*> weights;
  std::vector<float*> gradients;
  std::vector<Tensor> of_gradients;
  for (const LayerParameter& parameter : parameters) {
    const Tensor weight = tensor(1, numel(parameter.shape), type);
    write(weight, given.at("param/" + parameter.name));
    weights.push_back(weight.data);
    of_gradients.push_back(tensor(1, numel(parameter.shape), DType::f32));
    write(of_gradients.back(), std::vector<float>(numel(parameter.shape), 0));
    gradients.push_back(of_gradients.back().floats());
  }
  ForwardPass forward;
  forward.B = B, forward.T = T, forward.type = type;
  forward.stream = stream.get();
  forward.x = tensor(R, layer.inputs(), type);
  write(forward.x, given.at("x"));
  forward.threads = static_cast<std::size_t>(kernels::threads()), forward.on_gpu = on_gpu;
  const MemorySizes sizes = layer.sizes(forward);
  forward.scratch = tensor(R, sizes.scratch, type);
  forward.most_columns = 4096;
  const DeviceTraits traits = on_gpu ? cuda_traits() : kernels::traits_of_cpu();
  forward.sums = tensor(1, kernels::column_sum_scratch(forward.most_columns, traits), DType::f32).floats();
  forward.unwanted = tensor(1, 2 * forward.most_columns, DType::f32).floats();
  std::vector<std::size_t> indices(parameters.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  forward.weights = weights.data();
  forward.parameters = parameters, forward.indices = indices;
  BackwardPass backward;
  static_cast<Pass&>(backward) = forward;
  forward.y = tensor(R, layer.outputs(), type);
  forward.saved = tensor(R, sizes.saved, type);
  forward.stats = tensor(R, sizes.saved_floats, DType::f32);
  on_stream(*stream, [&] { layer.forward(forward); });
  backward.dy = tensor(R, layer.outputs(), type);
  write(backward.dy, given.at("dy"));
  backward.dx = tensor(R, layer.inputs(), type);
  backward.saved = forward.saved, backward.stats = forward.stats;
  backward.scratch = tensor(R, sizes.scratch, type);
  backward.gradients = gradients.data();
  on_stream(*stream, [&] { layer.backward(backward); });
  Tensors results = {{"y", read(forward.y)}, {"dx", read(backward.dx)}};
  for (std::size_t i = 0; i < parameters.size(); ++i) results["grad/" + parameters[i].name] = read(of_gradients[i]);
  return results;
}

/// Compares all results of case `name` in `file` with PyTorch's. The tolerance of a type is relative to the largest value of a
/// tensor.
inline void compare_with_pytorch(const Tensors& file, const std::string& name, const Layer& layer, std::size_t B,
                                 std::size_t T) {
  Tensors of_case;
  for (const auto& [key, values] : file)
    if (key.starts_with(name + "/")) of_case[key.substr(name.size() + 1)] = values;
  BOOST_TEST_REQUIRE(of_case.count("y") == 1u, name);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const double tolerance = type == DType::f32 ? 1e-6 : type == DType::bf16 ? 4e-2 : 4e-3;
    for (const auto& [key, values] : run_layer(layer, of_case, B, T, type)) {
      const std::vector<float>& wanted = of_case.at(key);
      double largest = 0, apart = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
        const double distance = std::abs(static_cast<double>(wanted[i]) - values[i]);
        apart = std::isnan(distance) ? HUGE_VAL : std::max(apart, distance);
      }
      // Without rotary positions, this gradient is 0: a bias of keys adds the same number to all scores of a query.
      if (key == "grad/k_proj.bias") largest = 4;
      BOOST_TEST(apart <= tolerance * largest, name << ", " << key << " in " << name_of(type) << ": " << apart / largest);
    }
  }
}

}  // namespace fsdp::test
