// The library's spaces: where a plan's buffers are allocated.
#include "base/error.hpp"
#include "device/file_storage.hpp"
#include "plan/plan.hpp"

namespace fsdp {

void open_spaces(const std::vector<SpaceUse>& uses, const Means& means, bool collective,
                 std::vector<std::unique_ptr<Storage>>& memory) {
  memory.resize(uses.size());
  for (std::size_t i = 0; i < uses.size(); ++i)
    if (uses[i].space->collective == collective) memory[i] = uses[i].space->open(means, uses[i].bytes);
}

namespace {

std::unique_ptr<Storage> storage_of(Buffer memory, std::size_t bytes) {
  expect(bytes <= memory.bytes(), "a space is as large as the plan says");
  return std::make_unique<MemoryStorage>(std::move(memory));
}

}  // namespace

namespace spaces {

constinit const Space device = {
    .name = "device", .tier = Tier::device, .collective = false, .open = [](const Means& means, std::size_t bytes) {
      return storage_of(means.device.allocate(bytes), bytes);
    }};

constinit const Space slots = {
    .name = "slots", .tier = Tier::device, .collective = true, .open = [](const Means& means, std::size_t bytes) {
      return storage_of(means.shard_group.allocate(means.device, bytes), bytes);
    }};

constinit const Space host = {
    .name = "host", .tier = Tier::host, .collective = false, .open = [](const Means& means, std::size_t bytes) {
      return storage_of(means.device.allocate_staging(bytes), bytes);
    }};

constinit const Space nvme = {.name = "nvme",
                              .tier = Tier::disk,
                              .collective = false,
                              .open =
                                  [](const Means& means, std::size_t bytes) {
                                    check_storage_folder(means.folder);  // a warning is the program's business
                                    return make_file_storage(means.folder, bytes, means.device);
                                  },
                              .alignment = tile_bytes};

}  // namespace spaces

}  // namespace fsdp
