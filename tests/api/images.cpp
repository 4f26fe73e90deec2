// Convolutions and pooling: values and gradients of PyTorch, and central differences.
#include <boost/test/unit_test.hpp>

#include <functional>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

#include "run_layer.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(layers_are_those_of_pytorch) {
  const Tensors golden = layer_tensors("images.safetensors");
  const auto compare = [&](const char* name, const LayerPtr& layer) { compare_with_pytorch(golden, name, *layer, 3, 1); };
  compare("conv_same", conv2d({5, 6, 3}, 4, {.kernel = 3, .padding = 1}));
  compare("conv_stride", conv2d({7, 6, 2}, 3, {.kernel = 3, .stride = 2, .padding = 1}));
  compare("conv_pixel", conv2d({4, 5, 4}, 5));
  compare("conv_patches", conv2d({8, 8, 3}, 7, {.kernel = 4, .stride = 4}));
  compare("conv_wide_padding", conv2d({3, 4, 2}, 3, {.kernel = 3, .stride = 2, .padding = 4}));  // windows of only padding
  compare("conv_pixel_stride", conv2d({5, 5, 2}, 3, {.stride = 2}));
  compare("conv1d", conv1d(9, 3, 4, {.kernel = 3, .stride = 2, .padding = 1}));
  compare("max", max_pool2d({6, 4, 5}, {.kernel = 2}));
  compare("max_overlap", max_pool2d({7, 6, 3}, {.kernel = 3, .stride = 2, .padding = 1}));
  compare("mean", mean_pool2d({6, 4, 5}, {.kernel = 2, .stride = 2}));
  compare("mean_overlap", mean_pool2d({7, 6, 3}, {.kernel = 3, .stride = 2, .padding = 1}));
  compare("mean_all", mean_pool(12, 5));
}

BOOST_AUTO_TEST_CASE(gradients_of_layers_of_images) {
  const std::pair<const char*, LayerPtr> layers[] = {
      {"conv2d", conv2d({5, 4, 3}, 4, {.kernel = 3, .padding = 1})},
      {"conv2d with strides", conv2d({5, 4, 3}, 2, {.kernel = 3, .stride = 2, .padding = 2, .bias = false})},
      {"conv2d of pixels", conv2d({3, 2, 4}, 5)},
      {"conv1d", conv1d(7, 3, 2, {.kernel = 3, .padding = 1})},
      {"max_pool2d", max_pool2d({4, 6, 2}, {.kernel = 3, .stride = 2, .padding = 1})},
      {"mean_pool2d", mean_pool2d({4, 6, 2}, {.kernel = 2, .stride = 1})},
      {"mean_pool", mean_pool(5, 3)},
      {"patches and pooling", sequential({{"patches", conv2d({4, 6, 2}, 5, {.kernel = 2, .stride = 2})},
                                          {"gelu", gelu(6 * 5)},
                                          {"pool", mean_pool(6, 5)},
                                          {"head", linear(5, 3)}})}};
  for (const auto& [name, layer] : layers) {
    const GradientCheck check = check_gradients(*layer);
    BOOST_TEST(check.passed, name << ": " << check.where);
    BOOST_TEST(check.worst > 0, name);
  }
}

// A batch whose windows do not fit into the cache is computed in chunks.
BOOST_AUTO_TEST_CASE(chunks_of_images_are_as_one) {
  const LayerPtr layer = conv2d({64, 64, 12}, 2, {.kernel = 3, .padding = 1});
  const auto numbers = [](std::size_t n, float step) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = std::sin(step * static_cast<float>(i));
    return x;
  };
  const std::size_t R = 5, in = layer->inputs(), out = layer->outputs();
  Tensors all = {{"x", numbers(R * in, 0.37f)},
                 {"dy", numbers(R * out, 0.61f)},
                 {"param/weight", numbers(2 * 9 * 12, 0.21f)},
                 {"param/bias", {0.5f, -0.25f}}};
  const Tensors together = run_layer(*layer, all, R, 1, DType::f32);
  std::vector<double> gradient(2 * 9 * 12);
  for (std::size_t r = 0; r < R; ++r) {
    Tensors one = all;
    one["x"].assign(&all["x"][r * in], &all["x"][r * in] + in);
    one["dy"].assign(&all["dy"][r * out], &all["dy"][r * out] + out);
    const Tensors alone = run_layer(*layer, one, 1, 1, DType::f32);
    float apart = 0;
    for (std::size_t i = 0; i < out; ++i) apart = std::max(apart, std::abs(alone.at("y")[i] - together.at("y")[r * out + i]));
    for (std::size_t i = 0; i < in; ++i) apart = std::max(apart, std::abs(alone.at("dx")[i] - together.at("dx")[r * in + i]));
    BOOST_TEST(apart < 1e-5f);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += alone.at("grad/weight")[i];
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) BOOST_TEST(std::abs(gradient[i] - together.at("grad/weight")[i]) < 1e-3);
}

BOOST_AUTO_TEST_CASE(images_without_windows_are_refused) {
  const auto refused = [](const std::function<void()>& make, const std::string& message) {
    BOOST_CHECK_EXCEPTION(make(), UserError, [&](const UserError& error) {
      BOOST_TEST_MESSAGE(error.what());
      return std::string(error.what()).find(message) != std::string::npos;
    });
  };
  refused(
      [] {
        conv2d({4, 5, 3}, 2, {.kernel = 7, .padding = 1});
      },
      "conv2d() has an image of 4 x 5 pixels with 3 channels, kernel 7, stride 1 and padding 1 (the kernel is larger than "
      "the image with its padding, so there is no output)");
  refused([] { conv2d({4, 5, 0}, 2); }, "must be at least 1");
  refused([] { conv2d({4, 5, 3}, 0); }, "a convolution has 0 output channels");
  refused([] { conv2d({4, 5, 3}, 2, {.kernel = 3, .stride = 0}); }, "must be at least 1");
  constexpr std::size_t large = std::size_t{1} << 22;  // sizes in numbers would overflow, here to 0
  refused([] { conv2d({large, large / 2, large / 2}, 1, {.stride = large}); }, "larger than any memory");
  refused([] { max_pool2d({large, large / 2, large / 2}, {.stride = large}); }, "larger than any memory");
  refused([] { conv1d(4, 3, 2, {.kernel = 5}); }, "conv1d() has an image of 1 x 4 pixels");
  refused([] { max_pool2d({4, 4, 1}, {.kernel = 2, .stride = 2, .padding = 2}); }, "the padding can be at most half");
  refused([] { mean_pool(0, 3); }, "mean_pool(0, 3) is empty");
  BOOST_TEST(windows_of({32, 32, 3}, 64, {.kernel = 3, .stride = 2, .padding = 1}).height == 16u);
}
