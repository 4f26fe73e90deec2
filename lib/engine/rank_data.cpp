#include "engine/rank_data.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/narrow.hpp"
#include "comm/agree.hpp"
#include "files/checksum.hpp"

namespace fsdp {

BatchCut batch_cut(const ShardingOptions& sharding, const Group& world) {
  return {sharding.batch.B, sharding.batch.T, sharding.plan.micro_batches, world.rank(), world.size()};
}

std::uint64_t sum_of_sets(const std::vector<std::uint64_t>& sums) {
  const bool known = std::find(sums.begin(), sums.end(), 0) == sums.end();
  return known ? checksum(sums.data(), sums.size() * sizeof sums[0]) | 1 : 0;
}

TokenCheck check_tokens(Group& world, const Tokens& tokens, std::size_t vocab_size) {
  const auto me = static_cast<std::size_t>(world.rank()), ranks = static_cast<std::size_t>(world.size());
  const TokenCheck mine = agree(world, [&] { return check_vocabulary(tokens, vocab_size, me, ranks); });
  const std::array<std::int64_t, 2> told = {std::int64_t{mine.largest}, std::bit_cast<std::int64_t>(mine.sum)};
  const std::vector<std::int64_t> all = world.gather(told);
  TokenCheck whole;
  for (std::size_t i = 0; i < all.size(); i += told.size()) {
    whole.largest = std::max(whole.largest, static_cast<std::uint32_t>(all[i]));
    whole.sum += std::bit_cast<std::uint64_t>(all[i + 1]);
  }
  return whole;
}

TokenCheck check_tokens(Group& world, const Mixture& mixture, std::size_t vocab_size) {
  TokenCheck whole;
  std::vector<std::uint64_t> sums;
  for (const Ingredient& each : mixture.ingredients()) {
    const TokenCheck check = check_tokens(world, each.samples.tokens(), vocab_size);
    whole.largest = std::max(whole.largest, check.largest);
    sums.push_back(check.sum);
  }
  whole.sum = sum_of_sets(sums);
  return whole;
}

}  // namespace fsdp
