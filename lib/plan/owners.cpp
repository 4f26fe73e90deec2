#include "plan/owners.hpp"

#include <algorithm>
#include <tuple>

namespace fsdp {

std::vector<std::vector<int>> matrix_owners(const Layout& layout, int ranks, std::size_t at_once) {
  std::vector<std::vector<int>> owners(layout.units().size());
  struct Matrix {
    double cost;
    std::size_t unit, position;
  };
  std::vector<Matrix> group;
  std::size_t units = 0;
  std::vector<double> total(static_cast<std::size_t>(ranks));  // work of each rank so far
  const auto deal_out = [&] {
    std::stable_sort(group.begin(), group.end(), [](const Matrix& a, const Matrix& b) { return a.cost > b.cost; });
    std::vector<double> now(total.size());
    for (const Matrix& matrix : group) {
      std::size_t best = 0;
      for (std::size_t r = 1; r < total.size(); ++r)
        if (std::tie(now[r], total[r]) < std::tie(now[best], total[best])) best = r;
      now[best] += matrix.cost;
      total[best] += matrix.cost;
      owners[matrix.unit][matrix.position] = static_cast<int>(best);
    }
    group.clear();
    units = 0;
  };
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const Unit& unit = layout.units()[u];
    const WholeMatrices& whole = unit.rule->whole;
    if (!unit.trainable || !whole.work) continue;
    owners[u].resize(unit.parameters.size());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const Shape& shape = layout.shape(unit.parameters[i]);
      group.push_back({whole.cost(numel(shape) / shape.back(), shape.back()), u, i});
    }
    if (++units == at_once) deal_out();
  }
  deal_out();
  return owners;
}

}  // namespace fsdp
