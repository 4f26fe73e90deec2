#include "machine/compute_device.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "device/cuda_library.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/device_kernels.hpp"
#include "machine/node_places.hpp"

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
  if (visible_gpus(&why) > 0) return DeviceKind::cuda;
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

AttentionChoice plan_attention(AttentionBackend wanted, const TransformerConfig& config, const ShardingOptions& sharding,
                               double dropout, DeviceKind kind) {
  if (wanted == AttentionBackend::own) return {};
  const auto own = [](const char* why) { return AttentionChoice{.why = why}; };
  if (is_host(kind)) return own("cuDNN's is for GPUs");
  if (sharding.types.parameter == DType::f32) return own("cuDNN's is for bf16 and fp16");
  if (dropout > 0) return own("cuDNN's would drop other probabilities");
  if (sharding.plan.documents) return own("cuDNN's is not used for documents");
  const std::size_t width = (config.heads + 2 * config.kv_heads) * config.head_size;
  const kernels::AttentionShape shape = {
      sharding.batch.B, sharding.batch.T, config.heads, config.kv_heads, config.head_size, width, width};
  if (config.head_size % 8 != 0 || config.head_size > kernels::most_cudnn_head_size)
    return own("cuDNN's takes heads whose size is a multiple of 8, at most 256");
  if (kernels::cudnn_parts(sharding.types.parameter, shape) == 0)
    return own("cuDNN's needs a workspace of more than 1 GiB for one head of keys");
  return {kernels::most_cudnn_head_size, "cuDNN", {}};
}

AttentionChoice choose_attention(AttentionBackend wanted, const TransformerConfig& config, const ShardingOptions& sharding,
                                 double dropout, Device& device, Communicator& world) {
  AttentionChoice choice = plan_attention(wanted, config, sharding, dropout, device.kind());
  if (choice.library.empty()) return choice;
  kernels::Cudnn cudnn = {};
  agree(world, [&] {
    try {
      const std::shared_ptr<Stream> stream = device.make_stream(StreamUse::communication);
      cudnn = stream->kernels()->load_cudnn();
      DeviceTraits traits = cuda_traits();
      traits.cudnn_head_size = cudnn.most_head_size;
      if (wanted == AttentionBackend::automatic)  // cuDNN may refuse a shape
        prepare_attention(config, *stream, sharding.batch, sharding.types.parameter, traits, true);
    } catch (const UserError& error) {
      if (wanted == AttentionBackend::cudnn) throw;
      cudnn = {};
      const std::string problem = error.what();
      choice.why = problem.substr(0, problem.rfind("; "));  // without the advice
    }
  });
  const std::string found = cudnn.version.empty() ? "no cuDNN for this attention" : "cuDNN " + cudnn.version;
  require_same(world, found, [&](const std::string& first) {
    throw UserError(
        format("this rank finds {}, and rank 0 finds {} (their results would differ); install the same version on "
               "all nodes, or give `attention backend` own",
               found, first));
  });
  if (choice.why.empty() && config.head_size > cudnn.most_head_size)
    choice.why = format("on this GPU, cuDNN's takes heads of at most {} numbers", cudnn.most_head_size);
  if (!choice.why.empty()) return {.why = choice.why};
  return {cudnn.most_head_size, "cuDNN " + cudnn.version, {}};
}

std::string describe_changed_attention(const std::string& before, const std::string& now) {
  if (before == now) return "";
  const auto name = [](const std::string& library) { return library.empty() ? "the kernels of fsdp" : library; };
  return format("attention was computed by {} before, and is computed by {} now, so the results have other last digits",
                name(before), name(now));
}

void check_bias_gelu_fusion(const TransformerConfig& config, DType type, DeviceKind kind) {
  const auto fuses = [](const Linear& linear) { return linear.bias >= 0 && linear.lora_a < 0 && linear.in % 8 == 0; };
  const auto any = [&](const BlockParameters& block) {
    return std::ranges::any_of(block.qkv.part, fuses) || fuses(block.attention_out) ||
           std::ranges::any_of(block.ffn_in.part, fuses) || fuses(block.ffn_out);
  };
  const char* const why = is_host(kind)        ? "it is for GPUs"
                          : type == DType::f32 ? "it is for bf16 and fp16"
                          : std::ranges::none_of(list_parameters(config).blocks, any)
                              ? "each projection of this model has no bias, or an adapter, or inputs whose number is not a "
                                "multiple of 8"
                              : nullptr;
  if (why)
    throw UserError(format("--bias-gelu-fusion changes nothing ({}); {}", why,
                           is_host(kind) ? "give --device cuda, or leave it out" : "leave it out"));
}

namespace {

bool is_on_host(const Space* place) { return place && place->tier == Tier::host; }

}  // namespace

bool offloads_to_host(const PlanOptions& plan) {
  return is_on_host(plan.places.parameters) || is_on_host(plan.places.optimizer) || plan.offloaded_inputs > 0;
}

ShardingOptions options_for(DeviceKind kind, ShardingOptions options) {
  if (!is_host(kind)) return options;
  StatePlaces& places = options.plan.places;
  for (const Space** place : {&places.parameters, &places.optimizer, &places.gradients})
    if (is_on_host(*place)) *place = nullptr;
  options.plan.offloaded_inputs = 0;
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
  std::string seen;                        // the places of the GPUs that this rank sees
  std::vector<std::int64_t> numa_of_gpus;  // their NUMA nodes
  agree(world, [&] {
    if (with_gpu != 0 && with_gpu != world.size())
      throw UserError(
          format("{} of {} ranks have a GPU, and the others none (all must compute on the same kind of device); start the job "
                 "on nodes of the same kind, or give `device` cpu",
                 with_gpu, world.size()));
    if (!on_gpu) return static_cast<void>(device = make_cpu_device(cpu));
    check_cpu_options(kind, cpu);
    std::string why;
    for (const std::string& place : find_cuda_library(&why)->places()) {
      seen += place + " ";
      numa_of_gpus.push_back(numa_of_gpu(place));
    }
  });
  if (!on_gpu) return device;
  // If the launcher shows each rank another GPU, the rank has no choice.
  const std::vector<std::string> all_seen = node.gather(seen);
  const std::vector<std::int64_t> numa_of_ranks = node.gather(std::array{std::int64_t{numa_of_thread()}});
  const bool same = std::ranges::all_of(all_seen, [&](const std::string& others) { return others == seen; });
  agree(world, [&] {
    const auto me = static_cast<std::size_t>(node.rank());
    const int index = same ? choose_gpus(numa_of_ranks, numa_of_gpus)[me] : static_cast<int>(me % numa_of_gpus.size());
    std::string why;
    device = find_cuda_library(&why)->make_device(index);
  });
  return device;
}

}  // namespace fsdp
