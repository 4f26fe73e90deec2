#include "machine/measure.hpp"

#include <algorithm>

#include "base/philox.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "files/output_file.hpp"

namespace fsdp {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double smallest(std::vector<double> values) { return *std::min_element(values.begin(), values.end()); }

std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work) {
  work();
  stream.synchronize();
  const std::size_t at_once = stream.is_asynchronous() ? 10 : 1;
  std::vector<double> times;
  const Timer all;
  do {
    stream.begin_marks(true);
    std::vector<std::int64_t> marks = {stream.mark()};
    for (std::size_t i = 0; i < at_once; ++i) {
      work();
      marks.push_back(stream.mark());
    }
    stream.synchronize();
    for (std::size_t i = 0; i < at_once; ++i)
      times.push_back(1e-9 * static_cast<double>(stream.time_of(marks[i + 1]) - stream.time_of(marks[i])));
    stream.begin_marks(false);
  } while (times.size() < 3 || all.seconds() < seconds);
  return times;
}

namespace {

template <class E>
double product_rate_of(Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                       std::size_t m, std::size_t n, std::size_t k, double seconds, double (*pick)(std::vector<double>)) {
  Buffer a, b, out;
  const auto pointer = [](const Buffer& buffer) { return reinterpret_cast<E*>(buffer.data()); };
  agree(group, [&] {
    a = device.allocate(m * k * sizeof(E)), b = device.allocate(k * n * sizeof(E)), out = device.allocate(m * n * sizeof(E));
    const Buffer normal = device.allocate(std::max(m, n) * k * sizeof(float));
    auto* const values = reinterpret_cast<float*>(normal.data());
    kernels::fill_normal(stream, values, m * k, 0, 1, 0, 0, 1);
    kernels::convert(stream, pointer(a), values, m * k);
    kernels::fill_normal(stream, values, k * n, 0, 1, 1, 0, 1);
    kernels::convert(stream, pointer(b), values, k * n);
    stream.synchronize();
  });
  const double time = pick(time_calls(stream, seconds, [&] {
    kernels::gemm(stream, trans_a, trans_b, m, n, k, pointer(a), trans_a == kernels::Trans::yes ? m : k, pointer(b),
                  trans_b == kernels::Trans::yes ? k : n, pointer(out), n, kernels::Write::overwrite);
  }));
  group.barrier();
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / time;
}

}  // namespace

double product_rate(DType type, Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                    std::size_t m, std::size_t n, std::size_t k, double seconds, double (*pick)(std::vector<double>)) {
  return with_element(
      type, [&]<class E>() { return product_rate_of<E>(device, stream, group, trans_a, trans_b, m, n, k, seconds, pick); });
}

double slowest(Group& group, double seconds) {
  return 1e-9 * static_cast<double>(group.max(static_cast<std::size_t>(1e9 * seconds)));
}

double time_collective(Stream& stream, Group& group, std::size_t at_once, std::size_t rounds,
                       const std::function<void()>& call) {
  std::vector<double> times;
  for (std::size_t round = 0; round <= rounds; ++round) {
    group.barrier();
    const Timer timer;
    for (std::size_t i = 0; i < at_once; ++i) call();
    stream.synchronize();
    if (round > 0) times.push_back(timer.seconds() / static_cast<double>(at_once));
  }
  return slowest(group, median(std::move(times)));
}

double time_together(Group& group, const std::function<void()>& work) {
  group.barrier();
  const Timer timer;
  agree(group, work);
  return timer.seconds();
}

void write_as_saves(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  OutputFile output(path);
  output.write(0, bytes.data(), bytes.size());
  output.finish();
}

BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank) {
  return [=](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
    for (std::size_t i = 0; i < shape.rows(); ++i) {
      const auto words = philox(
          {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(micro), static_cast<std::uint32_t>(rank), 0}, {1, 0});
      inputs[i] = static_cast<std::int32_t>(words[0] % vocabulary);
      targets[i] = static_cast<std::int32_t>(words[1] % vocabulary);
    }
  };
}

}  // namespace fsdp
