// The calls in which a rank may wait for other ranks, and the errors that it throws if those ranks do not arrive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"

namespace fsdp {

enum class Call : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier, split, allocate };

/// A call and the name of its data (Stream::subject), such as "block 3". A null `subject` means no name.
struct Called {
  Called(Call what, const char* of = nullptr) : call(what), subject(of) {}
  Call call;
  const char* subject;
};
/// Returns a name for messages, such as "reduce-scatter" or "all-gather of block 3".
std::string name_of(const Called& called);

/// Returns "rank 3 on node7", "ranks 1 and 3 on node7" or "ranks 1, 2, 3 and 12 more on node7 and node8". `hosts` has the host
/// of each rank; if it is empty: "rank 3", "ranks 1 and 3".
std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts = {});

/// Returns the error that a rank throws after it has waited for `ranks` (numbered as in the job). `who` comes from
/// name_ranks(), `what` from name_of().
CollectiveTimeout not_arrived(const std::string& who, const std::vector<int>& ranks, std::string_view what, double timeout_s);
/// The same, but the message adds that `ranks` may themselves wait for other ranks.
CollectiveTimeout not_passed_on(const std::string& who, const std::vector<int>& ranks, std::string_view what, double timeout_s);
/// Sleeps for a while; call this before not_passed_on(). So a rank that waits directly for the missing rank reports first, and
/// the first message names the rank that is really missing.
void let_others_report_first(double timeout_s);

}  // namespace fsdp
