#include "train/mean_loss.hpp"

#include <exception>

#include "comm/agree.hpp"

namespace fsdp {

double mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                 const std::function<void(std::size_t done)>& progress) {
  double sum = 0;
  std::exception_ptr problem;
  for (std::size_t b = 0; b < batches.batches(); ++b) {
    sum += executor.evaluate([&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      try {
        batches.read(b, inputs, targets);
      } catch (...) {  // the others are in the midst of this batch, too
        if (!problem) problem = std::current_exception();
        batches.clear(inputs, targets);
      }
    });
    if (progress) progress(b + 1);
  }
  agree(world, [&] {
    if (problem) std::rethrow_exception(problem);
  });
  return world.sum(sum) / static_cast<double>(batches.targets());
}

}  // namespace fsdp
