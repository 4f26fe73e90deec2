#include "comm/nccl/nccl_log.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/clean_text.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// The rest of `line` after `mark`; empty if it has no mark.
std::string_view after(std::string_view line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  return at == line.npos ? std::string_view() : line.substr(at + mark.size());
}

/// "mlx5_0:1/IB mlx5_1:1/IB" from "[0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>", and "eth0" from
/// "[0]eth0:10.0.0.1<0>".
std::string devices_in(std::string_view list) {
  std::string names;
  list = list.substr(0, list.find(';'));
  while (!list.empty()) {
    const std::size_t space = list.find(' ');
    std::string_view word = list.substr(0, space);
    list = space == list.npos ? std::string_view() : list.substr(space + 1);
    const std::size_t number_end = word.find(']');
    if (!word.starts_with('[') || number_end == word.npos || number_end + 1 == word.size()) continue;  // "[RO]", "OOB"
    word = word.substr(number_end + 1);
    if (word.ends_with(">")) word = word.substr(0, word.find(':'));  // an interface and its address
    names += (names.empty() ? "" : " ") + std::string(word);
  }
  return names;
}

}  // namespace

NcclNetwork network_in(std::string_view log) {
  NcclNetwork network;
  std::string infiniband, interfaces;
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    std::string_view line = log.substr(0, end);
    log = end == log.npos ? std::string_view() : log.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto name = after(line, "NCCL INFO Using network "); !name.empty()) network.name = name;
    for (const std::string_view mark : {"NET/IB : Using ", "NET/IB: Using "})
      if (const auto list = after(line, mark); !list.empty()) infiniband = devices_in(list);
    for (const std::string_view mark : {"NET/Socket : Using ", "NET/Socket: Using "})
      if (const auto list = after(line, mark); !list.empty()) interfaces = devices_in(list);
    if (const auto plugin = after(line, "Loaded net plugin "); !plugin.empty())
      network.plugin = plugin.substr(0, plugin.find(" ("));
    for (const std::string_view mark : {"NET/OFI Initializing ", "NET/OFI Using aws-ofi-nccl "})
      if (const auto plugin = after(line, mark); !plugin.empty())
        network.plugin = (mark.ends_with("nccl ") ? "aws-ofi-nccl " : "") + std::string(plugin);
    for (const std::string_view mark : {"Selected Provider is ", "Selected provider is "})
      if (const auto provider = after(line, mark); !provider.empty())
        network.provider = provider.substr(0, provider.find_first_of(" ,"));
  }
  network.devices = network.name.starts_with("IB") ? infiniband : network.is_tcp() ? interfaces : "";
  if (network.name.starts_with("IB") && !network.name.starts_with("IBext")) network.plugin.clear();
  if (network.is_tcp()) network.plugin.clear(), network.provider.clear();
  return network;
}

std::string describe(const NcclNetwork& network) {
  if (network.name.empty()) return "";
  const bool is_libfabric = network.name.find("ibfabric") != network.name.npos || network.name == "OFI";
  std::string details;
  for (const std::string* detail : {&network.plugin, &network.provider, &network.devices})
    if (!detail->empty()) details += (details.empty() ? "" : ", ") + *detail;
  const std::string name = is_libfabric                                            ? "libfabric"
                           : network.is_tcp()                                      ? "TCP"
                           : !network.name.starts_with("IB")                       ? network.name
                           : network.devices.find("/RoCE") != network.devices.npos ? "RoCE"
                                                                                   : "InfiniBand";
  return one_line(details.empty() ? name : format("{} ({})", name, details));
}

NcclLog::NcclLog() {
  if (std::getenv("NCCL_DEBUG") || std::getenv("NCCL_DEBUG_FILE")) return;
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "fsdp-nccl-XXXXXX").string();
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0) return;
  ::close(descriptor);
  file_ = name;
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 0);
  ::setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
}

NcclLog::~NcclLog() {
  if (file_.empty()) return;
  std::error_code error;
  std::filesystem::remove(file_, error);
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}) ::unsetenv(name);
}

std::string NcclLog::text() const {
  if (file_.empty()) return "";
  std::ifstream file(file_);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace fsdp
