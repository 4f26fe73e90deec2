#include "machine/energy.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <system_error>

#include <dlfcn.h>

namespace fsdp {

namespace fs = std::filesystem;

namespace {

std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

/// NVIDIA's management library (NVML), which comes with the driver. Its four functions are declared here, so that nvml.h is
/// not needed; a result of 0 means success.
class EnergyMeter::Nvml {
 public:
  /// Returns null if the library is missing, or does not report the energy of the GPU with PCI bus id `place`.
  static std::unique_ptr<Nvml> open(const std::string& place) {
    std::unique_ptr<Nvml> nvml(new Nvml);
    nvml->library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library_) return nullptr;
    const auto start = nvml->find<int()>("nvmlInit_v2");
    const auto find_gpu = nvml->find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    nvml->energy_ = nvml->find<int(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
    if (!start || !find_gpu || !nvml->energy_ || start() != 0) return nullptr;
    nvml->started_ = true;
    if (find_gpu(place.c_str(), &nvml->gpu_) != 0) return nullptr;
    const auto now = nvml->millijoules();
    if (!now) return nullptr;
    nvml->at_start_ = *now;
    return nvml;
  }
  ~Nvml() {
    if (started_)
      if (const auto stop = find<int()>("nvmlShutdown")) stop();
    if (library_) ::dlclose(library_);
  }
  std::optional<double> joules() const {
    const auto now = millijoules();
    return now ? std::optional(1e-3 * static_cast<double>(*now - at_start_)) : std::nullopt;
  }

 private:
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  std::optional<unsigned long long> millijoules() const {
    unsigned long long value = 0;
    return energy_(gpu_, &value) == 0 ? std::optional(value) : std::nullopt;
  }

  void *library_ = nullptr, *gpu_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  unsigned long long at_start_ = 0;
  bool started_ = false;
};

EnergyMeter::EnergyMeter(const Device& device, Group& node, const fs::path& powercap)
    : reads_processors_(node.rank() == 0), has_gpu_(device.kind() == DeviceKind::cuda) {
  if (reads_processors_) {
    std::error_code ignored;
    for (fs::directory_iterator at(powercap, ignored), end; at != end; at.increment(ignored)) {
      // A package is a whole processor. Other counters overlap with it: those of its parts (core, uncore) and of the board
      // (psys).
      if (!read_line(at->path() / "name").starts_with("package-")) continue;
      const auto now = read_number(at->path() / "energy_uj"), range = read_number(at->path() / "max_energy_range_uj");
      if (now && range) processors_.push_back({at->path() / "energy_uj", *now, *range});
    }
  }
  if (node.all(!has_gpu_)) return;
  // Ranks that share a GPU have the same place(); the first of them reads the GPU.
  const std::vector<std::string> places = node.gather(device.place());
  reads_gpu_ = has_gpu_ && std::find(places.begin(), places.end(), device.place()) == places.begin() + node.rank();
  if (reads_gpu_) nvml_ = Nvml::open(device.place());
}

EnergyMeter::~EnergyMeter() = default;

void EnergyMeter::add_up() {
  since_look_.restart();
  for (auto counter = processors_.begin(); counter != processors_.end();) {
    const auto now = read_number(counter->file);
    if (!now) {  // a partial sum would mislead, so no energy of processors is reported
      processors_.clear();
      return;
    }
    const std::uint64_t used = *now >= counter->last_uj ? *now - counter->last_uj : *now + counter->range_uj - counter->last_uj;
    processors_j_ += 1e-6 * static_cast<double>(used);
    counter->last_uj = *now;
    ++counter;
  }
}

void EnergyMeter::look() {
  if (!processors_.empty() && since_look_.seconds() >= 10) add_up();
}

Energy EnergyMeter::total(Group& world) {
  add_up();
  const std::optional<double> gpu = nvml_ ? nvml_->joules() : std::nullopt;
  std::int64_t untold[] = {reads_processors_ && processors_.empty(), reads_gpu_ && !gpu, has_gpu_};
  world.sum(untold);
  double joules[] = {processors_.empty() ? 0 : processors_j_, gpu.value_or(0)};
  world.sum(joules);
  Energy all;
  if (untold[0] == 0) all.processors = joules[0];
  if (untold[1] == 0 && untold[2] > 0) all.gpus = joules[1];
  return all;
}

}  // namespace fsdp
