#include "bench/parts.hpp"

#include <array>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "machine/machine.hpp"
#include "nn/config.hpp"

namespace fsdp {

namespace {

/// Returns the seconds of the forward and the backward pass.
template <class E>
std::array<double, 2> measure(const kernels::AttentionShape& shape, const DeviceTraits& traits, Device& device, Stream& stream,
                              Communicator& world) {
  const std::size_t rows = shape.B * shape.T, fused = rows * shape.q_stride, width = rows * shape.H * shape.D;
  const auto values = [&](std::size_t n) { return device.allocate(n * sizeof(E)); };
  const auto pointer = [](const Buffer& buffer) { return reinterpret_cast<E*>(buffer.data()); };
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  const Buffer qkv = values(fused), d_qkv = values(fused), out = values(width), d_out = values(width),
               normal = device.allocate(fused * sizeof(float)),
               lse = device.allocate(shape.B * shape.H * shape.T * sizeof(float)),
               scratch = device.allocate(kernels::attention_scratch(shape, traits) * sizeof(float));
  const auto fill = [&](const Buffer& buffer, std::size_t n, std::uint32_t tensor) {
    kernels::fill_normal(stream, floats(normal), n, 0, 1, tensor, 0, 1);
    kernels::convert(stream, pointer(buffer), floats(normal), n);
  };
  fill(qkv, fused, 0);
  fill(d_out, width, 1);
  const std::size_t k = shape.H * shape.D, v = k + shape.K * shape.D;
  const auto forward = [&] {
    kernels::attention_forward<E>(stream, pointer(out), floats(lse), pointer(qkv), pointer(qkv) + k, pointer(qkv) + v, shape,
                                  floats(scratch));
  };
  const auto backward = [&] {
    kernels::attention_backward<E>(stream, pointer(d_qkv), pointer(d_qkv) + k, pointer(d_qkv) + v, pointer(d_out), pointer(out),
                                   floats(lse), pointer(qkv), pointer(qkv) + k, pointer(qkv) + v, shape, floats(scratch));
  };
  forward();
  stream.synchronize();
  world.barrier();
  const double forward_s = median(time_calls(stream, 0.5, forward));
  world.barrier();
  return {forward_s, median(time_calls(stream, 0.5, backward))};
}

}  // namespace

std::string bench_attention(const PartsOptions& options, Communicator& world, Device& device, Stream& stream) {
  const TransformerConfig config = agree(world, [&] { return config_of(options); });
  const DType type = options.sharding.types.parameter;
  const BatchShape batch = options.sharding.batch;
  const std::size_t width = (config.heads + 2 * config.kv_heads) * config.head_size;
  kernels::AttentionShape shape = {batch.B, batch.T, config.heads, config.kv_heads, config.head_size, width, width};
  const DeviceTraits traits = traits_for(options, config, options.sharding, device, world);
  if (traits.cudnn_head_size > 0) shape.cudnn_parts = kernels::cudnn_parts(type, shape);
  agree(world, [&] { kernels::prepare_attention(stream, type, shape, true); });
  const auto seconds = with_element(type, [&]<class E>() { return measure<E>(shape, traits, device, stream, world); });

  // The forward pass has two matrix products; the backward pass has five, because it recomputes the probabilities. The causal
  // mask removes half of each product, so a product has B T T H D FLOPs instead of twice that number.
  const double product = static_cast<double>(batch.rows() * batch.T * config.heads * config.head_size);
  const std::optional<double> peak = peak_of_gpus(device, type, world);
  nlohmann::json json = {{"arch", model_of(options)},  {"device", device.description()},
                         {"precision", name_of(type)}, {"backend", shape.cudnn_parts > 0 ? "cudnn" : "own"},
                         {"ranks", world.size()},      {"peak_gflops", peak ? nlohmann::json(*peak / 1e9) : nlohmann::json()}};
  std::string text = format("{}; {} ranks at once, {}, {} sequences of {}, {} heads of {}, {} of keys; rank 0's medians\n",
                            device.description(), world.size(), name_of(type), batch.B, batch.T, config.heads, config.head_size,
                            config.kv_heads);
  for (const auto& [name, products, s] : {std::tuple("forward", 2, seconds[0]), std::tuple("backward", 5, seconds[1])}) {
    const double rate = world.sum(products * product / s);
    text += format("{:<9} {:>9.3f} ms {:>15}{}\n", name, 1e3 * s, format_rate(rate, device.kind()),
                   peak ? format(", {} of the peak by the datasheet", format_share(rate, peak)) : std::string());
    json[name] = {{"ms", 1e3 * s}, {"gflops", rate / 1e9}, {"of_peak", peak ? nlohmann::json(rate / *peak) : nlohmann::json()}};
  }
  return options.json ? json_text(json) + "\n" : text;
}

}  // namespace fsdp
