// What a Job holds. Not for users.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "api/job.hpp"
#include "comm/connection.hpp"
#include "comm/mpi_session.hpp"
#include "train/machine.hpp"

namespace fsdp {

/// What is made with a Job has its part of this, so that it goes last.
struct Job::Parts {
  /// `there`: MPI, where somebody has started it for this program, who lets it live as long as ranks work together; null: this
  /// object does.
  Parts(const JobOptions& options, MpiSession* there);

  /// Runs `work`, which all ranks do together. What all throw, a CollectiveError, is in the words of api/. Any other exception
  /// is this rank's alone, for all that it knows, and the others wait for it in a collective: it is printed, and ends the job.
  /// With one rank it is a CollectiveError, too. Throws UserError where MPI has ended. Collective.
  void together(const std::function<void()>& work);

  std::optional<MpiSession> own_session;  // outlives the others
  MpiSession& session;
  std::unique_ptr<Communicator> world;
  CommOptions comm;
  ComputingRank rank;
};

}  // namespace fsdp
