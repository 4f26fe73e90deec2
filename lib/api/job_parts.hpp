// The data of a Job. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "api/job.hpp"
#include "comm/backend.hpp"
#include "comm/mpi_session.hpp"
#include "job/job_end.hpp"
#include "job/signals.hpp"
#include "machine/machine.hpp"

namespace fsdp {

/// A Job and all objects made with it share ownership of its Parts, so that the Parts are destroyed last.
struct Job::Parts {
  /// `there` is the existing MPI session, which must outlive this object. If it is null, this object starts MPI.
  Parts(const JobOptions& options, MpiSession* there);

  /// Runs `work`, which may be collective, on all ranks. A CollectiveError, which all ranks throw, is rethrown with the API's
  /// names of options in its message. Any other exception may be thrown on this rank only, while other ranks wait in a
  /// collective, so it is printed and ends the job; in a job of one rank it is rethrown as a CollectiveError. Throws UserError
  /// if MPI has been finalized. Collective.
  void together(const std::function<void()>& work);

  /// Throws CollectiveError unless all ranks pass the same `code`, which identifies the function of the API that they call, and
  /// the object. Each public function calls this first, so that ranks never wait in different collectives. Collective.
  void require_same_call(const char* function, std::int64_t code);
  static constexpr std::int64_t most_functions = 4096;
  /// The code of a function by its name. Those of different functions differ (tests/api/jobs.cpp). Those of Job are below 8.
  static std::int64_t code_of(std::string_view function) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : function) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return static_cast<std::int64_t>(8 + hash % (most_functions - 8));
  }

  /// Job::should_stop(). Collective.
  bool should_stop();

  std::optional<MpiSession> own_session;  // empty if `there` is used; destroyed last, because the others use it
  MpiSession& session;
  std::unique_ptr<Communicator> world;
  CommOptions comm;
  ComputingRank rank;
  std::optional<SignalWatch> watch;  // with JobOptions::stop_signals
  std::optional<JobEnd> job_end;     // on rank 0, with JobOptions::stop_before_s
  std::string stop_reason;           // once a request to stop has come
  std::int64_t models = 0;           // how many were made with this job
};

}  // namespace fsdp
