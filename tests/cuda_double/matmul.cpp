// The double's matrix products: all operations, orders and types against sums in double, and arguments that are refused.
#include <cublasLt.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/element.hpp"
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

template <class T>
constexpr cudaDataType_t type_of = CUDA_R_32F;
template <>
constexpr cudaDataType_t type_of<bf16> = CUDA_R_16BF;
template <>
constexpr cudaDataType_t type_of<f16> = CUDA_R_16F;

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasLtGetStatusString(status));
}

/// Small multiples of 1/8, which all types hold exactly, and whose products fp32 adds up exactly.
template <class T>
std::vector<T> numbers(std::size_t n, unsigned seed) {
  std::vector<T> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = T((static_cast<float>(seed >> 27) - 16.0f) / 8.0f);
  }
  return x;
}

struct Matrix {
  Matrix(cudaDataType_t type, std::size_t rows_, std::size_t columns_, bool by_row_, std::size_t padding = 0, int batches = 1)
      : rows(rows_), columns(columns_), by_row(by_row_), ld((by_row ? columns : rows) + padding) {
    stride = ld * (by_row ? rows : columns) + 3 * padding;
    check(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, static_cast<std::int64_t>(ld)));
    const std::int32_t order = by_row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, count = batches;
    const auto offset = static_cast<std::int64_t>(stride);
    check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset));
    size = stride * static_cast<std::size_t>(batches);
  }
  ~Matrix() { cublasLtMatrixLayoutDestroy(layout); }
  Matrix(const Matrix&) = delete;
  std::size_t index(std::size_t batch, std::size_t r, std::size_t c) const {
    return batch * stride + (by_row ? r * ld + c : c * ld + r);
  }

  std::size_t rows, columns;
  bool by_row;
  std::size_t ld, stride = 0, size = 0;
  cublasLtMatrixLayout_t layout = nullptr;
};

struct Library {
  Library() {
    check(cublasLtCreate(&handle));
    check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    check(cublasLtMatmulPreferenceCreate(&preference));
  }
  ~Library() {
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(product);
    cublasLtDestroy(handle);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value));
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  }

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
};

/// Compares one product with sums in double. All numbers are exact but for the last rounding, to Out.
template <class In, class Out>
void compare(bool transpose_a, bool transpose_b, unsigned rows_first, bool with_bias, float beta, int batches) {
  constexpr std::size_t m = 37, n = 19, k = 23;
  const bool a_by_row = rows_first & 1u, b_by_row = rows_first & 2u, d_by_row = rows_first & 4u;
  const Matrix a(type_of<In>, transpose_a ? k : m, transpose_a ? m : k, a_by_row, 2, batches);
  const Matrix b(type_of<In>, transpose_b ? n : k, transpose_b ? k : n, b_by_row, 5, batches);
  const Matrix d(type_of<Out>, m, n, d_by_row, 1, batches);
  const auto host_a = numbers<In>(a.size, 1), host_b = numbers<In>(b.size, 2);
  const auto host_d = numbers<Out>(d.size, 3), host_bias = numbers<Out>(m, 4);
  const DeviceArray<In> on_a(host_a), on_b(host_b);
  const DeviceArray<Out> on_d(host_d), bias(host_bias);

  Library library;
  library.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
  library.set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
  if (with_bias) {
    library.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
    library.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data()));
  }
  const float alpha = 0.5f;
  const TestStream stream;
  check(cublasLtMatmul(library.handle, library.product, &alpha, on_a.data(), a.layout, on_b.data(), b.layout, &beta,
                       on_d.data(), d.layout, on_d.data(), d.layout, nullptr, nullptr, 0, stream));
  const std::vector<Out> got = on_d.fetch();
  std::vector<Out> want = host_d;  // what lies between columns stays
  for (std::size_t batch = 0; batch < static_cast<std::size_t>(batches); ++batch)
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t l = 0; l < k; ++l)
          sum += static_cast<double>(static_cast<float>(host_a[transpose_a ? a.index(batch, l, i) : a.index(batch, i, l)])) *
                 static_cast<double>(static_cast<float>(host_b[transpose_b ? b.index(batch, j, l) : b.index(batch, l, j)]));
        double value = alpha * sum + beta * static_cast<double>(static_cast<float>(host_d[d.index(batch, i, j)]));
        if (with_bias) value += static_cast<double>(static_cast<float>(host_bias[i]));
        want[d.index(batch, i, j)] = Out(static_cast<float>(value));
      }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < d.size; ++i) wrong += static_cast<float>(got[i]) != static_cast<float>(want[i]);
  BOOST_TEST(wrong == 0u, wrong << " wrong: transposed " << transpose_a << transpose_b << ", rows first " << rows_first
                                << ", bias " << with_bias << ", beta " << beta << ", batches " << batches);
}

template <class In, class Out>
void compare_all() {
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true})
      for (unsigned rows_first = 0; rows_first < 8; ++rows_first)
        for (const float beta : {0.0f, 1.0f, -0.25f}) {
          compare<In, Out>(transpose_a, transpose_b, rows_first, false, beta, 1);
          if (rows_first < 4) compare<In, Out>(transpose_a, transpose_b, rows_first, true, beta, 1);
          if (beta == 1.0f) compare<In, Out>(transpose_a, transpose_b, rows_first, false, beta, 3);
        }
}

/// A product of 8 x 8 matrices of bf16 that is right, for tests that make one thing wrong.
struct Small {
  Matrix a{CUDA_R_16BF, 8, 8, false}, b{CUDA_R_16BF, 8, 8, false}, d{CUDA_R_16BF, 8, 8, false};
  DeviceArray<bf16> memory{std::vector<bf16>(1024, bf16(1.0f))};
  DeviceArray<std::byte> workspace{1 << 20};
  Library library;
  float alpha = 1, beta = 0;
  cublasLtMatmulHeuristicResult_t found{};

  cublasStatus_t search() {
    int count = -1;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.handle, library.product, a.layout, b.layout, d.layout,
                                                                 d.layout, library.preference, 1, &found, &count);
    BOOST_TEST(count == (status == CUBLAS_STATUS_SUCCESS ? 1 : 0));
    return status;
  }
  cublasStatus_t run(const bf16* a_at, bf16* d_at, const cublasLtMatmulAlgo_t* algorithm = nullptr,
                     void* workspace_at = nullptr, std::size_t bytes = 0, cudaStream_t stream = nullptr) {
    return cublasLtMatmul(library.handle, library.product, &alpha, a_at, a.layout, memory.data() + 256, b.layout, &beta,
                          nullptr, d.layout, d_at, d.layout, algorithm, workspace_at, bytes, stream);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(fp32) { compare_all<float, float>(); }
BOOST_AUTO_TEST_CASE(bf16_to_bf16) { compare_all<bf16, bf16>(); }
BOOST_AUTO_TEST_CASE(bf16_to_fp32) { compare_all<bf16, float>(); }
BOOST_AUTO_TEST_CASE(fp16_to_fp16) { compare_all<f16, f16>(); }
BOOST_AUTO_TEST_CASE(fp16_to_fp32) { compare_all<f16, float>(); }

BOOST_AUTO_TEST_CASE(a_found_algorithm_runs) {
  Small small;
  BOOST_TEST(small.search() == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(small.found.workspaceSize == 0u);
  BOOST_TEST(small.run(small.memory.data(), small.memory.data() + 512, &small.found.algo) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(static_cast<float>(small.memory.fetch()[512]) == 8.0f);
  small.library.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 20);
  BOOST_TEST(small.search() == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(small.found.workspaceSize > 0u);
  small.alpha = 2;
  BOOST_TEST(small.run(small.memory.data(), small.memory.data() + 512, &small.found.algo, small.workspace.data(), 1 << 20) ==
             CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(static_cast<float>(small.memory.fetch()[512]) == 16.0f);
}

BOOST_AUTO_TEST_CASE(unaligned_rows_may_have_no_algorithm) {
  ::setenv("FSDP_CUDA_DOUBLE_ALIGNED", "1", 1);
  const Library library;
  const auto count_of = [&](cudaDataType_t type, std::size_t padding) {
    const Matrix a(type, 8, 8, false), d(type, 8, 8, true, padding);
    cublasLtMatmulHeuristicResult_t found{};
    int count = -1;
    check(cublasLtMatmulAlgoGetHeuristic(library.handle, library.product, a.layout, a.layout, d.layout, d.layout,
                                         library.preference, 1, &found, &count));
    return count;
  };
  BOOST_TEST(count_of(CUDA_R_16BF, 0) == 1);
  BOOST_TEST(count_of(CUDA_R_16BF, 1) == 0);
  BOOST_TEST(count_of(CUDA_R_16F, 4) == 0);
  BOOST_TEST(count_of(CUDA_R_16F, 8) == 1);
  BOOST_TEST(count_of(CUDA_R_32F, 1) == 1);
  ::unsetenv("FSDP_CUDA_DOUBLE_ALIGNED");
}

BOOST_AUTO_TEST_CASE(a_handle_takes_memory) {
  const auto free_memory = [] {
    std::size_t free = 0, total = 0;
    test::check(cudaMemGetInfo(&free, &total));
    return free;
  };
  const std::size_t before = free_memory();
  {
    const Library library;
    BOOST_TEST(free_memory() == before - (std::size_t{1} << 20));
  }
  BOOST_TEST(free_memory() == before);
}

BOOST_AUTO_TEST_CASE(c_is_not_read_without_beta) {
  Small small;
  const DeviceArray<bf16> d(64);  // NaN
  BOOST_TEST(cublasLtMatmul(small.library.handle, small.library.product, &small.alpha, small.memory.data(), small.a.layout,
                            small.memory.data(), small.b.layout, &small.beta, d.data(), small.d.layout, d.data(),
                            small.d.layout, nullptr, nullptr, 0, nullptr) == CUBLAS_STATUS_SUCCESS);
  for (const bf16 value : d.fetch()) BOOST_REQUIRE(static_cast<float>(value) == 8.0f);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
  Small small;
  bf16 *at = small.memory.data(), *to = at + 512;
  small.library.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 20);
  BOOST_TEST(small.search() == CUBLAS_STATUS_SUCCESS);
  const cublasLtMatmulAlgo_t* algorithm = &small.found.algo;
  const std::size_t need = small.found.workspaceSize;
  std::byte* workspace = small.workspace.data();
  BOOST_TEST(small.run(nullptr, to) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at, to, algorithm, nullptr, need) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at, to, algorithm, workspace, need - 1) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at, to, algorithm, workspace + 8, need) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at + 8, to, algorithm, workspace, need) == CUBLAS_STATUS_INVALID_VALUE);  // 256 bytes were promised
  BOOST_TEST(small.run(at, to, algorithm, workspace, need) == CUBLAS_STATUS_SUCCESS);
  small.library.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{16});
  BOOST_TEST(small.search() == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(small.run(at + 8, to, algorithm, workspace, need) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(small.run(at, to + 8, algorithm, workspace, need) == CUBLAS_STATUS_INVALID_VALUE);

  small.library.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});  // not what was searched for
  BOOST_TEST(small.run(at, to, algorithm, workspace, need) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(small.run(at, to) == CUBLAS_STATUS_SUCCESS);
  small.library.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
  BOOST_TEST(small.run(at, to) == CUBLAS_STATUS_INVALID_VALUE);  // no bias
  const std::int64_t wide = 1;
  BOOST_TEST(cublasLtMatmulDescSetAttribute(small.library.product, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide) ==
             CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(cublasLtMatmulDescSetAttribute(small.library.product, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4) ==
             CUBLAS_STATUS_INVALID_VALUE);
}

BOOST_AUTO_TEST_CASE(wrong_matrices_are_refused) {
  const auto search = [](const Matrix& a, const Matrix& b, const Matrix& d) {
    const Library library;
    cublasLtMatmulHeuristicResult_t found{};
    int count = -1;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.handle, library.product, a.layout, b.layout, d.layout,
                                                                 d.layout, library.preference, 1, &found, &count);
    BOOST_TEST(count == (status == CUBLAS_STATUS_SUCCESS));
    return status;
  };
  const Matrix a(CUDA_R_16BF, 8, 4, false), b(CUDA_R_16BF, 4, 6, false), d(CUDA_R_16BF, 8, 6, false);
  BOOST_TEST(search(a, b, d) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(search(a, Matrix(CUDA_R_16BF, 5, 6, false), d) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(search(a, b, Matrix(CUDA_R_16BF, 8, 7, false)) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(search(a, b, Matrix(CUDA_R_16BF, 8, 6, false, 0, 2)) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(search(a, b, Matrix(CUDA_R_16F, 8, 6, false)) == CUBLAS_STATUS_NOT_SUPPORTED);
  BOOST_TEST(search(a, Matrix(CUDA_R_16F, 4, 6, false), d) == CUBLAS_STATUS_NOT_SUPPORTED);
  BOOST_TEST(search(Matrix(CUDA_R_16BF, 8, 4, false, ~std::size_t{0}), b, d) == CUBLAS_STATUS_INVALID_VALUE);  // ld 7
}

// --- What ends a process. The cases of the first suite run in children. ---

BOOST_AUTO_TEST_SUITE(child, *boost::unit_test::disabled())

BOOST_AUTO_TEST_CASE(host_matrix) {
  Small small;
  const std::vector<bf16> host(64);
  small.run(host.data(), small.memory.data());
  ::_exit(1);
}

BOOST_AUTO_TEST_CASE(matrix_is_too_short) {
  Small small;
  small.run(small.memory.data(), small.memory.data() + 1024 - 63);
  ::_exit(1);
}

BOOST_AUTO_TEST_CASE(shared_workspace) {
  // Large enough that two streams are in their products at the same time.
  const Matrix square(CUDA_R_32F, 500, 500, false);
  const DeviceArray<float> a(square.size), first(square.size), second(square.size);
  const DeviceArray<std::byte> workspace(1 << 20);
  Library library;
  library.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 20);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(library.handle, library.product, square.layout, square.layout, square.layout,
                                       square.layout, library.preference, 1, &found, &count));
  const TestStream streams[2];
  const float alpha = 1, beta = 0;
  for (int i = 0; i < 20; ++i)
    check(cublasLtMatmul(library.handle, library.product, &alpha, a.data(), square.layout, a.data(), square.layout, &beta,
                         nullptr, square.layout, i % 2 ? first.data() : second.data(), square.layout, &found.algo,
                         workspace.data(), 1 << 20, streams[i % 2]));
  check(cudaDeviceSynchronize());
  ::_exit(1);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(what_cublaslt_would_not_find) {
  const auto dies = [](const char* name, const char* reason) {
    const Ended ended = run_child(std::string("child/") + name);
    BOOST_TEST(ended.by(SIGABRT), name << ": " << ended.text);
    BOOST_TEST(contains(ended.text, reason), name << ": " << ended.text);
  };
  dies("host_matrix", "bytes of A are not in device memory");
  dies("matrix_is_too_short", "bytes of D are not in device memory");
  dies("shared_workspace", "somebody wrote to the workspace");
}
