// The kinds of failure, and nothing else:
//   UserError   wrong use, which the user can mend: "<problem> (<why>); <what to do>". Printed once, no stack; exit code 2.
//   RunError    the same form, but the command is right: a full disk, a folder in use. Exit code 1.
//   DamagedError  a RunError: what a file holds is not what was written there.
//   CollectiveError  a failure of one rank, as every rank throws it (comm/agree.hpp makes it).
//   CallError   a call to MPI, HDF5, oneDNN or the system failed: API, text, file:line. Exit code 1.
//   expect()    a bug of ours: throws InternalError with file:line. Exit code 1.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace fsdp {

/// A mistake that the user can mend. The message says what is wrong, why that is a problem, and what to do.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A failure that is not in the command: the same command works once its cause is removed.
struct RunError : UserError {
  using UserError::UserError;
};

/// A file that was read, and whose contents are not what was written.
struct DamagedError : RunError {
  using RunError::RunError;
};

/// A failure that all ranks know of and throw at the same place, with the same message. One rank prints it, the job ends in
/// good order.
struct CollectiveError : UserError {
  CollectiveError(const std::string& message, int speaker_rank, bool everywhere, int code, bool by_damage = false)
      : UserError(message), speaker(speaker_rank), all(everywhere), exit_code(code), damage(by_damage) {}
  int speaker;    // the lowest rank that failed itself: it prints
  bool all;       // every rank failed: rank and host say nothing
  int exit_code;  // 2 if the speaker met a UserError (RunError: 1), else 1
  bool damage;    // the speaker met a DamagedError
};

/// A failed call of a library or of the operating system.
struct CallError : std::runtime_error {
  CallError(std::string_view api, std::string_view problem, std::source_location where = std::source_location::current());
};

/// A bug in this program.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Its text; of a thread that cannot be started also why and what to do, as the system says "Resource temporarily unavailable".
std::string message_of(const std::system_error& error);

[[noreturn]] void fail_expectation(std::string_view what, std::source_location where);

/// Checks what must hold if this program is right. Cheap; always on.
inline void expect(bool ok, std::string_view what, std::source_location where = std::source_location::current()) {
  if (!ok) [[unlikely]]
    fail_expectation(what, where);
}

/// Throws CallError with errno's text if `ok` is false. `what` names the call and its object, as in "open /data/x.bin".
void check_errno(bool ok, std::string_view what, std::source_location where = std::source_location::current());

}  // namespace fsdp
