// A file of timed algorithms: which algorithm of cuBLASLt computes each matrix product of a model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp {

/// Throws UserError if `file` is not empty and the device is a CPU.
void check_gemm_algorithms(const std::filesystem::path& file, DeviceKind kind);

/// Makes all ranks use the algorithms in `file` for these products. Rank 0 times the products that are not in the file (or all
/// of them, if there is no file), on their own memory, and adds them to the file. Returns a checksum of the algorithms of
/// `products`; a product that only other ranks have gets no algorithm. Throws CollectiveError if the file is of another GPU or
/// another version of cuBLASLt, is damaged, or cannot be written. Collective over world.
std::string use_gemm_algorithms(const std::filesystem::path& file, const std::vector<kernels::Product>& products,
                                Stream& stream, const Device& device, Communicator& world);

/// Describes the difference between two checksums that use_gemm_algorithms() returned (empty: there was no file), for a run
/// that resumes; empty if they are equal.
std::string describe_changed_algorithms(const std::string& before, const std::string& now);

}  // namespace fsdp
