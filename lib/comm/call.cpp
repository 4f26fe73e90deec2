#include "comm/call.hpp"

#include <array>

#include "base/format.hpp"

namespace fsdp {

std::string_view name_of(Call call) {
  constexpr std::array<std::string_view, 7> names = {"all-gather", "reduce-scatter", "all-reduce", "broadcast",
                                                     "barrier",    "split",          "allocate"};
  return names[static_cast<std::size_t>(call)];
}

CollectiveTimeout not_arrived(const std::string& who, int rank, std::string_view what, double timeout_s) {
  return CollectiveTimeout(
      format("{} has not arrived at {} within {} (it hangs, was stopped, or is busy with something else); see what it does, "
             "or raise `longest wait`",
             who, what, format_duration(timeout_s)),
      who, rank, timeout_s);
}

}  // namespace fsdp
