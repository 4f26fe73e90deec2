// What a Job holds. Not for users.
#pragma once

#include <memory>
#include <optional>

#include "api/job.hpp"
#include "comm/connection.hpp"
#include "comm/mpi_session.hpp"
#include "device/device.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

struct Job::Parts {
  /// `there`: MPI, where somebody has started it for this program; null: this object does.
  Parts(const JobOptions& options, MpiSession* there);

  std::optional<MpiSession> session;  // outlives the others
  std::unique_ptr<Communicator> world, node;
  CommOptions comm;
  int threads = 1;
  DeviceKind kind = DeviceKind::cpu;
  std::unique_ptr<Device> device;
};

}  // namespace fsdp
