// Agreement between ranks: a failure of one rank becomes the same error on all ranks, so that all of them stop in the same
// place.
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
/// The same for a step that returns something, which agree() returns.
template <class Step>
requires(!std::is_void_v<std::invoke_result_t<Step&>>) std::invoke_result_t<Step&> agree(Group& comm, Step step) {
  std::optional<std::invoke_result_t<Step&>> made;
  agree(comm, [&] { made.emplace(step()); });
  return *std::move(made);
}

/// Checks that all ranks have the same text. A rank with another text than rank 0 calls `refuse` with rank 0's text; `refuse`
/// throws, and the error reaches all ranks as in agree(). Collective over comm.
void require_same(Group& comm, const std::string& mine, const std::function<void(const std::string& first)>& refuse);

/// The ranks with `works` == true run `work` on a thread, which may take hours. Meanwhile all ranks meet often, so that no
/// collective waits for long. `work` is given a function `stop`, which returns true after `asks_to_stop` has returned true on
/// some rank, or after the ranks' meetings have failed. `work` must not communicate. A failure of `work` reaches all ranks as
/// in agree(). Collective over comm.
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
