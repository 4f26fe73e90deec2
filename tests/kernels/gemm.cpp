// GEMM in every direction against double precision. Tolerance: fp32 sums of up to 300 terms, and the rounding of 16-bit
// results.
#include "support.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>

using namespace fsdp;
using namespace fsdp::test;
using kernels::Trans;
using kernels::Write;

namespace {

template <class E>
std::vector<E> random_of(std::size_t n, std::uint32_t seed) {
  const Floats values = random_floats(n, seed);
  std::vector<E> out(n);
  std::transform(values.begin(), values.end(), out.begin(), [](float x) { return E(x); });
  return out;
}

template <class E = float, class Out = float>
double run(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, std::size_t pad, Write write) {
  CpuStream stream;
  const std::size_t rows_a = trans_a == Trans::yes ? k : m, lda = (trans_a == Trans::yes ? m : k) + pad;
  const std::size_t rows_b = trans_b == Trans::yes ? n : k, ldb = (trans_b == Trans::yes ? k : n) + 2 * pad, ldo = n + 3 * pad;
  const std::vector<E> a = random_of<E>(rows_a * lda, 1), b = random_of<E>(rows_b * ldb, 2);
  std::vector<Out> out = random_of<Out>(m * ldo, 3);
  Doubles want(out.begin(), out.end());  // elements between the rows must not change
  kernels::gemm(stream, trans_a, trans_b, m, n, k, a.data(), lda, b.data(), ldb, out.data(), ldo, write);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      double total = write == Write::add ? want[i * ldo + j] : 0;
      for (std::size_t l = 0; l < k; ++l)
        total += static_cast<double>(trans_a == Trans::yes ? a[l * lda + i] : a[i * lda + l]) *
                 static_cast<double>(trans_b == Trans::yes ? b[j * ldb + l] : b[l * ldb + j]);
      want[i * ldo + j] = total;
    }
  return relative_error(Floats(out.begin(), out.end()), want);
}

/// Compares gemm_bias_gelu() and gemm_gelu_backward() in E with the product in double and the separate GELU kernels. `rounding`
/// is the rounding error of results in E.
template <class E>
void check_gelu(kernels::Gelu form, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, bool with_bias,
                double rounding) {
  CpuStream stream;
  const std::vector<E> a = random_of<E>(m * k, 1), b = random_of<E>(k * n, 2), bias = random_of<E>(n, 3);
  Doubles product(m * n), want = product;
  for (std::size_t i = 0; i < m * n; ++i) {
    for (std::size_t l = 0; l < k; ++l)
      product[i] += static_cast<double>(a[i / n * k + l]) *
                    static_cast<double>(trans_b == Trans::yes ? b[i % n * k + l] : b[l * n + i % n]);
    want[i] = product[i] + (with_bias ? static_cast<double>(bias[i % n]) : 0);
  }
  const auto error = [](const std::vector<E>& got, const Doubles& wanted) {
    return relative_error(Floats(got.begin(), got.end()), wanted);
  };
  std::vector<E> pre(m * n), out(m * n), d_pre(m * n), activated(m * n), slope(m * n), unchanged;
  kernels::gemm_bias_gelu(stream, form, trans_b, m, n, k, a.data(), b.data(), with_bias ? bias.data() : nullptr, pre.data(),
                          out.data());
  BOOST_TEST(error(pre, want) < 2 * rounding);  // of the product, and of the sum with the bias
  unchanged = pre;
  kernels::bias_gelu_forward<E>(stream, form, activated.data(), unchanged.data(), nullptr, m, n);
  BOOST_TEST(error(out, Doubles(activated.begin(), activated.end())) < rounding);

  kernels::gemm_gelu_backward(stream, form, trans_b, m, n, k, a.data(), b.data(), pre.data(), d_pre.data());
  const std::vector<E> ones(m * n, E(1.0f));
  kernels::gelu_backward(stream, form, slope.data(), ones.data(), pre.data(), m * n);
  for (std::size_t i = 0; i < m * n; ++i) want[i] = product[i] * static_cast<double>(slope[i]);
  BOOST_TEST(error(d_pre, want) < 2 * rounding);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_direction_and_odd_sizes) {
  struct Size {
    std::size_t m, n, k;
  };
  for (const auto [m, n, k] : std::vector<Size>{{1, 1, 1}, {7, 13, 5}, {1, 211, 48}, {64, 1, 65}, {65, 48, 63}, {33, 129, 300}})
    for (const Trans trans_a : {Trans::no, Trans::yes})
      for (const Trans trans_b : {Trans::no, Trans::yes})
        for (const std::size_t pad : {0, 3})
          for (const Write write : {Write::overwrite, Write::add})
            BOOST_TEST(run(trans_a, trans_b, m, n, k, pad, write) < 2e-6,
                       "m " << m << ", n " << n << ", k " << k << ", pad " << pad);
}

BOOST_AUTO_TEST_CASE(sizes_of_a_training_step) {
  for (const Write write : {Write::overwrite, Write::add}) {
    BOOST_TEST(run(Trans::no, Trans::yes, 256, 384, 128, 0, write) < 2e-6);
    BOOST_TEST(run(Trans::no, Trans::no, 256, 128, 384, 0, write) < 2e-6);
    BOOST_TEST(run(Trans::yes, Trans::no, 384, 128, 256, 0, write) < 2e-6);
  }
}

BOOST_AUTO_TEST_CASE(low_precision) {
  struct Size {
    std::size_t m, n, k;
  };
  // Sizes around 64, from which AMX is used, around its tiles of 32 and its blocks, and one that is not a multiple of these.
  for (const auto [m, n, k] : std::vector<Size>{{1, 1, 1},
                                                {33, 65, 31},
                                                {64, 64, 64},
                                                {65, 97, 70},
                                                {257, 63, 33},
                                                {300, 129, 101},
                                                {1030, 70, 64},
                                                {66, 1100, 90},
                                                {90, 80, 2100},
                                                {390, 70, 960},
                                                {486, 64, 1600}})
    for (const Trans trans_b : {Trans::no, Trans::yes})
      for (const std::size_t pad : {0, 3})
        for (const Write write : {Write::overwrite, Write::add}) {
          BOOST_TEST_CONTEXT("m " << m << ", n " << n << ", k " << k << ", pad " << pad) {
            BOOST_TEST((run<bf16, bf16>(Trans::no, trans_b, m, n, k, pad, write) < 4e-3));
            BOOST_TEST((run<bf16, float>(Trans::no, trans_b, m, n, k, pad, write) < 2e-6));
            BOOST_TEST((run<bf16, float>(Trans::yes, trans_b, m, n, k, pad, write) < 2e-6));
            BOOST_TEST((run<f16, f16>(Trans::no, trans_b, m, n, k, pad, write) < 5e-4));
            BOOST_TEST((run<f16, float>(Trans::yes, trans_b, m, n, k, pad, write) < 2e-6));
          }
        }
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  BOOST_TEST((run<bf16, bf16>(Trans::no, Trans::no, 300, 200, 100, 0, Write::overwrite) < 4e-3));
  BOOST_TEST((run<bf16, bf16>(Trans::no, Trans::yes, 300, 200, 100, 0, Write::overwrite) < 4e-3));
  omp_set_num_threads(threads);
}

// Products of a few rows use another kernel, which divides columns among threads and has its own tile sizes.
BOOST_AUTO_TEST_CASE(skinny) {
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    for (const std::size_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 20, 64, 65})
      for (const auto& [n, k] : {std::array<std::size_t, 2>{3, 2}, {70, 37}, {301, 130}, {1040, 64}})
        for (const Trans trans_b : {Trans::no, Trans::yes})
          for (const std::size_t pad : {0, 3})
            for (const Write write : {Write::overwrite, Write::add}) {
              BOOST_TEST_CONTEXT("m " << m << ", n " << n << ", k " << k << ", pad " << pad) {
                BOOST_TEST(run(Trans::no, trans_b, m, n, k, pad, write) < 2e-6);
                BOOST_TEST((run<bf16, bf16>(Trans::no, trans_b, m, n, k, pad, write) < 4e-3));
                BOOST_TEST((run<bf16, float>(Trans::no, trans_b, m, n, k, pad, write) < 2e-6));
                BOOST_TEST((run<f16, f16>(Trans::no, trans_b, m, n, k, pad, write) < 5e-4));
                BOOST_TEST((run<f16, float>(Trans::no, trans_b, m, n, k, pad, write) < 2e-6));
              }
            }
  }
  omp_set_num_threads(before);
}

// A text does not depend on other texts that are generated at the same time.
BOOST_AUTO_TEST_CASE(a_row_among_few_has_the_same_bits) {
  CpuStream stream;
  const std::size_t n = 333, k = 147;
  const int before = omp_get_max_threads();
  const auto check = [&]<class E>(E) {
    const std::vector<E> b = random_of<E>(n * k, 2);
    for (const Trans trans_b : {Trans::no, Trans::yes}) {
      const bool in_fp32 = dtype_of<E> == DType::f32 || !kernels::multiplies(dtype_of<E>);
      const std::size_t ldb = trans_b == Trans::yes ? k : n, most = !in_fp32 ? 8 : trans_b == Trans::yes ? 64 : 12;
      const std::vector<E> a = random_of<E>(most * k, 1);
      Floats whole(most * n), one(n);
      omp_set_num_threads(3);
      kernels::gemm(stream, Trans::no, trans_b, most, n, k, a.data(), k, b.data(), ldb, whole.data(), n, Write::overwrite);
      omp_set_num_threads(1);
      for (std::size_t r = 0; r < most; ++r) {
        kernels::gemm(stream, Trans::no, trans_b, 1, n, k, &a[r * k], k, b.data(), ldb, one.data(), n, Write::overwrite);
        BOOST_TEST(std::equal(one.begin(), one.end(), &whole[r * n]));
      }
    }
  };
  check(0.0f);
  check(bf16(0.0f));
  check(f16(0.0f));
  omp_set_num_threads(before);
}

BOOST_AUTO_TEST_CASE(with_gelu) {
  for (const auto form : {kernels::Gelu::tanh, kernels::Gelu::erf})
    for (const Trans trans_b : {Trans::no, Trans::yes})
      for (const bool with_bias : {false, true})
        for (const auto [m, n, k] : {std::array<std::size_t, 3>{3, 5, 7}, {64, 96, 64}, {101, 131, 70}, {40, 1100, 1100}}) {
          BOOST_TEST_CONTEXT("m " << m << ", n " << n << ", k " << k << (with_bias ? ", bias" : "")) {
            check_gelu<float>(form, trans_b, m, n, k, with_bias, 2e-6);
            check_gelu<bf16>(form, trans_b, m, n, k, with_bias, 4e-3);
            check_gelu<f16>(form, trans_b, m, n, k, with_bias, 5e-4);
          }
        }
}

// If rows are whole cache lines, products may be written past the caches: with the same bits, and nothing else may change.
BOOST_AUTO_TEST_CASE(wherever_results_lie) {
  CpuStream stream;
  const std::size_t m = 130, n = 192, k = 160, numel = m * n;
  const std::vector<bf16> a = random_of<bf16>(m * k, 1), b = random_of<bf16>(k * n, 2), bias = random_of<bf16>(n, 3);
  const auto compare = [&]<class Out>(Out mark, const auto& run) {
    const Buffer memory = stream.device->allocate(sizeof(Out) * (2 * numel + 100));  // begins at a page
    Out* const at = reinterpret_cast<Out*>(memory.data());
    std::fill_n(at, 2 * numel + 100, mark);
    run(at);
    run(at + numel + 33);
    const Floats result(at, at + 2 * numel + 100);
    BOOST_TEST(std::equal(at, at + numel, at + numel + 33, [](Out x, Out y) { return float(x) == float(y); }));
    for (const std::size_t i : {numel, numel + 32, 2 * numel + 33}) BOOST_TEST(result[i] == static_cast<float>(mark));
    BOOST_TEST((result[0] != static_cast<float>(mark) && result[numel - 1] != static_cast<float>(mark)));
  };
  const auto product = [&](auto* out) {
    kernels::gemm(stream, Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, out, n, Write::overwrite);
  };
  compare(bf16(99.0f), product);
  compare(99.0f, product);
  std::vector<bf16> pre(numel);
  compare(bf16(99.0f), [&](bf16* out) {
    kernels::gemm_bias_gelu(stream, kernels::Gelu::tanh, Trans::no, m, n, k, a.data(), b.data(), bias.data(), pre.data(), out);
  });
  compare(bf16(99.0f), [&](bf16* out) {
    kernels::gemm_gelu_backward(stream, kernels::Gelu::tanh, Trans::no, m, n, k, a.data(), b.data(), pre.data(), out);
  });
}

BOOST_AUTO_TEST_CASE(overwriting_ignores_what_was_there) {
  CpuStream stream;
  const Floats a = random_floats(256 * 256, 1);
  for (const std::size_t n : {5, 256}) {
    Floats out(n * n, std::numeric_limits<float>::quiet_NaN());
    kernels::gemm(stream, Trans::no, Trans::no, n, n, n, a.data(), n, a.data(), n, out.data(), n, Write::overwrite);
    BOOST_TEST(std::isfinite(out[0] + out[n * n - 1]));
    const std::vector<bf16> low = random_of<bf16>(n * n, 2);
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    kernels::gemm(stream, Trans::yes, Trans::no, n, n, n, low.data(), n, low.data(), n, out.data(), n, Write::overwrite);
    BOOST_TEST(std::isfinite(out[0] + out[n * n - 1]));
  }
}

BOOST_AUTO_TEST_CASE(several_threads_at_once_and_repeatable) {
  // In other tests ranks are threads of one process; they share the library for products and its caches.
  std::vector<Floats> out(4, Floats(96 * 160));
  const Floats a = random_floats(96 * 200, 1), b = random_floats(160 * 200, 2);
  {
    std::vector<std::jthread> threads;
    for (Floats& own : out)
      threads.emplace_back([&] {
        CpuStream stream;
        for (int repeat = 0; repeat < 20; ++repeat)
          kernels::gemm(stream, Trans::no, Trans::yes, 96, 160, 200, a.data(), 200, b.data(), 200, own.data(), 160,
                        repeat == 0 ? Write::overwrite : Write::add);
      });
  }
  for (const Floats& other : out) BOOST_TEST((other == out[0]));
}

BOOST_AUTO_TEST_CASE(description_names_the_library) {
  const std::string description = kernels::gemm_description();
  BOOST_TEST((description.starts_with("oneDNN 2.") || description.starts_with("OpenBLAS 0.")), description);
}
