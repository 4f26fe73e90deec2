#include <array>
#include <functional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "device/file_storage.hpp"
#include "files/json.hpp"
#include "fsdp-bench/bench.hpp"
#include "machine/storage_rate.hpp"
#include "options/options.hpp"

namespace fsdp {

std::string bench_storage(const BenchOptions& options, Communicator& world, Device& device) {
  const std::size_t bytes = options.file_bytes;
  std::string warning;
  std::unique_ptr<Storage> storage;
  std::optional<StoragePasses> state;
  std::optional<PlainPasses> plain;
  agree(world, [&] {
    warning = with_option_names(check_storage_folder(options.folder));
    storage = make_file_storage(options.folder, bytes, device);
    state.emplace(device, *storage, bytes);
    plain.emplace(options.folder, bytes);
  });

  constexpr std::array passes = {std::pair(FilePass::write, "write"), std::pair(FilePass::read, "read"),
                                 std::pair(FilePass::both, "both at once")};
  struct FileRates {
    std::vector<double> state, plain, ratio;
  };
  std::array<FileRates, passes.size()> rates;
  // The first round also gets the files' blocks from the file system, and does not count. Their order alternates, so that a
  // drive that becomes slower slows both alike.
  for (std::size_t round = 0; round <= options.steps; ++round)
    for (std::size_t i = 0; i < passes.size(); ++i) {
      std::array<double, 2> rate{};
      for (const std::size_t turn : {round % 2, 1 - round % 2})
        rate[turn] = rate_of_pass(world, bytes, [&] { turn == 0 ? state->run(passes[i].first) : plain->run(passes[i].first); });
      if (round == 0) continue;
      rates[i].state.push_back(rate[0]), rates[i].plain.push_back(rate[1]), rates[i].ratio.push_back(rate[0] / rate[1]);
    }

  nlohmann::json json = {{"folder", options.folder.string()},
                         {"device", device.description()},
                         {"ranks", world.size()},
                         {"file_bytes", bytes},
                         {"warning", warning.empty() ? nlohmann::json() : nlohmann::json(warning)}};
  std::vector<std::vector<std::string>> rows = {{"", "GB/s", "plain loop, GB/s", "of the plain loop"}};
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const double ours = median(rates[i].state), plains = median(rates[i].plain), ratio = median(rates[i].ratio);
    rows.push_back({passes[i].second, format("{:.2f}", ours / 1e9), format("{:.2f}", plains / 1e9),
                    format("{:.0f} % ({:.0f} to {:.0f})", 100 * ratio, 100 * smallest(rates[i].ratio),
                           100 * *std::max_element(rates[i].ratio.begin(), rates[i].ratio.end()))});
    json["passes"].push_back(
        {{"name", passes[i].second}, {"gb_per_s", ours / 1e9}, {"plain_gb_per_s", plains / 1e9}, {"of_plain", ratio}});
  }
  if (options.json) return json_text(json) + "\n";
  return format(
             "{}{}: {} at once, a file of {} each, median of {}; the plain loop reads and writes pieces of 1 MiB past the page "
             "cache, {} at a time\n",
             warning.empty() ? "" : "warning: " + warning + "\n", options.folder.string(), plural(world.size(), "rank"),
             format_bytes(static_cast<double>(bytes)), options.steps, PlainPasses::threads) +
         lay_out(rows, 2);
}

}  // namespace fsdp
