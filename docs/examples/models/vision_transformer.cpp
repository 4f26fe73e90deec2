// A vision transformer (Dosovitskiy et al. 2021) learns the direction of stripes in small images:
//   mpirun -np 4 vision_transformer [FOLDER]
// An update has the same 48 images at any number of ranks, so the losses are the same, too. With FOLDER, the program writes its
// initial parameters to FOLDER/initial.h5. A test trains the same model in PyTorch from there and compares all losses.
#include <fsdp/fsdp.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "images.hpp"

constexpr vision::ImageShape image = {.height = 16, .width = 16, .channels = 3};
constexpr std::size_t numbers = image.height * image.width * image.channels;
constexpr std::size_t patch = 4, patches = numbers / (patch * patch * image.channels), width = 32;
constexpr std::size_t images = 48;  // of an update
constexpr std::size_t classes = 4;
constexpr std::array<const char*, classes> names = {"|", "-", "/", "\\"};

/// A number from -1 to 1 that looks random, but depends only on i.
float noise(std::uint32_t i) {
  for (int round = 0; round < 3; ++round) i = (i ^ (i >> 15)) * 2654435761u;
  return static_cast<float>(i >> 8) / static_cast<float>(1 << 23) - 1;
}

/// Stripes of a dark and a bright colour, three pixels wide, and noise. Image n has its own colours; its class is the
/// direction.
void draw(std::uint32_t n, std::span<float> pixels, std::int32_t& label) {
  const std::uint32_t direction = n % classes, shift = n / 4 % 6, seed = 1000 * n;
  label = static_cast<std::int32_t>(direction);
  for (std::uint32_t i = 0; i < numbers; ++i) {
    const std::uint32_t channel = i % 3, x = i / 3 % 16, y = i / 48;
    const std::array<std::uint32_t, classes> across = {x, y, x + y, x + 16 - y};
    const std::uint32_t bright = (across[direction] + shift) / 3 % 2;
    const float colour = (bright ? 0.5f : -0.5f) + 0.5f * noise(seed + 2 * channel + bright);
    pixels[i] = colour + 0.25f * noise(seed + 10 + i);
  }
}

/// A row of the batch is an image, and later its patches. positions() makes a sequence of them for the layer inside.
fsdp::Sequential vision_transformer() {
  const auto block = [](std::size_t) {
    return fsdp::positions(patches, fsdp::transformer_block(width, {.heads = 4, .causal = false}));
  };
  fsdp::Sequential model;
  model.add("patches", vision::conv2d(image, width, {.kernel = patch, .stride = patch}))
      .add("position", fsdp::positions(patches, fsdp::position_embedding(patches, width)))
      .add("blocks", fsdp::repeat(3, block))
      .add("pool", vision::mean_pool(patches, width))
      .add("norm", fsdp::layer_norm(width))
      .add("head", fsdp::linear(width, classes));
  return model.loss(fsdp::cross_entropy(classes));
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
    options.activation_checkpointing = true;  // keep only the input of each block, and compute the block again in backward
    options.auto_wrap_policy = "custom";      // gather the parameters that a pattern matches together, and all others together
    options.wrap_patterns = {"blocks.0", "blocks.1", "blocks.2"};
    // options.param_dtype = "bf16";          // parameters and activations in 16 bits
    fsdp::FullyShardedDataParallel sharded(job, vision_transformer(), options);
    if (argc > 1) sharded.save_full(std::string(argv[1]) + "/initial.h5");

    // Each rank has its part of `images` images that begin with number `first`.
    const auto fill = [&](const fsdp::Batch& batch, std::size_t first) {
      first += static_cast<std::size_t>(job.rank()) * options.batch_size;
      for (std::size_t i = 0; i < options.batch_size; ++i)
        draw(static_cast<std::uint32_t>(first + i), batch.inputs().subspan(i * numbers, numbers), batch.labels()[i]);
    };
    for (int step = 1; step <= 20; ++step) {
      const fsdp::StepResult result =
          sharded.step(1e-3, [&](const fsdp::Batch& batch) { fill(batch, images * sharded.updates()); });
      if (job.rank() == 0) std::printf("step %d  loss %.9g\n", step, result.loss);
    }

    // Images that were not in an update.
    const auto held_out = [&](const fsdp::Batch& batch) { fill(batch, 100'000); };
    const double accuracy = sharded.measure(fsdp::accuracy, held_out);
    const std::vector<float> logits = sharded.predict(held_out);  // of this rank's images
    if (job.rank() == 0) {
      std::printf("held out  accuracy %.3f;", accuracy);
      for (std::size_t i = 0; i < std::min(classes, options.batch_size); ++i) {
        const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i * classes);
        std::printf("  %s is seen as %s", names[i],
                    names[static_cast<std::size_t>(std::max_element(row, row + classes) - row)]);
      }
      std::printf("\n");
    }
    return accuracy > 0.9 ? 0 : 1;
  });
}
