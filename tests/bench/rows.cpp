#include "bench/parts.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "nn/transformer.hpp"

namespace fsdp {

namespace {

struct RowKernel {
  const char* name;
  std::size_t bytes;  // read and written, if each array is read once and written once
  std::function<void()> run;
};

struct Figure {
  const char* name;
  std::size_t bytes;
  double seconds, of_copy;
};

/// Measures the row kernels of a model's micro-batch, each in turn with a copy that reads and writes as many bytes.
template <class E>
std::vector<Figure> measure(const PartsOptions& options, const Transformer& model, const DeviceTraits& traits,
                            Communicator& world, Device& device, Stream& stream) {
  using kernels::Write;
  const TransformerConfig& c = model.config();
  const BatchShape batch = options.sharding.batch;
  const std::size_t R = batch.rows(), C = c.width, F = c.ffn_width, V = c.vocab_size, D = c.head_size, H = c.heads + c.kv_heads,
                    chunk = model.head_rows(batch), piece = model.head_columns(), alignment = traits.logits_alignment,
                    wide = std::max({C, F, H * D}), e = sizeof(E),
                    all_logits = (V + alignment) * std::max<std::size_t>(chunk, 2),
                    scratch_size = kernels::column_sum_scratch(wide, traits);
  std::vector<Buffer> memory;
  const auto floats = [&](std::size_t n) {
    return reinterpret_cast<float*>(memory.emplace_back(device.allocate(n * sizeof(float))).data());
  };
  const auto normal = [&](std::size_t n) {
    auto* const values = reinterpret_cast<E*>(memory.emplace_back(device.allocate(n * e)).data());
    const Buffer wide_values = device.allocate(n * sizeof(float));
    auto* const from = reinterpret_cast<float*>(wide_values.data());
    kernels::fill_normal(stream, from, n, 0, 1, static_cast<std::uint32_t>(memory.size()), 0, 1);
    kernels::convert(stream, values, from, n);
    stream.synchronize();
    return values;
  };
  E *x = nullptr, *y = nullptr, *z = nullptr, *u = nullptr, *v = nullptr, *gain = nullptr, *bias = nullptr, *logits = nullptr;
  float *stats = nullptr, *d_gain = nullptr, *d_bias = nullptr, *scratch = nullptr, *loss = nullptr, *softmax = nullptr,
        *table = nullptr, *from = nullptr, *to = nullptr;
  std::int32_t* targets = nullptr;
  std::size_t copied = 0;
  std::vector<RowKernel> list;
  agree(world, [&] {
    x = normal(R * wide), y = normal(R * wide), z = normal(R * wide), u = normal(R * wide), v = normal(R * wide);
    gain = normal(wide), bias = reinterpret_cast<E*>(floats(wide)), logits = normal(all_logits);
    stats = floats(2 * R * H), d_gain = floats(wide), d_bias = floats(wide), scratch = floats(scratch_size), loss = floats(R);
    softmax = floats(4 * chunk), table = floats(batch.T * D);
    // Kernels that work in place get back what they computed: gains of 1 and biases of 0 keep the numbers normal.
    kernels::fill_constant(stream, d_gain, wide, 1);
    kernels::convert(stream, gain, d_gain, wide);
    targets = reinterpret_cast<std::int32_t*>(floats(R));             // zeros: every target is token 0
    kernels::fill_constant(stream, table, batch.T * D, 0.70710678f);  // a rotation by 45 degrees
  });
  const kernels::Logits<E> rows = {.values = logits,
                                   .stats = reinterpret_cast<kernels::SoftmaxStats*>(softmax),
                                   .targets = targets,
                                   .R = chunk,
                                   .V = V,
                                   .piece = piece,
                                   .alignment = alignment};
  const auto each_piece = [V, piece](const auto& f) {
    for (std::size_t begin = 0; begin < V; begin += piece) f(begin);
  };
  list = {
      {"layer norm", 2 * R * C * e, [&] { kernels::layer_norm_forward(stream, y, stats, x, gain, bias, R, C, 1e-5f); }},
      {"layer norm backward", 4 * R * C * e,
       [&] {
         kernels::layer_norm_backward(stream, z, Write::add, d_gain, d_bias, Write::overwrite, y, x, stats, gain, R, C,
                                      scratch);
       }},
      {"rms norm", 2 * R * C * e, [&] { kernels::rms_norm_forward(stream, y, stats, x, gain, R, C, 1e-5f); }},
      {"rms norm backward", 4 * R * C * e,
       [&] { kernels::rms_norm_backward(stream, z, Write::add, d_gain, Write::overwrite, y, x, stats, gain, R, C, scratch); }},
      {"head norm", 3 * R * H * D * e, [&] { kernels::head_norm_forward(stream, x, y, stats, gain, R, H, D, H * D, 1e-5f); }},
      {"head norm backward", 3 * R * H * D * e,
       [&] { kernels::head_norm_backward(stream, z, d_gain, Write::overwrite, y, stats, gain, R, H, D, H * D, scratch); }},
      {"rotation", 2 * R * H * D * e,
       [&] { kernels::rope(stream, x, batch.B, batch.T, H, D, D / 2 * 2, H * D, table, D, false); }},
      {"bias", 2 * R * C * e, [&] { kernels::add_bias(stream, y, bias, R, C); }},
      {"bias backward", R * C * e, [&] { kernels::bias_backward(stream, d_bias, x, R, C, C, Write::overwrite, scratch); }},
      {"residual", 3 * R * C * e, [&] { kernels::add_residual(stream, z, x, y, bias, R, C); }},
      {"bias and gelu", 3 * R * F * e, [&] { kernels::bias_gelu_forward(stream, kernels::Gelu::tanh, y, x, bias, R, F); }},
      {"gelu backward", 3 * R * F * e, [&] { kernels::gelu_backward(stream, kernels::Gelu::tanh, z, y, x, R * F); }},
      {"swiglu", 3 * R * F * e, [&] { kernels::swiglu_forward(stream, z, x, y, R * F); }},
      {"swiglu backward", 5 * R * F * e, [&] { kernels::swiglu_backward(stream, u, v, z, x, y, R * F); }},
      {"loss", chunk * V * e,
       [&] { each_piece([&](std::size_t begin) { kernels::cross_entropy(stream, loss, rows, begin); }); }},
      {"gradient of logits", 2 * chunk * V * e,
       [&] { each_piece([&](std::size_t begin) { kernels::logit_gradient(stream, rows, begin, 1.0f); }); }},
  };
  if (V <= 2 * piece)
    list.push_back({"loss and gradient", 2 * chunk * V * e, [&] { kernels::loss_and_gradient(stream, loss, rows, 1.0f); }});
  for (const RowKernel& kernel : list) copied = std::max(copied, kernel.bytes / (2 * sizeof(float)));
  agree(world, [&] { from = floats(copied), to = floats(copied); });

  std::vector<Figure> figures;
  for (const RowKernel& kernel : list) {
    std::vector<double> ours, copies;
    for (std::size_t i = 0; i < options.steps; ++i) {
      world.barrier();
      ours.push_back(median(time_calls(stream, 0.02, kernel.run)));
      world.barrier();
      copies.push_back(
          median(time_calls(stream, 0.02, [&] { kernels::copy(stream, to, from, kernel.bytes / (2 * sizeof(float))); })));
    }
    const double seconds = median(ours);
    figures.push_back({kernel.name, kernel.bytes, seconds, median(copies) / seconds});
  }
  return figures;
}

}  // namespace

std::string bench_rows(const PartsOptions& options, Communicator& world, Device& device, Stream& stream) {
  const TransformerConfig config = agree(world, [&] { return config_of(options); });
  const DeviceTraits traits = traits_for(options, config, options.sharding, device, world);
  const Transformer model(config, traits);
  const DType type = options.sharding.types.parameter;
  const auto figures = with_element(type, [&]<class E>() { return measure<E>(options, model, traits, world, device, stream); });

  const BatchShape batch = options.sharding.batch;
  double lowest = figures.front().of_copy;
  nlohmann::json json = {{"arch", model_of(options)},         {"device", device.description()},
                         {"precision", name_of(type)},        {"ranks", world.size()},
                         {"threads", kernels::threads()},     {"rows", batch.rows()},
                         {"kernels", nlohmann::json::array()}};
  std::string text = format(
      "{}; {} ranks at once, {}, {} rows of {}; rank 0's medians of {}, in turn with a copy of as many bytes\n"
      "{:<20} {:>9} {:>9} {:>8} {:>8}\n",
      device.description(), world.size(), name_of(type), batch.rows(), config.width, options.steps, "", "MB", "ms", "GB/s",
      "of copy");
  for (const Figure& f : figures) {
    const double rate = static_cast<double>(f.bytes) / f.seconds;
    lowest = std::min(lowest, f.of_copy);
    text += format("{:<20} {:>9.1f} {:>9.3f} {:>8.1f} {:>7.0f}%\n", f.name, 1e-6 * static_cast<double>(f.bytes),
                   1e3 * f.seconds, 1e-9 * rate, 100 * f.of_copy);
    json["kernels"].push_back(
        {{"name", f.name}, {"bytes", f.bytes}, {"ms", 1e3 * f.seconds}, {"gb_per_s", 1e-9 * rate}, {"of_copy", f.of_copy}});
  }
  json["lowest_of_copy"] = lowest;
  return options.json ? json_text(json) + "\n" : text;
}

}  // namespace fsdp
