#include "fsdp-plan/prediction_notes.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.hpp"
#include "base/terminal.hpp"

namespace fsdp {

std::vector<std::string> prediction_notes(const PlanTable& table) {
  if (!table.predicts()) return {};
  constexpr int compared_ranks = 512;
  constexpr std::string_view compared_gpus[] = {"a100", "a100-40gb", "h100", "h200", "rtx4090"};  // docs/simulator.md: the rows
  const PlanTableOptions& options = table.options;
  std::vector<std::string> notes;
  if (options.gpu)
    notes.push_back(
        format("The method was validated on up to {} GPUs with other programs, and on one GPU with this program "
               "(docs/simulator.md).{}",
               compared_ranks,
               std::ranges::count(compared_gpus, options.gpu->name) > 0 ? "" : " No update on this GPU was compared."));
  const int most = std::max(options.cluster.ranks(), options.scaling.empty() ? 0 : options.scaling.back());
  if (options.gpu && most > compared_ranks)
    notes.push_back(
        format("Above {} ranks only two updates of DeepSpeed on 1,024 GPUs were compared, and the predictions were 28 and 35 % "
               "too fast: a prediction for {} ranks is an extrapolation. It has the latencies of NCCL's rings, which grow with "
               "the number of ranks. NCCL from 2.23 on also has another algorithm (PAT) with "
               "fewer steps, which is not modelled: updates may be faster.",
               compared_ranks, most));
  const auto add_memory = [&](const std::string& of, const PlanVariant& variant) {
    if (!table.fits(variant)) return;
    for (const std::string& note : memory_notes(table, of, variant.memory.total())) notes.push_back(note);
  };
  for (const bool recompute : {false, true}) {
    const PlanVariant& variant = table.chosen().variant(recompute);
    const std::string name = format("{} on {}{}", table.chosen().placement->name, plural(options.cluster.ranks(), "rank"),
                                    recompute ? " with recomputation" : "");
    add_memory(name, variant);
    if (options.slow.rank >= 0)
      notes.push_back(
          format("{}: because rank {} takes {:g} times as long to compute, an update takes {:.1f} ms instead of "
                 "{:.1f} ms ({:+.1f} %). The parts of an update are those of this rank.",
                 name, options.slow.rank, options.slow.factor, 1e3 * variant.step.total,
                 1e3 * variant.seconds_without_slow_rank, 100 * (variant.step.total / variant.seconds_without_slow_rank - 1)));
  }
  for (const PredictedPoint& point : table.scaling) add_memory(plural(point.cluster.ranks(), "rank"), point.variant);
  return notes;
}

std::vector<std::string> memory_notes(const PlanTable& table, const std::string& of, std::size_t memory) {
  constexpr double nearly_full = 0.98;  // docs/simulator.md: "the memory is full"
  const GpuFigures* const gpu = table.options.gpu;
  const double share = gpu ? static_cast<double>(memory) / gpu->memory_bytes : 0;
  if (share <= nearly_full) return {};
  return {
      format("{}: the plan needs {:.1f} % of the GPU's memory: a PyTorch program would be slower (8 of 18 updates with so "
             "little free memory were predicted 11 to 29 % too fast).",
             of, 100 * share)};
}

std::string text_of(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += wrap(note, 0, 100) + "\n";
  return text;
}

std::string ms_cell(double seconds) {
  const double rounded = std::round(1e4 * seconds) / 10 + 0.0;  // not -0: parts may be rounded below 0
  return format("{:.{}f}", rounded, rounded < 1e4 ? 1 : 0);
}

std::string rates_table(const std::vector<NamedRate>& rates) {
  constexpr std::size_t width = 100;
  std::size_t names = 0, values = 0;
  for (const NamedRate& rate : rates) names = std::max(names, rate.name.size()), values = std::max(values, rate.value.size());
  std::string text;
  for (const NamedRate& rate : rates)
    text += format("  {:<{}}  {:>{}}  ", rate.name, names, rate.value, values) +
            wrap(rate.source, 2 + names + 2 + values + 2, width) + "\n";
  return text;
}

const char* name_of_collective(Collective collective) {
  constexpr std::array<const char*, collective_kinds> names = {"all-gather", "reduce-scatter", "all-reduce", "broadcast"};
  return names[static_cast<std::size_t>(collective)];
}

}  // namespace fsdp
