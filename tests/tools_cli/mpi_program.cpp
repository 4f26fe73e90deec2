// A program under MPI that ends in the way that its argument names; run_mpi_program() must turn it into one exit code and one
// message.
#include <cstdio>
#include <string>

#include "base/format.hpp"
#include "job/program.hpp"

using namespace fsdp;

int main(int argc, char** argv) {
  return run_mpi_program(argc, argv, [](MpiSession&, Communicator& world, int count, char** arguments) {
    const std::string how = count > 1 ? arguments[1] : "";
    const bool last = world.rank() == world.size() - 1;
    if (how == "stop") return 75;
    agree(world, [&] {
      if (how == "options") throw UserError("wrong options");
      if (how == "one file" && last) throw UserError("this rank has no file");
    });
    if (how == "mistake" && last) throw UserError("a mistake found late");
    if (how == "bug" && last) throw InternalError("a bug");
    world.barrier();
    if (world.rank() == 0) fmt::print("all went well\n");
    return 0;
  });
}
