// Quantized matrices against bitsandbytes 0.50.2. The expected numbers are those of quantize_4bit(w, blocksize=64,
// compress_statistics=True, quant_type="nf4"), of int8_vectorwise_quant(w), and of the functions that expand their results.
#include "kernels/quantized.hpp"

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::MatrixShape;
using kernels::Quantization;
using kernels::QuantizedParts;

namespace {

/// Memory that is aligned as gathered parameters are.
struct alignas(64) Line {
  std::byte bytes[64];
};

struct Quantized {
  Quantized(Quantization of_kind, MatrixShape of_shape, const Floats& w)
      : kind(of_kind), shape(of_shape), at(kind, shape), lines(at.end / 64) {
    kernels::quantize(
        kind, shape, [&](Range range, float* to) { std::copy_n(w.data() + range.begin, range.size(), to); },
        std::as_writable_bytes(std::span(lines)));
  }
  template <class T>
  const T* part(std::size_t offset) const {
    return reinterpret_cast<const T*>(lines.data()->bytes + offset);
  }
  template <class E = float>
  Floats expand(Range range) const {
    std::vector<E> out(range.size() + 1, E(77.0f));
    kernels::dequantize(cpu, kind, shape, lines.data(), range, out.data());
    BOOST_TEST(static_cast<float>(out.back()) == 77.0f);  // nothing was written behind the range
    return {out.begin(), out.end() - 1};
  }
  Floats all() const { return expand({0, shape.numel()}); }

  Quantization kind;
  MatrixShape shape;
  QuantizedParts at;
  std::vector<Line> lines;
  mutable CpuStream cpu;
};

/// Three sums, which differ if two elements are exchanged.
void check_sums(const Floats& got, double sum, double magnitudes, double weighted) {
  double s = 0, m = 0, w = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    s += got[i], m += std::abs(got[i]), w += static_cast<double>(got[i]) * static_cast<double>(i % 17);
  BOOST_TEST(s == sum, boost::test_tools::tolerance(1e-5));
  BOOST_TEST(m == magnitudes, boost::test_tools::tolerance(1e-7));
  BOOST_TEST(w == weighted, boost::test_tools::tolerance(1e-5));
}

Floats numbers(std::size_t n, float divisor, bool grows) {
  Floats w(n);
  for (std::size_t i = 0; i < n; ++i)
    w[i] = (static_cast<float>(i * 7919 % 1009) - 504) * (grows ? static_cast<float>(1 + i / 64 % 13) : 1) / divisor;
  return w;
}

}  // namespace

BOOST_AUTO_TEST_CASE(nf4_is_that_of_bitsandbytes) {
  const MatrixShape shape{67, 131};  // 138 blocks, the last of which is short; rows begin within blocks
  const Quantized q(Quantization::nf4, shape, numbers(shape.numel(), 25000, true));
  const std::vector<int> codes = {0x0e, 0xc8, 0x52, 0x1f, 0xda, 0x74, 0x10, 0xec,
                                  0x95, 0x31, 0xfd, 0xb7, 0x42, 0x0e, 0xda, 0x63},
                         scales = {0x05, 0x10, 0x1b, 0x27, 0x32, 0x3c, 0xa0, 0xc5,
                                   0xd1, 0xda, 0xe6, 0xf3, 0xfd, 0x04, 0x10, 0x1b};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    BOOST_TEST(q.part<std::uint8_t>(q.at.codes)[i] == codes[i]);
    BOOST_TEST(q.part<std::uint8_t>(q.at.block_scales)[i] == scales[i]);
  }
  BOOST_TEST(*q.part<float>(q.at.mean_scale) == 0.136666089f, boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(*q.part<float>(q.at.scales) == 0.125413924f, boost::test_tools::tolerance(1e-6f));
  const std::pair<std::size_t, float> levels[] = {
      {0, -0.992968738f}, {1, -0.978906274f}, {62, -0.12109375f},  {63, -0.107031256f}, {126, -5.5e-07f}, {127, 0.0f},
      {128, 5.5e-07f},    {129, 3.25e-06f},   {200, 0.233593747f}, {254, 0.992968738f}, {255, 1.0f}};
  for (const auto& [i, level] : levels)
    BOOST_TEST(q.part<float>(q.at.scale_levels)[i] == level, boost::test_tools::tolerance(1e-6f));
  const Floats all = q.all();
  const std::pair<std::size_t, float> elements[] = {{0, -0.0209521502f},   {1, 0.0151475007f},    {63, -0.00190769404f},
                                                    {64, -0.0159357544f},  {130, -0.0235971436f}, {131, -0.0415989719f},
                                                    {5000, 0.0151475007f}, {8776, -0.0834380314f}};
  for (const auto& [i, element] : elements) BOOST_TEST(all[i] == element, boost::test_tools::tolerance(1e-6f));
  check_sums(all, 0.824005103204, 607.761590063, 12.4441549353);
}

// The product of this element with the reciprocal of 3 is above the middle of two levels, and their quotient is that middle.
BOOST_AUTO_TEST_CASE(nf4_rounds_as_bitsandbytes_between_two_levels) {
  const Quantized q(Quantization::nf4, {1, 64}, [] {
    Floats w(64);
    w[0] = 3, w[1] = 0x1.2afdf6p+0f;
    return w;
  }());
  BOOST_TEST(static_cast<int>(q.part<std::uint8_t>(q.at.codes)[0]) == 0xfc);
}

BOOST_AUTO_TEST_CASE(int8_is_that_of_bitsandbytes) {
  const MatrixShape shape{5, 37};
  const Quantized q(Quantization::int8, shape, numbers(shape.numel(), 1024, false));
  const std::vector<int> codes = {-127, 89, 50, 12, -27, -66, -104, 112};
  for (std::size_t i = 0; i < codes.size(); ++i) BOOST_TEST(static_cast<int>(q.part<std::int8_t>(q.at.codes)[i]) == codes[i]);
  const std::vector<float> scales = {0.4921875f, 0.4853515625f, 0.4814453125f, 0.4794921875f, 0.4833984375f};
  for (std::size_t r = 0; r < scales.size(); ++r) BOOST_TEST(q.part<float>(q.at.scales)[r] == scales[r]);
  const Floats all = q.all();
  const std::pair<std::size_t, float> elements[] = {
      {0, -0.4921875f}, {1, 0.344918787f}, {36, 0.0426304117f}, {37, -0.107006647f}, {184, -0.395853847f}};
  for (const auto& [i, element] : elements) BOOST_TEST(all[i] == element, boost::test_tools::tolerance(1e-6f));
  check_sums(all, -0.233998257667, 45.6581337964, 2.91797576845);
}

BOOST_AUTO_TEST_CASE(parts_of_a_matrix) {
  const MatrixShape shape{192, 85};
  const Floats w = numbers(shape.numel(), 25000, true);
  for (const Quantization kind : {Quantization::int8, Quantization::nf4}) {
    const Quantized q(kind, shape, w);
    const Floats all = q.all();
    BOOST_TEST(relative_error(all, upcast(w)) < (kind == Quantization::int8 ? 0.004 : 0.16), kernels::name_of(kind));
    for (const auto& [begin, end] : {std::pair(0, 64), {64, 128}, {64, 192}, {128, 131}}) {  // rows
      const Range range{static_cast<std::size_t>(begin) * 85, static_cast<std::size_t>(end) * 85};
      const Floats want(all.begin() + begin * 85, all.begin() + end * 85);
      BOOST_TEST(q.expand(range) == want, boost::test_tools::per_element());
      Floats rounded = want;
      round_values(DType::bf16, rounded);
      BOOST_TEST(q.expand<bf16>(range) == rounded, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(zeros_stay_zeros) {
  const MatrixShape shape{3, 70};
  for (const Quantization kind : {Quantization::int8, Quantization::nf4})
    for (const float element : Quantized(kind, shape, Floats(shape.numel())).all()) BOOST_TEST(element == 0);
}

BOOST_AUTO_TEST_CASE(large_matrices_are_read_in_parts) {
  const MatrixShape shape{300, 9000};  // 2.7 million elements
  const Floats w = random_floats(shape.numel(), 3);
  for (const Quantization kind : {Quantization::int8, Quantization::nf4}) {
    std::size_t read = 0;
    std::vector<Line> lines(QuantizedParts(kind, shape).end / 64);
    kernels::quantize(
        kind, shape,
        [&](Range range, float* to) {
          BOOST_TEST(range.begin == read);
          BOOST_TEST(range.size() <= 2'000'000u);
          read = range.end;
          std::copy_n(w.data() + range.begin, range.size(), to);
        },
        std::as_writable_bytes(std::span(lines)));
    BOOST_TEST(read == shape.numel());
    CpuStream cpu;
    Floats out(shape.numel());
    kernels::dequantize(cpu, kind, shape, lines.data(), {0, shape.numel()}, out.data());
    BOOST_TEST(relative_error(out, upcast(w)) < (kind == Quantization::int8 ? 0.004 : 0.16), kernels::name_of(kind));
  }
}
