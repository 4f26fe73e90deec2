// Plans of random jobs: checks that no plan has changed, and counts the changes to a plan that check_plan() accepts.
//
//     test_plan_plans -- FOLDER    writes the whole plans, to compare them with those of another build
#include <algorithm>
#include <fstream>
#include <map>

#include "files/checksum.hpp"
#include "plan/check/plan_check.hpp"
#include "plan/forget.hpp"
#include "plan/kind.hpp"
#include "run/random_jobs.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Planned {
  std::shared_ptr<const Transformer> model;
  ShardingOptions options;
  ShardedPlan plan;

  void check() const {
    check_plan(plan.plan, plan.layout, find_placement(options.strategy),
               model->sizes(options.batch, options.types.parameter, options.plan.cache), options.plan.micro_batches);
  }
};

/// Returns a job's plan. Every fourth job also has a decoding list.
Planned plan_of(const Job& job, std::uint64_t number, const DeviceTraits& device, bool input_gradients = false) {
  DeviceTraits traits = device;
  if (job.piece_rows > 0) traits.piece_rows = job.piece_rows, traits.logits_bytes = 1;
  const auto model = std::make_shared<const Transformer>(job.config, traits);
  ShardingOptions options = job.sharding;
  if (number % 4 == 0 && job.config.positions == Positions::rotary) options.plan.cache = {2, 8};
  options.plan.input_gradients = input_gradients;
  check_sharding(*model, options, job.ranks);
  ShardedPlan plan =
      plan_sharding(*model, options, mesh_shape(find_placement(options.strategy), job.ranks, options.shard_group_size));
  return {model, options, std::move(plan)};
}

std::string text_of(const Location& place) { return format("{}+{}+{}r", place.buffer, place.offset, place.per_shard); }

std::string text_of(const std::vector<Operand>& operands) {
  std::string text;
  for (const Operand& operand : operands) text += format(" {} {}", static_cast<int>(operand.name), text_of(operand.place));
  return text;
}

std::string text_of(const Operation& op) {
  return format(
      "{} on {}: micro-batch {}, unit {}, stage {}, block {}, round {}, accumulate {}, group {}, {} of {} in {},{}, waits {}, "
      "awaited {}, acquires {}, frees {}\n",
      op.kind->name, name_of(op.stream), op.micro_batch, op.unit, op.stage, op.block, op.round, op.accumulate,
      static_cast<int>(op.group), op.count, name_of(op.type), name_of(op.reduce_dtype), text_of(op.operands),
      fmt::join(op.waits, " "), op.awaited, fmt::join(op.acquires, " "), fmt::join(op.frees, " "));
}

std::string text_of(const Plan& plan) {
  std::string text = format("peak {}", plan.peak_bytes);
  for (const auto& [space, bytes] : plan.spaces) text += format(", {} {}", space->name, bytes);
  text += "\n";
  for (const PlanBuffer& b : plan.buffers)
    text += format("{}: {}, {} in {} at {}, transient {}, slot {}, unit {}\n", b.name, name_of(b.role), b.bytes, b.space->name,
                   b.offset, b.transient, text_of(b.slot), b.owner.unit);
  for (const auto& [name, list] : {std::pair{"update", &plan.update},
                                   {"evaluation", &plan.evaluation},
                                   {"decoding", &plan.decoding},
                                   {"publish", &plan.publish}}) {
    text += format("{}:\n", name);
    for (const Operation& op : *list) text += text_of(op);
  }
  return text;
}

}  // namespace

// Fails if a plan has changed by mistake; tests/golden/plans.txt has a checksum for every 25 jobs.
BOOST_AUTO_TEST_CASE(plans_are_those_that_are_known) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  const std::string folder = suite.argc > 1 ? suite.argv[1] : "";
  std::string found;
  for (const DeviceTraits& device : {cpu_traits(1), cuda_traits()}) {
    const char* const name = device.kind == DeviceKind::cpu ? "cpu" : "gpu";
    std::size_t planned = 0;
    std::string text;
    for (std::uint64_t number = 0; planned < 500; ++number) {
      const Job job = random_job(4, number);
      try {
        text += job.description + "\n" + text_of(plan_of(job, number, device).plan.plan);
      } catch (const UserError&) {  // everything is frozen, or a pattern is for the other family
        continue;
      }
      if (++planned % 25 != 0) continue;
      if (!folder.empty()) std::ofstream(format("{}/{}-{:03}.txt", folder, name, planned)) << text;
      found += format("{} {:3} {}\n", name, planned, checksum_text(checksum(text.data(), text.size())));
      text.clear();
    }
  }
  const std::string known = read_file(FSDP_TEST_DATA "/plans.txt");
  BOOST_TEST(found == known, "plans have changed; test_plan_plans -- FOLDER of both builds shows how. If that was meant:\n"
                                 << found);
}

namespace {

/// Tries each change to an operation of a list, with the name of the change; changes without an effect are left out.
template <class Try>
void each_mutation(const Plan& plan, std::vector<Operation>& list, std::size_t i, const Try& attempt) {
  Dice dice(i);
  const Operation op = list[i];
  const auto with = [&](const char* name, const auto& change) {
    list[i] = op;
    change(list[i]);
    attempt(name);
    list[i] = op;
  };
  const auto other = [&](BufferId buffer) {
    return static_cast<BufferId>((static_cast<std::size_t>(buffer) + 1 + dice.below(plan.buffers.size() - 1)) %
                                 plan.buffers.size());
  };
  for (std::size_t k = 0; k < op.operands.size(); ++k) {
    const auto at_k = static_cast<std::ptrdiff_t>(k);
    with("operand dropped", [&](Operation& o) { o.operands.erase(o.operands.begin() + at_k); });
    with("operand elsewhere", [&](Operation& o) { o.operands[k].place.buffer = other(o.operands[k].place.buffer); });
    with("operand shifted", [&](Operation& o) { o.operands[k].place.offset += 64; });
  }
  for (std::size_t k = 0; k < op.waits.size(); ++k)
    with("wait dropped", [&](Operation& o) { o.waits.erase(o.waits.begin() + static_cast<std::ptrdiff_t>(k)); });
  if (op.block > 0) with("other block", [&](Operation& o) { --o.block, --o.stage; });
  if (op.unit > 0) with("other unit", [&](Operation& o) { --o.unit; });
  with("other micro-batch", [&](Operation& o) { o.micro_batch += o.micro_batch > 0 ? -1 : 1; });
  with("accumulates or not", [&](Operation& o) { o.accumulate = !o.accumulate; });
  if (op.count > 0) with("one less", [&](Operation& o) { --o.count; });
  with("other type", [&](Operation& o) { o.type = o.type == DType::f32 ? DType::bf16 : DType::f32; });
  if (is_collective(op))
    with("other group", [&](Operation& o) { o.group = o.group == GroupAxis::shard ? GroupAxis::replicate : GroupAxis::shard; });
  with("left out", [](Operation& o) { test::forget(o); });
}

}  // namespace

// check_plan() may accept only changes without an effect on numbers. If it accepts more than the known ones, a rule is missing.
// - "accumulates or not": of stages all of whose parameters are frozen, or are shared with a stage that has contributed in the
//   same micro-batch before: the second contribution is added in any case.
// - "left out": an upcast of what is still there in fp32 since the norm; a recomputation of what no later block has overwritten
//   since the forward pass.
// - "other micro-batch": of a reduction that is the last operation of its micro-batch.
BOOST_AUTO_TEST_CASE(changed_plans_are_refused) {
  const std::map<std::string, std::size_t> known = {
      {"accumulates or not", 65}, {"left out", 6},        {"one less", 0},    {"operand dropped", 0},
      {"operand elsewhere", 0},   {"operand shifted", 0}, {"other block", 0}, {"other group", 0},
      {"other micro-batch", 1},   {"other type", 0},      {"other unit", 0},  {"wait dropped", 0}};
  std::map<std::string, std::size_t> tried, accepted;
  std::map<std::string, std::map<std::string_view, std::size_t>> accepted_in;  // by kind of operation
  std::size_t planned = 0;
  for (std::uint64_t number = 0; planned < 60; ++number) {
    const Job job = random_job(5, number);
    std::optional<Planned> made;
    try {
      made.emplace(plan_of(job, number, cpu_traits(1), number % 2 == 1));
    } catch (const UserError&) {
      continue;
    }
    ++planned;
    Dice dice(number);
    Plan& plan = made->plan.plan;
    for (auto* const list : {&plan.update, &plan.evaluation, &plan.decoding, &plan.publish, &plan.input_gradients})
      for (int sample = 0; sample < 8 && !list->empty(); ++sample) {
        const std::size_t i = dice.below(list->size());
        const std::string_view kind = (*list)[i].kind->name;
        each_mutation(plan, *list, i, [&](const char* name) {
          ++tried[name];
          try {
            made->check();
          } catch (const std::exception&) {
            return;
          }
          ++accepted[name];
          ++accepted_in[name][kind];
        });
      }
  }
  BOOST_TEST(tried.size() == known.size());
  for (const auto& [name, count] : tried) {
    std::string kinds;
    for (const auto& [kind, n] : accepted_in[name]) kinds += format(", {} {}", kind, n);
    BOOST_TEST_MESSAGE(format("{}: {} of {} are accepted{}", name, accepted[name], count, kinds));
    BOOST_TEST(accepted[name] <= known.at(name), name);
  }
}
