#include "api/job.hpp"

#include "api/job_parts.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "kernels/threads.hpp"
#include "train/machine.hpp"
#include "train/program.hpp"

namespace fsdp {

namespace {

DeviceChoice choice_of(const std::string& device) {
  if (device == "auto") return DeviceChoice::automatic;
  if (device == "cpu") return DeviceChoice::cpu;
  if (device == "cuda") return DeviceChoice::cuda;
  throw UserError(format("there is no device '{}' (known are auto, cpu and cuda); choose one of them", device));
}

}  // namespace

Job::Parts::Parts(const JobOptions& options, MpiSession* there) {
  if (options.threads < 0) throw UserError("a rank has at least one thread; 0 gives it its share of the node's cores");
  comm.kind = options.comm, comm.timeout_s = options.timeout_s;
  world = (there ? *there : session.emplace()).world(comm);
  node = world->split_by_node();
  threads = share_of_rank(*node, static_cast<std::size_t>(options.threads)).threads;
  kernels::set_threads(threads);
  fsdp::agree(*world, [&] { kind = choose_device(choice_of(options.device)); });
  device = make_device_of_rank(kind, {}, *world, *node);
}

Job::Job(const JobOptions& options) : parts_(std::make_unique<Parts>(options, nullptr)) {}
Job::Job(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Job::~Job() = default;

int Job::rank() const { return parts_->world->rank(); }
int Job::size() const { return parts_->world->size(); }
std::string Job::device() const { return parts_->device->description(); }
void Job::barrier() { parts_->world->barrier(); }
double Job::sum(double mine) { return parts_->world->sum(mine); }
void Job::agree(const std::function<void()>& step) { fsdp::agree(*parts_->world, step); }

int run(int argc, char** argv, const std::function<int(Job& job)>& body, const JobOptions& options) {
  return run_mpi_program(argc, argv, [&](MpiSession& session, Communicator&, int, char**) {
    Job job(std::make_unique<Job::Parts>(options, &session));
    return body(job);
  });
}

}  // namespace fsdp
