// Agreement between ranks: if one rank fails, all ranks throw the same error at the same point of the program.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace fsdp {

/// Runs `step` on this rank. If it threw on any rank, every rank throws CollectiveError with the message of the lowest rank
/// that failed. Use it for steps that may fail on some ranks only, such as reading a file or allocating memory. `step` itself
/// must not communicate over `comm`. Collective over comm.
void agree(Group& comm, const std::function<void()>& step);
/// The same for a `step` that returns a value; agree() then returns that value.
template <class Step>
requires(!std::is_void_v<std::invoke_result_t<Step&>>) std::invoke_result_t<Step&> agree(Group& comm, Step step) {
  std::optional<std::invoke_result_t<Step&>> made;
  agree(comm, [&] { made.emplace(step()); });
  return *std::move(made);
}

/// Checks that all ranks pass the same text. A rank whose text differs from that of rank 0 calls `refuse` with the text of rank
/// 0. `refuse` must throw; all ranks then throw its error, as in agree(). Collective over comm.
void require_same(Group& comm, const std::string& mine, const std::function<void(const std::string& first)>& refuse);

/// Runs `work`, which may take hours, on an additional thread of each rank that passes `works` = true. Until `work` has ended
/// on all these ranks, all ranks often run a small collective, so that no rank waits in a collective for longer than the time
/// limit. `work` gets a function `stop`, which returns true after `asks_to_stop` has returned true on some rank, or after one
/// of these collectives has failed. `work` must not communicate. If it throws, all ranks throw its error, as in agree().
/// Collective over comm.
void work_meanwhile(Group& comm, bool works, const std::function<void(const std::function<bool()>& stop)>& work,
                    const std::function<bool()>& asks_to_stop = nullptr);

struct Failure {
  std::string message;
  int exit_code;
  bool damage = false;
};
/// Describes the exception that is being handled; call it in a catch block.
Failure describe_current_exception();

}  // namespace fsdp
