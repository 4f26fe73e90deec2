// Figures of plans. All numbers come from the plan. This code computes only the positions on the page and, in a timeline of a
// plan without predicted times, the begin of each operation: as soon as its stream and the operations that it waits for are
// done. The functions throw UserError if a plan has not what the figure shows.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "fsdp-plan/explained_plan.hpp"
#include "report/figure_parts.hpp"

namespace fsdp {

struct TitledPlan {
  std::string title;
  ExplainedPlan plan;
  Queues queues = Queues::streams;  // of a timeline without predicted times
};

/// What each rank holds of parameters, gradients and optimizer state, by strategy.
Figure draw_strategies(const ExplainedPlan& plan);
/// The units, their shards, and the tensors of one unit.
Figure draw_units(const ExplainedPlan& plan, std::size_t unit);
/// What becomes of one unit in an update: all-gather, backward, reduce-scatter, optimizer.
Figure draw_step(const ExplainedPlan& plan, std::size_t unit);
/// What each rank holds of the parameters, and the bytes that it sends within and between nodes; a row for each plan.
Figure draw_nodes(std::span<const TitledPlan> plans);
/// Bytes per parameter, a bar for each plan.
Figure draw_bytes(std::span<const TitledPlan> plans);
/// Memory of a rank over the operations of an update, a panel for each plan.
Figure draw_memory(std::span<const TitledPlan> plans);
/// The streams of an update, a panel for each plan, and then the panels of `trace`, if any. With `slots`, also which unit is in
/// which slot. If the plans have predicted times, the scale is in milliseconds. All plans have them, or none; with a trace,
/// all.
Figure draw_plan_timeline(std::span<const TitledPlan> plans, bool slots, std::span<const TimelinePanel> trace = {});

}  // namespace fsdp
