#include "bench/parts.hpp"

#include <cstdio>

#include "base/program.hpp"
#include "job/program.hpp"
#include "machine/machine.hpp"
#include "optim/optimizer.hpp"
#include "options/common_options.hpp"

int main(int argc, char** argv) {
  using namespace fsdp;
  PartsOptions options;
  OptionTable table("bench-parts", "attention|rows|optimizer|checkpoint [options]",
                    "Measures parts of the library, as ratios of one run.");
  table.group("What");
  std::vector<std::pair<std::string, std::string>> parts, optimizer_names;
  for (const char* part : {"attention", "rows", "optimizer", "checkpoint"}) parts.emplace_back(part, part);
  for (const Optimizer* optimizer : optimizers()) optimizer_names.emplace_back(optimizer->name, optimizer->name);
  table.choice<std::string>("what", options.what, std::move(parts), "the part").positional();
  table.text("arch", "NAME", options.arch, "model; see fsdp-train --list-archs").sets("architecture");
  add_batch_options(table, options.sharding);
  add_size_options(table, options.sizes);
  add_strategy_option(table, options.sharding.strategy);
  add_precision_options(table, options.sharding.types.parameter);
  table.choice<std::string>("optimizer", options.optimizer, std::move(optimizer_names), "optimizer: measure only this one")
      .unset("all");
  add_state_type_option(table, options.sharding.optimizer.state_type);
  add_kept_type_options(table, options.sharding.types);
  table.path("save-dir", "DIR", options.save_dir, "checkpoint: a folder for files is made in it, and removed");
  table.group("How");
  add_device_option(table, options.device);
  add_attention_option(table, options.attention_backend);
  add_threads_option(table, options.threads);
  add_comm_options(table, options.comm);
  table.integer("steps", "N", options.steps, {1, 1e6}, "rounds, in each of which everything is measured once");
  table.flag("json", options.json, "print one JSON object");
  table.then([&](const OptionTable&) {
    if (options.what.empty()) throw UserError("no part is named; give attention, rows, optimizer or checkpoint");
  });
  return run_mpi_program(argc, argv, table, [&](MpiSession& session, Communicator& every_rank) {
    const std::unique_ptr<Communicator> world = agree(every_rank, [&] { return session.world(options.comm); });
    const ComputingRank rank = start_rank(options.device, options.threads, *world);
    const auto stream = rank.device->make_stream();
    const std::string text = options.what == "attention"   ? bench_attention(options, *world, *rank.device, *stream)
                             : options.what == "rows"      ? bench_rows(options, *world, *rank.device, *stream)
                             : options.what == "optimizer" ? bench_optimizer(options, *world, *rank.device, *stream)
                                                           : bench_checkpoint(options, *world, *rank.device);
    if (world->rank() == 0) std::fputs(text.c_str(), stdout);
    return exit_code::done;
  });
}
