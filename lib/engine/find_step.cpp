#include "engine/find_step.hpp"

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"

namespace fsdp {

FoundStep find_step(Group& world, const StepSearch& search) {
  FoundStep found;
  const auto pass_over = [&](const CollectiveError& damage) {
    if (search.folder.empty() || !damage.damage) throw damage;
    std::string aside;
    agree(world, [&] {
      if (world.rank() != 0) return;
      const auto latest = latest_checkpoint(search.folder);
      if (!latest) throw damage;
      aside = set_aside(*latest).string();
    });
    found.passed_over.push_back(format("{}. It was renamed to {}", damage.what(), aside));
  };
  for (;;) {
    try {
      agree(world, [&] { found.checkpoint = search.open(); });
    } catch (const CollectiveError& damage) {
      // All ranks read the same index: if only some fail, it is not damaged.
      if (!damage.all) throw CollectiveError(damage.what(), damage.speaker, damage.all, damage.exit_code, false);
      pass_over(damage);
      continue;
    }
    if (search.accept) agree(world, [&] { search.accept(found.checkpoint); });
    // On a shared file system, one rank may see a checkpoint that another rank does not see yet.
    const std::array mine = {found.checkpoint ? static_cast<std::int64_t>(found.checkpoint->header().progress.update) : -1};
    const std::vector<std::int64_t> all = world.gather(mine);
    const auto other = std::find_if(all.begin(), all.end(), [&](std::int64_t update) { return update != all.front(); });
    if (other != all.end()) {
      const auto text = [](std::int64_t update) { return update < 0 ? "none" : format("that of update {}", update); };
      throw CollectiveError(format("the ranks see different checkpoints (rank 0 {}, rank {} {}: the file system does not show "
                                   "all ranks the same files, or another program writes there); start again, with a folder "
                                   "that all ranks can read",
                                   text(all.front()), other - all.begin(), text(*other)),
                            0, true, exit_code::failed);
    }
    if (search.files)
      require_same_files(
          world, [&] { return search.files(found.checkpoint.get()); }, !search.verify);
    if (!found.checkpoint && search.none)
      agree(world, [&] {
        if (world.rank() == 0) search.none(found.passed_over);
      });
    try {
      if (found.checkpoint && search.verify) agree(world, [&] { found.checkpoint->verify(world.rank(), world.size()); });
    } catch (const CollectiveError& damage) {
      pass_over(damage);
      continue;
    }
    return found;
  }
}

void set_damaged_aside(const std::filesystem::path& folder, std::uint64_t update, std::vector<std::string>& said) {
  for (const std::filesystem::path& step : damaged_checkpoints(folder, update))
    said.push_back(format("{} is damaged, and was renamed to {}", step.string(), set_aside(step).string()));
}

}  // namespace fsdp
