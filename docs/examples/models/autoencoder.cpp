// A variational autoencoder (Kingma and Welling 2014): mpirun -np 2 autoencoder [FOLDER]
// It has a layer and a loss of its own, and two outputs: the image, and the distribution of its code.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

namespace {

constexpr std::size_t side = 8, pixels = side * side, hidden = 40, code = 3, examples = 12, steps = 400;

/// A number from 0 to 1 that depends on all bits of n (splitmix64).
double uniform(std::uint64_t n) {
  n += 0x9e3779b97f4a7c15u;
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((n ^ (n >> 31)) >> 11) * 0x1p-53;
}

/// [mean, log variance] -> [z, mean, log variance], with z = mean + exp(log variance / 2) * noise. The noise depends only on
/// the update and the number of the example, not on the ranks. In an evaluation there is none.
class Sample final : public fsdp::Layer {
 public:
  std::size_t inputs() const override { return 2 * code; }
  std::size_t outputs() const override { return 3 * code; }
  void forward(const fsdp::ForwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      const float* const x = pass.x.row(r);
      for (std::size_t i = 0; i < code; ++i) pass.y.row(r)[i] = x[i] + std::exp(x[code + i] / 2) * noise(pass, r, i);
      std::copy_n(x, 2 * code, pass.y.row(r) + code);
    }
  }
  void backward(const fsdp::BackwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      const float *const x = pass.x.row(r), *const dy = pass.dy.row(r);
      for (std::size_t i = 0; i < code; ++i) {
        pass.dx.row(r)[i] = dy[i] + dy[code + i];
        pass.dx.row(r)[code + i] = dy[2 * code + i] + dy[i] * std::exp(x[code + i] / 2) / 2 * noise(pass, r, i);
      }
    }
  }

 private:
  static float noise(const fsdp::Pass& pass, std::size_t r, std::size_t i) {
    if (pass.update == 0) return 0;
    const std::uint64_t number = 2 * ((pass.update * examples + pass.first_sequence + r) * code + i);
    const double radius = std::sqrt(-2 * std::log(1 - uniform(number)));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform(number + 1)));
  }
};

/// The binary cross-entropy of the pixels plus the divergence of the code's distribution from the standard normal one.
class EvidenceBound final : public fsdp::Loss {
 public:
  std::size_t inputs() const override { return pixels + 2 * code; }
  bool takes_labels() const override { return false; }
  std::size_t targets() const override { return pixels; }
  void evaluate(const fsdp::LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      const float *const x = pass.x.row(r), *const target = pass.targets.row(r);
      float* const dx = pass.dx ? pass.dx.row(r) : nullptr;
      double sum = 0;
      for (std::size_t i = 0; i < pixels; ++i) {
        sum += static_cast<double>(std::max(x[i], 0.0f) - x[i] * target[i] + std::log1p(std::exp(-std::abs(x[i]))));
        if (dx) dx[i] = pass.scale * (1 / (1 + std::exp(-x[i])) - target[i]);
      }
      for (std::size_t i = pixels; i < pixels + code; ++i) {
        const float mean = x[i], log_variance = x[code + i], variance = std::exp(log_variance);
        sum += 0.5 * static_cast<double>(mean * mean + variance - 1 - log_variance);
        if (dx) dx[i] = pass.scale * mean, dx[code + i] = pass.scale * 0.5f * (variance - 1);
      }
      pass.losses[r] = static_cast<float>(sum);
    }
  }
};

/// An image of a bright disc whose centre and radius depend on the number of the example.
void draw(std::size_t number, float* image) {
  const double x = 1 + 5 * uniform(3 * number + 1), y = 1 + 5 * uniform(3 * number + 2),
               radius = 1 + 2 * uniform(3 * number + 3);
  for (std::size_t i = 0; i < pixels; ++i) {
    const double dx = static_cast<double>(i % side) - x, dy = static_cast<double>(i / side) - y;
    image[i] = dx * dx + dy * dy < radius * radius ? 1.0f : 0.0f;
  }
}

fsdp::Sequential make_model() {
  using fsdp::linear;
  fsdp::Sequential model;
  model.add("encoder", fsdp::sequential({{"in", linear(pixels, hidden)}, {"tanh", fsdp::tanh(hidden)}}));
  model.add("code",
            fsdp::parallel({{"mean", linear(hidden, code)}, {"log_variance", linear(hidden, code)}}, fsdp::Join::concatenate));
  model.add("sample", std::make_shared<Sample>());
  model.add("decoder",  // of z; the distribution is passed on to the loss
            fsdp::keep_columns(
                2 * code, fsdp::sequential(
                              {{"in", linear(code, hidden)}, {"tanh", fsdp::tanh(hidden)}, {"out", linear(hidden, pixels)}})));
  return model.loss(std::make_shared<EvidenceBound>());
}

}  // namespace

int main(int argc, char** argv) {
  const auto train = [&](fsdp::Job& job) {
    const auto ranks = static_cast<std::size_t>(job.size());
    job.agree([&] {
      if (examples % ranks != 0)
        throw fsdp::UserError("12 examples cannot be divided among the ranks; use 1, 2, 3, 4, 6 or 12");
    });
    const fsdp::FsdpOptions options = {.batch_size = examples / ranks};
    fsdp::FullyShardedDataParallel sharded(job, make_model(), options);
    if (argc > 1) sharded.save_full(std::string(argv[1]) + "/initial.h5");

    std::size_t first = 0;  // the number of the first example of all ranks
    const auto fill = [&](const fsdp::Batch& batch) {
      for (std::size_t b = 0; b < options.batch_size; ++b)
        draw(first + static_cast<std::size_t>(job.rank()) * options.batch_size + b, &batch.targets()[b * pixels]);
      std::copy(batch.targets().begin(), batch.targets().end(), batch.inputs().begin());
    };
    double loss = 0, initial = 0;
    for (std::size_t step = 1; step <= steps; ++step, first += examples) {
      loss = sharded.step(1e-2, fill).loss;
      initial = step == 1 ? loss : initial;
      if (job.rank() == 0 && (step <= 10 || step % 100 == 0)) std::printf("step %zu  loss %.9g\n", step, loss);
    }
    const double right = sharded.measure(
        [&](std::span<const float> outputs, const fsdp::Batch& batch) {
          double count = 0;
          for (std::size_t b = 0; b < options.batch_size; ++b)
            for (std::size_t i = 0; i < pixels; ++i)
              count += (outputs[b * (pixels + 2 * code) + i] > 0) == (batch.targets()[b * pixels + i] > 0.5f);
          return count / pixels;
        },
        fill);
    const std::vector<float> codes = sharded.predict_layer("code", fill);
    if (job.rank() == 0)
      std::printf("%.1f %% of the pixels of new images are right; the first code is %.2f %.2f %.2f\n", 100 * right,
                  static_cast<double>(codes[0]), static_cast<double>(codes[1]), static_cast<double>(codes[2]));
    return loss < 0.8 * initial && right > 0.85 ? 0 : 1;
  };
  return fsdp::run(argc, argv, train, {.device = "cpu"});  // the loops of Sample and EvidenceBound are for CPUs
}
