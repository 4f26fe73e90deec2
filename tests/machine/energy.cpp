// Energy counters of Linux's powercap, from a folder of the same layout: which counters are read, and how they wrap.
#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "machine/energy.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

void set(const std::filesystem::path& powercap, const std::string& zone, const std::string& name, std::uint64_t energy_uj) {
  std::filesystem::create_directories(powercap / zone);
  write_file(powercap / zone / "name", name + "\n");
  write_file(powercap / zone / "energy_uj", std::to_string(energy_uj) + "\n");
  write_file(powercap / zone / "max_energy_range_uj", "1000000000\n");
}

}  // namespace

BOOST_AUTO_TEST_CASE(packages_are_added_up_and_wrap) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& node) {
    if (node.rank() == 0) {
      set(folder / "", "intel-rapl:0", "package-0", 5'000'000);
      set(folder / "", "intel-rapl:1", "package-1", 999'000'000);
      set(folder / "", "intel-rapl:0:0", "core", 1'000'000);
    }
    node.barrier();
    EnergyMeter meter(*make_cpu_device(), node, folder / "");
    node.barrier();
    if (node.rank() == 0) {
      set(folder / "", "intel-rapl:0", "package-0", 7'000'000);
      set(folder / "", "intel-rapl:1", "package-1", 4'000'000);
      set(folder / "", "intel-rapl:0:0", "core", 9'000'000);
    }
    node.barrier();
    const Energy energy = meter.total(node);
    BOOST_REQUIRE(energy.processors.has_value());
    BOOST_TEST(std::abs(*energy.processors - 7) < 1e-9);  // 2 J, and 1 J up to the end of the counter, and 4 J
    BOOST_TEST(!energy.gpus.has_value());
  });
}

BOOST_AUTO_TEST_CASE(what_is_not_told_is_nothing) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Communicator& node) {
    EnergyMeter meter(*make_cpu_device(), node, folder / "none");
    meter.look();
    BOOST_TEST(!meter.total(node).processors.has_value());
  });
}
