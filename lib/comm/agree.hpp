// One rank's failure becomes the same error of all ranks, so that all of them leave by the same way.
#pragma once

#include <functional>
#include <string>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace fsdp {

/// Runs `step` on this rank and agrees on its success: if it threw on any rank, every rank throws CollectiveError with the
/// message of the lowest such rank. For whatever may fail on some ranks only: reading files, allocating. `step` itself must not
/// communicate over `comm`. Collective over comm.
void agree(Group& comm, const std::function<void()>& step);

/// All ranks are to have the same text. Where a rank's is another than rank 0's, `refuse` is given that one, and throws; agrees
/// on that as agree() does. Collective over comm.
void require_same(Group& comm, const std::string& mine, const std::function<void(const std::string& first)>& refuse);

/// The ranks for which `works` is true run `work` on a thread, which may take hours; the others wait, and all meet often, so
/// that no collective waits for long. Once `asks_to_stop` says so on some rank, or the ranks cannot meet, `stop`, which `work`
/// may ask, does. `work` must not communicate. Agrees on its success as agree() does. Collective over comm.
void work_meanwhile(Group& comm, bool works, const std::function<void(const std::function<bool()>& stop)>& work,
                    const std::function<bool()>& asks_to_stop = nullptr);

struct Failure {
  std::string message;
  int exit_code;
  bool damage = false;
};
/// The exception that is being handled.
Failure describe_current_exception();

}  // namespace fsdp
