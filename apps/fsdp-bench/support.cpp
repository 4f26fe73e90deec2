#include "fsdp-bench/support.hpp"

#include "base/format.hpp"
#include "base/timer.hpp"

namespace fsdp {

std::string format_rate(double flops, DeviceKind kind) {
  return is_host(kind) ? format("{:.0f} GFLOP/s", flops / 1e9) : format("{:.1f} TFLOP/s", flops / 1e12);
}

std::string format_share(double flops, std::optional<double> peak) {
  return peak ? format("{:.0f} %", 100 * flops / *peak) : std::string("-");
}

double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world) {
  return static_cast<double>(batch.rows() * sharding.plan.micro_batches * static_cast<std::size_t>(world.size()));
}

double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world) {
  executor.reset_times();
  world.barrier();
  const Timer timer;
  executor.run_update(batches, {.update = update, .learning_rate = 1e-4, .clip_norm = 1.0, .tokens = tokens});
  world.barrier();
  return timer.seconds();
}

}  // namespace fsdp
