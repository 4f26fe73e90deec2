// The library's losses. All support fp32, bf16 and fp16 on CPUs and GPUs; numeric targets are fp32 in all cases. The loss of a
// step, and of evaluate(), is the mean over all rows that count, on all ranks. PyTorch gives the same number with
// reduction="mean" if one process has all rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/layer.hpp"

namespace fsdp {

/// The terms and weights of cross_entropy().
struct CrossEntropyOptions {
  double label_smoothing = 0;        // from 0 to below 1 (Szegedy et al. 2016); only in training
  double z_loss = 0;                 // adds z_loss log(sum(exp(x)))^2 (Chowdhery et al. 2022); only in training
  std::vector<float> weight = {};    // of each class, from 0 to 2^20; empty: all are 1
  std::int32_t ignore_index = -100;  // rows with this label do not count, nor do rows with a negative label
};
/// -log softmax(x)[label] of each row of logits. With class weights, a row counts as the weight of its label: the mean is
/// divided by the sum of these weights, as in torch.nn.CrossEntropyLoss(weight=..., label_smoothing=...).
LossPtr cross_entropy(std::size_t classes, double label_smoothing = 0, double z_loss = 0);
LossPtr cross_entropy(std::size_t classes, CrossEntropyOptions options);
/// These losses are the mean over the columns of a row; d = x - target. mean_squared_error: d^2. l1_loss: |d|. huber_loss: d^2
/// / 2 if |d| <= delta, else delta (|d| - delta / 2) (Huber 1964). smooth_l1_loss: huber_loss with delta = beta, divided by
/// beta.
LossPtr mean_squared_error(std::size_t width);
LossPtr l1_loss(std::size_t width);
LossPtr huber_loss(std::size_t width, double delta = 1);
LossPtr smooth_l1_loss(std::size_t width, double beta = 1);
/// -(w target log(s) + (1 - target) log(1 - s)) with s = sigmoid(x), and w = pos_weight[column], or 1 if pos_weight is empty.
/// Targets are from 0 to 1.
LossPtr binary_cross_entropy_with_logits(std::size_t width, std::vector<float> pos_weight = {});

}  // namespace fsdp
