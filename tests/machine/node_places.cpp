// What sysfs says of NUMA nodes, GPUs and links, from folders like those of known machines, and the choice of GPUs.
#include <boost/test/unit_test.hpp>

#include <fstream>

#include "machine/machine.hpp"
#include "machine/node_places.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A folder like /sys.
struct Sys {
  TemporaryFolder folder;
  void add(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text << "\n";
  }
};

const std::string aws = "libfabric (aws-ofi-nccl 1.6.0, cxi)";

}  // namespace

BOOST_AUTO_TEST_CASE(lists_of_processors) {
  BOOST_TEST(processors_in("0-2,8\n") == (std::vector<std::size_t>{0, 1, 2, 8}), boost::test_tools::per_element());
  BOOST_TEST(processors_in("").empty());
  BOOST_TEST(processors_in("\n").empty());
}

BOOST_AUTO_TEST_CASE(numa_nodes) {
  const Sys sys;
  sys.add("bus/pci/devices/0000:3b:00.0/numa_node", "1");
  sys.add("bus/pci/devices/0000:5e:00.0/numa_node", "-1");
  BOOST_TEST(numa_of_gpu("0000:3b:00", sys.folder.path()) == 1);
  BOOST_TEST(numa_of_gpu("0000:5e:00", sys.folder.path()) == -1);
  BOOST_TEST(numa_of_gpu("0000:aa:00", sys.folder.path()) == -1);
  // All processors of this thread are on node1, or on both nodes, or there is only one node.
  std::string all;
  const std::vector<std::int64_t> allowed = allowed_processors();
  for (std::size_t cpu = 0; cpu < allowed.size(); ++cpu)
    if (allowed[cpu] != 0) all += (all.empty() ? "" : ",") + std::to_string(cpu);
  sys.add("devices/system/node/node1/cpulist", all);
  BOOST_TEST(numa_of_thread(sys.folder.path()) == -1);
  sys.add("devices/system/node/node0/cpulist", "4000-4007");
  sys.add("devices/system/node/has_cpu", "0-1");
  BOOST_TEST(numa_of_thread(sys.folder.path()) == 1);
  sys.add("devices/system/node/node0/cpulist", all);
  BOOST_TEST(numa_of_thread(sys.folder.path()) == -1);
}

BOOST_AUTO_TEST_CASE(network_links) {
  const Sys ethernet;
  ethernet.add("class/net/lo/operstate", "unknown");
  ethernet.add("class/net/eth0/operstate", "up");
  ethernet.add("class/net/eth0/speed", "25000");
  ethernet.add("class/net/eth0/device/numa_node", "0");
  ethernet.add("class/net/eth1/operstate", "down");
  ethernet.add("class/net/eth1/device/numa_node", "0");
  std::vector<Link> links = find_links(ethernet.folder.path());
  BOOST_REQUIRE(links.size() == 1u);
  BOOST_TEST(links[0].name == "eth0");
  BOOST_TEST(links[0].bytes_per_s == 25e9 / 8);
  BOOST_TEST(!links[0].is_fast());
  BOOST_TEST(advise_network("TCP (eth0)", links) == "");

  Sys infiniband;
  infiniband.add("class/net/eth0/operstate", "up");
  for (const std::string port : {"mlx5_0", "mlx5_1"}) {
    infiniband.add("class/infiniband/" + port + "/ports/1/state", "4: ACTIVE");
    infiniband.add("class/infiniband/" + port + "/ports/1/rate", "200 Gb/sec (4X HDR)");
    infiniband.add("class/infiniband/" + port + "/device/numa_node", port == "mlx5_0" ? "0" : "1");
  }
  infiniband.add("class/infiniband/mlx5_2/ports/1/state", "1: DOWN");
  links = find_links(infiniband.folder.path());
  BOOST_REQUIRE(links.size() == 2u);
  BOOST_TEST(links[1].numa == 1);
  BOOST_TEST(bytes_per_s(links) == 50e9);
  BOOST_TEST(advise_network("InfiniBand (mlx5_0:1/IB)", links) == "");
  BOOST_TEST(advise_network("", links) == "");  // NCCL did not say it
  BOOST_TEST(advise_network("TCP (ib0)", links).find("NCCL_NET=IB") != std::string::npos);

  Sys slingshot;
  for (const std::string i : {"0", "1", "2", "3"}) {
    slingshot.add("class/cxi/cxi" + i + "/device/numa_node", i);
    slingshot.add("class/net/hsn" + i + "/speed", "200000");
  }
  links = find_links(slingshot.folder.path());
  BOOST_TEST(links.size() == 4u);
  BOOST_TEST(bytes_per_s(links) == 100e9);
  BOOST_TEST(advise_network("TCP (hsn0)", links).find("load the plugin aws-ofi-nccl") == 0u);
  BOOST_TEST(advise_network(aws, links) == "");
  BOOST_TEST(find_links("/no/such/folder").empty());
}

BOOST_AUTO_TEST_CASE(ranks_get_gpus_of_their_numa_nodes) {
  const auto check = [](const std::vector<std::int64_t>& ranks, const std::vector<std::int64_t>& gpus,
                        const std::vector<int>& chosen) {
    BOOST_TEST(choose_gpus(ranks, gpus) == chosen, boost::test_tools::per_element());
  };
  check({0, 1, 2, 3}, {3, 2, 1, 0}, {3, 2, 1, 0});  // Perlmutter
  check({0, 0, 1, 1}, {0, 0, 1, 1}, {0, 1, 2, 3});
  check({1, 0, 1, 0}, {0, 0, 1, 1}, {2, 0, 3, 1});
  check({-1, -1, -1, -1}, {3, 2, 1, 0}, {0, 1, 2, 3});  // not bound
  check({0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3});      // all bound to one NUMA node
  check({0, 1}, {0, 0, 1, 1}, {0, 1});                  // more GPUs than ranks
  check({0, 1, 0, 1}, {-1, -1}, {0, 1, 0, 1});          // the machine does not say where its GPUs are
  check({0}, {0}, {0});
}
