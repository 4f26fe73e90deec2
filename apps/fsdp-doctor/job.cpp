#include "fsdp-doctor/job.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.hpp"
#include "base/system.hpp"
#include "fsdp-doctor/storage.hpp"

namespace fsdp {

DoctorJob::DoctorJob(const DoctorOptions& wanted, const Start& started, Connect connect_ranks)
    : options(wanted), start(started), connect(std::move(connect_ranks)) {
  world = connect({.kind = "mpi", .timeout_s = options.comm.timeout_s});
  node = world->split_by_node();
  int leader = world->rank();
  node->broadcast(&leader, sizeof leader, 0);
  const std::vector<std::string> hosts = world->gather(host_name());
  for (const double of_rank : world->gather(leader)) {
    const int its_leader = static_cast<int>(of_rank);
    const auto known = std::find(leaders.begin(), leaders.end(), its_leader);
    node_of.push_back(static_cast<int>(known - leaders.begin()));
    if (known == leaders.end()) {
      leaders.push_back(its_leader);
      nodes.push_back(hosts[static_cast<std::size_t>(its_leader)]);
      ranks_of.push_back(0);
    }
    ++ranks_of[static_cast<std::size_t>(node_of.back())];
  }
  device = make_cpu_device();
}

DoctorJob::~DoctorJob() = default;

std::vector<double> DoctorJob::sums_of_nodes(double mine) const {
  const std::vector<double> by_rank = world->gather(mine);
  std::vector<double> sums(nodes.size());
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) sums[static_cast<std::size_t>(node_of[rank])] += by_rank[rank];
  return sums;
}

bool all_equal(const std::vector<std::string>& values) {
  return std::all_of(values.begin(), values.end(), [&](const std::string& value) { return value == values[0]; });
}

std::string by_value(const std::vector<std::string>& nodes, const std::vector<std::string>& values) {
  if (all_equal(values)) return values.empty() ? "" : values[0];
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::find(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values[i]) - values.begin() !=
        static_cast<std::ptrdiff_t>(i))
      continue;
    std::vector<std::string> alike;
    for (std::size_t j = i; j < values.size(); ++j)
      if (values[j] == values[i]) alike.push_back(nodes[j]);
    parts.push_back(format("{} on {}", values[i], list_of(alike)));
  }
  return format("{}", fmt::join(parts, "; "));
}

}  // namespace fsdp
