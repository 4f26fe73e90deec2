// A residual convolutional network (He et al. 2016, "Identity Mappings in Deep Residual Networks") learns to name shapes:
//   mpirun -np 4 residual_network [FOLDER]
// An update has the same 48 images at any number of ranks, so the losses are the same, too. With FOLDER, the program writes its
// initial parameters to FOLDER/initial.h5. A test trains the same model in PyTorch from there and compares all losses.
#include <fsdp/fsdp.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "images.hpp"

constexpr std::size_t side = 16, pixels = side * side;
constexpr std::size_t images = 48;    // of an update
constexpr std::size_t classes = 4;    // disc, ring, x, +
constexpr std::size_t channels = 32;  // of the last stage

/// A number below 2^24 that looks random, but depends only on i.
int hash(std::uint32_t i) {
  for (int round = 0; round < 3; ++round) i = (i ^ (i >> 15)) * 2654435761u;
  return static_cast<int>(i >> 8);
}

/// A bright shape on a dark background, and noise. Image n has its own size and place; its class is the kind of shape.
void draw(std::uint32_t n, std::span<float> image, std::int32_t& label) {
  const std::uint32_t kind = n % classes, seed = 1000 * n;
  label = static_cast<std::int32_t>(kind);
  const int size = 3 + hash(seed) % 2, places = static_cast<int>(side) - 2 * size;
  const int centre_x = size + hash(seed + 1) % places, centre_y = size + hash(seed + 2) % places;
  for (std::uint32_t i = 0; i < pixels; ++i) {
    const int x = std::abs(static_cast<int>(i % side) - centre_x), y = std::abs(static_cast<int>(i / side) - centre_y);
    const auto is_inside = [&](int radius) { return x * x + y * y <= radius * radius + 1; };
    const bool in_square = std::max(x, y) <= size;
    const std::array<bool, classes> is_bright = {is_inside(size), is_inside(size) && !is_inside(size - 2), in_square && x == y,
                                                 in_square && (x == 0 || y == 0)};
    image[i] = (is_bright[kind] ? 1.0f : -1.0f) + static_cast<float>(hash(seed + 3 + i)) / (1 << 25);
  }
}

/// A layer norm over the channels of each pixel, as in ConvNeXt (Liu et al. 2022), and GELU. Unlike a batch norm, it does not
/// depend on the other images of the batch.
fsdp::LayerPtr norm_gelu(const vision::ImageShape& image) {
  const std::size_t positions = image.height * image.width;
  return fsdp::sequential({{"norm", fsdp::positions(positions, fsdp::layer_norm(image.channels))},
                           {"gelu", fsdp::gelu(positions * image.channels)}});
}

/// x plus two convolutions of x. The second one begins near 0, so that the block begins as the identity.
fsdp::LayerPtr block(const vision::ImageShape& image) {
  const auto convolution = [&](float deviation) {
    return vision::conv2d(image, image.channels, {.kernel = 3, .padding = 1, .bias = false, .standard_deviation = deviation});
  };
  return fsdp::residual(fsdp::sequential(
      {{"act1", norm_gelu(image)}, {"conv1", convolution(0.1f)}, {"act2", norm_gelu(image)}, {"conv2", convolution(0.03f)}}));
}

/// Two stages of two blocks each. Between them, a convolution with stride 2 halves the image.
fsdp::Sequential residual_network() {
  const vision::WindowOptions halve = {.kernel = 3, .stride = 2, .padding = 1};
  const vision::ImageShape image = {side, side, 1}, large = {side, side, 8}, small = vision::windows_of(large, channels, halve);
  fsdp::Sequential model;
  model.add("stem", vision::conv2d(image, large.channels, {.kernel = 3, .padding = 1}))
      .add("stage1", fsdp::repeat(2, [&](std::size_t) { return block(large); }))
      .add("down", vision::conv2d(large, channels, halve))
      .add("stage2", fsdp::repeat(2, [&](std::size_t) { return block(small); }))
      .add("act", norm_gelu(small))
      .add("pool", vision::mean_pool(small.height * small.width, channels))
      .add("norm", fsdp::layer_norm(channels))
      .add("head", fsdp::linear(channels, classes, true, 0.02f));
  return model.loss(fsdp::cross_entropy(classes));
}

/// Prints an image, and next to it the norm of the features at each place of the last stage, as a digit.
void show(std::span<const float> image, std::span<const float> features) {
  constexpr std::size_t half = side / 2;
  std::array<float, pixels / 4> norms = {};
  for (std::size_t i = 0; i < norms.size(); ++i) {
    for (const float feature : features.subspan(i * channels, channels)) norms[i] += feature * feature;
    norms[i] = std::sqrt(norms[i]);
  }
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  for (std::size_t y = 0; y < side; ++y) {
    for (std::size_t x = 0; x < side; ++x) std::printf("%c ", image[y * side + x] > 0 ? '#' : '.');
    for (std::size_t x = 0; x < half && y % 2 == 0; ++x)
      std::printf("%4.0f", 9 * (norms[y / 2 * half + x] - *least) / (*most - *least));
    std::printf("\n");
  }
}

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [&](fsdp::Job& job) {
    const auto ranks = static_cast<std::size_t>(job.size());
    job.agree([&] {
      if (images % ranks != 0)
        throw fsdp::UserError("48 images cannot be divided among the ranks evenly; start 1, 2, 3, 4, 6, 8 or 12 ranks");
    });
    fsdp::FsdpOptions options;
    options.batch_size = images / ranks;
    options.sharding_strategy = "SHARD_GRAD_OP";  // gather parameters once per update: they remain until backward
    options.auto_wrap_policy = "size";            // gather small layers together, in units of at least 4,000 parameters
    options.min_num_params = 4000;
    // options.param_dtype = "bf16";              // parameters and activations in 16 bits
    fsdp::FullyShardedDataParallel sharded(job, residual_network(), options);
    if (argc > 1) sharded.save_full(std::string(argv[1]) + "/initial.h5");

    // Each rank has its part of `images` images that begin with number `first`.
    const auto fill = [&](const fsdp::Batch& batch, std::size_t first) {
      first += static_cast<std::size_t>(job.rank()) * options.batch_size;
      for (std::size_t i = 0; i < options.batch_size; ++i)
        draw(static_cast<std::uint32_t>(first + i), batch.inputs().subspan(i * pixels, pixels), batch.labels()[i]);
    };
    for (int step = 1; step <= 20; ++step) {
      const fsdp::StepResult result =
          sharded.step(3e-3, [&](const fsdp::Batch& batch) { fill(batch, images * sharded.updates()); });
      if (job.rank() == 0) std::printf("step %d  loss %.9g\n", step, result.loss);
    }

    // Images that were not in an update.
    const auto held_out = [&](const fsdp::Batch& batch) { fill(batch, 100'000); };
    const double accuracy = sharded.measure(fsdp::accuracy, held_out);
    const std::vector<float> features = sharded.predict_layer("act", held_out);  // of this rank's images
    if (job.rank() == 0) {
      std::printf("held out  accuracy %.3f\n", accuracy);
      std::vector<float> image(pixels);
      std::int32_t label = 0;
      draw(100'000, image, label);
      show(image, features);
    }
    return accuracy > 0.9 ? 0 : 1;
  });
}
