// Convolutions and pooling of docs/examples/models/images.hpp: values and gradients of PyTorch, and central differences.
#include <boost/test/unit_test.hpp>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

#include "images.hpp"
#include "run_layer.hpp"

using namespace fsdp;
using namespace fsdp::test;
using namespace vision;

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

BOOST_AUTO_TEST_CASE(images_without_windows_are_refused) {
  const auto refused = [](const std::string& message) {
    return [message](const UserError& error) { return std::string(error.what()).find(message) != std::string::npos; };
  };
  BOOST_CHECK_EXCEPTION(conv2d({4, 5, 3}, 2, {.kernel = 7, .padding = 1}), UserError,
                        refused("windows of 7 pixels do not fit"));
  BOOST_CHECK_EXCEPTION(conv2d({4, 5, 3}, 0), UserError, refused("0 output channels"));
  BOOST_CHECK_EXCEPTION(max_pool2d({4, 4, 1}, {.kernel = 2, .padding = 2}), UserError, refused("more than half of the kernel"));
  BOOST_CHECK_EXCEPTION(mean_pool(0, 3), UserError, refused("a size or the stride is 0"));
  BOOST_TEST(windows_of({32, 32, 3}, 64, {.kernel = 3, .stride = 2, .padding = 1}).height == 16u);
}
