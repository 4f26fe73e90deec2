#include "kernels/cuda_twin_cpu.hpp"

#include "kernels/element_update.hpp"

namespace fsdp::kernels {

template <class Rule>
void update_on_cpu(Stream& stream, const ElementUpdate<Rule, float>& body, std::size_t rows) {
  launch_rows(stream, row_functions<ElementUpdate<Rule, float>>, &body, rows);
}

template void update_on_cpu(Stream&, const ElementUpdate<AdamRule<false>, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<AdamRule<true>, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<SgdRule, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<MomentumRule, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<LionRule, float>&, std::size_t);

}  // namespace fsdp::kernels
