// A program of a user of libfsdp: the ranks of a job sum their numbers.
#include <cstdio>

#include "base/version.hpp"
#include "comm/mpi_session.hpp"
#include "device/device.hpp"

int main(int argc, char** argv) {
  fsdp::MpiSession session(argc, argv);
  const auto world = session.world();
  const auto stream = fsdp::make_host_stream();
  double sum = world->rank() + 1;
  world->all_reduce(*stream, &sum, 1);
  if (world->rank() == 0) std::printf("fsdp %s\n%d ranks add up to %g\n", fsdp::version_string().c_str(), world->size(), sum);
}
