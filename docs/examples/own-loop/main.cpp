// A plain MPI program with its own data and its own loop: each process follows a pendulum of its own, which swings with
// friction, and all add up how far theirs move. The two lines that end in "fsdp" train a network, sharded over the processes,
// that says where a pendulum will be next. Without them, and without the header, it is the program that it was before.
//   mpirun -np 4 own-loop
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "network.hpp"  // fsdp

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  constexpr std::size_t points = 32;  // of its way that a process looks at in a step
  std::vector<float> angle(points), speed(points);
  float a = 1 + 0.2f * static_cast<float>(rank), v = 0;
  double loss = 0;
  fsdp::FullyShardedDataParallel network(pendulum_network(), {.batch_size = points - 1});  // fsdp

  for (int step = 1; step <= 400; ++step) {
    double way = 0;
    for (std::size_t i = 0; i < points; ++i) {
      v -= 0.1f * (std::sin(a) + 0.02f * v);
      a += 0.1f * v;
      angle[i] = a, speed[i] = v;
      way += std::abs(0.1 * v);
    }
    loss = network.step(3e-3, [&](const fsdp::Batch& batch) { fill(batch, angle, speed); }).loss;  // fsdp
    if (step % 100 == 0) {
      MPI_Allreduce(MPI_IN_PLACE, &way, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      if (rank == 0) std::printf("step %d  way %.3f  loss %.1e\n", step, way, loss);
    }
    if (std::abs(a) + std::abs(v) < 0.1f) a = 1.5f;  // a push
  }
  MPI_Finalize();
}
