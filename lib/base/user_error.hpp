// The failures that users of a program, or of libfsdp, may have to act on. error.hpp has all others.
//   UserError   a mistake of the user: "<problem> (<why>); <what to do>". Printed once, without a stack trace; exit code 2.
//   RunError    the same form of message, but the command is right: a disk is full, a folder is in use. Exit code 1.
//   DamagedError  a RunError: a file's contents are not those that were written.
//   CollectiveError  a failure of one or more ranks, thrown on every rank (by comm/agree.hpp).
#pragma once

#include <stdexcept>
#include <string>

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
      : UserError(message), speaker(speaker_rank), all(everywhere), exit_code(code), damage(by_damage) {}  // for the library
  int speaker;    // the lowest rank that failed, which prints the message
  bool all;       // every rank failed, so that the message names no rank and host
  int exit_code;  // 2 if the speaker's error was a UserError and not a RunError, else 1
  bool damage;    // the speaker's error was a DamagedError
};

}  // namespace fsdp
