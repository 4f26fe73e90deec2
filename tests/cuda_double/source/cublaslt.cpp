// Matrix products. The opaque structs of callers are the structs of this file.
#include "cublasLt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/element.hpp"
#include "double.hpp"

struct cublasLtContext {
  std::uint64_t mark;
  int device;
};

namespace fsdp::cuda_double {

namespace {

constexpr std::uint64_t context_mark = 0x636f6e74657874;
constexpr std::size_t workspace_of_algorithm = std::size_t{64} * 1024;
constexpr std::uint32_t default_alignment = 256;

std::atomic<std::uint64_t> asked = 0;

std::size_t library_memory() {
  static const std::size_t bytes = environment_number("FSDP_CUDA_DOUBLE_CUBLASLT_MEMORY", std::size_t{1} << 20);
  return bytes;
}

struct Layout {
  cudaDataType_t type;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::uint64_t rows, columns;
  std::int64_t ld;
  std::int32_t batches = 1;
  std::int64_t stride = 0;

  bool by_row() const { return order == CUBLASLT_ORDER_ROW; }
  bool valid() const {
    return rows > 0 && columns > 0 && ld >= static_cast<std::int64_t>(by_row() ? columns : rows) && batches > 0 &&
           stride >= 0 && (order == CUBLASLT_ORDER_COL || order == CUBLASLT_ORDER_ROW);
  }
  std::size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  /// Whether tensor cores take it: its columns (or rows) begin at multiples of 16 bytes.
  bool is_aligned() const { return type == CUDA_R_32F || static_cast<std::size_t>(ld) * element_bytes() % 16 == 0; }
  std::size_t index(std::size_t row, std::size_t column) const {
    return by_row() ? row * static_cast<std::size_t>(ld) + column : column * static_cast<std::size_t>(ld) + row;
  }
  /// From the first element to behind the last one.
  std::size_t bytes() const {
    return (static_cast<std::size_t>(batches - 1) * static_cast<std::size_t>(stride) + index(rows - 1, columns - 1) + 1) *
           element_bytes();
  }
};

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reduction_schemes = 7;
  std::array<std::uint32_t, 4> alignment = {default_alignment, default_alignment, default_alignment, default_alignment};
};

struct Algorithm {
  std::uint64_t mark = 0x616c676f, problem = 0, workspace = 0;
  std::array<std::uint32_t, 4> alignment = {1, 1, 1, 1};  // of A, B, C, D
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
    const auto is_operation = [](std::int32_t value) { return value == CUBLAS_OP_N || value == CUBLAS_OP_T; };
    const auto is_shape = [](const Layout& x, bool transposed, std::size_t rows, std::size_t columns) {
      return transposed ? x.rows == columns && x.columns == rows : x.rows == rows && x.columns == columns;
    };
    if (!a.valid() || !b.valid() || !c.valid() || !d.valid()) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_operation(product.transpose_a) || !is_operation(product.transpose_b)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_shape(a, product.transpose_a == CUBLAS_OP_T, m(), k()) ||
        !is_shape(b, product.transpose_b == CUBLAS_OP_T, k(), n()) || !is_shape(c, false, m(), n()))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (a.batches != d.batches || b.batches != d.batches || c.batches != d.batches) return CUBLAS_STATUS_INVALID_VALUE;
    if (d.batches > 1 && d.stride == 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (product.compute != CUBLAS_COMPUTE_32F || product.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a.type != b.type || c.type != d.type || (d.type != CUDA_R_32F && d.type != a.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (product.epilogue == CUBLASLT_EPILOGUE_BIAS) {
      if (d.by_row()) return CUBLAS_STATUS_NOT_SUPPORTED;
    } else if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
  }

  /// A number that differs for problems that may need different algorithms.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (const Layout* layout : {&a, &b, &c, &d}) {
      add(static_cast<std::uint64_t>(layout->type));
      add(static_cast<std::uint64_t>(layout->order));
      add(layout->rows);
      add(layout->columns);
    }
    add(static_cast<std::uint64_t>(d.batches));
    add(static_cast<std::uint64_t>(product.transpose_a * 2 + product.transpose_b));
    add(product.epilogue);
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

/// Returns op(x) of one batch, as rows of floats.
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

void multiply(const Problem& problem, const Operands& operands) {
  const std::size_t m = problem.m(), n = problem.n(), k = problem.k();
  const auto* bias = static_cast<const std::byte*>(problem.product.bias);
  const auto in_batch = [](const Layout& layout, auto* data, int batch) {
    return data + static_cast<std::size_t>(batch) * static_cast<std::size_t>(layout.stride) * layout.element_bytes();
  };
  for (int batch = 0; batch < problem.d.batches; ++batch) {
    const std::vector<float> a =
        unpack(problem.a, problem.product.transpose_a == CUBLAS_OP_T, in_batch(problem.a, operands.a, batch));
    const std::vector<float> b =
        unpack(problem.b, problem.product.transpose_b == CUBLAS_OP_T, in_batch(problem.b, operands.b, batch));
    const std::byte* c = operands.beta != 0 ? in_batch(problem.c, operands.c, batch) : nullptr;
    std::byte* d = in_batch(problem.d, operands.d, batch);
    std::vector<float> sums(n);
    for (std::size_t i = 0; i < m; ++i) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::size_t j = 0; j < k; ++j) {
        const float factor = a[i * k + j];
        const float* row = b.data() + j * n;
        for (std::size_t l = 0; l < n; ++l) sums[l] += factor * row[l];
      }
      for (std::size_t l = 0; l < n; ++l) {
        float value = operands.alpha * sums[l];
        if (c) value += operands.beta * read(problem.c.type, c, problem.c.index(i, l));
        if (problem.product.epilogue == CUBLASLT_EPILOGUE_BIAS) value += read(problem.d.type, bias, i);
        write(problem.d.type, d, problem.d.index(i, l), value);
      }
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

bool is_handle(cublasLtHandle_t handle) { return handle && handle->mark == context_mark; }

const char* text_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was used as an argument";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality is not supported";
  }
  return "unknown status";
}

}  // namespace

}  // namespace fsdp::cuda_double

using namespace fsdp::cuda_double;

const char* cublasGetStatusString(cublasStatus_t status) { return text_of(status); }
const char* cublasLtGetStatusString(cublasStatus_t status) { return text_of(status); }
std::uint64_t fsdp::cuda_double::algorithms_asked_for() { return asked; }

std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (device_count() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (has_failed || !take_memory(current_device(), library_memory())) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasLtContext{context_mark, current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!is_handle(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->mark = 0;
  return_memory(handle->device, library_memory());
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute, cudaDataType_t scale) {
  if (!product) return CUBLAS_STATUS_INVALID_VALUE;
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (!product) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(open(product).transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(open(product).transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(open(product).epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(open(product).bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{.type = type, .rows = rows, .columns = columns, .ld = ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return set(open(layout).order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(open(layout).batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(open(layout).stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
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
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
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

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  if (!is_handle(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!product || !a || !b || !c || !d || !preference || !found || !count || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  ++asked;
  const Problem problem{open(product), open(a), open(b), open(c), open(d)};
  if (const cublasStatus_t status = problem.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  if (environment_number("FSDP_CUDA_DOUBLE_ALIGNED", 0) != 0)
    for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d})
      if (!layout->is_aligned()) return CUBLAS_STATUS_SUCCESS;
  const Algorithm algorithm{.problem = problem.fingerprint(),
                            .workspace = std::min<std::uint64_t>(open(preference).workspace, workspace_of_algorithm),
                            .alignment = open(preference).alignment};
  found[0] = {};
  std::memcpy(&found[0].algo, &algorithm, sizeof algorithm);
  found[0].workspaceSize = algorithm.workspace;
  found[0].state = CUBLAS_STATUS_SUCCESS;
  found[0].wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* opaque_algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t handle_of_stream) {
  if (!is_handle(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (in_host_function || has_failed) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!product || !a_layout || !b_layout || !c_layout || !d_layout || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem{open(product), open(a_layout), open(b_layout), open(c_layout), open(d_layout)};
  if (const cublasStatus_t status = problem.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  const bool adds_bias = problem.product.epilogue == CUBLASLT_EPILOGUE_BIAS;
  Operands operands{static_cast<const std::byte*>(a), static_cast<const std::byte*>(b),  static_cast<const std::byte*>(c),
                    static_cast<std::byte*>(d),       *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  if (!a || !b || !d || (operands.beta != 0 && !c) || (adds_bias && !problem.product.bias)) return CUBLAS_STATUS_INVALID_VALUE;

  Algorithm algorithm{.problem = problem.fingerprint()};
  if (opaque_algorithm) {
    const std::uint64_t mark = algorithm.mark;
    std::memcpy(static_cast<void*>(&algorithm), opaque_algorithm, sizeof algorithm);
    if (algorithm.mark != mark || algorithm.problem != problem.fingerprint()) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::array<const void*, 4> pointers = {a, b, c, d};
  const std::array<const Layout*, 4> layouts = {&problem.a, &problem.b, &problem.c, &problem.d};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t alignment = std::max<std::size_t>(algorithm.alignment[i], layouts[i]->element_bytes());
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % alignment != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.workspace > workspace_bytes || (algorithm.workspace > 0 && !workspace) ||
      reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::shared_ptr<CUstream_st> stream = find_stream(handle_of_stream);
  if (!stream || device_of(*stream) != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;

  expect_on_device("A", a, problem.a.bytes());
  expect_on_device("B", b, problem.b.bytes());
  expect_on_device("D", d, problem.d.bytes());
  if (operands.beta != 0) expect_on_device("C", c, problem.c.bytes());
  if (adds_bias) expect_on_device("the bias", problem.product.bias, problem.m() * problem.d.element_bytes());
  if (algorithm.workspace > 0) expect_on_device("the workspace", workspace, algorithm.workspace);
  give(stream, [problem, operands, workspace, bytes = algorithm.workspace](std::minstd_rand& dice) {
    if (bytes == 0) return multiply(problem, operands);
    const WorkspaceInUse in_use(workspace, bytes, static_cast<unsigned>(dice() % 256));
    multiply(problem, operands);
  });
  return CUBLAS_STATUS_SUCCESS;
}
