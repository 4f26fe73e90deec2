#include "engine/mean_loss.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"

namespace fsdp {

std::optional<MeanLoss> mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                                  const std::function<void(std::size_t done)>& progress, const std::function<bool()>& stop,
                                  const TakeLosses& take) {
  LossSum sum;
  const std::size_t of_batch = executor.evaluated_batch().inputs / sizeof(std::int32_t);
  std::vector<std::int32_t> taken(take ? of_batch : 0);  // the targets of a batch
  std::vector<float> losses(taken.size());
  std::exception_ptr problem;
  for (std::size_t b = 0; b < batches.batches(); ++b) {
    if (stop && world.sum(std::int64_t{stop()}) > 0) return std::nullopt;
    const auto read = [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      try {
        batches.read(b, inputs, targets);
      } catch (...) {  // the other ranks need this rank in collectives, so continue and throw at the end
        if (!problem) problem = std::current_exception();
        batches.clear(inputs, targets);
      }
      std::copy_n(targets, taken.size(), taken.data());
    };
    sum += executor.evaluate(read, take ? losses.data() : nullptr);
    if (take) take(taken, losses);
    if (progress) progress(b + 1);
  }
  agree(world, [&] {
    if (problem) std::rethrow_exception(problem);
  });
  const LossSum all = all_ranks(sum, world);
  const auto targets = static_cast<double>(batches.targets());
  return MeanLoss{all.value() / targets, static_cast<double>(all.likeliest) / targets, all.entropy() / targets};
}

LossSum all_ranks(const LossSum& sum, Group& world) {
  std::int64_t words[LossSum::words];
  std::memcpy(words, &sum, sizeof sum);
  world.sum(words);
  LossSum all;
  std::memcpy(&all, words, sizeof all);
  return all;
}

bool note_validation(std::optional<Validations>& all, std::uint64_t update, double loss) {
  constexpr double none = std::numeric_limits<double>::max();
  const Validations before = all.value_or(Validations{.best_loss = none});
  const bool is_best = loss < before.best_loss;
  all = Validations{update, std::isfinite(loss) ? loss : none, is_best ? update : before.best_update,
                    is_best ? loss : before.best_loss, is_best ? 0 : before.since_best + 1};
  return is_best;
}

void require_finite_loss(double loss) {
  if (!std::isfinite(loss))
    throw RunError(
        format("the model's loss is {} (its weights are not finite, or its activations overflow in this type); use another "
               "checkpoint, or compute in fp32",
               std::isnan(loss) ? "NaN" : "infinite"));
}

}  // namespace fsdp
