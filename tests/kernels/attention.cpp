// Attention against double precision with explicit softmax, and its gradients against differences of that reference, on sizes
// around the block of 64 query rows. Tolerance: fp32 sums of up to 200 terms, then exp, relative to the largest value.
#include "documents.hpp"
#include "kernels/threads.hpp"
#include "support.hpp"

#include <cstring>

#include <omp.h>
#include <boost/test/data/test_case.hpp>

using namespace fsdp;
using namespace fsdp::test;
using kernels::AttentionShape;
using kernels::DropoutMask;

namespace {

constexpr double tolerance = 3e-6;

/// Computes out[B,T,H,D] and lse[B,H,T] from q, k, v with the strides of the shape.
struct Reference {
  Doubles out, lse;
};

/// Returns dropout's factors [B,H,T,T], computed from their definition: counter (key / 8, query, head, sequence), 16 bits per
/// key.
Doubles explicit_factors(const DropoutMask& mask, const AttentionShape& s) {
  Doubles factors;
  for (std::size_t b = 0; b < s.B; ++b)
    for (std::size_t h = 0; h < s.H; ++h)
      for (std::size_t t = 0; t < s.T; ++t)
        for (std::size_t j = 0; j < s.T; ++j) {
          const std::uint32_t word =
              philox({static_cast<std::uint32_t>(j / 8), static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(h),
                      mask.first_sequence + static_cast<std::uint32_t>(b)},
                     {mask.key[0], mask.key[1]})[j % 8 / 2];
          const auto bits = static_cast<std::int32_t>(j % 2 ? word >> 16 : word & 0xffff);
          factors.push_back(bits < mask.dropped ? 0 : static_cast<double>(mask.scale));
        }
  return factors;
}

/// Returns the first key that token t of sequence b attends to.
std::size_t first_key(const AttentionShape& s, std::size_t b, std::size_t t) {
  const std::size_t begin = s.positions ? t - static_cast<std::size_t>(s.positions[b * s.T + t]) : 0;
  return s.window > 0 && t + 1 > s.window ? std::max(begin, t + 1 - s.window) : begin;
}

Reference attention(const Doubles& q, const Doubles& k, const Doubles& v, const AttentionShape& s, const Doubles& factors) {
  Reference result{Doubles(s.B * s.T * s.H * s.D), Doubles(s.B * s.H * s.T)};
  for (std::size_t b = 0; b < s.B; ++b)
    for (std::size_t h = 0; h < s.H; ++h)
      for (std::size_t t = 0; t < s.T; ++t) {
        const std::size_t group = h / (s.H / s.K);
        Doubles p(t + 1);
        double total = 0;
        for (std::size_t j = first_key(s, b, t); j <= t; ++j) {
          double score = 0;
          for (std::size_t d = 0; d < s.D; ++d)
            score += q[(b * s.T + t) * s.q_stride + h * s.D + d] * k[(b * s.T + j) * s.kv_stride + group * s.D + d];
          p[j] = std::exp(score / std::sqrt(double{s.squared_divisor()}));
          total += p[j];
        }
        result.lse[(b * s.H + h) * s.T + t] = std::log(total);
        for (std::size_t j = first_key(s, b, t); j <= t; ++j)
          for (std::size_t d = 0; d < s.D; ++d)
            result.out[((b * s.T + t) * s.H + h) * s.D + d] +=
                p[j] / total * factors[((b * s.H + h) * s.T + t) * s.T + j] * v[(b * s.T + j) * s.kv_stride + group * s.D + d];
      }
  return result;
}

/// The textbook backward pass in double.
struct Gradients {
  Doubles dq, dk, dv;
};

Gradients attention_gradients(const Doubles& d_out, const Doubles& q, const Doubles& k, const Doubles& v,
                              const AttentionShape& s, const Doubles& factors) {
  const Reference forward = attention(q, k, v, s, factors);
  Gradients g{Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  const double scale = 1 / std::sqrt(double{s.squared_divisor()});
  for (std::size_t b = 0; b < s.B; ++b)
    for (std::size_t h = 0; h < s.H; ++h)
      for (std::size_t t = 0; t < s.T; ++t) {
        const std::size_t at_q = (b * s.T + t) * s.q_stride + h * s.D, at_out = ((b * s.T + t) * s.H + h) * s.D;
        double delta = 0;
        for (std::size_t d = 0; d < s.D; ++d) delta += d_out[at_out + d] * forward.out[at_out + d];
        for (std::size_t j = first_key(s, b, t); j <= t; ++j) {
          const std::size_t at_k = (b * s.T + j) * s.kv_stride + h / (s.H / s.K) * s.D;
          double score = 0, dp = 0;
          for (std::size_t d = 0; d < s.D; ++d) {
            score += q[at_q + d] * k[at_k + d];
            dp += d_out[at_out + d] * v[at_k + d];
          }
          const double factor = factors[((b * s.H + h) * s.T + t) * s.T + j];
          const double p = std::exp(score * scale - forward.lse[(b * s.H + h) * s.T + t]),
                       ds = p * (factor * dp - delta) * scale;
          for (std::size_t d = 0; d < s.D; ++d) {
            g.dq[at_q + d] += ds * k[at_k + d];
            g.dk[at_k + d] += ds * q[at_q + d];
            g.dv[at_k + d] += p * factor * d_out[at_out + d];
          }
        }
      }
  return g;
}

/// Runs the kernels for one shape. Elements between the heads of a row are marked, and must not change.
struct Run {
  Floats q, k, v, d_out, out, lse, dq, dk, dv;
};

constexpr float mark = 55.0f;

/// Runs in type E, with inputs rounded to E.
template <class E = float>
Run run(const AttentionShape& s, const DropoutMask& mask = {}) {
  CpuStream stream;
  const auto rounded = [](const Floats& x) { return std::vector<E>(x.begin(), x.end()); };
  const auto marked = [](std::size_t n) { return std::vector<E>(n, E(mark)); };
  const std::vector<E> q = rounded(random_floats(s.B * s.T * s.q_stride, 1, 2.0f)),
                       k = rounded(random_floats(s.B * s.T * s.kv_stride, 2, 2.0f)),
                       v = rounded(random_floats(s.B * s.T * s.kv_stride, 3)),
                       d_out = rounded(random_floats(s.B * s.T * s.H * s.D, 4));
  std::vector<E> out = marked(d_out.size()), dq = marked(q.size()), dk = marked(k.size()), dv = marked(v.size());
  Floats lse(s.B * s.H * s.T, mark);
  Floats scratch(kernels::attention_scratch(s, kernels::traits_of_cpu()), std::numeric_limits<float>::quiet_NaN());
  kernels::attention_forward(stream, out.data(), lse.data(), q.data(), k.data(), v.data(), s, scratch.data(), mask);
  kernels::attention_backward(stream, dq.data(), dk.data(), dv.data(), d_out.data(), out.data(), lse.data(), q.data(), k.data(),
                              v.data(), s, scratch.data(), mask);
  const auto floats = [](const std::vector<E>& x) { return Floats(x.begin(), x.end()); };
  return {floats(q), floats(k), floats(v), floats(d_out), floats(out), lse, floats(dq), floats(dk), floats(dv)};
}

void check_marks(const Floats& x, std::size_t width, std::size_t stride) {
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i % stride >= width) BOOST_REQUIRE_EQUAL(x[i], mark);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_reference_gradients_are_those_of_the_reference) {
  const AttentionShape s{2, 5, 4, 2, 3, 4 * 3, 2 * 3 + 1};
  const Doubles q = upcast(random_floats(s.B * s.T * s.q_stride, 1)), k = upcast(random_floats(s.B * s.T * s.kv_stride, 2));
  const Doubles v = upcast(random_floats(s.B * s.T * s.kv_stride, 3)), d_out = upcast(random_floats(s.B * s.T * s.H * s.D, 4));
  for (const float rate : {0.0f, 0.3f}) {
    const Doubles m = explicit_factors(kernels::dropout_mask(rate, 1, 2, 3, 4, s.T), s);
    const Gradients g = attention_gradients(d_out, q, k, v, s, m);
    const Doubles dq = numeric_gradient([&](const Doubles& at) { return dot(attention(at, k, v, s, m).out, d_out); }, q);
    const Doubles dk = numeric_gradient([&](const Doubles& at) { return dot(attention(q, at, v, s, m).out, d_out); }, k);
    const Doubles dv = numeric_gradient([&](const Doubles& at) { return dot(attention(q, k, at, s, m).out, d_out); }, v);
    for (std::size_t i = 0; i < q.size(); ++i) BOOST_REQUIRE_SMALL(g.dq[i] - dq[i], 1e-8);
    for (std::size_t i = 0; i < k.size(); ++i) BOOST_REQUIRE_SMALL(g.dk[i] - dk[i], 1e-8);
    for (std::size_t i = 0; i < v.size(); ++i) BOOST_REQUIRE_SMALL(g.dv[i] - dv[i], 1e-8);
  }
}

enum class Documents { one, several };

template <class E>
void check_against_reference(float rate, double tolerance, Documents documents = Documents::one, std::uint32_t window = 0,
                             std::size_t scaled_by = 0) {
  struct Case {
    std::size_t T, H, K, D, pad;
  };
  for (const auto [T, H, K, D, pad] : std::vector<Case>{{1, 2, 2, 8, 0},
                                                        {5, 3, 1, 10, 0},
                                                        {63, 2, 2, 8, 3},
                                                        {64, 4, 2, 10, 0},
                                                        {65, 2, 1, 64, 0},
                                                        {100, 6, 2, 8, 5},
                                                        {129, 2, 2, 64, 64},
                                                        {200, 1, 1, 33, 0},
                                                        {64, 3, 3, 16, 0},
                                                        {64, 3, 3, 16, 96},
                                                        {97, 2, 2, 32, 0},
                                                        {50, 2, 2, 48, 0},
                                                        {40, 1, 1, 80, 0},
                                                        {60, 1, 1, 128, 0}}) {
    BOOST_TEST_CONTEXT("T " << T << ", H " << H << ", K " << K << ", D " << D) {
      if (documents == Documents::several && (T < 60 || T == 64)) continue;
      AttentionShape s{2, T, H, K, D, H * D + pad, K * D + 2 * pad};
      s.window = window, s.scaled_by = scaled_by;
      const std::vector<std::int32_t> positions = document_positions(s.B, T);
      if (documents == Documents::several) s.positions = positions.data();
      const DropoutMask mask = kernels::dropout_mask(rate, 1, 2, 3, 4, T);
      const Run r = run<E>(s, mask);
      const Doubles m = explicit_factors(mask, s);
      const Doubles Q = upcast(r.q), K_ = upcast(r.k), V = upcast(r.v);
      const Reference want = attention(Q, K_, V, s, m);
      const Gradients g = attention_gradients(upcast(r.d_out), Q, K_, V, s, m);
      BOOST_TEST(relative_error(r.out, want.out) < tolerance);
      BOOST_TEST(relative_error(r.lse, want.lse) < tolerance);
      check_marks(r.dq, H * D, s.q_stride);
      check_marks(r.dk, K * D, s.kv_stride);
      check_marks(r.dv, K * D, s.kv_stride);
      auto own_error = [&](const Floats& got, Doubles reference, std::size_t width, std::size_t stride) {
        Floats own = got;  // without the marks, which would be the largest values
        for (std::size_t i = 0; i < own.size(); ++i)
          if (i % stride >= width) own[i] = 0, reference[i] = 0;
        return relative_error(own, reference);
      };
      if (T > 1) BOOST_TEST(own_error(r.dq, g.dq, H * D, s.q_stride) < 2 * tolerance);  // one token: softmax is constant
      if (T > 1) BOOST_TEST(own_error(r.dk, g.dk, K * D, s.kv_stride) < 2 * tolerance);
      BOOST_TEST(own_error(r.dv, g.dv, K * D, s.kv_stride) < tolerance);
    }
  }
}

BOOST_DATA_TEST_CASE(forward_and_backward, boost::unit_test::data::make({0.0f, 0.1f, 0.5f}), rate) {
  check_against_reference<float>(rate, tolerance);
}

// Results are rounded; with AMX also probabilities and gradients of scores, each by 2^-9.
BOOST_DATA_TEST_CASE(in_bf16, boost::unit_test::data::make({0.0f, 0.1f, 0.5f}), rate) {
  check_against_reference<bf16>(rate, 0.01);
}

BOOST_DATA_TEST_CASE(documents, boost::unit_test::data::make({0.0f, 0.3f}), rate) {
  check_against_reference<float>(rate, tolerance, Documents::several);
  check_against_reference<bf16>(rate, 0.01, Documents::several);
}

// Windows of two keys, around the blocks of 48 and 32 queries, and longer than all sequences.
BOOST_DATA_TEST_CASE(windows, boost::unit_test::data::make({2, 31, 48, 64, 300}), window) {
  for (const Documents documents : {Documents::one, Documents::several}) {
    const auto keys = static_cast<std::uint32_t>(window);
    check_against_reference<float>(0.3f, tolerance, documents, keys, 300);
    check_against_reference<bf16>(0.0f, 0.01, documents, keys);
  }
}

// On the CPU the bits are the same: keys of other documents are not read, and the order of sums does not change.
BOOST_AUTO_TEST_CASE(a_document_is_computed_as_a_sequence_of_its_own) {
  const auto check = [&]<class E>(E) {
    const std::size_t T = 150, H = 4, K = 2, D = 20;
    AttentionShape s{1, T, H, K, D, H * D, K * D};
    const std::vector<std::int32_t> positions = document_positions(1, T);
    s.positions = positions.data();
    const Run whole = run<E>(s);
    CpuStream stream;
    Floats scratch(kernels::attention_scratch(s, kernels::traits_of_cpu()));
    const auto part = [](const Floats& x, std::size_t begin, std::size_t n) {
      return std::vector<E>(x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(begin + n));
    };
    std::size_t documents = 0;
    for (std::size_t begin = 0, end = 0; begin < T; begin = end, ++documents) {
      for (end = begin + 1; end < T && positions[end] != 0;) ++end;
      const std::size_t n = end - begin;
      const AttentionShape alone{1, n, H, K, D, H * D, K * D};
      const auto q = part(whole.q, begin * H * D, n * H * D), k = part(whole.k, begin * K * D, n * K * D),
                 v = part(whole.v, begin * K * D, n * K * D), d_out = part(whole.d_out, begin * H * D, n * H * D);
      std::vector<E> out(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
      Floats lse(H * n);
      kernels::attention_forward(stream, out.data(), lse.data(), q.data(), k.data(), v.data(), alone, scratch.data());
      kernels::attention_backward(stream, dq.data(), dk.data(), dv.data(), d_out.data(), out.data(), lse.data(), q.data(),
                                  k.data(), v.data(), alone, scratch.data());
      const auto same = [&](const std::vector<E>& mine, const Floats& all, std::size_t width) {
        const auto theirs = part(all, begin * width, n * width);
        return std::memcmp(mine.data(), theirs.data(), mine.size() * sizeof(E)) == 0;
      };
      BOOST_TEST(same(out, whole.out, H * D));
      BOOST_TEST(same(dq, whole.dq, H * D));
      BOOST_TEST(same(dk, whole.dk, K * D));
      BOOST_TEST(same(dv, whole.dv, K * D));
    }
    BOOST_TEST(documents > 1);
  };
  check(0.0f);
  check(bf16(0.0f));
  check(f16(0.0f));
}

BOOST_AUTO_TEST_CASE(parts_of_a_fused_matrix) {
  // q, k and v side by side in rows of 3C, as GPT-2's c_attn makes them, and their gradients likewise.
  const std::size_t B = 2, T = 70, H = 3, D = 8, C = H * D;
  const AttentionShape fused{B, T, H, H, D, 3 * C, 3 * C};
  CpuStream stream;
  const Floats qkv = random_floats(B * T * 3 * C, 9), d_out = random_floats(B * T * C, 4);
  Floats out(B * T * C), lse(B * H * T), d_qkv(B * T * 3 * C, mark),
      scratch(kernels::attention_scratch(fused, kernels::traits_of_cpu()));
  kernels::attention_forward(stream, out.data(), lse.data(), qkv.data(), qkv.data() + C, qkv.data() + 2 * C, fused,
                             scratch.data());
  kernels::attention_backward(stream, d_qkv.data(), d_qkv.data() + C, d_qkv.data() + 2 * C, d_out.data(), out.data(),
                              lse.data(), qkv.data(), qkv.data() + C, qkv.data() + 2 * C, fused, scratch.data());
  auto part = [&](const Floats& x, std::size_t which) {
    Doubles own;
    for (std::size_t r = 0; r < B * T; ++r)
      for (std::size_t c = 0; c < C; ++c) own.push_back(static_cast<double>(x[r * 3 * C + which * C + c]));
    return own;
  };
  const AttentionShape dense{B, T, H, H, D, C, C};
  const Gradients g =
      attention_gradients(upcast(d_out), part(qkv, 0), part(qkv, 1), part(qkv, 2), dense, Doubles(B * H * T * T, 1.0));
  for (std::size_t r = 0; r < B * T; ++r)
    for (std::size_t c = 0; c < C; ++c) {
      BOOST_REQUIRE_SMALL(static_cast<double>(d_qkv[r * 3 * C + c]) - g.dq[r * C + c], 1e-5);
      BOOST_REQUIRE_SMALL(static_cast<double>(d_qkv[r * 3 * C + C + c]) - g.dk[r * C + c], 1e-5);
      BOOST_REQUIRE_SMALL(static_cast<double>(d_qkv[r * 3 * C + 2 * C + c]) - g.dv[r * C + c], 1e-5);
    }
}

// Two sequences at once, or one after the other: attention is per sequence, so all bits must agree.
BOOST_AUTO_TEST_CASE(no_cut_of_an_update_changes_a_mask) {
  const std::size_t T = 70, H = 4, K = 2, D = 16;
  const AttentionShape both{2, T, H, K, D, H * D, K * D}, one{1, T, H, K, D, H * D, K * D};
  const Run whole = run(both, kernels::dropout_mask(0.3f, 1, 2, 3, 4, T));
  CpuStream stream;
  Floats scratch(kernels::attention_scratch(one, kernels::traits_of_cpu()));
  for (std::size_t b = 0; b < 2; ++b) {
    const DropoutMask mask = kernels::dropout_mask(0.3f, 1, 2, 3, 4 + b, T);
    const std::size_t q = b * T * H * D, kv = b * T * K * D, lse = b * H * T;
    Floats out(T * H * D), own_lse(H * T), dq(T * H * D), dk(T * K * D), dv(T * K * D);
    kernels::attention_forward(stream, out.data(), own_lse.data(), &whole.q[q], &whole.k[kv], &whole.v[kv], one, scratch.data(),
                               mask);
    kernels::attention_backward(stream, dq.data(), dk.data(), dv.data(), &whole.d_out[q], out.data(), own_lse.data(),
                                &whole.q[q], &whole.k[kv], &whole.v[kv], one, scratch.data(), mask);
    BOOST_TEST(std::equal(out.begin(), out.end(), &whole.out[q]));
    BOOST_TEST(std::equal(own_lse.begin(), own_lse.end(), &whole.lse[lse]));
    BOOST_TEST(std::equal(dq.begin(), dq.end(), &whole.dq[q]));
    BOOST_TEST(std::equal(dk.begin(), dk.end(), &whole.dk[kv]));
    BOOST_TEST(std::equal(dv.begin(), dv.end(), &whole.dv[kv]));
  }
}

// The last tokens of a sequence attend to earlier keys and values, in one call for many tokens or one token at a time with a
// cache. The results are those of the whole sequence, with another order of sums.
BOOST_AUTO_TEST_CASE(tokens_see_what_was_before_them) {
  const std::size_t T = 117, H = 6, K = 2, D = 20, q_stride = 133, kept = 2 * K * D;
  CpuStream stream;
  const auto check = [&]<class E>(E, double tolerance) {
    const auto rounded = [](const Floats& x) { return std::vector<E>(x.begin(), x.end()); };
    const std::vector<E> q = rounded(random_floats(T * q_stride, 1, 2.0f)), kv = rounded(random_floats(T * kept, 2, 2.0f));
    // Uses sequence 1 of two; the other sequence and later tokens must not be read.
    const kernels::CacheShape shape = {2, T + 3};
    std::vector<E> cache(shape.sequences * shape.positions * kept, E(std::nanf("")));
    std::vector<std::int32_t> sequences(T, 1), positions(T);
    for (std::size_t t = 0; t < T; ++t) positions[t] = static_cast<std::int32_t>(t);
    kernels::append_to_cache(stream, cache.data(), shape, kv.data(), T, kept, kept, sequences.data(), positions.data());
    const E* const mine = cache.data() + shape.positions * kept;
    BOOST_TEST(std::memcmp(mine, kv.data(), T * kept * sizeof(E)) == 0);

    const AttentionShape whole{1, T, H, K, D, q_stride, kept};
    std::vector<E> expected(T * H * D), out(T * H * D);
    Floats lse(H * T), scratch(std::max(kernels::attention_forward_scratch(whole, kernels::traits_of_cpu()), T * H * (T + 3)));
    kernels::attention_forward(stream, expected.data(), lse.data(), q.data(), kv.data(), kv.data() + K * D, whole,
                               scratch.data());
    const auto error = [&](std::size_t first) {
      const auto begin = static_cast<std::ptrdiff_t>(first * H * D);
      return relative_error(Floats(out.begin() + begin, out.end()), Doubles(expected.begin() + begin, expected.end()));
    };
    for (const std::size_t past : {0, 1, 16, 50, 115, 116}) {
      const AttentionShape rest{1, T - past, H, K, D, q_stride, kept, past};
      kernels::attention_forward(stream, out.data() + past * H * D, lse.data(), q.data() + past * q_stride, mine, mine + K * D,
                                 rest, scratch.data());
      BOOST_TEST(error(past) < tolerance);
    }
    kernels::cached_attention(stream, out.data(), q.data(), cache.data(), shape, {T, 1, H, K, D, q_stride, kept},
                              sequences.data(), positions.data(), scratch.data());
    BOOST_TEST(error(0) < tolerance);
  };
  check(0.0f, 2e-6);
  check(bf16(0.0f), 2e-2);  // on AMX probabilities are rounded, too
  check(f16(0.0f), 2e-3);
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  const AttentionShape s{2, 100, 4, 2, 16, 64, 32};
  const DropoutMask mask = kernels::dropout_mask(0.1f, 1, 2, 3, 4, s.T);
  omp_set_num_threads(1);
  const Run one = run(s, mask);
  omp_set_num_threads(3);
  const Run three = run(s, mask);
  omp_set_num_threads(1);
  BOOST_TEST((one.out == three.out && one.lse == three.lse && one.dq == three.dq && one.dk == three.dk && one.dv == three.dv));
}
