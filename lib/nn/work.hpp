// The floating-point operations and memory traffic of a Transformer's stages for one micro-batch. Matrix products count as
// floating-point operations. All other kernels that nn/block.cpp calls count by the bytes that they read and write; so does the
// expansion of quantized matrices before each product.
#pragma once

#include <vector>

#include "nn/model.hpp"

namespace fsdp {

class Transformer;

/// The operations, and the bytes read and written in device memory. `product_outputs` is the sum of 2 M N over the products of
/// an M x K by a K x N matrix, whose FLOPs are 2 M N K: the time of a product has a part that does not depend on K.
/// `attention_tokens` and `head_size` are the sequence length and head size of the attention FLOPs.
struct Cost {
  double product_flops = 0, product_outputs = 0, attention_forward_flops = 0, attention_backward_flops = 0, fp32_flops = 0,
         memory_bytes = 0;
  std::size_t attention_tokens = 0, head_size = 0;
  double launches = 0;  // of kernels by the host, if it limits the operation; 0 in fsdp: for other programs
};

class StageWork {
 public:
  /// trained[p] is true if parameter p is trained. The model must outlive this object.
  StageWork(const Transformer& model, const std::vector<bool>& trained, BatchShape shape, DType type);

  Cost embedding_forward() const;
  Cost forward(std::size_t block) const;
  /// The forward pass without the block's last matrix product and the addition to the residual stream. `in_pieces`: backward()
  /// computes the MLP again instead.
  Cost recompute(std::size_t block, bool in_pieces) const;
  Cost recompute_cheap() const;
  Cost backward(std::size_t block, bool in_pieces) const;
  Cost embedding_backward() const;
  Cost head() const;

 private:
  Cost mlp_again() const;
  double numbers(double per_row) const { return R_ * per_row * size_; }
  double attention(std::size_t block) const;
  double activation() const;
  double heads() const;
  double biases() const;

  const TransformerConfig& c_;
  const double R_;
  const std::size_t T_;
  const double size_;
  std::vector<double> matrices_, trained_matrices_;  // elements of the weight matrices of each stage
  std::vector<double> inputs_, outputs_;             // of the products with these matrices, per row
  std::vector<double> expansion_, last_expansion_;   // bytes for the quantized matrices of each stage, and for the last of them
};

}  // namespace fsdp
