#include "api/job.hpp"

#include <array>
#include <cerrno>

#include "api/job_parts.hpp"
#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "comm/call.hpp"
#include "job/program.hpp"
#include "options/common_options.hpp"

namespace fsdp {

namespace {

MpiSession& start_session(const JobOptions& options, MpiSession* there, std::optional<MpiSession>& own) {
  if (options.stop_signals) hold_signals();  // before MPI starts threads
  return there ? *there : own.emplace();
}

}  // namespace

Job::Parts::Parts(const JobOptions& options, MpiSession* there) : session(start_session(options, there, own_session)) {
  if (!(options.timeout_s >= 0))
    throw UserError(format("timeout_s is {} (it must be at least 0, which means no limit); correct it", options.timeout_s));
  OptionTable table("", "", "");
  add_comm_options(table, comm);
  set_fields(table, {{"sum-order", "sum_order", options.sum_order}});
  comm.kind = options.comm, comm.timeout_s = options.timeout_s;
  const auto connect = [&](const CommOptions& how) {
    try {
      return session.world(how);
    } catch (const RunError& error) {
      throw RunError(in_words_of_api(error.what()));
    }
  };
  {
    // Compares `comm` of all ranks by MPI messages, which work even if the ranks have different values.
    const auto messages = connect({.kind = "mpi", .timeout_s = comm.timeout_s});
    const auto require_same_option = [&](const char* name, const std::string& mine) {
      require_same(*messages, mine, [&](const std::string& first) {
        throw UserError(
            format("{} is '{}' here and '{}' on rank 0 (all ranks must exchange data in the same way); give all ranks the same",
                   name, mine, first));
      });
    };
    require_same_option("comm", comm.kind), require_same_option("sum_order", options.sum_order);
  }
  world = connect(comm);
  together([&] {
    DeviceChoice choice = DeviceChoice::automatic;
    fsdp::agree(*world, [&] {
      if (options.threads < 0)
        throw UserError("threads is negative; give 0 for the rank's share of the node's cores, or at least 1");
      choice = device_choice(options.device);
    });
    rank = start_rank(choice, static_cast<std::size_t>(options.threads), *world);
    fsdp::agree(*world, [&] {
      if (!(options.stop_before_s >= 0 && options.stop_before_s < 1e9))
        throw UserError(format("stop_before_s is {} (it must be a number of seconds, or 0 to not stop early); correct it",
                               options.stop_before_s));
      if (!options.stop_folder.empty() && !options.stop_signals)
        throw UserError(
            "stop_folder changes nothing (stop_signals is false, and both serve should_stop()); set stop_signals, too");
      const bool leads = world->rank() == 0;
      if (options.stop_signals) watch.emplace(options.stop_folder, leads && !options.stop_folder.empty(), nullptr);
      if (options.stop_before_s > 0 && leads)
        with_field_names({{"stop-before", "stop_before_s", {}}}, [&] { job_end.emplace(options.stop_before_s); });
    });
  });
}

bool Job::Parts::should_stop() {
  if (!stop_reason.empty()) return true;
  std::string reason;
  if (watch && watch->poll().stop > 0)
    reason = watch->stop_reason();
  else if (job_end && job_end->is_near())
    reason = job_end->reason();
  // The lowest rank with a reason tells it to all.
  const std::int64_t ranks = world->size(), mine = reason.empty() ? 0 : ranks - world->rank(), most = world->max(mine);
  if (most == 0) return false;
  stop_reason = world->broadcast(reason, narrow<int>(ranks - most));
  if (watch)
    if (const std::string problem = watch->honoured_stop(); !problem.empty()) print_warnings({problem});
  return true;
}

void Job::Parts::require_same_call(const char* function, std::int64_t code) {
  std::array sums = {code, code * code};
  try {
    world->sum(sums);
  } catch (const CollectiveTimeout& late) {
    throw not_arrived(late.who, late.ranks, format("the call of {}()", function), late.timeout_s);
  }
  if (sums[0] == code * world->size() && sums[1] == code * code * world->size()) return;
  fsdp::agree(*world, [&] {
    throw UserError(
        format("rank {} calls {}(), but other ranks do not (all ranks must call the same functions of the same objects in the "
               "same order); correct the program",
               world->rank(), function));
  });
}

void Job::Parts::together(const std::function<void()>& work) {
  if (MpiSession::is_over())
    throw UserError(
        "MPI was finalized, so the ranks cannot communicate any more; call MPI_Finalize() after the last use of fsdp");
  try {
    try {
      work();
    } catch (const CollectiveError&) {
      throw;
    } catch (...) {
      if (world->size() > 1) end_job(session, program_invocation_short_name, in_words_of_api);
      fsdp::agree(*world, [] { throw; });
    }
  } catch (const CollectiveError& error) {
    throw CollectiveError(in_words_of_api(error.what()), error.speaker, error.all, error.exit_code, error.damage);
  }
}

Job::Job(const JobOptions& options) : parts_(std::make_shared<Parts>(options, nullptr)) {}
Job::Job(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
Job::~Job() = default;

int Job::rank() const { return parts_->world->rank(); }
int Job::size() const { return parts_->world->size(); }
std::string Job::device() const { return parts_->rank.device->description(); }
void Job::barrier() {
  parts_->together([&] {
    parts_->require_same_call("Job::barrier", 1);
    parts_->world->barrier();
  });
}
double Job::sum(double mine) {
  parts_->together([&] {
    parts_->require_same_call("Job::sum", 2);
    mine = parts_->world->sum(mine);
  });
  return mine;
}
bool Job::should_stop() {
  bool answer = false;
  parts_->together([&] {
    parts_->require_same_call("should_stop", 3);
    answer = parts_->should_stop();
  });
  return answer;
}
std::string Job::stop_reason() const { return parts_->stop_reason; }
void Job::agree(const std::function<void()>& step) {
  parts_->together([&] {
    parts_->require_same_call("Job::agree", 4);
    fsdp::agree(*parts_->world, [&] {
      if (!step) throw UserError("the step to agree on is null; give a function");
      step();
    });
  });
}

int run(int argc, char** argv, const std::function<int(Job& job)>& body, const JobOptions& options) {
  static_assert(stopped_exit_code == exit_code::stopped);
  if (options.stop_signals) hold_signals();
  const auto work = [&](MpiSession& session, Communicator&, int, char**) {
    if (!body) throw UserError("there is nothing to run (body is null); give a function");
    Job job(std::make_shared<Job::Parts>(options, &session));
    const int code = body(job);
    return code != 0 && code % 256 == 0 ? exit_code::failed : code;  // the system keeps only the low 8 bits, which are 0 here
  };
  return run_mpi_program(argc, argv, work, in_words_of_api);
}

}  // namespace fsdp
