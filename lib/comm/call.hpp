// What a rank may wait for others at, and what is said when they do not come.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"

namespace fsdp {

enum class Call : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier, split, allocate };

/// A call, and what it is of as Stream::subject says it; null: nothing.
struct Called {
  Called(Call what, const char* of = nullptr) : call(what), subject(of) {}
  Call call;
  const char* subject;
};
/// "reduce-scatter", "all-gather of block 3"
std::string name_of(const Called& called);

/// "rank 3 on node7", "ranks 1 and 3 on node7", "ranks 1, 2, 3 and 12 more on node7 and node8"; `hosts` has that of each rank,
/// or nothing: then "rank 3", "ranks 1 and 3".
std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts = {});

/// The error of those who waited for these ranks of the job; `who` is as name_ranks() says it, `what` as name_of() does.
CollectiveTimeout not_arrived(const std::string& who, const std::vector<int>& ranks, std::string_view what, double timeout_s);
/// The same if these ranks may themselves wait for others.
CollectiveTimeout not_passed_on(const std::string& who, const std::vector<int>& ranks, std::string_view what, double timeout_s);
/// Sleeps before such an error is thrown, so that ranks that know more report first: ranks come to a collective, and so reach
/// the time limit, at different times.
void let_others_report_first(double timeout_s);

}  // namespace fsdp
