// Row bodies for windows of images (kernels/images.hpp). A row of a body is a row of windows or a row of pixels of one image,
// and has one writer. A sum over pixels of a window, or over windows of a pixel, is in the order of the kernel's places.
#pragma once

#include "base/element.hpp"
#include "kernels/images.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

namespace image_parts {

/// A range of windows in a row of windows.
struct Span {
  std::size_t begin, end;
  FSDP_INLINE std::size_t size() const { return end > begin ? end - begin : 0; }
};

/// The windows, of `count`, whose pixel `k` of an axis is in the image: those for which 0 <= window * stride + k - padding <
/// size.
FSDP_INLINE Span inside(std::size_t k, std::size_t stride, std::size_t padding, std::size_t size, std::size_t count) {
  const std::size_t begin = k >= padding ? 0 : (padding - k + stride - 1) / stride;
  const std::size_t end = size + padding > k ? (size + padding - k - 1) / stride + 1 : 0;
  return {begin, end < count ? end : count};
}

/// Calls each(place, span, pixel) for the places in a row of the kernel. `span` are the windows of which this place is in the
/// image, and `pixel` is the column of the first of these pixels.
template <class Each>
FSDP_INLINE void each_place_of_row(const Windows& w, std::size_t kernel_row, Each each) {
  for (std::size_t kx = 0; kx < w.kernel_width; ++kx) {
    const Span span = inside(kx, w.stride_width, w.padding_width, w.width, w.columns);
    if (span.size() > 0) each(kernel_row * w.kernel_width + kx, span, span.begin * w.stride_width + kx - w.padding_width);
  }
}

/// For row `row` of windows: calls each(place, span, y, pixel) for all places of the kernel in the image.
template <class Each>
FSDP_INLINE void each_place_of_windows(const Windows& w, std::size_t row, Each each) {
  for (std::size_t ky = 0; ky < w.kernel_height; ++ky) {
    const std::size_t y = row * w.stride_height + ky;
    if (y < w.padding_height || y - w.padding_height >= w.height) continue;
    each_place_of_row(w, ky, [=](std::size_t place, Span span, std::size_t pixel) FSDP_LANE {
      each(place, span, y - w.padding_height, pixel);
    });
  }
}

/// For row `y` of pixels: calls each(place, span, row, pixel) for all places at which a row of windows has these pixels.
template <class Each>
FSDP_INLINE void each_place_of_pixels(const Windows& w, std::size_t y, Each each) {
  for (std::size_t ky = 0; ky < w.kernel_height; ++ky) {
    const std::size_t at = y + w.padding_height;
    if (at < ky || (at - ky) % w.stride_height != 0 || (at - ky) / w.stride_height >= w.rows) continue;
    each_place_of_row(w, ky, [=](std::size_t place, Span span, std::size_t pixel) FSDP_LANE {
      each(place, span, (at - ky) / w.stride_height, pixel);
    });
  }
}

}  // namespace image_parts

/// Row (r, row) of R * rows: the pixels of a row of windows.
template <class E>
struct Unfold {
  E* to;
  const E* images;
  Windows windows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t index) const {
    const Windows w = windows;
    const std::size_t row = index % w.rows, line = w.kernel_width * w.channels, window = w.kernel_height * line;
    const E* const image = images + index / w.rows * w.image();
    E* const out = to + index * w.columns * window;
    const auto zero = [](E& to_i) FSDP_LANE { to_i = E(0.0f); };
    const auto copy = [](E& to_i, E from_i) FSDP_LANE { to_i = from_i; };
    // Windows [left, right) have no padding on the left and on the right.
    const std::size_t first = (w.padding_width + w.stride_width - 1) / w.stride_width,
                      left = first < w.columns ? first : w.columns, room = w.width + w.padding_width,
                      last = room >= w.kernel_width ? (room - w.kernel_width) / w.stride_width + 1 : 0,
                      right = last < left        ? left
                              : last < w.columns ? last
                                                 : w.columns;
    for (std::size_t ky = 0; ky < w.kernel_height; ++ky) {
      E* const lines = out + ky * line;
      const std::size_t y = row * w.stride_height + ky;
      if (y < w.padding_height || y - w.padding_height >= w.height) {
        lanes.grid(w.columns, line, zero, RowsOf{writes(lines), window});
        continue;
      }
      const E* const pixels = image + (y - w.padding_height) * w.width * w.channels;
      if (right > left)
        lanes.grid(right - left, line, copy, RowsOf{writes(lines + left * window), window},
                   RowsOf{pixels + (left * w.stride_width - w.padding_width) * w.channels, w.stride_width * w.channels});
      for (std::size_t column = 0; column < w.columns; ++column) {
        if (column == left && right > left) column = right;
        if (column >= w.columns) break;
        E* const at = lines + column * window;
        // Pixels [begin, end) of the kernel's line are in the image.
        const std::size_t x = column * w.stride_width, before = x < w.padding_width ? w.padding_width - x : 0,
                          upto = room > x ? room - x : 0, begin = before < w.kernel_width ? before : w.kernel_width,
                          most = upto < w.kernel_width ? upto : w.kernel_width, end = most > begin ? most : begin;
        lanes.each(begin * w.channels, zero, writes(at));
        if (end > begin)
          lanes.each((end - begin) * w.channels, copy, writes(at + begin * w.channels),
                     pixels + (x + begin - w.padding_width) * w.channels);
        lanes.each((w.kernel_width - end) * w.channels, zero, writes(at + end * w.channels));
      }
    }
  }
};

/// Row (r, y) of R * height: a row of pixels. Pixel `place` of window i is `from` from i * window_step + place * place_step on.
/// Each pixel of d_images is `factor` times the sum of these over all windows that include it.
template <class E>
struct Fold {
  E* d_images;
  float* sums;
  const E* from;
  Windows windows;
  std::size_t window_step, place_step;
  float factor;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t index) const {
    const Windows w = windows;
    const std::size_t r = index / w.height, n = w.width * w.channels, C = w.channels;
    const E* const of_image = from + r * w.count() * window_step;
    float* const sum = sums + index * n;
    const std::size_t step = window_step, next_place = place_step;
    lanes.each(
        n, [](float& sum_i) FSDP_LANE { sum_i = 0; }, writes(sum));
    image_parts::each_place_of_pixels(
        w, index % w.height, [=](std::size_t place, image_parts::Span span, std::size_t row, std::size_t pixel) FSDP_LANE {
          lanes.sync();
          lanes.grid(
              span.size(), C, [](float& sum_i, float x) FSDP_LANE { sum_i += x; }, RowsOf{sum + pixel * C, w.stride_width * C},
              RowsOf{of_image + (row * w.columns + span.begin) * step + place * next_place, step});
        });
    lanes.sync();
    const float by = factor;
    lanes.each(
        n, [=](E& d, float sum_i) FSDP_LANE { d = E(by * sum_i); }, writes(d_images + index * n),
        static_cast<const float*>(sum));
  }
};

/// Row (r, row) of R * rows: the largest pixels of a row of windows, and their places.
template <class E>
struct MaxPool {
  E* y;
  std::uint16_t* places;
  const E* images;
  Windows windows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t index) const {
    constexpr std::uint16_t none = 0xffff;
    const Windows w = windows;
    const std::size_t C = w.channels, n = w.columns * C;
    const E* const image = images + index / w.rows * w.image();
    E* const out = y + index * n;
    std::uint16_t* const of_out = places + index * n;
    lanes.each(
        n, [](std::uint16_t& place) FSDP_LANE { place = none; }, writes(of_out));
    image_parts::each_place_of_windows(
        w, index % w.rows, [=](std::size_t at, image_parts::Span span, std::size_t row, std::size_t pixel) FSDP_LANE {
          const auto here = static_cast<std::uint16_t>(at);
          lanes.sync();
          lanes.grid(
              span.size(), C,
              [=](E& largest, std::uint16_t& place, E x) FSDP_LANE {
                const float value = x;
                const bool larger = place == none || value > static_cast<float>(largest) || value != value;
                largest = larger ? x : largest;
                place = larger ? here : place;
              },
              RowsOf{out + span.begin * C, C}, RowsOf{of_out + span.begin * C, C},
              RowsOf{image + (row * w.width + pixel) * C, w.stride_width * C});
        });
  }
};

/// Row (r, y) of R * height: a row of pixels receives dy of the windows in which it is the largest.
template <class E>
struct MaxPoolBackward {
  E* d_images;
  float* sums;
  const E* dy;
  const std::uint16_t* places;
  Windows windows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t index) const {
    const Windows w = windows;
    const std::size_t C = w.channels, n = w.width * C, of_image = index / w.height * w.count();
    float* const sum = sums + index * n;
    const E* const d = dy;
    const std::uint16_t* const of_windows = places;
    lanes.each(
        n, [](float& sum_i) FSDP_LANE { sum_i = 0; }, writes(sum));
    image_parts::each_place_of_pixels(
        w, index % w.height, [=](std::size_t at, image_parts::Span span, std::size_t row, std::size_t pixel) FSDP_LANE {
          const auto here = static_cast<std::uint16_t>(at);
          const std::size_t first = (of_image + row * w.columns + span.begin) * C;
          lanes.sync();
          lanes.grid(
              span.size(), C,
              [=](float& sum_i, float d_i, std::uint16_t place) FSDP_LANE { sum_i += place == here ? d_i : 0.0f; },
              RowsOf{sum + pixel * C, w.stride_width * C}, RowsOf{d + first, C}, RowsOf{of_windows + first, C});
        });
    lanes.sync();
    lanes.each(
        n, [](E& d_i, float sum_i) FSDP_LANE { d_i = E(sum_i); }, writes(d_images + index * n), static_cast<const float*>(sum));
  }
};

/// Row (r, row) of R * rows: the means of a row of windows.
template <class E>
struct MeanPool {
  E* y;
  float* sums;
  const E* images;
  Windows windows;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t index) const {
    const Windows w = windows;
    const std::size_t C = w.channels, n = w.columns * C;
    const E* const image = images + index / w.rows * w.image();
    float* const sum = sums + index * n;
    lanes.each(
        n, [](float& sum_i) FSDP_LANE { sum_i = 0; }, writes(sum));
    image_parts::each_place_of_windows(
        w, index % w.rows, [=](std::size_t, image_parts::Span span, std::size_t row, std::size_t pixel) FSDP_LANE {
          lanes.sync();
          lanes.grid(
              span.size(), C, [](float& sum_i, float x) FSDP_LANE { sum_i += x; }, RowsOf{sum + span.begin * C, C},
              RowsOf{image + (row * w.width + pixel) * C, w.stride_width * C});
        });
    lanes.sync();
    const float by = 1.0f / static_cast<float>(w.pixels());
    lanes.each(
        n, [=](E& y_i, float sum_i) FSDP_LANE { y_i = E(by * sum_i); }, writes(y + index * n), static_cast<const float*>(sum));
  }
};

}  // namespace fsdp::kernels
