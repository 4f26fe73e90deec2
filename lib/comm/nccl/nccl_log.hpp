// What NCCL says about its network in the lines that it writes with NCCL_DEBUG=INFO. NCCL has no function that returns this.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

/// The network between nodes. All texts are empty if NCCL has not said it.
struct NcclNetwork {
  std::string name;      // NCCL's own: "IB", "Socket", "AWS Libfabric"
  std::string plugin;    // "aws-ofi-nccl 1.11.0-aws", "NCCL RDMA Plugin v6"
  std::string provider;  // libfabric's: "cxi"
  std::string devices;   // "mlx5_0:1/IB mlx5_1:1/IB", "eth0"
  bool is_tcp() const { return name == "Socket"; }
};

/// Reads the lines of one process, of NCCL 2.4 to 2.30 and of the plugins aws-ofi-nccl and nccl-rdma-sharp.
NcclNetwork network_in(std::string_view log);
/// "InfiniBand (mlx5_0:1/IB)", "libfabric (aws-ofi-nccl 1.11.0-aws, cxi)", "TCP (eth0)"; empty if the name is.
std::string describe(const NcclNetwork& network);

/// Makes NCCL write its lines to a file, which this object reads and removes, unless the user has set NCCL_DEBUG. NCCL opens
/// the file at its first call, so only the first object of a process gets lines. It sets environment variables and removes
/// them: no other thread may read the environment while an object is made or destroyed.
class NcclLog {
 public:
  NcclLog();
  NcclLog(const NcclLog&) = delete;
  ~NcclLog();
  /// The lines so far; empty if the user has set NCCL_DEBUG, or if there is no file.
  std::string text() const;

 private:
  std::string file_;  // empty: NCCL writes no file for this object
};

}  // namespace fsdp
