// fsdp-doctor --transports: its judgements on what the trials print, and whole runs with stand-ins for launchers.
#include <boost/test/unit_test.hpp>

#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "fsdp-doctor/transports.hpp"

using namespace fsdp;

namespace {

const Transport& row(std::string_view name) {
  for (const Transport& transport : transports())
    if (transport.name == name) return transport;
  throw std::runtime_error("no such row");
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Trial done(std::string_view name, double ms) { return {&row(name), Trial::Result::done, ms, "NCCL"}; }

}  // namespace

BOOST_AUTO_TEST_CASE(results_of_trials) {
  const Transport& any = row("present settings");
  const std::string json = R"x({"comm":"NCCL 2.28.9, between nodes by TCP (eth0)","update_ms":12.5})x";
  Trial trial =
      judge_trial(any, {.exit_code = 0, .out = "srun: job 7 queued\n" + json + "\nbye\n", .err = "", .seconds = 3}, 60);
  BOOST_TEST((trial.result == Trial::Result::done));
  BOOST_TEST(trial.update_ms == 12.5);
  BOOST_TEST(trial.connection == "NCCL 2.28.9, between nodes by TCP (eth0)");

  const auto failed = [&](const ChildEnd& end, std::string_view why) {
    const Trial result = judge_trial(any, end, 60);
    BOOST_TEST((result.result == Trial::Result::failed));
    BOOST_TEST(has(result.connection, why), result.connection);
  };
  failed({.exit_code = 1,
          .out = "",
          .err = "-----\nfsdp-bench: NCCL: network AWS Libfabric not found\nmpirun has exited\n-----\n",
          .seconds = 3},
         "NCCL: network AWS Libfabric not found");
  failed({.exit_code = 1, .out = "", .err = "ssh: connect to host node9 port 22: No route to host\n", .seconds = 3},
         "node9 port 22");
  failed({.exit_code = 127, .out = "", .err = "", .seconds = 0}, "it failed: exit code 127");
  failed({.exit_code = 0, .out = "{\"comm\":3}\n", .err = "", .seconds = 1}, "another object");
  failed({.exit_code = 0, .out = "", .err = "", .seconds = 1}, "it printed '' instead of a result");
  failed({.exit_code = 137, .out = "", .err = "slurmstepd: oom-kill\n", .seconds = 9}, "oom-kill");  // killed before the limit

  for (const ChildEnd& end :
       {ChildEnd{.exit_code = 137, .out = "", .err = "", .seconds = 60.5},  // ranks that `timeout` has killed
        ChildEnd{.exit_code = 143, .timed_out = true, .out = "", .err = "", .seconds = 70}}) {
    trial = judge_trial(any, end, 60);
    BOOST_TEST((trial.result == Trial::Result::hung));
    BOOST_TEST(has(trial.connection, "it hung, and was ended after"));
  }
}

BOOST_AUTO_TEST_CASE(the_fastest_is_printed_for_a_job_script) {
  ::unsetenv("NCCL_NET");
  std::vector<Trial> trials = {done("present settings", 40),
                               done("libfabric", 10),
                               done("libfabric, rendezvous", 8),
                               {&row("libfabric, GPU near NIC"), Trial::Result::hung, 0, "hung: ended after 60 s"},
                               {&row("InfiniBand"), Trial::Result::left_out, 0, "this node has no /sys/class/infiniband"}};
  const std::string text = describe(trials);
  BOOST_TEST(has(text,
                 "the fastest: libfabric, rendezvous, 5.00 times as fast as the present settings; for a job script:\n\n"
                 "    export NCCL_NET='AWS Libfabric'\n"
                 "    export FI_CXI_RDZV_EAGER_SIZE=0\n"),
             text);
  BOOST_TEST(has(text, "  libfabric, GPU near NIC: hung: ended after 60 s\n"), text);
  BOOST_TEST(present_settings_work(trials));
  BOOST_TEST(to_json(trials)["fastest"] == "libfabric, rendezvous");
  BOOST_TEST(to_json(trials)["transports"][3]["update_ms"].is_null());

  // Variables of the user that the fastest row does not have must go.
  ::setenv("NCCL_NET", "Socket", 1);
  trials = {done("present settings", 40), done("host memory and MPI", 10)};
  trials[1].connection = "through host memory";
  BOOST_TEST(has(describe(trials), "    fsdp-train --comm=mpi ...\n    unset NCCL_NET\n"), describe(trials));
  ::unsetenv("NCCL_NET");

  trials = {done("present settings", 40), done("host memory and MPI", 10)};  // the same connection, and nothing is set
  BOOST_TEST(has(describe(trials), "the present settings are as fast as any other"), describe(trials));
  trials = {done("present settings", 10.2), done("libfabric", 10)};
  BOOST_TEST(has(describe(trials), "the present settings are as fast as any other"), describe(trials));
  trials = {{&row("present settings"), Trial::Result::hung, 0, "hung"}, done("libfabric", 10)};
  BOOST_TEST(has(describe(trials), "the fastest: libfabric (the present settings do not work)"), describe(trials));
  BOOST_TEST(!present_settings_work(trials));
  trials = {{&row("present settings"), Trial::Result::hung, 0, "hung"}};
  BOOST_TEST(has(describe(trials), "no transport works"), describe(trials));
}
