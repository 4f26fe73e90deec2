// A user's program with the mistake that its argument names; jobs.cpp runs it.
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include <fsdp/fsdp.hpp>

namespace {

/// Fails only on rank 1, in the second update.
class FailingLayer final : public fsdp::Layer {
 public:
  explicit FailingLayer(int rank) : rank_(rank) {}
  std::size_t inputs() const override { return 4; }
  std::size_t outputs() const override { return 4; }
  void forward(const fsdp::ForwardPass& pass) const override {
    if (rank_ == 1 && pass.update == 2) throw std::runtime_error("the table of this layer has no row 7");
    fsdp::ops::copy(pass, pass.y, pass.x);
  }
  void backward(const fsdp::BackwardPass& pass) const override { fsdp::ops::copy(pass, pass.dx, pass.dy); }

 private:
  int rank_;
};

fsdp::Sequential small_model(fsdp::LayerPtr more = nullptr) {
  fsdp::Sequential model;
  model.add("in", fsdp::linear(4, 4));
  if (more) model.add("more", std::move(more));
  return model.add("out", fsdp::linear(4, 3)).loss(fsdp::cross_entropy(3));
}

void fill(const fsdp::Batch& batch) {
  for (std::size_t i = 0; i < batch.inputs().size(); ++i) batch.inputs()[i] = 0.1f * static_cast<float>(i);
  for (int& label : batch.labels()) label = 1;
}

int train(fsdp::Job& job, const fsdp::Sequential& model, const fsdp::FsdpOptions& options = {.batch_size = 2}) {
  fsdp::FullyShardedDataParallel sharded(job, model, options);
  for (int step = 0; step < 3; ++step) sharded.step(1e-2, fill);
  if (job.rank() == 0) std::printf("trained\n");
  return 0;
}

int with_failing_layer(fsdp::Job& job) { return train(job, small_model(std::make_shared<FailingLayer>(job.rank()))); }

/// A program without fsdp::run: it starts and ends MPI, and catches exceptions.
int by_itself(int argc, char** argv, const std::function<int()>& body) {
  MPI_Init(&argc, &argv);
  int code = 1;
  try {
    code = body();
  } catch (const fsdp::CollectiveError& error) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == error.speaker) std::fprintf(stderr, "caught: %s\n", error.what());
  }
  MPI_Finalize();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::fprintf(stderr, "main() begins\n");
  fsdp::JobOptions options;
  options.timeout_s = 100;
  if (argc > 2) options.comm = argv[2];
  /// Runs `body` with a model, and collectives that wait for 2 seconds.
  const auto with_short_timeout = [&](const auto& body) {
    options.timeout_s = 2;
    const auto run_body = [&](fsdp::Job& job) {
      fsdp::FullyShardedDataParallel sharded(job, small_model(), {.batch_size = 2});
      body(job, sharded);
      return 0;
    };
    return fsdp::run(argc, argv, run_body, options);
  };
  const std::map<std::string, std::function<int()>> mistakes = {
      {"none",
       [&] {
         return fsdp::run(
             argc, argv, [](fsdp::Job& job) { return train(job, small_model()); }, options);
       }},
      {"layer", [&] { return fsdp::run(argc, argv, with_failing_layer, options); }},
      {"layer_by_itself",
       [&] {
         return by_itself(argc, argv, [&] {
           fsdp::Job job(options);
           return with_failing_layer(job);
         });
       }},
      {"options_by_itself",
       [&] {
         return by_itself(argc, argv, [&] {
           fsdp::Job job(options);
           return train(job, small_model(), {.batch_size = 2, .beta1 = job.rank() == 1 ? 0.8 : 0.9});
         });
       }},
      {"comm_by_itself",
       [&] {
         return by_itself(argc, argv, [&] {
           int rank = 0;
           MPI_Comm_rank(MPI_COMM_WORLD, &rank);
           if (rank == 1) options.comm = "mpi";
           fsdp::Job job(options);
           return train(job, small_model());
         });
       }},
      {"not_all",
       [&] {
         MPI_Init(&argc, &argv);
         int rank = 0;
         MPI_Comm_rank(MPI_COMM_WORLD, &rank);
         options.timeout_s = 2;
         if (rank == 1) try {
             fsdp::Job job(options);
           } catch (const fsdp::UserError& error) {
             std::fprintf(stderr, "%s\n", error.what());
             MPI_Abort(MPI_COMM_WORLD, 1);
           }
         MPI_Barrier(MPI_COMM_WORLD);
         MPI_Finalize();
         return 0;
       }},
      {"no_step",
       [&] {
         return with_short_timeout([](fsdp::Job& job, fsdp::FullyShardedDataParallel& sharded) {
           if (job.rank() == 1) sleep(60);
           sharded.step(1e-2, fill);
         });
       }},
      {"slow_fill",
       [&] {
         return with_short_timeout([](fsdp::Job& job, fsdp::FullyShardedDataParallel& sharded) {
           sharded.step(1e-2, [&](const fsdp::Batch& batch) { fill(batch), sleep(job.rank() == 1 ? 60 : 0); });
         });
       }},
      {"unfinished_save",
       [&] {
         return fsdp::run(argc, argv, [](fsdp::Job& job) {
           fsdp::FullyShardedDataParallel sharded(job, small_model(), {.batch_size = 2, .background_saves = true});
           sharded.step(1e-2, fill);
           sharded.save("checkpoints");
           return 0;
         });
       }},
      {"signal_by_itself",
       [&] {
         fsdp::hold_signals();
         return by_itself(argc, argv, [&] {
           options.stop_signals = true;
           fsdp::Job job(options);
           if (job.rank() == 1) kill(getpid(), SIGTERM);
           for (int i = 0; i < 1000 && !job.should_stop(); ++i) usleep(10000);
           if (job.rank() == 0) std::printf("stops: %s\n", job.stop_reason().c_str());
           return job.should_stop() ? fsdp::stopped_exit_code : 1;
         });
       }},
      {"device",
       [&] {
         options.device = "cuda";
         return fsdp::run(
             argc, argv, [](fsdp::Job& job) { return train(job, small_model()); }, options);
       }},
      {"after_mpi",
       [&] {
         MPI_Init(&argc, &argv);
         fsdp::Job job(options);
         fsdp::FullyShardedDataParallel sharded(job, small_model(), {.batch_size = 2});
         sharded.step(1e-2, fill);
         MPI_Finalize();
         try {
           sharded.step(1e-2, fill);
         } catch (const fsdp::UserError& error) {
           std::fprintf(stderr, "%s\n", error.what());
           return sharded.updates() == 1 ? 2 : 3;
         }
         return 0;
       }},
  };
  return mistakes.at(argc > 1 ? argv[1] : "")();
}
