// Compares every kernel of kernels.hpp on a GPU with the same kernel on the CPU, in fp32, bf16 and fp16, for odd widths and for
// multiples of 8, whose rows are moved 16 bytes at a time. The GPU is real, or the double of CUDA (cuda_double/). Products and
// attention, which have separate code on the GPU, are also compared.
#include <boost/mpl/list.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "device/memory_view.hpp"
#include "kernels/layers.hpp"
#include "kernels/plain_attention.hpp"
#include "kernels/quantized.hpp"
#include "support.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::Trans;
using kernels::Write;

namespace {

using Types = boost::mpl::list<float, bf16, f16>;

constexpr std::size_t B = 3, T = 13, R = B * T, H = 6;
std::size_t C, F, V = 1, D;

/// Calls `test` with odd widths, and with widths for which all arrays are aligned to 16 bytes.
template <class Test>
void at_both_widths(Test test) {
  C = 613, F = 131, V = 57, D = 10;
  test();
  C = 616, F = 136, V = 64, D = 16;
  test();
}

/// The relative error of one rounding to this type; for fp32 of a few, because sums have another order.
template <class E>
constexpr double rounding = 1e-6;
template <>
constexpr double rounding<bf16> = 0x1p-8;
template <>
constexpr double rounding<f16> = 0x1p-11;

struct Gpu {
  std::unique_ptr<Device> device = make_device(Threads::of_gpu, 0);
  std::shared_ptr<Stream> stream = device->make_stream();
};
Gpu& gpu() {
  static Gpu one;
  return one;
}

/// The same numbers in the memory of a device.
template <class N>
struct Copy {
  Copy(const std::vector<N>& numbers, Device& device, Stream& on)
      : size(numbers.size()), buffer(device.allocate((size + 1) * sizeof(N))), stream(&on) {
    if (size > 0) view().write(0, std::as_bytes(std::span(numbers)));
  }
  MemoryView view() const { return MemoryView(std::span(buffer.data(), size * sizeof(N)), *stream); }
  N* data() const { return reinterpret_cast<N*>(buffer.data()); }
  std::vector<N> fetch() const {
    std::vector<N> numbers(size);
    if (size > 0) view().read(0, std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }
  std::size_t size;
  Buffer buffer;
  Stream* stream;
};

template <class E>
using Call = std::function<void(Stream&, E* x, float* f, float* scratch, const std::int32_t* tokens)>;

/// `call` gets `n` numbers x of type E and `m` floats f, the same on both devices, reads some of them and writes others; then
/// all are compared. Differences are relative to the largest number written. `roundings`: how many times results may be rounded
/// to E.
template <class E>
void compare(const std::string& name, std::size_t n, std::size_t m, double roundings, const Call<E>& call) {
  static const std::shared_ptr<Stream> host = make_host_stream();
  const auto cpu = make_cpu_device();
  const Floats numbers = random_floats(n, 1), floats = random_floats(m, 2);
  std::vector<E> x;
  for (const float number : numbers) x.push_back(E(number));
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < R; ++i) tokens.push_back(i % 7 == 3 ? 2 : static_cast<std::int32_t>(i * 5 % V));
  const auto run = [&](Device& device, Stream& stream) {
    const Copy<E> on_x(x, device, stream);
    const Copy<float> on_f(floats, device, stream), scratch(Floats(1 << 20), device, stream);
    const Copy<std::int32_t> on_tokens(tokens, device, stream);
    on_stream(stream, [&] { call(stream, on_x.data(), on_f.data(), scratch.data(), on_tokens.data()); });
    return std::pair(on_x.fetch(), on_f.fetch());
  };
  const auto here = run(*cpu, *host), there = run(*gpu().device, *gpu().stream);
  bool changed = false;
  const auto error = [&](const auto& got, const auto& want, const auto& start) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double a = static_cast<float>(got[i]), b = static_cast<float>(want[i]);
      if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
      difference = std::max(difference, std::abs(a - b));
      if (static_cast<float>(want[i]) == static_cast<float>(start[i])) continue;
      changed = true;
      size = std::max(size, std::abs(b));
    }
    return size > 0 ? difference / size : difference;
  };
  const double of_x = error(there.first, here.first, x), of_f = error(there.second, here.second, floats);
  BOOST_TEST_MESSAGE(name << ", " << name_of(dtype_of<E>) << ": " << of_x << ", " << of_f);
  BOOST_TEST(changed, name << " wrote something");
  BOOST_TEST(of_x <= roundings * rounding<E>, name << ": " << of_x);
  BOOST_TEST(of_f <= std::max(1.0, roundings) * rounding<E>, name << ": " << of_f);
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(products, E, Types) {
  const std::size_t m = 37, n = 61, k = 93, lda = 101, ldo = 67;
  for (const Trans ta : {Trans::no, Trans::yes})
    for (const Trans tb : {Trans::no, Trans::yes})
      for (const Write write : {Write::overwrite, Write::add}) {
        compare<E>("gemm", 3 * lda * lda, 0, 3, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
          kernels::gemm(s, ta, tb, m, n, k, x, lda, x + lda * lda, lda, x + 2 * lda * lda, ldo, write);
        });
        compare<E>("gemm to fp32", 2 * lda * lda, lda * lda, 1, [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
          kernels::gemm(s, ta, tb, m, n, k, x, lda, x + lda * lda, lda, f, ldo, write);
        });
      }
  for (const kernels::Gelu form : {kernels::Gelu::tanh, kernels::Gelu::erf}) {
    compare<E>("gemm, bias, gelu", m * k + n * k + n + 2 * m * n, 0, 4,
               [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
                 E *const b = x + m * k, *const bias = b + n * k, *const pre = bias + n;
                 kernels::gemm_bias_gelu<E>(s, form, Trans::yes, m, n, k, x, b, bias, pre, pre + m * n);
               });
    compare<E>("gemm, gelu backward", m * k + n * k + 2 * m * n, 0, 4,
               [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
                 E *const b = x + m * k, *const pre = b + n * k;
                 kernels::gemm_gelu_backward<E>(s, form, Trans::no, m, n, k, x, b, pre, pre + m * n);
               });
  }
}

// A GPU rounds such a result once, so it is compared with sums in fp32.
BOOST_AUTO_TEST_CASE_TEMPLATE(products_with_epilogues, E, Types) {
  using Kind = kernels::Epilogue::Kind;
  constexpr std::size_t m = 40, n = 64, k = 96, ld = 104, matrix = ld * ld;
  const auto takes = [&](std::size_t ld_of_a, std::size_t offset_of_b, std::size_t offset_of_operand) {
    const Copy<E> x(std::vector<E>(4 * matrix + 8), *gpu().device, *gpu().stream);
    bool taken = false;
    on_stream(*gpu().stream, [&] {
      taken = kernels::gemm_with_epilogue(*gpu().stream, {Kind::bias, x.data() + offset_of_operand}, Trans::no, Trans::no, m, n,
                                          k, x.data() + matrix, ld_of_a, x.data() + 2 * matrix + offset_of_b, ld,
                                          x.data() + 3 * matrix, ld, Write::overwrite);
    });
    return taken;
  };
  BOOST_TEST(takes(ld, 0, 0) == (sizeof(E) == 2));
  BOOST_TEST(!takes(101, 0, 0));
  BOOST_TEST(!takes(ld, 1, 0));
  BOOST_TEST(!takes(ld, 0, 1));
  if constexpr (sizeof(E) == 2) {
    for (const Trans ta : {Trans::no, Trans::yes})
      for (const Trans tb : {Trans::no, Trans::yes}) {
        const auto a_at = [=](const E* a, std::size_t i, std::size_t j) {
          return a[ta == Trans::yes ? j * ld + i : i * ld + j];
        };
        const auto b_at = [=](const E* b, std::size_t i, std::size_t j) {
          return b[tb == Trans::yes ? j * ld + i : i * ld + j];
        };
        for (const Kind kind : {Kind::bias, Kind::gelu_gradient})
          compare<E>(
              kind == Kind::bias ? "gemm with bias" : "gemm with the gradient of GELU", 4 * matrix, 0, 2,
              [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
                E *const b = x + matrix, *const operand = b + matrix, *const out = operand + matrix;
                if (kernels::gemm_with_epilogue(s, {kind, operand}, ta, tb, m, n, k, x, ld, b, ld, out, ld, Write::overwrite))
                  return;
                expect(s.kernels() == nullptr, "the GPU takes the product");
                for (std::size_t i = 0; i < m; ++i)
                  for (std::size_t j = 0; j < n; ++j) {
                    float sum = 0;
                    for (std::size_t l = 0; l < k; ++l) sum += float(a_at(x, i, l)) * float(b_at(b, l, j));
                    const float pre = operand[i * ld + j];
                    if (kind == Kind::bias)
                      sum += operand[j];
                    else
                      kernels::gelu_backward<float>(s, kernels::Gelu::tanh, &sum, &sum, &pre, 1);
                    out[i * ld + j] = E(sum);
                  }
              });
        for (const Kind kind : {Kind::sums_of_a, Kind::sums_of_b})
          for (const Write write : {Write::overwrite, Write::add})
            compare<E>("gemm with sums of an operand", 2 * matrix, matrix + ld, 1,
                       [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
                         E* const b = x + matrix;
                         float* const sums = f + matrix;
                         if (kernels::gemm_with_epilogue(s, {kind, sums}, ta, tb, m, n, k, x, ld, b, ld, f, ld, write)) return;
                         expect(s.kernels() == nullptr, "the GPU takes the product");
                         kernels::gemm(s, ta, tb, m, n, k, x, ld, b, ld, f, ld, write);
                         for (std::size_t i = 0; i < (kind == Kind::sums_of_a ? m : n); ++i) {
                           sums[i] = 0;
                           for (std::size_t l = 0; l < k; ++l)
                             sums[i] += kind == Kind::sums_of_a ? a_at(x, i, l) : b_at(b, l, i);
                         }
                       });
      }
  }
}

// Any bytes are the codes of a matrix, so the floats are one.
BOOST_AUTO_TEST_CASE_TEMPLATE(quantized_matrices, E, Types) {
  const kernels::MatrixShape shape{129, 43};
  for (const kernels::Quantization kind : {kernels::Quantization::int8, kernels::Quantization::nf4})
    for (const Range rows : {Range{0, 129}, Range{64, 128}, Range{128, 129}})
      compare<E>(format("{} matrix", kernels::name_of(kind)), shape.numel(), 4096, 1,
                 [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
                   kernels::dequantize(s, kind, shape, f, {rows.begin * 43, rows.end * 43}, x);
                 });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(embeddings, E, Types) {
  at_both_widths([] {
    compare<E>("embedding", (R + V + T) * C, 0, 1, [](Stream& s, E* x, float*, float*, const std::int32_t* tokens) {
      kernels::embedding_forward<E>(s, x, tokens, x + R * C, x + (R + V) * C, B, T, C);
    });
    for (const Write write : {Write::overwrite, Write::add})
      compare<E>("embedding backward", R * C, (V + T + 2) * C, 1,
                 [=](Stream& s, E* x, float* f, float*, const std::int32_t* tokens) {
                   kernels::embedding_backward(s, f, x, tokens, R, C, V, write);
                   kernels::position_backward(s, f + V * C, x, B, T, C, T + 2, write);
                 });
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(norms, E, Types) {
  at_both_widths([] {
    for (const Write write : {Write::overwrite, Write::add}) {
      compare<E>("layer norm", (4 * R + 2) * C, 2 * R + 2 * C, 3,
                 [=](Stream& s, E* x, float* f, float* scratch, const std::int32_t*) {
                   E *const y = x + R * C, *const dx = y + R * C, *const dy = dx + R * C, *const gain = dy + R * C;
                   kernels::layer_norm_forward(s, y, f, x, gain, gain + C, R, C, 1e-5f);
                   kernels::layer_norm_backward(s, dx, write, f + 2 * R, f + 2 * R + C, write, dy, x, f, gain, R, C, scratch);
                 });
      compare<E>("rms norm", (4 * R + 1) * C, R + C, 3, [=](Stream& s, E* x, float* f, float* scratch, const std::int32_t*) {
        E *const y = x + R * C, *const dx = y + R * C, *const dy = dx + R * C, *const gain = dy + R * C;
        kernels::rms_norm_forward(s, y, f, x, gain, R, C, 1e-5f);
        kernels::rms_norm_backward(s, dx, write, f + R, write, dy, x, f, gain, R, C, scratch);
      });
      compare<E>("norm of heads", 2 * R * C + R * H * D + D, R * H + D, 3,
                 [=](Stream& s, E* x, float* f, float* scratch, const std::int32_t*) {
                   E *const before = x + 2 * R * C, *const gain = before + R * H * D;
                   kernels::head_norm_forward(s, x, before, f, gain, R, H, D, C, 1e-5f);
                   kernels::head_norm_backward(s, x + R * C, f + R * H, write, before, f, gain, R, H, D, C, scratch);
                 });
    }
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(pointwise, E, Types) {
  at_both_widths([] {
    const kernels::DropoutMask mask = kernels::dropout_mask(0.3f, 5, 2, 7, 11, T);
    compare<E>("dropout", 2 * R * C, 0, 1,
               [=](Stream& s, E* x, float*, float*, const std::int32_t*) { kernels::dropout(s, x, x + R * C, R, C, mask); });
    compare<E>("bias", R * C + C, C, 1, [](Stream& s, E* x, float* f, float* scratch, const std::int32_t*) {
      kernels::add_bias(s, x, x + R * C, R, C);
      kernels::bias_backward(s, f, x, R, C - 3, C, Write::add, scratch);
    });
    compare<E>("residual", 3 * R * C + C, 0, 1, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
      kernels::add_residual<E>(s, x, x + R * C, x + 2 * R * C, x + 3 * R * C, R, C, mask);
    });
    for (const kernels::Gelu form : {kernels::Gelu::tanh, kernels::Gelu::erf})
      compare<E>("gelu", 4 * R * F + F, 0, 3, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
        kernels::bias_gelu_forward<E>(s, form, x, x + R * F, x + 4 * R * F, R, F);
        kernels::gelu_backward(s, form, x + 2 * R * F, x + 3 * R * F, x + R * F, R * F);
      });
    compare<E>("relu", 4 * R * F + F, 0, 1, [](Stream& s, E* x, float*, float*, const std::int32_t*) {
      kernels::bias_relu_forward<E>(s, x, x + R * F, x + 4 * R * F, R, F);
      kernels::relu_backward(s, x + 2 * R * F, x + 3 * R * F, x + R * F, R * F);
    });
    compare<E>("sigmoid, multiply", 8 * R * F + F, 0, 2, [](Stream& s, E* x, float*, float*, const std::int32_t*) {
      const std::size_t n = R * F;
      kernels::bias_sigmoid_forward<E>(s, x, x + n, x + 8 * n, R, F);
      kernels::sigmoid_backward(s, x + 2 * n, x + 3 * n, x + n, n);
      kernels::multiply(s, x + 4 * n, x + 5 * n, x + 6 * n, n, Write::overwrite);
      kernels::multiply(s, x + 7 * n, x + 5 * n, x + 6 * n, n, Write::add);
    });
    compare<E>("swiglu", 6 * R * F, 0, 2, [](Stream& s, E* x, float*, float*, const std::int32_t*) {
      const std::size_t n = R * F;
      kernels::swiglu_forward(s, x, x + n, x + 2 * n, n);
      kernels::swiglu_backward(s, x + 3 * n, x + 4 * n, x + 5 * n, x + n, x + 2 * n, n);
    });
    compare<E>("convert, clip, zero", 3 * R * C, 2 * R * C, 0, [](Stream& s, E* x, float* f, float*, const std::int32_t*) {
      kernels::convert(s, x, f, R * C);
      kernels::convert(s, f + R * C, x + R * C, R * C);
      kernels::clip_values(s, f, R * C - 1, 0.25f);
      kernels::fill_zero(s, x + 2 * R * C, R * C - 1);
    });
    compare<E>("columns", 2 * R * C, 0, 0, [](Stream& s, E* x, float*, float*, const std::int32_t*) {
      kernels::copy_columns(s, x + 3, C, x + R * C, C, R, C - 5);
    });
    for (const bool inverse : {false, true})
      compare<E>("rope", R * C, T * D, 1, [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
        kernels::rope(s, x, B, T, H, D, D, C, f, D, inverse);
      });
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(attention, E, Types) {
  struct Case {
    std::size_t b, t, heads, kv_heads, head;
  };
  for (const auto& [b, t, heads, kv_heads, head] :
       {Case{2, 1, 1, 1, 8}, Case{2, 45, 4, 2, 10}, Case{1, 77, 3, 1, 40}, Case{2, 129, 2, 2, 64}, Case{1, 65, 2, 1, 128}})
    for (const float rate : {0.0f, 0.2f}) {
      const std::size_t width = (heads + 2 * kv_heads) * head, rows = b * t, k = heads * head, v = k + kv_heads * head;
      const kernels::AttentionShape shape = {b, t, heads, kv_heads, head, width, width};
      const kernels::DropoutMask mask = kernels::dropout_mask(rate, 5, 2, 7, 11, t);
      // Probabilities, and in the backward pass their gradients, may be rounded before they are multiplied.
      compare<E>(format("attention, T {}, D {}", t, head), rows * (2 * width + 2 * k), rows * heads, 8,
                 [=](Stream& s, E* x, float* f, float* scratch, const std::int32_t*) {
                   E *const d = x + rows * width, *const out = d + rows * width, *const d_out = out + rows * k;
                   kernels::attention_forward(s, out, f, x, x + k, x + v, shape, scratch, mask);
                   kernels::attention_backward(s, d, d + k, d + v, d_out, out, f, x, x + k, x + v, shape, scratch, mask);
                 });
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(attention_with_stored_scores, E, Types) {
  const std::size_t rows = 9, keys = 131;
  for (const bool masked : {false, true})
    compare<E>("softmax of scores", 2 * rows * keys + keys, 2 * rows * keys, 3,
               [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
                 E* const mask = x + 2 * rows * keys;
                 kernels::fill_zero(s, mask, keys / 3);
                 kernels::score_softmax<E>(s, x, f, {rows, keys, keys - 5, masked ? mask : nullptr, 1}, 0.7f);
                 kernels::score_softmax_backward<E>(s, x + rows * keys, f + rows * keys, x, rows, keys, 0.7f);
               });
  compare<E>("rotary table", 1, 40 * 12, 1, [](Stream& s, E*, float* f, float*, const std::int32_t*) {
    kernels::RotaryFrequencies frequencies = {{}, 6};
    for (std::size_t i = 0; i < 6; ++i) frequencies.value[i] = 1 / static_cast<float>(i + 1);
    kernels::rotary_table(s, f, 40, frequencies, dtype_of<E>);
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(losses, E, Types) {
  at_both_widths([] {
    for (const std::size_t alignment : {1, 32})
      compare<E>("cross entropy", R * round_up(V, alignment), 5 * R, 3,
                 [=](Stream& s, E* x, float* f, float*, const std::int32_t* tokens) {
                   const std::size_t piece = 32;
                   const kernels::Logits<E> logits = {
                       x, reinterpret_cast<kernels::SoftmaxStats*>(f + R), tokens, R, V, piece, alignment};
                   for (std::size_t begin = 0; begin < V; begin += piece) kernels::cross_entropy(s, f, logits, begin);
                   for (std::size_t begin = 0; begin < V; begin += piece) kernels::logit_gradient(s, logits, begin, 0.5f);
                 });
    for (const std::size_t piece : {V, round_up((V + 1) / 2, 32)})
      compare<E>("loss and gradient", R * round_up(V, 32), 5 * R, 3,
                 [=](Stream& s, E* x, float* f, float*, const std::int32_t* tokens) {
                   kernels::loss_and_gradient<E>(
                       s, f, {x, reinterpret_cast<kernels::SoftmaxStats*>(f + R), tokens, R, V, piece, 32}, 0.5f);
                 });
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(layers_of_users, E, Types) {
  at_both_widths([] {
    const std::size_t n = R * F;
    compare<E>("silu, tanh", 8 * n, 0, 2, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
      kernels::silu_forward<E>(s, x, x + n, R, F);
      kernels::silu_backward(s, x + 2 * n, x + 3 * n, x + n, n);
      kernels::tanh_forward<E>(s, x + 4 * n, x + 5 * n, R, F);
      kernels::tanh_backward(s, x + 6 * n, x + 7 * n, x + 5 * n, n);
    });
    for (const auto form : {kernels::SoftmaxForm::probabilities, kernels::SoftmaxForm::logarithms})
      compare<E>("softmax", 4 * n, 0, 2, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
        kernels::softmax_forward(s, form, x, x + n, R, F);
        kernels::softmax_backward(s, form, x + 2 * n, x + 3 * n, x + n, R, F);
      });
    compare<E>("swiglu of columns", 6 * n, 0, 2, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
      E *const gate = x + n, *const up = gate + F, *const d_gate = x + 3 * n, *const d_up = d_gate + F;
      kernels::swiglu_rows_forward<E>(s, {x, F}, {gate, 2 * F}, {up, 2 * F}, R, F);
      kernels::swiglu_rows_backward<E>(s, {d_gate, 2 * F}, {d_up, 2 * F}, {x + 5 * n, F}, {gate, 2 * F}, {up, 2 * F}, R, F);
    });
    compare<E>("positions, transpose", 4 * n + T * F, 0, 1, [=](Stream& s, E* x, float*, float*, const std::int32_t*) {
      kernels::add_positions(s, x, x + n, x + 4 * n, R, T, F);
      kernels::transpose_rows(s, x + 2 * n, x + 3 * n, R, 8, F / 8);
    });
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(losses_of_users, E, Types) {
  at_both_widths([] {
    const std::size_t n = R * F;
    const auto of_numbers = [=](const char* name, auto call) {
      compare<E>(name, 2 * n, R + n + F, 1, [=](Stream& s, E* x, float* f, float*, const std::int32_t*) {
        call(s, kernels::LossRows<E>{f, x, x + n, f + R, R, F, 0.5f}, f + R + n);
      });
    };
    of_numbers("squared error", [](Stream& s, const auto& rows, const float*) { kernels::squared_error(s, rows); });
    of_numbers("absolute error", [](Stream& s, const auto& rows, const float*) { kernels::absolute_error(s, rows); });
    of_numbers("huber", [](Stream& s, const auto& rows, const float*) { kernels::huber_error(s, rows, 0.75f, 2); });
    of_numbers("binary cross entropy",
               [](Stream& s, const auto& rows, const float* w) { kernels::binary_cross_entropy(s, rows, w); });
    of_numbers("binary cross entropy without weights",
               [](Stream& s, const auto& rows, const float*) { kernels::binary_cross_entropy(s, rows, nullptr); });
    for (const bool backward : {false, true})
      compare<E>("weights of classes", R * V, 5 * R + V, 3, [=](Stream& s, E* x, float* f, float*, const std::int32_t* tokens) {
        const kernels::Logits<E> logits = {x, reinterpret_cast<kernels::SoftmaxStats*>(f + R), tokens, R, V, V, 1};
        kernels::cross_entropy(s, f, logits, 0);
        kernels::weigh_classes(s, f, logits, f + 5 * R, {0.1f, 1e-2f}, backward, 0.5f);
      });
  });
}

BOOST_AUTO_TEST_CASE(initial_numbers_have_the_same_bits) {
  at_both_widths([] {
    compare<float>("initial", R * C, 0, 0, [](Stream& s, float* x, float*, float*, const std::int32_t*) {
      kernels::fill_normal(s, x, R * C - 1, 77, 3, 9, 0.5f, 0.02f);
      kernels::fill_constant(s, x + R * C - 1, 1, 3);
    });
  });
}

// Also for pinned memory, which streams copy asynchronously.
BOOST_AUTO_TEST_CASE(a_view_has_copied_when_it_returns) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  Device& device = *gpu().device;
  const std::shared_ptr<Stream> stream = device.make_stream();
  const Buffer from = device.allocate(bytes), to = device.allocate(bytes), there = device.allocate(bytes),
               here = device.allocate_staging(bytes);
  const auto keep_busy = [&] {
    for (int i = 0; i < 30; ++i) stream->copy(to.data(), from.data(), bytes);
  };
  const MemoryView view(std::span(there.data(), bytes), *stream);
  std::memset(here.data(), 1, bytes);
  keep_busy();
  view.write(0, std::span(here.data(), bytes));
  std::memset(here.data(), 2, bytes);
  keep_busy();
  view.read(0, std::span(here.data(), bytes));
  BOOST_TEST((here.data()[0] == std::byte{1} && here.data()[bytes - 1] == std::byte{1}));
}

// Measures the time of the work between two marks.
BOOST_AUTO_TEST_CASE(work_is_timed) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  Device& device = *gpu().device;
  const std::shared_ptr<Stream> stream = device.make_stream();
  const Buffer from = device.allocate(bytes), to = device.allocate(bytes);
  const std::int64_t before_ns = now_ns();
  stream->begin_marks(true);
  std::int64_t begin = 0, end = 0;
  on_stream(*stream, [&] {
    begin = stream->mark();
    for (int i = 0; i < 20; ++i) stream->copy(to.data(), from.data(), bytes);
    end = stream->mark();
  });
  BOOST_TEST(stream->marks_later());
  BOOST_TEST(stream->time_of(begin) >= before_ns);
  BOOST_TEST(stream->time_of(end) > stream->time_of(begin));
  stream->begin_marks(false);
}

BOOST_AUTO_TEST_CASE(a_stream_that_goes_has_done_its_work) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  Device& device = *gpu().device;
  const Buffer zeros = device.allocate(bytes), there = device.allocate(bytes), here = device.allocate_staging(bytes);
  std::memset(here.data(), 1, bytes);
  {
    const std::shared_ptr<Stream> stream = device.make_stream(StreamUse::communication);  // it has no memory of its own
    for (int i = 0; i < 200; ++i) stream->copy(there.data(), zeros.data(), bytes);
    stream->copy(here.data(), there.data(), bytes);
  }
  BOOST_TEST((here.data()[0] == std::byte{0} && here.data()[bytes - 1] == std::byte{0}));
}
