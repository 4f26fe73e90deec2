#include "api/images.hpp"

#include <algorithm>
#include <cmath>

#include "layers/ops.hpp"
#include "layers/place.hpp"
#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/images.hpp"

namespace fsdp {

namespace {

using ops::Out;
using ops::Transpose;

kernels::Windows windows_or_throw(const char* function, const ImageShape& image, const WindowOptions& options, bool is_line) {
  const std::size_t height = image.height, width = image.width, channels = image.channels;
  const std::size_t kernel_height = is_line ? 1 : options.kernel, padding_height = is_line ? 0 : options.padding;
  const auto require = [&](bool ok, const char* reason, const char* help) {
    if (!ok)
      throw UserError(
          format("{}() has an image of {} x {} pixels with {} channels, kernel {}, stride {} and padding {} ({}); {}", function,
                 as_given(height), as_given(width), as_given(channels), as_given(options.kernel), as_given(options.stride),
                 as_given(options.padding), reason, help));
  };
  constexpr std::size_t most = std::size_t{1} << 30;
  require(height > 0 && width > 0 && channels > 0 && options.kernel > 0 && options.stride > 0,
          "all of these except the padding must be at least 1", "correct them");
  require(std::max({height, width, channels, options.kernel, options.stride, options.padding}) < most,
          "one of these is negative, or larger than any memory", "correct it");
  const std::size_t padded = (height + 2 * padding_height) * (width + 2 * options.padding);
  require(padded < most && padded * channels < most, "it is larger than any memory", "correct it");
  require(kernel_height <= height + 2 * padding_height && options.kernel <= width + 2 * options.padding,
          "the kernel is larger than the image with its padding, so there is no output", "make the kernel smaller");
  return {.height = height,
          .width = width,
          .channels = channels,
          .kernel_height = kernel_height,
          .kernel_width = options.kernel,
          .stride_height = is_line ? 1 : options.stride,
          .stride_width = options.stride,
          .padding_height = padding_height,
          .padding_width = options.padding,
          .rows = is_line ? 1 : (height + 2 * padding_height - kernel_height) / options.stride + 1,
          .columns = (width + 2 * options.padding - options.kernel) / options.stride + 1};
}

class ImageLayer : public Layer {
 public:
  explicit ImageLayer(const kernels::Windows& windows) : windows_(windows) {}
  std::size_t inputs() const final { return windows_.image(); }
  bool works_in(DType) const final { return true; }
  bool works_on_gpu() const final { return true; }

 protected:
  const kernels::Windows& windows() const { return windows_; }
  template <class E>
  static E* at(const Tensor& tensor) {
    return static_cast<E*>(tensor.data);
  }
  /// Memory of fp32 numbers for the sums of a tensor of type E: the tensor itself, or memory at `other`.
  template <class E>
  static float* sums_of(E* tensor, void* other) {
    if constexpr (std::is_same_v<E, float>)
      return tensor;
    else
      return static_cast<float*>(other);
  }

 private:
  kernels::Windows windows_;
};

class Convolution final : public ImageLayer {
 public:
  Convolution(const kernels::Windows& windows, bool is_line, std::size_t out_channels, const WindowOptions& options)
      : ImageLayer(windows), is_line_(is_line), O(out_channels), n(windows.pixels() * windows.channels), options_(options) {
    if (O == 0 || O > std::size_t{1} << 30)
      throw UserError(format("a convolution has {} output channels (it has 1 to 2^30); correct out_channels", as_given(O)));
    if (!(options.standard_deviation >= 0))
      throw UserError(
          format("a convolution has standard_deviation {} (it must be at least 0); correct it", options.standard_deviation));
  }
  std::vector<LayerParameter> parameters() const override {
    const float deviation =
        options_.standard_deviation > 0 ? options_.standard_deviation : 1 / std::sqrt(static_cast<float>(n));
    const kernels::Windows& w = windows();
    const Shape shape = is_line_ ? Shape{O, w.kernel_width, w.channels} : Shape{O, w.kernel_height, w.kernel_width, w.channels};
    std::vector<LayerParameter> all = {{"weight", shape, normal(deviation)}};
    if (options_.bias) all.push_back({"bias", {O}, constant(0)});
    return all;
  }
  std::size_t outputs() const override { return windows().count() * O; }
  std::size_t scratch() const override { return is_product() ? 0 : windows().count() * n + 2 * windows().image(); }

  void forward(const ForwardPass& pass) const override {
    each_chunk(pass, [&](std::size_t first, std::size_t images) {
      ops::linear(pass, unfolded(pass, first, images), pass.parameter(0), options_.bias ? pass.parameter(1) : Tensor(),
                  chunk_of(pass.y, first, images, O));
    });
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor d_bias = options_.bias ? pass.gradient(1) : Tensor(), d_weight = pass.gradient(0);
    each_chunk(pass, [&](std::size_t first, std::size_t images) {
      const Tensor dy = chunk_of(pass.dy, first, images, O);
      if (is_product())
        return ops::linear_backward(pass, chunk_of(pass.x, first, images, n), pass.parameter(0), dy,
                                    pass.dx ? chunk_of(pass.dx, first, images, n) : Tensor(), d_weight, d_bias);
      ops::linear_backward(pass, d_weight ? unfolded(pass, first, images) : columns(pass, images), pass.parameter(0), dy, {},
                           d_weight, d_bias);
      if (!pass.dx) return;
      const Tensor d_columns = columns(pass, images);
      ops::linear_backward(pass, d_columns, pass.parameter(0), dy, d_columns, {}, {});
      with_element(pass.type, [&]<class E>() {
        E* const dx = at<E>(pass.dx) + first * inputs();
        const Tensor sums = pass.scratch.part(0, 2 * inputs());
        kernels::fold(*pass.stream, dx, sums_of(dx, sums.data), at<const E>(d_columns), images, windows());
      });
    });
  }

 private:
  /// Returns true if each window is a pixel, in the order of pixels.
  bool is_product() const {
    const kernels::Windows& w = windows();
    return w.pixels() == 1 && w.stride_height == 1 && w.stride_width == 1 && w.padding_height + w.padding_width == 0;
  }
  /// Calls each(first, count) for chunks of images. On a CPU, the windows of a chunk take at most 4 MiB, so that they stay in
  /// the caches, or they are those of one image. Sums over chunks are in the order of images.
  template <class Each>
  void each_chunk(const Pass& pass, Each each) const {
    constexpr std::size_t cache = std::size_t{1} << 22;
    const std::size_t of_image = windows().count() * n * size_of(pass.type), R = pass.rows();
    const std::size_t most = is_product() || !is_host(pass.stream->kind()) ? R : std::max<std::size_t>(1, cache / of_image);
    for (std::size_t first = 0; first < R; first += most) each(first, std::min(most, R - first));
  }
  /// The matrix [images * windows, columns] of some images of a tensor.
  Tensor chunk_of(const Tensor& tensor, std::size_t first, std::size_t images, std::size_t columns) const {
    auto* const data = static_cast<std::byte*>(tensor.data) + first * windows().count() * columns * size_of(tensor.type);
    return {data, images * windows().count(), columns, columns, tensor.type};
  }
  /// The memory for the windows of some images. The sums of fold() come first: fp32 numbers are aligned there.
  Tensor columns(const Pass& pass, std::size_t images) const {
    Tensor memory = pass.scratch.part(2 * inputs(), windows().count() * n);
    return chunk_of(memory, 0, images, n);
  }
  Tensor unfolded(const Pass& pass, std::size_t first, std::size_t images) const {
    if (is_product()) return chunk_of(pass.x, first, images, n);
    const Tensor to = columns(pass, images);
    with_element(pass.type, [&]<class E>() {
      kernels::unfold(*pass.stream, at<E>(to), at<const E>(pass.x) + first * inputs(), images, windows());
    });
    return to;
  }

  bool is_line_;
  std::size_t O, n;  // the numbers of output channels, and of numbers of a window
  WindowOptions options_;
};

class MaxPooling final : public ImageLayer {
 public:
  using ImageLayer::ImageLayer;
  std::size_t outputs() const override { return windows().count() * windows().channels; }
  std::size_t scratch() const override { return 2 * inputs() + 2 * outputs(); }
  void forward(const ForwardPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      kernels::max_pool(*pass.stream, at<E>(pass.y), places(pass), at<const E>(pass.x), pass.rows(), windows());
    });
  }
  void backward(const BackwardPass& pass) const override {
    if (!pass.dx) return;
    with_element(pass.type, [&]<class E>() {
      E* const dx = at<E>(pass.dx);
      kernels::max_pool(*pass.stream, at<E>(pass.scratch.part(2 * inputs(), outputs())), places(pass), at<const E>(pass.x),
                        pass.rows(), windows());
      kernels::max_pool_backward(*pass.stream, dx, sums_of(dx, pass.scratch.data), at<const E>(pass.dy), places(pass),
                                 pass.rows(), windows());
    });
  }

 private:
  std::uint16_t* places(const Pass& pass) const {
    return at<std::uint16_t>(pass.scratch.part(2 * inputs() + outputs(), outputs()));
  }
};

class MeanPooling final : public ImageLayer {
 public:
  using ImageLayer::ImageLayer;
  std::size_t outputs() const override { return windows().count() * windows().channels; }
  std::size_t scratch() const override { return 2 * std::max(inputs(), outputs()); }
  void forward(const ForwardPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      E* const y = at<E>(pass.y);
      kernels::mean_pool(*pass.stream, y, sums_of(y, pass.scratch.data), at<const E>(pass.x), pass.rows(), windows());
    });
  }
  void backward(const BackwardPass& pass) const override {
    if (!pass.dx) return;
    with_element(pass.type, [&]<class E>() {
      E* const dx = at<E>(pass.dx);
      kernels::mean_pool_backward(*pass.stream, dx, sums_of(dx, pass.scratch.data), at<const E>(pass.dy), pass.rows(),
                                  windows());
    });
  }
};

kernels::Windows pooling_windows(const char* function, const ImageShape& image, const PoolOptions& options) {
  const std::size_t stride = options.stride > 0 ? options.stride : options.kernel;
  const kernels::Windows windows =
      windows_or_throw(function, image, {.kernel = options.kernel, .stride = stride, .padding = options.padding}, false);
  if (2 * options.padding > options.kernel || windows.pixels() >= 0xffff)
    throw UserError(
        format("{}() has kernel {} and padding {} (the padding can be at most half of the kernel, and a kernel "
               "below 256); correct them",
               function, options.kernel, options.padding));
  return windows;
}

}  // namespace

ImageShape windows_of(const ImageShape& image, std::size_t out_channels, const WindowOptions& options) {
  const kernels::Windows windows = windows_or_throw("windows_of", image, options, false);
  return {windows.rows, windows.columns, out_channels};
}

ImageShape windows_of(const ImageShape& image, const PoolOptions& options) {
  const kernels::Windows windows = pooling_windows("windows_of", image, options);
  return {windows.rows, windows.columns, image.channels};
}
LayerPtr conv2d(const ImageShape& image, std::size_t out_channels, const WindowOptions& options) {
  return std::make_shared<Convolution>(windows_or_throw("conv2d", image, options, false), false, out_channels, options);
}
LayerPtr conv1d(std::size_t length, std::size_t channels, std::size_t out_channels, const WindowOptions& options) {
  const kernels::Windows windows = windows_or_throw("conv1d", {1, length, channels}, options, true);
  return std::make_shared<Convolution>(windows, true, out_channels, options);
}
LayerPtr max_pool2d(const ImageShape& image, const PoolOptions& options) {
  return std::make_shared<MaxPooling>(pooling_windows("max_pool2d", image, options));
}
LayerPtr mean_pool2d(const ImageShape& image, const PoolOptions& options) {
  return std::make_shared<MeanPooling>(pooling_windows("mean_pool2d", image, options));
}
LayerPtr mean_pool(std::size_t positions, std::size_t width) {
  if (positions == 0 || width == 0)
    throw UserError(format("mean_pool({}, {}) is empty (both sizes must be at least 1); correct them", positions, width));
  kernels::Windows whole = windows_or_throw("mean_pool", {1, positions, width}, {.kernel = positions}, true);
  return std::make_shared<MeanPooling>(whole);
}

}  // namespace fsdp
