// libfsdp_cudnn: attention by cuDNN. libfsdp_cuda loads it (kernels/cuda/cudnn_library.hpp).
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/format.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/cudnn/graphs.hpp"

namespace fsdp::kernels {

namespace {

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw CallError(call, cudnnGetErrorString(status));
}

std::string version_text() {
  const std::size_t version = cudnnGetVersion();
  return format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

class CudnnGraphs final : public CudnnAttention {
 public:
  CudnnGraphs() {
    if (cudnnGetVersion() < least_cudnn_version)
      throw UserError(
          format("cuDNN {} is too old (9.11 or newer is needed); install a newer one, or give `attention backend` own",
                 version_text()));
    check(cudnnCreate(&handle_), "cudnnCreate");
  }
  ~CudnnGraphs() override { cudnnDestroy(handle_); }
  CudnnGraphs(const CudnnGraphs&) = delete;

  std::string version() const override { return version_text(); }
  void prepare(DType type, const AttentionShape& shape, std::size_t heads, bool backward) override {
    graph_of(type, shape, heads, backward);
  }
  void forward(cudaStream_t stream, const AttentionForwardCall& call) override {
    execute(stream, graph_of(call.type, call.shape, call.shape.H, false),
            {{cudnn_q, call.q}, {cudnn_k, call.k}, {cudnn_v, call.v}, {cudnn_out, call.out}, {cudnn_lse, call.lse}},
            call.scratch);
  }
  void backward(cudaStream_t stream, const AttentionBackwardCall& call, std::size_t heads) override {
    execute(stream, graph_of(call.type, call.shape, heads, true),
            {{cudnn_q, call.q},
             {cudnn_k, call.k},
             {cudnn_v, call.v},
             {cudnn_out, call.out},
             {cudnn_d_out, call.d_out},
             {cudnn_lse, call.lse},
             {cudnn_dq, call.dq},
             {cudnn_dk, call.dk},
             {cudnn_dv, call.dv}},
            call.scratch);
  }

 private:
  /// All that a graph depends on.
  using Key = std::tuple<DType, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t,
                         std::uint32_t, std::size_t, std::size_t, bool>;

  const frontend::graph::Graph& graph_of(DType type, const AttentionShape& s, std::size_t heads, bool backward) {
    const Key key(type, s.B, s.T, s.H, s.K, s.D, s.q_stride, s.kv_stride, s.window, s.scaled_by, heads, backward);
    if (const auto found = graphs_.find(key); found != graphs_.end()) return *found->second;
    auto graph = std::make_shared<frontend::graph::Graph>();
    describe_attention(*graph, type, s, heads, backward);
    const std::size_t planned = backward ? cudnn_workspace(s) : cudnn_forward_workspace;
    std::size_t needed = 0;
    try {
      needed = build_cudnn_graph(*graph, handle_);
    } catch (const CallError& error) {
      throw UserError(
          format("cuDNN {} does not take attention with {} heads of {} numbers and {} tokens ({}); give "
                 "`attention backend` own",
                 version_text(), heads, s.D, s.T, error.what()));
    }
    if (needed > planned)
      throw UserError(format(
          "cuDNN {} needs a workspace of {} for attention with {} heads of {} numbers and {} tokens, and the plan has {}; "
          "install another cuDNN, or give `attention backend` own",
          version_text(), format_bytes(static_cast<double>(needed)), s.H, s.D, s.T,
          format_bytes(static_cast<double>(planned))));
    return *graphs_.emplace(key, std::move(graph)).first->second;
  }

  void execute(cudaStream_t stream, const frontend::graph::Graph& graph,
               std::initializer_list<std::pair<std::int64_t, const void*>> tensors, void* workspace) {
    std::unordered_map<std::int64_t, void*> pointers;
    for (const auto& [id, data] : tensors) pointers.emplace(id, const_cast<void*>(data));
    check(cudnnSetStream(handle_, stream), "cudnnSetStream");
    check_cudnn(graph.execute(handle_, pointers, workspace), "launching attention of cuDNN");
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<Key, std::shared_ptr<frontend::graph::Graph>> graphs_;
};

}  // namespace

}  // namespace fsdp::kernels

extern "C" [[gnu::visibility("default")]] const fsdp::kernels::CudnnLibrary* fsdp_cudnn_library() {
  static const fsdp::kernels::CudnnLibrary library = {FSDP_VERSION, []() -> std::unique_ptr<fsdp::kernels::CudnnAttention> {
                                                        return std::make_unique<fsdp::kernels::CudnnGraphs>();
                                                      }};
  return &library;
}
