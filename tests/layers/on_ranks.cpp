// Layers and losses whose results depend on all ranks: dropout masks, which are those of global indices; the mean over rows
// that count, with weights; and labels that are refused on all ranks.
#include "mpi_main.hpp"

#include <algorithm>
#include <cmath>

#include <fsdp/fsdp.hpp>

#include "device/device.hpp"
#include "layers/place.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t sequences = 6, length = 3, rows = sequences * length, width = 16;  // of an update
constexpr std::uint64_t seed = 5;

/// How an update is divided: this rank has `accumulation` micro-batches of B sequences.
struct Division {
  std::size_t B, accumulation;
};

std::vector<Division> divisions() {
  const std::size_t mine = sequences / static_cast<std::size_t>(world().size());
  if (mine == 1) return {{1, 1}};
  return {{mine, 1}, {1, mine}};
}

FsdpOptions options_of(const Division& division) {
  FsdpOptions options;
  options.batch_size = division.B, options.sequence_length = length;
  options.gradient_accumulation_steps = division.accumulation;
  options.optimizer = "sgd", options.weight_decay = 0;
  return options;
}

/// The number of the first row of a micro-batch among all rows of the update.
std::size_t first_row(const Batch& batch, const Job& job, const Division& division) {
  const auto ranks = static_cast<std::size_t>(job.size()), rank = static_cast<std::size_t>(job.rank());
  return (batch.micro_batch() * ranks + rank) * division.B * length;
}

/// Runs dropout of the layer `name` over all rows of an update at once, in place.
void drop(std::vector<float>& x, const std::string& name, std::uint64_t update, std::uint64_t of_seed = seed,
          std::uint32_t number = 0) {
  static const std::shared_ptr<Stream> stream = make_host_stream();
  Pass pass;
  pass.stream = stream.get();
  pass.B = sequences, pass.T = length, pass.update = update, pass.seed = of_seed, pass.place = place_of(name);
  const Tensor tensor = {x.data(), rows, width, width, DType::f32};
  ops::dropout(pass, 0.5, tensor, tensor, number);
}

}  // namespace

// Inputs are multiples of 1/8, rates are 1/2 and sizes of rows are powers of two, so that the losses of rows are exact, and
// their mean has the same bits at any number of ranks.
BOOST_AUTO_TEST_CASE(masks_depend_only_on_global_indices) {
  Sequential model;
  model.add("positions", position_embedding(length, width, 0));  // zeros: the model needs a parameter
  model.add("a", dropout(width, 0.5));
  model.add("inner", residual(sequential({{"b", dropout(width, 0.5)}, {"same", identity(width)}})));
  model.loss(l1_loss(width));
  std::vector<float> x(rows * width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.5f + static_cast<float>((7 * (i / width) + 3 * (i % width)) % 16) / 8;
  const auto after = [&](std::uint64_t update) {  // what the layers give in this update
    std::vector<float> y = x;
    drop(y, "a", update);
    std::vector<float> branch = y;
    drop(branch, "inner.b", update);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += branch[i];
    return y;
  };
  const auto sum_of = [](const std::vector<float>& numbers) {
    double sum = 0;
    for (const float number : numbers) sum += static_cast<double>(number);
    return sum;
  };
  for (const Division& division : divisions())
    for (const bool recomputes : {false, true}) {
      Job job;
      FsdpOptions options = options_of(division);
      options.seed = seed, options.activation_checkpointing = recomputes;
      FullyShardedDataParallel sharded(job, model, options);
      const auto fill = [&](const Batch& batch) {
        const std::size_t first = first_row(batch, job, division) * width;
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(first), batch.inputs().size(), batch.inputs().begin());
        std::fill(batch.targets().begin(), batch.targets().end(), 0.0f);
      };
      BOOST_TEST(sharded.step(0, fill).loss == sum_of(after(1)) / width / rows);
      BOOST_TEST(sharded.step(1, fill).loss == sum_of(after(2)) / width / rows);
      BOOST_TEST(sum_of(after(1)) != sum_of(after(2)));
      // The gradient of x is y / x, because all y are at least 0; weights were 0.
      std::vector<double> gradient(length * width);
      const std::vector<float> y = after(2);
      for (std::size_t i = 0; i < y.size(); ++i)
        gradient[i % gradient.size()] += static_cast<double>(y[i]) / static_cast<double>(x[i]) / width / rows;
      double apart = 0;  // on rank 0
      sharded.for_each_parameter([&](const std::string&, const Shape&, std::span<const float> weights) {
        for (std::size_t i = 0; i < gradient.size(); ++i)
          apart = std::max(apart, std::abs(static_cast<double>(weights[i]) + gradient[i]));
      });
      BOOST_TEST(apart < 1e-7);
    }
  Job job;
  FullyShardedDataParallel sharded(job, model, options_of(divisions().front()));
  const std::vector<float> outputs = sharded.predict([](const Batch& batch) {
    for (float& number : batch.inputs()) number = 1.5f;
  });
  for (const float number : outputs) BOOST_REQUIRE_EQUAL(number, 3);  // in an evaluation nothing is dropped
}

BOOST_AUTO_TEST_CASE(masks_differ_between_layers_seeds_and_numbers) {
  const std::vector<float> ones(rows * width, 1);
  const auto mask = [&](const std::string& name, std::uint64_t update, std::uint64_t of_seed = seed, std::uint32_t number = 0) {
    std::vector<float> x = ones;
    drop(x, name, update, of_seed, number);
    return x;
  };
  const std::vector<float> first = mask("blocks.0.dropout", 1);
  const std::vector<std::vector<float>> others = {mask("blocks.1.dropout", 1), mask("blocks.0.dropout", 2),
                                                  mask("blocks.0.dropout", 1, seed + 1), mask("blocks.0.dropout", 1, seed, 1)};
  for (const std::vector<float>& other : others) {
    std::size_t same = 0;
    for (std::size_t i = 0; i < first.size(); ++i) same += first[i] == other[i];
    BOOST_TEST(same > first.size() / 4);  // half of the elements, on average
    BOOST_TEST(same < first.size() * 3 / 4);
  }
  BOOST_TEST((mask("blocks.0.dropout", 1) == first));
  BOOST_TEST((mask("blocks.0.dropout", 0) == ones));
  BOOST_TEST(place_of("dropout", place_of("0", place_of("blocks"))) == place_of("blocks.0.dropout"));
  BOOST_TEST(place_of("", place_of("blocks")) == place_of("blocks"));
}

namespace {

constexpr std::size_t classes = 4;
const std::vector<float> of_classes = {0.5f, 3, 0.125f, 1};

/// Labels of all rows of the update: some are negative, and some are 3, which is ignored, or 255.
std::int32_t label_of(std::size_t row, std::int32_t ignored) {
  return row % 7 == 5 ? -1 : row % 5 == 3 ? ignored : static_cast<std::int32_t>(row * row % 3);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_mean_is_that_of_all_rows_that_count) {
  const Sequential layers = Sequential().add("out", linear(2, classes));
  for (const std::int32_t ignored : {3, 255})
    for (const bool weighted : {false, true})
      for (const Division& division : divisions()) {
        Job job;
        const std::vector<float> weight = weighted ? of_classes : std::vector<float>();
        FullyShardedDataParallel sharded(
            job, Sequential(layers).loss(cross_entropy(classes, {.weight = weight, .ignore_index = ignored})),
            options_of(division));
        const auto fill = [&](const Batch& batch) {
          const std::size_t first = first_row(batch, job, division);
          for (std::size_t r = 0; r < batch.labels().size(); ++r) {
            batch.inputs()[2 * r] = static_cast<float>((first + r) % 5) - 2, batch.inputs()[2 * r + 1] = 1;
            batch.labels()[r] = label_of(first + r, ignored);
          }
        };
        std::vector<float> w, bias;
        const auto read = [&] {
          sharded.for_each_parameter([&](const std::string& name, const Shape&, std::span<const float> values) {
            (name == "out.weight" ? w : bias).assign(values.begin(), values.end());
          });
        };
        read();
        const std::vector<float> before = bias;
        const double loss = sharded.step(1, fill).loss;
        const std::vector<float> w_before = w;
        read();
        if (world().rank() > 0) continue;
        // All rows again, in double.
        double sum = 0, weights = 0;
        std::vector<double> gradient(classes);
        for (std::size_t r = 0; r < rows; ++r) {
          const std::int32_t label = label_of(r, ignored);
          if (label < 0 || label == ignored) continue;
          const double of_label = weighted ? static_cast<double>(of_classes[static_cast<std::size_t>(label)]) : 1;
          double logits[classes], total = 0;
          for (std::size_t c = 0; c < classes; ++c) {
            logits[c] = static_cast<double>(w_before[2 * c]) * (static_cast<double>(r % 5) - 2) +
                        static_cast<double>(w_before[2 * c + 1]) + static_cast<double>(before[c]);
            total += std::exp(logits[c]);
          }
          sum += of_label * (std::log(total) - logits[label]), weights += of_label;
          for (std::size_t c = 0; c < classes; ++c)
            gradient[c] += of_label * (std::exp(logits[c]) / total - (static_cast<std::int32_t>(c) == label ? 1 : 0));
        }
        BOOST_TEST(std::abs(loss - sum / weights) < 1e-6);
        for (std::size_t c = 0; c < classes; ++c) BOOST_TEST(std::abs(before[c] - bias[c] - gradient[c] / weights) < 1e-6);
      }
}

BOOST_AUTO_TEST_CASE(metrics_count_rows_without_weights) {
  Job job;
  const Division division = divisions().front();
  FullyShardedDataParallel sharded(
      job, Sequential().add("out", linear(2, classes)).loss(cross_entropy(classes, {.weight = of_classes, .ignore_index = 3})),
      options_of(division));
  const auto fill = [&](const Batch& batch) {
    const std::size_t first = first_row(batch, job, division);
    std::fill(batch.inputs().begin(), batch.inputs().end(), 0.0f);
    for (std::size_t r = 0; r < batch.labels().size(); ++r) batch.labels()[r] = label_of(first + r, 3);
  };
  double labelled = 0;  // rows that have label 1 or count
  double counted = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int32_t label = label_of(r, 3);
    counted += label >= 0 && label != 3, labelled += label == 1;
  }
  const auto count_ones = [](std::span<const float>, const Batch& batch) {
    double count = 0;
    for (const std::int32_t label : batch.labels()) {
      count += label == 1;
      BOOST_TEST(label != 3);
    }
    return count;
  };
  BOOST_TEST(sharded.measure(count_ones, fill) == labelled / counted);
}

BOOST_AUTO_TEST_CASE(wrong_labels_of_one_rank_are_refused_on_all) {
  Job job;
  FullyShardedDataParallel sharded(
      job, Sequential().add("out", linear(2, classes)).loss(cross_entropy(classes, {.weight = {0, 1, 1, 1}})),
      options_of(divisions().front()));
  const auto with_labels = [&](std::int32_t mine, std::int32_t of_last) {
    return [=, &job](const Batch& batch) {
      std::fill(batch.inputs().begin(), batch.inputs().end(), 0.0f);
      for (std::int32_t& label : batch.labels()) label = mine;
      if (job.rank() == job.size() - 1) batch.labels().back() = of_last;
    };
  };
  const auto refused = [&](const auto& fill, const std::string& message) {
    BOOST_CHECK_EXCEPTION(sharded.step(0.1, fill), CollectiveError,
                          [&](const CollectiveError& error) { return std::string(error.what()).find(message) == 0; });
  };
  const std::string last = std::to_string(divisions().front().B * length - 1);
  refused(with_labels(1, classes),
          "label 4 at position " + last + " of a batch is out of the model's range (values must be below 4)");
  refused(with_labels(-1, -100), "no row of this batch counts in the loss (all labels are negative, or ignored, on all ranks)");
  refused(with_labels(0, -1),
          "no row of this batch counts in the loss (all labels are of classes with weight 0, on all ranks)");
  BOOST_TEST(sharded.updates() == 0u);
  BOOST_TEST(sharded.step(0.1, with_labels(0, 1)).loss > 0);

  struct WrongWeight final : Loss {
    std::size_t inputs() const override { return ::classes; }
    bool takes_labels() const override { return true; }
    double weight(std::int32_t label) const override { return label == 2 ? std::nan("") : 1; }
    void evaluate(const LossPass&) const override {}
  };
  FullyShardedDataParallel wrong(job, Sequential().add("out", linear(2, classes)).loss(std::make_shared<WrongWeight>()),
                                 options_of(divisions().front()));
  BOOST_CHECK_EXCEPTION(wrong.step(0.1, with_labels(1, 2)), CollectiveError, [](const CollectiveError& error) {
    return std::string(error.what()).find("the loss gives label 2 the weight nan") == 0;
  });
}
