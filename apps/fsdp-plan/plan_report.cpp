// Prints a PlanTable as text and as JSON.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "fsdp-plan/explained_plan.hpp"
#include "fsdp-plan/plan_scaling.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "fsdp-plan/prediction_notes.hpp"

namespace fsdp {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RuleOfThumb, name, parameters, gradients, optimizer_state, gathered)

namespace {

using Cells = std::vector<std::string>;

template <class Number>
std::string bytes(Number n) {
  return format_bytes(static_cast<double>(n));
}

std::string name_of(const PlanRow& row) { return format("{} {}", row.chosen ? ">" : " ", row.placement->name); }

/// The rows of the tables: all strategies. On one rank they are equal but for some KiB of staging, so it is only the chosen
/// one.
std::span<const PlanRow> shown_rows(const PlanTable& table) {
  return table.options.cluster.ranks() == 1 ? std::span(&table.chosen(), 1) : std::span(table.rows);
}

std::size_t other_bytes(const MemoryAccount& m) {
  return m.of(BufferRole::scratch) + m.of(BufferRole::batch) + m.of(BufferRole::loaded) + m.total() - m.plan - m.staging;
}

bool some_have(const PlanTable& table, std::size_t MemoryAccount::*part) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const PlanRow& row) { return row.keeping.memory.*part > 0; });
}

std::string memory_table(const PlanTable& table) {
  std::vector<Cells> rows = {{"", "", "", "optimizer", "gathered", "unreduced", "comm.", ""},
                             {"  strategy", "params", "gradients", "state", "slots", "slots", "staging", "other"}};
  const bool offloads = some_have(table, &MemoryAccount::offloaded);
  if (offloads) rows[0].push_back("on the"), rows[1].push_back("host");
  for (const PlanRow& row : shown_rows(table)) {
    const MemoryAccount& m = row.keeping.memory;
    rows.push_back({name_of(row), bytes(m.of(BufferRole::parameters)), bytes(m.of(BufferRole::gradients)),
                    bytes(m.of(BufferRole::optimizer_state)), bytes(m.of(BufferRole::gathered_parameters)),
                    bytes(m.of(BufferRole::unreduced_gradients)), bytes(m.staging), bytes(other_bytes(m))});
    if (offloads) rows.back().push_back(bytes(m.offloaded));
  }
  return lay_out(rows, 2);
}

/// The activations and the total memory of a rank. They are in a second table, because one table would be too wide for a
/// terminal.
std::string total_table(const PlanTable& table) {
  std::vector<Cells> rows = {{"", "activ.", "activ.", "total", "total"}, {"  strategy", "kept", "recomp.", "kept", "recomp."}};
  if (table.options.memory_limit != 0) {
    for (const char* cell : {"fits", "fits"}) rows[0].push_back(cell);
    for (const char* cell : {"kept", "recomp."}) rows[1].push_back(cell);
  }
  const bool first_blocks = recomputes_first_blocks(table.options), on_disk = some_have(table, &MemoryAccount::on_disk);
  if (first_blocks) rows[0].push_back("blocks"), rows[1].push_back("recomp.");
  if (on_disk) rows[0].push_back("on the"), rows[1].push_back("disk");
  for (const PlanRow& row : shown_rows(table)) {
    Cells cells = {name_of(row)};
    for (const bool recompute : {false, true})
      cells.push_back(bytes(row.variant(recompute).memory.of(BufferRole::activations)));
    for (const bool recompute : {false, true}) cells.push_back(bytes(row.variant(recompute).memory.total()));
    if (table.options.memory_limit != 0)
      for (const bool recompute : {false, true}) cells.push_back(table.fits(row.variant(recompute)) ? "yes" : "no");
    if (first_blocks) cells.push_back(format("{}", row.recomputing.recomputed_blocks));
    if (on_disk) cells.push_back(bytes(row.keeping.memory.on_disk));
    rows.push_back(std::move(cells));
  }
  return lay_out(rows, 2);
}

std::string traffic_table(const PlanTable& table) {
  std::vector<Cells> rows = {{"", "all-", "reduce-", "all-", "within", "between", "out of", "same by"},
                             {"  strategy", "gather", "scatter", "reduce", "node", "nodes", "a node", "rings"}};
  for (const PlanRow& row : shown_rows(table)) {
    for (const bool recompute : {false, true}) {
      // Recomputation has a line only if its traffic differs: if it recomputes segments of several blocks, some units are
      // gathered once more.
      if (recompute && row.keeping.traffic == row.recomputing.traffic) continue;
      const ClusterTraffic& t = row.variant(recompute).traffic;
      const auto sent = [&](Collective kind) { return bytes(t.rank.bytes_sent[static_cast<std::size_t>(kind)]); };
      rows.push_back({recompute ? "    recomputing" : name_of(row), sent(Collective::all_gather),
                      sent(Collective::reduce_scatter), sent(Collective::all_reduce), bytes(t.rank.within_node),
                      bytes(t.rank.between_nodes), bytes(t.out_of_node), bytes(t.ring_out_of_node)});
    }
  }
  return lay_out(rows, 2);
}

/// Returns the predicted times of all strategies; an empty string without --gpu and --measured.
std::string prediction_table(const PlanTable& table) {
  if (!table.rates) return "";
  if (!table.predicts())
    return "\nno prediction: the time of the disk is unknown; give --nvme-bandwidth R,W, its rates of reading and writing in\n"
           "GB/s\n";
  const Rates& rates = *table.rates;
  std::vector<NamedRate> constants = named_rates(rates);
  if (const DiskRates& disk = table.options.nvme_bandwidth; disk.known())
    constants.push_back(
        {"a node's disk", format("{:.3g} and {:.3g} GB/s", disk.read, disk.write), "reads and writes: --nvme-bandwidth"});
  std::vector<Cells> rows = {
      {"", "ms per", "tokens", "", "pro-", "atten-", "memory-", "recom-", "opti-", "", "ex-", ""},
      {"  strategy", "update", "/s", "MFU", "ducts", "tion", "bound", "puted", "mizer", "slowed", "posed", "fits"}};
  for (const PlanRow& row : shown_rows(table))
    for (const bool recompute : {false, true}) {
      const PlanVariant& variant = row.variant(recompute);
      const StepPrediction& step = variant.step;
      rows.push_back({recompute ? "    recomputing" : name_of(row), ms_cell(step.total),
                      format("{:.0f}", variant.tokens_per_second), format("{:.0f} %", 100 * variant.mfu),
                      ms_cell(step.products), ms_cell(step.attention), ms_cell(step.memory_bound), ms_cell(step.recomputation),
                      ms_cell(step.optimizer), ms_cell(step.slowed), ms_cell(step.exposed),
                      table.fits(variant) ? "yes" : "no"});
    }
  return format(
             "\nprediction for {}, not measured: the plan's operations with these rates\n{}"
             "Reading data and saves are not included. Parts are ms of the compute stream; with the host's time they\n"
             "add up to an update. slowed: computing takes longer because collectives run at the same time; exposed:\n"
             "it waits for transfers and sums. MFU: of {:.3g} TFLOP/s, attention counted causally.\n",
             rates.machine, rates_table(constants), rates.peak / 1e12) +
         lay_out(rows, 2) + (table.scaling.empty() ? text_of(prediction_notes(table)) : "");
}

/// Returns lines about a node's host memory and disk, if something is offloaded.
std::string beside_the_devices(const PlanTable& table, const PlanVariant& variant) {
  const int ranks = table.options.cluster.ranks_per_node;
  const auto line = [&](std::size_t of_rank, const char* what) {
    return of_rank == 0 ? "" : format("  and {} of {} on each node\n", bytes(static_cast<std::size_t>(ranks) * of_rank), what);
  };
  return line(variant.memory.offloaded, "the host's memory") + line(variant.memory.on_disk, "the disk");
}

/// Returns a line about the traffic of the chosen strategy with a node's disk.
std::string disk_line(const PlanTable& table) {
  const DiskTraffic& disk = table.chosen().keeping.disk;
  if (!disk.any()) return "";
  return "\n" + wrapped(describe_disk_traffic(disk, table.options.cluster.ranks_per_node, "a node")) + "\n";
}

std::string options_of(const PlanTable& table, const PlanRow& row, bool recompute) {
  const PlanVariant& variant = row.variant(recompute);
  PlanOptions plan;
  plan.recomputed_blocks = variant.recomputed_blocks, plan.offloaded_inputs = variant.offloaded_inputs;
  const std::string blocks = !recompute                                ? ""
                             : !recomputes_first_blocks(table.options) ? " --checkpoint-activations"
                             : variant.recomputed_blocks == 0          ? ""
                                                                       : " " + with_option_names(describe_choice(plan));
  return format("--sharding-strategy {}{}{}", row.placement->name, blocks,
                variant.model == table.model || !table.fits(variant)
                    ? ""
                    : format(" --memory-limit {}", table.options.train.memory_limit));
}

/// Returns a sentence about the variant with the shortest predicted time among those that fit.
std::string fastest(const PlanTable& table) {
  if (!table.predicts()) return "";
  const PlanRow* best = nullptr;
  bool recomputes = false;
  for (const PlanRow& row : shown_rows(table))
    for (const bool recompute : {false, true})
      if (table.fits(row.variant(recompute)) &&
          (!best || row.variant(recompute).step.total < best->variant(recomputes).step.total))
        best = &row, recomputes = recompute;
  const PlanVariant& variant = best->variant(recomputes);
  return format("the fastest of them by the prediction: {}, {:.1f} ms per update\n", options_of(table, *best, recomputes),
                1e3 * variant.step.total) +
         beside_the_devices(table, variant);
}

std::string conclusion(const PlanTable& table) {
  if (table.options.memory_limit == 0) return "";
  const std::string fitting =
      table.choice.empty() ? "" : format("{} fits with: {}\n", table.chosen().placement->name, table.choice);
  const auto say = [&](const PlanChoice& choice) {
    const PlanRow& row = table.rows[choice.row];
    return std::pair(options_of(table, row, choice.recompute), row.variant(choice.recompute));
  };
  if (const auto best = table.least_communicating()) {
    const auto [what, variant] = say(*best);
    return format("\nof those that fit {}, the least communicating: {}\n  {} per rank; a rank sends {} per update, a node {}\n",
                  bytes(table.options.memory_limit), what, bytes(variant.memory.total()), bytes(variant.traffic.rank.total()),
                  bytes(variant.traffic.out_of_node)) +
           beside_the_devices(table, variant) + fastest(table) + fitting;
  }
  if (!fitting.empty()) return "\n" + fitting;
  const auto [what, variant] = say(table.smallest());
  const TransformerConfig& config = table.model->config();
  return format(
      "\nnothing fits {}: the least, {}, needs {} per rank\n  more ranks, {}a smaller --batch-size or a smaller "
      "--tokens-per-sample need less\n",
      bytes(table.options.memory_limit), what, bytes(variant.memory.total()),
      config.lora.rank > 0 && !config.base_type ? "--base-dtype nf4, " : "");
}

std::string headline(const PlanTable& table) {
  const TrainOptions& train = table.options.train;
  const Cluster& cluster = table.options.cluster;
  return format(
      "{}: {} parameters, {} blocks, width {}, {}, {}\n{} x {}; {} x {} tokens per rank and micro-batch, {} per update; {} "
      "per rank\n",
      train.arch.empty() ? one_line(train.model.string()) : train.arch,
      format_count(static_cast<double>(table.model->parameter_count())), table.model->blocks.size(),
      table.model->config().width, name_of(train.sharding.types.parameter), train.sharding.optimizer.kind->name,
      plural(cluster.nodes, "node"), plural(cluster.ranks_per_node, "rank"), train.sharding.batch.B, train.sharding.batch.T,
      plural(train.sharding.plan.micro_batches, "micro-batch", "micro-batches"),
      is_host(table.model->device().kind) ? plural(train.threads, "thread") : "a GPU");
}

std::vector<RuleOfThumb> rules_of_thumb(const PlanTable& table) {
  const auto P = static_cast<double>(table.model->parameter_count());
  std::vector<RuleOfThumb> rules;
  for (const char* name : {"full", "grad-op"})
    for (const bool mixed : {true, false})
      rules.push_back(*tutorial_estimate(P, table.options.cluster.ranks(), mixed, find_placement(name)));
  for (const PlanRow& row : table.rows)
    if (row.placement->name == "full" || row.placement->name == "none")
      rules.push_back(slides_breakdown(P, row.mesh, *row.placement));
  return rules;
}

std::string rules_table(const PlanTable& table) {
  std::vector<Cells> rows = {{"  rule", "params", "gradients", "optimizer", "gathered", "total"}};
  for (const RuleOfThumb& rule : rules_of_thumb(table))
    rows.push_back({"  " + rule.name, bytes(rule.parameters), bytes(rule.gradients), bytes(rule.optimizer_state),
                    bytes(rule.gathered), bytes(rule.total())});
  return lay_out(rows, 2);
}

/// Returns a table of the units; units of equal size share a row.
std::string explain_units(const Layout& layout) {
  struct Kind {
    std::size_t first, count, tensors;
  };
  std::vector<std::pair<std::pair<std::size_t, std::size_t>, Kind>> kinds;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const Unit& unit = layout.units()[u];
    const std::pair key(unit.numel, layout.shard_numel(u));
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == key; });
    if (found == kinds.end())
      kinds.push_back({key, {u, 1, unit.parameters.size()}});
    else
      ++found->second.count;
  }
  std::vector<Cells> rows = {{"  unit", "how many", "tensors", "elements", "with padding", "shards", "of a rank"}};
  for (const auto& [key, kind] : kinds) {
    const Unit& unit = layout.units()[kind.first];
    rows.push_back({"  " + unit.name + (kind.count > 1 ? ", ..." : ""), format("{}", kind.count), format("{}", kind.tensors),
                    format("{}", unit.numel), format("{}", unit.padded_numel), format("{}", unit.shards),
                    format("{}", key.second)});
  }
  return lay_out(rows, 2);
}

/// Returns a list of slots with their sizes: "2 x 117 MiB (P0, P1), 1 x 313 MiB (P root)".
std::string explain_slots(const Plan& plan, BufferRole role) {
  std::vector<std::pair<std::size_t, Cells>> sizes;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.role != role) continue;
    if (sizes.empty() || sizes.back().first != buffer.bytes) sizes.push_back({buffer.bytes, {}});
    sizes.back().second.push_back(buffer.name);
  }
  if (sizes.empty()) return "none";
  std::string text;
  for (const auto& [size, names] : sizes) {
    const std::string list =
        names.size() > 3 ? format("{}, ... {}", names.front(), names.back()) : format("{}", fmt::join(names, ", "));
    text += format("{}{} x {} ({})", text.empty() ? "" : ", ", names.size(), bytes(size), list);
    if (text.size() > 60 && &size != &sizes.back().first) return text + ", ...";
  }
  return text;
}

/// Describes the effect of parameters that are frozen or not sharded, if there are any.
std::string explain_exceptions(const PlanTable& table, const Layout& layout) {
  std::size_t trained = 0, whole = 0;
  for (const Unit& unit : layout.units()) {
    if (unit.trainable) trained += unit.numel;
    if (!unit.sharded) whole += unit.numel;
  }
  std::string text;
  if (trained < table.model->parameter_count())
    text += format(
        "{} of the parameters are trained: only these have gradients, optimizer state and, in 16 bits, an fp32 copy.\n"
        "The rules of thumb assume that all are trained.\n",
        format_count(static_cast<double>(trained)));
  if (whole > 0)
    text += format("{} of the parameters are ignored by sharding: every rank has them whole.\n",
                   format_count(static_cast<double>(whole)));
  return text;
}

/// Explains how fsdp-train and the rules of thumb count parameters. The slides' rule has 2 + 2 + 12 bytes per parameter, and
/// its 12 ("12x") include the fp32 parameters, which it calls the parameter copy.
std::string explain_parameters(const UnitTypes& types) {
  if (types.master == DType::bf16)
    return "parameters: bf16, 2 bytes each, which the optimizer changes as they are; they are the slides' and the tutorial's "
           "2x.\n";
  if (types.parameter == DType::f32)
    return "parameters: fp32, 4 bytes each. They are the slides' \"parameter copy\", which is in their 12x; the 16-bit copy\n"
           "  that the slides and the tutorial count here is not there: --precision is fp32.\n";
  return format(
      "parameters: the fp32 copy that the optimizer changes, 4 bytes each, which is in the slides' 12x, and in {}, 2 bytes\n"
      "  each, what is gathered and computed with, which the slides and the tutorial count here.\n",
      name_of(types.parameter));
}

std::string explain_states(const TrainOptions& train, const std::vector<Parameter>& parameters) {
  const OptimizerOptions& optimizer = train.sharding.optimizer;
  const UnitTypes& types = train.sharding.types;
  const std::size_t size = size_of(optimizer.state_type), gradient = size_of(types.gradient),
                    copies = size_of(types.parameter) + (types.master == types.parameter ? 0 : size_of(types.master));
  if (optimizer.kind == &adamw_optimizer() && !optimizer.amsgrad)
    return format(
        "optimizer state: AdamW's two moments, {} bytes; the slides' 12 have the parameter copy in them, the tutorial has\n"
        "  no copy. Per parameter: slides 2 + 2 + 12 = 16, fsdp-train {} + {} + {} = {}, tutorial 2 + 2 + 8 = 12.\n",
        2 * size, copies, gradient, 2 * size, copies + gradient + 2 * size);
  return format(
      "optimizer state: {} of {}, in {}; the slides' 12 are Adam's moments and the parameter copy, the tutorial's 8 the "
      "moments.\n",
      fmt::join(states_of(optimizer, parameters), ", "), optimizer.kind->name, name_of(optimizer.state_type));
}

std::string explain_parts(const PlanTable& table, const PlanRow& row, const Plan& plan) {
  const MemoryAccount& m = row.keeping.memory;
  const bool on_gpu = !is_host(m.device);
  const auto P = static_cast<double>(table.model->parameter_count());
  const auto tutorial = tutorial_estimate(P, table.options.cluster.ranks(), true, *row.placement);
  const RuleOfThumb slides = slides_breakdown(P, row.mesh, *row.placement);
  const auto theirs = [&](double RuleOfThumb::*part) { return tutorial ? bytes((*tutorial).*part) : std::string("-"); };
  std::vector<Cells> rows = {{"  part", "tutorial", "slides", "fsdp-train"}};
  rows.push_back(
      {"  parameters", theirs(&RuleOfThumb::parameters), bytes(slides.parameters), bytes(m.of(BufferRole::parameters))});
  rows.push_back({"  gradients", theirs(&RuleOfThumb::gradients), bytes(slides.gradients), bytes(m.of(BufferRole::gradients))});
  rows.push_back({"  optimizer state", theirs(&RuleOfThumb::optimizer_state), bytes(slides.optimizer_state),
                  bytes(m.of(BufferRole::optimizer_state))});
  rows.push_back({"  gathered parameters", theirs(&RuleOfThumb::gathered), "-", bytes(m.of(BufferRole::gathered_parameters))});
  rows.push_back({"  unreduced gradients", "-", "-", bytes(m.of(BufferRole::unreduced_gradients))});
  rows.push_back({"  activations, kept", "-", "-", bytes(m.of(BufferRole::activations))});
  rows.push_back({"  scratch, batch, tables", "-", "-", bytes(m.of(BufferRole::scratch) + m.of(BufferRole::batch))});
  if (m.offloaded + m.on_disk > 0) rows.push_back({"  offload slots", "-", "-", bytes(m.of(BufferRole::loaded))});
  rows.push_back({"  communication staging", "-", "-", bytes(m.staging)});
  rows.push_back({on_gpu ? "  gemm's workspace" : "  gemm's panels, about", "-", "-", bytes(m.gemm)});
  if (on_gpu) rows.push_back({"  driver and libraries, a guess", "-", "-", bytes(m.context)});
  if (!on_gpu && m.file > 0) rows.push_back({"  staging of the file for state", "-", "-", bytes(m.file)});
  if (!on_gpu && m.snapshot > 0) rows.push_back({"  snapshot of a save", "-", "-", bytes(m.snapshot)});
  if (!on_gpu) rows.push_back({"  tokens read ahead", "-", "-", bytes(m.batch)});
  rows.push_back({"  total", tutorial ? bytes(tutorial->total()) : "-", bytes(slides.total()), bytes(m.total())});
  const bool in_parts = row.placement->parameters_forward_to_backward == Place::sharded;
  return lay_out(rows, 2) +
         format(
             "\ntutorial: P parameters of b bytes on N ranks: b P / N + b P / N + 8 P / N, and b P gathered; b is 2, in fp32 "
             "4; with\n"
             "  SHARD_GRAD_OP b P + b P / N + 8 P / N. slides: 2 P + 2 P + 12 P in fp16 with Adam, sharded as in the ZeRO "
             "paper.\n"
             "{}"
             "gradients: {}, theirs are 16-bit.\n"
             "{}"
             "gathered parameters: {}.\n  {}\n"
             "unreduced gradients: {}.\n"
             "  What backward writes, until it is reduced; neither rule has it.\n"
             "activations: what blocks save for backward, at its peak: {}; with recomputation {}.\n"
             "scratch, batch, tables: of one block at a time{}, the tokens, rotary positions.\n"
             "{}",
             explain_parameters(table.options.train.sharding.types), name_of(table.options.train.sharding.types.gradient),
             explain_states(table.options.train, table.model->parameters()),
             explain_slots(plan, BufferRole::gathered_parameters),
             in_parts
                 ? "Units take turns in these slots; the tutorial counts the whole model as if all units were gathered at once."
                 : "The strategy keeps whole parameters from forward to backward; what is whole at rest needs no slot.",
             explain_slots(plan, BufferRole::unreduced_gradients), bytes(m.of(BufferRole::activations)),
             bytes(row.recomputing.memory.of(BufferRole::activations)), on_gpu ? "" : " and each of --threads",
             on_gpu ? (m.backend
                           ? format("communication staging: for the sums of each axis by {}: the largest one, but at most {} "
                                    "(--sum-staging).\n",
                                    m.backend->name, bytes(table.options.train.comm.sum_staging_bytes))
                           : std::string("communication staging: none, as collectives go through the host's memory.\n")) +
                          "gemm's workspace: what cuBLASLt is given.\n"
                          "driver and libraries: CUDA's context, loaded kernels, NCCL's channels: allowed for, not measured.\n"
                    : "communication staging: of the world, the node, and the groups of both axes; --comm says which share "
                      "memory.\n"
                      "gemm's panels: what matrix products take: the library's panels, and copies of operands where the type "
                      "wants them.\n");
}

std::string explain_traffic(const PlanTable& table, const PlanRow& row, const ShardedPlan& planned) {
  std::vector<Cells> rows = {{"  collective", "calls", "axis", "ranks", "bytes each", "rank 0 sends"}};
  for (const CollectiveUse& use : collectives_of_update(planned.plan.update, table.options.train.sharding.plan.micro_batches)) {
    const std::size_t size = members_along(use.axis, row.mesh).size;
    rows.push_back({format("  {}", name_of_collective(use.kind)), format("{}", use.calls), std::string(name_of(use.axis)),
                    format("{}", size), bytes(use.whole_bytes(size)),
                    bytes(traffic_of_rank({use}, row.mesh, table.options.cluster, 0).total())});
  }
  const char* const between =
      table.options.cluster.between == Between::nodes
          ? "A group that has the same number of consecutive ranks on each of its nodes sends a shard to each other\n"
            "node once; so it does with sums, if that number is a power of two, and with the few bytes of the norm and\n"
            "the loss as a whole. In other groups a rank sends each other rank what that one needs.\n"
          : "With --comm mpi a rank sends each other rank what that one needs, without a stop on the way.\n";
  return lay_out(rows, 2) +
         format(
             "\nOver S ranks a rank sends (S-1)/S of the padded bytes in an all-gather and in a reduce-scatter,\n"
             "2 (S-1)/S in an all-reduce. \"within node\", \"between nodes\": what the rank that sends most\n"
             "sends there; ranks are consecutive.\n{}"
             "\"out of a node\": what its ranks send to other nodes, added up. \"same by rings\": what would leave a node\n"
             "if each group were a ring in the order of ranks, as in NCCL: then each group that spans nodes has one\n"
             "stream out of a node. The norm of the gradient and the loss are counted; saving and validation are not.\n",
             between);
}

nlohmann::json memory_json(const MemoryAccount& m) {
  const bool on_gpu = !is_host(m.device);  // host memory is then not part of the total
  return {{"parameters", m.of(BufferRole::parameters)},
          {"gradients", m.of(BufferRole::gradients)},
          {"optimizer_state", m.of(BufferRole::optimizer_state)},
          {"gathered_parameters", m.of(BufferRole::gathered_parameters)},
          {"unreduced_gradients", m.of(BufferRole::unreduced_gradients)},
          {"activations", m.of(BufferRole::activations)},
          {"scratch", m.of(BufferRole::scratch)},
          {"batch_and_tables", m.of(BufferRole::batch)},
          {"offload_slots", m.of(BufferRole::loaded)},
          {"offloaded", m.offloaded},
          {"on_disk", m.on_disk},
          {"plan_peak", m.plan},
          {"communication_staging", m.staging},
          {"gemm_panels", m.gemm},
          {"device_context", m.context},
          {"file_staging", on_gpu ? 0 : m.file},
          {"snapshot", on_gpu ? 0 : m.snapshot},
          {"read_ahead", on_gpu ? 0 : m.batch},
          {"total", m.total()}};
}

nlohmann::json traffic_json(const ClusterTraffic& t) {
  const auto sent = [&](Collective kind) { return t.rank.bytes_sent[static_cast<std::size_t>(kind)]; };
  return {{"all_gather", sent(Collective::all_gather)}, {"reduce_scatter", sent(Collective::reduce_scatter)},
          {"all_reduce", sent(Collective::all_reduce)}, {"within_node", t.rank.within_node},
          {"between_nodes", t.rank.between_nodes},      {"out_of_node", t.out_of_node},
          {"ring_out_of_node", t.ring_out_of_node}};
}

nlohmann::json prediction_json(const PlanVariant& variant) {
  const StepPrediction& step = variant.step;
  const double without = variant.seconds_without_slow_rank;
  nlohmann::json json = {{"ms_without_slow_rank", without > 0 ? nlohmann::json(1e3 * without) : nlohmann::json()},
                         {"tokens_per_second", variant.tokens_per_second},
                         {"mfu", variant.mfu}};
  for (const auto& [name, seconds] : step_parts())
    json[seconds == &StepPrediction::total ? "ms" : std::string(name) + "_ms"] = 1e3 * step.*seconds;
  return json;
}

}  // namespace

std::string describe(const PlanTable& table) {
  if (table.options.tune) return headline(table);  // followed by the result of the search
  const bool one = table.options.cluster.ranks() == 1;
  return headline(table) +
         (one ? "one rank shares nothing, so all strategies are equal; the tables show the chosen one\n" : "") +
         "\nmemory of a rank\n" + memory_table(table) + "\nand with activations, kept or recomputed, in all\n" +
         total_table(table) + "\nsent per update and rank, and by a node\n" + traffic_table(table) + disk_line(table) +
         "\nrules of thumb for the model's states alone, all of it trained\n" + rules_table(table) + prediction_table(table) +
         conclusion(table) + describe_scaling(table);
}

std::string explain(const PlanTable& table) {
  const PlanRow& row = table.chosen();
  const ShardedPlan planned = plan_of_chosen(table, false);
  return format("where the numbers of --sharding-strategy {} come from: shard axis {}, replicate axis {}\n\n",
                row.placement->name, row.mesh.shard, row.mesh.replicate) +
         explain_units(planned.layout) + explain_exceptions(table, planned.layout) + "\n" +
         explain_parts(table, row, planned.plan) + "\n" + explain_traffic(table, row, planned);
}

nlohmann::json to_json(const PlanTable& table) {
  const PlanTableOptions& o = table.options;
  nlohmann::json out = {{"version", version_string()},
                        {"options", to_json(o.train)},
                        {"parameters", table.model->parameter_count()},
                        {"nodes", o.cluster.nodes},
                        {"ranks_per_node", o.cluster.ranks_per_node},
                        {"gpu", o.gpu ? to_json(*o.gpu) : nlohmann::json()},
                        {"rates", table.rates ? to_json(*table.rates) : nlohmann::json()},
                        {"memory_limit", o.memory_limit == 0 ? nlohmann::json() : nlohmann::json(o.memory_limit)},
                        {"least_communicating", nullptr},
                        {"strategies", nlohmann::json::array()},
                        {"rules_of_thumb", nlohmann::json::array()}};
  for (const PlanRow& row : table.rows) {
    const std::array<bool, 3> sharded = row.sharded(), kept_whole = row.kept_whole();
    nlohmann::json json = {
        {"strategy", row.placement->name},
        {"chosen", row.chosen},
        {"shard", row.mesh.shard},
        {"replicate", row.mesh.replicate},
        {"sharded", {{"parameters", sharded[0]}, {"gradients", sharded[1]}, {"optimizer_state", sharded[2]}}},
        {"kept_whole", {{"parameters", kept_whole[0]}, {"gradients", kept_whole[1]}}}};
    for (const bool recompute : {false, true}) {
      const PlanVariant& v = row.variant(recompute);
      nlohmann::json& variant = json[recompute ? "recomputing" : "keeping"];
      variant = {{"memory", memory_json(v.memory)},
                 {"traffic", traffic_json(v.traffic)},
                 {"disk_bytes", {{"read", v.disk.read}, {"written", v.disk.written}}},
                 {"fits", table.fits(v)},
                 {"recomputed_blocks", table.recomputed_blocks(v, recompute)}};
      if (table.predicts()) variant["prediction"] = prediction_json(v);
    }
    out["strategies"].push_back(std::move(json));
  }
  if (const auto best = table.least_communicating())
    out["least_communicating"] = {{"strategy", table.rows[best->row].placement->name},
                                  {"checkpoint_activations", best->recompute}};
  for (const RuleOfThumb& rule : rules_of_thumb(table)) out["rules_of_thumb"].emplace_back(rule)["total"] = rule.total();
  if (table.predicts()) out["notes"] = prediction_notes(table);
  if (o.slow.rank >= 0) out["slow_rank"] = {{"rank", o.slow.rank}, {"factor", o.slow.factor}};
  for (const PredictedPoint& point : table.scaling) {
    nlohmann::json json = to_json(table, point);
    json["prediction"] = prediction_json(point.variant);
    out["scaling"].push_back(std::move(json));
  }
  if (o.explain) out["plan"] = to_json(explained_plan(table));
  return out;
}

}  // namespace fsdp
