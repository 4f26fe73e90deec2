#include "fsdp-plan/prediction_notes.hpp"

#include <algorithm>
#include <cmath>

#include "base/format.hpp"
#include "base/terminal.hpp"

namespace fsdp {

std::vector<std::string> prediction_notes(const PlanTable& table) {
  if (!table.predicts()) return {};
  constexpr int compared_ranks = 512;
  constexpr double nearly_full = 0.98;  // docs/simulator.md: rows that were slower than predicted
  const PlanTableOptions& options = table.options;
  std::vector<std::string> notes;
  if (options.gpu)
    notes.push_back(
        format("The method was validated on up to {} GPUs with other programs, and on one GPU with this program "
               "(docs/simulator.md).",
               compared_ranks));
  const int most = std::max(options.cluster.ranks(), options.scaling.empty() ? 0 : options.scaling.back());
  if (options.gpu && most > compared_ranks)
    notes.push_back(
        format("Above {} ranks nothing was compared: a prediction for {} ranks is an extrapolation. It has the latencies of "
               "NCCL's rings, which grow with the number of ranks. NCCL from 2.23 on also has another algorithm (PAT) with "
               "fewer steps, which is not modelled: updates may be faster.",
               compared_ranks, most));
  const auto add_memory = [&](const std::string& of, const PlanVariant& variant) {
    const auto memory = static_cast<double>(variant.memory.total());
    if (options.gpu && table.fits(variant) && memory > nearly_full * options.gpu->memory_bytes)
      notes.push_back(format("{}: the plan needs {:.1f} % of the memory: a PyTorch program would be slower.", of,
                             100 * memory / options.gpu->memory_bytes));
  };
  for (const bool recompute : {false, true}) {
    const PlanVariant& variant = table.chosen().variant(recompute);
    const std::string name = format("{}{}", table.chosen().placement->name, recompute ? " with recomputation" : "");
    add_memory(name, variant);
    if (options.slow.rank >= 0)
      notes.push_back(
          format("{}: because rank {} takes {:g} times as long to compute, an update takes {:.1f} ms instead of "
                 "{:.1f} ms ({:+.1f} %).",
                 name, options.slow.rank, options.slow.factor, 1e3 * variant.step.total,
                 1e3 * variant.seconds_without_slow_rank, 100 * (variant.step.total / variant.seconds_without_slow_rank - 1)));
  }
  for (const PredictedPoint& point : table.scaling) add_memory(plural(point.cluster.ranks(), "rank"), point.variant);
  return notes;
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

}  // namespace fsdp
