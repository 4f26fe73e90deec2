// What the operating system says of this machine and this process.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// The name of this host, as gethostname(2) gives it.
std::string host_name();

/// What processes on this machine may still take: MemAvailable of the system, or what is left below the limit of this process's
/// control group (Slurm sets one), whichever is less. File caches are given up when memory is asked for and do not count as
/// used.
std::size_t available_memory_bytes();

/// From now on malloc keeps what is freed, for the process's next request: for a main() whose steps take and free the same
/// memory, large pieces above all, which the system would have to fill with zeros each time.
void keep_freed_memory();

/// What another program prints, to both its outputs; its first 4 KiB.
struct ProgramAnswer {
  int exit_code;
  std::string text;
};
/// Runs a program of the PATH, with nothing to read. Nothing if there is none of this name, or it has not ended by itself after
/// so long: then it is killed.
std::optional<ProgramAnswer> ask_program(const std::vector<std::string>& words, double timeout_s);

/// Opens what is closed of the standard input, output and error, so that no file of ours gets their numbers and is then read or
/// written as if it were the terminal. Reading and writing them fails as before. First thing in main().
void open_standard_descriptors();

/// OpenMP threads that wait for work shall sleep after some microseconds instead of spinning for milliseconds, as GCC's libgomp
/// lets them: beside other work those that spin take the cores from those that they wait for, and a step with two threads takes
/// several times as long as one with a single thread. libgomp reads this from the environment when it is loaded, before main()
/// can say anything. So this sets GOMP_SPINCOUNT and starts the same program again in this process, once. Nothing happens where
/// GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. First thing in main(): threads, files and MPI must not be there yet.
void let_waiting_threads_sleep(char** argv);

/// Seconds since this process was started, by the system's clock (a hundredth of a second); 0 where it does not tell.
double process_age_s();

/// Before `count` files are opened that stay open: many systems let a process have 1,024 unless it asks for more.
void allow_open_files(std::size_t count);

/// VmHWM: the most memory that a process of this host has had resident, in bytes; 0 if there is none. A number, or "self".
std::size_t process_peak_bytes(const std::string& process = "self");

/// Lets VmHWM of this process begin anew, at what is resident when freed memory has gone back to the system (Linux's
/// /proc/self/clear_refs). False where the system does not let it, and it goes on as before.
bool restart_process_peak();

}  // namespace fsdp
