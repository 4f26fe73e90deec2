#include "kernels/cuda/gemm.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp::kernels {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CallError(format("cuBLASLt, {}", what), cublasLtGetStatusString(status));
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
using Description =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

/// Describes a row-major matrix [rows, columns] to cuBLASLt as its column-major transpose.
Layout layout_of(DType type, std::size_t rows, std::size_t columns, std::size_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(type), columns, rows, static_cast<std::int64_t>(ld)),
        "creating a matrix layout");
  return Layout(layout);
}

template <class Value>
void describe_by(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value), "describing a product");
}

void set_operand(cublasLtMatmulDesc_t description, Epilogue::Kind epilogue, const void* operand) {
  describe_by(
      description,
      epilogue == Epilogue::Kind::gelu_gradient ? CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER : CUBLASLT_MATMUL_DESC_BIAS_POINTER,
      operand);
}

/// For cuBLASLt, our `b` is the operand A, and the columns of `out` are the rows of D: see describe().
cublasLtEpilogue_t epilogue_of(Epilogue::Kind kind) {
  switch (kind) {
    case Epilogue::Kind::none:
      break;
    case Epilogue::Kind::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::Kind::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::Kind::sums_of_a:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::Kind::sums_of_b:
      return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

struct CudaProducts::Prepared {
  Description description;
  Layout a, b, out;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: the library has no such epilogue
};

CudaProducts::CudaProducts() { check(cublasLtCreate(&handle_), "starting"); }
CudaProducts::~CudaProducts() { cublasLtDestroy(handle_); }

std::string CudaProducts::description() const {
  const std::size_t version = cublasLtGetVersion();
  return format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CudaProducts::Shape CudaProducts::shape_of(const Product& p) {
  return {p.type, p.out_type, p.trans_a, p.trans_b,       p.m,          p.n, p.k, p.lda,
          p.ldb,  p.ldo,      p.write,   p.epilogue.kind, p.alignment()};
}

/// Row-major out = op(a) op(b) is column-major out^T = op(b)^T op(a)^T, so `b` is the left operand of cuBLASLt and `a` the
/// right one.
CudaProducts::Prepared CudaProducts::describe(const Shape& s) {
  Prepared made{};
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "creating a product's description");
  made.description.reset(description);
  const auto operation = [](Trans trans) { return trans == Trans::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  describe_by(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(s.trans_b));
  describe_by(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(s.trans_a));
  if (s.epilogue != Epilogue::Kind::none) {
    describe_by(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(s.epilogue));
    // cuBLASLt derives the operand's alignment from its address. The choice of the algorithm must not depend on the address, so
    // the search gets one that is aligned to 16 bytes and no more.
    set_operand(description, s.epilogue, reinterpret_cast<const void*>(16));
  }
  if (s.epilogue == Epilogue::Kind::gelu_gradient)
    describe_by(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(s.ldo));
  made.a = s.trans_a == Trans::no ? layout_of(s.type, s.m, s.k, s.lda) : layout_of(s.type, s.k, s.m, s.lda);
  made.b = s.trans_b == Trans::no ? layout_of(s.type, s.k, s.n, s.ldb) : layout_of(s.type, s.n, s.k, s.ldb);
  made.out = layout_of(s.out_type, s.m, s.n, s.ldo);
  return made;
}

std::vector<GemmAlgorithm> CudaProducts::suggested(const Shape& s, const Prepared& described, std::size_t workspace_bytes,
                                                   int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "creating a preference");
  const Preference owner(preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "setting a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // If cuBLASLt splits k, it must add the partial sums in fp32. By default, cuBLASLt may first round them to the type of the
  // result.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, std::uint32_t{s.alignment});
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, described.description.get(), described.b.get(), described.a.get(),
                                     described.out.get(), described.out.get(), preference, most, found.data(), &count);
  if (s.epilogue != Epilogue::Kind::none && status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "choosing an algorithm");
  std::vector<GemmAlgorithm> algorithms;
  for (int i = 0; i < count; ++i)
    if (const auto& one = found[static_cast<std::size_t>(i)]; one.state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(std::bit_cast<GemmAlgorithm>(one.algo));
  if (algorithms.empty() && s.epilogue == Epilogue::Kind::none)
    throw CallError("cublasLtMatmulAlgoGetHeuristic",
                    format("no algorithm for a product with m x k x n = {} x {} x {}", s.m, s.k, s.n));
  return algorithms;
}

std::vector<GemmAlgorithm> CudaProducts::suggested(const Product& product, std::size_t workspace_bytes) {
  const Shape shape = shape_of(product);
  constexpr int most = 16;
  return suggested(shape, describe(shape), workspace_bytes, most);
}

void CudaProducts::use(const Product& product, const GemmAlgorithm& algorithm, std::size_t workspace_bytes) {
  const Shape shape = shape_of(product);
  Prepared made = describe(shape);
  made.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  cublasLtMatmulHeuristicResult_t needs{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, made.description.get(), made.b.get(), made.a.get(),
                                                        made.out.get(), made.out.get(), &*made.algorithm, &needs);
  if (status != CUBLAS_STATUS_SUCCESS || needs.workspaceSize > workspace_bytes)
    throw UserError(format("{} cannot use the algorithm for a product with m x k x n = {} x {} x {} ({})", description(),
                           shape.m, shape.k, shape.n,
                           status != CUBLAS_STATUS_SUCCESS
                               ? cublasLtGetStatusString(status)
                               : format("it needs {} bytes of workspace", needs.workspaceSize).c_str()));
  prepared_.insert_or_assign(shape, std::move(made));
}

const CudaProducts::Prepared& CudaProducts::prepare(const Shape& shape, std::size_t workspace_bytes) {
  if (const auto found = prepared_.find(shape); found != prepared_.end()) return found->second;
  Prepared made = describe(shape);
  for (const GemmAlgorithm& first : suggested(shape, made, workspace_bytes, 1))
    made.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(first);
  return prepared_.emplace(shape, std::move(made)).first->second;
}

bool CudaProducts::takes(const Product& p, std::size_t workspace_bytes) {
  if (p.type == DType::f32 || p.alignment() < 16 || (p.lda | p.ldb | p.ldo) % 8 != 0) return false;
  return prepare(shape_of(p), workspace_bytes).algorithm.has_value();
}

void CudaProducts::multiply(cudaStream_t stream, const Product& p, void* workspace, std::size_t workspace_bytes) {
  const Prepared& prepared = prepare(shape_of(p), workspace_bytes);
  expect(prepared.algorithm.has_value(), "the library takes the product with its epilogue");
  if (p.epilogue.kind != Epilogue::Kind::none) set_operand(prepared.description.get(), p.epilogue.kind, p.epilogue.operand);
  const float one = 1, old = p.write == Write::add ? 1 : 0;
  check(cublasLtMatmul(handle_, prepared.description.get(), &one, p.b, prepared.b.get(), p.a, prepared.a.get(), &old, p.out,
                       prepared.out.get(), p.out, prepared.out.get(), &*prepared.algorithm, workspace, workspace_bytes, stream),
        "computing a product");
}

}  // namespace fsdp::kernels
