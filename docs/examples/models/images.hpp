// Layers that libfsdp does not have: convolutions and pooling, for vision_transformer.cpp and residual_network.cpp. Copy this
// file into your program. The layers work in fp32, bf16 and fp16, on CPUs.
//
// An image is one row of height * width * channels numbers, channels last (torch.channels_last): the channels of pixel (y, x)
// begin at number (y * width + x) * channels. So an image is also height * width positions of `channels` numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

namespace vision {

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

/// The windows of an image along one axis.
struct Axis {
  std::size_t size, kernel, stride, padding;
  std::size_t windows() const { return (size + 2 * padding - kernel) / stride + 1; }
};

/// The windows of an image: y.windows() rows of x.windows() windows.
struct Windows {
  Windows(Axis y_, Axis x_, std::size_t channels_) : y(y_), x(x_), channels(channels_) {
    for (const Axis& axis : {y, x})
      if (axis.size == 0 || channels == 0 || axis.kernel == 0 || axis.stride == 0 || axis.kernel > axis.size + 2 * axis.padding)
        throw fsdp::UserError("windows of " + std::to_string(axis.kernel) + " pixels do not fit into " +
                              std::to_string(axis.size) + " pixels with a padding of " + std::to_string(axis.padding) +
                              ", or a size or the stride is 0; correct the sizes");
  }
  std::size_t pixels() const { return y.size * x.size; }
  std::size_t count() const { return y.windows() * x.windows(); }
  std::size_t area() const { return y.kernel * x.kernel; }

  /// Calls each(place, pixel) for the places of the kernel at which the window has a pixel of the image, not padding.
  template <class Each>
  void of_window(std::size_t window, Each each) const {
    for (std::size_t place = 0; place < area(); ++place) {
      // Before the image, these differences wrap to huge numbers.
      const std::size_t py = window / x.windows() * y.stride + place / x.kernel - y.padding;
      const std::size_t px = window % x.windows() * x.stride + place % x.kernel - x.padding;
      if (py < y.size && px < x.size) each(place, py * x.size + px);
    }
  }
  /// Calls each(window, place) for all windows that include the pixel.
  template <class Each>
  void of_pixel(std::size_t pixel, Each each) const {
    for (std::size_t place = 0; place < area(); ++place) {
      const std::size_t top = pixel / x.size + y.padding - place / x.kernel;  // of the window; as above
      const std::size_t left = pixel % x.size + x.padding - place % x.kernel;
      if (top % y.stride == 0 && top / y.stride < y.windows() && left % x.stride == 0 && left / x.stride < x.windows())
        each(top / y.stride * x.windows() + left / x.stride, place);
    }
  }

  Axis y, x;
  std::size_t channels;
};

class Convolution final : public fsdp::Layer {
 public:
  /// The weight has the shape [out, kernel_shape..., channels].
  Convolution(const Windows& windows, fsdp::Shape weight, const WindowOptions& options)
      : w(windows), weight_(weight), O(weight[0]), n(w.area() * w.channels), options_(options) {
    if (O == 0) throw fsdp::UserError("a convolution has 0 output channels; correct out_channels");
  }
  std::vector<fsdp::LayerParameter> parameters() const override {
    const float deviation =
        options_.standard_deviation > 0 ? options_.standard_deviation : 1 / std::sqrt(static_cast<float>(n));
    std::vector<fsdp::LayerParameter> all = {{"weight", weight_, fsdp::normal(deviation)}};
    if (options_.bias) all.push_back({"bias", {O}, fsdp::constant(0)});
    return all;
  }
  std::size_t inputs() const override { return w.pixels() * w.channels; }
  std::size_t outputs() const override { return w.count() * O; }
  std::size_t scratch() const override { return w.count() * n; }  // the numbers of all windows (im2col)
  bool works_in(fsdp::DType) const override { return true; }

  void forward(const fsdp::ForwardPass& pass) const override {
    const std::size_t rows = pass.rows() * w.count();
    fsdp::ops::linear(pass, unfolded(pass), pass.parameter(0), options_.bias ? pass.parameter(1) : fsdp::Tensor(),
                      pass.y.reshaped(rows, O));
  }
  void backward(const fsdp::BackwardPass& pass) const override {
    const std::size_t rows = pass.rows() * w.count();
    const fsdp::Tensor dy = pass.dy.reshaped(rows, O), columns = pass.scratch.reshaped(rows, n);
    const fsdp::Tensor d_weight = pass.gradient(0), d_bias = options_.bias ? pass.gradient(1) : fsdp::Tensor();
    fsdp::ops::linear_backward(pass, unfolded(pass), pass.parameter(0), dy, {}, d_weight, d_bias);
    if (!pass.dx) return;
    fsdp::ops::linear_backward(pass, columns, pass.parameter(0), dy, columns, {}, {});
    std::vector<float> sums(w.channels);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t pixel = 0; pixel < w.pixels(); ++pixel) {
        sums.assign(w.channels, 0);
        w.of_pixel(pixel, [&](std::size_t window, std::size_t place) {
          const std::size_t row = r * w.count() + window, first = place * w.channels;
          for (std::size_t c = 0; c < w.channels; ++c) sums[c] += columns.get(row, first + c);
        });
        for (std::size_t c = 0; c < w.channels; ++c) pass.dx.set(r, pixel * w.channels + c, sums[c]);
      }
  }

 private:
  /// Writes each window of each image to a row of scratch memory.
  fsdp::Tensor unfolded(const fsdp::Pass& pass) const {
    const fsdp::Tensor to = pass.scratch.reshaped(pass.rows() * w.count(), n);
    fsdp::ops::fill_zero(pass, to);
    for (std::size_t row = 0; row < to.rows; ++row)
      w.of_window(row % w.count(), [&](std::size_t place, std::size_t pixel) {
        const std::size_t r = row / w.count(), first = place * w.channels, from = pixel * w.channels;
        for (std::size_t c = 0; c < w.channels; ++c) to.set(row, first + c, pass.x.get(r, from + c));
      });
    return to;
  }

  const Windows w;
  const fsdp::Shape weight_;
  const std::size_t O, n;  // the numbers of output channels, and of numbers of a window
  const WindowOptions options_;
};

/// Pooling of each channel by itself. `of_largest`: by the largest pixel, of several the first one; a NaN counts as the
/// largest. Else by the mean, in which padding counts as pixels of 0.
class Pooling final : public fsdp::Layer {
 public:
  Pooling(const Windows& windows, bool of_largest) : w(windows), of_largest_(of_largest) {
    if (2 * w.y.padding > w.y.kernel)
      throw fsdp::UserError("the padding of pooling is more than half of the kernel; make it smaller");
  }
  std::size_t inputs() const override { return w.pixels() * w.channels; }
  std::size_t outputs() const override { return w.count() * w.channels; }
  bool works_in(fsdp::DType) const override { return true; }

  void forward(const fsdp::ForwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t i = 0; i < outputs(); ++i) {
        const std::size_t window = i / w.channels, c = i % w.channels;
        float sum = 0;
        w.of_window(window, [&](std::size_t, std::size_t pixel) { sum += pass.x.get(r, pixel * w.channels + c); });
        pass.y.set(
            r, i,
            of_largest_ ? pass.x.get(r, largest(pass.x, r, window, c) * w.channels + c) : sum / static_cast<float>(w.area()));
      }
  }
  void backward(const fsdp::BackwardPass& pass) const override {
    const float divisor = of_largest_ ? 1 : static_cast<float>(w.area());
    std::vector<float> sums(w.channels);
    for (std::size_t r = 0; pass.dx && r < pass.rows(); ++r)
      for (std::size_t pixel = 0; pixel < w.pixels(); ++pixel) {
        sums.assign(w.channels, 0);
        w.of_pixel(pixel, [&](std::size_t window, std::size_t) {
          for (std::size_t c = 0; c < w.channels; ++c)
            if (!of_largest_ || largest(pass.x, r, window, c) == pixel) sums[c] += pass.dy.get(r, window * w.channels + c);
        });
        for (std::size_t c = 0; c < w.channels; ++c) pass.dx.set(r, pixel * w.channels + c, sums[c] / divisor);
      }
  }

 private:
  std::size_t largest(const fsdp::Tensor& x, std::size_t r, std::size_t window, std::size_t c) const {
    std::size_t found = w.pixels();
    float most = 0;
    w.of_window(window, [&](std::size_t, std::size_t pixel) {
      const float value = x.get(r, pixel * w.channels + c);
      if (found == w.pixels() || value > most || std::isnan(value)) found = pixel, most = value;
    });
    return found;
  }

  const Windows w;
  const bool of_largest_;
};

inline Windows windows(const ImageShape& image, std::size_t kernel, std::size_t stride, std::size_t padding) {
  return {{image.height, kernel, stride, padding}, {image.width, kernel, stride, padding}, image.channels};
}
inline Windows windows(const ImageShape& image, const PoolOptions& options) {
  return windows(image, options.kernel, options.stride > 0 ? options.stride : options.kernel, options.padding);
}

/// The outputs of a convolution are an image of this shape.
inline ImageShape windows_of(const ImageShape& image, std::size_t out_channels, const WindowOptions& options) {
  const Windows w = windows(image, options.kernel, options.stride, options.padding);
  return {w.y.windows(), w.x.windows(), out_channels};
}

/// torch.nn.Conv2d. Parameters: weight[out, kernel, kernel, channels] and bias[out]. The weight of PyTorch is
/// weight.permute(0, 2, 3, 1). A convolution with stride = kernel embeds patches, as vision transformers do.
inline fsdp::LayerPtr conv2d(const ImageShape& image, std::size_t out_channels, const WindowOptions& options = {}) {
  const fsdp::Shape weight = {out_channels, options.kernel, options.kernel, image.channels};
  return std::make_shared<Convolution>(windows(image, options.kernel, options.stride, options.padding), weight, options);
}
/// torch.nn.Conv1d over `length` positions of `channels` numbers. The weight[out, kernel, channels] of PyTorch is
/// weight.permute(0, 2, 1).
inline fsdp::LayerPtr conv1d(std::size_t length, std::size_t channels, std::size_t out_channels,
                             const WindowOptions& options = {}) {
  const Windows line({1, 1, 1, 0}, {length, options.kernel, options.stride, options.padding}, channels);
  return std::make_shared<Convolution>(line, fsdp::Shape{out_channels, options.kernel, channels}, options);
}

/// torch.nn.MaxPool2d and torch.nn.AvgPool2d.
inline fsdp::LayerPtr max_pool2d(const ImageShape& image, const PoolOptions& options) {
  return std::make_shared<Pooling>(windows(image, options), true);
}
inline fsdp::LayerPtr mean_pool2d(const ImageShape& image, const PoolOptions& options) {
  return std::make_shared<Pooling>(windows(image, options), false);
}
/// The mean over `positions` positions of `width` numbers: [positions * width] to [width]. For an image this is
/// torch.nn.AdaptiveAvgPool2d(1).
inline fsdp::LayerPtr mean_pool(std::size_t positions, std::size_t width) {
  return std::make_shared<Pooling>(Windows({1, 1, 1, 0}, {positions, positions, 1, 0}, width), false);
}

}  // namespace vision
