// Networks by name, by ports and Gbit/s, and from files.
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "plan/network.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(known_names) {
  for (const Network& network : known_networks()) {
    BOOST_TEST(read_network(network.name).node_bandwidth() == network.node_bandwidth());
    BOOST_TEST((network.ports > 0 && !network.source.empty()));
  }
  BOOST_TEST(read_network("dgx-h100").node_bandwidth() == 8 * 50e9);
  BOOST_TEST(read_network("alps").node_bandwidth() == 4 * 25e9);
}

BOOST_AUTO_TEST_CASE(ports_times_gigabits) {
  const Network network = read_network("4x12.5");
  BOOST_TEST(network.ports == 4);
  BOOST_TEST(network.port_bandwidth == 12.5e9 / 8);
  BOOST_TEST(network.hop == 14e-6);
  for (const char* wrong : {"0x400", "8x0", "8x-1", "1000x400", "4x1e-300", "8x1e9", "8xnan"})
    CHECK_CONTAINS(message_of([&] { read_network(wrong); }), "which no node has");
  for (const char* wrong : {"8x", "x400", "8*400", "dgx", "8x400x2"})
    CHECK_CONTAINS(message_of([&] { read_network(wrong); }), "dgx-h100");
}

BOOST_AUTO_TEST_CASE(files) {
  const TemporaryFolder folder;
  const auto file = [&](const char* text) {
    write_file(folder / "network.json", text);
    return (folder / "network.json").string();
  };
  const Network network = read_network(file(R"({"name": "ours", "ports": 2, "gbit": 100, "hop_us": 5, "decay": 0.2})"));
  BOOST_TEST(network.name == "ours");
  BOOST_TEST(network.node_bandwidth() == 25e9);
  BOOST_TEST(network.hop == 1e-6 * 5);
  BOOST_TEST(network.decay == 0.2);
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2, "gbit": 100, "rate": 5})")); }), "unknown field");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": "2", "gbit": 100})")); }), "whole number");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2.5, "gbit": 100})")); }), "whole number");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2})")); }), "fields ports and gbit");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2, "gbit": 100, "decay": 2})")); }), "decay");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2, "gbit": 100, "hop_us": -1})")); }), "a hop of -1 us");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 1000, "gbit": 100})")); }), "1000 ports");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 4000000000000, "gbit": 100})")); }),
                 "json: 4000000000000 ports");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 1, "gbit": 0.01})")); }), "1 port of 0.01 Gbit/s");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 1, "gbit": "x"})")); }), "gbit must be a number");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 1, "gbit": 1, "name": 5})")); }), "name must be a string");
  const std::filesystem::path loop = folder / "loop";
  std::filesystem::create_symlink(loop, loop);
  CHECK_CONTAINS(message_of([&] { read_network(loop.string()); }), "unknown network");
  CHECK_CONTAINS(message_of([&] { read_network(file("[]")); }), "JSON object");
  for (const char* damaged : {"ports", "", R"({"ports": 2, "gbit": 100)", R"({"ports": 2, "gbit": 1e400})"})
    CHECK_CONTAINS(message_of([&] { read_network(file(damaged)); }), "is no JSON");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 2, "gbit": 1, "ports": 4})")); }), "has 'ports' twice");
  CHECK_CONTAINS(message_of([&] { read_network(file(R"({"ports": 1, "gbit": 1, "name": ""})")); }), "not empty");
}
