// Facts that the operating system reports about this machine and this process, and settings of this process.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// The name of this host, as gethostname(2) gives it.
std::string host_name();

/// The bytes of memory that this process can still allocate: the system's MemAvailable, or what is left below the memory limit
/// of this process's control group (Slurm sets such a limit), whichever is less. File caches do not count as used, because the
/// system frees them on demand.
std::size_t available_memory_bytes();

/// Makes malloc keep freed memory for this process's next request. Otherwise malloc returns large blocks to the system, which
/// fills them with zeros each time that a training step allocates them again.
void keep_freed_memory();

/// The exit code of another program, and up to about 1 MiB of what it printed to stdout and stderr.
struct ProgramAnswer {
  int exit_code;
  std::string text;
};
/// Runs a program from the PATH with empty standard input. Returns nullopt if the program cannot be started or does not exit by
/// itself within `timeout_s` seconds; after that time it and its process group are killed.
std::optional<ProgramAnswer> ask_program(const std::vector<std::string>& words, double timeout_s);

/// Opens /dev/null for each of standard input, output and error that is closed. Otherwise a file that we open later would get
/// the number of the closed stream, and would be read or written as if it were that stream. The program's own reads or writes
/// of a closed stream still fail. Call this first in main().
void open_standard_descriptors();

/// Makes OpenMP threads that wait for work sleep after some microseconds. GCC's libgomp lets them spin for milliseconds: on a
/// busy machine, spinning threads take the cores from the threads that have work, and a step with two threads takes several
/// times as long as with one. libgomp reads the setting from the environment when it is loaded, before main(). So this function
/// sets GOMP_SPINCOUNT and starts the same program again in this process, once. It does nothing if GOMP_SPINCOUNT or
/// OMP_WAIT_POLICY is set. Call this first in main(), before there are threads, open files or MPI.
void let_waiting_threads_sleep(char** argv);

/// Seconds since this process was started, in steps of the system's clock (0.01 s); 0 if unknown.
double process_age_s();

/// Raises this process's limit so that `count` files can be open at once. Many systems allow 1,024 unless a process asks for
/// more. Returns the limit, which is less than `count` if the system does not allow more.
std::size_t allow_open_files(std::size_t count);

/// VmHWM of a process of this host: the most memory that it has had resident, in bytes; 0 if unknown. `process` is a process id
/// or "self".
std::size_t process_peak_bytes(const std::string& process = "self");

/// Returns freed memory to the system and resets VmHWM of this process to the memory that is resident now (Linux's
/// /proc/self/clear_refs). Returns false if the system does not allow it; VmHWM then stays as it is.
bool restart_process_peak();

}  // namespace fsdp
