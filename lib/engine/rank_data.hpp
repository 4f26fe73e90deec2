// The data of a rank: which part of an update's sequences it reads, and the check of all tokens before the first update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "data/mixture.hpp"
#include "data/tokens.hpp"
#include "plan/sharding.hpp"

namespace fsdp {

/// The part of this rank. Not collective.
BatchCut batch_cut(const ShardingOptions& sharding, const Group& world);

/// Checks tokens as check_vocabulary() does; the ranks share the work. Returns the result for all tokens, on all ranks; that of
/// a mixture has a checksum over all data sets. Collective; throws CollectiveError.
TokenCheck check_tokens(Group& world, const Tokens& tokens, std::size_t vocab_size);
TokenCheck check_tokens(Group& world, const Mixture& mixture, std::size_t vocab_size);
/// The checksum of data sets with these checksums; 0 if one is not known.
std::uint64_t sum_of_sets(const std::vector<std::uint64_t>& sums);

}  // namespace fsdp
