// Operations do what they say: each operation of random jobs runs twice, the second time with rubbish in all memory that it
// does not name.
#include <array>
#include <cstring>

#include "fsdp/random_jobs.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A rank's arena, slots and what it keeps on the host, one after the other.
class Memory {
 public:
  Memory(const Plan& plan, const Buffer& arena, const Buffer& slots, const Buffer& host)
      : plan_(plan),
        parts_{std::span(arena.data(), plan.arena_bytes), {slots.data(), plan.slot_bytes}, {host.data(), plan.host_bytes}} {}

  std::vector<std::byte> copy() const {
    std::vector<std::byte> all;
    for (const auto& part : parts_) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  void assign(const std::vector<std::byte>& all) const {
    std::size_t begin = 0;
    for (const auto& part : parts_) {
      std::copy_n(all.data() + begin, part.size(), part.data());
      begin += part.size();
    }
  }
  std::size_t size() const { return parts_[0].size() + parts_[1].size() + parts_[2].size(); }
  /// Bytes that some buffer has are marked "x".
  void mark(std::string& bytes, BufferId id) const {
    const PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
    std::size_t begin = buffer.offset;
    if (buffer.on_host() || is_slot(buffer.role)) begin += parts_[0].size();
    if (buffer.on_host()) begin += parts_[1].size();
    bytes.replace(begin, buffer.bytes, buffer.bytes, 'x');
  }

 private:
  const Plan& plan_;
  std::array<std::span<std::byte>, 3> parts_;
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

/// All ranks run an operation together, and then together once more, as some read the others' memory. A place stands for its
/// whole buffer.
void run_twice(const Operation& op, const std::function<void()>& run, const Memory& memory, Communicator& world) {
  const auto run_together = [&] {
    world.barrier();
    run();
    world.barrier();
    return memory.copy();
  };
  std::string named(memory.size(), '.'), written = named;
  for (const Location& place : op.writes) memory.mark(named, place.buffer), memory.mark(written, place.buffer);
  for (const Location& place : op.reads) memory.mark(named, place.buffer);
  if (op.kind == OperationKind::reduce_scatter)
    memory.mark(written, op.reads.front().buffer);  // left as the collective leaves it

  const std::vector<std::byte> before = memory.copy(), after = run_together();
  const auto same = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b, char mark, const char* what) {
    each_run(written, mark, [&](std::size_t i, std::size_t n) { expect(std::memcmp(&a[i], &b[i], n) == 0, what); });
  };
  same(before, after, '.', "an operation writes what it names alone");
  std::vector<std::byte> rubbish = before;
  each_run(named, '.', [&](std::size_t i, std::size_t n) { std::fill_n(&rubbish[i], n, std::byte{0xff}); });  // not a number
  memory.assign(rubbish);
  same(after, run_together(), 'x', "what an operation writes depends on what it names alone");
  memory.assign(after);
}

std::size_t run_all_twice(const Job& job, bool decodes) {
  std::size_t operations = 0;
  const std::size_t B = job.sharding.batch.B, T = job.sharding.batch.T, V = job.config.vocab_size;
  run_ranks(job.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(Threads::one, 0);
    const Transformer model(job.config);
    ShardingOptions options = job.sharding;
    if (decodes) options.plan.cache = {2, T};
    const MeshShape shape = mesh_shape(find_placement(options.strategy), job.ranks, options.shard_group_size);
    Mesh mesh = make_mesh(world, shape.shard, shape.replicate);
    mesh.use_device(*device, {});
    const ShardedPlan planned = plan_sharding(model, options, shape);
    const Plan& plan = planned.plan;
    Buffer arena = device->allocate(plan.arena_bytes), host = device->allocate_staging(plan.host_bytes),
           slots = mesh.data_along(GroupAxis::shard).allocate(*device, plan.slot_bytes);
    const Memory memory(plan, arena, slots, host);
    const auto twice = [&](const Operation& op, const std::function<void()>& run) {
      try {
        run_twice(op, run, memory, world);
      } catch (const InternalError& error) {
        throw InternalError(format("{}: {}", title_of(op, planned.layout), error.what()));
      }
      if (world.rank() == 0) ++operations;
    };
    Executor executor(model, planned.layout, plan, options.batch, options.optimizer, *device, std::move(arena),
                      std::move(slots), std::move(host), mesh, {twice});
    executor.initialize_parameters(5);
    executor.publish_parameters();
    const BatchReader read = [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
      for (std::size_t i = 0; i < B * T; ++i) {
        inputs[i] = static_cast<std::int32_t>(i % V), targets[i] = static_cast<std::int32_t>((i + 1) % V);
        if (options.plan.documents) targets[B * T + i] = static_cast<std::int32_t>(i % T % 3);
      }
    };
    for (std::uint64_t update = 1; update <= 2; ++update)
      executor.run_update(read, {.update = update,
                                 .learning_rate = 1e-3,
                                 .clip_norm = 0.7,
                                 .dropout = {.residual = job.dropout, .attention = job.dropout, .seed = 3, .update = update},
                                 .tokens = static_cast<double>(B * T * options.plan.micro_batches) * job.ranks,
                                 .loss_scale = options.types.parameter == DType::f16 ? 1024.0 : 1.0});
    executor.evaluate(read);
    if (!decodes) return;
    std::vector<float> logits(V);
    const std::int32_t token = 1, sequence = 0, wanted = 0;
    for (std::int32_t position = 0; position < 2; ++position)
      executor.decode({{&token, 1}, {&sequence, 1}, {&position, 1}, {&wanted, 1}}, logits.data());
  });
  return operations;
}

}  // namespace

BOOST_AUTO_TEST_CASE(operations_do_what_they_say) {
  std::size_t operations = 0;
  each_random_job(40, 6, [&](const Job& job, std::uint64_t) {
    operations += run_all_twice(job, job.config.positions == Positions::rotary && !job.sharding.plan.documents);
  });
  BOOST_TEST_MESSAGE(operations << " operations ran twice");
  BOOST_TEST(operations > 5000u);
}
