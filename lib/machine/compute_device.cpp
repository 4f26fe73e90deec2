#include "machine/compute_device.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "device/cuda_library.hpp"

namespace fsdp {

namespace {

/// The environment variable that shows that the launcher gave GPUs to this job, as "SLURM_JOB_GPUS=0,1"; empty if there is
/// none. The first two variables list GPU numbers, so "0" means a GPU; the last variable is a count, so "0" means none.
std::string given_gpus() {
  for (const std::string_view name : {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"}) {
    const char* const value = std::getenv(name.data());
    const bool counts = name == "SLURM_GPUS_ON_NODE";
    if (value && *value && !(counts && std::string_view(value) == "0")) return format("{}={}", name, value);
  }
  return {};
}

}  // namespace

DeviceTraits traits_of(DeviceKind kind, int threads) {
  return is_host(kind) ? cpu_traits(static_cast<std::size_t>(threads)) : cuda_traits();
}

DeviceKind kind_to_plan_for(DeviceChoice choice) { return choice == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu; }

DeviceKind choose_device(DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return DeviceKind::cpu;
  std::string why;
  const CudaLibrary* const library = find_cuda_library(&why);
  if (library && library->device_count(&why) > 0) return DeviceKind::cuda;
  if (why.empty()) why = "there is none";
  if (choice == DeviceChoice::cuda)
    throw UserError(format(
        "`device` cuda finds no GPU ({}); start the job on a node with a GPU and its driver, or give `device` cpu", why));
  if (const std::string given = given_gpus(); !given.empty())
    throw UserError(format(
        "the job has GPUs ({}), but none of them can be used ({}); correct the cause, or compute on the CPU with `device` cpu",
        given, why));
  return DeviceKind::cpu;
}

ShardingOptions options_for(DeviceKind kind, ShardingOptions options) {
  if (is_host(kind)) options.plan.offload_optimizer = options.plan.offload_parameters = false;
  return options;
}

void check_cpu_options(DeviceKind kind, const CpuDeviceOptions& cpu) {
  if (!is_host(kind) && cpu.communication_thread)
    throw UserError("--comm-thread changes nothing on GPUs (their streams run asynchronously in any case); leave it out");
}

std::unique_ptr<Device> make_device_of_rank(DeviceKind kind, const CpuDeviceOptions& cpu, Communicator& world,
                                            Communicator& node) {
  const bool on_gpu = !is_host(kind);
  const std::int64_t with_gpu = world.sum(std::int64_t{on_gpu});
  std::unique_ptr<Device> device;
  agree(world, [&] {
    if (with_gpu != 0 && with_gpu != world.size())
      throw UserError(
          format("{} of {} ranks have a GPU, and the others none (all must compute on the same kind of device); start the job "
                 "on nodes of the same kind, or give `device` cpu",
                 with_gpu, world.size()));
    if (!on_gpu) return static_cast<void>(device = make_cpu_device(cpu));
    check_cpu_options(kind, cpu);
    std::string why;
    const CudaLibrary* const library = find_cuda_library(&why);
    device = library->make_device(node.rank() % library->device_count(&why));
  });
  return device;
}

}  // namespace fsdp
