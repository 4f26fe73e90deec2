// The graphs of causal attention for cuDNN, in the terms of its frontend. The test cudnn.plans also builds them, for a GPU that
// need not exist.
#pragma once

#include <cudnn_frontend.h>

#include <cmath>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

namespace frontend = cudnn_frontend;

/// The identifiers of the tensors, for execution.
enum CudnnTensor : std::int64_t {
  cudnn_q = 1,
  cudnn_k,
  cudnn_v,
  cudnn_out,
  cudnn_d_out,
  cudnn_lse,
  cudnn_dq,
  cudnn_dk,
  cudnn_dv
};

/// Throws CallError with cuDNN's message unless the call succeeded.
inline void check_cudnn(frontend::error_t status, const char* call) {
  if (status.is_bad()) throw CallError(call, status.get_message());
}

/// Describes a pass in an empty graph. The other arguments are those of CudnnAttention::prepare(). The statistics are
/// logarithms of sums of exponentials, as in our kernels.
inline void describe_attention(frontend::graph::Graph& graph, DType type, const AttentionShape& shape, std::size_t heads,
                               bool backward) {
  using frontend::DataType_t;
  using Attributes = frontend::graph::Tensor_attributes;
  const auto n = [](std::size_t number) { return static_cast<std::int64_t>(number); };
  const std::int64_t B = n(shape.B), H = n(shape.H), K = n(shape.K), T = n(shape.T), D = n(shape.D), all = n(heads);
  graph.set_io_data_type(type == DType::bf16 ? DataType_t::BFLOAT16 : DataType_t::HALF)
      .set_intermediate_data_type(DataType_t::FLOAT)
      .set_compute_data_type(DataType_t::FLOAT);
  const auto place = [&](auto& tensor, CudnnTensor id, std::int64_t count, std::int64_t row) -> auto& {
    return tensor.set_uid(id).set_dim({B, count, T, D}).set_stride({T * row, D, row, 1});
  };
  const auto place_lse = [&](auto& tensor) -> auto& {
    return tensor.set_uid(cudnn_lse).set_dim({B, H, T, 1}).set_stride({all * T, T, 1, 1}).set_data_type(DataType_t::FLOAT);
  };
  const auto input = [&](CudnnTensor id, std::int64_t count, std::int64_t row) {
    Attributes tensor;
    return graph.tensor(place(tensor, id, count, row));
  };
  const std::int64_t of_queries = n(shape.q_stride), of_keys = n(shape.kv_stride), of_out = all * D;
  const auto q = input(cudnn_q, H, of_queries), k = input(cudnn_k, K, of_keys), v = input(cudnn_v, K, of_keys);
  const auto describe = [&](auto attributes) {
    attributes.set_name("attention")
        .set_attn_scale(1 / std::sqrt(shape.squared_divisor()))
        .set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    // A query attends to the `window` keys that end with its own.
    if (shape.window > 0 && shape.window < shape.T) attributes.set_diagonal_band_left_bound(shape.window);
    return attributes;
  };
  if (!backward) {
    const auto [out, lse] = graph.sdpa(q, k, v, describe(frontend::graph::SDPA_attributes()).set_generate_stats(true));
    place(out->set_output(true), cudnn_out, H, of_out);
    place_lse(lse->set_output(true));
    return;
  }
  const auto out = input(cudnn_out, H, of_out), d_out = input(cudnn_d_out, H, of_out);
  Attributes lse;
  // Without this setting, cuDNN adds up dq by atomics in an order that differs from run to run.
  const auto [dq, dk, dv] =
      graph.sdpa_backward(q, k, v, out, d_out, graph.tensor(place_lse(lse)),
                          describe(frontend::graph::SDPA_backward_attributes()).set_deterministic_algorithm(true));
  place(dq->set_output(true), cudnn_dq, H, of_queries);
  place(dk->set_output(true), cudnn_dk, K, of_keys);
  place(dv->set_output(true), cudnn_dv, K, of_keys);
}

/// Compiles the kernels of a graph, and returns the workspace in bytes. `handle` is null if the graph has the properties of
/// a device.
inline std::size_t build_cudnn_graph(frontend::graph::Graph& graph, cudnnHandle_t handle) {
  check_cudnn(graph.validate(), "checking attention for cuDNN");
  check_cudnn(graph.build_operation_graph(handle), "describing attention to cuDNN");
  check_cudnn(graph.create_execution_plans({frontend::HeurMode_t::A}), "choosing a plan of cuDNN");
  check_cudnn(graph.check_support(), "choosing a plan of cuDNN");
  check_cudnn(graph.build_plans(), "building a plan of cuDNN");
  std::int64_t bytes = 0;
  check_cudnn(graph.get_workspace_size(bytes), "reading the workspace of cuDNN");
  return static_cast<std::size_t>(bytes);
}

}  // namespace fsdp::kernels
