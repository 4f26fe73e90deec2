// The kinds of failure: those of user_error.hpp, and
//   CallError   a call to MPI, HDF5, oneDNN or the system failed. The message has the call, the error, file:line. Exit code 1.
//   InternalError  a bug in this program. expect() throws it, with file:line. Exit code 1.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "base/user_error.hpp"

namespace fsdp {

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
