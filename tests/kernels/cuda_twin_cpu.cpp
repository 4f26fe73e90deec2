#include "kernels/cuda_twin_cpu.hpp"

#include "kernels/element_update.hpp"

namespace fsdp::kernels {

template <class Rule, class State>
void update_on_cpu(Stream& stream, const ElementUpdate<Rule, State>& body, std::size_t rows) {
  launch_rows(stream, row_functions<ElementUpdate<Rule, State>>, &body, rows);
}

template <class Rule>
void update_on_cpu(Stream& stream, const NarrowUpdate<Rule>& body, std::size_t rows) {
  launch_rows(stream, row_functions<NarrowUpdate<Rule>>, &body, rows);
}

template void update_on_cpu(Stream&, const NarrowUpdate<AdamRule<false>>&, std::size_t);
template void update_on_cpu(Stream&, const NarrowUpdate<AdamRule<true>>&, std::size_t);
template void update_on_cpu(Stream&, const NarrowUpdate<MomentumRule>&, std::size_t);
template void update_on_cpu(Stream&, const NarrowUpdate<AdagradRule>&, std::size_t);
template void update_on_cpu(Stream&, const NarrowUpdate<LionRule>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<AdamRule<false>, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<AdamRule<false>, std::uint16_t>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<KeepRule, std::uint16_t>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<AdamRule<true>, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<SgdRule, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<MomentumRule, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<LionRule, float>&, std::size_t);
template void update_on_cpu(Stream&, const ElementUpdate<AverageRule, float>&, std::size_t);

}  // namespace fsdp::kernels
