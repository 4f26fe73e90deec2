// Operations have the effects that their kinds declare: each operation of random jobs runs twice, the second time with NaN in
// all memory that it does not need.
#include <algorithm>
#include <cstring>
#include <map>

#include "run/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A rank's memory in all spaces, concatenated.
class Memory {
 public:
  Memory(const Plan& plan, const std::vector<std::unique_ptr<Storage>>& memory) : plan_(plan) {
    for (std::size_t i = 0; i < memory.size(); ++i) parts_.push_back({memory[i].get(), plan.spaces[i].bytes});
  }

  std::vector<std::byte> copy() const {
    std::vector<std::byte> all(size());
    std::size_t begin = 0;
    for (const Part& part : parts_)
      part.storage->read(*stream_, 0, all.data() + std::exchange(begin, begin + part.bytes), part.bytes);
    return all;
  }
  void assign(const std::vector<std::byte>& all) const {
    std::size_t begin = 0;
    for (const Part& part : parts_)
      part.storage->write(*stream_, 0, all.data() + std::exchange(begin, begin + part.bytes), part.bytes);
  }
  std::size_t size() const {
    std::size_t bytes = 0;
    for (const Part& part : parts_) bytes += part.bytes;
    return bytes;
  }
  /// Marks `n` bytes of a buffer, or the whole buffer if `n` is 0.
  void mark(std::string& bytes, char with, BufferId id, std::size_t offset, std::size_t n) const {
    const PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
    std::size_t begin = buffer.offset;
    for (std::size_t i = 0; plan_.spaces[i].space != buffer.space; ++i) begin += parts_[i].bytes;
    n = n == 0 ? buffer.bytes : n;
    bytes.replace(begin + offset, n, n, with);
  }

 private:
  struct Part {
    Storage* storage;
    std::size_t bytes;
  };
  const Plan& plan_;
  std::vector<Part> parts_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
};

/// Calls body(begin, n) for each run of `mark` in `bytes`.
template <class Body>
void each_run(const std::string& bytes, char mark, const Body& body) {
  const char other = mark == 'x' ? '.' : 'x';
  for (std::size_t begin = bytes.find(mark); begin != bytes.npos;) {
    const std::size_t end = std::min(bytes.find(other, begin), bytes.size());
    body(begin, end - begin);
    begin = bytes.find(mark, end);
  }
}

/// The objects that a rank's operations use.
struct RankJob {
  const Plan& plan;
  const Layout& layout;
  const Placement& placement;
  ModelSizes sizes;
  std::size_t shard;

  std::vector<std::size_t> units_of(const Operation& op) const {
    if (op.unit >= 0) return {static_cast<std::size_t>(op.unit)};
    std::vector<std::size_t> units;
    if (op.stage < 0) return units;
    const std::vector<std::size_t>& here = sizes.stages[static_cast<std::size_t>(op.stage)];
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const std::vector<std::size_t>& of_unit = layout.units()[u].parameters;
      if (std::find_first_of(of_unit.begin(), of_unit.end(), here.begin(), here.end()) != of_unit.end()) units.push_back(u);
    }
    return units;
  }

  /// Calls body(place, offset of this rank, bytes, effect) for each operand.
  template <class Body>
  void each_operand(const Operation& op, const Body& body) const {
    const std::vector<std::size_t> units = units_of(op);
    std::map<OperandName, std::size_t> seen;
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      const auto& [name, place] = op.operands[i];
      const auto home = info_of(name).home({plan, layout, placement, sizes, op, units, seen[name]++});
      body(place, place.offset + shard * place.per_shard, home->bytes, effect_on(op, i));
    }
  }
};

/// All ranks run an operation at the same time, and then again at the same time, because some operations read other ranks'
/// memory.
void run_twice(const Operation& op, const std::function<void()>& run, const Memory& memory, const RankJob& job,
               Communicator& world) {
  const auto run_together = [&] {
    world.barrier();
    run();
    world.barrier();
    return memory.copy();
  };
  // Marks of the bytes that the operation needs, that it may change, and that it must write.
  std::string needed(memory.size(), '.'), changed = needed, given = needed;
  job.each_operand(op, [&](const Location& place, std::size_t offset, std::size_t bytes, Effect effect) {
    const bool needs = needs_content(op, effect) || effect == Effect::contributes;
    if (needs) memory.mark(needed, 'x', place.buffer, offset, bytes);
    if (writes(effect)) memory.mark(changed, 'x', place.buffer, offset, bytes);
    if (writes(effect) && effect != Effect::clobbers && effect != Effect::consumes)
      memory.mark(given, 'x', place.buffer, offset, bytes);
  });
  const std::vector<std::byte> before = memory.copy(), after = run_together();
  each_run(changed, '.', [&](std::size_t i, std::size_t n) {
    expect(std::memcmp(&before[i], &after[i], n) == 0, "an operation writes only what it names");
  });
  std::vector<std::byte> rubbish = before;
  each_run(needed, '.', [&](std::size_t i, std::size_t n) { std::fill_n(&rubbish[i], n, std::byte{0xff}); });  // NaN
  memory.assign(rubbish);
  const std::vector<std::byte> again = run_together();
  each_run(given, 'x', [&](std::size_t begin, std::size_t n) {
    if (std::memcmp(&after[begin], &again[begin], n) == 0) return;
    for (std::size_t i = begin; i < begin + n; ++i) {
      const bool is_padding = after[i] == before[i] && again[i] == rubbish[i];  // written in neither run
      expect(after[i] == again[i] || is_padding, "what an operation gives depends only on what it needs");
    }
  });
  memory.assign(after);
}

/// Replaces the kinds of a plan's operations by kinds that run each operation through run_twice(). One for each rank.
class Twice {
 public:
  Twice(Plan& plan, const Memory& memory, const RankJob& job, Communicator& world) : memory_(memory), job_(job), world_(world) {
    for (auto* const list : {&plan.update, &plan.evaluation, &plan.input_gradients, &plan.decoding, &plan.publish})
      for (Operation& op : *list) {
        Kind& kind = kinds_.try_emplace(op.kind, *op.kind).first->second;
        kind.run = [](const Running& running) { of_rank->run(running); };
        op.kind = &kind;
      }
    of_rank = this;
  }
  Twice(const Twice&) = delete;
  ~Twice() { of_rank = nullptr; }
  std::size_t operations() const { return operations_; }

 private:
  static thread_local Twice* of_rank;  // a rank is a thread

  void run(const Running& running) {
    Operation op = running.op;
    op.kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& of) { return &of.second == running.op.kind; })->first;
    const Running inside{running.rank, running.stream, op, running.scalars, running.step, running.batch_begin, running.shape};
    try {
      run_twice(
          op, [&] { op.kind->run(inside); }, memory_, job_, world_);
    } catch (const InternalError& error) {
      throw InternalError(format("{}: {}", title_of(op, job_.layout), error.what()));
    }
    ++operations_;
  }

  const Memory& memory_;
  const RankJob& job_;
  Communicator& world_;
  std::map<const Kind*, Kind> kinds_;
  std::size_t operations_ = 0;
};
thread_local Twice* Twice::of_rank = nullptr;

/// The targets that count are in the first `columns` columns.
std::size_t run_all_twice(const Job& job, bool decodes, std::size_t columns) {
  std::size_t operations = 0;
  const std::size_t B = job.sharding.batch.B, T = job.sharding.batch.T, V = job.config.vocab_size;
  run_ranks(job.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(Threads::one, 0);
    const Transformer model(job.config, traits_for(DeviceKind::cpu, job.piece_rows));
    ShardingOptions options = job.sharding;
    if (decodes) options.plan.cache = {2, T};
    options.plan.input_gradients = columns == T;  // it runs over all columns
    StatePlaces& places = options.plan.places;    // a file's loads run on another thread, and Twice is for one
    for (const Space** place : {&places.parameters, &places.optimizer, &places.gradients})
      if (*place) *place = &spaces::host;
    const MeshShape shape = mesh_shape(find_placement(options.strategy), job.ranks, options.shard_group_size);
    Mesh mesh = make_mesh(world, shape.shard, shape.replicate);
    mesh.use_device(*device, {});
    ShardedPlan planned = plan_sharding(model, options, shape);
    const Plan& plan = planned.plan;
    std::vector<std::unique_ptr<Storage>> storages;
    for (const bool collective : {false, true})
      open_spaces(plan.spaces, {*device, mesh.data_along(GroupAxis::shard)}, collective, storages);
    const Memory memory(plan, storages);
    const RankJob of_rank = {plan, planned.layout, find_placement(options.strategy),
                             model.sizes({B, columns}, options.types.parameter, options.plan.cache),
                             static_cast<std::size_t>(mesh.shard().rank())};
    Twice twice(planned.plan, memory, of_rank, world);
    Executor executor(model, planned.layout, plan, options.batch, options.optimizer, *device, std::move(storages), mesh,
                      {.pad_to_multiple_of = 1});
    executor.initialize_parameters(5);
    executor.publish_parameters();
    const BatchReader read = [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      for (std::size_t i = 0; i < B * T; ++i) {
        inputs[i] = static_cast<std::int32_t>(i % V), targets[i] = static_cast<std::int32_t>((i + 1) % V);
        if (options.plan.documents) targets[B * T + i] = static_cast<std::int32_t>(i % T % 3);
        if (i % T >= columns) targets[i] = -1;
      }
    };
    for (std::uint64_t update = 1; update <= 2; ++update)
      executor.run_update(read, {.update = update,
                                 .learning_rate = 1e-3,
                                 .clip_norm = 0.7,
                                 .dropout = {.residual = job.dropout, .attention = job.dropout, .seed = 3, .update = update},
                                 .loss_terms = job.loss_terms,
                                 .ema_decay = 0.5,
                                 .tokens = static_cast<double>(B * T * options.plan.micro_batches) * job.ranks,
                                 .loss_scale = options.types.parameter == DType::f16 ? 1024.0 : 1.0});
    executor.evaluate(read);
    if (columns == T) executor.input_gradients(read, static_cast<double>(B * T), 1, [](const MemoryView&) {});
    std::vector<float> logits(V);
    const std::int32_t token = 1, sequence = 0, wanted = 0;
    for (std::int32_t position = 0; decodes && position < 2; ++position)
      executor.decode({{&token, 1}, {&sequence, 1}, {&position, 1}, {&wanted, 1}}, logits.data());
    if (world.rank() == 0) operations = twice.operations();
  });
  return operations;
}

}  // namespace

BOOST_AUTO_TEST_CASE(operations_do_what_they_say) {
  std::size_t operations = 0;
  each_random_job(40, 6, [&](const Job& job, std::uint64_t n) {
    const std::size_t T = job.sharding.batch.T, columns = n % 2 == 0 ? T : 1 + n % T;
    const bool decodes = job.config.positions == Positions::rotary && !job.sharding.plan.documents && columns == T;
    operations += run_all_twice(job, decodes, columns);
  });
  BOOST_TEST_MESSAGE(operations << " operations ran twice");
  BOOST_TEST(operations > 5000u);
}
