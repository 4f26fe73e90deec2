#include "base/error.hpp"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace fsdp {

namespace {
std::string at(std::source_location where) { return fmt::format("{}:{}", where.file_name(), where.line()); }
}  // namespace

CallError::CallError(std::string_view api, std::string_view problem, std::source_location where)
    : std::runtime_error(fmt::format("{}: {} [{}]", api, problem, at(where))) {}

std::string message_of(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) return error.what();
  return "no thread can be started (a limit of memory or of processes is reached); raise the limit (ulimit -v and ulimit -u "
         "show the limits)";
}

void fail_expectation(std::string_view what, std::source_location where) {
  throw InternalError(fmt::format("internal error: {} [{}]; please report it with the command that led here", what, at(where)));
}

void check_errno(bool ok, std::string_view what, std::source_location where) {
  if (ok) return;
  const bool of_the_disk = errno == EIO || errno == ESTALE;
  throw CallError(
      what,
      fmt::format("{}{}", std::strerror(errno), of_the_disk ? "; check the disk or the file system, and start again" : ""),
      where);
}

}  // namespace fsdp
