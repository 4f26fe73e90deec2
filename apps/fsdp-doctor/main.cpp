// fsdp-doctor: checks this machine and this job, trains a tiny model on all ranks, and advises what to fix. It also packs an
// archive about a run, and compares transports.
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/system.hpp"
#include "comm/agree.hpp"
#include "fsdp-doctor/doctor.hpp"
#include "fsdp-doctor/pack.hpp"
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
  const Wording words = [&](const std::string& message) { return table.name_options(message); };
  Doctor doctor(options, start, words);

  std::optional<Pack> pack;
  const auto open_pack = [&] {
    if (!options.pack.empty()) pack.emplace(options.pack, options.out);
  };
  const auto run_alone = [&](const Finding& why) {
    open_pack();
    const int code = doctor.run_alone(why);
    if (!pack) return code;
    print_text(stdout, "\n" + pack->write(doctor.report()));
    return exit_code::done;
  };

  if (ranks_stay_alone(start.launched, start.library, MpiSession::has_client(), environment))
    return run_program(argc, argv, table, [&] {
      if (launched_rank(environment) == 0) return run_alone(judge_alone(start, plugins_of_srun()));
      // Only the launcher's rank 0 reports. Launchers end all ranks as soon as one fails, so the others wait for the report.
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return exit_code::failed;
    });
  if (start.launcher.empty())  // MPI may not start on a login node, and --pack does not need it
    return run_program(argc, argv, table, [&] {
      if (options.transports) return run_transports(options, start.library);
      if (!options.pack.empty()) return run_alone({.text = "not started, because --pack has no launcher"});
      return run_mpi_program(
          argc, argv, [&](MpiSession& session, Communicator&, int, char**) { return doctor.run(session); }, words);
    });
  return run_mpi_program(argc, argv, table, [&](MpiSession& session, Communicator& world) {
    if (options.pack.empty()) return doctor.run(session);
    agree(world, [&] {
      if (world.rank() == 0) open_pack();
    });
    doctor.run(session);
    agree(world, [&] {
      if (pack) print_text(stdout, "\n" + pack->write(doctor.report()));
    });
    return exit_code::done;
  });
}
