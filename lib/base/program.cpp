#include "base/program.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "base/terminal.hpp"

namespace fsdp {

std::string warning_line(std::string_view text, std::FILE* out) {
  return format("{} {}", Terminal(out).coloured("warning:", Colour::yellow), text);
}

void print_warning(const std::string& text) { print_raw(stderr, warning_line(printable(text)) + "\n"); }

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) print_warning(warning);
}

int run_program(int argc, char** argv, const std::function<int(int argc, char** argv)>& body, const Wording& wording) {
  open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write above the limit of a file's size (ulimit -f) is an error of its call
  const auto report = [&](const std::string& text, int code) {
    const std::string message = wording ? wording(text) : text;
    std::fflush(stdout);
    const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "fsdp";
    print_raw(stderr, format("{} {}\n", Terminal(stderr).coloured(program + ":", Colour::red), printable(message)));
    return code;
  };
  try {
    const int code = body(argc, argv);
    // A full disk or a closed pipe may be noticed only here.
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) return report("cannot write to standard output", exit_code::failed);
    return code;
  } catch (const RunError& error) {
    return report(error.what(), exit_code::failed);
  } catch (const UserError& error) {
    return report(error.what(), exit_code::wrong_use);
  } catch (const std::bad_alloc&) {
    return report("out of memory", exit_code::failed);
  } catch (const std::system_error& error) {
    return report(message_of(error), exit_code::failed);
  } catch (const std::exception& error) {
    return report(error.what(), exit_code::failed);
  }
}

}  // namespace fsdp
