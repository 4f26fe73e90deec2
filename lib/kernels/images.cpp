// Launches the kernels for windows of images.
#include "kernels/images.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void unfold(Stream& stream, E* to, const E* images, std::size_t R, const Windows& windows) {
  launch(stream, Unfold<E>{to, images, windows}, R * windows.rows);
}

template <class E>
void fold(Stream& stream, E* d_images, float* sums, const E* from, std::size_t R, const Windows& windows) {
  launch(stream, Fold<E>{d_images, sums, from, windows, windows.pixels() * windows.channels, windows.channels, 1},
         R * windows.height);
}

template <class E>
void max_pool(Stream& stream, E* y, std::uint16_t* places, const E* images, std::size_t R, const Windows& windows) {
  launch(stream, MaxPool<E>{y, places, images, windows}, R * windows.rows);
}

template <class E>
void max_pool_backward(Stream& stream, E* d_images, float* sums, const E* dy, const std::uint16_t* places, std::size_t R,
                       const Windows& windows) {
  launch(stream, MaxPoolBackward<E>{d_images, sums, dy, places, windows}, R * windows.height);
}

template <class E>
void mean_pool(Stream& stream, E* y, float* sums, const E* images, std::size_t R, const Windows& windows) {
  launch(stream, MeanPool<E>{y, sums, images, windows}, R * windows.rows);
}

template <class E>
void mean_pool_backward(Stream& stream, E* d_images, float* sums, const E* dy, std::size_t R, const Windows& windows) {
  launch(stream, Fold<E>{d_images, sums, dy, windows, windows.channels, 0, 1.0f / static_cast<float>(windows.pixels())},
         R * windows.height);
}

#define FSDP_INSTANTIATE(E)                                                                                          \
  template void unfold(Stream&, E*, const E*, std::size_t, const Windows&);                                          \
  template void fold(Stream&, E*, float*, const E*, std::size_t, const Windows&);                                    \
  template void max_pool(Stream&, E*, std::uint16_t*, const E*, std::size_t, const Windows&);                        \
  template void max_pool_backward(Stream&, E*, float*, const E*, const std::uint16_t*, std::size_t, const Windows&); \
  template void mean_pool(Stream&, E*, float*, const E*, std::size_t, const Windows&);                               \
  template void mean_pool_backward(Stream&, E*, float*, const E*, std::size_t, const Windows&);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
