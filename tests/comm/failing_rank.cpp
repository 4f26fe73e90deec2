// Rank 1 fails while the others wait for it in a collective. `kill`: by SIGKILL; `throw`: by an exception that main() handles;
// `unwind`: by an exception that runs the destructors of the session and the communicator; `hang`: ranks 1 and 3 never arrive.
// failing_rank.sh runs it: failing_rank HOW mpi|shm|nodes; with nodes, every two ranks simulate a node.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/mpi_session.hpp"

using namespace fsdp;

namespace {
void run(MpiSession& session, std::string_view how, std::string_view comm) {
  const auto world = session.world({.kind = comm == "mpi" ? "mpi" : "shm",
                                    .timeout_s = how == "hang" ? 1.0 : 600.0,
                                    .ranks_per_node = comm == "nodes" ? 2 : 0});
  const auto stream = make_host_stream();
  stream->subject = "block 3";
  std::vector<float> data(1'000'003, 1.0f);
  for (int step = 0;; ++step) {
    if (step == 3 && (session.rank() == 1 || (session.rank() == 3 && how == "hang"))) {
      if (how == "kill") std::raise(SIGKILL);
      while (how == "hang") pause();
      throw UserError("rank 1 was told to fail");
    }
    world->all_reduce(*stream, data.data(), data.size(), DType::f32);
  }
}
}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "", comm = argc > 2 ? argv[2] : "";
  if (how == "unwind") {
    try {
      MpiSession session(argc, argv);
      run(session, how, comm);
    } catch (const UserError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
  }
  MpiSession session(argc, argv);
  try {
    run(session, how, comm);
  } catch (const CollectiveTimeout& error) {
    std::fprintf(stderr, "%s\n", error.what());
    session.abort_job(1);
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    session.abort_job(3);
  }
}
