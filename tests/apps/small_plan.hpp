// The model of tests of fsdp-plan and of predictions: its sizes can be computed by hand.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "fsdp-plan/plan_table.hpp"
#include "kernels/exact_sum.hpp"

namespace fsdp::test {

inline PlanTableOptions parse(std::vector<const char*> arguments) {
  PlanTableOptions options;
  OptionTable table = plan_option_table(options);
  arguments.insert(arguments.begin(), "fsdp-plan");
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  return options;
}

/// GPT-2 of 3 blocks. Elements: root 32*16 + 8*16 + 2*16 = 672 (embeddings, positions, norm); a block 2*32 (norms)
/// + 16*48 + 48 + 16*16 + 16 (attention) + 16*64 + 64 + 64*16 + 16 (feed-forward) = 3280. All tensors are multiples of 16.
inline PlanTableOptions small(const char* nodes, const char* ranks_per_node, std::vector<const char*> more = {}) {
  more.insert(more.end(),
              {"--arch", "gpt2", "--decoder-layers", "3", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2",
               "--vocab-size", "32", "--tokens-per-sample", "8", "--nodes", nodes, "--ranks-per-node", ranks_per_node});
  return parse(more);
}
inline constexpr std::size_t root = 672, block = 3280, blocks = 3, all = root + blocks * block;
inline constexpr std::size_t norm_words = kernels::ExactSum::words;

inline const PlanRow& row_of(const PlanTable& table, std::string_view strategy) {
  return *std::find_if(table.rows.begin(), table.rows.end(),
                       [&](const PlanRow& row) { return row.placement->name == strategy; });
}

}  // namespace fsdp::test
