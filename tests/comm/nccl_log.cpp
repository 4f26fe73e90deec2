// The lines in which NCCL names its network. All are from reports of users, whose host names are shortened.
#include <boost/test/unit_test.hpp>

#include "comm/nccl/nccl_log.hpp"

using namespace fsdp;

namespace {

std::string network(const std::string& log) { return describe(network_in(log)); }

}  // namespace

BOOST_AUTO_TEST_CASE(infiniband) {
  // NVIDIA/nccl issue 1925: NCCL 2.28
  BOOST_TEST(network("n1:2620971:2620971 [3] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
                     "n1:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>\n"
                     "n1:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB\n"
                     "n1:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm\n"
                     "n1:2620971:2620971 [3] NCCL INFO Using network IB\n") == "InfiniBand (mlx5_0:1/IB)");
  // NVIDIA/nccl issue 1052: NCCL 2.18
  BOOST_TEST(network("n2:14159:14168 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>\n"
                     "n2:14159:14168 [0] NCCL INFO Using network IB\n") == "RoCE (mlx5_4:1/RoCE)");
  // NVIDIA/nccl issue 1357: the plugin nccl-rdma-sharp
  BOOST_TEST(
      network("q:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin NCCL RDMA Plugin v6 (v6)\n"
              "q:1:2 [0] NCCL INFO P2P plugin IBext\n"
              "q:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.119<0>\n"
              "q:1:2 [0] NCCL INFO Using network IBext\n") ==
      "InfiniBand (NCCL RDMA Plugin v6, mlx5_0:1/IB/SHARP mlx5_1:1/IB/SHARP)");
}

BOOST_AUTO_TEST_CASE(libfabric) {
  // aws/aws-ofi-nccl issue 801: Slingshot
  BOOST_TEST(network("[0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.6.0\n"
                     "[0] NCCL INFO NET/OFI Selected Provider is cxi (found 8 nics)\n"
                     "[0] NCCL INFO Using non-device net plugin version 0\n"
                     "[0] NCCL INFO Using network AWS Libfabric\n") == "libfabric (aws-ofi-nccl 1.6.0, cxi)");
  // aws/aws-ofi-nccl issue 715
  BOOST_TEST(network("algo-1:1:2 [6] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.11.0-aws\n"
                     "algo-1:1:2 [6] NCCL INFO NET/OFI Using Libfabric version 1.22\n"
                     "algo-1:1:2 [0] NCCL INFO Using network AWS Libfabric\n") == "libfabric (aws-ofi-nccl 1.11.0-aws)");
}

BOOST_AUTO_TEST_CASE(tcp) {
  // NVIDIA/nccl pull request 2047: NCCL 2.29
  const NcclNetwork found = network_in(
      "VM:20184:20184 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so\n"
      "VM:20184:20184 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
      "VM:20184:20184 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.16.2<0> [1]eth1:10.0.0.2<0>\n"
      "VM:20184:20184 [0] NCCL INFO Using network Socket");
  BOOST_TEST(describe(found) == "TCP (eth0 eth1)");
  BOOST_TEST(found.is_tcp());
  // A plugin that was loaded, but does not run.
  BOOST_TEST(network("x NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.9.1\r\nx NCCL INFO Using network Socket\r\n") == "TCP");
}

BOOST_AUTO_TEST_CASE(other_text) {
  BOOST_TEST(network("") == "");
  BOOST_TEST(network("no line of NCCL\n\n[0]\nNCCL INFO Using network") == "");
  BOOST_TEST(network("x NCCL INFO Using network GIN_\x1b[31m\n") .find('\x1b') == std::string::npos);
  BOOST_TEST(network("NET/IB : Using [0 []] ][ <0>;;;\nx NCCL INFO Using network IB\n").starts_with("InfiniBand"));
}
