// Convolutions and pooling as layers. They support fp32, bf16 and fp16 on CPUs and GPUs. An image is one row of height * width
// * channels numbers, channels last (torch.channels_last): the channels of pixel (y, x) begin at number (y * width + x) *
// channels. So an image is also height * width positions of `channels` numbers.
#pragma once

#include <cstddef>

#include "layers/layer.hpp"

namespace fsdp {

/// The sizes of an image.
struct ImageShape {
  std::size_t height = 1, width = 1, channels = 1;  // in pixels, and numbers per pixel
};

/// The windows of a convolution: squares of kernel * kernel pixels, `stride` apart. `padding` pixels of 0 are added on each
/// side of the image. An image of height h has (h + 2 * padding - kernel) / stride + 1 rows of windows, rounded down.
struct WindowOptions {
  std::size_t kernel = 1;
  std::size_t stride = 1;
  std::size_t padding = 0;
  bool bias = true;              // a parameter, added to each output channel
  float standard_deviation = 0;  // of the initial weight; 0: 1/sqrt(kernel * kernel * channels)
};
/// The windows of pooling, as in WindowOptions.
struct PoolOptions {
  std::size_t kernel = 1;   // in pixels
  std::size_t stride = 0;   // 0: the kernel
  std::size_t padding = 0;  // at most half of the kernel
};
/// The outputs of convolutions and pooling are images of this shape. Throws UserError if there is no window.
ImageShape windows_of(const ImageShape& image, std::size_t out_channels, const WindowOptions& options);
ImageShape windows_of(const ImageShape& image, const PoolOptions& options);

/// torch.nn.Conv2d: y = the weighted sum of the pixels of each window, plus a bias. Parameters: weight[out, kernel, kernel,
/// channels] and bias[out]. The weight of PyTorch is weight.permute(0, 2, 3, 1). A convolution with stride = kernel and no
/// padding embeds patches, as vision transformers do. The windows of an image are copied to scratch memory (im2col) and
/// multiplied in one matrix product per image, or for several small images.
LayerPtr conv2d(const ImageShape& image, std::size_t out_channels, const WindowOptions& options = {});
/// torch.nn.Conv1d over `length` positions of `channels` numbers. The weight[out, kernel, channels] of PyTorch is
/// weight.permute(0, 2, 1).
LayerPtr conv1d(std::size_t length, std::size_t channels, std::size_t out_channels, const WindowOptions& options = {});

/// torch.nn.MaxPool2d. Of several largest pixels, the first one receives the gradient. torch.nn.AvgPool2d: padding counts as
/// pixels of 0.
LayerPtr max_pool2d(const ImageShape& image, const PoolOptions& options);
LayerPtr mean_pool2d(const ImageShape& image, const PoolOptions& options);
/// The mean over `positions` positions of `width` numbers: [positions * width] to [width]. For an image this is
/// torch.nn.AdaptiveAvgPool2d(1).
LayerPtr mean_pool(std::size_t positions, std::size_t width);

}  // namespace fsdp
