// Builds cuDNN's plans of attention for a GPU that need not exist, and compares their workspaces with the formula of the memory
// plan. cudnn-plans compiles and starts it. Usage: cudnn_plans 80|90
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cudnn.hpp"
#include "kernels/cudnn/graphs.hpp"

using namespace fsdp;
using kernels::AttentionShape;

namespace {

struct Case {
  const char* name;
  std::size_t B, H, K, T, D;
  std::uint32_t window = 0;
  DType type = DType::bf16;
};

constexpr Case cases[] = {{"GPT-2", 16, 12, 12, 1024, 64},         {"1.3B", 4, 32, 32, 2048, 64},
                          {"Llama 8B", 1, 32, 8, 4096, 128},       {"Llama 8B, long", 1, 32, 8, 8192, 128},
                          {"heads of 72", 1, 16, 8, 2048, 72},     {"heads of 80", 2, 32, 32, 2048, 80},
                          {"heads of 96", 2, 32, 32, 2048, 96},    {"heads of 256", 1, 16, 8, 2048, 256},
                          {"one head of keys", 2, 8, 1, 1024, 64}, {"1,000 tokens", 2, 12, 12, 1000, 64},
                          {"17 tokens", 2, 12, 12, 17, 64},        {"window of 512", 1, 32, 8, 4096, 128, 512},
                          {"window of 1", 2, 12, 12, 200, 64, 1},  {"fp16", 4, 32, 32, 2048, 64, 0, DType::f16}};

/// An A100 or an H200.
std::shared_ptr<cudnn_frontend::DeviceProperties> properties_of(int sm) {
  const bool hopper = sm == 90;
  const std::string text =
      R"({"cudnnVersion":)" + std::to_string(cudnnGetVersion()) + R"(,"schemaVersion":0,"smVersion":)" +
      std::to_string(10 * sm) + R"(,"deviceId":0,"deviceVer":)" + std::to_string(10 * sm) +
      R"(,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":150754820096,"maxGridSize":[2147483647,65535,65535],)"
      R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
      R"("memClockRateKHz":3201000,"smCountOrigin":0,"oversizedSharedMemoryPerBlock":0,"memoryBusWidth":6144,)" +
      (hopper
           ? R"("multiProcessorCount":132,"maxSharedMemoryPerBlockOptin":232448,"l2CacheSize":62914560,"deviceName":"NVIDIA H200"})"
           : R"("multiProcessorCount":108,"maxSharedMemoryPerBlockOptin":166912,"l2CacheSize":41943040,"deviceName":"NVIDIA A100"})");
  auto properties = std::make_shared<cudnn_frontend::DeviceProperties>();
  kernels::check_cudnn(properties->deserialize({text.begin(), text.end()}), "reading the properties of a GPU");
  return properties;
}

}  // namespace

int main(int, char** arguments) {
  const int sm = std::atoi(arguments[1]);
  const auto properties = properties_of(sm);
  int wrong = 0, built = 0;
  for (const Case& c : cases)
    for (const bool backward : {false, true}) {
      const std::size_t width = (c.H + 2 * c.K) * c.D;
      AttentionShape shape = {c.B, c.T, c.H, c.K, c.D, width, width};
      shape.window = c.window;
      const std::size_t parts = kernels::cudnn_parts(c.type, shape);
      if (backward) shape = kernels::part_of_heads(shape, parts);
      const std::size_t planned = backward ? kernels::cudnn_workspace(shape) : kernels::cudnn_forward_workspace;
      cudnn_frontend::graph::Graph graph;
      graph.set_device_properties(properties).set_sm_version(sm);
      kernels::describe_attention(graph, c.type, shape, c.H, backward);
      const bool expected = c.D <= 128 || sm == 90 || !backward;
      std::string problem = parts > 0 && planned <= kernels::most_cudnn_workspace ? "" : "no parts of heads";
      try {
        const std::size_t workspace = kernels::build_cudnn_graph(graph, nullptr);
        ++built;
        if (!expected) problem = "cuDNN takes it";
        if (workspace > planned || (sm == 90 && workspace + 256 < planned))
          problem = "a workspace of " + std::to_string(workspace) + " bytes, and the formula has " + std::to_string(planned);
      } catch (const CallError& error) {
        if (expected) problem = error.what();
      }
      std::printf("sm_%d %-16s %s in %zu parts: %s\n", sm, c.name, backward ? "backward" : "forward ", backward ? parts : 1,
                  problem.empty() ? "as planned" : problem.c_str());
      wrong += problem.empty() ? 0 : 1;
    }
  std::printf("sm_%d: %d plans of cuDNN %zu, %d problems\n", sm, built, cudnnGetVersion(), wrong);
  std::fflush(stdout);
  std::_Exit(wrong == 0 && built >= 26 ? 0 : 1);
}
