// fsdp-doctor: checks this machine and this job, trains a tiny model on all ranks, and advises what to fix.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/system.hpp"
#include "fsdp-doctor/doctor.hpp"
#include "fsdp-doctor/start.hpp"
#include "fsdp-doctor/transports.hpp"
#include "job/program.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  let_waiting_threads_sleep(argv);  // must come before any thread starts
  const Environment environment = [](const char* name) { return std::getenv(name); };
  const Start start = how_started(MpiSession::library_version(), environment);  // must come before MPI changes the environment
  DoctorOptions options;
  OptionTable table = doctor_option_table(options);
  const bool has_launcher = !launcher_name(environment).empty();
  if (!has_launcher && std::any_of(argv, argv + argc, [](std::string_view word) { return word == "--transports"; }))
    return run_program(argc, argv, table, [&] { return run_transports(options, start.library); });
  Doctor doctor(options, start, [&](const std::string& message) { return table.name_options(message); });
  if (!ranks_stay_alone(start.launched, start.library, MpiSession::has_client(), environment))
    return run_mpi_program(argc, argv, table, [&](MpiSession& session, Communicator&) { return doctor.run(session); });
  return run_program(argc, argv, table, [&] {
    if (launched_rank(environment) == 0) return doctor.run_alone(judge_alone(start, plugins_of_srun()));
    // Only the launcher's rank 0 reports. Launchers end all ranks as soon as one fails, so the others wait for the report.
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return exit_code::failed;
  });
}
