#include "comm/agree.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <vector>

#include "base/narrow.hpp"
#include "base/program.hpp"
#include "device/device.hpp"

namespace fsdp {

Failure describe_current_exception() {
  try {
    throw;
  } catch (const CollectiveError& error) {
    return {error.what(), error.exit_code, error.damage};
  } catch (const DamagedError& error) {
    return {error.what(), exit_code::failed, true};
  } catch (const RunError& error) {
    return {error.what(), exit_code::failed};
  } catch (const UserError& error) {
    return {error.what(), exit_code::wrong_use};
  } catch (const std::bad_alloc&) {
    return {
        "out of memory (the system gave no more); use more ranks, a smaller `micro-batch` or `recomputation of activations`",
        exit_code::failed};
  } catch (const std::exception& error) {
    return {error.what(), exit_code::failed};
  } catch (...) {
    return {"an unknown error", exit_code::failed};
  }
}

void agree(Group& comm, const std::function<void()>& step) {
  const auto me = static_cast<std::size_t>(comm.rank());
  constexpr std::int64_t damage = 256;                                        // beside an exit code
  std::vector<std::int64_t> codes(static_cast<std::size_t>(comm.size()), 0);  // 0: no failure
  std::string message;
  try {
    step();
  } catch (...) {
    const Failure failure = describe_current_exception();
    message = failure.message;
    codes[me] = failure.exit_code + (failure.damage ? damage : 0);
  }
  comm.sum(codes);
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (first == codes.end()) return;

  const int speaker = narrow<int>(first - codes.begin());
  const std::int64_t length = comm.sum(static_cast<std::int64_t>(comm.rank() == speaker ? message.size() : 0));
  message.resize(static_cast<std::size_t>(length));
  comm.broadcast(message.data(), message.size(), speaker);
  const bool everywhere = std::find(codes.begin(), codes.end(), 0) == codes.end();
  throw CollectiveError(message, speaker, everywhere, static_cast<int>(*first % damage), *first >= damage);
}

}  // namespace fsdp
