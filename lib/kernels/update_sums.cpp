#include "kernels/update_sums.hpp"

#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void clear(Stream& stream, UpdateSums& sums) {
  static_assert(sizeof(UpdateSums) % sizeof(float) == 0);
  fill_zero(stream, reinterpret_cast<float*>(&sums), sizeof(UpdateSums) / sizeof(float));
}

void gradient_norm(Stream& stream, UpdateSums& sums, const UpdateRules& rules) { launch(stream, FinishNorm{&sums, rules}, 1); }

}  // namespace fsdp::kernels
