// The kinds of failure:
//   UserError   a mistake of the user: "<problem> (<why>); <what to do>". Printed once, without a stack trace; exit code 2.
//   RunError    the same form of message, but the command is right: a disk is full, a folder is in use. Exit code 1.
//   DamagedError  a RunError: a file's contents are not those that were written.
//   CollectiveError  a failure of one or more ranks, thrown on every rank (by comm/agree.hpp).
//   CallError   a call to MPI, HDF5, oneDNN or the system failed. The message has the call, the error, file:line. Exit code 1.
//   InternalError  a bug in this program. expect() throws it, with file:line. Exit code 1.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace fsdp {

/// A mistake that the user can correct. The message says what is wrong, why that is a problem, and what to do.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A failure that the command did not cause: the same command works after the cause is removed.
struct RunError : UserError {
  using UserError::UserError;
};

/// A file was read, and its contents are not those that were written.
struct DamagedError : RunError {
  using RunError::RunError;
};

/// A failure of one or more ranks. All ranks throw it at the same place with the same message; one rank prints it, and the job
/// ends in good order.
struct CollectiveError : UserError {
  CollectiveError(const std::string& message, int speaker_rank, bool everywhere, int code, bool by_damage = false)
      : UserError(message), speaker(speaker_rank), all(everywhere), exit_code(code), damage(by_damage) {}
  int speaker;    // the lowest rank that failed, which prints the message
  bool all;       // every rank failed, so that the message names no rank and host
  int exit_code;  // 2 if the speaker's error was a UserError and not a RunError, else 1
  bool damage;    // the speaker's error was a DamagedError
};

/// A failed call of a library or of the operating system.
struct CallError : std::runtime_error {
  CallError(std::string_view api, std::string_view problem, std::source_location where = std::source_location::current());
};

/// A bug in this program.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

/// The text of `error`. If a thread could not be started, the system's text is only "Resource temporarily unavailable"; this
/// function then returns a text that says why and what to do.
std::string message_of(const std::system_error& error);

[[noreturn]] void fail_expectation(std::string_view what, std::source_location where);

/// Checks a condition that is false only if this program has a bug. The check is cheap and always on.
inline void expect(bool ok, std::string_view what, std::source_location where = std::source_location::current()) {
  if (!ok) [[unlikely]]
    fail_expectation(what, where);
}

/// Throws CallError with errno's text if `ok` is false. `what` names the call and its object, as in "open /data/x.bin".
void check_errno(bool ok, std::string_view what, std::source_location where = std::source_location::current());

}  // namespace fsdp
