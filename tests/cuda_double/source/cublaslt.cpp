// Matrix products. The opaque structs of callers are the structs of this file.
#include "cublasLt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/element.hpp"
#include "double.hpp"

struct cublasLtContext {
  int device;
};

namespace fsdp::cuda_double {

namespace {

constexpr std::size_t workspace_of_algorithm = std::size_t{64} * 1024;
constexpr std::uint32_t default_alignment = 256;

std::atomic<std::uint64_t> asked = 0;

std::size_t library_memory() {
  static const std::size_t bytes = environment_number("FSDP_CUDA_DOUBLE_CUBLASLT_MEMORY", std::size_t{1} << 20);
  return bytes;
}

/// A matrix whose columns begin `ld` elements apart.
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t ld;

  std::size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  /// Returns true if tensor cores take it: its columns begin at multiples of 16 bytes.
  bool is_aligned() const { return type == CUDA_R_32F || static_cast<std::size_t>(ld) * element_bytes() % 16 == 0; }
  std::size_t index(std::size_t row, std::size_t column) const { return column * static_cast<std::size_t>(ld) + row; }
  std::size_t bytes() const { return (index(rows - 1, columns - 1) + 1) * element_bytes(); }  // to the end of the last element
};

struct Product {
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::byte *vector = nullptr, *aux = nullptr;  // the operands of epilogues
  std::int64_t aux_ld = 0;

  /// The operand of the epilogue; null if it has none.
  std::byte* operand() const {
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT ? nullptr : epilogue == CUBLASLT_EPILOGUE_DGELU ? aux : vector;
  }
  std::uint32_t operand_alignment() const {
    const auto address = reinterpret_cast<std::uintptr_t>(operand());
    return address == 0 ? 1 : static_cast<std::uint32_t>(address & -address);
  }
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reduction_schemes = 7;
  std::array<std::uint32_t, 4> alignment = {default_alignment, default_alignment, default_alignment, default_alignment};
};

struct Algorithm {
  std::uint64_t problem = 0, workspace = 0;
  std::uint32_t reversed = 0;  // 1: adds the terms of a sum in reverse order, and so gives other bits
  std::array<std::uint32_t, 4> alignment = {1, 1, 1, 1};  // of A, B, C, D
  std::uint32_t operand_alignment = 1;                    // of the epilogue
};

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) && sizeof(Product) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
              sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

Layout& open(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }
Product& open(cublasLtMatmulDesc_t product) { return *reinterpret_cast<Product*>(product); }
Preference& open(cublasLtMatmulPreference_t preference) { return *reinterpret_cast<Preference*>(preference); }

/// Sets a field from an attribute's value.
template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

/// A product with its matrices; C's and D's elements are of one type and size.
struct Problem {
  Product product;
  Layout a, b, c, d;

  std::size_t m() const { return d.rows; }
  std::size_t n() const { return d.columns; }
  std::size_t k() const { return product.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }

  cublasStatus_t check() const {
    const auto is_shape = [](const Layout& x, bool transposed, std::size_t rows, std::size_t columns) {
      return x.rows == (transposed ? columns : rows) && x.columns == (transposed ? rows : columns);
    };
    for (const Layout* x : {&a, &b, &c, &d})
      if (x->rows == 0 || x->columns == 0 || x->ld < static_cast<std::int64_t>(x->rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_shape(a, product.transpose_a == CUBLAS_OP_T, m(), k()) ||
        !is_shape(b, product.transpose_b == CUBLAS_OP_T, k(), n()) || !is_shape(c, false, m(), n()))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || c.type != d.type || (d.type != CUDA_R_32F && d.type != a.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (product.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (environment_number("FSDP_CUDA_DOUBLE_EPILOGUES", 1) == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!product.operand()) return CUBLAS_STATUS_INVALID_VALUE;
    switch (product.epilogue) {
      case CUBLASLT_EPILOGUE_DGELU:
        if (d.type == CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
        return product.aux_ld % 8 == 0 && product.aux_ld >= static_cast<std::int64_t>(d.rows) &&
                       product.operand_alignment() >= 16
                   ? CUBLAS_STATUS_SUCCESS
                   : CUBLAS_STATUS_INVALID_VALUE;
      case CUBLASLT_EPILOGUE_BIAS:
      case CUBLASLT_EPILOGUE_BGRADA:
      case CUBLASLT_EPILOGUE_BGRADB:
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  /// The bytes of the epilogue's operand.
  std::size_t operand_bytes() const {
    if (product.epilogue == CUBLASLT_EPILOGUE_DGELU) return Layout{d.type, d.rows, d.columns, product.aux_ld}.bytes();
    return (product.epilogue == CUBLASLT_EPILOGUE_BGRADB ? n() : m()) * d.element_bytes();
  }

  /// A number that differs for problems that may need different algorithms.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (const Layout* layout : {&a, &b, &c, &d}) {
      add(static_cast<std::uint64_t>(layout->type));
      add(layout->rows);
      add(layout->columns);
    }
    add(static_cast<std::uint64_t>(product.transpose_a * 2 + product.transpose_b));
    add(product.epilogue);
    add(static_cast<std::uint64_t>(product.aux_ld));
    return hash;
  }
};

float read(cudaDataType_t type, const std::byte* data, std::size_t index) {
  if (type == CUDA_R_32F) return reinterpret_cast<const float*>(data)[index];
  if (type == CUDA_R_16BF) return reinterpret_cast<const bf16*>(data)[index];
  return reinterpret_cast<const f16*>(data)[index];
}

void write(cudaDataType_t type, std::byte* data, std::size_t index, float value) {
  if (type == CUDA_R_32F)
    reinterpret_cast<float*>(data)[index] = value;
  else if (type == CUDA_R_16BF)
    reinterpret_cast<bf16*>(data)[index] = bf16(value);
  else
    reinterpret_cast<f16*>(data)[index] = f16(value);
}

/// Returns op(x), as rows of floats.
std::vector<float> unpack(const Layout& layout, bool transposed, const std::byte* data) {
  const std::size_t rows = transposed ? layout.columns : layout.rows, columns = transposed ? layout.rows : layout.columns;
  std::vector<float> values(rows * columns);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c)
      values[r * columns + c] = read(layout.type, data, transposed ? layout.index(c, r) : layout.index(r, c));
  return values;
}

struct Operands {
  const std::byte *a, *b, *c;
  std::byte* d;
  float alpha, beta;
};

/// The derivative of 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
float gelu_slope(double x) {
  const double scale = 0.7978845608028654, t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x));
}

/// Overwrites the sums of BGRADA or BGRADB: over k of op(A)[count,k] or op(B)[k,count].
void write_sums(const Problem& problem, const std::vector<float>& values, std::size_t count, std::size_t along_count,
                std::size_t along_k, bool reversed) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (std::size_t term = 0; term < problem.k(); ++term)
      sum += values[i * along_count + (reversed ? problem.k() - 1 - term : term) * along_k];
    write(problem.d.type, problem.product.vector, i, sum);
  }
}

void multiply(const Problem& problem, const Operands& operands, bool reversed) {
  const std::size_t m = problem.m(), n = problem.n(), k = problem.k();
  const std::vector<float> a = unpack(problem.a, problem.product.transpose_a == CUBLAS_OP_T, operands.a);
  const std::vector<float> b = unpack(problem.b, problem.product.transpose_b == CUBLAS_OP_T, operands.b);
  if (problem.product.epilogue == CUBLASLT_EPILOGUE_BGRADA) write_sums(problem, a, m, k, 1, reversed);
  if (problem.product.epilogue == CUBLASLT_EPILOGUE_BGRADB) write_sums(problem, b, n, 1, n, reversed);
  std::vector<float> sums(n);
  for (std::size_t i = 0; i < m; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (std::size_t term = 0; term < k; ++term) {
      const std::size_t j = reversed ? k - 1 - term : term;
      const float factor = a[i * k + j];
      const float* row = b.data() + j * n;
      for (std::size_t l = 0; l < n; ++l) sums[l] += factor * row[l];
    }
    for (std::size_t l = 0; l < n; ++l) {
      float value = operands.alpha * sums[l];
      if (operands.beta != 0) value += operands.beta * read(problem.c.type, operands.c, problem.c.index(i, l));
      if (problem.product.epilogue == CUBLASLT_EPILOGUE_BIAS) value += read(problem.d.type, problem.product.vector, i);
      if (problem.product.epilogue == CUBLASLT_EPILOGUE_DGELU)
        value *=
            gelu_slope(read(problem.d.type, problem.product.aux, l * static_cast<std::size_t>(problem.product.aux_ld) + i));
      write(problem.d.type, operands.d, problem.d.index(i, l), value);
    }
  }
}

/// Fills the workspace with unique bytes while a product runs.
class WorkspaceInUse {
 public:
  WorkspaceInUse(void* begin, std::size_t bytes, unsigned stamp) : begin_(static_cast<unsigned char*>(begin)), bytes_(bytes) {
    stamp_ = static_cast<unsigned char>(stamp);
    std::memset(begin_, stamp_, bytes_);
  }
  ~WorkspaceInUse() {
    if (std::any_of(begin_, begin_ + bytes_, [this](unsigned char byte) { return byte != stamp_; }))
      die("cublasLtMatmul: somebody wrote to the workspace while the product ran (two streams may share it, or it overlaps "
          "something) give each stream its own");
  }
  WorkspaceInUse(const WorkspaceInUse&) = delete;

 private:
  unsigned char *begin_, stamp_;
  std::size_t bytes_;
};

void expect_on_device(const char* name, const void* data, std::size_t bytes) {
  const Place place = place_of(data, bytes);
  if (place != Place::device && place != Place::pinned)
    die(std::string("cublasLtMatmul: the ") + std::to_string(bytes) + " bytes of " + name + " are not in device memory");
}

}  // namespace

}  // namespace fsdp::cuda_double

using namespace fsdp::cuda_double;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was used as an argument";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    default:
      return "another status";
  }
}
std::uint64_t fsdp::cuda_double::algorithms_asked_for() { return asked; }

std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (device_count() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (has_failed || !take_memory(current_device(), library_memory())) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasLtContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return_memory(handle->device, library_memory());
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t, cudaDataType_t) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  Product& p = open(product);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(p.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(p.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(p.vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(p.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(p.aux_ld, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(open(preference).workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(open(preference).reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(open(preference).alignment[static_cast<std::size_t>(attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)],
                 value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  ++asked;
  const Problem problem{open(product), open(a), open(b), open(c), open(d)};
  if (const cublasStatus_t status = problem.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  if (environment_number("FSDP_CUDA_DOUBLE_ALIGNED", 0) != 0)
    for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d})
      if (!layout->is_aligned()) return CUBLAS_STATUS_SUCCESS;
  for (; *count < std::min(most, 2); ++*count) {
    const Algorithm algorithm{.problem = problem.fingerprint(),
                              .workspace = std::min<std::uint64_t>(open(preference).workspace, workspace_of_algorithm),
                              .reversed = static_cast<std::uint32_t>(*count),
                              .alignment = open(preference).alignment,
                              .operand_alignment = problem.product.operand_alignment()};
    cublasLtMatmulHeuristicResult_t& result = found[*count] = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = algorithm.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* opaque_algorithm, cublasLtMatmulHeuristicResult_t* result) {
  const Problem problem{open(product), open(a), open(b), open(c), open(d)};
  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), opaque_algorithm, sizeof algorithm);
  if (algorithm.problem != problem.fingerprint() || algorithm.reversed > 1) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = algorithm.workspace;
  return problem.check();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* opaque_algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t handle_of_stream) {
  if (in_host_function || has_failed) return CUBLAS_STATUS_EXECUTION_FAILED;
  const Problem problem{open(product), open(a_layout), open(b_layout), open(c_layout), open(d_layout)};
  if (const cublasStatus_t status = problem.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  Operands operands{static_cast<const std::byte*>(a), static_cast<const std::byte*>(b),  static_cast<const std::byte*>(c),
                    static_cast<std::byte*>(d),       *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};

  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), opaque_algorithm, sizeof algorithm);
  if (algorithm.problem != problem.fingerprint()) return CUBLAS_STATUS_INVALID_VALUE;
  const std::array<const void*, 4> pointers = {a, b, c, d};
  const std::array<const Layout*, 4> layouts = {&problem.a, &problem.b, &problem.c, &problem.d};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t alignment = std::max<std::size_t>(algorithm.alignment[i], layouts[i]->element_bytes());
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % alignment != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (problem.product.operand_alignment() < algorithm.operand_alignment) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.workspace > workspace_bytes || (algorithm.workspace > 0 && !workspace) ||
      reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::shared_ptr<CUstream_st> stream = find_stream(handle_of_stream);
  if (!stream || device_of(*stream) != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;

  expect_on_device("A", a, problem.a.bytes());
  expect_on_device("B", b, problem.b.bytes());
  expect_on_device("D", d, problem.d.bytes());
  if (operands.beta != 0) expect_on_device("C", c, problem.c.bytes());
  if (problem.product.operand()) expect_on_device("the epilogue's operand", problem.product.operand(), problem.operand_bytes());
  if (algorithm.workspace > 0) expect_on_device("the workspace", workspace, algorithm.workspace);
  give(stream,
       [problem, operands, workspace, bytes = algorithm.workspace, reversed = algorithm.reversed](std::minstd_rand& dice) {
         static const std::size_t slow = environment_number("FSDP_CUDA_DOUBLE_SLOW_ALGORITHM", 2);
         if (reversed == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
         if (bytes == 0) return multiply(problem, operands, reversed != 0);
         const WorkspaceInUse in_use(workspace, bytes, static_cast<unsigned>(dice() % 256));
         multiply(problem, operands, reversed != 0);
       });
  return CUBLAS_STATUS_SUCCESS;
}
