// The networks between nodes that predictions know, and networks that a user describes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// What connects a node to others. All ranks of a node share its ports equally.
struct Network {
  std::string name = {};
  int ports = 0;              // of a node; 0: no network
  double port_bandwidth = 0;  // bytes per second of a port, in one direction
  double hop = 14e-6;         // seconds for a hop of NCCL's ring (src/graph/tuning.cc: ring, protocol Simple, between nodes)
  /// The ring's bandwidth on m nodes is proportional to (m / 2)^-decay. 0.094 fits reduce-scatters on 4 to 128 nodes of H100
  /// (NCCL, issue 1229: 360 to 260 GB/s).
  double decay = 0.094;
  std::string source = {};

  double node_bandwidth() const { return ports * port_bandwidth; }
};

std::span<const Network> known_networks();
/// "dgx-a100, dgx-h100, ...".
std::string names_of_networks();
/// Returns null if the name is unknown.
const Network* find_network(std::string_view name);
/// `text` is a name, PORTSxGBIT such as "8x400", or the path of a JSON file with the fields `ports` and `gbit`, and optionally
/// `name`, `hop_us` and `decay`. Throws UserError, which lists the names, for anything else and for impossible values.
Network read_network(std::string_view text);
nlohmann::json to_json(const Network& network);

}  // namespace fsdp
