#include "report/compared_update.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/format.hpp"
#include "base/quantile.hpp"
#include "files/json.hpp"
#include "report/page_parts.hpp"

namespace fsdp {

namespace {

/// Differences below this share of an update are not worth a reason.
constexpr double noticed = 0.1;

/// A part that is compared, and why it may take longer than predicted.
struct ComparedPart {
  const char* name;
  double UpdateParts::*time;
  const char* reasons;
};
constexpr const char *clocks = "the clock or the power limit is lower than assumed, or another program uses the processors",
                     *short_kernels = "its kernels are so short that starting them takes longer than their work";
constexpr ComparedPart compared_parts[] = {
    {"matrix products", &UpdateParts::products, clocks},
    {"attention", &UpdateParts::attention, "its rate is known for few lengths of sequences and sizes of heads"},
    {"other kernels", &UpdateParts::other_kernels, short_kernels},
    {"norm and optimizer", &UpdateParts::optimizer, short_kernels},
    {"waiting for communication or other ranks", &UpdateParts::waiting,
     "communication is slower than assumed, or another program slows a rank"},
    {"other work of the host", &UpdateParts::host,
     "the host is too slow to start all kernels in time: a rank has too few cores, or other programs use them"}};

/// What the run itself shows of the reason to wait: a rank that is often the slowest, or ranks that wait for data. Empty if it
/// shows nothing.
std::string reason_to_wait(const Run& run, double update_ms) {
  const auto newest = static_cast<double>(run.starts.back().step);
  std::map<double, std::vector<const SlowestRank*>> by_rank;
  std::size_t all = 0;
  for (const SlowestRank& slow : run.slow_ranks)
    if (slow.step > newest) by_rank[slow.rank].push_back(&slow), ++all;
  const auto most = std::ranges::max_element(by_rank, {}, [](const auto& of_rank) { return of_rank.second.size(); });
  if (most != by_rank.end() && 2 * most->second.size() > all) {
    std::vector<double> excess;
    for (const SlowestRank* slow : most->second) excess.push_back(slow->ms / slow->median_ms - 1);
    if (const double median = quantile(excess, 0.5); median >= 0.05)
      return format("rank {:.0f} on {} computed {} longer than the median rank in {} of {} updates", most->first,
                    most->second.front()->host, percent(median), most->second.size(), all);
  }
  std::vector<double> waits;
  for (std::size_t i = 0; i < run.updates.size(); ++i)
    if (run.updates.step[i] > newest) waits.push_back(run.updates.data_wait_ms[i]);
  if (const double wait = quantile(waits, 0.5); wait >= 0.05 * update_ms)
    return format("a rank waited {} for its next batch in the median update", ms_text(wait));
  return {};
}

}  // namespace

UpdateParts predicted_update(const nlohmann::json& start) {
  const nlohmann::json predicted = start.contains("predicted") ? start["predicted"] : nlohmann::json();
  UpdateParts parts;
  if (!(number_at(predicted, "total") > 0)) return parts;
  const auto ms = [&](const char* key) {
    const double seconds = number_at(predicted, key);
    return std::isfinite(seconds) ? 1e3 * seconds : 0;
  };
  const double again_products = ms("recomputed_products"), again_attention = ms("recomputed_attention");
  parts.total = ms("total");
  parts.products = ms("products") + again_products;
  parts.attention = ms("attention") + again_attention;
  parts.other_kernels = ms("memory_bound") + ms("recomputation") - again_products - again_attention;
  parts.optimizer = ms("optimizer");
  parts.waiting = ms("exposed");
  parts.host = ms("host");
  parts.slowed = ms("slowed");
  return parts;
}

UpdateParts measured_update(const Run& run) {
  const Updates& u = run.updates;
  std::vector<std::size_t> chosen, with_parts;
  for (std::size_t i = 0; i < u.size(); ++i)
    if (u.step[i] > static_cast<double>(run.starts.back().step)) chosen.push_back(i);
  if (chosen.size() > 1) chosen.erase(chosen.begin());
  for (const std::size_t i : chosen)
    if (std::isfinite(u.exposed_ms[i])) with_parts.push_back(i);
  if (!with_parts.empty()) chosen = with_parts;
  const auto median = [&](UpdateColumn column) {
    std::vector<double> values;
    for (const std::size_t i : chosen) values.push_back((u.*column)[i]);
    return quantile(values, 0.5);
  };
  UpdateParts parts;
  parts.total = median(&Updates::ms);
  if (with_parts.empty()) return parts;
  parts.host = parts.total;
  for (const auto& [part, column] :
       {std::pair(&UpdateParts::products, &Updates::products_ms), std::pair(&UpdateParts::attention, &Updates::attention_ms),
        std::pair(&UpdateParts::other_kernels, &Updates::other_kernels_ms),
        std::pair(&UpdateParts::optimizer, &Updates::optimizer_ms), std::pair(&UpdateParts::waiting, &Updates::exposed_ms)}) {
    parts.*part = median(column);
    if (std::isfinite(parts.*part)) parts.host -= parts.*part;
  }
  return parts;
}

std::string compare_with_prediction(const Run& run) {
  UpdateParts predicted = predicted_update(run.starts.back().line);
  const UpdateParts measured = measured_update(run);
  if (!(predicted.total > 0 && measured.total > 0)) return {};

  // Both are brought into the same parts: a measurement has what collectives slow in the parts that they slow.
  const double computing = predicted.products + predicted.attention + predicted.other_kernels;
  for (const auto part : {&UpdateParts::products, &UpdateParts::attention, &UpdateParts::other_kernels})
    if (computing > 0) predicted.*part *= 1 + predicted.slowed / computing;
  const bool is_sum = !std::isfinite(measured.products);
  if (is_sum) predicted.other_kernels += predicted.products + predicted.attention;

  const double more = measured.total / predicted.total - 1;
  const bool is_near = std::abs(more) <= noticed, faster = more < -noticed;
  const ComparedPart* part = nullptr;  // the one that differs most in the direction of the whole
  double largest = is_near ? noticed * predicted.total : 0;
  for (const ComparedPart& one : compared_parts) {
    const double difference = (measured.*one.time - predicted.*one.time) * (faster ? -1 : 1);
    if (difference > largest) largest = difference, part = &one;
  }
  const std::string text =
      format("The median update took {}, {} the predicted {}", ms_text(measured.total),
             is_near ? "within 10 % of" : format("{} {} than", percent(std::abs(more)), faster ? "less" : "more"),
             ms_text(predicted.total));
  if (!part && !is_near) return text + "; its parts are unknown, because no update was traced (--trace).";
  if (!part) return text + ".";
  const bool is_work = is_sum && part->time == &UpdateParts::other_kernels;
  const std::string what = format("{} took {} instead of {}", is_work ? "the kernels of forward and backward" : part->name,
                                  ms_text(measured.*part->time), ms_text(predicted.*part->time));
  if (faster) return format("{}, above all because {}: the rates of the prediction are too low for this machine.", text, what);
  std::string why = part->time == &UpdateParts::waiting ? reason_to_wait(run, measured.total) : "";
  if (why.empty()) why = format("perhaps {}", is_work ? clocks : part->reasons);
  return format("{}, {} {}: {}.", text, is_near ? "but" : "above all because", what, why);
}

}  // namespace fsdp
