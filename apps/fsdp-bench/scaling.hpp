// fsdp-bench scaling: measures updates on 1, 2, 4, ... of a job's nodes, and writes a page for applications to computing
// centres.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fsdp-bench/bench.hpp"
#include "job/launch.hpp"

namespace fsdp {

/// Updates on some nodes. Under weak scaling a rank always has the same micro-batches; under strong scaling all ranks together
/// do.
struct ScalingPoint {
  RankLayout layout;
  std::size_t micro_batches = 1;  // of an update on each rank
  double sent_bytes = 0;          // by the plan: in an update, what a node sends to others or, on one node, what a rank sends
  // Measured, unless `problem` says why there is no measurement:
  double ms = 0;          // an update
  double compute_ms = 0;  // an update without transfers
  double tokens_per_second = 0;
  std::optional<double> joules_per_token = {};
  std::string problem = {};
  std::optional<double> predicted_ms = {};  // of an update, from the point before

  bool is_measured() const { return problem.empty() && ms > 0; }
  double exposed_share() const { return ms > compute_ms ? 1 - compute_ms / ms : 0; }
};

struct Scaling {
  std::string model, device, comm, precision, strategy;
  bool by_ranks = false;                   // one node: the points are numbers of ranks
  bool shares_cores = false;               // ranks had fewer processors than threads: the times prove nothing
  std::size_t tokens_of_rank = 0;          // of a micro-batch
  std::vector<ScalingPoint> weak, strong;  // by number of nodes
  std::vector<ScalingPoint> asked;         // --extrapolate: predicted from the last point of `weak`
};

/// 1, 2, 4, ... up to `most`, and `most`.
std::vector<int> counts_up_to(int most);
/// Puts what fsdp-bench step --exposed --json printed into a point, or the reason why there is no such result.
void read_result(const ChildEnd& end, double limit_s, ScalingPoint& point, Scaling& scaling);
/// The time of an update of `point`, from a measured one: the same computing time for a micro-batch, and exposed communication
/// in proportion to the bytes that the plan sends. Empty if `from` has no measurement, or if only `point` has several nodes.
std::optional<double> predict(const ScalingPoint& from, const ScalingPoint& point);
/// Sets `predicted_ms` of each point from the one before, and of `asked` from the last one of `weak`.
void predict_all(Scaling& scaling);
/// Efficiency of points[i] against points[0]: 1 if tokens per second grow as the ranks do. Empty without both measurements.
std::optional<double> efficiency(const std::vector<ScalingPoint>& points, std::size_t i);

std::string describe(const Scaling& scaling);
nlohmann::json to_json(const Scaling& scaling);
std::string to_csv(const Scaling& scaling);
/// Sentences that forms of CSC, EuroHPC and INCITE ask for.
std::vector<std::string> sentences_of(const Scaling& scaling);
/// One HTML file, which needs no network.
std::string scaling_page(const Scaling& scaling);

/// Runs all points in jobs of their own, and prints the report; also writes scaling.html and scaling.csv into options.out,
/// unless that is empty. `words` are the options for fsdp-bench step. Returns the exit code: 1 if a point failed. Throws
/// UserError.
int run_scaling(const BenchOptions& options, const std::vector<std::string>& words);

}  // namespace fsdp
