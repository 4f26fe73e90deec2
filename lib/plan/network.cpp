#include "plan/network.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/format.hpp"
#include "base/number_in.hpp"
#include "base/user_error.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

constexpr double bytes_of_gbit = 1e9 / 8;
constexpr int most_ports = 64;
constexpr double least_gbit = 0.1, most_gbit = 10'000, most_hop_us = 10'000;

const std::array networks = {
    Network{.name = "dgx-a100", .ports = 8, .port_bandwidth = 200 * bytes_of_gbit, .source = "NVIDIA DGX A100 datasheet"},
    Network{.name = "dgx-h100", .ports = 8, .port_bandwidth = 400 * bytes_of_gbit, .source = "NVIDIA DGX H100 datasheet"},
    Network{.name = "dgx-h200", .ports = 8, .port_bandwidth = 400 * bytes_of_gbit, .source = "NVIDIA DGX H200 datasheet"},
    Network{.name = "dgx-b200", .ports = 8, .port_bandwidth = 400 * bytes_of_gbit, .source = "NVIDIA DGX B200 datasheet"},
    Network{
        .name = "efa-p4d", .ports = 4, .port_bandwidth = 100 * bytes_of_gbit, .source = "Amazon EC2 P4d: 4 adapters of EFA"},
    Network{.name = "alps",
            .ports = 4,
            .port_bandwidth = 200 * bytes_of_gbit,
            .source = "CSCS Alps: a Slingshot adapter for each of 4 GH200"},
    Network{.name = "ethernet-100", .ports = 1, .port_bandwidth = 100 * bytes_of_gbit, .source = "one port of 100 Gbit/s"}};

/// Throws UserError if the values are impossible. `what` names the network in the message.
Network checked(Network network, double ports, double gbit, const std::string& what) {
  if (!(ports >= 1 && ports <= most_ports && gbit >= least_gbit && gbit <= most_gbit))
    throw UserError(format("{}: {} port{} of {:g} Gbit/s, which no node has (1 to {} ports of {:g} to {:g} Gbit/s); correct it",
                           what, ports, ports == 1 ? "" : "s", gbit, most_ports, least_gbit, most_gbit));
  if (!(network.hop >= 0 && network.hop <= 1e-6 * most_hop_us))
    throw UserError(
        format("{}: a hop of {:g} us (expected are 0 to {:g}); correct hop_us", what, 1e6 * network.hop, most_hop_us));
  if (!(network.decay >= 0 && network.decay <= 1))
    throw UserError(format("{}: a decay of {:g} (expected is 0 to 1); correct it", what, network.decay));
  network.ports = static_cast<int>(ports), network.port_bandwidth = gbit * bytes_of_gbit;
  return network;
}

Network network_in_file(const std::string& path) {
  const nlohmann::json json = read_strict_json_file(path, path);
  if (!json.is_object() || !json.contains("ports") || !json.contains("gbit"))
    throw UserError(path + " must be a JSON object with the fields ports and gbit; add what is missing, or name a network");
  Network network{.name = path, .source = "as given in the file"};
  double ports = 0, gbit = 0;
  for (const auto& [key, value] : json.items()) {
    const auto number = [&] {
      if (!value.is_number()) throw UserError(format("{}: {} must be a number; correct it", path, key));
      return value.get<double>();
    };
    if (key == "name") {
      if (!value.is_string() || value == "") throw UserError(path + ": name must be a string, not empty; correct it");
      network.name = value.get<std::string>();
    } else if (key == "ports") {
      if (!value.is_number_integer()) throw UserError(path + ": ports must be a whole number; correct it");
      ports = number();
    } else if (key == "gbit") {
      gbit = number();
    } else if (key == "hop_us") {
      network.hop = 1e-6 * number();
    } else if (key == "decay") {
      network.decay = number();
    } else {
      throw UserError(
          format("{}: unknown field {} (known are name, ports, gbit, hop_us and decay); remove it", path, json_excerpt(key)));
    }
  }
  return checked(std::move(network), ports, gbit, path);
}

}  // namespace

std::span<const Network> known_networks() { return networks; }

std::string names_of_networks() {
  std::vector<std::string> all;
  for (const Network& network : networks) all.push_back(network.name);
  return format("{}", fmt::join(all, ", "));
}

const Network* find_network(std::string_view name) {
  const auto found = std::ranges::find(networks, name, &Network::name);
  return found == networks.end() ? nullptr : &*found;
}

Network read_network(std::string_view text) {
  if (const Network* const known = find_network(text)) return *known;
  if (const std::size_t x = text.find('x'); x != std::string_view::npos) {
    const auto ports = number_in<int>(text.substr(0, x));
    const auto gbit = number_in<double>(text.substr(x + 1));
    if (ports && gbit) return checked({.name = std::string(text), .source = "as given"}, *ports, *gbit, std::string(text));
  }
  const std::string path(text);
  if (std::error_code ignored; !std::filesystem::exists(path, ignored))
    throw UserError(
        format("unknown network {} (known are {}); give one of these, PORTSxGBIT such as 4x200, or the path of a JSON file "
               "with the fields ports and gbit",
               text, names_of_networks()));
  return network_in_file(path);
}

nlohmann::json to_json(const Network& network) {
  return {{"name", network.name},        {"ports", network.ports}, {"gbit", network.port_bandwidth / bytes_of_gbit},
          {"hop_us", 1e6 * network.hop}, {"decay", network.decay}, {"source", network.source}};
}

}  // namespace fsdp
