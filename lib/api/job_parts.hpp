// The data of a Job. Not for users.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "api/job.hpp"
#include "comm/backend.hpp"
#include "comm/mpi_session.hpp"
#include "train/machine.hpp"

namespace fsdp {

/// Objects made with a Job share ownership of this, so that it is destroyed last.
struct Job::Parts {
  /// `there` is the MPI session if it exists already, and must live as long as the ranks work together; null: this object
  /// starts MPI.
  Parts(const JobOptions& options, MpiSession* there);

  /// Runs `work` on all ranks together. A CollectiveError, which all ranks throw, is rethrown with the API's names for options.
  /// Any other exception may be this rank's only, while the others wait in a collective: it is printed and ends the job. With
  /// one rank it also becomes a CollectiveError. Throws UserError if MPI has been finalized. Collective.
  void together(const std::function<void()>& work);

  std::optional<MpiSession> own_session;  // outlives the others
  MpiSession& session;
  std::unique_ptr<Communicator> world;
  CommOptions comm;
  ComputingRank rank;
};

}  // namespace fsdp
