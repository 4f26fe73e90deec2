#include "comm/topology.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace fsdp {

int ranks_of_each_node(std::span<const int> nodes) {
  const auto other = std::find_if(nodes.begin(), nodes.end(), [&](int node) { return node != nodes.front(); });
  const auto n = static_cast<std::size_t>(other - nodes.begin());
  if (n == 0 || nodes.size() % n != 0) return 0;
  std::vector<int> seen;
  for (std::size_t first = 0; first < nodes.size(); first += n) {
    const auto of_node = nodes.subspan(first, n);
    if (std::any_of(of_node.begin(), of_node.end(), [&](int node) { return node != of_node.front(); })) return 0;
    seen.push_back(of_node.front());
  }
  std::sort(seen.begin(), seen.end());
  return std::adjacent_find(seen.begin(), seen.end()) == seen.end() ? static_cast<int>(n) : 0;
}

bool is_subtree(std::size_t ranks_of_node) { return std::has_single_bit(ranks_of_node); }

std::size_t elements_in_parts(std::size_t count, std::size_t element_bytes, std::size_t ranks_of_node) {
  return element_bytes == sizeof(float) ? count / ranks_of_node * ranks_of_node : 0;
}

}  // namespace fsdp
