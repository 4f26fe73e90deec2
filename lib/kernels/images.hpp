// Operations on windows of images: unfolding for convolutions, and pooling. An image is a row of height * width * channels
// numbers, channels last, as in torch.channels_last. Letters as in kernels.hpp.
#pragma once

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// The windows of an image, in `rows` rows of `columns` windows. A window has kernel_height * kernel_width pixels. Pixels
/// outside the image are padding. All windows include at least one pixel of the image.
struct Windows {
  std::size_t height, width, channels;
  std::size_t kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width;
  std::size_t rows, columns;

  constexpr std::size_t image() const { return height * width * channels; }
  constexpr std::size_t count() const { return rows * columns; }
  constexpr std::size_t pixels() const { return kernel_height * kernel_width; }
};

/// The image columns of a convolution (im2col): to[R, windows, kernel_height, kernel_width, channels] receives the pixels of
/// each window, and 0 for padding.
template <class E>
void unfold(Stream& stream, E* to, const E* images, std::size_t R, const Windows& windows);
/// The backward pass of unfold(): each pixel of d_images receives the sum over all windows that include it, row by row and
/// from left to right in the kernel. sums[R, image()] is fp32 memory for these sums; it may be d_images if E is float.
template <class E>
void fold(Stream& stream, E* d_images, float* sums, const E* from, std::size_t R, const Windows& windows);
/// y[R, windows, channels] = the largest pixel of each window; a NaN counts as the largest. places[R, windows, channels]
/// receives its place in the window, row by row; of equal pixels it is the first.
template <class E>
void max_pool(Stream& stream, E* y, std::uint16_t* places, const E* images, std::size_t R, const Windows& windows);
/// The backward pass, with the places of max_pool(). `sums` as in fold().
template <class E>
void max_pool_backward(Stream& stream, E* d_images, float* sums, const E* dy, const std::uint16_t* places, std::size_t R,
                       const Windows& windows);
/// y[R, windows, channels] = the mean of each window, in which padding counts as 0. sums[R, windows, channels] is fp32 memory,
/// which may be y if E is float.
template <class E>
void mean_pool(Stream& stream, E* y, float* sums, const E* images, std::size_t R, const Windows& windows);
/// The backward pass. `sums` as in fold().
template <class E>
void mean_pool_backward(Stream& stream, E* d_images, float* sums, const E* dy, std::size_t R, const Windows& windows);

}  // namespace fsdp::kernels
