// What a rank may wait for another at, and what is said when the other does not come.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/communicator.hpp"

namespace fsdp {

enum class Call : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier, split, allocate };
/// "reduce-scatter"
std::string_view name_of(Call call);

/// The error of those who waited; `who` is "rank 3 on node7" and `rank` 3 (-1: unknown), `what` as name_of() says it, or
/// "all-gather of block 3".
CollectiveTimeout not_arrived(const std::string& who, int rank, std::string_view what, double timeout_s);
inline CollectiveTimeout not_arrived(const std::string& who, int rank, Call call, double timeout_s) {
  return not_arrived(who, rank, name_of(call), timeout_s);
}

}  // namespace fsdp
